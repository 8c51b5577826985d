/* One request, one answer: random models under random schedules, every logits row bitwise equal to
 * that of the same sequence alone in one prefill.
 *
 *   test_contract [schedules] [seed]        default: 200 schedules (24 under sanitizers) of a fixed
 * seed
 *
 * A schedule is a little host: sequences join, run in batches of chunks, decodes and verify rows
 * with drafts right and wrong, are dropped and started again from nothing or from a snapshot taken
 * somewhere. Pages are handed out in random order and are full of NaN when they are. Some sequences
 * hold a token whose embedding is NaN: they must end there, and nobody else may notice. */
#include "test.h"

#include "drive.h"
#include "engine.h"
#include "model.h"

enum {
    N_SEQS = 6, /* texts of a model */
    MAX_LEN = 72,
    MAX_REQS = 4,
    MAX_ROWS = 40,
    MAX_SPEC = 16,
    MAX_BLOCKS = 4 * (MAX_LEN + MAX_SPEC) + 96,
    MAX_SNAPS = 6,
    MAX_PAGES = 8,
    SCHEDULES_PER_MODEL = SCHEDULES / 10 > 8 ? SCHEDULES / 10 : 8
};

typedef struct {
    uint64_t rnd;
    test_model shape;
    char seed_text[32], *dir;
    const char *mode, *isa;
    int32_t text[N_SEQS][MAX_LEN], len[N_SEQS];
    int32_t bad_at[N_SEQS]; /* position of the poison token, len if there is none */
    float *want[N_SEQS];    /* [len, vocab] */
} model;

typedef struct {
    int32_t text, slot, op, len;
    int32_t n_blocks, blocks[MAX_LEN + MAX_SPEC];
    int32_t restore[MAX_PAGES];
    bool used;
} request;

typedef struct {
    int32_t text, pos;
    int32_t pages[MAX_PAGES];
    int32_t n_blocks, blocks[MAX_LEN]; /* latents of 0..pos-1 */
    bool used;
    bool planned; /* of the running step: not to be given up */
} snapshot;

typedef struct {
    model *m;
    uint64_t *rnd;
    k3_engine *e;
    int32_t block_tokens, n_pages, n_blocks;
    int32_t refs[MAX_BLOCKS];
    request req[MAX_REQS];
    snapshot snap[MAX_SNAPS];
    int n_compared, n_restored, n_ended;
} host;

static int32_t rnd_in(uint64_t *s, int32_t min, int32_t max)
{
    return min + (int32_t)(test_rnd(s) % (uint64_t)(max - min + 1));
}

static bool chance(uint64_t *s, int percent)
{
    return rnd_in(s, 1, 100) <= percent;
}

static size_t pick(uint64_t *s, const size_t *from, size_t n)
{
    return from[test_rnd(s) % n];
}

/* ---- models ------------------------------------------------------------------------------------
 */

static void random_shape(model *m, int number)
{
    static const size_t dims[] = {8, 12, 16, 20, 24}, lora[] = {8, 16, 24, 40};
    uint64_t *s = &m->rnd;
    test_model *t = &m->shape;
    size_t layers = number % 3 == 1 ? 27 : (size_t)rnd_in(s, 3, 9);
    *t = (test_model){.vocab = (size_t)rnd_in(s, 40, 80),
                      .hidden = (size_t)rnd_in(s, 4, 10) * 8,
                      .layers = layers,
                      .inter = (size_t)rnd_in(s, 5, 70),
                      .heads = (size_t)rnd_in(s, 1, 5),
                      .q_lora = pick(s, lora, 4),
                      .kv_lora = pick(s, lora, 4),
                      .nope = pick(s, dims, 5),
                      .rope = (size_t)rnd_in(s, 1, 9),
                      .v = pick(s, dims, 5),
                      .kda_heads = (size_t)rnd_in(s, 1, 5),
                      .kda_dim = pick(s, dims, 5),
                      .taps = number % 4 == 3 ? (size_t)rnd_in(s, 1, 6) : 4,
                      .a_log_len = (size_t)rnd_in(s, 5, 9),
                      .block = number % 3 == 1 ? (size_t)rnd_in(s, 9, 12) : (size_t)rnd_in(s, 1, 4),
                      .experts = 8 * (size_t)rnd_in(s, 1, 3),
                      .top_k = (size_t)rnd_in(s, 1, 4),
                      .shared = (size_t)rnd_in(s, 1, 2),
                      .moe_inter = 32 * (size_t)rnd_in(s, 1, 2),
                      .latent = 32 * (size_t)rnd_in(s, 1, 2),
                      .groups = number % 2 == 0 ? 1 : 4,
                      .topk_groups = number % 2 == 0 ? 1 : 2,
                      .first_dense = (size_t)rnd_in(s, 0, 2),
                      .moe_freq = chance(s, 70) ? 1 : 2,
                      .seed = m->seed_text,
                      .poison = 3};
    for (size_t i = 0; i < layers; i++)
        t->is_kda[i] =
            number % 10 == 6 || (number % 10 != 8 && chance(s, 65)); /* one kind only, too */
    if (number % 5 == 0) { /* the real model's heads: kernels may treat their widths apart */
        t->kda_dim = t->nope = t->v = 128;
        t->rope = 64;
        t->kv_lora = 512;
        t->a_log_len = 128;
        t->kda_heads = t->heads = 2;
    }
    if (number % 5 == 2) { /* MLA next to MLA at the end, as in the real model */
        t->is_kda[layers - 1] = t->is_kda[layers - 2] = false;
        t->is_kda[0] = true;
    }
}

static void reference(model *m)
{
    char more[200];
    size_t V = m->shape.vocab;
    snprintf(more, sizeof more, ",\"isa\":\"%s\",\"max_num_batched_tokens\":%d", m->isa, MAX_LEN);
    k3_engine *e = drive_open(m->dir, m->mode, 1, more);
    drive_kv(e, 3, 64, 1);
    for (int32_t i = 0; i < N_SEQS; i++) {
        drive_seq s = {.engine = e, .first_block = 1, .block_tokens = 64};
        m->want[i] = calloc((size_t)m->len[i] * V, sizeof(float));
        if (m->bad_at[i] > 0)
            assert_int_equal(drive_step(&s, m->text[i], m->bad_at[i], m->want[i]), K3_OK);
    }
    k3_close(e);
}

static void model_new(model *m, uint64_t seed, int number)
{
    size_t n_isa = 0;
    *m = (model){.rnd = seed ^ ((uint64_t)number << 32)};
    while (k3i_ops_nth(n_isa) != NULL)
        n_isa++;
    random_shape(m, number);
    snprintf(m->seed_text, sizeof m->seed_text, "%llx/%d/", (unsigned long long)seed, number);
    m->mode = chance(&m->rnd, 50) ? "bf16" : "f32";
    /* The oracle is slow: not for the deep models. */
    m->isa = k3i_ops_nth(m->shape.layers > 20 ? n_isa - 1 : test_rnd(&m->rnd) % n_isa)->isa;
    m->dir = test_dir_new();
    test_model_write(&m->shape, m->dir);
    for (int32_t i = 0; i < N_SEQS; i++) {
        m->len[i] = rnd_in(&m->rnd, 8, MAX_LEN);
        m->bad_at[i] = m->len[i];
        for (int32_t k = 0; k < m->len[i]; k++)
            m->text[i][k] = rnd_in(&m->rnd, 4, (int32_t)m->shape.vocab - 1);
        /* Half of the texts share a prefix, so that a wrong restore is not caught by luck. */
        if (i > 0 && i % 2 == 0)
            memcpy(m->text[i], m->text[0], (size_t)rnd_in(&m->rnd, 1, 8) * sizeof m->text[0][0]);
        if (i % 3 == 2) {
            m->bad_at[i] = rnd_in(&m->rnd, 1, m->len[i] - 1);
            m->text[i][m->bad_at[i]] = m->shape.poison;
        }
    }
    reference(m);
}

static void model_done(model *m)
{
    for (int32_t i = 0; i < N_SEQS; i++)
        free(m->want[i]);
    test_dir_remove(m->dir);
}

/* ---- blocks ------------------------------------------------------------------------------------
 */

static void poison_block(host *h, int32_t block)
{
    memset(h->e->kv.pool.base + (size_t)block * h->e->kv.shape.page_bytes, 0xff,
           h->e->kv.shape.page_bytes);
}

static void unref(host *h, int32_t block)
{
    assert_true(h->refs[block] > 0);
    if (--h->refs[block] == 0)
        poison_block(h, block);
}

static void drop_snapshot(host *h, snapshot *s)
{
    for (int32_t i = 0; i < h->n_pages; i++)
        unref(h, s->pages[i]);
    for (int32_t i = 0; i < s->n_blocks; i++)
        unref(h, s->blocks[i]);
    s->used = false;
}

/* A random free block; the pool is large enough for all requests once snapshots are given up. */
static int32_t take_block(host *h)
{
    for (;;) {
        int32_t at = rnd_in(h->rnd, 1, h->n_blocks - 1);
        for (int32_t i = 1; i < h->n_blocks; i++, at = at + 1 < h->n_blocks ? at + 1 : 1) {
            if (h->refs[at] == 0) {
                h->refs[at] = 1;
                return at;
            }
        }
        int32_t s = 0;
        while (s < MAX_SNAPS && (!h->snap[s].used || h->snap[s].planned))
            s++;
        assert_true(s < MAX_SNAPS);
        drop_snapshot(h, &h->snap[s]);
    }
}

/* The pages of a snapshot stay until the request that begins with it has run. */
static void unref_restore(host *h, request *r)
{
    for (int32_t i = 0; i < h->n_pages && r->op == K3_SLOT_RESTORE; i++)
        unref(h, r->restore[i]);
    r->op = K3_SLOT_KEEP;
}

static void drop_request(host *h, request *r)
{
    unref_restore(h, r);
    for (int32_t i = 0; i < r->n_blocks; i++)
        unref(h, r->blocks[i]);
    r->used = false;
}

/* ---- joining -----------------------------------------------------------------------------------
 */

static void restore_request(host *h, request *r, const snapshot *s)
{
    r->op = K3_SLOT_RESTORE;
    r->len = s->pos;
    memcpy(r->restore, s->pages, sizeof r->restore);
    for (int32_t i = 0; i < h->n_pages; i++)
        h->refs[s->pages[i]]++;
    r->n_blocks = s->n_blocks;
    for (int32_t i = 0; i < s->n_blocks; i++) {
        r->blocks[i] = s->blocks[i];
        h->refs[s->blocks[i]]++;
    }
    if (s->pos % h->block_tokens != 0) { /* the last page is going to be written: take a copy */
        int32_t last = s->blocks[s->n_blocks - 1], copy = take_block(h);
        assert_int_equal(k3_kv_copy(h->e, last, copy), K3_OK);
        r->blocks[s->n_blocks - 1] = copy;
        unref(h, last);
    }
    h->n_restored++;
}

/* A snapshot's text up to its position decides which texts may continue from it. */
static bool fits(const host *h, const snapshot *s, int32_t text)
{
    return s->used && s->pos < h->m->len[text] &&
           memcmp(h->m->text[s->text], h->m->text[text], (size_t)s->pos * sizeof(int32_t)) == 0;
}

static void join(host *h, request *r, int32_t slot)
{
    *r = (request){.used = true, .slot = slot, .op = K3_SLOT_RESET};
    r->text = rnd_in(h->rnd, 0, N_SEQS - 1);
    for (int32_t i = 0; i < MAX_SNAPS; i++) {
        if (fits(h, &h->snap[i], r->text) && chance(h->rnd, 60)) {
            /* restoring must not free the snapshot while it makes room for the copy */
            snapshot keep = h->snap[i];
            for (int32_t k = 0; k < h->n_pages; k++)
                h->refs[keep.pages[k]]++;
            for (int32_t k = 0; k < keep.n_blocks; k++)
                h->refs[keep.blocks[k]]++;
            restore_request(h, r, &keep);
            keep.used = true;
            for (int32_t k = 0; k < h->n_pages; k++)
                h->refs[keep.pages[k]]--;
            for (int32_t k = 0; k < keep.n_blocks; k++)
                h->refs[keep.blocks[k]]--;
            return;
        }
    }
}

/* ---- one step ----------------------------------------------------------------------------------
 */

typedef struct {
    k3_batch b;
    request *req[MAX_REQS];
    int32_t ids[MAX_ROWS], q_start[MAX_REQS + 1], ctx[MAX_REQS], slot[MAX_REQS], op[MAX_REQS];
    int32_t restore[MAX_REQS * MAX_PAGES], n_spec[MAX_REQS], right[MAX_REQS], mla_off[MAX_REQS + 1];
    int32_t table[MAX_REQS * (MAX_LEN + MAX_SPEC + 1)], logit_row[MAX_ROWS];
    int32_t snap_req[MAX_ROWS], snap_pos[MAX_ROWS], snap_block[MAX_ROWS * MAX_PAGES];
    int32_t accepted[MAX_REQS];
    snapshot *taken[MAX_ROWS];
    k3_status status[MAX_REQS], commit_status[MAX_REQS];
} step;

/* Adds request r with up to `room` rows: final ones, then drafts of which `right` follow the text.
 */
static void add_request(host *h, step *st, request *r, int32_t room)
{
    model *m = h->m;
    int32_t i = st->b.n_reqs++, row = st->q_start[i], left = m->len[r->text] - r->len;
    int32_t n_final = chance(h->rnd, 40) ? 1 : rnd_in(h->rnd, 1, left), n_spec = 0, right = 0;
    if (n_final > room)
        n_final = room;
    if (room > n_final && chance(h->rnd, 60)) {
        n_spec = rnd_in(h->rnd, 1, room - n_final < MAX_SPEC ? room - n_final : MAX_SPEC);
        right = rnd_in(h->rnd, 0, n_spec);
        if (right > left - n_final)
            right = left - n_final;
    }
    for (int32_t k = 0; k < n_final + n_spec; k++) {
        bool is_right = k < n_final + right;
        st->ids[row + k] = is_right ? m->text[r->text][r->len + k]
                                    : rnd_in(h->rnd, 3, (int32_t)m->shape.vocab - 1);
    }
    int32_t needed = (r->len + n_final + n_spec + h->block_tokens - 1) / h->block_tokens;
    while (r->n_blocks < needed)
        r->blocks[r->n_blocks++] = take_block(h);
    st->req[i] = r;
    st->q_start[i + 1] = row + n_final + n_spec;
    st->ctx[i] = r->len;
    st->slot[i] = r->slot;
    st->op[i] = r->op;
    memcpy(st->restore + i * h->n_pages, r->restore, (size_t)h->n_pages * sizeof(int32_t));
    st->n_spec[i] = n_spec;
    st->right[i] = right;
    st->mla_off[i + 1] = st->mla_off[i] + r->n_blocks;
    memcpy(st->table + st->mla_off[i], r->blocks, (size_t)r->n_blocks * sizeof(int32_t));
}

static snapshot *free_snapshot(host *h)
{
    for (int32_t i = 0; i < MAX_SNAPS; i++) {
        if (!h->snap[i].used)
            return &h->snap[i];
    }
    return NULL;
}

/* Plans a snapshot of request i at `pos` and notes it as number n of the call. */
static bool plan_snapshot(host *h, step *st, int32_t i, int32_t pos, int32_t n)
{
    snapshot *s = free_snapshot(h);
    if (s == NULL || pos < 1)
        return false;
    *s = (snapshot){.text = st->req[i]->text, .pos = pos};
    for (int32_t k = 0; k < h->n_pages; k++) {
        s->pages[k] = take_block(h);
        st->snap_block[n * h->n_pages + k] = s->pages[k];
    }
    s->n_blocks = (pos + h->block_tokens - 1) / h->block_tokens;
    for (int32_t k = 0; k < s->n_blocks; k++) {
        s->blocks[k] = st->req[i]->blocks[k];
        h->refs[s->blocks[k]]++;
    }
    s->used = s->planned = true; /* whole only now: making room above must not find it */
    st->snap_req[n] = i;
    st->snap_pos[n] = pos;
    st->taken[n] = s;
    return true;
}

/* A shared, partly filled page is not written by its first owner either: he continues in a copy. */
static void copy_shared_tail(host *h, request *r)
{
    int32_t tail = r->len / h->block_tokens;
    if (!r->used || r->len % h->block_tokens == 0 || tail >= r->n_blocks ||
        h->refs[r->blocks[tail]] == 1)
        return;
    int32_t copy = take_block(h);
    assert_int_equal(k3_kv_copy(h->e, r->blocks[tail], copy), K3_OK);
    unref(h, r->blocks[tail]);
    r->blocks[tail] = copy;
}

static void build(host *h, step *st)
{
    int32_t room = rnd_in(h->rnd, 1, MAX_ROWS), order = rnd_in(h->rnd, 0, MAX_REQS - 1);
    *st = (step){.b = {.size = sizeof st->b}};
    for (int32_t k = 0; k < MAX_REQS; k++) {
        request *r = &h->req[(k + order) % MAX_REQS];
        if (room == 0 || !r->used || !chance(h->rnd, 75))
            continue;
        int32_t before = st->b.n_reqs > 0 ? st->q_start[st->b.n_reqs] : 0;
        copy_shared_tail(h, r);
        add_request(h, st, r, chance(h->rnd, 50) ? room : rnd_in(h->rnd, 1, room));
        room -= st->q_start[st->b.n_reqs] - before;
    }
    st->b.n_tokens = st->q_start[st->b.n_reqs];
    for (int32_t i = 0; i < st->b.n_reqs; i++) {
        int32_t last = st->ctx[i] + st->q_start[i + 1] - st->q_start[i] - st->n_spec[i];
        if (chance(h->rnd, 25) &&
            plan_snapshot(h, st, i, rnd_in(h->rnd, st->ctx[i] + 1, last), st->b.n_snap))
            st->b.n_snap++;
    }
    for (int32_t t = 0; t < st->b.n_tokens; t++) {
        if (chance(h->rnd, 70))
            st->logit_row[st->b.n_logit_rows++] = t;
    }
    st->b.token_ids = st->ids;
    st->b.q_start = st->q_start;
    st->b.ctx_len = st->ctx;
    st->b.slot = st->slot;
    st->b.slot_op = st->op;
    st->b.restore_block = st->restore;
    st->b.n_spec = st->n_spec;
    st->b.mla_off = st->mla_off;
    st->b.mla_table = st->table;
    st->b.logit_row = st->logit_row;
    st->b.snap_req = st->snap_req;
    st->b.snap_pos = st->snap_pos;
    st->b.snap_block = st->snap_block;
    st->b.req_status = st->status;
}

/* Rows of request i that follow its text and come before its poison token. */
static int32_t rows_to_compare(const host *h, const step *st, int32_t i)
{
    const request *r = st->req[i];
    int32_t n = st->q_start[i + 1] - st->q_start[i] - st->n_spec[i] + st->right[i];
    int32_t good = h->m->bad_at[r->text] - st->ctx[i];
    return n < good ? n : good;
}

static void compare(host *h, const step *st, const float *logits, size_t stride)
{
    size_t V = h->m->shape.vocab;
    for (int32_t k = 0, i = 0; k < st->b.n_logit_rows; k++) {
        int32_t row = st->logit_row[k];
        while (row >= st->q_start[i + 1])
            i++;
        int32_t at = row - st->q_start[i], pos = st->ctx[i] + at, text = st->req[i]->text;
        if (at >= rows_to_compare(h, st, i))
            continue;
        if (memcmp(logits + (size_t)k * stride, h->m->want[text] + (size_t)pos * V,
                   V * sizeof(float)) != 0)
            fail_msg("text %d position %d differs (row %d of request %d, %d rows, %d drafts)", text,
                     pos, at, i, st->q_start[i + 1] - st->q_start[i], st->n_spec[i]);
        h->n_compared++;
    }
}

/* The request met its poison: snapshots of it that were asked for do not exist. */
static void forget_snapshots(host *h, step *st, int32_t i, int32_t n_snap)
{
    for (int32_t s = 0; s < n_snap; s++) {
        if (st->snap_req[s] == i && st->taken[s] != NULL) {
            drop_snapshot(h, st->taken[s]);
            st->taken[s] = NULL;
        }
    }
}

static void commit(host *h, step *st)
{
    k3_commit_args c = {.size = sizeof c,
                        .n_reqs = st->b.n_reqs,
                        .accepted = st->accepted,
                        .snap_req = st->snap_req,
                        .snap_pos = st->snap_pos,
                        .snap_block = st->snap_block,
                        .req_status = st->commit_status};
    for (int32_t i = 0; i < st->b.n_reqs; i++) {
        int32_t n_final = st->q_start[i + 1] - st->q_start[i] - st->n_spec[i];
        bool over = st->ctx[i] + n_final > h->m->bad_at[st->req[i]->text];
        assert_int_equal(st->status[i], over ? K3_E_NONFINITE : K3_OK);
        st->accepted[i] = n_final + rnd_in(h->rnd, 0, st->right[i]);
        if (over)
            forget_snapshots(h, st, i, st->b.n_snap);
    }
    for (int32_t i = 0; i < st->b.n_reqs; i++) {
        int32_t n_final = st->q_start[i + 1] - st->q_start[i] - st->n_spec[i];
        if (st->status[i] != K3_OK)
            continue;
        int32_t first = st->ctx[i] + n_final, last = st->ctx[i] + st->accepted[i];
        if (chance(h->rnd, 30) && plan_snapshot(h, st, i, rnd_in(h->rnd, first, last), c.n_snap))
            c.n_snap++;
    }
    if (k3_commit(h->e, &c) != K3_OK)
        fail_msg("k3_commit: %s", k3_last_error(h->e));
    for (int32_t i = 0; i < st->b.n_reqs; i++) {
        request *r = st->req[i];
        r->len += st->accepted[i];
        unref_restore(h, r);
        bool over = r->len > h->m->bad_at[r->text];
        assert_int_equal(st->commit_status[i], over ? K3_E_NONFINITE : K3_OK);
        if (over) {
            if (st->status[i] == K3_OK)
                forget_snapshots(h, st, i, c.n_snap);
            h->n_ended++;
            drop_request(h, r);
        } else if (r->len == h->m->len[r->text]) {
            assert_int_equal(k3_slot_release(h->e, r->slot), K3_OK);
            drop_request(h, r);
        }
    }
}

/* A restore at a position that the snapshot is not of is refused and changes nothing. */
static void try_wrong_restore(host *h, const step *st)
{
    for (int32_t i = 0; i < st->b.n_reqs; i++) {
        if (st->op[i] != K3_SLOT_RESTORE)
            continue;
        k3_batch b = st->b;
        int32_t ops[MAX_REQS], blocks[MAX_REQS * MAX_PAGES];
        memcpy(ops, st->op, sizeof ops);
        memcpy(blocks, st->restore, sizeof blocks);
        blocks[i * h->n_pages] = st->req[i]->blocks[0]; /* latents, no snapshot */
        b.restore_block = blocks;
        b.n_logit_rows = 0;
        assert_int_equal(k3_forward(h->e, &b, NULL, 0), K3_E_BLOCK);
        return;
    }
}

static void run_step(host *h)
{
    step st;
    size_t stride = h->m->shape.vocab + (size_t)rnd_in(h->rnd, 0, 3);
    float *logits = malloc(MAX_ROWS * stride * sizeof *logits);
    build(h, &st);
    if (st.b.n_reqs > 0) {
        if (chance(h->rnd, 20))
            try_wrong_restore(h, &st);
        if (k3_forward(h->e, &st.b, logits, (int64_t)stride) != K3_OK)
            fail_msg("k3_forward: %s", k3_last_error(h->e));
        compare(h, &st, logits, stride);
        commit(h, &st);
    }
    for (int32_t i = 0; i < MAX_SNAPS; i++)
        h->snap[i].planned = false;
    free(logits);
}

/* ---- schedules ---------------------------------------------------------------------------------
 */

static void open_host(host *h)
{
    char more[200];
    snprintf(more, sizeof more,
             ",\"isa\":\"%s\",\"max_num_seqs\":%d,\"max_num_batched_tokens\":%d,"
             "\"num_speculative_tokens\":%d,\"split\":\"%s\"",
             h->m->isa, MAX_REQS, MAX_ROWS, MAX_SPEC, chance(h->rnd, 50) ? "rows" : "outputs");
    h->e = drive_open(h->m->dir, h->m->mode, rnd_in(h->rnd, 1, 3), more);
    k3_info info = {.size = sizeof info};
    assert_int_equal(k3_query(h->e, &info), K3_OK);
    h->block_tokens = rnd_in(h->rnd, 1, 20);
    /* All requests at their longest, and the snapshots of one step and those not yet
     * restored: the others can be given up. */
    h->n_blocks = MAX_REQS * ((MAX_LEN + MAX_SPEC + h->block_tokens - 1) / h->block_tokens) + 96;
    k3_kv_config c = {.size = sizeof c,
                      .num_blocks = h->n_blocks,
                      .block_tokens = h->block_tokens,
                      .n_slots = MAX_REQS};
    k3_kv_layout lay = {.size = sizeof lay};
    int64_t latents = info.latent_bytes_per_token * h->block_tokens + 64 * info.num_mla_layers + 64;
    int64_t part = info.state_bytes / rnd_in(h->rnd, 1, MAX_PAGES - 1) + 64;
    c.page_bytes = latents > part ? latents : part;
    if (k3_kv_init(h->e, &c, &lay) != K3_OK)
        fail_msg("k3_kv_init: %s", k3_last_error(h->e));
    h->n_pages = lay.snapshot_blocks;
    assert_in_range(h->n_pages, 1, MAX_PAGES);
    memset(h->e->kv.pool.base, 0xff, (size_t)h->n_blocks * h->e->kv.shape.page_bytes);
    memset(h->e->kv.state, 0xff, MAX_REQS * h->e->text.kda.state_bytes);
}

static void run_schedule(model *m, uint64_t *rnd, host *total)
{
    host h = {.m = m, .rnd = rnd};
    open_host(&h);
    for (int32_t n = rnd_in(rnd, 8, 24); n > 0; n--) {
        for (int32_t i = 0; i < MAX_REQS; i++) {
            request *r = &h.req[i];
            if (!r->used && chance(rnd, 60))
                join(&h, r, i);
            if (r->used && r->op == K3_SLOT_KEEP && chance(rnd, 4)) {
                if (chance(rnd,
                           50)) /* dropped without a word: the next RESET or RESTORE replaces it */
                    assert_int_equal(k3_slot_release(h.e, r->slot), K3_OK);
                drop_request(&h, r);
            }
        }
        run_step(&h);
    }
    total->n_compared += h.n_compared;
    total->n_restored += h.n_restored;
    total->n_ended += h.n_ended;
    k3_close(h.e);
}

typedef struct {
    int schedules;
    uint64_t seed;
} plan;

static void any_schedule_gives_the_same_bits(void **state)
{
    const plan *p = *state;
    host total = {0};
    print_message("seed %llu, %d schedules\n", (unsigned long long)p->seed, p->schedules);
    for (int i = 0; i < p->schedules;) {
        model m;
        model_new(&m, p->seed, i / SCHEDULES_PER_MODEL);
        print_message("model %d: %zu layers, %s, %s\n", i / SCHEDULES_PER_MODEL, m.shape.layers,
                      m.mode, m.isa);
        for (int k = 0; k < SCHEDULES_PER_MODEL && i < p->schedules; k++, i++) {
            uint64_t rnd = p->seed + (uint64_t)i * 0x9E3779B97F4A7C15u;
            run_schedule(&m, &rnd, &total);
        }
        model_done(&m);
    }
    print_message("%d rows compared, %d restores, %d requests ended by NaN\n", total.n_compared,
                  total.n_restored, total.n_ended);
    assert_true(total.n_compared > 10 * p->schedules);
    assert_true(p->schedules < 50 || (total.n_restored > 10 && total.n_ended > 10));
}

int main(int argc, char **argv)
{
    plan p = {.schedules = argc > 1 ? atoi(argv[1]) : SCHEDULES,
              .seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 5};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(any_schedule_gives_the_same_bits, &p)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
