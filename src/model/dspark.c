/* dspark.c: set-up of the draft, rotary tables, and context rows. The block pass is dspark_block.c.
 * Formulas: dspark.md 2.4, 3.1, 3.4. */
#include "dspark_parts.h"

#include <math.h>
#include <string.h>

/* Context rows projected at a time: enough to reuse each weight row, small enough for a moderate
 * workspace. No result depends on it. */
#define CTX_ROWS 128

size_t k3i_dspark_row_width(const k3i_draft_config *cfg)
{
    return cfg->is_mla ? cfg->kv_lora_rank + cfg->qk_rope_head_dim
                       : 2 * cfg->n_kv_heads * cfg->head_dim;
}

size_t k3i_dspark_rotated(const k3i_draft_config *cfg)
{
    return cfg->is_mla ? cfg->qk_rope_head_dim : cfg->head_dim;
}

/* dspark.md 3.4: interpolation by `factor` below rotation `low`, none above `high`. */
static void yarn_range(const k3i_draft_config *cfg, size_t dim, double *low, double *high)
{
    double base = 2 * log(cfg->rope_theta);
    double two_pi = 2 * acos(-1.0);
    *low = floor((double)dim * log(cfg->yarn_original_max / (cfg->yarn_beta_fast * two_pi)) / base);
    *high = ceil((double)dim * log(cfg->yarn_original_max / (cfg->yarn_beta_slow * two_pi)) / base);
    *low = fmax(*low, 0);
    *high = fmin(*high, (double)dim - 1);
    if (*low == *high)
        *high += 0.001;
}

static double yarn_m(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static void init_rope(k3i_dspark *d)
{
    const k3i_draft_config *cfg = d->cfg;
    size_t dim = k3i_dspark_rotated(cfg);
    size_t dk = cfg->is_mla ? cfg->qk_nope_head_dim + dim : dim;
    double low = 0, high = 0, scale = 1 / sqrt((double)dk);
    if (cfg->has_yarn)
        yarn_range(cfg, dim, &low, &high);
    for (size_t i = 0; i < dim / 2; i++) {
        double f = pow(cfg->rope_theta, -2 * (double)i / (double)dim);
        d->freq[i] = f;
        if (cfg->has_yarn) {
            double r = fmin(fmax(((double)i - low) / (high - low), 0), 1);
            d->freq[i] = f * (1 - r) + f / cfg->yarn_factor * r;
        }
    }
    d->table_scale = 1;
    if (cfg->has_yarn && cfg->is_mla) {
        /* The tables carry the quotient, the softmax scale the square: never both. */
        double m = yarn_m(cfg->yarn_factor, cfg->yarn_mscale_all_dim);
        d->table_scale = yarn_m(cfg->yarn_factor, cfg->yarn_mscale) / m;
        scale *= m * m;
    } else if (cfg->has_yarn) {
        d->table_scale = cfg->yarn_attention_factor > 0 ? cfg->yarn_attention_factor
                                                        : yarn_m(cfg->yarn_factor, 1);
    }
    d->softmax_scale = (float)scale;
}

void k3i_dspark_angles(const k3i_dspark *d, size_t row, size_t pos)
{
    size_t n = k3i_dspark_rotated(d->cfg) / 2;
    float *cs = d->ws->angles + row * 2 * n;
    for (size_t i = 0; i < n; i++) {
        double angle = (double)pos * d->freq[i];
        cs[2 * i] = (float)(cos(angle) * d->table_scale);
        cs[2 * i + 1] = (float)(sin(angle) * d->table_scale);
    }
}

void k3i_dspark_rotate(const k3i_dspark *d, const k3i_ops *op, float *x, const float *cs,
                       float *tmp)
{
    size_t n = k3i_dspark_rotated(d->cfg) / 2;
    if (d->cfg->rope_interleaved) {
        op->rope(x, x, cs, n, 0);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        tmp[2 * i] = x[i];
        tmp[2 * i + 1] = x[i + n];
    }
    op->rope(tmp, tmp, cs, n, 0);
    for (size_t i = 0; i < n; i++) {
        x[i] = tmp[2 * i];
        x[i + n] = tmp[2 * i + 1];
    }
}

void *k3i_dspark_row_at(const k3i_dspark *d, const k3i_run *run, const k3i_pool *pool, size_t layer,
                        int32_t block, size_t pos)
{
    size_t bytes = d->row_width * run->act_bytes;
    return pool->base + k3i_page_row(pool, d->first_layer + layer, block, pos, bytes);
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t k3i_dspark_scratch(const k3i_draft_config *c, size_t max_draft)
{
    /* Attention, a row of the widest norm, a Markov embedding, channels that are rotated: never at
     * the same time. */
    size_t n = k3i_dspark_attn_floats(c, max_draft);
    n = max_size(n, max_size(c->hidden_size, c->q_lora_rank));
    n = max_size(n, max_size(c->markov_rank, k3i_dspark_rotated(c)));
    return n * sizeof(float);
}

/* Lays the workspace out, or only counts it (b->base NULL). */
static void take(k3i_dspark *d, const k3i_run *run, k3i_bump *b)
{
    const k3i_draft_config *c = d->cfg;
    k3i_dspark_ws *ws = d->ws;
    size_t H = c->hidden_size, act = run->act_bytes, R = d->block_rows;
    size_t q_width = c->is_mla ? c->n_heads * (c->qk_nope_head_dim + c->qk_rope_head_dim)
                               : c->n_heads * c->head_dim;
    size_t o_width = c->n_heads * (c->is_mla ? c->v_head_dim : c->head_dim);
    size_t rows = max_size(d->ctx_rows, R);
    ws->x = k3i_bump_take(b, rows * H, act);
    ws->kv = k3i_bump_take(b, rows * d->row_width, sizeof(float));
    ws->kv_act = k3i_bump_take(b, R * d->row_width, act);
    ws->h = k3i_bump_take(b, rows * H, sizeof(float));
    ws->angles = k3i_bump_take(b, rows * k3i_dspark_rotated(c), sizeof(float));
    ws->taps = k3i_bump_take(b, c->has_tap_norms ? d->ctx_rows * c->n_taps * H : 0, act);
    ws->a = k3i_bump_take(b, R * H, sizeof(float));
    ws->qa = k3i_bump_take(b, R * c->q_lora_rank, sizeof(float));
    ws->qa_act = k3i_bump_take(b, R * c->q_lora_rank, act);
    ws->q = k3i_bump_take(b, R * q_width, sizeof(float));
    ws->o = k3i_bump_take(b, R * o_width, act);
    ws->mlp = k3i_bump_take(b, R * c->intermediate_size, act);
    ws->U = k3i_bump_take(b, R * c->vocab_size, sizeof(float));
    ws->z = k3i_bump_take(b, R * c->vocab_size, sizeof(float));
    ws->e = k3i_bump_take(b, R * c->markov_rank, act);
    ws->conf_in = k3i_bump_take(b, R * (H + c->markov_rank), act);
    ws->conf = k3i_bump_take(b, R, sizeof(float));
    ws->token = k3i_bump_take(b, R, sizeof *ws->token);
    ws->best = k3i_bump_take(b, run->n_members * R, sizeof *ws->best);
}

k3_status k3i_dspark_init(k3i_dspark *d, const k3i_draft_files *files,
                          const k3i_text_weights *target, const k3i_run *run, size_t first_layer,
                          size_t max_draft, size_t max_pos, k3i_err *err)
{
    *d = (k3i_dspark){.cfg = &files->config,
                      .w = &files->weights,
                      .embed = target->embed_tokens,
                      .lm_head = target->lm_head,
                      .row_width = k3i_dspark_row_width(&files->config),
                      .first_layer = first_layer,
                      .max_draft = max_draft,
                      .max_pos = max_pos,
                      .ctx_rows = CTX_ROWS,
                      .block_rows = K3I_DSPARK_ROWS / max_draft * max_draft};
    k3i_arena_init(&d->arena, (size_t)1 << 20);
    d->ws = k3i_arena_new(&d->arena, k3i_dspark_ws, 1);
    d->freq = k3i_arena_new(&d->arena, double, k3i_dspark_rotated(d->cfg) / 2);
    if (d->ws == NULL || d->freq == NULL)
        goto nomem;
    k3i_bump count = {0};
    take(d, run, &count);
    d->workspace_bytes = count.peak;
    d->block = k3i_alloc(d->workspace_bytes);
    if (d->block == NULL)
        goto nomem;
    k3i_bump real = {.base = d->block};
    take(d, run, &real);
    init_rope(d);
    return K3_OK;
nomem:
    k3i_dspark_done(d);
    return k3i_fail(err, K3_E_NOMEM, "no memory for the draft's workspace");
}

void k3i_dspark_done(k3i_dspark *d)
{
    if (d == NULL)
        return;
    k3i_free(d->block);
    k3i_arena_done(&d->arena);
    *d = (k3i_dspark){0};
}

/* ---- context rows ------------------------------------------------------------------------------
 */

/* Some of the rows: [n_rows] in all members of it. */
typedef struct {
    k3i_dspark *d;
    k3i_run *run;
    const k3i_pool *pool;
    const void *taps;            /* acts [n_rows, n_taps H] */
    const k3i_context_row *rows; /* [n_rows] */
    size_t n_rows;
    size_t layer;
} tile;

/* Norm and rotation of one MLA row in f32, rounded once when it is stored. */
void k3i_dspark_finish_latent(const k3i_dspark *d, const k3i_run *run, size_t layer, float *kv,
                              const float *cs, float *tmp)
{
    const k3i_draft_config *c = d->cfg;
    run->op->rmsnorm(kv, kv, d->w->layers[layer].mla.kv_a_layernorm, c->kv_lora_rank,
                     c->rms_norm_eps, 0);
    k3i_dspark_rotate(d, run->op, kv + c->kv_lora_rank, cs, tmp);
}

/* The same for grouped-query keys: norm per head, then rotation; values stay. */
void k3i_dspark_finish_keys(const k3i_dspark *d, const k3i_run *run, size_t layer, float *kv,
                            const float *cs, float *tmp)
{
    const k3i_draft_config *c = d->cfg;
    for (size_t h = 0; h < c->n_kv_heads; h++) {
        float *k = kv + h * c->head_dim;
        run->op->rmsnorm(k, k, d->w->layers[layer].gqa.k_norm, c->head_dim, c->rms_norm_eps, 0);
        k3i_dspark_rotate(d, run->op, k, cs, tmp);
    }
}

static void store_rows(void *arg, size_t i, size_t n)
{
    const tile *t = arg;
    const k3i_dspark *d = t->d;
    float *tmp = (void *)(t->run->scratch + i * t->run->scratch_bytes);
    size_t from, to, rot = k3i_dspark_rotated(d->cfg);
    k3i_team_split(t->n_rows, 1, i, n, &from, &to);
    for (size_t r = from; r < to; r++) {
        const k3i_context_row *row = &t->rows[r];
        float *kv = d->ws->kv + r * d->row_width;
        (d->cfg->is_mla ? k3i_dspark_finish_latent : k3i_dspark_finish_keys)(
            d, t->run, t->layer, kv, d->ws->angles + r * rot, tmp);
        k3i_act_store(t->run, k3i_dspark_row_at(d, t->run, t->pool, t->layer, row->block, row->pos),
                      kv, d->row_width);
    }
}

/* Key and value projections of a layer for ws->x [n_row, H] into ws->kv. */
void k3i_dspark_project_kv(const k3i_dspark *d, k3i_run *run, size_t layer, size_t n_row)
{
    const k3i_draft_config *c = d->cfg;
    const k3i_draft_layer *w = &d->w->layers[layer];
    size_t H = c->hidden_size;
    if (c->is_mla) {
        k3i_item item = {.kind = K3I_LINEAR,
                         .x = d->ws->x,
                         .w = w->mla.kv_a_proj,
                         .n_out = d->row_width,
                         .k = H,
                         .y = d->ws->kv};
        k3i_linear(run, n_row, &item, 1);
        return;
    }
    size_t half = d->row_width / 2;
    k3i_item items[2] = {
        {.kind = K3I_LINEAR,
         .x = d->ws->x,
         .w = w->gqa.k_proj,
         .n_out = half,
         .k = H,
         .y = d->ws->kv,
         .y_stride = d->row_width},
        {.kind = K3I_LINEAR,
         .x = d->ws->x,
         .w = w->gqa.v_proj,
         .n_out = half,
         .k = H,
         .y = d->ws->kv + half,
         .y_stride = d->row_width},
    };
    k3i_linear(run, n_row, items, 2);
}

/* Angles of the rows, and their taps normed into ws->taps where the draft asks for it (fc_norm). */
static void begin_rows(void *arg, size_t i, size_t n)
{
    const tile *t = arg;
    const k3i_dspark *d = t->d;
    const k3i_run *run = t->run;
    const k3i_draft_config *c = d->cfg;
    size_t H = c->hidden_size, width = c->n_taps * H, from, to;
    k3i_team_split(t->n_rows, 1, i, n, &from, &to);
    for (size_t r = from; r < to; r++) {
        k3i_dspark_angles(d, r, t->rows[r].pos);
        float *x = d->ws->h + r * H; /* free until the projection */
        for (size_t k = 0; c->has_tap_norms && k < c->n_taps; k++) {
            k3i_act_load(run, x, k3i_act_at(run, t->taps, r * width + k * H), H);
            run->op->rmsnorm(x, x, d->w->tap_norm[k], H, c->rms_norm_eps, run->bf16);
            k3i_act_store(run, k3i_act_at(run, d->ws->taps, r * width + k * H), x, H);
        }
    }
}

/* Each row for itself, from its taps to its places in the pages. */
static void context_rows(tile *t)
{
    k3i_dspark *d = t->d;
    const k3i_draft_config *c = d->cfg;
    size_t H = c->hidden_size;
    k3i_run_team(t->run, begin_rows, t, t->n_rows * (c->has_tap_norms ? c->n_taps * H : H));
    k3i_item item = {.kind = K3I_LINEAR,
                     .x = c->has_tap_norms ? d->ws->taps : t->taps,
                     .w = d->w->context_proj,
                     .n_out = H,
                     .k = c->n_taps * H,
                     .y = d->ws->h};
    k3i_linear(t->run, t->n_rows, &item, 1);
    /* context_norm only: a layer's input_layernorm belongs to the block's own stream. */
    k3i_dspark_norm_rows(t->run, d->ws->x, d->ws->h, d->w->context_norm, t->n_rows, H,
                         c->rms_norm_eps);
    for (t->layer = 0; t->layer < c->n_layers; t->layer++) {
        k3i_dspark_project_kv(d, t->run, t->layer, t->n_rows);
        k3i_run_team(t->run, store_rows, t, t->n_rows * d->row_width * 8);
    }
}

static void context_member(void *arg, size_t i, size_t n)
{
    tile own = *(const tile *)arg;
    k3i_run run = k3i_run_as_member(own.run, i, n);
    own.run = &run;
    context_rows(&own);
}

void k3i_dspark_context(k3i_dspark *d, k3i_run *run, const k3i_pool *pool, const void *taps,
                        const k3i_context_row *rows, size_t n_rows)
{
    size_t width = d->cfg->n_taps * d->cfg->hidden_size;
    for (size_t at = 0; at < n_rows; at += d->ctx_rows) {
        tile t = {.d = d,
                  .run = run,
                  .pool = pool,
                  .taps = k3i_act_at(run, taps, at * width),
                  .rows = rows + at,
                  .n_rows = n_rows - at < d->ctx_rows ? n_rows - at : d->ctx_rows};
        if (k3i_run_by_rows(run, t.n_rows)) {
            k3i_team_run(run->team, context_member, &t);
        } else {
            context_rows(&t);
        }
    }
}
