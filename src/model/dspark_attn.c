/* dspark_attn.c: attention of the draft's block rows, dspark.md 3.3 and 3.5. A row sees the context
 * before the anchor and, unless the draft is causal, the whole block. Keys come in blocks of
 * K3I_ATTN_KEYS counted from position 0: whole blocks of context are read where they lie, in the
 * pages; what is left of it is copied behind each other with the block's own rows. Absorbed form
 * for MLA, so that all heads share the keys. In bf16 mode queries, keys and probabilities are bf16
 * pairs, as in the target's attention. */
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
    float *q, *acc, *m, *l, *o;
    void *q_act;        /* the queries as acts */
    void *tail;         /* acts: keys behind the last whole block of context */
    size_t *key;        /* [K3I_DSPARK_KEYS] where keys are: act elements from the pool's base */
    uint32_t *row_keys; /* keys of the tail that a query sees */
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
    size_t tail = (K3I_ATTN_KEYS + max_draft) * k3i_dspark_row_width(c);
    size_t key = K3I_DSPARK_KEYS * sizeof(size_t) / sizeof(float);
    /* q, q_act, acc, m, l, row_keys, tail, key, o; each part rounded up to a cache line */
    return n_q * (2 * dk + dv + 3) + tail + key + out + 9 * 16;
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
    s.q_act = part(&at, n_q * j->dk);
    s.tail = part(&at, (K3I_ATTN_KEYS + j->T) * j->d->row_width);
    s.key = (void *)part(&at, K3I_DSPARK_KEYS * sizeof(size_t) / sizeof(float));
    s.o = at;
    return s;
}

/* Queries [T, heads, dk] of one task, as acts. */
static void load_queries(const job *j, const scratch *s, size_t seq, size_t h0, size_t n_heads)
{
    const k3i_draft_config *c = j->d->cfg;
    const k3i_mla_weights *w = &j->d->w->layers[j->layer].mla;
    if (!c->is_mla) {
        size_t width = c->n_heads * c->head_dim;
        for (size_t r = 0; r < j->T; r++)
            k3i_act_store(j->run, k3i_act_at(j->run, s->q_act, r * n_heads * j->dk),
                          j->d->ws->q + (seq * j->T + r) * width + h0 * j->dk, n_heads * j->dk);
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
    k3i_act_store(j->run, s->q_act, s->q, j->T * n_heads * j->dk);
}

/* Rows of keys and values: by s->key in the pool, or, `off` NULL, behind each other. */
static void segment(const job *j, const scratch *s, const void *rows, const size_t *off,
                    size_t kv_head, size_t n_q, size_t n, const uint32_t *row_keys)
{
    const k3i_dspark *d = j->d;
    const k3i_ops *op = j->run->op;
    bool mla = d->cfg->is_mla;
    size_t W = d->row_width;
    const void *k = k3i_act_at(j->run, rows, mla ? 0 : kv_head * j->dk);
    const void *v = k3i_act_at(j->run, rows, mla ? 0 : W / 2 + kv_head * j->dk);
    if (j->run->bf16) {
        op->attn_segment_bf16(s->acc, s->m, s->l, s->q_act, j->dk, k, W, v, W, off, n_q, n,
                              row_keys, j->dk, j->dv, d->softmax_scale);
    } else {
        op->attn_segment(s->acc, s->m, s->l, s->q_act, j->dk, k, W, v, W, off, n_q, n, row_keys,
                         j->dk, j->dv, d->softmax_scale);
    }
}

/* s->key of context positions [from, from + n). */
static void place_keys(const job *j, const scratch *s, size_t seq, size_t from, size_t n)
{
    k3i_page_keys(j->pool, j->d->first_layer + j->layer, j->seqs[seq].blocks, from, n,
                  j->d->row_width, j->run->act_bytes, s->key);
}

/* Context from `from` on and the block's rows into s->tail. */
static void copy_tail(const job *j, const scratch *s, size_t seq, size_t from)
{
    const k3i_dspark *d = j->d;
    size_t n = j->seqs[seq].pos - from, W = d->row_width, bytes = W * j->run->act_bytes;
    place_keys(j, s, seq, from, n);
    for (size_t i = 0; i < n; i++)
        memcpy(k3i_act_at(j->run, s->tail, i * W), k3i_act_at(j->run, j->pool->base, s->key[i]),
               bytes);
    memcpy(k3i_act_at(j->run, s->tail, n * W), k3i_act_at(j->run, d->ws->kv_act, seq * j->T * W),
           j->T * bytes);
}

static void segments(const job *j, const scratch *s, size_t seq, size_t n_heads, size_t kv_head)
{
    size_t n_q = j->T * n_heads, pos = j->seqs[seq].pos,
           whole = pos / K3I_ATTN_KEYS * K3I_ATTN_KEYS;
    memset(s->acc, 0, n_q * j->dv * sizeof(float));
    for (size_t i = 0; i < n_q; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
        s->row_keys[i] = (uint32_t)(pos - whole + i / n_heads + 1);
    }
    for (size_t from = 0; from < whole; from += K3I_DSPARK_KEYS) {
        size_t n = whole - from < K3I_DSPARK_KEYS ? whole - from : K3I_DSPARK_KEYS;
        place_keys(j, s, seq, from, n);
        segment(j, s, j->pool->base, s->key, kv_head, n_q, n, NULL);
    }
    copy_tail(j, s, seq, whole);
    segment(j, s, s->tail, NULL, kv_head, n_q, pos - whole + j->T,
            j->d->cfg->causal ? s->row_keys : NULL);
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
    void *latent = s->q_act; /* the queries have been used */
    if (c->is_mla)
        k3i_act_store(run, latent, s->acc, j->T * n_heads * C);
    for (size_t h = 0; h < n_heads; h++) {
        const float *o = s->acc + h * j->dv;
        size_t stride = n_heads * j->dv;
        if (c->is_mla) {
            const k3i_bf16 *w = j->d->w->layers[j->layer].mla.kv_b_proj +
                                ((h0 + h) * (c->qk_nope_head_dim + Dv) + c->qk_nope_head_dim) * C;
            k3i_gemm(run, s->o, Dv, k3i_act_at(run, latent, h * C), stride, w, j->T, Dv, C);
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
