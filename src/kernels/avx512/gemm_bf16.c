/* gemm_bf16.c (AVX-512 BF16): matrix products of bf16 activations by the instruction that multiplies and adds pairs.
 *
 * One 16-lane accumulator per output: lane j takes the pairs of columns 32 s + 2 j, 32 s + 2 j + 1 for s = 0, 1, ..,
 * columns beyond k count as 0; the lanes are added by the tree of v_sum4. Rows, tiles and blocks of k do not change
 * this order, because accumulators, not sums, are kept between blocks. Products are exact; what lies below 2^-126
 * counts as 0 (the instruction's rule), so MXFP4 rows with such scales take the f32 kernel instead.
 *
 * A few rows read the weights in place, so that one row streams them at memory speed. More rows first copy (MXFP4:
 * decode) NR weight rows into a panel in the order the tile reads them; the panel then serves all rows from L1. In
 * place they would not stay there: rows 2^n bytes apart fall into the same cache sets.
 *
 *   panel [step][NR][32]          step = 32 columns, one vector */
#include "bf16_ops.h"

/* The f32 kernel of this folder, for weights that bf16 cannot hold. */
void k3i_gemm_mxfp4_bf16__avx512(float *y, size_t y_stride, const uint16_t *x, size_t x_stride, const uint8_t *packed,
                                 const uint8_t *scale, size_t n_row, size_t n_out, size_t k);

enum {
    MR = GEMM_MR,
    NR = GEMM_NR,
    KB = 1024,    /* columns a panel holds: 12 KiB of L1's 32, with 8 KiB of x beside it */
    RB = 16 * MR, /* rows whose accumulators (24 KiB) are kept between blocks of k */
    EB = 512,     /* columns whose exponents are made at once: 16 groups, one vector */
    TILE = MR * NR,
    DIRECT_ROWS = 2 * MR, /* up to here, reading weights in place is faster than the panel */
};

typedef struct {
    float *y;
    size_t y_stride;
    const uint16_t *x;
    size_t x_stride;
    const uint8_t *w; /* bf16 or packed MXFP4 rows */
    const uint8_t *scale;
    size_t n_row, n_out, k;
} gemm;

enum { W_BF16, W_MXFP4 };

/* What n <= 16 scales add to the exponent of a bf16, twice in each dword, so that one broadcast serves all words. */
INLINE __m512i exponents(const uint8_t *scale, size_t n)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes(n), scale));
    e = _mm512_slli_epi16(_mm512_sub_epi16(e, _mm512_set1_epi32(127)), 7);
    return _mm512_or_si512(_mm512_slli_epi32(e, 16), e);
}

/* One group of 32 MXFP4 columns as bf16. Byte j holds columns 2 j and 2 j + 1, lane j of the pair product: times
 * 2^12 + 1 its nibbles stand in the low bits of both words of the lane, where a table lookup takes five bits each;
 * the fifth is noise, which a doubled table makes harmless. `exponent` (see above) moves every entry but 0. */
INLINE __m512i load_mxfp4(const uint8_t *p, const uint32_t *exponent)
{
    const __m512i table = _mm512_set_epi16(
        (int16_t)0xc0c0, (int16_t)0xc080, (int16_t)0xc040, (int16_t)0xc000, (int16_t)0xbfc0, (int16_t)0xbf80,
        (int16_t)0xbf00, (int16_t)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0x0000,
        (int16_t)0xc0c0, (int16_t)0xc080, (int16_t)0xc040, (int16_t)0xc000, (int16_t)0xbfc0, (int16_t)0xbf80,
        (int16_t)0xbf00, (int16_t)0x8000, 0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0x0000);
    const __mmask32 not_zero = 0xfefefefe;
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)p));
    __m512i index = _mm512_madd_epi16(bytes, _mm512_set1_epi32(0x1001));
    __m512i scaled = _mm512_mask_add_epi16(table, not_zero, table, _mm512_set1_epi32((int)*exponent));
    return _mm512_permutexvar_epi16(index, scaled);
}

/* Columns c.. of weight row o, n of them left; exponent belongs to the group that starts there. */
INLINE __m512i load_w(const gemm *g, int w_kind, size_t o, size_t c, size_t n, const uint32_t *exponent)
{
    if (w_kind == W_BF16)
        return load_pairs(g->w + 2 * (o * g->k + c), n);
    return load_mxfp4(g->w + (o * g->k + c) / 2, exponent);
}

/* The exponents of the groups in columns c..c+n-1 (n <= EB) of row o. */
INLINE void load_exponents(const gemm *g, int w_kind, size_t o, size_t c, size_t n, uint32_t *ret)
{
    if (w_kind == W_MXFP4)
        _mm512_storeu_si512(ret, exponents(g->scale + (o * g->k + c) / 32, n / 32));
}

/* Sums the lanes of acc [mr][NR] into y; outputs from n_out on do not exist. */
INLINE void finish(const gemm *g, const vec *acc, size_t mr, size_t r, size_t o)
{
    float sum[TILE + 3];
    for (size_t i = 0; i < mr * NR; i += 4) {
        vec v[4];
        UNROLL
        for (size_t j = 0; j < 4; j++)
            v[j] = i + j < mr * NR ? acc[i + j] : v_zero();
        _mm_storeu_ps(sum + i, v_sum4(v[0], v[1], v[2], v[3]));
    }
    size_t n = g->n_out - o < NR ? g->n_out - o : NR;
    UNROLL
    for (size_t i = 0; i < mr; i++) {
        float *y = g->y + (r + i) * g->y_stride + o;
        if (n == NR) {
            __builtin_memcpy(y, sum + i * NR, NR * sizeof *y);
            continue;
        }
        for (size_t j = 0; j < n; j++)
            y[j] = sum[i * NR + j];
    }
}

/* Rows r..r+mr-1, outputs o..o+NR-1, weights in place. Missing outputs repeat the last one. */
INLINE void direct(const gemm *g, int w_kind, size_t mr, size_t r, size_t o)
{
    vec acc[TILE];
    size_t row[NR];
    uint32_t exponent[NR][EB / 32];
    UNROLL
    for (size_t j = 0; j < NR; j++)
        row[j] = o + j < g->n_out ? o + j : g->n_out - 1;
    UNROLL
    for (size_t i = 0; i < mr * NR; i++)
        acc[i] = v_zero();
    for (size_t c0 = 0; c0 < g->k; c0 += EB) {
        size_t end = g->k - c0 < EB ? g->k : c0 + EB;
        UNROLL
        for (size_t j = 0; j < NR; j++)
            load_exponents(g, w_kind, row[j], c0, end - c0, exponent[j]);
        for (size_t c = c0; c < end; c += 32) {
            __m512i x[MR];
            UNROLL
            for (size_t i = 0; i < mr; i++)
                x[i] = load_pairs(g->x + (r + i) * g->x_stride + c, end - c);
            UNROLL
            for (size_t j = 0; j < NR; j++) {
                __m512i w = load_w(g, w_kind, row[j], c, end - c, exponent[j] + (c - c0) / 32);
                UNROLL
                for (size_t i = 0; i < mr; i++)
                    acc[i * NR + j] = dot_pairs(x[i], w, acc[i * NR + j]);
            }
        }
    }
    finish(g, acc, mr, r, o);
}

INLINE void fill(const gemm *g, int w_kind, uint16_t *panel, size_t o, size_t c0, size_t n)
{
    for (size_t j = 0; j < NR; j++) {
        uint32_t exponent[EB / 32];
        for (size_t c = 0; c < n; c += 32) {
            __m512i w = _mm512_setzero_si512();
            if (o + j < g->n_out) {
                if (c % EB == 0)
                    load_exponents(g, w_kind, o + j, c0 + c, n - c < EB ? n - c : EB, exponent);
                w = load_w(g, w_kind, o + j, c0 + c, n - c, exponent + c % EB / 32);
            }
            _mm512_store_si512(panel + c * NR + j * 32, w);
        }
    }
}

/* Adds columns c0..c0+n-1 to acc [mr][NR] of rows r.. . */
INLINE void tile(const gemm *g, const uint16_t *panel, vec *acc, size_t mr, size_t r, size_t c0, size_t n)
{
    vec a[TILE];
    UNROLL
    for (size_t i = 0; i < mr * NR; i++)
        a[i] = acc[i];
    const uint16_t *x = g->x + r * g->x_stride + c0;
    for (size_t c = 0; c < n; c += 32) {
        __m512i w[NR];
        UNROLL
        for (size_t j = 0; j < NR; j++)
            w[j] = _mm512_load_si512(panel + c * NR + j * 32);
        UNROLL
        for (size_t i = 0; i < mr; i++) {
            __m512i v = load_pairs(x + i * g->x_stride + c, n - c);
            UNROLL
            for (size_t j = 0; j < NR; j++)
                a[i * NR + j] = dot_pairs(v, w[j], a[i * NR + j]);
        }
    }
    UNROLL
    for (size_t i = 0; i < mr * NR; i++)
        acc[i] = a[i];
}

/* Calls `f` with mr as a constant, so that the tile stays in registers. */
#define WITH_MR(mr, f)                                                                                                 \
    switch (mr) {                                                                                                      \
    case 1: f(1); break;                                                                                               \
    case 2: f(2); break;                                                                                               \
    case 3: f(3); break;                                                                                               \
    default: f(MR); break;                                                                                             \
    }

/* Asks for a share (every n_part-th line from `part`) of the weights that the panel behind (o, c) will be filled from,
 * so that its fill does not wait for memory. */
INLINE void ask_ahead(const gemm *g, int w_kind, size_t o, size_t c, size_t part, size_t n_part)
{
    size_t next_c = c + KB < g->k ? c + KB : 0, next_o = next_c > 0 ? o : o + NR;
    size_t n = g->k - next_c < KB ? g->k - next_c : KB;
    size_t row = w_kind == W_BF16 ? 2 * g->k : g->k / 2, from = w_kind == W_BF16 ? 2 * next_c : next_c / 2;
    size_t bytes = w_kind == W_BF16 ? 2 * n : n / 2;
    for (size_t j = 0; j < NR && next_o + j < g->n_out; j++) {
        const uint8_t *w = g->w + (next_o + j) * row + from;
        for (size_t at = part * 64; at < bytes; at += n_part * 64)
            _mm_prefetch((const char *)w + at, _MM_HINT_T1);
    }
}

INLINE void with_panel(const gemm *g, int w_kind, size_t r0, size_t n_row, size_t o)
{
    uint16_t panel[KB * NR] __attribute__((aligned(64)));
    vec acc[RB / MR][TILE];
    for (size_t i = 0; i * MR < n_row; i++) {
        for (size_t j = 0; j < TILE; j++)
            acc[i][j] = v_zero();
    }
    for (size_t c = 0; c < g->k; c += KB) {
        size_t n = g->k - c < KB ? g->k - c : KB;
        fill(g, w_kind, panel, o, c, n);
        for (size_t i = 0; i * MR < n_row; i++) {
            ask_ahead(g, w_kind, o, c, i, (n_row + MR - 1) / MR);
#define CALL(mr) tile(g, panel, acc[i], mr, r0 + i * MR, c, n)
            WITH_MR(n_row - i * MR, CALL)
#undef CALL
        }
    }
    for (size_t i = 0; i * MR < n_row; i++)
        finish(g, acc[i], n_row - i * MR < MR ? n_row - i * MR : MR, r0 + i * MR, o);
}

INLINE void run(const gemm *g, int w_kind)
{
    for (size_t o = 0; o < g->n_out; o += NR) {
        if (g->n_row <= DIRECT_ROWS) {
            for (size_t r = 0; r < g->n_row; r += MR) {
#define CALL(mr) direct(g, w_kind, mr, r, o)
                WITH_MR(g->n_row - r, CALL)
#undef CALL
            }
            continue;
        }
        for (size_t r = 0; r < g->n_row; r += RB)
            with_panel(g, w_kind, r, g->n_row - r < RB ? g->n_row - r : RB, o);
    }
}

void ISA_NAME(gemm_bf16)(float *y, size_t y_stride, const uint16_t *x, size_t x_stride, const uint16_t *w,
                               size_t n_row, size_t n_out, size_t k)
{
    gemm g = {y, y_stride, x, x_stride, (const uint8_t *)w, NULL, n_row, n_out, k};
    run(&g, W_BF16);
}

/* Whether every scale of a row keeps all codes finite in bf16 (6 * 2^(e - 127)) and so large (2^-96) that products
 * with activations above 2^-30 are normal too. */
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
                                     const uint8_t *packed, const uint8_t *scale, size_t n_row, size_t n_out, size_t k)
{
    gemm g = {y, y_stride, x, x_stride, packed, scale, n_row, n_out, k};
    run(&g, W_MXFP4);
    for (size_t o = 0; o < n_out; o++) {
        if (!scales_are_ordinary(scale + o * (k / 32), k / 32))
            k3i_gemm_mxfp4_bf16__avx512(y + o, y_stride, x, x_stride, packed + o * (k / 2), scale + o * (k / 32), n_row,
                                        1, k);
    }
}
