/* Context rows are written late (engine/draft.c); no host can tell. A random host with few pages
 * shares, copies, exchanges and reuses them at once, drops sequences with and without a word, goes
 * on from snapshots, and leaves sequences out of batches. All its sequences have one text, so at
 * any time each page, each row of logits and each draft must be what a plain run gave. */
#include "test.h"

#include "draft_file.h"
#include "drive.h"
#include "engine.h"

enum {
    V = 97,
    LEN = 48,
    SLOTS = 3,
    BT = 4,
    TABLE = LEN / BT,
    PARTS = 64,
    PAGES = 300,
    DRAFTS = 3,
    SEEDS = 20
};

static char *target_dir, *draft_dir;

/* What a plain run gives. */
typedef struct {
    int32_t text[LEN + 1], table[TABLE], drafted[LEN + 1][DRAFTS];
    float logits[LEN * V];
    k3_engine *e;
} plain;

typedef struct {
    bool is_live;
    int32_t len, op, n_table, table[TABLE];
} seq;

typedef struct {
    const plain *want;
    k3_engine *e;
    uint64_t rnd, seed;
    int32_t users[PAGES], free_page[PAGES], n_free;
    seq s[SLOTS];
    seq snap; /* is_live: there is one, of its table at len */
    int32_t n_parts, parts[PARTS];
} host;

static int32_t below(host *h, int32_t n)
{
    return (int32_t)(test_rnd(&h->rnd) % (uint64_t)n);
}

static void must(host *h, k3_status st)
{
    if (st != K3_OK)
        fail_msg("seed %llu: %s", (unsigned long long)h->seed, k3_last_error(h->e));
}

static k3_engine *open_pair(const char *mode, int threads)
{
    char more[4400];
    snprintf(more, sizeof more,
             ",\"draft\":\"%s\",\"num_speculative_tokens\":%d,\"max_model_len\":%d", draft_dir,
             DRAFTS, LEN);
    return drive_open(target_dir, mode, threads, more);
}

static void draft(k3_engine *e, const int32_t *req, int32_t n, const int32_t *last, int32_t *ids)
{
    const k3_draft_args a = {.size = sizeof a,
                             .n_reqs = n,
                             .n_draft = DRAFTS,
                             .req = req,
                             .last_token = last,
                             .ids = ids};
    if (k3_draft(e, &a) != K3_OK)
        fail_msg("k3_draft: %s", k3_last_error(e));
}

static void plain_init(plain *w, const char *mode)
{
    drive_seq s = {.first_block = 1, .block_tokens = BT};
    int32_t zero = 0;
    w->e = s.engine = open_pair(mode, 1);
    drive_kv(w->e, TABLE + 1, BT, 1);
    test_prompt(&test_model_pair, w->text, LEN + 1);
    for (int32_t i = 0; i < LEN; i++) {
        assert_int_equal(drive_step(&s, w->text + i, 1, w->logits + i * V), K3_OK);
        if (i + 1 < LEN)
            draft(w->e, &zero, 1, &w->text[i + 1], w->drafted[i + 1]);
    }
    for (int32_t i = 0; i < TABLE; i++)
        w->table[i] = i + 1;
    k3i_draft_settle(w->e);
}

/* ---- pages -------------------------------------------------------------------------------------
 */

/* The page that was given back last: nothing may still be on its way to it. */
static int32_t take(host *h)
{
    int32_t page = h->free_page[--h->n_free];
    h->users[page] = 1;
    return page;
}

static void give(host *h, int32_t page)
{
    if (--h->users[page] == 0)
        h->free_page[h->n_free++] = page;
}

static void drop(host *h, seq *s)
{
    for (int32_t i = 0; i < s->n_table; i++)
        give(h, s->table[i]);
    *s = (seq){0};
}

/* Room for `len` tokens; a page that will be written is the sequence's own. */
static void reserve(host *h, seq *s, int32_t len)
{
    int32_t at = s->len / BT;
    if (at < s->n_table && h->users[s->table[at]] > 1) {
        int32_t own = take(h);
        must(h, k3_kv_copy(h->e, s->table[at], own));
        give(h, s->table[at]);
        s->table[at] = own;
    }
    while (s->n_table * BT < len)
        s->table[s->n_table++] = take(h);
}

static void share(host *h, seq *to, const seq *from)
{
    *to = *from;
    to->n_table = (from->len + BT - 1) / BT;
    for (int32_t i = 0; i < to->n_table; i++)
        h->users[to->table[i]]++;
}

static void expect_plain_memory(host *h)
{
    const k3i_kv *x = &h->e->kv, *y = &h->want->e->kv;
    size_t n_target = h->e->target.config.n_mla_layers;
    k3i_draft_settle(h->e);
    for (size_t l = 0; l < n_target + k3i_draft_layers(h->e); l++) {
        size_t row = l < n_target ? k3i_latent_width(&h->e->target.config) * h->e->run.act_bytes
                                  : k3i_draft_row_bytes(h->e);
        for (int32_t i = 0; i < SLOTS; i++) {
            for (int32_t p = 0; p < h->s[i].len; p++) {
                size_t in = (size_t)(p % BT) * row;
                const char *a = x->pool.base + x->layer_offset[l] + in +
                                (size_t)h->s[i].table[p / BT] * x->pool.page_bytes;
                const char *b = y->pool.base + y->layer_offset[l] + in +
                                (size_t)h->want->table[p / BT] * y->pool.page_bytes;
                if (memcmp(a, b, row) != 0)
                    fail_msg("seed %llu: %s layer %zu differs at position %d",
                             (unsigned long long)h->seed, l < n_target ? "latent" : "draft context",
                             l, p);
            }
        }
    }
}

/* ---- steps -------------------------------------------------------------------------------------
 */

typedef struct {
    int32_t n, n_tokens, slot[SLOTS], op[SLOTS], ctx[SLOTS], n_spec[SLOTS], keep[SLOTS];
    int32_t q[SLOTS + 1], off[SLOTS + 1], table[SLOTS * TABLE], ids[64], rows[64];
    int32_t restore[SLOTS * PARTS];
} batch;

/* Some of the sequences, one or two tokens each, and drafts that are wrong. */
static void plan(host *h, batch *b)
{
    *b = (batch){0};
    for (int32_t i = 0; i < SLOTS; i++) {
        seq *s = &h->s[i];
        int32_t n = 1 + below(h, 2), spec = below(h, 3);
        if (!s->is_live || s->len + n + spec > LEN || below(h, 12) == 0)
            continue;
        int32_t r = b->n++;
        reserve(h, s, s->len + n + spec);
        b->slot[r] = i;
        b->op[r] = s->op;
        b->ctx[r] = s->len;
        b->n_spec[r] = spec;
        b->keep[r] = n;
        memcpy(b->restore + r * h->n_parts, h->parts, (size_t)h->n_parts * sizeof *h->parts);
        for (int32_t k = 0; k < n + spec; k++) {
            b->rows[b->n_tokens] = b->n_tokens;
            b->ids[b->n_tokens++] =
                k < n ? h->want->text[s->len + k] : (h->want->text[s->len + k] + 1) % V;
        }
        b->q[r + 1] = b->n_tokens;
        memcpy(b->table + b->off[r], s->table, (size_t)s->n_table * sizeof *s->table);
        b->off[r + 1] = b->off[r] + s->n_table;
    }
}

static void commit(host *h, const batch *b)
{
    int32_t req = below(h, b->n), pos = 0, parts[PARTS];
    bool snap = below(h, 4) == 0;
    for (int32_t r = 0; r < b->n; r++) {
        h->s[b->slot[r]].len += b->keep[r];
        h->s[b->slot[r]].op = K3_SLOT_KEEP;
    }
    for (int32_t i = 0; i < SLOTS; i++)
        snap = snap && h->s[i].op != K3_SLOT_RESTORE; /* it may still be read */
    if (snap) {
        pos = h->s[b->slot[req]].len;
        for (int32_t i = 0; i < h->n_parts; i++)
            parts[i] = take(h);
    }
    const k3_commit_args c = {.size = sizeof c,
                              .n_reqs = b->n,
                              .n_snap = snap,
                              .accepted = b->keep,
                              .snap_req = &req,
                              .snap_pos = &pos,
                              .snap_block = parts};
    must(h, k3_commit(h->e, &c));
    if (!snap)
        return;
    for (int32_t i = 0; h->snap.is_live && i < h->n_parts; i++)
        give(h, h->parts[i]);
    drop(h, &h->snap);
    memcpy(h->parts, parts, sizeof parts);
    share(h, &h->snap, &h->s[b->slot[req]]);
}

static void draft_some(host *h, const batch *b)
{
    int32_t n = 0, req[SLOTS], last[SLOTS], len[SLOTS], ids[SLOTS][DRAFTS];
    for (int32_t r = 0; r < b->n; r++) {
        len[n] = h->s[b->slot[r]].len;
        req[n] = r;
        last[n] = h->want->text[len[n]];
        n += len[n] < LEN && below(h, 2) == 0;
    }
    if (n == 0)
        return;
    draft(h->e, req, n, last, ids[0]);
    for (int32_t i = 0; i < n; i++)
        assert_memory_equal(ids[i], h->want->drafted[len[i]], sizeof ids[i]);
}

static void step(host *h)
{
    batch b;
    float logits[64 * V];
    plan(h, &b);
    if (b.n == 0)
        return;
    const k3_batch k = {.size = sizeof k,
                        .n_reqs = b.n,
                        .n_tokens = b.n_tokens,
                        .n_logit_rows = b.n_tokens,
                        .token_ids = b.ids,
                        .q_start = b.q,
                        .ctx_len = b.ctx,
                        .slot = b.slot,
                        .slot_op = b.op,
                        .restore_block = b.restore,
                        .n_spec = b.n_spec,
                        .mla_off = b.off,
                        .mla_table = b.table,
                        .logit_row = b.rows};
    must(h, k3_forward(h->e, &k, logits, V));
    for (int32_t r = 0; r < b.n; r++) {
        size_t n = (size_t)b.keep[r] * V * sizeof(float);
        if (memcmp(logits + b.q[r] * V, h->want->logits + b.ctx[r] * V, n) != 0)
            fail_msg("seed %llu: logits differ at %d", (unsigned long long)h->seed, b.ctx[r]);
    }
    commit(h, &b);
    if (below(h, 4) == 0)
        draft_some(h, &b);
}

/* ---- everything else ---------------------------------------------------------------------------
 */

static void end_or_begin(host *h)
{
    int32_t slot = below(h, SLOTS);
    seq *s = &h->s[slot];
    if (s->is_live && (s->len > LEN - 5 || below(h, 3) == 0)) {
        if (s->op == K3_SLOT_KEEP && below(h, 2) == 0)
            must(h, k3_slot_release(h->e, slot));
        drop(h, s);
    } else if (!s->is_live && h->snap.is_live && below(h, 2) == 0) {
        share(h, s, &h->snap);
        s->op = K3_SLOT_RESTORE;
    } else if (!s->is_live) {
        *s = (seq){.is_live = true, .op = K3_SLOT_RESET};
    }
}

/* A full page of one sequence takes the place of another's, which holds the same bits. */
static void exchange(host *h)
{
    seq *a = &h->s[below(h, SLOTS)], *b = &h->s[below(h, SLOTS)];
    int32_t full = (a->len < b->len ? a->len : b->len) / BT;
    if (full == 0)
        return;
    int32_t i = full - 1, page = b->table[i];
    h->users[page]++;
    give(h, a->table[i]);
    a->table[i] = page;
}

static void late_rows_are_not_seen(void **state)
{
    (void)state;
    static plain want;
    static host h;
    for (uint64_t seed = 1; seed <= 2 * SEEDS; seed++) {
        if (seed % SEEDS == 1)
            plain_init(&want, seed == 1 ? "f32" : "bf16");
        h = (host){.want = &want, .rnd = seed, .seed = seed};
        h.e = open_pair(seed <= SEEDS ? "f32" : "bf16", 1 + below(&h, 2));
        drive_kv(h.e, PAGES, BT, SLOTS);
        h.n_parts = (int32_t)h.e->kv.shape.snapshot_blocks;
        assert_in_range(h.n_parts, 2, PARTS);
        for (int32_t i = PAGES - 1; i > 0; i--)
            h.free_page[h.n_free++] = i;
        for (int32_t i = 0; i < 300; i++) {
            int32_t kind = below(&h, 9);
            if (kind == 0)
                end_or_begin(&h);
            else if (kind < 3)
                exchange(&h);
            else
                step(&h);
            if (below(&h, 16) == 0)
                expect_plain_memory(&h);
        }
        expect_plain_memory(&h);
        k3_close(h.e);
        if (seed % SEEDS == 0)
            k3_close(want.e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(late_rows_are_not_seen)};
    draft_pair_new(&target_dir, &draft_dir);
    return draft_pair_done(cmocka_run_group_tests(tests, NULL, NULL), target_dir, draft_dir);
}
