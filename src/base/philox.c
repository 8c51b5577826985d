/* philox.c: ten rounds of Philox4x32, and the noise drawn from it. The constants are
 * those of the paper; test_sampler holds the generator to its published known-answer vectors. */
#include "philox.h"

#include <math.h>

void k3i_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u;
        uint64_t p1 = (uint64_t)c2 * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

static void draw(uint64_t seed, int32_t position, uint32_t stream, uint32_t word, uint32_t ret[4])
{
    uint32_t counter[4] = {(uint32_t)position, stream, word, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    k3i_philox(counter, key, ret);
}

/* The middle of one of 2^32 equal cells: 0 and 1 cannot occur, so both logarithms are finite. */
static double open_unit(uint32_t x)
{
    return ((double)x + 0.5) * 0x1p-32;
}

void k3i_gumbel_init(k3i_gumbel *g, uint64_t seed, int32_t position, uint32_t stream)
{
    *g = (k3i_gumbel){.seed = seed, .position = position, .stream = stream, .quad = UINT32_MAX};
}

uint32_t k3i_gumbel_word(k3i_gumbel *g, int32_t token)
{
    uint32_t quad = (uint32_t)token / 4;
    if (quad != g->quad) {
        draw(g->seed, g->position, g->stream, quad, g->word);
        g->quad = quad;
    }
    return g->word[(uint32_t)token % 4];
}

double k3i_gumbel_at(k3i_gumbel *g, int32_t token)
{
    return -log(-log(open_unit(k3i_gumbel_word(g, token))));
}

uint32_t k3i_gumbel_floor(double score)
{
    /* Two words of slack cover the rounding of the two exponentials near 1. */
    double word = exp(-exp(-score)) * 0x1p32 - 2.5;
    return word <= 0.0 ? 0 : (uint32_t)word;
}
