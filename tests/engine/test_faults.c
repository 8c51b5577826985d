/* Every wrong argument gets its code and a sentence, and changes nothing: pool, states, slots and
 * snapshots are compared byte for byte, and the next correct call answers as if the wrong one had
 * never been made. Also: the Nth allocation of k3_open and k3_kv_init fails, for every N. */
#include "test.h"

#include "drive.h"
#include "engine.h"
#include "model.h"

enum { BT = 4, BLOCKS = 24, SLOTS = 4, ROWS = 6, VOCAB = 48, MAX_LEN = 64 };

static const test_model small = {
    .vocab = VOCAB,
    .hidden = 32,
    .layers = 3,
    .inter = 24,
    .heads = 2,
    .q_lora = 16,
    .kv_lora = 16,
    .nope = 8,
    .rope = 4,
    .v = 12,
    .kda_heads = 2,
    .kda_dim = 8,
    .taps = 4,
    .a_log_len = 8,
    .block = 2,
    .experts = 8,
    .top_k = 2,
    .shared = 1,
    .moe_inter = 32,
    .latent = 32,
    .groups = 1,
    .topk_groups = 1,
    .first_dense = 1,
    .moe_freq = 1,
    .is_kda = {1, 0, 1},
    .seed = "faults/",
    .poison = -1,
};

/* Two requests: 0 has 4 tokens in slot 0 (blocks 1, 2) and brings 1 token and 2 drafts; 1 starts in
 * slot 1 with 3 tokens (block 3). Snapshot of position 4 of request 0 in blocks 10... */
typedef struct {
    char *dir;
    k3_engine *e;
    int32_t pages;
    k3_batch b;
    int32_t ids[ROWS], q_start[3], ctx[2], slot[2], op[2], n_spec[2], off[3], logit_row[ROWS];
    int32_t table[100]; /* longer than any count that is believed */
    int32_t restore[2 * 8], snap_req[ROWS], snap_pos[ROWS], snap_block[ROWS * 8];
    int32_t media_token[ROWS], media_row[ROWS], media_count[ROWS];
    uint64_t media_key[ROWS];
    k3_status status[2];
    float logits[ROWS * VOCAB];
    k3_commit_args c;
    int32_t accepted[2], c_req[2], c_pos[2], c_block[2 * 8];
} fixture;

static void fill_batch(fixture *f)
{
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10}, q_start[] = {0, 3, 6}, ctx[] = {4, 0};
    static const int32_t off[] = {0, 2, 3}, table[] = {1, 2, 3, 4, 5, 6, 7, 8};
    memcpy(f->ids, ids, sizeof ids);
    memcpy(f->q_start, q_start, sizeof q_start);
    memcpy(f->ctx, ctx, sizeof ctx);
    memcpy(f->off, off, sizeof off);
    memcpy(f->table, table, sizeof table);
    f->slot[0] = 0;
    f->slot[1] = 1;
    f->op[0] = K3_SLOT_KEEP;
    f->op[1] = K3_SLOT_RESET;
    f->n_spec[0] = 2;
    f->n_spec[1] = 0;
    for (int32_t i = 0; i < ROWS; i++)
        f->logit_row[i] = i;
    for (int32_t i = 0; i < f->pages; i++) {
        f->restore[i] = f->restore[f->pages + i] = 10 + i;
        f->snap_block[i] = 15 + i;
        f->snap_block[f->pages + i] = 20 + i;
        f->c_block[i] = 20 + i;
    }
    f->snap_req[0] = 1;
    f->snap_pos[0] = 2;
    f->c_req[0] = 0;
    f->c_pos[0] = 6;
    f->accepted[0] = 2;
    f->accepted[1] = 3;
    f->media_token[0] = 3;
    f->media_row[0] = 1;
    f->media_count[0] = 2;
    f->media_key[0] = 77;
    f->b = (k3_batch){.size = sizeof f->b,
                      .n_reqs = 2,
                      .n_tokens = ROWS,
                      .n_logit_rows = ROWS,
                      .n_snap = 1,
                      .n_media = 1,
                      .token_ids = f->ids,
                      .q_start = f->q_start,
                      .ctx_len = f->ctx,
                      .slot = f->slot,
                      .slot_op = f->op,
                      .restore_block = f->restore,
                      .n_spec = f->n_spec,
                      .mla_off = f->off,
                      .mla_table = f->table,
                      .logit_row = f->logit_row,
                      .media_token = f->media_token,
                      .media_key = f->media_key,
                      .media_row = f->media_row,
                      .media_count = f->media_count,
                      .snap_req = f->snap_req,
                      .snap_pos = f->snap_pos,
                      .snap_block = f->snap_block,
                      .req_status = f->status};
    f->c = (k3_commit_args){.size = sizeof f->c,
                            .n_reqs = 2,
                            .n_snap = 1,
                            .accepted = f->accepted,
                            .snap_req = f->c_req,
                            .snap_pos = f->c_pos,
                            .snap_block = f->c_block,
                            .req_status = f->status};
}

/* Puts rows [n, hidden] of k3i_alloc into the image cache, past the tower that this model lacks. */
static void put_image(k3_engine *e, uint64_t key, float *rows, size_t n)
{
    k3i_images *im = &e->images;
    im->list = k3i_realloc(im->list, (im->n + 1) * sizeof *im->list);
    im->list[im->n++] = (k3i_image){.key = key, .n_rows = n, .rows = rows};
    im->cap = im->n;
    im->bytes += n * small.hidden * sizeof *rows;
}

/* An empty pool, then request 0 up to its fourth token, with a snapshot there. */
static void fixture_start(fixture *f)
{
    static const int32_t first[] = {11, 12, 13};
    k3_kv_config c = {.size = sizeof c,
                      .num_blocks = BLOCKS,
                      .block_tokens = BT,
                      .n_slots = SLOTS,
                      .page_bytes = 1024};
    k3_kv_layout lay = {.size = sizeof lay};
    assert_int_equal(k3_kv_init(f->e, &c, &lay), K3_OK);
    f->pages = lay.snapshot_blocks;
    assert_in_range(f->pages, 2, 4);
    drive_seq s = {.engine = f->e, .first_block = 1, .block_tokens = BT};
    assert_int_equal(drive_step(&s, first, 3, NULL), K3_OK);
    fill_batch(f);
    k3_batch b = f->b;
    int32_t q[] = {0, 1}, ctx = 3, keep = K3_SLOT_KEEP, zero = 0, one = 1, off[] = {0, 1}, id = 14;
    int32_t pos = 4;
    b.n_reqs = b.n_tokens = 1;
    b.n_logit_rows = b.n_snap = b.n_media = 0;
    b.token_ids = &id;
    b.q_start = q;
    b.ctx_len = &ctx;
    b.slot_op = &keep;
    b.n_spec = &zero;
    b.mla_off = off;
    assert_int_equal(k3_forward(f->e, &b, NULL, 0), K3_OK);
    const k3_commit_args commit = {.size = sizeof commit,
                                   .n_reqs = 1,
                                   .n_snap = 1,
                                   .accepted = &one,
                                   .snap_req = &zero,
                                   .snap_pos = &pos,
                                   .snap_block = f->restore};
    assert_int_equal(k3_commit(f->e, &commit), K3_OK);
}

static fixture *fixture_new(void)
{
    fixture *f = calloc(1, sizeof *f);
    f->dir = test_dir_new();
    test_model_write(&small, f->dir);
    f->e =
        drive_open(f->dir, "f32", 1,
                   ",\"max_num_seqs\":2,\"max_num_batched_tokens\":6,\"num_speculative_tokens\":3,"
                   "\"max_model_len\":64,\"isa\":\"ref\"");
    float *rows = k3i_alloc(3 * small.hidden * sizeof *rows);
    for (size_t i = 0; i < 3 * small.hidden; i++)
        rows[i] = (float)(i % 7) - 3;
    put_image(f->e, 77, rows, 3);
    fixture_start(f);
    return f;
}

static void fixture_free(fixture *f)
{
    k3_close(f->e);
    test_dir_remove(f->dir);
    free(f);
}

/* ---- what must not change ----------------------------------------------------------------------
 */

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ c[i]) * 0x100000001b3u;
    return h;
}

static uint64_t fingerprint(const k3_engine *e)
{
    const k3i_kv *kv = &e->kv;
    uint64_t h = mix(1, kv->pool.base, kv->shape.num_blocks * kv->shape.page_bytes);
    h = mix(h, kv->state, kv->shape.n_slots * e->text.kda.state_bytes);
    h = mix(h, kv->block, kv->shape.num_blocks * sizeof *kv->block);
    for (size_t i = 0; i < kv->shape.n_slots; i++) {
        h = mix(h, &kv->slot[i].used, sizeof kv->slot[i].used);
        h = mix(h, &kv->slot[i].pos, sizeof kv->slot[i].pos);
    }
    h = mix(h, &e->images, sizeof e->images);
    return mix(h, &e->pending, sizeof e->pending);
}

/* ---- batches -----------------------------------------------------------------------------------
 */

/* clang-format off: one case a line */
/* BAD(code, words of the message, what is wrong): f is the fixture, f->b the batch. */
#define BAD_BATCHES                                                                             \
    BAD(K3_E_ARG, "size", f->b.size = 8)                                                        \
    BAD(K3_E_ARG, "n_reqs", f->b.n_reqs = 0)                                                    \
    BAD(K3_E_ARG, "n_reqs", f->b.n_reqs = 3)                                                    \
    BAD(K3_E_ARG, "n_tokens", f->b.n_tokens = 0)                                                \
    BAD(K3_E_ARG, "n_tokens", f->b.n_tokens = 7)                                                \
    BAD(K3_E_ARG, "n_logit_rows", f->b.n_logit_rows = -1)                                       \
    BAD(K3_E_ARG, "n_logit_rows", f->b.n_logit_rows = 7)                                        \
    BAD(K3_E_ARG, "n_media", f->b.n_media = -1)                                                 \
    BAD(K3_E_ARG, "n_snap", f->b.n_snap = -1)                                                   \
    BAD(K3_E_ARG, "n_snap", f->b.n_snap = 7)                                                    \
    BAD(K3_E_ARG, "NULL", f->b.token_ids = NULL)                                                \
    BAD(K3_E_ARG, "NULL", f->b.q_start = NULL)                                                  \
    BAD(K3_E_ARG, "NULL", f->b.ctx_len = NULL)                                                  \
    BAD(K3_E_ARG, "NULL", f->b.slot = NULL)                                                     \
    BAD(K3_E_ARG, "NULL", f->b.slot_op = NULL)                                                  \
    BAD(K3_E_ARG, "NULL", f->b.n_spec = NULL)                                                   \
    BAD(K3_E_ARG, "NULL", f->b.mla_off = NULL)                                                  \
    BAD(K3_E_ARG, "NULL", f->b.mla_table = NULL)                                                \
    BAD(K3_E_ARG, "NULL", f->b.logit_row = NULL)                                                \
    BAD(K3_E_ARG, "NULL", f->b.media_key = NULL)                                                \
    BAD(K3_E_ARG, "NULL", f->b.snap_block = NULL)                                               \
    BAD(K3_E_ARG, "q_start", f->q_start[0] = 1)                                                 \
    BAD(K3_E_ARG, "q_start", f->q_start[1] = 0)                                                 \
    BAD(K3_E_ARG, "q_start", f->q_start[1] = INT32_MIN)                                         \
    BAD(K3_E_ARG, "q_start", (f->q_start[1] = 6, f->off[1] = 3))                                \
    BAD(K3_E_ARG, "q_start", f->q_start[1] = 7)                                                 \
    BAD(K3_E_ARG, "q_start", f->q_start[2] = 5)                                                 \
    BAD(K3_E_ARG, "ctx_len", f->ctx[0] = -1)                                                    \
    BAD(K3_E_CONTEXT, "max_model_len", f->ctx[0] = 62)                                          \
    BAD(K3_E_CONTEXT, "max_model_len", f->ctx[0] = INT32_MAX)                                   \
    BAD(K3_E_ARG, "n_spec", f->n_spec[0] = -1)                                                  \
    BAD(K3_E_ARG, "n_spec", f->n_spec[0] = 3)                                                   \
    BAD(K3_E_ARG, "n_spec", (f->q_start[1] = 5, f->n_spec[0] = 4))                              \
    BAD(K3_E_ARG, "mla_off", f->off[0] = -1)                                                    \
    BAD(K3_E_ARG, "mla_off", f->off[1] = -1)                                                    \
    BAD(K3_E_BLOCK, "blocks", f->off[1] = 1)                                                    \
    BAD(K3_E_BLOCK, "blocks", (f->off[1] = 0, f->off[2] = 1))                                   \
    BAD(K3_E_BLOCK, "blocks", f->off[2] = 30)                                                   \
    BAD(K3_E_BLOCK, "block 0", f->table[0] = 0)                                                 \
    BAD(K3_E_BLOCK, "block 24", f->table[1] = BLOCKS)                                           \
    BAD(K3_E_BLOCK, "block -5", f->table[2] = -5)                                               \
    BAD(K3_E_BLOCK, "uses already", f->table[1] = 1)                                            \
    BAD(K3_E_BLOCK, "uses already", f->table[2] = 2)                                            \
    BAD(K3_E_BLOCK, "uses already", f->table[2] = 1)                                            \
    BAD(K3_E_SLOT, "slot -1", f->slot[0] = -1)                                                  \
    BAD(K3_E_SLOT, "slot 4", f->slot[1] = SLOTS)                                                \
    BAD(K3_E_SLOT, "twice", f->slot[1] = 0)                                                     \
    BAD(K3_E_SLOT, "holds no state", f->slot[0] = 3)                                            \
    BAD(K3_E_SLOT, "is at 4", f->ctx[0] = 3)                                                    \
    BAD(K3_E_SLOT, "reset", f->op[0] = K3_SLOT_RESET)                                           \
    BAD(K3_E_ARG, "slot_op", f->op[0] = 3)                                                      \
    BAD(K3_E_ARG, "slot_op", f->op[0] = -1)                                                     \
    BAD(K3_E_ARG, "restore_block", (f->op[0] = K3_SLOT_RESTORE, f->b.restore_block = NULL))     \
    BAD(K3_E_BLOCK, "no snapshot", (f->op[0] = K3_SLOT_RESTORE, f->restore[0] = 9))             \
    BAD(K3_E_BLOCK, "no snapshot", (f->op[0] = K3_SLOT_RESTORE, f->restore[1] = 10))            \
    BAD(K3_E_BLOCK, "no snapshot", (f->op[0] = K3_SLOT_RESTORE, f->ctx[0] = 3))                 \
    BAD(K3_E_BLOCK, "no snapshot", f->op[1] = K3_SLOT_RESTORE)                                  \
    BAD(K3_E_BLOCK, "block 24", (f->op[0] = K3_SLOT_RESTORE, f->restore[1] = BLOCKS))           \
    BAD(K3_E_BLOCK, "uses already", (f->op[0] = K3_SLOT_RESTORE, f->restore[0] = 1))            \
    BAD(K3_E_ARG, "snapshot", f->snap_req[0] = 2)                                               \
    BAD(K3_E_ARG, "snapshot", f->snap_req[0] = -1)                                              \
    BAD(K3_E_ARG, "snapshot", f->snap_pos[0] = 0)                                               \
    BAD(K3_E_ARG, "snapshot", f->snap_pos[0] = 4)                                               \
    BAD(K3_E_ARG, "snapshot", (f->snap_req[0] = 0, f->snap_pos[0] = 6))                         \
    BAD(K3_E_BLOCK, "block 0", f->snap_block[0] = 0)                                            \
    BAD(K3_E_BLOCK, "uses already", f->snap_block[0] = 2)                                       \
    BAD(K3_E_BLOCK, "uses already", f->snap_block[1] = f->snap_block[0])                        \
    BAD(K3_E_BLOCK, "uses already", (f->op[0] = K3_SLOT_RESTORE, f->snap_block[0] = 10))        \
    BAD(K3_E_ARG, "not encoded", f->media_key[0] = 78)                                          \
    BAD(K3_E_ARG, "media run", f->media_token[0] = -1)                                          \
    BAD(K3_E_ARG, "media run", f->media_token[0] = 5)                                           \
    BAD(K3_E_ARG, "media run", f->media_row[0] = 2)                                             \
    BAD(K3_E_ARG, "media run", f->media_row[0] = -1)                                            \
    BAD(K3_E_ARG, "media run", f->media_count[0] = 0)                                           \
    BAD(K3_E_ARG, "media run", f->media_count[0] = 4)                                           \
    BAD(K3_E_ARG, "has a row",                                                                  \
        (f->b.n_media = 2, f->media_key[1] = 77, f->media_token[1] = 4, f->media_count[1] = 1)) \
    BAD(K3_E_ARG, "id -1", f->ids[0] = -1)                                                      \
    BAD(K3_E_ARG, "id 48", f->ids[5] = VOCAB)                                                   \
    BAD(K3_E_ARG, "logit_row", f->logit_row[5] = 6)                                             \
    BAD(K3_E_ARG, "logit_row", f->logit_row[0] = -1)                                            \
    BAD(K3_E_ARG, "logit_row", f->logit_row[2] = 1)
/* clang-format on */

typedef struct {
    k3_status code;
    const char *words, *text;
} bad_case;

static const bad_case bad_batches[] = {
#define BAD(code, words, statement) {code, words, #statement},
    BAD_BATCHES
#undef BAD
};

/* Makes the nth case. The expansion numbers the cases in order. */
static void spoil_batch(fixture *f, size_t n)
{
    size_t i = 0;
#define BAD(code, words, statement) \
    if (i++ == n)                   \
        statement;
    BAD_BATCHES
#undef BAD
}

static void expect(const fixture *f, k3_status got, const bad_case *c, uint64_t before)
{
    if (got != c->code || strstr(k3_last_error(f->e), c->words) == NULL)
        fail_msg("%s: %d '%s', expected %d '%s'", c->text, got, k3_last_error(f->e), c->code,
                 c->words);
    if (fingerprint(f->e) != before)
        fail_msg("%s: something changed", c->text);
}

static void good_batch(fixture *f, float *logits)
{
    fill_batch(f);
    if (k3_forward(f->e, &f->b, logits, VOCAB) != K3_OK)
        fail_msg("the control batch fails: %s", k3_last_error(f->e));
}

static void bad_batches_change_nothing(void **state)
{
    (void)state;
    fixture *control = fixture_new(), *f = fixture_new();
    float want[ROWS * VOCAB];
    good_batch(control, want);
    uint64_t before = fingerprint(f->e);
    for (size_t i = 0; i < sizeof bad_batches / sizeof bad_batches[0]; i++) {
        fill_batch(f);
        spoil_batch(f, i);
        expect(f, k3_forward(f->e, &f->b, f->logits, VOCAB), &bad_batches[i], before);
    }
    fill_batch(f);
    assert_int_equal(k3_forward(f->e, &f->b, NULL, VOCAB), K3_E_ARG);
    assert_int_equal(k3_forward(f->e, &f->b, f->logits, VOCAB - 1), K3_E_ARG);
    assert_int_equal(k3_forward(f->e, NULL, f->logits, VOCAB), K3_E_ARG);
    assert_int_equal(k3_forward(NULL, &f->b, f->logits, VOCAB), K3_E_ARG);
    assert_true(fingerprint(f->e) == before);
    good_batch(f, f->logits);
    assert_memory_equal(want, f->logits, sizeof want);
    fixture_free(control);
    fixture_free(f);
}

/* Puts something between plausible and absurd into a random place of the batch. */
static void spoil_at_random(fixture *f, uint64_t *rnd)
{
    static const int32_t values[] = {
        INT32_MIN,     -1,       0, 1, 2, 3, 4, 5, 6, 7, 10, 15, 23, 24, 48, 61, 64, 77,
        INT32_MAX - 1, INT32_MAX};
    struct {
        int32_t *at;
        size_t n;
    } places[] = {{f->ids, ROWS},
                  {f->q_start, 3},
                  {f->ctx, 2},
                  {f->slot, 2},
                  {f->op, 2},
                  {f->n_spec, 2},
                  {f->off, 3},
                  {f->table, 3},
                  {f->logit_row, ROWS},
                  {f->restore, 4},
                  {f->snap_req, 1},
                  {f->snap_pos, 1},
                  {f->snap_block, 2},
                  {f->media_token, 1},
                  {f->media_row, 1},
                  {f->media_count, 1},
                  {&f->b.n_reqs, 1},
                  {&f->b.n_tokens, 1},
                  {&f->b.n_logit_rows, 1},
                  {&f->b.n_media, 1},
                  {&f->b.n_snap, 1}};
    size_t p = test_rnd(rnd) % (sizeof places / sizeof places[0]);
    places[p].at[test_rnd(rnd) % places[p].n] =
        values[test_rnd(rnd) % (sizeof values / sizeof values[0])];
}

/* Whatever a batch says, the call refuses it with everything unchanged, or computes and can be
 * committed. */
static void random_batches_are_refused_or_computed(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    uint64_t rnd = 20261130, before = fingerprint(f->e);
    int n_ok = 0, n_refused = 0;
    print_message("seed %llu\n", (unsigned long long)rnd);
    for (int i = 0; i < 20000; i++) {
        fill_batch(f);
        for (uint64_t n = 1 + test_rnd(&rnd) % 4; n > 0; n--)
            spoil_at_random(f, &rnd);
        if (k3_forward(f->e, &f->b, f->logits, VOCAB) != K3_OK) {
            n_refused++;
            if (fingerprint(f->e) != before)
                fail_msg("batch %d was refused (%s) and changed something", i, k3_last_error(f->e));
            continue;
        }
        n_ok++;
        f->c.n_reqs = f->b.n_reqs;
        f->c.n_snap = 0;
        for (int32_t r = 0; r < f->b.n_reqs; r++)
            f->accepted[r] = f->q_start[r + 1] - f->q_start[r];
        assert_int_equal(k3_commit(f->e, &f->c), K3_OK);
        fixture_start(f);
        before = fingerprint(f->e);
    }
    print_message("%d computed, %d refused\n", n_ok, n_refused);
    assert_true(n_ok > 100 && n_refused > 1000);
    fixture_free(f);
}

/* ---- commits and the order of calls ------------------------------------------------------------
 */

#define BAD_COMMITS                                         \
    BAD(K3_E_ARG, "size", f->c.size = 0)                    \
    BAD(K3_E_ARG, "n_reqs", f->c.n_reqs = 1)                \
    BAD(K3_E_ARG, "n_reqs", f->c.accepted = NULL)           \
    BAD(K3_E_ARG, "pad_", f->c.pad_ = 1)                    \
    BAD(K3_E_ARG, "n_snap", f->c.n_snap = -1)               \
    BAD(K3_E_ARG, "n_snap", f->c.snap_pos = NULL)           \
    BAD(K3_E_ARG, "accepted", f->accepted[0] = 0)           \
    BAD(K3_E_ARG, "accepted", f->accepted[0] = 4)           \
    BAD(K3_E_ARG, "accepted", f->accepted[1] = 2)           \
    BAD(K3_E_ARG, "accepted", f->accepted[1] = -1)          \
    BAD(K3_E_ARG, "snapshot 0", f->c_req[0] = 2)            \
    BAD(K3_E_ARG, "snapshot 0", f->c_pos[0] = 4)            \
    BAD(K3_E_ARG, "snapshot 0", f->c_pos[0] = 7)            \
    BAD(K3_E_ARG, "snapshot 0", f->c_pos[0] = -1)           \
    BAD(K3_E_BLOCK, "block 0", f->c_block[0] = 0)           \
    BAD(K3_E_BLOCK, "uses already", f->c_block[0] = 1)      \
    BAD(K3_E_BLOCK, "uses already", f->c_block[0] = 3)      \
    BAD(K3_E_BLOCK, "uses already", f->c_block[1] = 20)     \
    BAD(K3_E_BLOCK, "uses already",                         \
        (f->c.n_snap = 2, f->c_req[1] = 0, f->c_pos[1] = 5, \
         memcpy(f->c_block + f->pages, f->c_block, sizeof(int32_t) * (size_t)f->pages)))

static const bad_case bad_commits[] = {
#define BAD(code, words, statement) {code, words, #statement},
    BAD_COMMITS
#undef BAD
};

static void spoil_commit(fixture *f, size_t n)
{
    size_t i = 0;
#define BAD(code, words, statement) \
    if (i++ == n)                   \
        statement;
    BAD_COMMITS
#undef BAD
}

static void bad_commits_change_nothing(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    assert_int_equal(k3_commit(f->e, &f->c), K3_E_STATE);
    good_batch(f, f->logits);
    uint64_t before = fingerprint(f->e);
    for (size_t i = 0; i < sizeof bad_commits / sizeof bad_commits[0]; i++) {
        fill_batch(f);
        spoil_commit(f, i);
        expect(f, k3_commit(f->e, &f->c), &bad_commits[i], before);
    }
    fill_batch(f);
    assert_int_equal(k3_forward(f->e, &f->b, f->logits, VOCAB), K3_E_STATE);
    assert_int_equal(k3_slot_release(f->e, 0), K3_E_STATE);
    assert_int_equal(k3_kv_copy(f->e, 1, 12), K3_E_STATE);
    assert_int_equal(k3_reset(f->e), K3_E_STATE);
    assert_true(fingerprint(f->e) == before);
    assert_int_equal(k3_commit(f->e, &f->c), K3_OK);
    assert_int_equal(k3_commit(f->e, &f->c), K3_E_STATE);
    assert_int_equal(f->e->kv.slot[0].pos, 6);
    fixture_free(f);
}

static void snapshots_end_when_their_pages_are_written(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    assert_true(k3i_kv_has_snapshot(&f->e->kv, f->restore, 4));
    assert_false(k3i_kv_has_snapshot(&f->e->kv, f->restore, 3));
    assert_int_equal(k3_kv_copy(f->e, 1, 12 < 10 + f->pages ? 11 : 10), K3_OK);
    assert_false(k3i_kv_has_snapshot(&f->e->kv, f->restore, 4));
    f->op[0] = K3_SLOT_RESTORE;
    assert_int_equal(k3_forward(f->e, &f->b, f->logits, VOCAB), K3_E_BLOCK);
    good_batch(f, f->logits);
    assert_true(k3i_kv_has_snapshot(&f->e->kv, f->snap_block, 2));
    assert_int_equal(k3_commit(f->e, &f->c), K3_OK);
    assert_true(k3i_kv_has_snapshot(&f->e->kv, f->c_block, 6));
    assert_int_equal(k3_reset(f->e), K3_OK);
    assert_false(k3i_kv_has_snapshot(&f->e->kv, f->c_block, 6));
    int32_t rows = 0;
    assert_int_equal(k3_image_rows(f->e, 77, NULL, 0, &rows), K3_E_ARG);
    fixture_free(f);
}

static void small_calls_check_their_arguments(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    k3_info info = {.size = 1};
    k3_stats_t stats = {.size = 1};
    int32_t rows = 0;
    float out[3 * 32];
    assert_int_equal(k3_query(f->e, &info), K3_E_ARG);
    assert_int_equal(k3_query(NULL, &info), K3_E_ARG);
    assert_int_equal(k3_stats(f->e, &stats), K3_E_ARG);
    stats.size = sizeof stats;
    assert_int_equal(k3_stats(f->e, &stats), K3_OK);
    assert_int_equal(stats.slots_used, 1);
    assert_int_equal(stats.steps, 2);
    assert_int_equal(stats.rows, 4);
    assert_int_equal(stats.snapshots, 1);
    assert_int_equal(k3_slot_release(f->e, SLOTS), K3_E_SLOT);
    assert_int_equal(k3_slot_release(f->e, -1), K3_E_SLOT);
    assert_int_equal(k3_kv_copy(f->e, 0, 1), K3_E_BLOCK);
    assert_int_equal(k3_kv_copy(f->e, 1, BLOCKS), K3_E_BLOCK);
    assert_int_equal(k3_kv_copy(f->e, 5, 5), K3_E_BLOCK);
    assert_int_equal(k3_image_rows(f->e, 77, out, 2, &rows), K3_E_ARG);
    assert_int_equal(k3_image_rows(f->e, 77, out, 3, &rows), K3_OK);
    assert_int_equal(rows, 3);
    k3_free_image(f->e, 1);
    k3_free_image(f->e, 77);
    assert_int_equal(k3_image_rows(f->e, 77, NULL, 0, &rows), K3_E_ARG);
    assert_int_equal(k3_encode_image(f->e, 0, NULL), K3_E_UNSUPPORTED);
    assert_int_equal(k3_draft(f->e, NULL), K3_E_UNSUPPORTED);
    assert_int_equal(k3_set_collective(f->e, NULL, NULL), K3_E_UNSUPPORTED);
    assert_string_equal(k3_last_error(NULL), "no engine");
    k3_close(NULL);
    fixture_free(f);
}

static void kv_configurations_are_checked(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    const k3_kv_config good = {
        .size = sizeof good, .num_blocks = 9, .block_tokens = 3, .n_slots = 2};
    k3_kv_layout lay = {.size = sizeof lay};
    k3_kv_config c[8];
    for (size_t i = 0; i < 8; i++)
        c[i] = good;
    c[0].size = 0;
    c[1].num_blocks = 1;
    c[2].block_tokens = 0;
    c[3].block_tokens = 65537;
    c[4].n_slots = 0;
    c[5].page_bytes = -1;
    c[6].page_bytes = 10; /* below the latents */
    c[7].page_bytes = INT64_MAX / 4;
    uint64_t before = fingerprint(f->e);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(k3_kv_plan(f->e, &c[i], &lay), i == 7 ? K3_E_NOMEM : K3_E_ARG);
        assert_int_equal(k3_kv_init(f->e, &c[i], &lay), i == 7 ? K3_E_NOMEM : K3_E_ARG);
    }
    assert_int_equal(k3_kv_plan(f->e, NULL, &lay), K3_E_ARG);
    assert_int_equal(k3_kv_plan(f->e, &good, NULL), K3_E_ARG);
    assert_true(fingerprint(f->e) == before);
    assert_int_equal(k3_kv_plan(f->e, &good, &lay), K3_OK);
    assert_true(fingerprint(f->e) == before);
    k3_info info = {.size = sizeof info};
    assert_int_equal(k3_query(f->e, &info), K3_OK);
    assert_int_equal(lay.slot_bytes, 2 * (info.state_bytes + info.record_bytes));
    assert_int_equal(lay.pool_bytes, 9 * lay.page_bytes);
    assert_true(lay.snapshot_blocks * lay.page_bytes >= info.state_bytes);
    assert_true((lay.snapshot_blocks - 1) * lay.page_bytes < info.state_bytes);
    fixture_free(f);
}

/* ---- options -----------------------------------------------------------------------------------
 */

static void options_are_checked(void **state)
{
    (void)state;
    static const struct {
        k3_status code;
        const char *words, *json; /* %s is the model */
    } bad[] = {
        {K3_E_OPTION, "JSON", "nonsense"},
        {K3_E_OPTION, "JSON", "{\"model\":\"%s\"} trailing"},
        {K3_E_OPTION, "object", "[]"},
        {K3_E_OPTION, "'model' is missing", "{}"},
        {K3_E_OPTION, "'model' must be a string", "{\"model\":1}"},
        {K3_E_OPTION, "'model' must be a string", "{\"model\":\"a\\u0000b\"}"},
        {K3_E_OPTION, "unknown option 'modle'", "{\"modle\":\"%s\"}"},
        {K3_E_OPTION, "given twice", "{\"model\":\"%s\",\"threads\":1,\"threads\":1}"},
        {K3_E_OPTION, "'mode'", "{\"model\":\"%s\",\"mode\":\"fp8\"}"},
        {K3_E_OPTION, "'threads'", "{\"model\":\"%s\",\"threads\":-1}"},
        {K3_E_OPTION, "'threads'", "{\"model\":\"%s\",\"threads\":1.5}"},
        {K3_E_OPTION, "'fixed_threads' must be true or false",
         "{\"model\":\"%s\",\"fixed_threads\":1}"},
        {K3_E_OPTION, "'split' must be", "{\"model\":\"%s\",\"split\":\"columns\"}"},
        {K3_E_OPTION, "'cpus'", "{\"model\":\"%s\",\"cpus\":[]}"},
        {K3_E_OPTION, "'cpus'", "{\"model\":\"%s\",\"cpus\":[-1]}"},
        {K3_E_ARG, "CPU", "{\"model\":\"%s\",\"cpus\":[60000]}"},
        {K3_E_OPTION, "zx81", "{\"model\":\"%s\",\"isa\":\"zx81\"}"},
        {K3_E_OPTION, "'max_num_seqs'", "{\"model\":\"%s\",\"max_num_seqs\":0}"},
        {K3_E_OPTION, "'max_num_seqs'", "{\"model\":\"%s\",\"max_num_seqs\":4097}"},
        {K3_E_OPTION, "'max_num_batched_tokens'",
         "{\"model\":\"%s\",\"max_num_batched_tokens\":0}"},
        {K3_E_OPTION, "'max_model_len'", "{\"model\":\"%s\",\"max_model_len\":\"8k\"}"},
        {K3_E_OPTION, "1048576", "{\"model\":\"%s\",\"max_model_len\":2000000}"},
        {K3_E_OPTION, "'num_speculative_tokens'",
         "{\"model\":\"%s\",\"num_speculative_tokens\":17}"},
        {K3_E_OPTION, "'aux_hidden_stream'", "{\"model\":\"%s\",\"aux_hidden_stream\":\"x\"}"},
        {K3_E_OPTION, "'latent_norm_eps'", "{\"model\":\"%s\",\"latent_norm_eps\":0}"},
        {K3_E_OPTION, "'image_cache_bytes'", "{\"model\":\"%s\",\"image_cache_bytes\":-1}"},
        {K3_E_OPTION, "'tp_rank' is 2", "{\"model\":\"%s\",\"tp_size\":2,\"tp_rank\":2}"},
        {K3_E_IO, "/no/such/folder", "{\"model\":\"/no/such/folder\"}"},
    };
    char *dir = test_dir_new(), json[1000], err[600];
    test_model_write(&small, dir);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        k3_engine *e = (k3_engine *)err;
        const char *at = strstr(bad[i].json, "%s");
        if (at == NULL) {
            snprintf(json, sizeof json, "%s", bad[i].json);
        } else {
            snprintf(json, sizeof json, "%.*s%s%s", (int)(at - bad[i].json), bad[i].json, dir,
                     at + 2);
        }
        k3_status st = k3_open(json, NULL, NULL, &e, err, sizeof err);
        if (st != bad[i].code || strstr(err, bad[i].words) == NULL)
            fail_msg("%s: %d '%s', expected %d '%s'", json, st, err, bad[i].code, bad[i].words);
        assert_ptr_equal(e, err);
    }
    k3_engine *e = NULL;
    assert_int_equal(k3_open(NULL, NULL, NULL, &e, NULL, 0), K3_E_OPTION);
    test_dir_remove(dir);
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static void every_allocation_may_fail(void **state)
{
    (void)state;
    char *dir = test_dir_new(), json[700], err[600];
    test_model_write(&small, dir);
    snprintf(json, sizeof json,
             "{\"model\":\"%s\",\"threads\":1,\"max_num_batched_tokens\":8,\"cpus\":[0]}", dir);
    k3_engine *e = NULL;
    size_t n = 1;
    for (;; n++) {
        k3i_alloc_fail_at(n);
        k3_status st = k3_open(json, NULL, NULL, &e, err, sizeof err);
        k3i_alloc_fail_at(0);
        if (st == K3_OK)
            break;
        if (st != K3_E_NOMEM || e != NULL || n > 100000)
            fail_msg("allocation %zu of k3_open: %d %s", n, st, err);
    }
    assert_true(n > 20);
    const k3_kv_config c = {.size = sizeof c, .num_blocks = 9, .block_tokens = 4, .n_slots = 2};
    for (n = 1;; n++) {
        k3i_alloc_fail_at(n);
        k3_status st = k3_kv_init(e, &c, NULL);
        k3i_alloc_fail_at(0);
        if (st == K3_OK)
            break;
        assert_int_equal(st, K3_E_NOMEM);
        assert_null(e->kv.pool.base);
    }
    assert_int_equal(n, 8);
    k3_close(e);
    test_dir_remove(dir);
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    uint64_t before = k3i_alloc_count();
    good_batch(f, f->logits);
    assert_int_equal(k3_commit(f->e, &f->c), K3_OK);
    assert_true(k3i_alloc_count() == before);
    fixture_free(f);
}

/* Rows of an image that equal a token's embedding must act like the token. */
static void media_rows_replace_embeddings(void **state)
{
    (void)state;
    fixture *f = fixture_new();
    float want[ROWS * VOCAB];
    size_t H = small.hidden;
    fill_batch(f);
    f->b.n_media = f->b.n_snap = f->c.n_snap = 0;
    assert_int_equal(k3_forward(f->e, &f->b, want, VOCAB), K3_OK);
    f->accepted[0] = 1;
    assert_int_equal(k3_commit(f->e, &f->c), K3_OK);
    float *rows = k3i_alloc(3 * H * sizeof *rows);
    for (size_t i = 0; i < 3; i++)
        f->e->run.op->from_bf16(rows + i * H,
                                f->e->target.text.embed_tokens + (size_t)f->ids[3 + i] * H, H);
    put_image(f->e, 5, rows, 3);
    fill_batch(f);
    f->b.n_snap = 0;
    f->b.n_media = 1;
    f->media_key[0] = 5;
    f->media_row[0] = 0;
    f->media_count[0] = 3;
    f->ids[3] = f->ids[4] = -1; /* ids under media rows mean nothing */
    f->ids[5] = VOCAB + 3;
    f->op[0] = K3_SLOT_RESTORE;
    assert_int_equal(k3_forward(f->e, &f->b, f->logits, VOCAB), K3_OK);
    assert_memory_equal(want, f->logits, sizeof want);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_batches_change_nothing),
        cmocka_unit_test(random_batches_are_refused_or_computed),
        cmocka_unit_test(bad_commits_change_nothing),
        cmocka_unit_test(snapshots_end_when_their_pages_are_written),
        cmocka_unit_test(small_calls_check_their_arguments),
        cmocka_unit_test(kv_configurations_are_checked),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(media_rows_replace_embeddings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
