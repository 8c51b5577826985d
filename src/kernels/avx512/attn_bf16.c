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

void ISA_NAME(attn_segment_bf16)(float *acc, float *m, float *l, const uint16_t *q, size_t q_stride,
                                 const uint16_t *k, size_t k_stride, const uint16_t *v,
                                 size_t v_stride, const size_t *key_off, size_t n_q, size_t n_key,
                                 const uint32_t *row_keys, size_t dk, size_t dv, float scale)
{
    attn_pair_seg g = {q,  k,     v,   q_stride, k_stride, v_stride, key_off, dk,
                       dv, scale, acc, m,        l,        row_keys, n_key};
    attn_pair_run(&g, n_q);
}
