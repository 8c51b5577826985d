/* text.c: the order of a step, text-model 4.3 and 4.4, and the memory plan.
 *
 * There is no residual stream. bank[0..nb-1] are the frozen block sums, bank[nb] is the running
 * prefix; a sub-layer reads a softmax mixture of all of them. Between two sub-layers every row goes
 * through one stage: add the finished output to the prefix, mix, normalise, pack. At a block
 * boundary the prefix simply becomes a snapshot: nb grows by one, and the next output starts the
 * next bank.
 *
 * The team shares a step in one of two ways. By outputs, every product is a team step, and each
 * weight is read once; by rows, a member takes its rows from one token mixer to the next alone, so
 * that the team meets twice a layer, not a dozen times, and weights are read once a member. The
 * second is for models that live in a shared cache. */
#include "parts.h"

#include <math.h>
#include <string.h>

void *k3i_bump_take(k3i_bump *b, size_t n, size_t size)
{
    size_t bytes = (n * size + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN;
    void *p = b->base != NULL ? b->base + b->used : NULL;
    b->used += bytes;
    if (b->used > b->peak)
        b->peak = b->used;
    return p;
}

/* ---- stages between sub-layers -----------------------------------------------------------------
 */

typedef struct {
    const k3i_text *m;
    const k3i_run *run;
    const k3i_step *step;
    size_t layer;         /* whose input is made; L: the head's */
    size_t nb;            /* snapshots */
    bool attention;       /* the attention side of the layer, or the head */
    bool pending, has_b;  /* ws->a (+ ws->b) is an output that is not yet in the prefix */
    bool fresh;           /* ... and starts it */
    const float *wq;      /* AttnRes query */
    const k3i_bf16 *norm; /* the sub-layer's norm */
} stage;

static size_t stage_scratch(const k3i_config *cfg)
{
    size_t n_banks = (cfg->n_layers + cfg->attn_res_block_size - 1) / cfg->attn_res_block_size + 1;
    return n_banks * sizeof(float *) + K3I_ALIGN + 2 * cfg->hidden_size * sizeof(float);
}

static void add_output(const stage *s, size_t row)
{
    const k3i_ops *op = s->run->op;
    size_t H = s->m->cfg->hidden_size;
    float *P = s->m->ws->bank[s->nb] + row * H, *a = s->m->ws->a + row * H;
    if (s->has_b)
        op->add(a, a, s->m->ws->b + row * H, H, s->run->bf16);
    if (s->fresh) {
        memcpy(P, a, H * sizeof *P);
    } else {
        op->add(P, P, a, H, s->run->bf16);
    }
}

/* Saves x of a row if the layer just finished is tapped. */
static void tap(const stage *s, k3i_stream stream, size_t row, const float *x)
{
    const k3i_taps *taps = s->step->taps;
    size_t H = s->m->cfg->hidden_size;
    if (taps == NULL || taps->stream != stream || !s->attention || s->layer == 0)
        return;
    for (size_t i = 0; i < taps->n; i++) {
        if (taps->layer[i] == s->layer - 1)
            k3i_act_store(s->run, k3i_act_at(s->run, taps->out, (row * taps->n + i) * H), x, H);
    }
}

/* The head's input: every row is checked, those with logits are packed. */
static void head_input(const stage *s, size_t row, const float *x, float *y)
{
    const k3i_run *run = s->run;
    size_t H = s->m->cfg->hidden_size;
    int32_t at = s->m->ws->logit_of[row];
    int finite;
    run->op->all_finite(&finite, x, H);
    s->step->row_bad[row] = !finite;
    if (at < 0)
        return;
    run->op->rmsnorm(y, x, s->norm, H, s->m->cfg->rms_norm_eps, run->bf16);
    k3i_act_store(run, k3i_act_at(run, s->m->ws->x, (size_t)at * H), y, H);
}

static void stage_member(void *arg, size_t i, size_t n)
{
    const stage *s = arg;
    const k3i_run *run = s->run;
    const k3i_config *cfg = s->m->cfg;
    size_t H = cfg->hidden_size, from, to;
    char *scratch = run->scratch + i * run->scratch_bytes;
    float *x = (void *)scratch, *y = x + H;
    const float **src =
        (void *)(scratch + (2 * H * sizeof(float) + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN);
    k3i_team_split(s->step->n_rows, 1, i, n, &from, &to);
    for (size_t row = from; row < to; row++) {
        if (s->pending)
            add_output(s, row);
        for (size_t b = 0; b <= s->nb; b++)
            src[b] = s->m->ws->bank[b] + row * H;
        const float *mix = src[s->nb];
        tap(s, K3I_STREAM_PREFIX, row, mix);
        if (s->nb > 0) {
            run->op->attnres_mix(x, src, s->nb + 1, s->wq, H, cfg->rms_norm_eps, run->bf16);
            mix = x;
        }
        tap(s, K3I_STREAM_ATTN_RES, row, mix);
        if (s->layer == cfg->n_layers) {
            head_input(s, row, mix, y);
        } else {
            run->op->rmsnorm(y, mix, s->norm, H, cfg->rms_norm_eps, run->bf16);
            k3i_act_store(run, k3i_act_at(run, s->m->ws->x, row * H), y, H);
        }
    }
}

static void trace(const stage *s, const char *what, size_t layer)
{
    const k3i_step *step = s->step;
    size_t H = s->m->cfg->hidden_size;
    if (step->trace == NULL || !s->pending)
        return;
    step->trace(step->trace_user, what, layer, s->m->ws->a, step->n_rows, H);
    if (s->attention)
        step->trace(step->trace_user, "prefix", layer, s->m->ws->bank[s->nb], step->n_rows, H);
}

static void run_stage(stage *s)
{
    size_t n_src = s->nb + 1;
    k3i_run_team(s->run, stage_member, s, s->step->n_rows * s->m->cfg->hidden_size * (n_src + 4));
    trace(s, s->attention ? "ffn" : "attn", s->attention ? s->layer - 1 : s->layer);
}

/* ---- the step ----------------------------------------------------------------------------------
 */

static void embed_member(void *arg, size_t i, size_t n)
{
    const stage *s = arg;
    const k3i_step *step = s->step;
    size_t H = s->m->cfg->hidden_size, from, to;
    k3i_team_split(step->n_rows, 1, i, n, &from, &to);
    for (size_t row = from; row < to; row++) {
        float *P = s->m->ws->bank[0] + row * H;
        if (step->media != NULL && step->media[row] != NULL) {
            memcpy(P, step->media[row], H * sizeof *P);
        } else {
            s->run->op->from_bf16(P, s->m->w->embed_tokens + (size_t)step->token[row] * H, H);
        }
    }
}

static void dense_mlp(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    const k3i_mlp_weights *w = &m->w->layers[layer].mlp;
    size_t H = cfg->hidden_size, I = cfg->intermediate_size;
    const k3i_item up = {.kind = K3I_GLU,
                         .x = m->ws->x,
                         .w = w->gate_proj,
                         .w_up = w->up_proj,
                         .n_out = I,
                         .k = H,
                         .h = m->ws->h,
                         .beta = cfg->situ_beta,
                         .linear_beta = cfg->situ_linear_beta};
    k3i_linear(run, step->n_rows, &up, 1);
    const k3i_item down = {.x = m->ws->h, .w = w->down_proj, .n_out = H, .k = I, .y = m->ws->a};
    k3i_linear(run, step->n_rows, &down, 1);
}

/* Of the row: everything up to the projections of the token mixer. */
static void layer_in(k3i_text *m, k3i_run *run, stage *s, size_t layer)
{
    const k3i_layer_weights *w = &m->w->layers[layer];
    s->layer = layer;
    s->attention = true;
    s->fresh = false;
    s->wq = m->extra[layer].attn_wq;
    s->norm = w->input_layernorm;
    run_stage(s);
    if (layer % m->cfg->attn_res_block_size == 0) {
        s->nb++;
        s->fresh = true;
    }
    (w->is_kda ? k3i_kda_in : k3i_mla_in)(m, run, s->step, layer);
}

/* Across rows: the recurrence or the attention. */
static void layer_mix(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    (m->w->layers[layer].is_kda ? k3i_kda_mix : k3i_mla_mix)(m, run, step, layer);
}

/* Of the row again: output projection and FFN. */
static void layer_out(k3i_text *m, k3i_run *run, stage *s, size_t layer)
{
    const k3i_layer_weights *w = &m->w->layers[layer];
    (w->is_kda ? k3i_kda_out : k3i_mla_out)(m, run, s->step, layer);
    s->attention = false;
    s->pending = true;
    s->has_b = false;
    s->wq = m->extra[layer].mlp_wq;
    s->norm = w->post_attention_layernorm;
    run_stage(s);
    if (w->is_moe) {
        k3i_moe_forward(m, run, s->step, layer);
    } else {
        dense_mlp(m, run, s->step, layer);
    }
    s->has_b = w->is_moe;
}

static void by_outputs(k3i_text *m, stage *s, k3i_run *run)
{
    for (size_t layer = 0; layer < m->cfg->n_layers; layer++) {
        layer_in(m, run, s, layer);
        layer_mix(m, run, s->step, layer);
        layer_out(m, run, s, layer);
    }
}

typedef struct {
    k3i_text *m;
    k3i_run *run;
    stage before, after; /* of the rows; the same for every member */
    size_t layer;
} rows_job;

/* The end of the layer before and the beginning of `layer`, where there are such. */
static void rows_member(void *arg, size_t i, size_t n)
{
    rows_job *j = arg;
    k3i_run own = k3i_run_as_member(j->run, i, n);
    stage s = j->before;
    s.run = &own;
    if (j->layer > 0)
        layer_out(j->m, &own, &s, j->layer - 1);
    if (j->layer < j->m->cfg->n_layers)
        layer_in(j->m, &own, &s, j->layer);
    j->m->ws->streamed[i] += own.weight_bytes;
    if (i == 0)
        j->after = s;
}

/* All layers, for a member whose rows are whole sequences. */
static void apart_member(void *arg, size_t i, size_t n)
{
    rows_job *j = arg;
    k3i_run own = k3i_run_as_member(j->run, i, n);
    stage s = j->before;
    s.run = &own;
    for (size_t layer = 0; layer < j->m->cfg->n_layers; layer++) {
        layer_in(j->m, &own, &s, layer);
        layer_mix(j->m, &own, s.step, layer);
        layer_out(j->m, &own, &s, layer);
    }
    j->m->ws->streamed[i] = own.weight_bytes;
    if (i == 0)
        j->after = s;
}

/* Whether every member's share of the rows begins with a sequence. */
static bool sequences_are_whole(const k3i_step *step, size_t n)
{
    for (size_t i = 1, seq = 0; i < n; i++) {
        size_t from, to;
        k3i_team_split(step->n_rows, 1, i, n, &from, &to);
        while (seq < step->n_seqs && step->seqs[seq].from < from)
            seq++;
        if (seq == step->n_seqs || step->seqs[seq].from != from)
            return false;
    }
    return true;
}

/* Members meet twice a layer, where rows see each other, or not at all. */
static void by_rows(k3i_text *m, stage *s, k3i_run *run)
{
    rows_job j = {.m = m, .run = run, .before = *s};
    size_t L = m->cfg->n_layers;
    memset(m->ws->streamed, 0, run->n_members * sizeof *m->ws->streamed);
    if (sequences_are_whole(s->step, run->n_members)) {
        k3i_team_run(run->team, apart_member, &j);
    } else {
        for (j.layer = 0; j.layer <= L; j.layer++) {
            k3i_team_run(run->team, rows_member, &j);
            j.before = j.after;
            if (j.layer < L)
                layer_mix(m, run, s->step, j.layer);
        }
    }
    *s = j.after;
    s->run = run;
    for (size_t i = 0; i < run->n_members; i++)
        run->weight_bytes += m->ws->streamed[i];
}

typedef struct {
    k3i_run *run;
    const k3i_item *head;
    size_t n_row;
} head_job;

static void head_member(void *arg, size_t i, size_t n)
{
    const head_job *j = arg;
    k3i_run own = k3i_run_as_member(j->run, i, n);
    k3i_linear(&own, j->n_row, j->head, 1);
}

static void head(k3i_text *m, k3i_run *run, const k3i_step *step, bool rows)
{
    const k3i_item item = {.kind = K3I_LINEAR_F32,
                           .x = m->ws->x,
                           .w = m->w->lm_head,
                           .n_out = m->cfg->vocab_size,
                           .k = m->cfg->hidden_size,
                           .y = step->logits,
                           .y_stride = step->logits_stride};
    if (rows && step->n_logits > 1) {
        head_job j = {.run = run, .head = &item, .n_row = step->n_logits};
        k3i_team_run(run->team, head_member, &j);
    } else {
        k3i_linear(run, step->n_logits, &item, 1);
    }
}

/* ---- preparation -------------------------------------------------------------------------------
 */

/* w = n * q in f32 (text-model 4.4). NULL if memory is out. */
static float *fold(k3i_arena *arena, const k3i_bf16 *norm, const k3i_bf16 *query, size_t H)
{
    float *w = k3i_arena_new(arena, float, H);
    for (size_t c = 0; w != NULL && c < H; c++)
        w[c] = k3i_from_bf16(norm[c]) * k3i_from_bf16(query[c]);
    return w;
}

/* [n, 3, taps, d] from three [n d, taps]: the taps of one head lie together, channels fastest. */
static float *conv_taps(k3i_arena *arena, const k3i_kda_weights *w, const k3i_config *cfg)
{
    size_t n = cfg->kda_heads, d = cfg->kda_head_dim, taps = cfg->conv_taps;
    const float *from[3] = {w->q_conv, w->k_conv, w->v_conv};
    float *conv = k3i_arena_new(arena, float, 3 * n * d * taps);
    for (size_t x = 0; conv != NULL && x < 3; x++) {
        for (size_t c = 0; c < n * d; c++) {
            for (size_t t = 0; t < taps; t++)
                conv[((c / d * 3 + x) * taps + t) * d + c % d] = from[x][c * taps + t];
        }
    }
    return conv;
}

static bool prepare_layers(k3i_text *m)
{
    const k3i_config *cfg = m->cfg;
    size_t H = cfg->hidden_size, n_kda = 0, n_mla = 0;
    m->extra = k3i_arena_new(&m->arena, k3i_layer_extra, cfg->n_layers);
    m->output_wq = fold(&m->arena, m->w->output_res_norm, m->w->output_res_proj, H);
    if (m->extra == NULL || m->output_wq == NULL)
        return false;
    for (size_t i = 0; i < cfg->n_layers; i++) {
        const k3i_layer_weights *w = &m->w->layers[i];
        k3i_layer_extra *x = &m->extra[i];
        *x = (k3i_layer_extra){.attn_wq = fold(&m->arena, w->attn_res_norm, w->attn_res_proj, H),
                               .mlp_wq = fold(&m->arena, w->mlp_res_norm, w->mlp_res_proj, H),
                               .kind_index = w->is_kda ? n_kda++ : n_mla++};
        if (x->attn_wq == NULL || x->mlp_wq == NULL)
            return false;
        if (!w->is_kda)
            continue;
        float *exp_a = k3i_arena_new(&m->arena, float, cfg->kda_heads);
        x->conv = conv_taps(&m->arena, &w->kda, cfg);
        x->exp_a = exp_a;
        if (exp_a == NULL || x->conv == NULL)
            return false;
        for (size_t h = 0; h < cfg->kda_heads; h++)
            exp_a[h] = expf(w->kda.a_log[h]);
    }
    return true;
}

/* Lays the workspace out, for each step anew: what few rows need lies close together. Laid out for
 * the most rows, arrays would begin at multiples of a large power of two, and the caches would find
 * room for a few of them only. By outputs, the four kinds of sub-layer are never alive together and
 * share their place; by rows, members are in different ones. */
static void take_workspace(k3i_text_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T,
                           const k3i_run *run)
{
    size_t act = run->act_bytes;
    size_t H = cfg->hidden_size;
    size_t n_banks = (cfg->n_layers + cfg->attn_res_block_size - 1) / cfg->attn_res_block_size + 1;
    ws->bank = k3i_bump_take(b, n_banks, sizeof(float *));
    for (size_t i = 0; i < n_banks; i++) {
        float *bank = k3i_bump_take(b, T * H, sizeof(float));
        if (ws->bank != NULL)
            ws->bank[i] = bank;
    }
    ws->x = k3i_bump_take(b, T * H, act);
    ws->a = k3i_bump_take(b, T * H, sizeof(float));
    ws->b = k3i_bump_take(b, T * H, sizeof(float));
    ws->logit_of = k3i_bump_take(b, T, sizeof(int32_t));
    ws->streamed = k3i_bump_take(b, run->n_members, sizeof *ws->streamed);
    size_t shared = b->used;
    if (cfg->n_kda_layers > 0)
        k3i_kda_ws_take(&ws->kda, b, cfg, T, act);
    b->used = run->rows_pay ? b->used : shared;
    if (cfg->n_mla_layers > 0)
        k3i_mla_ws_take(&ws->mla, b, cfg, T, act);
    b->used = run->rows_pay ? b->used : shared;
    if (cfg->n_moe_layers > 0)
        k3i_moe_ws_take(&ws->moe, b, cfg, T, act, run->n_members);
    b->used = run->rows_pay ? b->used : shared;
    if (cfg->n_moe_layers < cfg->n_layers)
        ws->h = k3i_bump_take(b, T * cfg->intermediate_size, act);
    b->used = b->peak;
}

void k3i_text_forward(k3i_text *m, k3i_run *run, const k3i_step *step)
{
    const k3i_config *cfg = m->cfg;
    stage s = {.m = m, .run = run, .step = step};
    bool rows = k3i_run_by_rows(run, step->n_rows) && step->trace == NULL;
    k3i_bump b = {.base = m->block, .used = run->n_members * run->scratch_bytes};
    take_workspace(m->ws, &b, cfg, step->n_rows, run);
    for (size_t row = 0; row < step->n_rows; row++)
        m->ws->logit_of[row] = -1;
    for (size_t i = 0; i < step->n_logits; i++)
        m->ws->logit_of[step->logit_row[i]] = (int32_t)i;
    k3i_run_team(run, embed_member, &s, step->n_rows * cfg->hidden_size);
    (rows ? by_rows : by_outputs)(m, &s, run);
    s.layer = cfg->n_layers;
    s.attention = true;
    s.fresh = false;
    s.wq = m->output_wq;
    s.norm = m->w->norm;
    run_stage(&s);
    head(m, run, step, rows);
}

static size_t scratch_bytes(const k3i_config *cfg, size_t min)
{
    const size_t wants[] = {min,
                            k3i_linear_scratch(),
                            stage_scratch(cfg),
                            k3i_kda_scratch(cfg),
                            k3i_mla_scratch(cfg),
                            k3i_moe_scratch(cfg)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++)
        most = wants[i] > most ? wants[i] : most;
    return (most + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN;
}

k3_status k3i_text_init(k3i_text *m, const k3i_config *cfg, const k3i_text_weights *w, k3i_run *run,
                        size_t max_rows, size_t max_spec, size_t min_scratch, k3i_err *err)
{
    *m = (k3i_text){.cfg = cfg, .w = w, .max_rows = max_rows};
    k3i_arena_init(&m->arena, SIZE_MAX / 2);
    k3i_kda_layout_init(&m->kda, cfg, run->act_bytes, max_spec);
    run->scratch_bytes = scratch_bytes(cfg, min_scratch);
    k3i_text_ws count = {0};
    k3i_bump b = {0};
    take_workspace(&count, &b, cfg, max_rows, run);
    (void)k3i_bump_take(&b, run->n_members, run->scratch_bytes);
    m->ws = k3i_arena_new(&m->arena, k3i_text_ws, 1);
    m->block = k3i_alloc(b.peak);
    if (m->ws == NULL || m->block == NULL || !prepare_layers(m)) {
        k3i_text_done(m);
        return k3i_fail(err, K3_E_NOMEM,
                        "no memory for a workspace of %zu bytes (%zu tokens a step)", b.peak,
                        max_rows);
    }
    *m->ws = (k3i_text_ws){0};
    run->scratch = m->block;
    m->workspace_bytes = b.peak + m->arena.used;
    return K3_OK;
}

void k3i_text_done(k3i_text *m)
{
    if (m == NULL)
        return;
    k3i_arena_done(&m->arena);
    k3i_free(m->block);
    *m = (k3i_text){0};
}
