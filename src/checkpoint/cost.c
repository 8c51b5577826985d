/* cost.c: sizes of text-model 3 times their element sizes, summed as in text-model 8.1. Dimensions
 * were bound to tensors that exist, so the sums fit 64 bits. */
#include "cost.h"

#define BF16 2u
#define F32 4u

static uint64_t kda_projections(const k3i_config *c)
{
    uint64_t h = c->hidden_size, d = c->kda_head_dim, width = c->kda_heads * d;
    /* q, k, v, g and o; the low-rank decay gate; beta. */
    return (5 * width * h + d * h + width * d + c->kda_heads * h) * BF16;
}

static uint64_t kda_f32(const k3i_config *c)
{
    uint64_t d = c->kda_head_dim, width = c->kda_heads * d;
    /* A_log is stored as long as a head is wide. */
    uint64_t a_log = c->kda_heads > d ? c->kda_heads : d;
    return (3 * width * c->conv_taps + width + a_log + d) * F32;
}

static uint64_t mla_projections(const k3i_config *c)
{
    uint64_t h = c->hidden_size, n = c->n_heads, q = c->q_lora_rank, kv = c->kv_lora_rank;
    uint64_t nope = c->qk_nope_head_dim, rope = c->qk_rope_head_dim, v = c->v_head_dim;
    /* With the norms of the two latents. */
    return (q + kv + q * h + n * (nope + rope) * q + (kv + rope) * h + n * (nope + v) * kv +
            2 * n * v * h) *
           BF16;
}

static uint64_t expert(const k3i_config *c)
{
    uint64_t n = 3 * (uint64_t)c->moe_intermediate_size * c->routed_hidden_size;
    return n / 2 + n / 32;
}

k3i_cost k3i_cost_of(const k3i_config *c)
{
    uint64_t h = c->hidden_size, layers = c->n_layers, moe = c->n_moe_layers;
    uint64_t kda = c->n_kda_layers, mla = c->n_mla_layers, z = c->routed_hidden_size;
    uint64_t used = moe * c->n_experts_per_token * expert(c);
    k3i_cost cost = {
        .embedding = h * BF16,
        .kda = kda * kda_projections(c),
        .kda_f32 = kda * kda_f32(c),
        .mla = mla * mla_projections(c),
        .norms = (layers * 6 * h + 3 * h) * BF16,
        .dense = (layers - moe) * 3 * c->intermediate_size * h * BF16,
        .router = moe * c->n_experts * (h * BF16 + F32),
        .latent = moe * (2 * z * h + z) * BF16,
        .shared = moe * 3 * c->n_shared_experts * c->moe_intermediate_size * h * BF16,
        .routed = used,
        .head = c->vocab_size * h * BF16,
    };
#define COST(field, text) cost.weights += cost.field;
    K3I_COST_WEIGHTS(COST)
#undef COST
    uint64_t d = c->kda_head_dim, width = c->kda_heads * d;
    cost.state = 2 * kda * width * d * F32;
    cost.conv = 2 * kda * 3 * width * (c->conv_taps - 1) * BF16;
    cost.latent_per_token = mla * (c->kv_lora_rank + c->qk_rope_head_dim) * BF16;
    cost.all_weights = cost.weights - used - cost.embedding + moe * c->n_experts * expert(c) +
                       c->vocab_size * h * BF16;
    /* Two bytes and two operations a BF16 weight; the vectors among them do not show. */
    cost.flop_linear = cost.kda + cost.mla + cost.dense + cost.router + cost.latent + cost.shared +
                       cost.head +
                       2 * moe * c->n_experts_per_token * 3 * c->moe_intermediate_size * z;
    cost.flop_head = cost.head;
    cost.flop_recurrence = kda * 7 * width * d;
    cost.flop_pair =
        mla * c->n_heads * 2 * (c->qk_nope_head_dim + c->qk_rope_head_dim + c->v_head_dim);
    return cost;
}
