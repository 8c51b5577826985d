/* gemm_bf16.c (AVX-512 BF16): matrix products of bf16 activations by the instruction that
 * multiplies and adds pairs.
 *
 * One 16-lane accumulator per output: lane j takes the pairs of columns 32 s + 2 j, 32 s + 2 j + 1
 * for s = 0, 1, .., columns beyond k count as 0; the lanes are added by the tree of v_sum4. Rows,
 * tiles and blocks of k do not change this order, because accumulators, not sums, are kept between
 * blocks. Products are exact; what lies below 2^-126 counts as 0 (the instruction's rule), so MXFP4
 * rows with such scales take the f32 kernel instead.
 *
 * bf16 weights are read in place: a tile of MR rows and NR outputs runs over the whole of k, all
 * tiles of rows that fit L2 follow each other on the same NR weight rows, and the next weight rows
 * are prefetched meanwhile, so one row streams weights at memory speed and many rows run near the
 * peak. MXFP4 does the same up to DIRECT_ROWS rows. For more, decoding pays once: a block of NR
 * weight rows becomes a panel of bf16 in the order the tile reads it.
 *
 *   panel [step][NR][32]          step = 32 columns, one vector */
#include "bf16_ops.h"

/* The f32 kernel of this folder, for weights that bf16 cannot hold. */
void k3i_gemm_mxfp4_bf16__avx512(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                                 const uint8_t *packed, const uint8_t *scale, size_t n_row,
                                 size_t n_out, size_t k);

enum {
    MR = GEMM_MR,
    NR = GEMM_NR,
    TILE = MR * NR,
    X_BYTES = 1 << 18, /* of x that stay in L2 beside the weights: a quarter of Zen 4's, half of
                          Skylake's */
    PREFETCH_BYTES = 16384, /* measured on Zen 4: 8 to 32 KiB are alike */
    DIRECT_ROWS = 4 * MR,   /* up to here, decoding MXFP4 for each tile is faster than the panel */
    KB = 1024,    /* columns a panel holds: 12 KiB of L1's 32, with 8 KiB of x beside it */
    RB = 16 * MR, /* rows whose accumulators (24 KiB) are kept between blocks of k */
};

typedef struct {
    float *y;
    size_t y_stride;
    const uint16_t *x;
    size_t x_stride;
    const uint8_t *w; /* bf16 or packed MXFP4 rows */
    const uint8_t *scale;
    size_t n_row, n_out, k;
    const struct codes *codes; /* MXFP4 */
} gemm;

enum { W_BF16, W_MXFP4 };

/* The 16 codes as bf16 under every scale, twice, so that the fifth bit of an index is harmless.
 * Entries that are not normal numbers are wrong; rows that need them take the f32 kernel. */
typedef struct codes {
    __m512i of[256];
} codes;

static void codes_init(codes *t)
{
    const __m512i one = _mm512_set_epi16(
        (int16_t)0xc0c0, (int16_t)0xc080, (int16_t)0xc040, (int16_t)0xc000, (int16_t)0xbfc0,
        (int16_t)0xbf80, (int16_t)0xbf00, (int16_t)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0,
        0x3f80, 0x3f00, 0x0000, (int16_t)0xc0c0, (int16_t)0xc080, (int16_t)0xc040, (int16_t)0xc000,
        (int16_t)0xbfc0, (int16_t)0xbf80, (int16_t)0xbf00, (int16_t)0x8000, 0x40c0, 0x4080, 0x4040,
        0x4000, 0x3fc0, 0x3f80, 0x3f00, 0x0000);
    const __mmask32 not_zero = 0xfefefefe;
    for (int e = 0; e < 256; e++)
        t->of[e] = _mm512_mask_add_epi16(one, not_zero, one,
                                         _mm512_set1_epi16((int16_t)((e - 127) * 128)));
}

/* One group of 32 MXFP4 columns as bf16. Byte j holds columns 2 j and 2 j + 1, lane j of the pair
 * product: times 2^12 + 1 its nibbles stand in the low bits of both words of the lane, where the
 * lookup takes five bits each. */
INLINE __m512i load_mxfp4(const codes *t, const uint8_t *p, const uint8_t *scale)
{
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
    __m512i index = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x1001));
    return _mm512_permutexvar_epi16(index, t->of[*scale]);
}

/* Sums the lanes of acc [mr][nr] into y; outputs from n_out on do not exist. */
INLINE void finish(const gemm *g, const vec *acc, size_t mr, size_t nr, size_t r, size_t o)
{
    float sum[TILE + 3];
    for (size_t i = 0; i < mr * nr; i += 4) {
        vec v[4];
        UNROLL
        for (size_t j = 0; j < 4; j++)
            v[j] = i + j < mr * nr ? acc[i + j] : v_zero();
        _mm_storeu_ps(sum + i, v_sum4(v[0], v[1], v[2], v[3]));
    }
    size_t n = g->n_out - o < nr ? g->n_out - o : nr;
    UNROLL
    for (size_t i = 0; i < mr; i++) {
        float *y = g->y + (r + i) * g->y_stride + o;
        if (n == nr) {
            __builtin_memcpy(y, sum + i * nr, nr * sizeof *y);
            continue;
        }
        for (size_t j = 0; j < n; j++)
            y[j] = sum[i * nr + j];
    }
}

/* Into L2: the distance is too long for L1. An address behind the end never faults. */
INLINE void prefetch(const uint8_t *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* Bytes between the weights in use and those asked for: whole tiles, and enough to hide the latency
 * of memory. */
INLINE size_t prefetch_distance(size_t row_bytes)
{
    size_t tile_bytes = NR * row_bytes;
    return (PREFETCH_BYTES + tile_bytes - 1) / tile_bytes * tile_bytes;
}

/* Rows r..r+mr-1, outputs o..o+nr-1, weights in place. */
INLINE void direct_bf16(const gemm *g, size_t mr, size_t nr, size_t r, size_t o)
{
    vec acc[TILE];
    const uint16_t *x = g->x + r * g->x_stride;
    size_t row_bytes = 2 * g->k, ahead = prefetch_distance(row_bytes);
    const uint8_t *w = g->w + o * row_bytes;
    UNROLL
    for (size_t i = 0; i < mr * nr; i++)
        acc[i] = v_zero();
    for (size_t c = 0; c < g->k; c += 32, w += 64, x += 32) {
        __m512i v[MR];
        UNROLL
        for (size_t i = 0; i < mr; i++)
            v[i] = load_pairs(x + i * g->x_stride, g->k - c);
        UNROLL
        for (size_t j = 0; j < nr; j++) {
            prefetch(w + j * row_bytes + ahead);
            __m512i u = load_pairs(w + j * row_bytes, g->k - c);
            UNROLL
            for (size_t i = 0; i < mr; i++)
                acc[i * nr + j] = dot_pairs(v[i], u, acc[i * nr + j]);
        }
    }
    finish(g, acc, mr, nr, r, o);
}

INLINE void direct_mxfp4(const gemm *g, size_t mr, size_t nr, size_t r, size_t o)
{
    vec acc[TILE];
    const uint16_t *x = g->x + r * g->x_stride;
    size_t row_bytes = g->k / 2, row_groups = g->k / 32, ahead = prefetch_distance(row_bytes);
    const uint8_t *w = g->w + o * row_bytes, *scale = g->scale + o * row_groups;
    UNROLL
    for (size_t i = 0; i < mr * nr; i++)
        acc[i] = v_zero();
    for (size_t s = 0; s < row_groups; s++, w += 16, x += 32, scale++) {
        if (s % 4 == 0) {
            UNROLL
            for (size_t j = 0; j < nr; j++)
                prefetch(w + j * row_bytes + ahead);
        }
        __m512i v[MR];
        UNROLL
        for (size_t i = 0; i < mr; i++)
            v[i] = _mm512_loadu_si512(x + i * g->x_stride);
        UNROLL
        for (size_t j = 0; j < nr; j++) {
            __m512i u = load_mxfp4(g->codes, w + j * row_bytes, scale + j * row_groups);
            UNROLL
            for (size_t i = 0; i < mr; i++)
                acc[i * nr + j] = dot_pairs(v[i], u, acc[i * nr + j]);
        }
    }
    finish(g, acc, mr, nr, r, o);
}

/* Groups s0..s0+n-1 of outputs o.. into the panel. */
INLINE void fill(const gemm *g, uint16_t *panel, size_t o, size_t s0, size_t n)
{
    size_t row_bytes = g->k / 2, row_groups = g->k / 32, ahead = prefetch_distance(row_bytes);
    for (size_t j = 0; j < NR; j++) {
        const uint8_t *w = g->w + (o + j) * row_bytes + s0 * 16,
                      *scale = g->scale + (o + j) * row_groups + s0;
        for (size_t s = 0; s < n; s++) {
            if (s % 4 == 0)
                prefetch(w + s * 16 + ahead);
            __m512i u = o + j < g->n_out ? load_mxfp4(g->codes, w + s * 16, scale + s)
                                         : _mm512_setzero_si512();
            _mm512_store_si512(panel + (s * NR + j) * 32, u);
        }
    }
}

/* Adds groups s0..s0+n-1 to acc [mr][NR] of rows r.. . */
INLINE void tile(const gemm *g, const uint16_t *panel, vec *acc, size_t mr, size_t r, size_t s0,
                 size_t n)
{
    vec a[TILE];
    UNROLL
    for (size_t i = 0; i < mr * NR; i++)
        a[i] = acc[i];
    const uint16_t *x = g->x + r * g->x_stride + s0 * 32;
    for (size_t s = 0; s < n; s++, x += 32, panel += NR * 32) {
        __m512i w[NR];
        UNROLL
        for (size_t j = 0; j < NR; j++)
            w[j] = _mm512_load_si512(panel + j * 32);
        UNROLL
        for (size_t i = 0; i < mr; i++) {
            __m512i v = _mm512_loadu_si512(x + i * g->x_stride);
            UNROLL
            for (size_t j = 0; j < NR; j++)
                a[i * NR + j] = dot_pairs(v, w[j], a[i * NR + j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < mr * NR; i++)
        acc[i] = a[i];
}

static void with_panel(const gemm *g, size_t r0, size_t n_row, size_t o)
{
    uint16_t panel[KB * NR] __attribute__((aligned(64)));
    vec acc[RB / MR][TILE];
    for (size_t i = 0; i * MR < n_row; i++) {
        for (size_t j = 0; j < TILE; j++)
            acc[i][j] = v_zero();
    }
    for (size_t s = 0; s < g->k / 32; s += KB / 32) {
        size_t n = g->k / 32 - s < KB / 32 ? g->k / 32 - s : KB / 32;
        fill(g, panel, o, s, n);
        for (size_t i = 0; i * MR < n_row; i++) {
#define CALL(mr) tile(g, panel, acc[i], mr, r0 + i * MR, s, n)
            WITH_MR(n_row - i * MR, CALL)
#undef CALL
        }
    }
    for (size_t i = 0; i * MR < n_row; i++)
        finish(g, acc[i], n_row - i * MR < MR ? n_row - i * MR : MR, NR, r0 + i * MR, o);
}

/* Rows r0..r0+n_row-1 of outputs o..o+nr-1, weights in place. */
INLINE void direct(const gemm *g, int w_kind, size_t nr, size_t r0, size_t n_row, size_t o)
{
    for (size_t r = r0; r < r0 + n_row; r += MR) {
#define CALL(mr) w_kind == W_BF16 ? direct_bf16(g, mr, nr, r, o) : direct_mxfp4(g, mr, nr, r, o)
        WITH_MR(r0 + n_row - r, CALL)
#undef CALL
    }
}

/* Weight rows are read once for as many rows of x as stay in L2 beside them. */
INLINE void run_direct(const gemm *g, int w_kind)
{
    size_t n_keep = X_BYTES / (2 * g->k) / MR * MR;
    n_keep = n_keep < 4 * MR ? 4 * MR : n_keep;
    for (size_t r = 0; r < g->n_row; r += n_keep) {
        size_t n = g->n_row - r < n_keep ? g->n_row - r : n_keep, o = 0;
        for (; o + NR <= g->n_out; o += NR)
            direct(g, w_kind, NR, r, n, o);
        for (; o < g->n_out; o++)
            direct(g, w_kind, 1, r, n, o);
    }
}

/* Each panel is decoded once for RB rows. */
static void run_panel(const gemm *g)
{
    for (size_t o = 0; o < g->n_out; o += NR) {
        for (size_t r = 0; r < g->n_row; r += RB)
            with_panel(g, r, g->n_row - r < RB ? g->n_row - r : RB, o);
    }
}

void ISA_NAME(gemm_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                         const uint16_t *w, size_t n_row, size_t n_out, size_t k)
{
    gemm g = {y, y_stride, x, x_stride, (const uint8_t *)w, NULL, n_row, n_out, k, NULL};
    run_direct(&g, W_BF16);
}

/* Whether every scale of a row keeps all codes finite in bf16 (6 * 2^(e - 127)) and so large
 * (2^-96) that products with activations above 2^-30 are normal too. */
static int scales_are_ordinary(const uint8_t *scale, size_t n)
{
    uint8_t low = 255, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = scale[i] < low ? scale[i] : low;
        high = scale[i] > high ? scale[i] : high;
    }
    return low >= 32 && high <= 252;
}

void ISA_NAME(gemm_mxfp4_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride,
                               const uint8_t *packed, const uint8_t *scale, size_t n_row,
                               size_t n_out, size_t k)
{
    codes t;
    codes_init(&t);
    gemm g = {y, y_stride, x, x_stride, packed, scale, n_row, n_out, k, &t};
    if (n_row <= DIRECT_ROWS) {
        run_direct(&g, W_MXFP4);
    } else {
        run_panel(&g);
    }
    for (size_t o = 0; o < n_out; o++) {
        if (!scales_are_ordinary(scale + o * (k / 32), k / 32))
            k3i_gemm_mxfp4_bf16__avx512(y + o, y_stride, x, x_stride, packed + o * (k / 2),
                                        scale + o * (k / 32), n_row, 1, k);
    }
}
