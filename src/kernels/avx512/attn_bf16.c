/* attn_bf16.c (AVX-512 BF16): attn_segment_bf16 with pairs of bf16 as cells: both products run on
 * the instruction that multiplies and adds pairs. Pairs of keys are counted from the block's first
 * key. Body: simd/attn.inc. */
#include "bf16_ops.h"

#include "../simd/math.inc"

#define ATTN(name) attn_pair_##name
#define attn_elem uint16_t
#define ATTN_PER 2
#define cell_mac(a, b, c) dot_pairs(_mm512_castps_si512(a), _mm512_castps_si512(b), c)
#define cell_half(b) \
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(0xffff)))

INLINE vec cell_load_n(const uint16_t *p, size_t n)
{
    return _mm512_castsi512_ps(load_pairs(p, n));
}

/* 16 values of two keys, interleaved: the first key in the lower halves. */
INLINE vec cell_values(const uint16_t *const p[2], size_t i, size_t n)
{
    __mmask16 m = lanes(n);
    __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(p[0] ? m : 0, p[0] + i));
    __m512i b =
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(p[1] ? m : 0, (p[1] ? p[1] : p[0]) + i));
    return _mm512_castsi512_ps(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

INLINE void cell_store_p(float *cells, size_t i, vec p)
{
    /* Rounds like v_store_bf16_n but takes values below 2^-126 as 0, as the product would. */
    _mm256_storeu_si256((__m256i_u *)((uint16_t *)cells + i), (__m256i)_mm512_cvtneps_pbh(p));
}

#include "../simd/attn.inc"

/* ---- few queries -------------------------------------------------------------------------------
 *
 * One token's heads: packing keys and values into memory for so few queries would cost more than
 * the products. Keys are transposed in registers and used there; two rows of values are interleaved
 * into cells on the way to their product. Operands, the order of every sum and the rounding are
 * those above, so the bits are the same. */

enum {
    FEW = 8,       /* queries at most */
    FEW_DK = 1024, /* their cells lie on the stack: 16 KiB */
    FEW_ROWS = 6,  /* queries of a tile: their cells of values are 24 accumulators */
};

static const uint16_t *row_of(const uint16_t *rows, const size_t *off, size_t stride, size_t key)
{
    return rows + (off ? off[key] : key * stride);
}

/* Adds cells t0..t0+n-1 of mr queries times VW keys. qt [cells][FEW]: the queries. */
INLINE void few_square(const attn_pair_seg *g, size_t mr, const int32_t *qt,
                       const uint16_t *const *key, size_t t0, size_t n, vec *acc)
{
    vec square[VW];
    UNROLL
    for (size_t i = 0; i < VW; i++)
        square[i] = cell_load_n(key[i] + 2 * t0, n == VW ? 2 * VW : g->dk - 2 * t0);
    v_transpose(square);
    UNROLL
    for (size_t t = 0; t < VW; t++) {
        if (t < n) { /* no break: clang would not unroll */
            UNROLL
            for (size_t r = 0; r < mr; r++)
                acc[r] = dot_pairs(_mm512_set1_epi32(qt[(t0 + t) * FEW + r]),
                                   _mm512_castps_si512(square[t]), acc[r]);
        }
    }
}

/* Scores of mr queries with VW keys from j, unscaled; behind the end, the last key again. */
INLINE void few_scores(const attn_pair_seg *g, size_t mr, const int32_t *qt, float *s, size_t j0,
                       size_t j, size_t n_key)
{
    const uint16_t *key[VW];
    vec acc[FEW_ROWS];
    size_t t = 0, n = g->dk / 2;
    for (size_t i = 0; i < VW; i++)
        key[i] = row_of(g->k, g->key_off, g->k_stride, j0 + (j + i < n_key ? j + i : n_key - 1));
    UNROLL
    for (size_t r = 0; r < mr; r++)
        acc[r] = v_zero();
    for (; n - t >= VW; t += VW)
        few_square(g, mr, qt, key, t, VW, acc);
    if (t < n)
        few_square(g, mr, qt, key, t, n - t, acc);
    UNROLL
    for (size_t r = 0; r < mr; r++)
        v_store(s + r * K3I_ATTN_KEYS + j, acc[r]);
}

/* acc = acc keep + p v of mr queries at cells and 64 columns from c. */
INLINE void few_values(const attn_pair_seg *g, size_t mr, const float *cells, const float *keep,
                       float *acc, size_t j0, size_t n_key, size_t c)
{
    vec s[FEW_ROWS][4];
    UNROLL
    for (size_t r = 0; r < mr; r++)
        s[r][0] = s[r][1] = s[r][2] = s[r][3] = v_zero();
    for (size_t t = 0; 2 * t < n_key; t++) {
        const uint16_t *a = row_of(g->v, g->key_off, g->v_stride, j0 + 2 * t) + c;
        __m512i a0 = _mm512_loadu_si512(a), a1 = _mm512_loadu_si512(a + 32), b0, b1;
        if (2 * t + 1 < n_key) {
            const uint16_t *b = row_of(g->v, g->key_off, g->v_stride, j0 + 2 * t + 1) + c;
            b0 = _mm512_loadu_si512(b);
            b1 = _mm512_loadu_si512(b + 32);
        } else {
            b0 = b1 = _mm512_setzero_si512();
        }
        /* in each quarter of 8 columns: the lower four, the upper four */
        __m512i v[4] = {_mm512_unpacklo_epi16(a0, b0), _mm512_unpackhi_epi16(a0, b0),
                        _mm512_unpacklo_epi16(a1, b1), _mm512_unpackhi_epi16(a1, b1)};
        UNROLL
        for (size_t r = 0; r < mr; r++) {
            __m512i p = _mm512_castps_si512(v_set1(cells[r * attn_pair_KEY_CELLS + t]));
            UNROLL
            for (size_t i = 0; i < 4; i++)
                s[r][i] = dot_pairs(p, v[i], s[r][i]);
        }
    }
    UNROLL
    for (size_t r = 0; r < mr; r++) {
        vec k = v_set1(keep[r]);
        float *y = acc + r * g->dv + c;
        UNROLL
        for (size_t i = 0; i < 4; i++) {
            const __m512i back = i % 2 == 0 ? _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18,
                                                               17, 16, 3, 2, 1, 0)
                                            : _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27,
                                                               26, 25, 24, 11, 10, 9, 8);
            vec add = _mm512_permutex2var_ps(s[r][i / 2 * 2], back, s[r][i / 2 * 2 + 1]);
            v_store(y + i * VW, v_fma(v_load(y + i * VW), k, add));
        }
    }
}

/* Calls f with the queries that are left, at most FEW_ROWS, as a constant. */
#define WITH_FEW(left, f) \
    switch (left) {       \
    case 1:               \
        f(1);             \
        break;            \
    case 2:               \
        f(2);             \
        break;            \
    case 3:               \
        f(3);             \
        break;            \
    case 4:               \
        f(4);             \
        break;            \
    case 5:               \
        f(5);             \
        break;            \
    default:              \
        f(6);             \
        break;            \
    }

/* Asks for keys j .. j + VW - 1, as far as they come before n. */
INLINE void few_ask(const attn_pair_seg *g, size_t j, size_t n)
{
    for (size_t end = n - j < VW ? n : j + VW; j < end; j++) {
        const char *p = (const char *)row_of(g->k, g->key_off, g->k_stride, j);
        for (size_t at = 0; at < 2 * g->dk; at += 64)
            _mm_prefetch(p + at, _MM_HINT_T0);
    }
}

/* Of n keys those from j0 on, n_key of them. The next block is asked for in portions: all of it at
 * once would be more than the processor keeps under way. */
static void few_block(const attn_pair_seg *g, const int32_t *qt, size_t n_q, size_t j0,
                      size_t n_key, size_t n)
{
    float s[FEW * K3I_ATTN_KEYS] __attribute__((aligned(64)));
    float cells[FEW * attn_pair_KEY_CELLS] __attribute__((aligned(64)));
    float keep[VW];
    for (size_t r = 0; r < n_q; r++) { /* the softmax looks at whole blocks */
        for (size_t j = n_key / VW * VW; j < K3I_ATTN_KEYS; j += VW)
            v_store(s + r * K3I_ATTN_KEYS + j, v_zero());
    }
    for (size_t r = 0; r < n_q; r += FEW_ROWS) {
        for (size_t j = 0; j < n_key; j += VW) {
            if (r == 0 && j0 + n_key + j < n)
                few_ask(g, j0 + n_key + j, n);
#define TILE(mr) few_scores(g, mr, qt + r, s + r * K3I_ATTN_KEYS, j0, j, n_key)
            WITH_FEW(n_q - r, TILE)
#undef TILE
        }
    }
    attn_pair_softmax(g, s, cells, keep, 0, n_q, j0, n_key);
    for (size_t c = 0; c < g->dv; c += 4 * VW) {
        for (size_t r = 0; r < n_q; r += FEW_ROWS) {
#define TILE(mr) \
    few_values(g, mr, cells + r * attn_pair_KEY_CELLS, keep + r, g->acc + r * g->dv, j0, n_key, c)
            WITH_FEW(n_q - r, TILE)
#undef TILE
        }
    }
}

/* Whether there are few queries, which see the same keys, and values come in whole vectors. */
static int is_few(const attn_pair_seg *g, size_t n_q)
{
    if (n_q > FEW || g->dk % 2 != 0 || g->dk > FEW_DK || g->dv % (4 * VW) != 0)
        return 0;
    for (size_t r = 1; g->row_keys && r < n_q; r++) {
        if (g->row_keys[r] != g->row_keys[0])
            return 0;
    }
    return n_q > 0;
}

static void few_run(const attn_pair_seg *g, size_t n_q)
{
    int32_t qt[FEW_DK / 2 * FEW] __attribute__((aligned(64)));
    size_t n = g->row_keys && g->row_keys[0] < g->n_key ? g->row_keys[0] : g->n_key;
    for (size_t r = 0; r < n_q; r++) {
        for (size_t t = 0; t < g->dk / 2; t++)
            __builtin_memcpy(qt + t * FEW + r, g->q + r * g->q_stride + 2 * t, sizeof *qt);
    }
    for (size_t j = 0; j < n; j += K3I_ATTN_KEYS)
        few_block(g, qt, n_q, j, n - j < K3I_ATTN_KEYS ? n - j : K3I_ATTN_KEYS, n);
}

void ISA_NAME(attn_segment_bf16)(float *acc, float *m, float *l, const uint16_t *q, size_t q_stride,
                                 const uint16_t *k, size_t k_stride, const uint16_t *v,
                                 size_t v_stride, const size_t *key_off, size_t n_q, size_t n_key,
                                 const uint32_t *row_keys, size_t dk, size_t dv, float scale)
{
    attn_pair_seg g = {q,  k,     v,   q_stride, k_stride, v_stride, key_off, dk,
                       dv, scale, acc, m,        l,        row_keys, n_key};
    if (is_few(&g, n_q)) {
        few_run(&g, n_q);
    } else {
        attn_pair_run(&g, n_q);
    }
}
