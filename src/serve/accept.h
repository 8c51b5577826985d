/* accept.h: the rejection rules of speculative sampling, for drafts that were themselves sampled
 * (dspark.md 4.3, 4.4). All keep the target's law exactly; they differ from the position-keyed rule
 * of sampler.h in that a seeded text may change with the draft width, so no command uses them: they
 * are the yardstick of what that rule costs (docs/decisions/coupled-sampling.md).
 *
 * p [(k + 1), vocab]: target probabilities of rows 0..k; q [k, vocab]: the proposals'
 * probabilities, or NULL for a greedy draft (a point mass on the drafted token); drafts [k], -1 =
 * always rejected. uniform [k + 1] in (0, 1): entry i decides draft i; entry k draws the final
 * token. */
#ifndef K3I_ACCEPT_H
#define K3I_ACCEPT_H

#include <stdint.h>

typedef struct {
    int32_t n_accepted; /* drafts that stay, 0..k */
    int32_t token;      /* the correction or bonus token that follows them */
} k3i_verdict;

/* Accept draft i with probability min(1, p/q), else sample the residual max(p - q, 0). */
k3i_verdict k3i_accept_standard(const double *p, const double *q, const int32_t *drafts, int32_t k,
                                int32_t vocab, const double *uniform);

/* Block verification (Sun et al., 2403.10444): never fewer accepted tokens in expectation. q
 * required. */
k3i_verdict k3i_accept_block(const double *p, const double *q, const int32_t *drafts, int32_t k,
                             int32_t vocab, const double *uniform);

#endif
