/* bf16_ops.h (AVX-512 BF16): the pair product, and the names of the operations that are built on
 * it. */
#ifndef K3I_AVX512_BF16_OPS_H
#define K3I_AVX512_BF16_OPS_H

#define ISA_NAME(op) k3i_##op##__avx512bf16
#include "vec.h"

#include "../simd/isa.h"

/* acc + the products of the two bf16 in each lane. */
INLINE vec dot_pairs(__m512i a, __m512i b, vec acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

/* n elements of p, the rest 0. */
INLINE __m512i load_pairs(const void *p, size_t n)
{
    return n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << n) - 1u, p);
}

#endif
