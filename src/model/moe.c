/* moe.c: LatentMoE, text-model 4.8: fp32 router, MXFP4 experts in the latent space, RMSNorm of the
 * weighted sum, up-projection, always-on shared experts.
 *
 * Pairs (row, expert) are sorted by expert, so that an expert's weights are read once for all its
 * rows. Experts come in ascending order and every member owns a range of outputs of all of them:
 * w1, w3 and SiTU of an output are one piece of work, w2 and the weighted sum another, and each sum
 * has one order. */
#include "parts.h"

#include <math.h>
#include <string.h>

void k3i_moe_ws_take(k3i_moe_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act,
                     size_t n_members)
{
    size_t E = cfg->n_experts, K = cfg->n_experts_per_token, Z = cfg->routed_hidden_size;
    size_t M = cfg->moe_intermediate_size, pairs = T + n_members * K;
    ws->cap = T > K ? T : K;
    ws->router = k3i_bump_take(b, T * E, sizeof(float));
    ws->latent = k3i_bump_take(b, T * Z, sizeof(float));
    ws->latent_act = k3i_bump_take(b, T * Z, act);
    ws->shared_act = k3i_bump_take(b, T * cfg->n_shared_experts * M, act);
    ws->sum = k3i_bump_take(b, T * Z, sizeof(float));
    ws->sum_act = k3i_bump_take(b, T * Z, act);
    ws->expert = k3i_bump_take(b, T * K, sizeof(int32_t));
    ws->weight = k3i_bump_take(b, T * K, sizeof(float));
    ws->begin = k3i_bump_take(b, n_members * (E + 1), sizeof(size_t));
    ws->pair_row = k3i_bump_take(b, T * K, sizeof(int32_t));
    ws->pair_weight = k3i_bump_take(b, T * K, sizeof(float));
    ws->x_act = k3i_bump_take(b, pairs * Z, act);
    ws->h_act = k3i_bump_take(b, pairs * M, act);
}

size_t k3i_moe_scratch(const k3i_config *cfg)
{
    size_t tiles = 2 * (size_t)K3I_TILE * sizeof(float);
    size_t route = k3i_route_scratch(cfg);
    return tiles > route ? tiles : route;
}

/* ---- routing -----------------------------------------------------------------------------------
 */

static float key(float x)
{
    return isnan(x) ? -INFINITY : x;
}

/* The k largest of x[0..n), by falling value, ties to the lowest index; NaN counts as -inf. */
static void top_k(const float *x, size_t n, size_t k, int32_t *ret)
{
    size_t have = 0;
    for (size_t e = 0; e < n; e++) {
        size_t at = have;
        while (at > 0 && key(x[ret[at - 1]]) < key(x[e]))
            at--;
        if (at == k)
            continue;
        have += have < k;
        memmove(ret + at + 1, ret + at, (have - 1 - at) * sizeof *ret);
        ret[at] = (int32_t)e;
    }
}

static void sort_ascending(int32_t *x, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t v = x[i];
        size_t at = i;
        for (; at > 0 && x[at - 1] > v; at--)
            x[at] = x[at - 1];
        x[at] = v;
    }
}

/* Experts outside the topk_groups best groups get -inf. A group's score is the sum of its two
 * largest corrected scores. sums: [E] scratch; kept: room for topk_groups indices. */
static void drop_groups(const k3i_config *cfg, float *score, float *sums, int32_t *kept)
{
    size_t n = cfg->n_expert_groups, width = cfg->n_experts / n;
    for (size_t g = 0; g < n; g++) {
        int32_t best[2] = {0, 0};
        const float *s = score + g * width;
        top_k(s, width, width < 2 ? 1 : 2, best);
        sums[g] = width < 2 ? s[0] : s[best[0]] + s[best[1]];
    }
    top_k(sums, n, cfg->topk_groups, kept);
    sort_ascending(kept, cfg->topk_groups);
    for (size_t g = 0, k = 0; g < n; g++) {
        if (k < cfg->topk_groups && (size_t)kept[k] == g) {
            k++;
            continue;
        }
        for (size_t e = g * width; e < (g + 1) * width; e++)
            score[e] = -INFINITY;
    }
}

size_t k3i_route_scratch(const k3i_config *cfg)
{
    return cfg->n_experts * (2 * sizeof(float) + sizeof(int32_t));
}

void k3i_route(const k3i_ops *op, const k3i_config *cfg, const float *logit, const float *bias,
               void *scratch, int32_t *expert, float *weight)
{
    size_t E = cfg->n_experts, K = cfg->n_experts_per_token;
    float *score = scratch, *corrected = score + E;
    int32_t *kept = (void *)(corrected + E);
    op->sigmoid(score, logit, E, 0);
    op->add(corrected, score, bias, E, 0);
    if (cfg->n_expert_groups > 1) {
        /* The sums go where the scores are; those are computed again below. */
        drop_groups(cfg, corrected, score, kept);
        op->sigmoid(score, logit, E, 0);
    }
    top_k(corrected, E, K, expert);
    sort_ascending(expert, K);
    float sum = 0;
    for (size_t k = 0; k < K; k++)
        sum += score[expert[k]];
    float factor = cfg->moe_renormalize ? sum + 1e-20f : 1.0f;
    for (size_t k = 0; k < K; k++)
        weight[k] = score[expert[k]] / factor * cfg->routed_scaling_factor;
}

/* ---- one layer ---------------------------------------------------------------------------------
 */

typedef struct {
    const k3i_text *m;
    const k3i_run *run;
    const k3i_moe_weights *w;
    k3i_moe_ws *ws;
    size_t T;
    size_t first, end; /* experts of the chunk */
} job;

static void route_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    const k3i_config *cfg = j->m->cfg;
    k3i_moe_ws *ws = j->ws;
    size_t E = cfg->n_experts, K = cfg->n_experts_per_token, Z = cfg->routed_hidden_size, from, to;
    k3i_team_split(j->T, 1, i, n, &from, &to);
    for (size_t row = from; row < to; row++) {
        k3i_route(j->run->op, cfg, ws->router + row * E, j->w->correction_bias,
                  j->run->scratch + i * j->run->scratch_bytes, ws->expert + row * K,
                  ws->weight + row * K);
        k3i_act_store(j->run, k3i_act_at(j->run, ws->latent_act, row * Z), ws->latent + row * Z, Z);
        memset(ws->sum + row * Z, 0, Z * sizeof(float));
    }
}

/* Counting sort of the T K pairs by expert; rows ascend inside an expert. */
static void sort_pairs(const job *j)
{
    size_t E = j->m->cfg->n_experts, K = j->m->cfg->n_experts_per_token;
    k3i_moe_ws *ws = j->ws;
    memset(ws->begin, 0, (E + 1) * sizeof *ws->begin);
    for (size_t p = 0; p < j->T * K; p++)
        ws->begin[ws->expert[p] + 1]++;
    for (size_t e = 0; e < E; e++)
        ws->begin[e + 1] += ws->begin[e];
    for (size_t p = 0; p < j->T * K; p++) {
        size_t at = ws->begin[ws->expert[p]]++;
        ws->pair_row[at] = (int32_t)(p / K);
        ws->pair_weight[at] = ws->weight[p];
    }
    for (size_t e = E; e > 0; e--) /* begin[e] stands at its end: shift back */
        ws->begin[e] = ws->begin[e - 1];
    ws->begin[0] = 0;
}

/* Latents of the pairs of a chunk, so that an expert's rows lie one behind the other. */
static void gather_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    size_t Z = j->m->cfg->routed_hidden_size, from, to, base = j->ws->begin[j->first];
    k3i_team_split(j->ws->begin[j->end] - base, 1, i, n, &from, &to);
    for (size_t p = from; p < to; p++)
        memcpy(k3i_act_at(j->run, j->ws->x_act, p * Z),
               k3i_act_at(j->run, j->ws->latent_act, (size_t)j->ws->pair_row[base + p] * Z),
               Z * j->run->act_bytes);
}

static void gemm_mxfp4(const k3i_run *run, float *y, size_t y_stride, const void *x,
                       const k3i_mxfp4 *w, size_t from, size_t n_row, size_t n_out, size_t k)
{
    const uint8_t *packed = w->packed + from * (k / 2), *scale = w->scale + from * (k / 32);
    if (run->bf16) {
        run->op->gemm_mxfp4_bf16(y, y_stride, x, k, packed, scale, n_row, n_out, k);
    } else {
        run->op->gemm_mxfp4_f32(y, y_stride, x, k, packed, scale, n_row, n_out, k);
    }
}

/* h of pairs [p, p + n_row) (within the chunk) and outputs [o, o + n_out) of expert e. */
static void w13_tile(const job *j, size_t e, size_t p, size_t n_row, size_t o, size_t n_out,
                     float *gate)
{
    const k3i_run *run = j->run;
    const k3i_config *cfg = j->m->cfg;
    size_t Z = cfg->routed_hidden_size, M = cfg->moe_intermediate_size;
    float *up = gate + K3I_TILE;
    const void *x = k3i_act_at(run, j->ws->x_act, p * Z);
    gemm_mxfp4(run, gate, n_out, x, &j->w->experts[e].w1, o, n_row, n_out, Z);
    gemm_mxfp4(run, up, n_out, x, &j->w->experts[e].w3, o, n_row, n_out, Z);
    if (run->bf16) {
        run->op->round_bf16(gate, n_row * n_out);
        run->op->round_bf16(up, n_row * n_out);
    }
    run->op->situ(gate, gate, up, n_row * n_out, cfg->situ_beta, cfg->situ_linear_beta, run->bf16);
    for (size_t r = 0; r < n_row; r++)
        k3i_act_store(run, k3i_act_at(run, j->ws->h_act, (p + r) * M + o), gate + r * n_out, n_out);
}

/* Adds the weighted outputs [o, o + n_out) of expert e for the pairs to their rows' sums. */
static void w2_tile(const job *j, size_t e, size_t p, size_t n_row, size_t o, size_t n_out,
                    float *y)
{
    const k3i_run *run = j->run;
    size_t Z = j->m->cfg->routed_hidden_size, M = j->m->cfg->moe_intermediate_size;
    size_t base = j->ws->begin[j->first] + p;
    gemm_mxfp4(run, y, n_out, k3i_act_at(run, j->ws->h_act, p * M), &j->w->experts[e].w2, o, n_row,
               n_out, M);
    if (run->bf16)
        run->op->round_bf16(y, n_row * n_out);
    for (size_t r = 0; r < n_row; r++)
        run->op->axpy(j->ws->sum + (size_t)j->ws->pair_row[base + r] * Z + o,
                      j->ws->pair_weight[base + r], y + r * n_out, n_out);
}

typedef void (*tile_fn)(const job *j, size_t e, size_t p, size_t n_row, size_t o, size_t n_out,
                        float *scratch);

/* Runs `tile` over this member's outputs of all experts of the chunk. */
static void experts(const job *j, size_t n_outputs, tile_fn tile, size_t i, size_t n)
{
    float *scratch = (void *)(j->run->scratch + i * j->run->scratch_bytes);
    size_t from, to, base = j->ws->begin[j->first];
    k3i_split_outputs(j->run, n_outputs, i, n, &from, &to);
    for (size_t e = j->first; e < j->end; e++) {
        size_t p_from = j->ws->begin[e] - base, p_to = j->ws->begin[e + 1] - base;
        if (p_from == p_to)
            continue;
        size_t outs = k3i_tile_outputs(p_to - p_from);
        for (size_t o = from; o < to; o += outs) {
            size_t n_out = to - o < outs ? to - o : outs;
            for (size_t p = p_from; p < p_to; p += K3I_TILE_ROWS) {
                size_t rows = p_to - p < K3I_TILE_ROWS ? p_to - p : K3I_TILE_ROWS;
                tile(j, e, p, rows, o, n_out, scratch);
            }
        }
    }
}

static void w13_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    experts(j, j->m->cfg->moe_intermediate_size, w13_tile, i, n);
}

static void w2_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    experts(j, j->m->cfg->routed_hidden_size, w2_tile, i, n);
}

static void norm_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    const k3i_run *run = j->run;
    size_t Z = j->m->cfg->routed_hidden_size, from, to;
    k3i_team_split(j->T, 1, i, n, &from, &to);
    for (size_t row = from; row < to; row++) {
        float *y = j->ws->sum + row * Z;
        if (run->bf16)
            run->op->round_bf16(y, Z);
        run->op->rmsnorm(y, y, j->w->norm, Z, j->m->cfg->rms_norm_eps, run->bf16);
        k3i_act_store(run, k3i_act_at(run, j->ws->sum_act, row * Z), y, Z);
    }
}

/* The ranks' outputs [n_row, n_out] of a stage become whole. */
static void gather_ranks(k3i_run *run, void *base, size_t elem_bytes, size_t n_row, size_t n_out)
{
    const k3i_shared m = {.base = base,
                          .elem_bytes = elem_bytes,
                          .row_bytes = n_out * elem_bytes,
                          .n_row = n_row,
                          .n_out = n_out};
    k3i_ranks_gather(&run->ranks, &m, 1, K3I_GRAIN);
}

static void run_experts(job *j, k3i_run *run)
{
    const k3i_config *cfg = j->m->cfg;
    size_t E = cfg->n_experts, Z = cfg->routed_hidden_size, M = cfg->moe_intermediate_size;
    const size_t *begin = j->ws->begin;
    for (j->first = 0; j->first < E; j->first = j->end) {
        j->end = j->first + 1;
        while (j->end < E && begin[j->end + 1] - begin[j->first] <= j->ws->cap)
            j->end++;
        size_t pairs = begin[j->end] - begin[j->first];
        if (pairs == 0)
            continue;
        k3i_run_team(run, gather_member, j, pairs * Z);
        k3i_run_team(run, w13_member, j, pairs * Z * M * 2);
        gather_ranks(run, j->ws->h_act, run->act_bytes, pairs, M);
        k3i_run_team(run, w2_member, j, pairs * Z * M);
        for (size_t e = j->first; e < j->end; e++)
            run->weight_bytes +=
                begin[e + 1] > begin[e] ? 3 * Z * M * 17 / 32 / run->ranks.size : 0;
    }
    gather_ranks(run, j->ws->sum, sizeof(float), j->T, Z);
}

/* The part of a workspace that belongs to rows from.. of a member, as a workspace of its own. */
static k3i_moe_ws member_ws(const k3i_moe_ws *ws, const k3i_config *cfg, const k3i_run *run,
                            size_t from, size_t n_rows)
{
    size_t E = cfg->n_experts, K = cfg->n_experts_per_token, Z = cfg->routed_hidden_size;
    size_t M = cfg->moe_intermediate_size, pair = from + run->part * K;
    return (k3i_moe_ws){
        .router = ws->router + from * E,
        .latent = ws->latent + from * Z,
        .latent_act = k3i_act_at(run, ws->latent_act, from * Z),
        .shared_act = k3i_act_at(run, ws->shared_act, from * cfg->n_shared_experts * M),
        .sum = ws->sum + from * Z,
        .sum_act = k3i_act_at(run, ws->sum_act, from * Z),
        .expert = ws->expert + from * K,
        .weight = ws->weight + from * K,
        .begin = ws->begin + run->part * (E + 1),
        .pair_row = ws->pair_row + from * K,
        .pair_weight = ws->pair_weight + from * K,
        .cap = n_rows > K ? n_rows : K,
        .x_act = k3i_act_at(run, ws->x_act, pair * Z),
        .h_act = k3i_act_at(run, ws->h_act, pair * M),
    };
}

/* x [T, H] -> a, b [T, H]. */
static void moe_rows(const k3i_text *m, k3i_run *run, k3i_moe_ws *ws, size_t layer, const void *x,
                     float *a, float *b, size_t T)
{
    const k3i_config *cfg = m->cfg;
    const k3i_moe_weights *w = &m->w->layers[layer].moe;
    size_t H = cfg->hidden_size, E = cfg->n_experts, Z = cfg->routed_hidden_size;
    size_t I = cfg->n_shared_experts * cfg->moe_intermediate_size;
    job j = {.m = m, .run = run, .w = w, .ws = ws, .T = T};
    const k3i_item in[] = {
        {.kind = K3I_LINEAR_F32, .x = x, .w = w->gate, .n_out = E, .k = H, .y = ws->router},
        {.x = x, .w = w->down_proj, .n_out = Z, .k = H, .y = ws->latent},
        {.kind = K3I_GLU,
         .x = x,
         .w = w->shared.gate_proj,
         .w_up = w->shared.up_proj,
         .n_out = I,
         .k = H,
         .h = ws->shared_act,
         .beta = cfg->situ_beta,
         .linear_beta = cfg->situ_linear_beta},
    };
    k3i_linear(run, T, in, sizeof in / sizeof in[0]);
    k3i_run_team(run, route_member, &j, T * E * 8);
    sort_pairs(&j);
    run_experts(&j, run);
    k3i_run_team(run, norm_member, &j, T * Z * 4);
    const k3i_item out[] = {
        {.x = ws->sum_act, .w = w->up_proj, .n_out = H, .k = Z, .y = a},
        {.x = ws->shared_act, .w = w->shared.down_proj, .n_out = H, .k = I, .y = b},
    };
    k3i_linear(run, T, out, sizeof out / sizeof out[0]);
}

void k3i_moe_forward(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    size_t H = m->cfg->hidden_size, from, to;
    if (run->n_parts == 0) {
        moe_rows(m, run, &m->ws->moe, layer, m->ws->x, m->ws->a, m->ws->b, step->n_rows);
        return;
    }
    k3i_team_split(step->n_rows, 1, run->part, run->n_parts, &from, &to);
    if (from == to)
        return;
    k3i_moe_ws ws = member_ws(&m->ws->moe, m->cfg, run, from, to - from);
    k3i_run alone = k3i_run_alone(run);
    moe_rows(m, &alone, &ws, layer, k3i_act_at(run, m->ws->x, from * H), m->ws->a + from * H,
             m->ws->b + from * H, to - from);
    run->weight_bytes += alone.weight_bytes;
}
