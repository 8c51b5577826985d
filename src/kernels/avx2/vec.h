/* vec.h (AVX2, FMA, F16C not needed): the vector layer under simd/: 8 f32 lanes. Private to this
 * folder: everything is static, so no copy of it can reach a CPU without AVX2. Loads and stores
 * with a count touch exactly that many elements; counts of 8 or more mean a whole vector. */
#ifndef K3I_AVX2_VEC_H
#define K3I_AVX2_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ISA_NAME(op) k3i_##op##__avx2
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
    VW = 8,      /* lanes */
    GEMM_MR = 2, /* register tile of matrix products: 2 rows x 6 outputs = 12 of 16 registers */
    GEMM_NR = 6,
    COL_MR = 6, /* register tile where lanes are columns: 6 rows x 2 vectors */
    COL_NV = 2,
};

/* Calls f with the rows of a tile, `left` or GEMM_MR, as a constant, so that the tile stays in
 * registers. */
#define WITH_MR(left, f) \
    if ((left) == 1) {   \
        f(1);            \
    } else {             \
        f(GEMM_MR);      \
    }

typedef __m256 vec;

/* The first n lanes set. */
INLINE __m256i lanes(size_t n)
{
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= 8 ? 8 : (int)n), index);
}

INLINE vec v_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vec v_set1(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void v_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}

INLINE vec v_load_n(const float *p, size_t n)
{
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes(n));
}

INLINE void v_store_n(float *p, vec x, size_t n)
{
    if (n >= 8) {
        _mm256_storeu_ps(p, x);
    } else {
        _mm256_maskstore_ps(p, lanes(n), x);
    }
}

INLINE vec v_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

INLINE vec v_load_bf16(const uint16_t *p)
{
    return v_from_bf16(_mm_loadu_si128((const __m128i_u *)p));
}

INLINE vec v_load_bf16_n(const uint16_t *p, size_t n)
{
    if (n >= 8)
        return v_load_bf16(p);
    uint16_t tail[8] = {0};
    __builtin_memcpy(tail, p, n * sizeof *p);
    return v_load_bf16(tail);
}

/* The bits of x rounded to bf16 (nearest even, NaN quiet) in the upper half of each lane; the lower
 * half is 0. */
INLINE __m256i v_bf16_bits(vec x)
{
    __m256i b = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(b, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    r = _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(nan));
    return _mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000u));
}

INLINE vec v_round_bf16(vec x)
{
    return _mm256_castsi256_ps(v_bf16_bits(x));
}

INLINE void v_store_bf16_n(uint16_t *p, vec x, size_t n)
{
    __m256i w = _mm256_srli_epi32(v_bf16_bits(x), 16);
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    if (n >= 8) {
        _mm_storeu_si128((__m128i_u *)p, h);
        return;
    }
    uint16_t tail[8];
    _mm_storeu_si128((__m128i_u *)tail, h);
    __builtin_memcpy(p, tail, n * sizeof *p);
}

INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
} /* a b + c */
INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
} /* c - a b */
/* The second operand where either is NaN. */
INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
INLINE vec v_abs(vec x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE vec v_copysign(vec x, vec sign)
{
    vec m = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(m, x), _mm256_and_ps(m, sign));
}

INLINE vec v_xor(vec a, vec b)
{
    return _mm256_xor_ps(a, b);
}

/* a < b ? yes : no */
INLINE vec v_if_lt(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

INLINE int v_all_lt(vec a, vec b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) == 0xff;
}

/* Lanes from n on become `fill`. */
INLINE vec v_keep_n(vec x, size_t n, vec fill)
{
    return _mm256_blendv_ps(fill, x, _mm256_castsi256_ps(lanes(n)));
}

/* Nearest integer, ties to even. */
INLINE vec v_nearest(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x * 2^n for integral n in -252..254, in two steps so that the result may be subnormal or
 * infinite. */
INLINE vec v_scale2(vec x, vec n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    __m256i bias = _mm256_set1_epi32(127);
    __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return v_mul(v_mul(x, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

/* The other order of the pairs (1 0 3 2 ..), even lanes only, odd lanes only. */
INLINE vec v_swap_pairs(vec x)
{
    return _mm256_permute_ps(x, 0xb1);
}
INLINE vec v_dup_even(vec x)
{
    return _mm256_moveldup_ps(x);
}
INLINE vec v_dup_odd(vec x)
{
    return _mm256_movehdup_ps(x);
}
/* even lanes a - b, odd lanes a + b */
INLINE vec v_addsub(vec a, vec b)
{
    return _mm256_addsub_ps(a, b);
}

/* Sums of the lanes of four vectors. The tree, the same for every sum in this folder: lane i with i
 * + 4, then + 2,
 * + 1. */
INLINE __m128 v_sum4(vec a, vec b, vec c, vec d)
{
    __m128 ra = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 rb = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 rc = _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
    __m128 rd = _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
    __m128 ab = _mm_add_ps(_mm_movelh_ps(ra, rb), _mm_movehl_ps(rb, ra));
    __m128 cd = _mm_add_ps(_mm_movelh_ps(rc, rd), _mm_movehl_ps(rd, rc));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

INLINE float v_sum(vec x)
{
    return _mm_cvtss_f32(v_sum4(x, v_zero(), v_zero(), v_zero()));
}

/* Largest lanes of four vectors; where a lane is NaN the result is unspecified. */
INLINE __m128 v_max4(vec a, vec b, vec c, vec d)
{
    __m128 ra = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 rb = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    __m128 rc = _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
    __m128 rd = _mm_max_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));
    __m128 ab = _mm_max_ps(_mm_movelh_ps(ra, rb), _mm_movehl_ps(rb, ra));
    __m128 cd = _mm_max_ps(_mm_movelh_ps(rc, rd), _mm_movehl_ps(rd, rc));
    return _mm_max_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

/* Transposes a square of 8 x 8 cells: pairs of rows, of pairs, then of halves. */
INLINE void v_transpose(vec *r)
{
    __m256 t[8];
    for (size_t i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (size_t i = 0; i < 8; i += 4) { /* r[i + c]: column c of each half, rows i..i+3 */
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (size_t c = 0; c < 4; c++) {
        __m256 a = r[c], b = r[4 + c];
        r[c] = _mm256_permute2f128_ps(a, b, 0x20);
        r[4 + c] = _mm256_permute2f128_ps(a, b, 0x31);
    }
}

INLINE int v_all_finite(vec x)
{
    vec inf = _mm256_set1_ps(__builtin_inff());
    return _mm256_movemask_ps(_mm256_cmp_ps(v_abs(x), inf, _CMP_LT_OQ)) == 0xff;
}

/* 8 MXFP4 codes (4 bytes) as f32, unscaled: magnitude by table, sign bit moved to the top. */
INLINE vec v_load_e2m1(const uint8_t *p)
{
    int32_t d;
    __builtin_memcpy(&d, p, 4);
    __m256i v =
        _mm256_srlv_epi32(_mm256_set1_epi32(d), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    vec mag = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), v);
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(v, 28), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_or_ps(mag, _mm256_castsi256_ps(sign));
}

#endif
