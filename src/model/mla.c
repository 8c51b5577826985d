/* mla.c: multi-head latent attention, text-model 4.6, in absorbed form on the paged latent cache.
 *
 * A task is a few rows of one sequence, or of several short ones, times a few heads: their queries
 * are taken into latent space (q_n Wk), run over their sequence's latents in blocks of
 * K3I_ATTN_KEYS counted from position 0, and the result is taken out again (Wv). Each (row, head)
 * is its own softmax in that fixed order, so neither the grouping into tasks nor the page size can
 * be seen in the result. Sources of a row: positions 0..its own. */
#include "parts.h"

#include <math.h>
#include <string.h>

size_t k3i_latent_width(const k3i_config *cfg)
{
    return cfg->kv_lora_rank + cfg->qk_rope_head_dim;
}

void k3i_mla_ws_take(k3i_mla_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act)
{
    size_t N = cfg->n_heads, C = cfg->kv_lora_rank, Dr = cfg->qk_rope_head_dim;
    ws->qa = k3i_bump_take(b, T * cfg->q_lora_rank, sizeof(float));
    ws->kv = k3i_bump_take(b, T * (C + Dr), sizeof(float));
    ws->gate = k3i_bump_take(b, T * N * cfg->v_head_dim, sizeof(float));
    ws->qa_act = k3i_bump_take(b, T * cfg->q_lora_rank, act);
    ws->q = k3i_bump_take(b, T * N * (cfg->qk_nope_head_dim + Dr), sizeof(float));
    ws->o = k3i_bump_take(b, T * N * cfg->v_head_dim, act);
}

/* Of one task (the fields of `task`), or a row of the normalisation. */
size_t k3i_mla_scratch(const k3i_config *cfg)
{
    size_t C = cfg->kv_lora_rank, W = k3i_latent_width(cfg), Q = K3I_MLA_QUERIES;
    size_t task = 2 * Q * W + Q * C + 3 * Q + Q * cfg->v_head_dim, row = cfg->q_lora_rank + C;
    return K3I_MLA_KEYS * sizeof(size_t) + (task > row ? task : row) * sizeof(float);
}

typedef struct {
    const k3i_text *m;
    const k3i_run *run;
    const k3i_step *step;
    const k3i_mla_weights *w;
    size_t index;    /* MLA layer number in the pool */
    size_t heads;    /* of a task */
    size_t n_groups; /* head groups */
} job;

/* Bytes from the pool's base to the latent row of a position. */
static size_t latent_offset(const job *j, const k3i_seq *seq, size_t pos)
{
    const k3i_pool *p = j->step->pool;
    size_t bytes = k3i_latent_width(j->m->cfg) * j->run->act_bytes;
    return k3i_page_row(p, j->index, seq->blocks[pos / p->block_tokens], pos, bytes);
}

/* Query norm, latent norm, and the latents into their pages (the normed latent, the raw pe key). */
static void norm_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    const k3i_run *run = j->run;
    const k3i_config *cfg = j->m->cfg;
    const k3i_mla_ws *ws = &j->m->ws->mla;
    size_t Q = cfg->q_lora_rank, C = cfg->kv_lora_rank, Dr = cfg->qk_rope_head_dim, from, to;
    float *t = (void *)(run->scratch + i * run->scratch_bytes);
    k3i_team_split(j->step->n_rows, 1, i, n, &from, &to);
    for (size_t s = 0; s < j->step->n_seqs; s++) {
        const k3i_seq *seq = &j->step->seqs[s];
        for (size_t k = 0; k < seq->n_rows; k++) {
            size_t row = seq->from + k;
            if (row < from || row >= to)
                continue;
            run->op->rmsnorm(t, ws->qa + row * Q, j->w->q_a_layernorm, Q, cfg->latent_norm_eps,
                             run->bf16);
            k3i_act_store(run, k3i_act_at(run, ws->qa_act, row * Q), t, Q);
            const float *kv = ws->kv + row * (C + Dr);
            run->op->rmsnorm(t, kv, j->w->kv_a_layernorm, C, cfg->latent_norm_eps, run->bf16);
            void *page = j->step->pool->base + latent_offset(j, seq, seq->ctx + k);
            k3i_act_store(run, page, t, C);
            k3i_act_store(run, k3i_act_at(run, page, C), kv + C, Dr);
        }
    }
}

typedef struct {
    const k3i_seq *seq; /* of the first row; the next rows may be of those that follow */
    size_t row, n_rows; /* of the batch */
    size_t head, n_heads;
    size_t *key;       /* [K3I_MLA_KEYS] where the latents are: act elements from the pool's base */
    float *ql;         /* [rows, heads, W] latent queries */
    void *ql_act;      /* the same as acts */
    float *acc;        /* [rows, heads, C] */
    float *max, *sum;  /* [rows, heads] */
    uint32_t *visible; /* [rows, heads] keys of the segment that the row sees */
    float *o;          /* [rows, heads, Dv] */
} task;

static void absorb_queries(const job *j, const task *t)
{
    const k3i_config *cfg = j->m->cfg;
    size_t C = cfg->kv_lora_rank, Dn = cfg->qk_nope_head_dim, Dr = cfg->qk_rope_head_dim;
    size_t W = C + Dr, D = Dn + Dr, N = cfg->n_heads;
    for (size_t h = 0; h < t->n_heads; h++) {
        const float *q = j->m->ws->mla.q + (t->row * N + t->head + h) * D;
        j->run->op->gemm_t_f32(t->ql + h * W, t->n_heads * W, q, N * D,
                               j->w->kv_b_proj + (t->head + h) * (Dn + cfg->v_head_dim) * C,
                               t->n_rows, Dn, C);
        for (size_t r = 0; r < t->n_rows; r++)
            memcpy(t->ql + (r * t->n_heads + h) * W + C, q + r * N * D + Dn, Dr * sizeof(float));
    }
}

/* Rows of a task that belong to one sequence. */
typedef struct {
    const k3i_seq *seq;
    size_t r, n;  /* rows r .. r + n - 1 of the task */
    size_t first; /* position of the first */
} piece;

/* The piece that begins with row r of the task. */
static piece piece_at(const task *t, const k3i_seq *seq, size_t r)
{
    size_t left = seq->from + seq->n_rows - (t->row + r);
    return (piece){.seq = seq,
                   .r = r,
                   .n = left < t->n_rows - r ? left : t->n_rows - r,
                   .first = seq->ctx + t->row + r - seq->from};
}

/* Asks for the first latents of a piece: the kernel asks for the others, while it computes. */
static void ask_keys(const job *j, const piece *p)
{
    size_t n = p->first + p->n < K3I_ATTN_KEYS ? p->first + p->n : K3I_ATTN_KEYS;
    size_t bytes = k3i_latent_width(j->m->cfg) * j->run->act_bytes;
    for (size_t pos = 0; pos < n; pos++) {
        const char *key = j->step->pool->base + latent_offset(j, p->seq, pos);
        for (size_t i = 0; i < bytes; i += K3I_ALIGN)
            __builtin_prefetch(key + i, 0, 2);
    }
}

static void segment(const job *j, const task *t, const piece *p, size_t n_keys, float scale)
{
    const k3i_ops *op = j->run->op;
    size_t W = k3i_latent_width(j->m->cfg), C = j->m->cfg->kv_lora_rank;
    size_t q = p->r * t->n_heads, n = p->n * t->n_heads;
    const void *pool = j->step->pool->base, *ql = k3i_act_at(j->run, t->ql_act, q * W);
    if (j->run->bf16) {
        op->attn_segment_bf16(t->acc + q * C, t->max + q, t->sum + q, ql, W, pool, 0, pool, 0,
                              t->key, n, n_keys, t->visible, W, C, scale);
    } else {
        op->attn_segment(t->acc + q * C, t->max + q, t->sum + q, ql, W, pool, 0, pool, 0, t->key, n,
                         n_keys, t->visible, W, C, scale);
    }
}

static void attend_piece(const job *j, const task *t, const piece *p)
{
    const k3i_config *cfg = j->m->cfg;
    size_t end = p->first + p->n, W = k3i_latent_width(cfg);
    float scale = 1.0f / sqrtf((float)(cfg->qk_nope_head_dim + cfg->qk_rope_head_dim));
    for (size_t pos = 0; pos < end; pos += K3I_MLA_KEYS) {
        size_t n_keys = end - pos < K3I_MLA_KEYS ? end - pos : K3I_MLA_KEYS;
        k3i_page_keys(j->step->pool, j->index, p->seq->blocks, pos, n_keys, W, j->run->act_bytes,
                      t->key);
        for (size_t r = 0; r < p->n; r++) {
            size_t visible = p->first + r < pos ? 0 : p->first + r + 1 - pos;
            for (size_t h = 0; h < t->n_heads; h++)
                t->visible[r * t->n_heads + h] = (uint32_t)(visible < n_keys ? visible : n_keys);
        }
        segment(j, t, p, n_keys, scale);
    }
}

static void attend(const job *j, const task *t)
{
    size_t C = j->m->cfg->kv_lora_rank, W = k3i_latent_width(j->m->cfg);
    memset(t->acc, 0, t->n_rows * t->n_heads * C * sizeof(float));
    for (size_t i = 0; i < t->n_rows * t->n_heads; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
    k3i_act_store(j->run, t->ql_act, t->ql, t->n_rows * t->n_heads * W);
    for (piece now = piece_at(t, t->seq, 0), next; now.n > 0; now = next) {
        next = (piece){0};
        if (now.r + now.n < t->n_rows) {
            next = piece_at(t, now.seq + 1, now.r + now.n);
            ask_keys(j, &next);
        }
        attend_piece(j, t, &now);
    }
}

static void leave_latent(const job *j, const task *t)
{
    const k3i_config *cfg = j->m->cfg;
    const k3i_run *run = j->run;
    const k3i_mla_ws *ws = &j->m->ws->mla;
    size_t C = cfg->kv_lora_rank, Dn = cfg->qk_nope_head_dim, Dv = cfg->v_head_dim;
    for (size_t i = 0; i < t->n_rows * t->n_heads; i++) {
        float inverse = 1.0f / t->sum[i];
        for (size_t c = 0; c < C; c++)
            t->acc[i * C + c] *= inverse;
    }
    for (size_t h = 0; h < t->n_heads; h++)
        run->op->gemm_f32(t->o + h * Dv, t->n_heads * Dv, t->acc + h * C, t->n_heads * C,
                          j->w->kv_b_proj + ((t->head + h) * (Dn + Dv) + Dn) * C, t->n_rows, Dv, C);
    size_t width = t->n_heads * Dv;
    if (run->bf16)
        run->op->round_bf16(t->o, t->n_rows * width);
    for (size_t r = 0; r < t->n_rows; r++) {
        size_t at = (t->row + r) * cfg->n_heads * Dv + t->head * Dv;
        float *o = t->o + r * width, *gate = ws->gate + at;
        run->op->sigmoid(gate, gate, width, run->bf16);
        run->op->mul(o, o, gate, width, run->bf16);
        k3i_act_store(run, k3i_act_at(run, ws->o, at), o, width);
    }
}

static void run_task(const job *j, task *t, char *scratch)
{
    const k3i_config *cfg = j->m->cfg;
    size_t C = cfg->kv_lora_rank, W = k3i_latent_width(cfg);
    t->key = (void *)scratch;
    t->ql = (void *)(t->key + K3I_MLA_KEYS);
    t->ql_act = t->ql + K3I_MLA_QUERIES * W;
    t->acc = t->ql + 2 * K3I_MLA_QUERIES * W;
    t->max = t->acc + K3I_MLA_QUERIES * C;
    t->sum = t->max + K3I_MLA_QUERIES;
    t->visible = (void *)(t->sum + K3I_MLA_QUERIES);
    t->o = t->sum + 2 * K3I_MLA_QUERIES;
    piece first = piece_at(t, t->seq, 0);
    ask_keys(j, &first);
    absorb_queries(j, t);
    attend(j, t);
    leave_latent(j, t);
}

/* Rows of a task from sequence s on, *ret_seqs sequences. A member that shares no rows takes
 * several short sequences together, as many queries as its scratch holds: their heads' matrices are
 * then read once. */
static size_t task_rows(const job *j, size_t s, size_t end_row, bool together, size_t *ret_seqs)
{
    const k3i_step *step = j->step;
    size_t rows = step->seqs[s].n_rows, most = K3I_MLA_QUERIES / j->heads, n = 1;
    most = most < K3I_MLA_ROWS ? most : K3I_MLA_ROWS;
    while (together && s + n < step->n_seqs && step->seqs[s + n].from < end_row &&
           rows + step->seqs[s + n].n_rows <= most)
        rows += step->seqs[s + n++].n_rows;
    *ret_seqs = n;
    return rows;
}

/* Tasks are dealt round robin, because those of later rows see more keys; a member that works alone
 * takes those of its rows. */
static void attention_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    size_t number = 0, from, to, n_seqs;
    bool alone = j->run->n_parts > 0;
    k3i_team_split(j->step->n_rows, 1, i, n, &from, &to);
    for (size_t s = 0; s < j->step->n_seqs; s += n_seqs) {
        const k3i_seq *seq = &j->step->seqs[s];
        n_seqs = 1;
        if (alone && (seq->from < from || seq->from >= to))
            continue;
        size_t all = task_rows(j, s, to, alone || n == 1, &n_seqs);
        for (size_t r = 0; r < all; r += K3I_MLA_ROWS) {
            for (size_t g = 0; g < j->n_groups; g++, number++) {
                size_t head = g * j->heads, rows = all - r, heads = j->m->cfg->n_heads - head;
                if (!alone && number % n != i)
                    continue;
                task t = {.seq = seq,
                          .row = seq->from + r,
                          .n_rows = rows < K3I_MLA_ROWS ? rows : K3I_MLA_ROWS,
                          .head = head,
                          .n_heads = heads < j->heads ? heads : j->heads};
                run_task(j, &t, j->run->scratch + i * j->run->scratch_bytes);
            }
        }
    }
}

/* Heads of a task: as many as its scratch holds, but enough tasks for the whole team. */
static void group_heads(job *j)
{
    size_t N = j->m->cfg->n_heads, longest = 1, chunks = 0;
    for (size_t s = 0; s < j->step->n_seqs; s++) {
        size_t rows = j->step->seqs[s].n_rows;
        chunks += (rows + K3I_MLA_ROWS - 1) / K3I_MLA_ROWS;
        longest = rows > longest ? rows : longest;
    }
    if (longest > K3I_MLA_ROWS)
        longest = K3I_MLA_ROWS;
    size_t heads = K3I_MLA_QUERIES / longest;
    size_t wanted = (j->run->n_members + chunks - 1) / chunks; /* groups, for a task per member */
    if (heads > (N + wanted - 1) / wanted)
        heads = (N + wanted - 1) / wanted;
    j->heads = heads;
    j->n_groups = (N + heads - 1) / heads;
}

static size_t attention_work(const job *j)
{
    size_t pairs = 0;
    for (size_t s = 0; s < j->step->n_seqs; s++)
        pairs += j->step->seqs[s].n_rows * (j->step->seqs[s].ctx + j->step->seqs[s].n_rows);
    return pairs * j->m->cfg->n_heads * k3i_latent_width(j->m->cfg) * 2;
}

void k3i_mla_in(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    const k3i_mla_weights *w = &m->w->layers[layer].mla;
    k3i_mla_ws *ws = &m->ws->mla;
    size_t T = step->n_rows, H = cfg->hidden_size, Q = cfg->q_lora_rank, N = cfg->n_heads;
    size_t D = cfg->qk_nope_head_dim + cfg->qk_rope_head_dim;
    const k3i_item in[] = {
        {.x = m->ws->x, .w = w->q_a_proj, .n_out = Q, .k = H, .y = ws->qa},
        {.x = m->ws->x, .w = w->kv_a_proj, .n_out = k3i_latent_width(cfg), .k = H, .y = ws->kv},
        {.x = m->ws->x, .w = w->g_proj, .n_out = N * cfg->v_head_dim, .k = H, .y = ws->gate},
    };
    job j = {.m = m, .run = run, .step = step, .w = w, .index = m->extra[layer].kind_index};
    k3i_linear(run, T, in, sizeof in / sizeof in[0]);
    k3i_run_team(run, norm_member, &j, T * (Q + k3i_latent_width(cfg)));
    const k3i_item q = {.x = ws->qa_act, .w = w->q_b_proj, .n_out = N * D, .k = Q, .y = ws->q};
    k3i_linear(run, T, &q, 1);
}

void k3i_mla_mix(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    job j = {.m = m,
             .run = run,
             .step = step,
             .w = &m->w->layers[layer].mla,
             .index = m->extra[layer].kind_index};
    group_heads(&j);
    k3i_run_team(run, attention_member, &j, attention_work(&j));
    run->weight_bytes += cfg->n_heads * (cfg->qk_nope_head_dim + cfg->v_head_dim) *
                         cfg->kv_lora_rank * sizeof(k3i_bf16);
}

void k3i_mla_out(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    const k3i_item out = {.x = m->ws->mla.o,
                          .w = m->w->layers[layer].mla.o_proj,
                          .n_out = cfg->hidden_size,
                          .k = cfg->n_heads * cfg->v_head_dim,
                          .y = m->ws->a};
    k3i_linear(run, step->n_rows, &out, 1);
}
