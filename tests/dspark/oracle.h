/* oracle.h: DSpark once more, dense, unpaged, in double, written from dspark.md and sharing nothing
 * with src/model. Expanded attention (keys and values per head), softmax over the whole row. */
#ifndef K3_DSPARK_ORACLE_H
#define K3_DSPARK_ORACLE_H

#include "bind.h"

/* Context row of position pos from taps [n_taps * H]: out [row width] per layer, layers row_width
 * apart. */
void oracle_context(const k3i_draft_config *c, const k3i_draft_weights *w, const float *taps,
                    size_t pos, double *out);

/* Block of T rows at anchor position p with context ctx [L][p][row width]. */
typedef struct {
    const k3i_draft_config *c;
    const k3i_draft_weights *w;
    const k3i_bf16 *embed, *lm_head;
    const double *ctx;
    size_t p, T;
    int32_t anchor;
    double *z;    /* out [T, V]: base logits + Markov bias given the greedy choices before */
    double *conf; /* out [T] */
    int32_t *ids; /* out [T] */
} oracle_block_args;

void oracle_block(const oracle_block_args *a);

#endif
