/* resize_pass.h: the two inner passes of the bicubic resize. resize_pass.c is compiled once for any
 * processor and once with AVX2; integers only, so the bits are the same. */
#ifndef K3I_RESIZE_PASS_H
#define K3I_RESIZE_PASS_H

#include <stddef.h>
#include <stdint.h>

#define K3I_RESIZE_BITS 22 /* fraction bits of the coefficients: 32 - 8 - 2 */

/* Filter of one axis: output i reads lo[i] .. lo[i] + n[i] - 1 with weights q[i * cap + j]. */
typedef struct {
    uint32_t *lo, *n;
    int32_t *q;
    size_t cap;
} k3i_taps;

typedef struct {
    /* One row: out [w, ch], in [.., ch]. */
    void (*across)(uint8_t *out, const uint8_t *in, const k3i_taps *taps, size_t w, size_t ch);
    /* One output row `i` of `n` samples; rows of `in` are `n` apart; acc has room for n sums. */
    void (*down)(uint8_t *out, const uint8_t *in, const k3i_taps *taps, size_t i, size_t n,
                 int32_t *acc);
} k3i_resize_passes;

extern const k3i_resize_passes k3i_resize_plain;
#if defined(__x86_64__)
extern const k3i_resize_passes k3i_resize_avx2;
#endif

#endif
