/* dspark_attn.c: attention of the draft's block rows, dspark.md 3.3 and 3.5. A row sees the context
 * before the anchor and, unless the draft is causal, the whole block. Keys are gathered in f32, in
 * blocks of K3I_ATTN_KEYS counted from position 0: from the pages below the anchor, from ws->kv
 * above. Absorbed form for MLA, so that all heads share the gathered rows. */
#include "dspark_parts.h"

#include <math.h>
#include <string.h>

/* Query rows of a task: T rows of some heads that read the same keys. */
typedef struct {
    const k3i_dspark *d;
    const k3i_run *run;
    const k3i_pool *pool;
    const k3i_block_seq *seqs;
    size_t layer, n_seqs, T;
    size_t heads, n_tasks; /* heads of a task; tasks of a sequence */
    size_t dk, dv;         /* of a query and an accumulator row */
} job;

typedef struct {
    float *q, *acc, *m, *l, *keys, *o;
    uint32_t *row_keys;
} scratch;

static size_t task_heads(const k3i_draft_config *c)
{
    if (!c->is_mla)
        return c->n_heads / c->n_kv_heads;
    return c->n_heads < K3I_DSPARK_HEADS ? c->n_heads : K3I_DSPARK_HEADS;
}

size_t k3i_dspark_attn_floats(const k3i_draft_config *c, size_t max_draft)
{
    size_t n_q = max_draft * task_heads(c);
    size_t dk = c->is_mla ? c->kv_lora_rank + c->qk_rope_head_dim : c->head_dim;
    size_t dv = c->is_mla ? c->kv_lora_rank : c->head_dim;
    size_t out = max_draft * (c->is_mla ? c->v_head_dim : c->head_dim);
    /* q, acc, m, l, row_keys, keys, o; each part rounded up to a cache line */
    return n_q * (dk + dv + 3) + K3I_ATTN_KEYS * k3i_dspark_row_width(c) + out + 8 * 16;
}

static float *part(float **at, size_t n)
{
    float *p = *at;
    *at += (n + 15) / 16 * 16;
    return p;
}

static scratch lay_out(const job *j, size_t member)
{
    float *at = (void *)(j->run->scratch + member * j->run->scratch_bytes);
    size_t n_q = j->T * j->heads;
    scratch s;
    s.q = part(&at, n_q * j->dk);
    s.acc = part(&at, n_q * j->dv);
    s.m = part(&at, n_q);
    s.l = part(&at, n_q);
    s.row_keys = (void *)part(&at, n_q);
    s.keys = part(&at, K3I_ATTN_KEYS * j->d->row_width);
    s.o = at;
    return s;
}

/* Queries [T, heads, dk] of one task. */
static void load_queries(const job *j, const scratch *s, size_t seq, size_t h0, size_t n_heads)
{
    const k3i_draft_config *c = j->d->cfg;
    const k3i_mla_weights *w = &j->d->w->layers[j->layer].mla;
    if (!c->is_mla) {
        size_t width = c->n_heads * c->head_dim;
        for (size_t r = 0; r < j->T; r++)
            memcpy(s->q + r * n_heads * j->dk, j->d->ws->q + (seq * j->T + r) * width + h0 * j->dk,
                   n_heads * j->dk * sizeof(float));
        return;
    }
    size_t Dn = c->qk_nope_head_dim, Dr = c->qk_rope_head_dim, C = c->kv_lora_rank;
    size_t width = c->n_heads * (Dn + Dr);
    for (size_t h = 0; h < n_heads; h++) {
        const float *q = j->d->ws->q + seq * j->T * width + (h0 + h) * (Dn + Dr);
        float *to = s->q + h * j->dk;
        j->run->op->gemm_t_f32(to, n_heads * j->dk, q, width,
                               w->kv_b_proj + (h0 + h) * (Dn + c->v_head_dim) * C, j->T, Dn, C);
        for (size_t r = 0; r < j->T; r++)
            memcpy(to + r * n_heads * j->dk + C, q + r * width + Dn, Dr * sizeof(float));
    }
}

/* Keys of positions [from, from + n) in f32 rows. */
static void gather(const job *j, const scratch *s, size_t seq, size_t from, size_t n)
{
    const k3i_dspark *d = j->d;
    const k3i_block_seq *q = &j->seqs[seq];
    for (size_t i = 0; i < n; i++) {
        float *to = s->keys + i * d->row_width;
        if (from + i < q->pos) {
            k3i_act_load(j->run, to,
                         k3i_dspark_row_at(d, j->run, j->pool, j->layer,
                                           q->blocks[(from + i) / j->pool->block_tokens], from + i),
                         d->row_width);
        } else {
            memcpy(to, d->ws->kv + (seq * j->T + from + i - q->pos) * d->row_width,
                   d->row_width * sizeof(float));
        }
    }
}

static void segments(const job *j, const scratch *s, size_t seq, size_t n_heads, size_t kv_head)
{
    const k3i_dspark *d = j->d;
    size_t n_q = j->T * n_heads, pos = j->seqs[seq].pos, total = pos + j->T;
    const float *k = s->keys, *v = s->keys;
    if (!d->cfg->is_mla) {
        k += kv_head * j->dk;
        v += d->row_width / 2 + kv_head * j->dk;
    }
    memset(s->acc, 0, n_q * j->dv * sizeof(float));
    for (size_t i = 0; i < n_q; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    for (size_t from = 0; from < total; from += K3I_ATTN_KEYS) {
        size_t n = total - from < K3I_ATTN_KEYS ? total - from : K3I_ATTN_KEYS;
        gather(j, s, seq, from, n);
        for (size_t i = 0; i < n_q; i++) {
            size_t sees = d->cfg->causal ? pos + i / n_heads + 1 : total;
            size_t in = sees > from ? sees - from : 0;
            s->row_keys[i] = (uint32_t)(in < n ? in : n);
        }
        j->run->op->attn_segment(s->acc, s->m, s->l, s->q, j->dk, k, d->row_width, v, d->row_width,
                                 NULL, n_q, n, s->row_keys, j->dk, j->dv, d->softmax_scale);
    }
    for (size_t i = 0; i < n_q; i++) {
        float inv = 1 / s->l[i];
        for (size_t c = 0; c < j->dv; c++)
            s->acc[i * j->dv + c] *= inv;
    }
}

/* Writes the task's part of ws->o. */
static void store_output(const job *j, const scratch *s, size_t seq, size_t h0, size_t n_heads)
{
    const k3i_draft_config *c = j->d->cfg;
    const k3i_run *run = j->run;
    size_t Dv = c->is_mla ? c->v_head_dim : c->head_dim, C = c->kv_lora_rank;
    size_t width = c->n_heads * Dv;
    for (size_t h = 0; h < n_heads; h++) {
        const float *o = s->acc + h * j->dv;
        size_t stride = n_heads * j->dv;
        if (c->is_mla) {
            const k3i_bf16 *w = j->d->w->layers[j->layer].mla.kv_b_proj +
                                ((h0 + h) * (c->qk_nope_head_dim + Dv) + c->qk_nope_head_dim) * C;
            run->op->gemm_f32(s->o, Dv, o, stride, w, j->T, Dv, C);
            o = s->o;
            stride = Dv;
        }
        for (size_t r = 0; r < j->T; r++)
            k3i_act_store(run,
                          k3i_act_at(run, j->d->ws->o, (seq * j->T + r) * width + (h0 + h) * Dv),
                          o + r * stride, Dv);
    }
}

static void attend_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    scratch s = lay_out(j, i);
    size_t from, to;
    k3i_team_split(j->n_seqs * j->n_tasks, 1, i, n, &from, &to);
    for (size_t t = from; t < to; t++) {
        size_t seq = t / j->n_tasks, h0 = t % j->n_tasks * j->heads;
        size_t left = j->d->cfg->n_heads - h0, n_heads = left < j->heads ? left : j->heads;
        load_queries(j, &s, seq, h0, n_heads);
        segments(j, &s, seq, n_heads, t % j->n_tasks);
        store_output(j, &s, seq, h0, n_heads);
    }
}

void k3i_dspark_attend(const k3i_dspark *d, const k3i_run *run, const k3i_pool *pool, size_t layer,
                       const k3i_block_seq *seqs, size_t n_seqs, size_t T)
{
    const k3i_draft_config *c = d->cfg;
    job j = {
        .d = d, .run = run, .pool = pool, .seqs = seqs, .layer = layer, .n_seqs = n_seqs, .T = T};
    j.heads = task_heads(c);
    if (c->is_mla) { /* any heads can share a task: enough tasks for the whole team */
        size_t wanted = (run->n_members + n_seqs - 1) / n_seqs;
        size_t heads = (c->n_heads + wanted - 1) / wanted;
        j.heads = heads < j.heads ? heads : j.heads;
    }
    j.n_tasks = (c->n_heads + j.heads - 1) / j.heads;
    j.dk = c->is_mla ? c->kv_lora_rank + c->qk_rope_head_dim : c->head_dim;
    j.dv = c->is_mla ? c->kv_lora_rank : c->head_dim;
    size_t keys = 0;
    for (size_t s = 0; s < n_seqs; s++)
        keys += seqs[s].pos + T;
    k3i_run_team(run, attend_member, &j, keys * T * c->n_heads * (j.dk + j.dv));
}
