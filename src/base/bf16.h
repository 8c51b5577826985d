/* bf16.h: bfloat16 and E8M0 conversions. gcc 12 has no __bf16 type in C, so storage is uint16_t. */
#ifndef K3I_BF16_H
#define K3I_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t k3i_bf16;

static inline float k3i_from_bf16(k3i_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest, ties to even; NaN stays NaN (quiet), overflow goes to infinity. */
static inline k3i_bf16 k3i_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (k3i_bf16)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (k3i_bf16)(bits >> 16);
}

static inline float k3i_round_bf16(float f)
{
    return k3i_from_bf16(k3i_to_bf16(f));
}

/* 2^(e - 127) for e in 0..254 (255 is NaN and refused when a checkpoint is loaded). e = 0 is the
 * subnormal 2^-127, which `e << 23` would turn into 0. */
static inline float k3i_from_e8m0(uint8_t e)
{
    uint32_t bits = e == 0 ? 0x00400000u : (uint32_t)e << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
