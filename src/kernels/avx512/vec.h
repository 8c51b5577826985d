/* vec.h (AVX-512 F, BW, DQ, VL): the vector layer under simd/: 16 f32 lanes. Private to this
 * folder: everything is static, so no copy of it can reach a CPU without AVX-512. Loads and stores
 * with a count touch exactly that many elements; counts of 16 or more mean a whole vector. */
#ifndef K3I_AVX512_VEC_H
#define K3I_AVX512_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#ifndef ISA_NAME
#define ISA_NAME(op) k3i_##op##__avx512
#endif
#define INLINE static inline __attribute__((always_inline, unused))
/* Before the loops over a register tile: it stays in registers only if they are unrolled
 * completely. Instrumented code would not fit, and clang takes minutes to find out. */
#ifndef __clang__
#define UNROLL _Pragma("GCC unroll 32")
#elif __has_feature(address_sanitizer)
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

enum {
    VW = 16,     /* lanes */
    GEMM_MR = 4, /* register tile of matrix products: 4 rows x 6 outputs = 24 accumulators of 32
                    registers */
    GEMM_NR = 6,
    COL_MR = 6, /* register tile where lanes are columns: 6 rows x 4 vectors */
    COL_NV = 4,
};

/* Calls f with the rows of a tile, `left` or GEMM_MR, as a constant, so that the tile stays in
 * registers. */
#define WITH_MR(left, f)      \
    if ((left) == 1) {        \
        f(1);                 \
    } else if ((left) == 2) { \
        f(2);                 \
    } else if ((left) == 3) { \
        f(3);                 \
    } else {                  \
        f(GEMM_MR);           \
    }

typedef __m512 vec;

/* The first n lanes set. */
INLINE __mmask16 lanes(size_t n)
{
    return (__mmask16)(0xffffu >> (n >= 16 ? 0 : 16 - n));
}

INLINE vec v_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vec v_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void v_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}

INLINE vec v_load_n(const float *p, size_t n)
{
    return n >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(lanes(n), p);
}

INLINE void v_store_n(float *p, vec x, size_t n)
{
    if (n >= 16) {
        _mm512_storeu_ps(p, x);
    } else {
        _mm512_mask_storeu_ps(p, lanes(n), x);
    }
}

INLINE vec v_from_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

INLINE vec v_load_bf16(const uint16_t *p)
{
    return v_from_bf16(_mm256_loadu_si256((const __m256i_u *)p));
}

INLINE vec v_load_bf16_n(const uint16_t *p, size_t n)
{
    return n >= 16 ? v_load_bf16(p) : v_from_bf16(_mm256_maskz_loadu_epi16(lanes(n), p));
}

/* The bits of x rounded to bf16 (nearest even, NaN quiet) in the upper half of each lane; the lower
 * half is 0. */
INLINE __m512i v_bf16_bits(vec x)
{
    __m512i b = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, b, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000u));
}

INLINE vec v_round_bf16(vec x)
{
    return _mm512_castsi512_ps(v_bf16_bits(x));
}

INLINE void v_store_bf16_n(uint16_t *p, vec x, size_t n)
{
    __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bf16_bits(x), 16));
    if (n >= 16) {
        _mm256_storeu_si256((__m256i_u *)p, h);
    } else {
        _mm256_mask_storeu_epi16(p, lanes(n), h);
    }
}

INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
} /* a b + c */
INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* c - a b */
/* The second operand where either is NaN. */
INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
INLINE vec v_abs(vec x)
{
    return _mm512_abs_ps(x);
}

INLINE vec v_copysign(vec x, vec sign)
{
    __m512i m = _mm512_set1_epi32((int)0x80000000u);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(_mm512_castps_si512(x), _mm512_castps_si512(sign), m, 0xd8));
}

INLINE vec v_xor(vec a, vec b)
{
    return _mm512_xor_ps(a, b);
}

/* a < b ? yes : no */
INLINE vec v_if_lt(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

INLINE int v_all_lt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) == 0xffff;
}

/* Lanes from n on become `fill`. */
INLINE vec v_keep_n(vec x, size_t n, vec fill)
{
    return _mm512_mask_blend_ps(lanes(n), fill, x);
}

/* Nearest integer, ties to even. */
INLINE vec v_nearest(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x * 2^n for integral n; overflow to infinity, gradual underflow. */
INLINE vec v_scale2(vec x, vec n)
{
    return _mm512_scalef_ps(x, n);
}

/* The other order of the pairs (1 0 3 2 ..), even lanes only, odd lanes only. */
INLINE vec v_swap_pairs(vec x)
{
    return _mm512_permute_ps(x, 0xb1);
}
INLINE vec v_dup_even(vec x)
{
    return _mm512_moveldup_ps(x);
}
INLINE vec v_dup_odd(vec x)
{
    return _mm512_movehdup_ps(x);
}
/* even lanes a - b, odd lanes a + b */
INLINE vec v_addsub(vec a, vec b)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}

/* Sums of lanes. The tree, the same for every sum in this folder: lane i with i + 8, then + 4,
 * + 2, + 1. A level halves the vectors: of two of them, the halves to keep stay and the other
 * halves change places, so that one addition serves both. */

/* The first two levels of four vectors; quarter i of the result belongs to vector i. */
INLINE vec v_quarters(vec a, vec b, vec c, vec d)
{
    const __m512i swap =
        _mm512_set_epi32(27, 26, 25, 24, 15, 14, 13, 12, 19, 18, 17, 16, 7, 6, 5, 4);
    vec ac = v_add(_mm512_mask_blend_ps(0xff00, a, c), _mm512_shuffle_f32x4(a, c, 0x4e));
    vec bd = v_add(_mm512_mask_blend_ps(0xff00, b, d), _mm512_shuffle_f32x4(b, d, 0x4e));
    return v_add(_mm512_mask_blend_ps(0xf0f0, ac, bd), _mm512_permutex2var_ps(ac, swap, bd));
}

/* The other two levels of four such vectors; lane 4 i + j belongs to quarter j of vector i. */
INLINE vec v_sum_quarters(vec a, vec b, vec c, vec d)
{
    const __m512i swap =
        _mm512_set_epi32(30, 15, 28, 13, 26, 11, 24, 9, 22, 7, 20, 5, 18, 3, 16, 1);
    const __m512i turn = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    vec ac = v_add(_mm512_mask_blend_ps(0xcccc, a, c), _mm512_shuffle_ps(a, c, 0x4e));
    vec bd = v_add(_mm512_mask_blend_ps(0xcccc, b, d), _mm512_shuffle_ps(b, d, 0x4e));
    vec s = v_add(_mm512_mask_blend_ps(0xaaaa, ac, bd), _mm512_permutex2var_ps(ac, swap, bd));
    return _mm512_permutexvar_ps(turn, s);
}

/* Sums of the lanes of four vectors. */
INLINE __m128 v_sum4(vec a, vec b, vec c, vec d)
{
    vec s = v_quarters(a, b, c, d);
    s = v_add(s, _mm512_permute_ps(s, 0x4e));
    s = v_add(s, _mm512_permute_ps(s, 0xb1));
    __m512i first = _mm512_castsi128_si512(_mm_set_epi32(12, 8, 4, 0));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}

INLINE float v_sum(vec x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* Largest lanes of four vectors; where a lane is NaN the result is unspecified. */
INLINE __m128 v_max4(vec a, vec b, vec c, vec d)
{
    vec ab = v_max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vec cd = v_max(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    vec s = v_max(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = v_max(s, _mm512_permute_ps(s, 0x4e));
    s = v_max(s, _mm512_permute_ps(s, 0xb1));
    __m512i first = _mm512_castsi128_si512(_mm_set_epi32(12, 8, 4, 0));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, s));
}

/* Transposes a square of 16 x 16 cells: pairs of rows, of pairs, then of quarters twice. */
INLINE void v_transpose(vec *r)
{
    __m512 t[16];
    for (size_t i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (size_t i = 0; i < 16; i += 4) { /* r[i + c]: column c of each quarter, rows i..i+3 */
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (size_t c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88),
               b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
        t[8 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
        t[4 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
        t[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
    for (size_t i = 0; i < 16; i++)
        r[i] = t[i];
}

INLINE int v_all_finite(vec x)
{
    return _mm512_fpclass_ps_mask(x, 0x99) == 0; /* quiet NaN, +inf, -inf, signalling NaN */
}

/* 16 MXFP4 codes (8 bytes) as f32, unscaled: a 16-entry table by code. */
INLINE vec v_load_e2m1(const uint8_t *p)
{
    int32_t d[2];
    __builtin_memcpy(d, p, 8);
    __m512i v = _mm512_inserti64x4(_mm512_set1_epi32(d[0]), _mm256_set1_epi32(d[1]), 1);
    __m512i shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    vec table =
        _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(v, shift), table);
}

#endif
