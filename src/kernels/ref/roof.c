/* roof.c: what portable scalar code can do; eight independent chains hide the latency of add and
 * multiply. */
#include "ref.h"

enum { CHAINS = 8 };

void k3i_roof_read__ref(uint64_t *ret, const void *p, size_t n_bytes, size_t n_stream, size_t ahead)
{
    (void)ahead;
    const unsigned char *base = p;
    size_t part = n_bytes / n_stream;
    uint64_t x[CHAINS] = {0}, all = 0;
    for (size_t i = 0; i < part; i += sizeof x) {
        for (size_t s = 0; s < n_stream; s++) {
            uint64_t v[CHAINS];
            memcpy(v, base + s * part + i, sizeof v);
            for (size_t c = 0; c < CHAINS; c++)
                x[c] ^= v[c];
        }
    }
    for (size_t c = 0; c < CHAINS; c++)
        all ^= x[c];
    *ret = all;
}

void k3i_roof_f32__ref(float *ret, double *ret_flop, size_t n)
{
    float s[CHAINS], step = (float)n * 1e-12f, all = 0;
    for (size_t c = 0; c < CHAINS; c++)
        s[c] = (float)c;
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < CHAINS; c++)
            s[c] = s[c] * 0.999f + step;
    }
    for (size_t c = 0; c < CHAINS; c++)
        all += s[c];
    *ret = all;
    *ret_flop = (double)n * CHAINS * 2;
}

void k3i_roof_bf16__ref(float *ret, double *ret_flop, size_t n)
{
    k3i_roof_f32__ref(ret, ret_flop, n);
}
