/* cost.h: the bytes that one token reads and writes, by part of the model (text-model 8.1), and
 * the operations it takes (8.3): what decides the speed of decode and prefill. */
#ifndef K3I_COST_H
#define K3I_COST_H

#include "config.h"

/* COST(field, what it is): weights read once per step of one token. */
#define K3I_COST_WEIGHTS(COST)               \
    COST(embedding, "embedding row")         \
    COST(kda, "KDA projections")             \
    COST(kda_f32, "KDA F32 tensors")         \
    COST(mla, "MLA projections")             \
    COST(norms, "norms and AttnRes vectors") \
    COST(dense, "dense MLPs")                \
    COST(router, "routers")                  \
    COST(latent, "latent down, up and norm") \
    COST(shared, "shared experts")           \
    COST(routed, "routed experts in use")    \
    COST(head, "output head")

typedef struct {
#define COST(field, text) uint64_t field;
    K3I_COST_WEIGHTS(COST)
#undef COST
    uint64_t weights;          /* sum of the above */
    uint64_t state;            /* KDA recurrent states, read and written, F32 */
    uint64_t conv;             /* convolution history, read and written, BF16 */
    uint64_t latent_per_token; /* MLA cache read per token of context, BF16 */
    uint64_t all_weights;      /* with every expert */
    /* A multiply-add is two operations. A prompt of T tokens takes about T * (flop_linear -
     * flop_head + flop_recurrence) + T (T + 1) / 2 * flop_pair + flop_head. */
    uint64_t flop_linear; /* all matrices of one token, with the head */
    uint64_t flop_head;
    uint64_t flop_recurrence; /* KDA */
    uint64_t flop_pair;       /* MLA: a query and a key, expanded form */
} k3i_cost;

k3i_cost k3i_cost_of(const k3i_config *c);

#endif
