/* resize_pass.c: weighted sums in 32-bit integers, rounded and clamped to 8 bits. The weights of a
 * pixel sum to 2^22 and their absolute values to less than 2^23, so 255 * sum fits 32 bits.
 * PASSES names the table, so that the file can be compiled once per instruction set. */
#include "resize_pass.h"

#ifndef PASSES
#define PASSES k3i_resize_plain
#endif

#define HALF (1 << (K3I_RESIZE_BITS - 1))

static inline uint8_t clamp8(int32_t sum)
{
    int32_t v = sum >> K3I_RESIZE_BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static inline void across_n(uint8_t *out, const uint8_t *in, const k3i_taps *taps, size_t w,
                            size_t ch)
{
    for (size_t i = 0; i < w; i++) {
        const int32_t *q = taps->q + i * taps->cap;
        const uint8_t *p = in + (size_t)taps->lo[i] * ch;
        int32_t sum[4] = {HALF, HALF, HALF, HALF};
        for (size_t j = 0; j < taps->n[i]; j++) {
            for (size_t c = 0; c < ch; c++)
                sum[c] += q[j] * p[j * ch + c];
        }
        for (size_t c = 0; c < ch; c++)
            out[i * ch + c] = clamp8(sum[c]);
    }
}

static void across(uint8_t *out, const uint8_t *in, const k3i_taps *taps, size_t w, size_t ch)
{
    if (ch == 1)
        across_n(out, in, taps, w, 1);
    else if (ch == 3)
        across_n(out, in, taps, w, 3);
    else
        across_n(out, in, taps, w, 4);
}

static void down(uint8_t *restrict out, const uint8_t *restrict in, const k3i_taps *taps, size_t i,
                 size_t n, int32_t *restrict acc)
{
    const int32_t *q = taps->q + i * taps->cap;
    const uint8_t *row = in + (size_t)taps->lo[i] * n;
    for (size_t x = 0; x < n; x++)
        acc[x] = HALF;
    for (size_t j = 0; j < taps->n[i]; j++, row += n) {
        int32_t w = q[j];
        for (size_t x = 0; x < n; x++)
            acc[x] += w * row[x];
    }
    for (size_t x = 0; x < n; x++)
        out[x] = clamp8(acc[x]);
}

const k3i_resize_passes PASSES = {across, down};
