/* dspark_block.c: the block pass and the Markov loop, dspark.md 3.2, 3.3, 3.6, 3.7.
 *
 * Row 0 of a block is the anchor, the other rows are mask tokens; row k predicts the token at
 * anchor position + k + 1. All base logits come from one product with the target's head; only the
 * Markov correction is sequential. */
#include "dspark_parts.h"

#include "philox.h"

#include <math.h>
#include <string.h>

typedef struct {
    const k3i_run *run;
    void *x;
    const float *h;
    const k3i_bf16 *w;
    size_t n_row, H;
    float eps;
} norm_job;

static void norm_member(void *arg, size_t i, size_t n)
{
    const norm_job *j = arg;
    float *y = (void *)(j->run->scratch + i * j->run->scratch_bytes);
    size_t from, to;
    k3i_team_split(j->n_row, 1, i, n, &from, &to);
    for (size_t r = from; r < to; r++) {
        j->run->op->rmsnorm(y, j->h + r * j->H, j->w, j->H, j->eps, j->run->bf16);
        k3i_act_store(j->run, k3i_act_at(j->run, j->x, r * j->H), y, j->H);
    }
}

void k3i_dspark_norm_rows(const k3i_run *run, void *x, const float *h, const k3i_bf16 *w,
                          size_t n_row, size_t H, float eps)
{
    norm_job j = {.run = run, .x = x, .h = h, .w = w, .n_row = n_row, .H = H, .eps = eps};
    k3i_run_team(run, norm_member, &j, n_row * H * 4);
}

/* One group of sequences: R = n_seqs T rows. */
typedef struct {
    k3i_dspark *d;
    k3i_run *run;
    const k3i_pool *pool;
    const k3i_block_seq *seqs;
    size_t n_seqs, T, R;
    size_t first; /* of the workspace's sequences: not 0 where members take sequences apart */
} group;

static void embed_member(void *arg, size_t i, size_t n)
{
    const group *g = arg;
    const k3i_dspark *d = g->d;
    size_t H = d->cfg->hidden_size, from, to;
    k3i_team_split(g->R, 1, i, n, &from, &to);
    for (size_t r = from; r < to; r++) {
        const k3i_block_seq *q = &g->seqs[r / g->T];
        size_t pos = q->pos + r % g->T;
        int32_t id = r % g->T == 0 ? q->anchor : d->cfg->mask_token_id;
        g->run->op->from_bf16(d->ws->h + r * H, d->embed + (size_t)id * H, H);
        k3i_dspark_angles(d, r, pos < d->max_pos ? pos : d->max_pos - 1);
    }
}

/* h += a */
static void residual_member(void *arg, size_t i, size_t n)
{
    const group *g = arg;
    size_t H = g->d->cfg->hidden_size, from, to;
    k3i_team_split(g->R, 1, i, n, &from, &to);
    float *h = g->d->ws->h + from * H;
    g->run->op->add(h, h, g->d->ws->a + from * H, (to - from) * H, g->run->bf16);
}

static void add_residual(group *g)
{
    k3i_run_team(g->run, residual_member, g, g->R * g->d->cfg->hidden_size);
}

typedef struct {
    const group *g;
    size_t layer;
} row_job;

/* Norms and rotations of the block's own keys and queries. */
static void finish_rows(void *arg, size_t i, size_t n)
{
    const row_job *j = arg;
    const group *g = j->g;
    const k3i_dspark *d = g->d;
    const k3i_draft_config *c = d->cfg;
    size_t rot = k3i_dspark_rotated(c);
    float *tmp = (void *)(g->run->scratch + i * g->run->scratch_bytes);
    size_t head = c->is_mla ? c->qk_nope_head_dim + rot : c->head_dim;
    size_t from, to;
    k3i_team_split(g->R, 1, i, n, &from, &to);
    for (size_t r = from; r < to; r++) {
        const float *cs = d->ws->angles + r * rot;
        float *kv = d->ws->kv + r * d->row_width;
        (c->is_mla ? k3i_dspark_finish_latent : k3i_dspark_finish_keys)(d, g->run, j->layer, kv, cs,
                                                                        tmp);
        k3i_act_store(g->run, k3i_act_at(g->run, d->ws->kv_act, r * d->row_width), kv,
                      d->row_width); /* as context rows are stored */
        for (size_t h = 0; h < c->n_heads; h++) {
            float *q = d->ws->q + (r * c->n_heads + h) * head;
            if (!c->is_mla)
                g->run->op->rmsnorm(q, q, d->w->layers[j->layer].gqa.q_norm, head, c->rms_norm_eps,
                                    0);
            k3i_dspark_rotate(d, g->run->op, q + head - rot, cs, tmp);
        }
    }
}

/* ws->x -> ws->q (and ws->kv) of one layer. */
static void project(group *g, size_t layer)
{
    k3i_dspark *d = g->d;
    const k3i_draft_config *c = d->cfg;
    const k3i_draft_layer *w = &d->w->layers[layer];
    size_t H = c->hidden_size;
    k3i_dspark_project_kv(d, g->run, layer, g->R);
    if (c->is_mla) {
        k3i_item qa = {.kind = K3I_LINEAR,
                       .x = d->ws->x,
                       .w = w->mla.q_a_proj,
                       .n_out = c->q_lora_rank,
                       .k = H,
                       .y = d->ws->qa};
        k3i_linear(g->run, g->R, &qa, 1);
        k3i_dspark_norm_rows(g->run, d->ws->qa_act, d->ws->qa, w->mla.q_a_layernorm, g->R,
                             c->q_lora_rank, c->rms_norm_eps);
        k3i_item qb = {.kind = K3I_LINEAR,
                       .x = d->ws->qa_act,
                       .w = w->mla.q_b_proj,
                       .n_out = c->n_heads * (c->qk_nope_head_dim + c->qk_rope_head_dim),
                       .k = c->q_lora_rank,
                       .y = d->ws->q};
        k3i_linear(g->run, g->R, &qb, 1);
    } else {
        k3i_item q = {.kind = K3I_LINEAR,
                      .x = d->ws->x,
                      .w = w->gqa.q_proj,
                      .n_out = c->n_heads * c->head_dim,
                      .k = H,
                      .y = d->ws->q};
        k3i_linear(g->run, g->R, &q, 1);
    }
    row_job j = {.g = g, .layer = layer};
    k3i_run_team(g->run, finish_rows, &j, g->R * (d->row_width + c->n_heads) * 8);
}

/* Of the row: the input of a layer's attention. */
static void layer_in(group *g, size_t layer)
{
    k3i_dspark *d = g->d;
    k3i_dspark_norm_rows(g->run, d->ws->x, d->ws->h, d->w->layers[layer].input_layernorm, g->R,
                         d->cfg->hidden_size, d->cfg->rms_norm_eps);
    project(g, layer);
}

/* Of the row: output projection and MLP. */
static void layer_out(group *g, size_t layer)
{
    k3i_dspark *d = g->d;
    const k3i_draft_config *c = d->cfg;
    const k3i_draft_layer *w = &d->w->layers[layer];
    size_t H = c->hidden_size, I = c->intermediate_size;
    k3i_item o = {.kind = K3I_LINEAR,
                  .x = d->ws->o,
                  .w = c->is_mla ? w->mla.o_proj : w->gqa.o_proj,
                  .n_out = H,
                  .k = c->n_heads * (c->is_mla ? c->v_head_dim : c->head_dim),
                  .y = d->ws->a};
    k3i_linear(g->run, g->R, &o, 1);
    add_residual(g);
    k3i_dspark_norm_rows(g->run, d->ws->x, d->ws->h, w->post_attention_layernorm, g->R, H,
                         c->rms_norm_eps);
    k3i_item up = {.kind = K3I_GLU,
                   .x = d->ws->x,
                   .w = w->mlp.gate_proj,
                   .w_up = w->mlp.up_proj,
                   .n_out = I,
                   .k = H,
                   .h = d->ws->mlp};
    k3i_linear(g->run, g->R, &up, 1);
    k3i_item down = {.kind = K3I_LINEAR,
                     .x = d->ws->mlp,
                     .w = w->mlp.down_proj,
                     .n_out = H,
                     .k = I,
                     .y = d->ws->a};
    k3i_linear(g->run, g->R, &down, 1);
    add_residual(g);
}

/* What happens to a row between two attentions: the end of the layer before, the beginning of
 * `layer`, and at the two ends the embedding and the final norm. */
static void between(group *g, size_t layer)
{
    const k3i_dspark *d = g->d;
    if (layer == 0) {
        k3i_run_team(g->run, embed_member, g, g->R * d->cfg->hidden_size);
    } else {
        layer_out(g, layer - 1);
    }
    if (layer < d->cfg->n_layers) {
        layer_in(g, layer);
    } else {
        k3i_dspark_norm_rows(g->run, d->ws->x, d->ws->h, d->w->final_norm, g->R,
                             d->cfg->hidden_size, d->cfg->rms_norm_eps);
    }
}

static void between_member(void *arg, size_t i, size_t n)
{
    const row_job *j = arg;
    k3i_run own = k3i_run_as_member(j->g->run, i, n);
    group g = *j->g;
    g.run = &own;
    between(&g, j->layer);
}

static void block_rows(group *g)
{
    bool rows = k3i_run_by_rows(g->run, g->R);
    for (size_t layer = 0;; layer++) {
        row_job j = {.g = g, .layer = layer};
        if (rows) {
            k3i_team_run(g->run->team, between_member, &j);
        } else {
            between(g, layer);
        }
        if (layer == g->d->cfg->n_layers)
            return;
        k3i_dspark_attend(g->d, g->run, g->pool, layer, g->seqs, g->n_seqs, g->T);
    }
}

/* ---- choosing tokens ---------------------------------------------------------------------------
 */

typedef struct {
    const group *g;
    size_t k;       /* row of the block */
    bool biased;    /* ws->z holds the Markov biases */
    float *logits;  /* of the group: [n_seqs, T, V] or NULL */
    size_t n_parts; /* of the vocabulary: set by the first member */
} choice;

/* Most weights of the Markov bias that are worth no team step of their own, in bytes: as long as
 * they stay in the members' own caches, nobody is held up. */
enum { BIAS_BYTES = 1 << 20 };

/* The sampled token among z [V] from..to-1, `best` with the largest z among them; its score. */
static double draw(const k3i_block_seq *q, size_t pos, const float *z, size_t from, size_t to,
                   size_t *best)
{
    k3i_gumbel noise;
    k3i_gumbel_init(&noise, q->seed, (int32_t)pos, K3_STREAM_TARGET);
    double score = (double)z[*best] + k3i_gumbel_at(&noise, (int32_t)*best);
    for (size_t v = from; v < to; v++) {
        /* Noise is bounded, so most entries cannot win and draw none. */
        if (!((double)z[v] + K3I_GUMBEL_MAX >= score))
            continue;
        double x = (double)z[v] + k3i_gumbel_at(&noise, (int32_t)v);
        if (x > score || (x >= score && v < *best)) {
            score = x;
            *best = v;
        }
    }
    return score;
}

/* The best of tokens from..to-1 for sequence s: z = (U + Markov bias) / temperature, ties to the
 * lowest id; NaN never wins. */
static k3i_dspark_best best_of(const choice *ch, size_t s, size_t from, size_t to)
{
    const group *g = ch->g;
    const k3i_dspark *d = g->d;
    const k3i_block_seq *q = &g->seqs[s];
    size_t V = d->cfg->vocab_size, at = g->first + s, best = 0;
    float *z = d->ws->z + at * V;
    g->run->op->add(z + from, z + from, d->ws->U + (at * g->T + ch->k) * V + from, to - from, 0);
    if (q->temperature > 0) {
        for (size_t v = from; v < to; v++)
            z[v] /= q->temperature;
    }
    if (ch->logits != NULL)
        memcpy(ch->logits + (s * g->T + ch->k) * V + from, z + from, (to - from) * sizeof *z);
    g->run->op->argmax(&best, z + from, to - from);
    if (best == to - from)
        return (k3i_dspark_best){.id = -1};
    best += from;
    double score = (double)z[best];
    if (q->temperature > 0)
        score = draw(q, q->pos + ch->k + 1, z, from, to, &best);
    return (k3i_dspark_best){.score = score, .id = (int32_t)best};
}

static void choose_member(void *arg, size_t i, size_t n)
{
    choice *ch = arg;
    const group *g = ch->g;
    const k3i_dspark *d = g->d;
    size_t V = d->cfg->vocab_size, E = d->cfg->markov_rank, from, to;
    k3i_team_split(V, K3I_GRAIN, i, n, &from, &to);
    if (!ch->biased)
        k3i_gemm(g->run, d->ws->z + g->first * V + from, V,
                 k3i_act_at(g->run, d->ws->e, g->first * E), E, d->w->markov_w2 + from * E,
                 g->n_seqs, to - from, E);
    for (size_t s = 0; s < g->n_seqs; s++)
        d->ws->best[i * d->block_rows + g->first + s] = best_of(ch, s, from, to);
    if (i == 0)
        ch->n_parts = n;
}

/* ws->token of every sequence for row k, from ws->e. */
static void choose(const group *g, size_t k, float *logits)
{
    k3i_dspark *d = g->d;
    size_t V = d->cfg->vocab_size, E = d->cfg->markov_rank, first = g->first;
    choice ch = {.g = g, .k = k, .logits = logits};
    ch.biased = g->run->ranks.size > 1 || V * E * sizeof(k3i_bf16) > BIAS_BYTES;
    if (ch.biased) {
        const k3i_item bias = {.kind = K3I_LINEAR_F32,
                               .x = k3i_act_at(g->run, d->ws->e, first * E),
                               .w = d->w->markov_w2,
                               .n_out = V,
                               .k = E,
                               .y = d->ws->z + first * V};
        k3i_linear(g->run, g->n_seqs, &bias, 1);
    } else {
        g->run->weight_bytes += V * E * sizeof(k3i_bf16);
    }
    k3i_run_team(g->run, choose_member, &ch, g->n_seqs * V * (ch.biased ? 4 : E + 4));
    for (size_t s = first; s < first + g->n_seqs; s++) {
        k3i_dspark_best top = d->ws->best[s];
        for (size_t i = 1; i < ch.n_parts; i++) {
            k3i_dspark_best b = d->ws->best[i * d->block_rows + s];
            if (b.id >= 0 && (top.id < 0 || b.score > top.score))
                top = b;
        }
        d->ws->token[s] = top.id < 0 ? 0 : top.id;
    }
}

/* conf = sigma(w . [g ; e] + b) for row k of every sequence (dspark.md 3.7). */
static void confidences(const group *g, size_t k, float *out)
{
    const k3i_dspark *d = g->d;
    const k3i_draft_config *c = d->cfg;
    const k3i_run *run = g->run;
    size_t H = c->hidden_size, E = c->confidence_with_markov ? c->markov_rank : 0, width = H + E;
    for (size_t s = 0; s < g->n_seqs; s++) {
        size_t at = g->first + s;
        memcpy(k3i_act_at(run, d->ws->conf_in, at * width),
               k3i_act_at(run, d->ws->x, (at * g->T + k) * H), H * run->act_bytes);
        memcpy(k3i_act_at(run, d->ws->conf_in, at * width + H),
               k3i_act_at(run, d->ws->e, at * c->markov_rank), E * run->act_bytes);
    }
    k3i_item item = {.kind = K3I_LINEAR_F32,
                     .x = k3i_act_at(run, d->ws->conf_in, g->first * width),
                     .w = d->w->confidence_proj,
                     .n_out = 1,
                     .k = width,
                     .y = d->ws->conf + g->first};
    k3i_linear(g->run, g->n_seqs, &item, 1);
    for (size_t s = 0; s < g->n_seqs; s++) {
        float z = d->ws->conf[g->first + s] + k3i_from_bf16(d->w->confidence_bias[0]);
        run->op->sigmoid(&out[s * g->T + k], &z, 1, 0);
    }
}

/* ws->x holds the final norm's output [R, H]; writes ids, and confidence and logits where given. */
static void markov_loop(const group *g, int32_t *ids, float *confidence, float *logits)
{
    k3i_dspark *d = g->d;
    const k3i_draft_config *c = d->cfg;
    size_t V = c->vocab_size, E = c->markov_rank, first = g->first;
    k3i_item head = {.kind = K3I_LINEAR_F32,
                     .x = k3i_act_at(g->run, d->ws->x, first * g->T * c->hidden_size),
                     .w = d->lm_head,
                     .n_out = V,
                     .k = c->hidden_size,
                     .y = d->ws->U + first * g->T * V};
    k3i_linear(g->run, g->n_seqs * g->T, &head, 1);
    for (size_t s = 0; s < g->n_seqs; s++)
        d->ws->token[first + s] = g->seqs[s].anchor;
    for (size_t k = 0; k < g->T; k++) {
        for (size_t s = first; s < first + g->n_seqs; s++) {
            float *tmp = (void *)g->run->scratch;
            g->run->op->from_bf16(tmp, d->w->markov_w1 + (size_t)d->ws->token[s] * E, E);
            k3i_act_store(g->run, k3i_act_at(g->run, d->ws->e, s * E), tmp, E);
        }
        if (confidence != NULL)
            confidences(g, k, confidence);
        choose(g, k, logits);
        for (size_t s = 0; s < g->n_seqs; s++)
            ids[s * g->T + k] = d->ws->token[first + s];
    }
}

typedef struct {
    const group *g;
    int32_t *ids;
    float *confidence, *logits;
} markov_job;

/* The whole loop for a member's sequences, which need nothing of each other. */
static void markov_member(void *arg, size_t i, size_t n)
{
    const markov_job *j = arg;
    size_t T = j->g->T, V = j->g->d->cfg->vocab_size, from, to;
    k3i_team_split(j->g->n_seqs, 1, i, n, &from, &to);
    if (from == to)
        return;
    k3i_run own = k3i_run_as_member(j->g->run, i, n), alone = k3i_run_alone(&own);
    group g = *j->g;
    g.run = &alone;
    g.seqs += from;
    g.first = from;
    g.n_seqs = to - from;
    markov_loop(&g, j->ids + from * T, j->confidence ? j->confidence + from * T : NULL,
                j->logits ? j->logits + from * T * V : NULL);
}

static void choose_tokens(const group *g, int32_t *ids, float *confidence, float *logits)
{
    markov_job j = {.g = g, .ids = ids, .confidence = confidence, .logits = logits};
    if (k3i_run_by_rows(g->run, g->n_seqs)) {
        k3i_team_run(g->run->team, markov_member, &j);
    } else {
        markov_loop(g, ids, confidence, logits);
    }
}

void k3i_dspark_block(k3i_dspark *d, k3i_run *run, const k3i_pool *pool, const k3i_block *b)
{
    const k3i_draft_config *c = d->cfg;
    size_t T = b->n_draft, step = d->block_rows / T;
    for (size_t s = 0; s < b->n_seqs; s += step) {
        group g = {.d = d, .run = run, .pool = pool, .seqs = b->seqs + s, .T = T};
        g.n_seqs = b->n_seqs - s < step ? b->n_seqs - s : step;
        g.R = g.n_seqs * T;
        block_rows(&g);
        choose_tokens(&g, b->ids + s * T, b->confidence ? b->confidence + s * T : NULL,
                      b->logits ? b->logits + s * T * c->vocab_size : NULL);
    }
}
