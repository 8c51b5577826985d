/* gemm_bf16.c (AVX-512 BF16): matrix products of bf16 activations by the instruction that
 * multiplies and adds pairs.
 *
 * One 16-lane accumulator per output takes the columns in ascending steps of 32, a pair of columns
 * a lane; columns beyond k count as 0; the lanes are added by the tree of v_sum4. Lane j's pair of
 * a step is 2 j, 2 j + 1 for bf16 weights and 8 (j mod 4) + j / 4, 4 more for MXFP4, whose codes
 * unpack best in that order. Rows and tiles do not change this order. Products are exact; what lies
 * below 2^-126 counts as 0 (the instruction's rule), so outputs with MXFP4 scales that lead there
 * take the f32 kernel instead; so do MXFP4 rows of more than 65,536 columns (the release has 3,584
 * at most), of which not one fits the buffer. Other rows have no part in either choice.
 *
 * Weights are read and decoded in place: a tile of 4 x 4, 2 x 8 or 1 x 16 rows and outputs runs
 * over the whole of k, all tiles of rows that fit the caches follow each other on the same weight
 * rows, and the next weight rows are prefetched meanwhile, so many rows run near the peak. A single
 * row takes large matrices in another way (see STREAM), in which they come at memory speed. */
#include "bf16_ops.h"

/* The f32 kernel of this folder. */
void k3i_gemm_mxfp4_bf16__avx512(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                                 const uint8_t *packed, const uint8_t *scale, size_t n_row,
                                 size_t n_out, size_t k);

enum {
    MR = 4,               /* rows of a tile, at most */
    ACCS = 16,            /* accumulators of a tile: for 1, 2, 3 or 4 rows 16, 8, 4 or 4 outputs */
    KEEP_BYTES = 1 << 18, /* of activations beside the weights: a quarter of Zen 4's L2, half of
                             Skylake's */
    X_ELEMS = 1 << 16,    /* activations in the order of the codes, on the stack (base/thread.h) */
    AHEAD = 16384,        /* bytes from the weights in use to those asked for, at least; on Zen 4,
                             8 to 32 KiB are alike */
    FAR = 1 << 19,        /* more than that does not stay in L2 until it is used, */
    NEAR = 2048,          /* then so far */
    STREAMS = 3,          /* places at which one row reads weights (see STREAM), */
    STREAM_OUTS = 4,      /* so many outputs at each before their sums are added up, */
    STREAM_STEPS = 4,     /* so many steps at a time, */
    STREAM_AHEAD = 1024,  /* so many bytes asked for ahead, */
    STREAM_BYTES = 1 << 17, /* for so many bytes of weights at least: fewer may come from L2 */
};

typedef struct {
    float *y;
    size_t y_stride;
    const uint16_t *x; /* MXFP4: in the order of the codes */
    size_t x_stride;
    const uint8_t *w; /* bf16 or packed MXFP4 rows */
    const uint8_t *scale;
    size_t n_out, k;
} gemm;

enum { W_BF16, W_MXFP4 };

/* codes[e]: the 16 codes as bf16 under scale 2^(e - 127), twice, so that the fifth bit of an index
 * is harmless. Scales beyond 2^125, whose codes may be infinite in bf16, and below 2^-95, where
 * products with activations may not be normal numbers, give NaN: see redo_nan. */
#define CODE(e, one)                          \
    (uint16_t)((e) < 32 || (e) > 252 ? 0x7fc0 \
               : ((one)&0x7fff) == 0 ? (one)  \
                                     : ((one) + 128 * (e)-16256) & 0xffff)
#define CODES_8(e, sign)                                                                       \
    CODE(e, sign + 0), CODE(e, sign + 0x3f00), CODE(e, sign + 0x3f80), CODE(e, sign + 0x3fc0), \
        CODE(e, sign + 0x4000), CODE(e, sign + 0x4040), CODE(e, sign + 0x4080),                \
        CODE(e, sign + 0x40c0)
#define CODES_1(e)                                                           \
    {                                                                        \
        CODES_8(e, 0), CODES_8(e, 0x8000), CODES_8(e, 0), CODES_8(e, 0x8000) \
    }
#define CODES_4(e) CODES_1(e), CODES_1((e) + 1), CODES_1((e) + 2), CODES_1((e) + 3)
#define CODES_16(e) CODES_4(e), CODES_4((e) + 4), CODES_4((e) + 8), CODES_4((e) + 12)
#define CODES_64(e) CODES_16(e), CODES_16((e) + 16), CODES_16((e) + 32), CODES_16((e) + 48)
static const uint16_t codes[256][32]
    __attribute__((aligned(64))) = {CODES_64(0), CODES_64(64), CODES_64(128), CODES_64(192)};

/* A group of 32 MXFP4 columns as bf16: quarter q holds nibble q of each of the 8 words at p. */
INLINE __m512i load_mxfp4(const uint8_t *p, uint8_t scale)
{
    const int64_t one = 0x0004000400040004;
    const __m512i nibble = _mm512_set_epi64(3 * one, 3 * one, 2 * one, 2 * one, one, one, 0, 0);
    __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i_u *)p));
    return _mm512_permutexvar_epi16(_mm512_srlv_epi16(words, nibble),
                                    _mm512_load_si512(codes[scale]));
}

/* Activations in that order. */
static void order_row(uint16_t *to, const uint16_t *x, size_t k)
{
    const __m512i from =
        _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2, 29, 25, 21, 17,
                         13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    for (size_t c = 0; c < k; c += 32)
        _mm512_storeu_si512(to + c, _mm512_permutexvar_epi16(from, _mm512_loadu_si512(x + c)));
}

/* Into L2: the distance is too long for L1. An address behind the end never faults. */
INLINE void prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Bytes from the weights in use to those asked for: whole tiles, if L2 has room for them. */
INLINE size_t distance(size_t tile_bytes)
{
    return tile_bytes > FAR ? NEAR : (AHEAD + tile_bytes - 1) / tile_bytes * tile_bytes;
}

/* Asks, once a cache line, for the weights `ahead` of step s. Of bf16, for the same step of `asks`
 * rows of another tile, from row `first` on; of MXFP4, where a step takes a quarter of a line, for
 * that tile from its start to its end. */
INLINE void ask(int w_kind, size_t nr, const uint8_t *const *w, size_t row_bytes, size_t asks,
                size_t first, size_t s, size_t ahead)
{
    UNROLL
    for (size_t j = 0; j < nr; j++) {
        if (w_kind == W_MXFP4) {
            if (j % 4 == 0)
                prefetch(w[0] + 16 * (nr * s + j) + ahead);
        } else if (asks == nr) {
            prefetch(w[j] + 64 * s + ahead);
        } else if (j < asks) {
            prefetch(w[0] + (first + j) * row_bytes + ahead + 64 * s);
        }
    }
}

/* Adds columns 32 s .., n of them, of mr rows at x and nr outputs to acc [mr][nr]. */
INLINE void step(const gemm *g, int w_kind, size_t mr, size_t nr, const uint16_t *x,
                 const uint8_t *const *w, const uint8_t *const *scale, size_t s, size_t n, vec *acc)
{
    const size_t bytes = w_kind == W_BF16 ? 64 : 16;
    __m512i v[MR];
    UNROLL
    for (size_t i = 0; i < mr; i++)
        v[i] = load_pairs(x + i * g->x_stride + 32 * s, n);
    UNROLL
    for (size_t j = 0; j < nr; j++) {
        __m512i u = w_kind == W_BF16 ? load_pairs(w[j] + bytes * s, n)
                                     : load_mxfp4(w[j] + bytes * s, scale[j][s]);
        UNROLL
        for (size_t i = 0; i < mr; i++)
            acc[i * nr + j] = dot_pairs(v[i], u, acc[i * nr + j]);
    }
}

/* The sums [mr][nr] of rows r.. and outputs o.. . whole: all outputs exist; else missing ones
 * repeat the last one. asks: of so many rows of weights, from row `first` of the tile on, this tile
 * asks for those `ahead`. */
INLINE vec tile(const gemm *g, int w_kind, size_t mr, size_t nr, size_t r, size_t o, int whole,
                size_t asks, size_t first, size_t ahead)
{
    const uint16_t *x = g->x + r * g->x_stride;
    size_t row_bytes = w_kind == W_BF16 ? 2 * g->k : g->k / 2, n = g->k / 32;
    const uint8_t *w[ACCS] = {g->w + o * row_bytes}, *scale[ACCS] = {g->scale + o * n};
    UNROLL
    for (size_t j = 1; j < nr; j++) {
        w[j] = w[j - 1] + (whole || o + j < g->n_out ? row_bytes : 0);
        scale[j] = scale[j - 1] + (whole || o + j < g->n_out ? n : 0);
    }
    for (size_t i = 0; asks > 0 && w_kind == W_MXFP4 && i < nr * n; i += 64)
        prefetch(scale[0] + ahead / 16 + i);
    vec acc[ACCS];
    UNROLL
    for (size_t i = 0; i < ACCS; i++)
        acc[i] = v_zero();
    for (size_t s = 0; s < n; s++) {
        if (asks > 0)
            ask(w_kind, nr, w, row_bytes, asks, first, s, ahead);
        step(g, w_kind, mr, nr, x, w, scale, s, 32, acc);
    }
    if (w_kind == W_BF16 && g->k % 32 != 0)
        step(g, w_kind, mr, nr, x, w, scale, n, g->k % 32, acc);
    return v_sum_quarters(v_quarters(acc[0], acc[1], acc[2], acc[3]),
                          v_quarters(acc[4], acc[5], acc[6], acc[7]),
                          v_quarters(acc[8], acc[9], acc[10], acc[11]),
                          v_quarters(acc[12], acc[13], acc[14], acc[15]));
}

/* sum [mr][nr] into y, as far as the outputs exist. */
INLINE void put(const gemm *g, size_t mr, size_t nr, size_t r, size_t o, vec sum)
{
    size_t n = g->n_out - o;
    float *y = g->y + r * g->y_stride + o;
    if (n < nr) { /* masked stores are slow */
        float all[16];
        v_store(all, sum);
        for (size_t i = 0; i < mr; i++) {
            for (size_t j = 0; j < n; j++)
                y[i * g->y_stride + j] = all[i * nr + j];
        }
    } else if (mr == 1) {
        v_store(y, sum);
    } else if (mr == 2) {
        _mm256_storeu_ps(y, _mm512_castps512_ps256(sum));
        _mm256_storeu_ps(y + g->y_stride, _mm512_extractf32x8_ps(sum, 1));
    } else {
        _mm_storeu_ps(y, _mm512_castps512_ps128(sum));
        _mm_storeu_ps(y + g->y_stride, _mm512_extractf32x4_ps(sum, 1));
        _mm_storeu_ps(y + 2 * g->y_stride, _mm512_extractf32x4_ps(sum, 2));
        if (mr == 4)
            _mm_storeu_ps(y + 3 * g->y_stride, _mm512_extractf32x4_ps(sum, 3));
    }
}

/* Rows r0..r1-1, mr at a time, of outputs o0..o1-1, as many at a time as 16 accumulators serve. One
 * function each: together, their loops would be short of registers. ahead: 0, or nobody has read
 * these weights before and others are asked for so far ahead. Then the first n_ask tiles of rows,
 * which must exist, share the requests: one tile alone would make more than the processor keeps
 * under way, and wait. */
#define STRIPS(name, w_kind, mr, n_ask)                                                           \
    static __attribute__((noinline)) void strips_##name(const gemm *g, size_t r0, size_t r1,      \
                                                        size_t o0, size_t o1, size_t ahead)       \
    {                                                                                             \
        const size_t nr = (mr) == 1 ? 16 : (mr) == 2 ? 8 : 4, of_one = nr / (n_ask);              \
        for (size_t o = o0; o < o1; o += nr) {                                                    \
            size_t r = r0;                                                                        \
            if (ahead > 0 && g->n_out - o >= nr) {                                                \
                for (size_t first = 0; first < nr; r += (mr), first += of_one)                    \
                    put(g, mr, nr, r, o, tile(g, w_kind, mr, nr, r, o, 1, of_one, first, ahead)); \
            }                                                                                     \
            for (; r < r1; r += (mr)) {                                                           \
                if (g->n_out - o >= nr) {                                                         \
                    put(g, mr, nr, r, o, tile(g, w_kind, mr, nr, r, o, 1, 0, 0, 0));              \
                } else {                                                                          \
                    put(g, mr, nr, r, o, tile(g, w_kind, mr, nr, r, o, 0, 0, 0, 0));              \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }
STRIPS(bf16_1, W_BF16, 1, 1)
STRIPS(bf16_2, W_BF16, 2, 1)
STRIPS(bf16_3, W_BF16, 3, 1)
STRIPS(bf16_4, W_BF16, 4, 1)
STRIPS(bf16_16, W_BF16, 4, 4)
STRIPS(mxfp4_1, W_MXFP4, 1, 1)
STRIPS(mxfp4_2, W_MXFP4, 2, 1)
STRIPS(mxfp4_3, W_MXFP4, 3, 1)
STRIPS(mxfp4_4, W_MXFP4, 4, 1)
#undef STRIPS

/* Steps s .., n of them, of one row and the outputs at w. */
INLINE void stream_steps(const gemm *g, int w_kind, const uint8_t *const *w,
                         const uint8_t *const *scale, size_t s, size_t n, vec *acc)
{
    const size_t bytes = w_kind == W_BF16 ? 64 : 16;
    UNROLL
    for (size_t j = 0; j < STREAMS; j++) {
        UNROLL
        for (size_t at = 0; at < n * bytes; at += 64)
            prefetch(w[j] + s * bytes + at + STREAM_AHEAD);
    }
    UNROLL
    for (size_t i = s; i < s + n; i++)
        step(g, w_kind, 1, STREAMS, g->x, w, scale, i, 32, acc);
}

/* The sums of outputs o .. o + STREAM_OUTS - 1 of each part. */
INLINE vec stream_outs(const gemm *g, int w_kind, size_t part, size_t o)
{
    size_t row_bytes = w_kind == W_BF16 ? 2 * g->k : g->k / 2, n = g->k / 32, left = g->k % 32;
    vec sum[STREAMS][STREAM_OUTS];
    for (size_t r = 0; r < STREAM_OUTS; r++) {
        const uint8_t *w[STREAMS], *scale[STREAMS];
        vec acc[STREAMS];
        UNROLL
        for (size_t j = 0; j < STREAMS; j++) {
            w[j] = g->w + (j * part + o + r) * row_bytes;
            scale[j] = g->scale + (j * part + o + r) * n;
            if (w_kind == W_MXFP4)
                prefetch(scale[j] + STREAM_AHEAD / 4);
            acc[j] = v_zero();
        }
        size_t s = 0;
        for (; s + STREAM_STEPS <= n; s += STREAM_STEPS)
            stream_steps(g, w_kind, w, scale, s, STREAM_STEPS, acc);
        for (; s < n; s++)
            stream_steps(g, w_kind, w, scale, s, 1, acc);
        if (w_kind == W_BF16 && left != 0)
            step(g, w_kind, 1, STREAMS, g->x, w, scale, n, left, acc);
        UNROLL
        for (size_t j = 0; j < STREAMS; j++)
            sum[j][r] = acc[j];
    }
    return v_sum_quarters(v_quarters(sum[0][0], sum[0][1], sum[0][2], sum[0][3]),
                          v_quarters(sum[1][0], sum[1][1], sum[1][2], sum[1][3]),
                          v_quarters(sum[2][0], sum[2][1], sum[2][2], sum[2][3]), v_zero());
}

/* Outputs 0 .. STREAMS part - 1 of the only row. The processor's own prefetching is at its best
 * when few streams run through memory and each goes on where it was: so the outputs are taken in
 * three parts side by side, each from its first weight to its last, a few cache lines at a time. */
#define STREAM(w_kind)                                                                \
    static __attribute__((noinline)) void stream_##w_kind(const gemm *g, size_t part) \
    {                                                                                 \
        for (size_t o = 0; o < part; o += STREAM_OUTS) {                              \
            vec sum = stream_outs(g, w_kind, part, o);                                \
            _mm_storeu_ps(g->y + o, _mm512_castps512_ps128(sum));                     \
            _mm_storeu_ps(g->y + part + o, _mm512_extractf32x4_ps(sum, 1));           \
            _mm_storeu_ps(g->y + 2 * part + o, _mm512_extractf32x4_ps(sum, 2));       \
        }                                                                             \
    }
STREAM(W_BF16)
STREAM(W_MXFP4)
#undef STREAM

typedef void (*strips_fn)(const gemm *g, size_t r0, size_t r1, size_t o0, size_t o1, size_t ahead);

/* By rows: 1 to 4, then 16 and more, whose first four tiles share the requests. */
enum { STRIPS_16 = MR + 1, N_STRIPS };

/* All outputs of rows r..r+n-1. */
static void sweep(const gemm *g, size_t row_bytes, const strips_fn *strips, size_t r, size_t n)
{
    size_t left = n % MR, end = r + n - left, far = distance(4 * row_bytes);
    strips_fn whole = strips[n >= 4 * MR ? STRIPS_16 : MR];
    size_t far_left = end > r ? 0 : left > 2 ? far : distance(ACCS / left * row_bytes);
    for (size_t o = 0; o < g->n_out; o += ACCS) {
        size_t o1 = g->n_out - o < ACCS ? g->n_out : o + ACCS;
        if (end > r)
            whole(g, r, end, o, o1, far);
        if (left > 0)
            strips[left](g, end, end + left, o, o1, far_left);
    }
}

/* The first outputs of a single row of 32 columns, as many as come in whole vectors; returns how
 * many. With one step an output, a tile's addresses and requests would take longer than it does. */
static size_t narrow_row(const gemm *g)
{
    __m512i x = _mm512_loadu_si512(g->x);
    size_t o = 0;
    for (; g->n_out - o >= ACCS; o += ACCS) {
        vec sum[ACCS / 4];
        UNROLL
        for (size_t i = 0; i < ACCS / 4; i++) {
            const uint8_t *w = g->w + 64 * (o + 4 * i);
            sum[i] = v_quarters(dot_pairs(x, _mm512_loadu_si512(w), v_zero()),
                                dot_pairs(x, _mm512_loadu_si512(w + 64), v_zero()),
                                dot_pairs(x, _mm512_loadu_si512(w + 128), v_zero()),
                                dot_pairs(x, _mm512_loadu_si512(w + 192), v_zero()));
        }
        v_store(g->y + o, v_sum_quarters(sum[0], sum[1], sum[2], sum[3]));
    }
    return o;
}

/* All outputs of a single row. */
static void one_row(const gemm *g, size_t row_bytes, void (*stream)(const gemm *g, size_t part),
                    strips_fn strips)
{
    size_t part = g->n_out / STREAMS / STREAM_OUTS * STREAM_OUTS, from = 0;
    if (row_bytes == 64 && g->k == 32) {
        from = narrow_row(g);
    } else if (g->n_out * row_bytes >= STREAM_BYTES) {
        stream(g, part);
        from = STREAMS * part;
    }
    if (from < g->n_out)
        strips(g, 0, 1, from, g->n_out, distance(ACCS * row_bytes));
}

void ISA_NAME(gemm_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                         const uint16_t *w, size_t n_row, size_t n_out, size_t k)
{
    static const strips_fn strips[N_STRIPS] = {NULL,          strips_bf16_1, strips_bf16_2,
                                               strips_bf16_3, strips_bf16_4, strips_bf16_16};
    const gemm g = {y, y_stride, x, x_stride, (const uint8_t *)w, (const uint8_t *)w, n_out, k};
    if (n_row == 1) {
        one_row(&g, 2 * k, stream_W_BF16, strips[1]);
        return;
    }
    size_t keep = KEEP_BYTES / (2 * k) / MR * MR;
    keep = keep < 4 * MR ? 4 * MR : keep;
    for (size_t r = 0; r < n_row; r += keep)
        sweep(&g, 2 * k, strips, r, n_row - r < keep ? n_row - r : keep);
}

/* Computes NaN outputs again in f32: bf16 could not hold a scale, or the activations are not
 * finite. x: as the caller has it. */
static void redo_nan(const gemm *g, const uint16_t *x, size_t x_stride, size_t n_row)
{
    for (size_t r = 0; r < n_row; r++) {
        float *y = g->y + r * g->y_stride;
        for (size_t o = 0; o < g->n_out; o += VW) {
            vec v = v_load_n(y + o, g->n_out - o);
            unsigned nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
            for (; nan != 0; nan &= nan - 1) {
                size_t at = o + (size_t)__builtin_ctz(nan);
                k3i_gemm_mxfp4_bf16__avx512(y + at, g->y_stride, x + r * x_stride, x_stride,
                                            g->w + at * (g->k / 2), g->scale + at * (g->k / 32), 1,
                                            1, g->k);
            }
        }
    }
}

void ISA_NAME(gemm_mxfp4_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                               const uint8_t *packed, const uint8_t *scale, size_t n_row,
                               size_t n_out, size_t k)
{
    static const strips_fn strips[N_STRIPS] = {NULL,           strips_mxfp4_1, strips_mxfp4_2,
                                               strips_mxfp4_3, strips_mxfp4_4, strips_mxfp4_4};
    uint16_t ordered[X_ELEMS] __attribute__((aligned(64)));
    size_t keep = X_ELEMS / k; /* rows */
    if (keep == 0) {
        k3i_gemm_mxfp4_bf16__avx512(y, y_stride, x, x_stride, packed, scale, n_row, n_out, k);
        return;
    }
    keep = keep > MR ? keep / MR * MR : keep;
    for (size_t r = 0, n; r < n_row; r += n) {
        n = n_row - r < keep ? n_row - r : keep;
        for (size_t i = 0; i < n; i++)
            order_row(ordered + i * k, x + (r + i) * x_stride, k);
        const gemm g = {y + r * y_stride, y_stride, ordered, k, packed, scale, n_out, k};
        if (n == 1) {
            one_row(&g, k / 2, stream_W_MXFP4, strips[1]);
        } else {
            sweep(&g, k / 2, strips, 0, n);
        }
        redo_nan(&g, x + r * x_stride, x_stride, n);
    }
}
