/* roof_bf16.c (AVX-512 BF16): the peak of the pair product. */
#include "bf16_ops.h"

void ISA_NAME(roof_bf16)(float *ret, double *ret_flop, size_t n)
{
    enum { CHAINS = COL_MR * COL_NV };
    __m512i x = _mm512_set1_epi32(0x3f803f80), y = _mm512_set1_epi32((int)n | 0x30003000);
    vec s[CHAINS];
    UNROLL
    for (size_t i = 0; i < CHAINS; i++)
        s[i] = v_set1((float)i);
    for (size_t r = 0; r < n; r++) {
        UNROLL
        for (size_t i = 0; i < CHAINS; i++)
            s[i] = dot_pairs(x, y, s[i]);
    }
    vec all = v_zero();
    UNROLL
    for (size_t i = 0; i < CHAINS; i++)
        all = v_add(all, s[i]);
    *ret = v_sum(all);
    *ret_flop = (double)n * CHAINS * 64; /* 16 lanes, two products and two additions each */
}
