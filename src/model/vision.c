/* vision.c: the tower over one batch. Between stages the team meets; within a stage each member takes tiles
 * of rows (or of queries) and carries them through everything that needs no other row, so that a tile's
 * activations stay in the cache while weights stream past.
 *
 * In memory between stages, as acts (bf16, or f32 in f32 mode): the residual [N, F] and q, k, v, each
 * [heads, N, E] so that the keys of a head are contiguous. The output of attention takes the place of q. */
#include "vision.h"

#include "vision_pass.h"

#include <math.h>
#include <string.h>

/* Rows of a tile at most, outputs of a product at a time, and queries of an attention task: none changes a
 * bit of the result. The first keeps [rows, G] acts of the real tower below 400 KB. */
enum { TILE = 64, OUTS = 384, QUERIES = 96 };

typedef struct {
    const k3i_vision *v;
    const k3i_vision_item *items;
    size_t n_items;
    size_t n_rows;      /* N */
    size_t n_tokens;    /* rows of the text model */
    size_t tile;        /* rows of a tile, small enough to give every member some */
    size_t act_bytes;   /* 2 or 4 */
    size_t *first_row;  /* [n_items + 1] */
    size_t *first_token; /* [n_items + 1] */
    size_t *first_task; /* [n_items + 1] query tiles */
    k3i_place *place;   /* [N] */
    float *angles;      /* [side, E / 4, 2] */
    char *x;            /* acts [N, F] */
    char *q, *k, *val;  /* acts [heads, N, E] */
    char *scratch;      /* [members, scratch_bytes] */
    size_t scratch_bytes;
    size_t layer;
} pass;

/* What a member works in; the parts that a stage uses overlap with nothing. */
typedef struct {
    float *x;      /* [TILE, F] residual */
    float *y;      /* [TILE, OUTS] outputs of a product */
    float *row;    /* [max(F, H, s s F)] */
    float *cs;     /* [TILE, E] rotation factors */
    char *a;       /* acts [TILE, max(F, A, 3 p p, s s F)]: input of a product */
    char *h;       /* acts [TILE, max(G, s s F)]: hidden layer */
    float *acc;    /* [QUERIES, E] */
    float *m, *l;  /* [QUERIES] */
    float *wide;   /* [TILE, max(H, E, OUTS)] */
} desk;

static size_t max2(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Takes `bytes` of the scratch, aligned; with base NULL it only counts. */
static void *take(char *base, size_t *used, size_t n, size_t size)
{
    char *p = base == NULL ? NULL : base + *used;
    *used += (n * size + K3I_ALIGN - 1) & ~(size_t)(K3I_ALIGN - 1);
    return p;
}

/* Lays a desk out at `base`; returns its bytes. Sizes are those of bound tensors, so they cannot overflow. */
static size_t desk_at(const k3i_vision_config *c, size_t act, char *base, desk *d)
{
    size_t F = c->hidden_size, H = c->text_hidden_size, E = c->head_dim;
    size_t merged = F * c->merge_size * c->merge_size, patch = 3 * c->patch_size * c->patch_size;
    size_t used = 0;
    d->x = take(base, &used, TILE * F, sizeof(float));
    d->y = take(base, &used, TILE * (size_t)OUTS, sizeof(float));
    d->row = take(base, &used, max2(merged, H), sizeof(float));
    d->cs = take(base, &used, TILE * E, sizeof(float));
    d->a = take(base, &used, TILE * max2(max2(merged, c->qkv_hidden_size), patch), act);
    d->h = take(base, &used, TILE * max2(c->intermediate_size, merged), act);
    d->acc = take(base, &used, QUERIES * E, sizeof(float));
    d->m = take(base, &used, QUERIES, sizeof(float));
    d->l = take(base, &used, QUERIES, sizeof(float));
    d->wide = take(base, &used, TILE * max2(max2(H, E), OUTS), sizeof(float));
    return used;
}

static desk member_desk(const pass *p, size_t i)
{
    desk d;
    desk_at(p->v->cfg, p->act_bytes, p->scratch + i * p->scratch_bytes, &d);
    return d;
}

/* ---- acts and products -------------------------------------------------------------------------- */

static void *act_at(const pass *p, char *acts, size_t i)
{
    return acts + i * p->act_bytes;
}

static void store(const pass *p, char *acts, size_t i, const float *src, size_t n)
{
    if (p->v->bf16)
        p->v->op->to_bf16(act_at(p, acts, i), src, n);
    else
        memcpy(act_at(p, acts, i), src, n * sizeof *src);
}

static void load(const pass *p, float *dst, char *acts, size_t i, size_t n)
{
    if (p->v->bf16)
        p->v->op->from_bf16(dst, act_at(p, acts, i), n);
    else
        memcpy(dst, act_at(p, acts, i), n * sizeof *dst);
}

/* y [n_row, n_out] = x w^T for outputs from, from + 1, ... of w [.., k], rounded in bf16 mode. */
static void product(const pass *p, float *y, char *x, k3i_weight w, size_t from, size_t n_row,
                    size_t n_out, size_t k)
{
    const k3i_ops *op = p->v->op;
    if (p->v->bf16) {
        op->gemm_bf16(y, n_out, (const k3i_bf16 *)(void *)x, k, w.bf16 + from * k, n_row, n_out, k);
        op->round_bf16(y, n_row * n_out);
    } else if (w.bf16 != NULL) {
        op->gemm_f32(y, n_out, (const float *)(void *)x, k, w.bf16 + from * k, n_row, n_out, k);
    } else {
        op->gemm_wf32(y, n_out, (const float *)(void *)x, k, w.f32 + from * k, n_row, n_out, k);
    }
}

/* acts h [n_row, n_out] = gelu(x w^T) */
static void hidden_layer(const pass *p, const desk *d, k3i_weight w, size_t n_row, size_t n_out,
                         size_t k, bool exact)
{
    const k3i_ops *op = p->v->op;
    for (size_t o = 0; o < n_out; o += OUTS) {
        size_t n = n_out - o < OUTS ? n_out - o : OUTS;
        product(p, d->y, d->a, w, o, n_row, n, k);
        if (exact)
            op->gelu_erf(d->y, d->y, n_row * n, p->v->bf16);
        else
            op->gelu_tanh(d->y, d->y, n_row * n, p->v->bf16);
        for (size_t r = 0; r < n_row; r++)
            store(p, d->h, r * n_out + o, d->y + r * n, n);
    }
}

/* d->x [n_row, F] += in w^T */
static void add_product(const pass *p, const desk *d, char *in, k3i_weight w, size_t n_row, size_t k)
{
    size_t F = p->v->cfg->hidden_size;
    for (size_t o = 0; o < F; o += OUTS) {
        size_t n = F - o < OUTS ? F - o : OUTS;
        product(p, d->y, in, w, o, n_row, n, k);
        for (size_t r = 0; r < n_row; r++) {
            float *x = d->x + r * F + o;
            p->v->op->add(x, x, d->y + r * n, n, p->v->bf16);
        }
    }
}

static void norm(const pass *p, float *y, const float *x, k3i_weight w, size_t n, float eps)
{
    int round = p->v->bf16 ? 2 : 0; /* once, behind the weight */
    if (w.bf16 != NULL)
        p->v->op->rmsnorm(y, x, w.bf16, n, eps, round);
    else
        p->v->op->rmsnorm_wf32(y, x, w.f32, n, eps, round);
}

/* acts d->a [n_row, F] = RMSNorm of d->x */
static void norm_rows(const pass *p, const desk *d, k3i_weight w, size_t n_row)
{
    size_t F = p->v->cfg->hidden_size;
    for (size_t r = 0; r < n_row; r++) {
        norm(p, d->row, d->x + r * F, w, F, p->v->rms_eps);
        store(p, d->a, r * F, d->row, F);
    }
}

/* ---- stages over tiles of rows ------------------------------------------------------------------ */

/* Patches to the residual: projection plus position. */
static void embed_tile(const pass *p, const desk *d, size_t from, size_t n_row)
{
    const k3i_vision_config *c = p->v->cfg;
    size_t F = c->hidden_size, P = 3 * c->patch_size * c->patch_size;
    for (size_t r = 0; r < n_row; r++) {
        const k3i_vision_item *item = &p->items[p->place[from + r].item];
        size_t at = from + r - p->first_row[p->place[from + r].item];
        store(p, d->a, r * P, item->pixels + at * P, P);
        k3i_vision_position(p->v, item, &p->place[from + r], d->x + r * F);
    }
    add_product(p, d, d->a, p->v->w.patch_proj, n_row, P);
    store(p, p->x, from * F, d->x, n_row * F);
}

/* Residual to q, k and v; q and k turned by their places. */
static void qkv_tile(const pass *p, const desk *d, size_t from, size_t n_row)
{
    const k3i_vision_config *c = p->v->cfg;
    const k3i_vision_block *b = &p->v->w.blocks[p->layer];
    size_t F = c->hidden_size, E = c->head_dim;
    load(p, d->x, p->x, from * F, n_row * F);
    norm_rows(p, d, b->norm0, n_row);
    for (size_t r = 0; r < n_row; r++)
        k3i_vision_turn(p->angles, E, &p->place[from + r], d->cs + r * E);
    char *const part[] = {p->q, p->k, p->val};
    size_t most = OUTS / E > 0 ? OUTS / E : 1; /* heads of a product */
    for (size_t i0 = 0, n; i0 < 3 * c->n_heads; i0 += n) {
        n = 3 * c->n_heads - i0 < most ? 3 * c->n_heads - i0 : most;
        product(p, d->wide, d->a, b->wqkv, i0 * E, n_row, n * E, F);
        for (size_t i = i0; i < i0 + n; i++) {
            size_t which = i / c->n_heads, head = i % c->n_heads;
            for (size_t r = 0; r < n_row; r++) {
                float *y = d->wide + (r * n + i - i0) * E;
                if (which < 2)
                    p->v->op->rope(y, y, d->cs + r * E, E / 2, p->v->bf16);
                store(p, part[which], (head * p->n_rows + from + r) * E, y, E);
            }
        }
    }
}

/* Attention output and MLP into the residual. */
static void mlp_tile(const pass *p, const desk *d, size_t from, size_t n_row)
{
    const k3i_vision_config *c = p->v->cfg;
    const k3i_vision_block *b = &p->v->w.blocks[p->layer];
    size_t F = c->hidden_size, E = c->head_dim, A = c->qkv_hidden_size;
    load(p, d->x, p->x, from * F, n_row * F);
    for (size_t r = 0; r < n_row; r++) {
        for (size_t head = 0; head < c->n_heads; head++)
            memcpy(act_at(p, d->a, r * A + head * E),
                   act_at(p, p->q, (head * p->n_rows + from + r) * E), E * p->act_bytes);
    }
    add_product(p, d, d->a, b->wo, n_row, A);
    norm_rows(p, d, b->norm1, n_row);
    hidden_layer(p, d, b->fc0, n_row, c->intermediate_size, F, false);
    add_product(p, d, d->h, b->fc1, n_row, c->intermediate_size);
    store(p, p->x, from * F, d->x, n_row * F);
}

typedef void (*tile_fn)(const pass *p, const desk *d, size_t from, size_t n_row);

typedef struct {
    const pass *p;
    tile_fn fn;
    size_t n; /* rows in all */
} tile_job;

static void tile_member(void *arg, size_t i, size_t n)
{
    const tile_job *job = arg;
    desk d = member_desk(job->p, i);
    size_t from, to;
    k3i_team_split(job->n, job->p->tile, i, n, &from, &to);
    for (; from < to; from += job->p->tile)
        job->fn(job->p, &d, from, to - from < job->p->tile ? to - from : job->p->tile);
}

static void run_tiles(const pass *p, tile_fn fn, size_t n)
{
    tile_job job = {p, fn, n};
    k3i_team_run(p->v->team, tile_member, &job);
}

/* ---- attention ---------------------------------------------------------------------------------- */

/* Queries of one head of one item against all its keys; the result replaces the queries. */
static void attend(const pass *p, const desk *d, size_t item, size_t head, size_t tile)
{
    const k3i_vision_config *c = p->v->cfg;
    const k3i_ops *op = p->v->op;
    size_t E = c->head_dim, first = p->first_row[item], n_key = p->first_row[item + 1] - first;
    size_t q0 = tile * QUERIES, n_q = n_key - q0 < QUERIES ? n_key - q0 : QUERIES;
    size_t keys = (head * p->n_rows + first) * E, queries = keys + q0 * E;
    float scale = 1.0f / sqrtf((float)E);
    void *q = act_at(p, p->q, queries), *k = act_at(p, p->k, keys), *v = act_at(p, p->val, keys);
    for (size_t r = 0; r < n_q; r++) {
        d->m[r] = -INFINITY;
        d->l[r] = 0;
    }
    memset(d->acc, 0, n_q * E * sizeof *d->acc);
    if (p->v->bf16)
        op->attn_segment_bf16(d->acc, d->m, d->l, q, E, k, E, v, E, NULL, n_q, n_key, NULL, E, E,
                              scale);
    else
        op->attn_segment(d->acc, d->m, d->l, q, E, k, E, v, E, NULL, n_q, n_key, NULL, E, E, scale);
    for (size_t r = 0; r < n_q; r++) {
        for (size_t i = 0; i < E; i++)
            d->acc[r * E + i] /= d->l[r];
    }
    store(p, p->q, queries, d->acc, n_q * E);
}

/* Tasks are dealt out in turn: neighbours cost the same, items may differ much. */
static void attend_member(void *arg, size_t i, size_t n)
{
    const pass *p = arg;
    desk d = member_desk(p, i);
    size_t turn = 0;
    for (size_t item = 0; item < p->n_items; item++) {
        size_t tiles = p->first_task[item + 1] - p->first_task[item];
        for (size_t head = 0; head < p->v->cfg->n_heads; head++) {
            for (size_t tile = 0; tile < tiles; tile++) {
                if (turn++ % n == i)
                    attend(p, &d, item, head, tile);
            }
        }
    }
}

/* ---- merge and projector ------------------------------------------------------------------------ */

static size_t item_of_token(const pass *p, size_t token)
{
    size_t item = 0;
    while (token >= p->first_token[item + 1])
        item++;
    return item;
}

/* Final norm of the s x s patches of a token, averaged over frames, side by side in d->row. */
static void merge_token(const pass *p, const desk *d, size_t token)
{
    const k3i_vision_config *c = p->v->cfg;
    size_t F = c->hidden_size, s = c->merge_size, item = item_of_token(p, token);
    const k3i_vision_item *it = &p->items[item];
    size_t at = token - p->first_token[item];
    size_t R = at / (it->w / s), Q = at % (it->w / s);
    for (size_t part = 0; part < s * s; part++) {
        float *sum = d->row + part * F;
        for (size_t t = 0; t < it->t; t++) {
            size_t y = R * s + part / s, x = Q * s + part % s;
            size_t row = p->first_row[item] + (t * it->h + y) * it->w + x;
            load(p, d->x, p->x, row * F, F);
            norm(p, t == 0 ? sum : d->x, d->x, p->v->w.final_layernorm, F, p->v->rms_eps);
            for (size_t i = 0; i < F && t > 0; i++)
                sum[i] += d->x[i];
        }
        for (size_t i = 0; i < F && it->t > 1; i++)
            sum[i] /= (float)it->t;
        if (p->v->bf16)
            p->v->op->round_bf16(sum, F);
    }
}

static void project_tile(const pass *p, const desk *d, size_t from, size_t n_row)
{
    const k3i_vision_config *c = p->v->cfg;
    size_t merged = c->hidden_size * c->merge_size * c->merge_size, H = c->text_hidden_size;
    for (size_t r = 0; r < n_row; r++) {
        merge_token(p, d, from + r);
        store(p, d->a, r * merged, d->row, merged);
    }
    hidden_layer(p, d, p->v->w.proj0, n_row, merged, merged, true);
    product(p, d->wide, d->h, p->v->w.proj2, 0, n_row, H, merged);
    for (size_t r = 0; r < n_row; r++) {
        size_t item = item_of_token(p, from + r);
        float *out = p->items[item].rows + (from + r - p->first_token[item]) * H;
        norm(p, out, d->wide + r * H, p->v->w.post_norm, H, c->projector_eps);
    }
}

/* ---- the batch ---------------------------------------------------------------------------------- */

k3_status k3i_vision_check(const k3i_vision_config *cfg, size_t t, size_t h, size_t w, k3i_err *err)
{
    size_t s = cfg->merge_size;
    if (t < 1 || t > cfg->pos_time)
        return k3i_fail(err, K3_E_ARG, "a grid of %zu frames: 1 to %zu are possible", t,
                        cfg->pos_time);
    if (h < 1 || w < 1 || h > K3I_VISION_MAX_SIDE || w > K3I_VISION_MAX_SIDE)
        return k3i_fail(err, K3_E_ARG, "a grid of %zu x %zu patches: sides are 1 to %d", h, w,
                        K3I_VISION_MAX_SIDE);
    if (h % s != 0 || w % s != 0)
        return k3i_fail(err, K3_E_ARG, "a grid of %zu x %zu patches: sides are multiples of %zu", h, w,
                        s);
    return K3_OK;
}

size_t k3i_vision_rows(const k3i_vision_config *cfg, size_t h, size_t w)
{
    return (h / cfg->merge_size) * (w / cfg->merge_size);
}

static void pass_done(pass *p)
{
    k3i_free(p->first_row);
    k3i_free(p->place);
    k3i_free(p->angles);
    k3i_free(p->x);
    k3i_free(p->q);
    k3i_free(p->scratch);
}

static void fill_places(pass *p, const k3i_vision_config *c)
{
    p->first_row[0] = p->first_token[0] = p->first_task[0] = 0;
    k3i_place *at = p->place;
    for (size_t i = 0; i < p->n_items; i++) {
        const k3i_vision_item *it = &p->items[i];
        size_t n = it->t * it->h * it->w;
        p->first_row[i + 1] = p->first_row[i] + n;
        p->first_token[i + 1] = p->first_token[i] + k3i_vision_rows(c, it->h, it->w);
        p->first_task[i + 1] = p->first_task[i] + (n + QUERIES - 1) / QUERIES;
        for (size_t r = 0; r < n; r++)
            *at++ = (k3i_place){(uint32_t)i, (uint16_t)(r / (it->h * it->w)),
                                (uint16_t)(r / it->w % it->h), (uint16_t)(r % it->w)};
    }
    p->n_tokens = p->first_token[p->n_items];
}

static k3_status pass_new(const k3i_vision *v, const k3i_vision_item *items, size_t n_items, pass *ret,
                          k3i_err *err)
{
    const k3i_vision_config *c = v->cfg;
    size_t members = k3i_team_size(v->team), side = 0, per_row, E = c->head_dim;
    pass p = {.v = v, .items = items, .n_items = n_items};
    p.act_bytes = v->bf16 ? sizeof(k3i_bf16) : sizeof(float);
    for (size_t i = 0; i < n_items; i++) {
        p.n_rows += items[i].t * items[i].h * items[i].w; /* at most pos_time * 512 * 512 each */
        side = max2(side, max2(items[i].h, items[i].w));
    }
    /* Four tiles a member even out the ends; 8 rows fill a kernel's tile. */
    size_t share = (p.n_rows / (members * 4) + 7) / 8 * 8;
    p.tile = share < 8 ? 8 : share > TILE ? TILE : share;
    desk d;
    p.scratch_bytes = desk_at(c, p.act_bytes, NULL, &d);
    p.first_row = k3i_alloc_array(n_items + 1, 3 * sizeof *p.first_row);
    p.place = k3i_alloc_array(p.n_rows, sizeof *p.place);
    p.angles = k3i_alloc_array(side * E / 2, sizeof *p.angles);
    p.scratch = k3i_alloc_array(members, p.scratch_bytes);
    per_row = c->hidden_size * p.act_bytes;
    p.x = k3i_alloc_array(p.n_rows, per_row);
    per_row = c->qkv_hidden_size * p.act_bytes;
    p.q = k3i_alloc_array(p.n_rows, 3 * per_row);
    if (p.first_row == NULL || p.place == NULL || p.angles == NULL || p.scratch == NULL ||
        p.x == NULL || p.q == NULL) {
        pass_done(&p);
        return k3i_fail(err, K3_E_NOMEM, "no memory to encode %zu patches", p.n_rows);
    }
    p.first_token = p.first_row + n_items + 1;
    p.first_task = p.first_token + n_items + 1;
    p.k = p.q + p.n_rows * per_row;
    p.val = p.k + p.n_rows * per_row;
    fill_places(&p, c);
    k3i_vision_angles(E, side, p.angles);
    *ret = p;
    return K3_OK;
}

k3_status k3i_vision_encode(const k3i_vision *v, const k3i_vision_item *items, size_t n_items,
                            k3i_progress_fn progress, void *user, k3i_err *err)
{
    pass p;
    k3_status st = n_items == 0 ? K3_OK : pass_new(v, items, n_items, &p, err);
    if (st != K3_OK || n_items == 0)
        return st;
    size_t layers = v->cfg->n_layers;
    run_tiles(&p, embed_tile, p.n_rows);
    for (p.layer = 0; p.layer < layers; p.layer++) {
        if (progress != NULL)
            progress(user, p.layer, layers + 1);
        run_tiles(&p, qkv_tile, p.n_rows);
        k3i_team_run(v->team, attend_member, &p);
        run_tiles(&p, mlp_tile, p.n_rows);
    }
    if (progress != NULL)
        progress(user, layers, layers + 1);
    run_tiles(&p, project_tile, p.n_tokens);
    if (progress != NULL)
        progress(user, layers + 1, layers + 1);
    pass_done(&p);
    return K3_OK;
}

/* ---- weights ------------------------------------------------------------------------------------ */

/* In bf16 mode an F32 tensor of n elements is rounded once, as the release's loader does. */
static k3_status to_mode(k3i_vision *v, k3i_weight *w, size_t n, k3i_err *err)
{
    if (!v->bf16 || w->bf16 != NULL)
        return K3_OK;
    k3i_bf16 *p = k3i_arena_new(&v->arena, k3i_bf16, n);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory to convert the vision tower to BF16");
    v->op->to_bf16(p, w->f32, n);
    *w = (k3i_weight){.bf16 = p};
    return K3_OK;
}

static k3_status convert_block(k3i_vision *v, k3i_vision_block *b, k3i_err *err)
{
    const k3i_vision_config *c = v->cfg;
    size_t F = c->hidden_size, A = c->qkv_hidden_size, G = c->intermediate_size;
    k3i_weight *const w[] = {&b->norm0, &b->norm1, &b->wqkv, &b->wo, &b->fc0, &b->fc1};
    const size_t n[] = {F, F, 3 * A * F, A * F, G * F, G * F};
    k3_status st = K3_OK;
    for (size_t i = 0; i < 6 && st == K3_OK; i++)
        st = to_mode(v, w[i], n[i], err);
    return st;
}

k3_status k3i_vision_init(k3i_vision *v, const k3i_vision_config *cfg, const k3i_vision_weights *w,
                          const k3i_ops *op, k3i_team *team, bool bf16, k3i_err *err)
{
    *v = (k3i_vision){.cfg = cfg, .w = *w, .op = op, .team = team, .bf16 = bf16,
                      .rms_eps = K3I_VISION_RMS_EPS};
    size_t F = cfg->hidden_size, merged = F * cfg->merge_size * cfg->merge_size;
    size_t patch = 3 * cfg->patch_size * cfg->patch_size, H = cfg->text_hidden_size;
    k3i_arena_init(&v->arena, SIZE_MAX / 2);
    k3i_vision_block *blocks = k3i_arena_new(&v->arena, k3i_vision_block, cfg->n_layers);
    if (blocks == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the vision tower");
    memcpy(blocks, w->blocks, cfg->n_layers * sizeof *blocks);
    v->w.blocks = blocks;
    k3i_weight *const list[] = {&v->w.patch_proj, &v->w.pos_emb, &v->w.final_layernorm,
                                &v->w.proj0,      &v->w.proj2,   &v->w.post_norm};
    const size_t n[] = {F * patch, cfg->pos_height * cfg->pos_width * F, F, merged * merged,
                        H * merged, H};
    k3_status st = K3_OK;
    for (size_t i = 0; i < 6 && st == K3_OK; i++)
        st = to_mode(v, list[i], n[i], err);
    for (size_t i = 0; i < cfg->n_layers && st == K3_OK; i++)
        st = convert_block(v, &blocks[i], err);
    if (st != K3_OK)
        k3i_vision_done(v);
    return st;
}

void k3i_vision_done(k3i_vision *v)
{
    if (v != NULL)
        k3i_arena_done(&v->arena);
}
