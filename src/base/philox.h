/* philox.h: counter-based noise, Philox4x32-10 (Salmon et al., SC'11). A draw is a pure function of
 * (seed, position, stream, token): it cannot depend on batch neighbours, step numbers, chunking,
 * preemption or speculation. Used for sampling and for sampled drafts. */
#ifndef K3I_PHILOX_H
#define K3I_PHILOX_H

#include <stdint.h>

/* Draws of one position differ by stream. One is in use: a draft proposes with the noise that the
 * token will be sampled with (dspark.md 4.6). */
enum { K3_STREAM_TARGET = 0 };

/* Four 32-bit words of the counter under the key. */
void k3i_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* Standard Gumbel noise -ln(-ln u) of vocabulary entry `token`: argmax(logit + noise) is a sample
 * of softmax(logits). `token` rows are drawn four at a time; k3i_gumbel keeps the last four. */
typedef struct {
    uint64_t seed;
    int32_t position;
    uint32_t stream;
    uint32_t quad; /* index of the words below, UINT32_MAX = none */
    uint32_t word[4];
} k3i_gumbel;

void k3i_gumbel_init(k3i_gumbel *g, uint64_t seed, int32_t position, uint32_t stream);
double k3i_gumbel_at(k3i_gumbel *g, int32_t token);
/* The 32 random bits behind k3i_gumbel_at, which grows with them. */
uint32_t k3i_gumbel_word(k3i_gumbel *g, int32_t token);
/* Words below this give noise below `score`: spares the two logarithms. */
uint32_t k3i_gumbel_floor(double score);

/* k3i_gumbel_at never exceeds this: -ln(-ln(1 - 2^-33)) rounded up. */
#define K3I_GUMBEL_MAX 22.9

#endif
