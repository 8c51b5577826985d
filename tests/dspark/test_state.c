/* Speculation leaves no trace (dspark.md 10.3, 1-4): whatever is drafted and rejected, the logits
 * of accepted rows, the KDA and convolution states, the latents and the draft's context rows equal
 * those of a fresh engine that computed the committed tokens in one prefill, bitwise. And the taps
 * are the streams of dspark.md 2.2, recomputed here in double from the layers' outputs. */
#include "test.h"

#include "draft_file.h"
#include "drive.h"
#include "engine.h"

#include <math.h>

enum { V = 97, LEN = 90, BLOCKS = 200, MAX_SPEC = 16 };

static char *target_dir, *draft_dir;

static k3_engine *open_pair(const char *mode, int threads, const char *stream)
{
    char more[4400];
    snprintf(more, sizeof more,
             ",\"draft\":\"%s\",\"num_speculative_tokens\":%d,\"max_model_len\":256%s%s%s",
             draft_dir, MAX_SPEC, stream ? ",\"aux_hidden_stream\":\"" : "", stream ? stream : "",
             stream ? "\"" : "");
    return drive_open(target_dir, mode, threads, more);
}

/* A sequence with a permuted block table. */
typedef struct {
    k3_engine *e;
    int32_t slot, len, block_tokens;
    int32_t table[BLOCKS];
} seq;

static void seq_init(seq *s, k3_engine *e, int32_t slot, int32_t block_tokens, uint64_t seed)
{
    *s = (seq){.e = e, .slot = slot, .block_tokens = block_tokens};
    for (int32_t i = 0; i < BLOCKS - 1; i++)
        s->table[i] = i + 1;
    for (int32_t i = BLOCKS - 2; i > 0; i--) {
        int32_t j = (int32_t)(test_rnd(&seed) % (uint64_t)(i + 1)), t = s->table[i];
        s->table[i] = s->table[j];
        s->table[j] = t;
    }
}

/* One step of n rows of which the last n_spec may be rejected; logits [n, V]. The state comes from
 * the pages of `restore`, if there are any; those of `snap` receive the state behind the n rows. */
static k3_status step(seq *s, const int32_t *ids, int32_t n, int32_t n_spec, const int32_t *restore,
                      const int32_t *snap, float *logits)
{
    int32_t q[2] = {0, n}, rows[LEN + MAX_SPEC], req = 0, pos = s->len + n;
    int32_t op = restore != NULL ? K3_SLOT_RESTORE : s->len == 0 ? K3_SLOT_RESET : K3_SLOT_KEEP;
    int32_t off[2] = {0, (s->len + n + s->block_tokens - 1) / s->block_tokens};
    for (int32_t i = 0; i < n; i++)
        rows[i] = i;
    const k3_batch b = {.size = sizeof b,
                        .n_reqs = 1,
                        .n_tokens = n,
                        .n_logit_rows = n,
                        .n_snap = snap != NULL,
                        .token_ids = ids,
                        .q_start = q,
                        .ctx_len = &s->len,
                        .slot = &s->slot,
                        .slot_op = &op,
                        .restore_block = restore,
                        .n_spec = &n_spec,
                        .mla_off = off,
                        .mla_table = s->table,
                        .logit_row = rows,
                        .snap_req = &req,
                        .snap_pos = &pos,
                        .snap_block = snap};
    return k3_forward(s->e, &b, logits, V);
}

/* The same with the state that is there. Pending afterwards. */
static void forward(seq *s, const int32_t *ids, int32_t n, int32_t n_spec, float *logits)
{
    if (step(s, ids, n, n_spec, NULL, NULL, logits) != K3_OK)
        fail_msg("k3_forward: %s", k3_last_error(s->e));
}

static void commit(seq *s, int32_t accepted)
{
    const k3_commit_args c = {.size = sizeof c, .n_reqs = 1, .accepted = &accepted};
    if (k3_commit(s->e, &c) != K3_OK)
        fail_msg("k3_commit: %s", k3_last_error(s->e));
    s->len += accepted;
}

static void draft(seq *s, int32_t last, int32_t n, int32_t *ids)
{
    int32_t zero = 0;
    const k3_draft_args a = {
        .size = sizeof a, .n_reqs = 1, .n_draft = n, .req = &zero, .last_token = &last, .ids = ids};
    if (k3_draft(s->e, &a) != K3_OK)
        fail_msg("k3_draft: %s", k3_last_error(s->e));
}

/* Everything that outlives a step, for positions 0..len-1. */
static void expect_same_memory(const seq *a, const seq *b, uint64_t seed)
{
    k3i_draft_settle(a->e);
    k3i_draft_settle(b->e);
    const k3i_kv *x = &a->e->kv, *y = &b->e->kv;
    size_t state = a->e->text.kda.state_bytes;
    assert_int_equal(a->len, b->len);
    if (memcmp(x->state + (size_t)a->slot * state, y->state + (size_t)b->slot * state, state) != 0)
        fail_msg("seed %llu: KDA states differ", (unsigned long long)seed);
    size_t n_target = a->e->target.config.n_mla_layers,
           n_layers = n_target + k3i_draft_layers(a->e);
    for (size_t l = 0; l < n_layers; l++) {
        size_t row = l < n_target ? k3i_latent_width(&a->e->target.config) * a->e->run.act_bytes
                                  : k3i_draft_row_bytes(a->e);
        for (size_t p = 0; p < (size_t)a->len; p++) {
            size_t ba = (size_t)a->block_tokens, bb = (size_t)b->block_tokens;
            const char *ra = x->pool.base + (size_t)a->table[p / ba] * x->pool.page_bytes +
                             x->layer_offset[l] + p % ba * row;
            const char *rb = y->pool.base + (size_t)b->table[p / bb] * y->pool.page_bytes +
                             y->layer_offset[l] + p % bb * row;
            if (memcmp(ra, rb, row) != 0)
                fail_msg("seed %llu: %s layer %zu differs at position %zu",
                         (unsigned long long)seed, l < n_target ? "latent" : "draft context", l, p);
        }
    }
}

static int32_t argmax(const float *x)
{
    int32_t best = 0;
    for (int32_t i = 1; i < V; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Drafts of one kind: perfect, right up to a point, random, the draft model's own. */
static void propose(seq *s, uint64_t *rnd, const int32_t *text, int32_t k, int32_t *ids)
{
    uint64_t kind = test_rnd(rnd) % 4;
    if (kind == 3 && k > 0) {
        draft(s, text[s->len], k, ids);
        return;
    }
    int32_t right = kind == 0 ? k : kind == 1 ? (int32_t)(test_rnd(rnd) % (uint64_t)(k + 1)) : 0;
    for (int32_t i = 0; i < k; i++)
        ids[i] = i < right ? text[s->len + 1 + i] : (int32_t)(test_rnd(rnd) % V);
}

/* A greedy run of LEN tokens under one random schedule against `text` and its logits. */
static void run_schedule(uint64_t seed, const int32_t *text, const float *want, const char *mode,
                         const char *stream, const seq *fresh)
{
    uint64_t rnd = seed;
    int32_t block_tokens = 1 + (int32_t)(test_rnd(&rnd) % 20);
    int32_t chunk = 1 + (int32_t)(test_rnd(&rnd) % 30);
    k3_engine *e = open_pair(mode, 1 + (int)(test_rnd(&rnd) % 3), stream);
    drive_kv(e, BLOCKS, block_tokens, 3);
    seq s;
    float logits[(LEN + MAX_SPEC) * V];
    seq_init(&s, e, (int32_t)(test_rnd(&rnd) % 3), block_tokens, seed);
    while (s.len < 40) {
        int32_t n = 40 - s.len < chunk ? 40 - s.len : chunk;
        forward(&s, text + s.len, n, 0, logits);
        assert_memory_equal(logits, want + s.len * V, (size_t)n * V * sizeof(float));
        commit(&s, n);
    }
    while (s.len < LEN - MAX_SPEC - 1) {
        int32_t k = (int32_t)(test_rnd(&rnd) % (MAX_SPEC + 1)), ids[MAX_SPEC + 1];
        ids[0] = text[s.len];
        propose(&s, &rnd, text, k, ids + 1);
        forward(&s, ids, k + 1, k, logits);
        int32_t a = 0;
        while (a < k && ids[a + 1] == argmax(logits + a * V))
            a++;
        for (int32_t i = 0; i <= a; i++) {
            if (memcmp(logits + i * V, want + (s.len + i) * V, V * sizeof(float)) != 0)
                fail_msg("seed %llu: logits of position %d differ", (unsigned long long)seed,
                         s.len + i);
        }
        commit(&s, a + 1);
    }
    seq part = *fresh;
    k3_engine *f = open_pair(mode, 1, stream);
    drive_kv(f, BLOCKS, fresh->block_tokens, 3);
    part.e = f;
    part.len = 0;
    forward(&part, text, s.len, 0, logits);
    commit(&part, s.len);
    expect_same_memory(&s, &part, seed);
    int32_t a[7], b[7];
    draft(&s, text[s.len], 7, a);
    draft(&part, text[s.len], 7, b);
    assert_memory_equal(a, b, sizeof a);
    k3_close(f);
    k3_close(e);
}

static void speculation_leaves_no_trace(void **state)
{
    (void)state;
    static const char *const mode[] = {"f32", "bf16"}, *const stream[] = {NULL, "attn_res"};
    for (size_t v = 0; v < 4; v++) {
        k3_engine *e = open_pair(mode[v % 2], 1, stream[v / 2]);
        drive_kv(e, BLOCKS, 7, 3);
        seq s;
        int32_t text[LEN + 1];
        static float want[(LEN + 1) * V];
        seq_init(&s, e, 1, 7, 99);
        seq fresh = s;
        test_prompt(&test_model_pair, text, 40);
        for (int32_t i = 0; i < LEN; i++) { /* plain greedy decoding, one token at a time */
            forward(&s, text + i, 1, 0, want + i * V);
            commit(&s, 1);
            if (i >= 39)
                text[i + 1] = argmax(want + i * V);
        }
        k3_close(e);
        for (uint64_t seed = 1; seed <= 12; seed++)
            run_schedule(100 * v + seed, text, want, mode[v % 2], stream[v / 2], &fresh);
    }
}

/* ---- taps --------------------------------------------------------------------------------------
 */

typedef struct {
    float prefix[8][LEN * 64]; /* after each layer, [T, H] */
} trace;

static void keep_prefix(void *user, const char *what, size_t layer, const float *x, size_t T,
                        size_t n)
{
    trace *t = user;
    if (strcmp(what, "prefix") == 0)
        memcpy(t->prefix[layer], x, T * n * sizeof *x);
}

/* dspark.md 2.2: the mixture that layer `l` + 1 computes, of the snapshots before it and the
 * prefix. */
static void mixture(const k3_engine *e, const trace *t, const float *embed, size_t l, size_t row,
                    double *out)
{
    enum { H = 64 };
    const k3i_text_weights *w = &e->target.text;
    size_t next = l + 1, m = (next + 2) / 3; /* snapshots at layers 0, 3, 6 below `next` */
    const k3i_bf16 *nw = next < 8 ? w->layers[next].attn_res_norm : w->output_res_norm;
    const k3i_bf16 *pw = next < 8 ? w->layers[next].attn_res_proj : w->output_res_proj;
    const float *v[4];
    double s[4], max = -INFINITY, sum = 0;
    for (size_t j = 0; j <= m; j++) {
        v[j] = j == m ? t->prefix[l] + row * H : j == 0 ? embed : t->prefix[3 * j - 1] + row * H;
        double sq = 0, dot = 0;
        for (size_t i = 0; i < H; i++) {
            double x = (double)v[j][i];
            sq += x * x;
            dot += x * (double)k3i_from_bf16(nw[i]) * (double)k3i_from_bf16(pw[i]);
        }
        s[j] = dot / sqrt(sq / H + 1e-5);
        max = s[j] > max ? s[j] : max;
    }
    memset(out, 0, H * sizeof *out);
    for (size_t j = 0; j <= m; j++)
        sum += exp(s[j] - max);
    for (size_t j = 0; j <= m; j++) {
        for (size_t i = 0; i < H; i++)
            out[i] += exp(s[j] - max) / sum * (double)v[j][i];
    }
}

static void check_stream(const char *stream)
{
    enum { T = 20, H = 64 };
    static const size_t taps[4] = {0, 2, 4, 7};
    k3_engine *e = open_pair("f32", 2, stream);
    static trace tr;
    float logits[T * V], embed[H];
    int32_t text[T];
    seq s;
    drive_kv(e, BLOCKS, 7, 3);
    seq_init(&s, e, 0, 7, 1);
    test_prompt(&test_model_pair, text, T);
    e->trace = keep_prefix;
    e->trace_user = &tr;
    forward(&s, text, T, 0, logits);
    for (size_t row = 0; row < T; row++) {
        e->run.op->from_bf16(embed, e->target.text.embed_tokens + (size_t)text[row] * H, H);
        for (size_t i = 0; i < 4; i++) {
            const float *got = (const float *)e->draft.taps.out + (row * 4 + i) * H;
            double want[H];
            if (strcmp(stream, "prefix") == 0) {
                assert_memory_equal(got, tr.prefix[taps[i]] + row * H, H * sizeof *got);
                continue;
            }
            mixture(e, &tr, embed, taps[i], row, want);
            for (size_t c = 0; c < H; c++) {
                if (fabs((double)got[c] - want[c]) > 1e-4 * (1 + fabs(want[c])))
                    fail_msg("row %zu, tap %zu, channel %zu: %g, want %g", row, taps[i], c,
                             (double)got[c], want[c]);
            }
        }
    }
    commit(&s, T);
    k3_close(e);
}

static void taps_are_the_streams(void **state)
{
    (void)state;
    check_stream("prefix");
    check_stream("attn_res");
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

static void wrong_drafting_is_refused(void **state)
{
    (void)state;
    k3_engine *e = open_pair("f32", 1, NULL);
    drive_kv(e, BLOCKS, 7, 3);
    seq s;
    float logits[3 * V];
    int32_t text[3] = {1, 2, 3}, ids[MAX_SPEC], req = 0, last = 5;
    k3_draft_args a = {
        .size = sizeof a, .n_reqs = 1, .n_draft = 3, .req = &req, .last_token = &last, .ids = ids};
    assert_int_equal(k3_draft(e, &a), K3_E_STATE); /* no batch yet */
    seq_init(&s, e, 0, 7, 1);
    forward(&s, text, 3, 0, logits);
    assert_int_equal(k3_draft(e, &a), K3_E_STATE); /* not committed */
    commit(&s, 3);
    assert_int_equal(k3_draft(e, &a), K3_OK);
    last = V;
    assert_int_equal(k3_draft(e, &a), K3_E_ARG);
    last = -1;
    assert_int_equal(k3_draft(e, &a), K3_E_ARG);
    last = 5;
    req = 1;
    assert_int_equal(k3_draft(e, &a), K3_E_ARG);
    req = 0;
    a.n_draft = MAX_SPEC + 1;
    assert_int_equal(k3_draft(e, &a), K3_E_ARG);
    a.n_draft = 3;
    assert_int_equal(k3_slot_release(e, 0), K3_OK);
    assert_int_equal(k3_draft(e, &a), K3_E_SLOT);
    k3_close(e);
    e = drive_open(target_dir, "f32", 1, "");
    assert_int_equal(k3_draft(e, &a), K3_E_UNSUPPORTED);
    k3_close(e);
    char err[600];
    snprintf(err, sizeof err, "{\"model\":\"%s\",\"aux_hidden_stream\":\"prefix\"}", target_dir);
    assert_int_equal(k3_open(err, NULL, NULL, &e, err, sizeof err), K3_E_OPTION);
}

/* ---- snapshots ---------------------------------------------------------------------------------
 */

enum {
    POS = 8,    /* of the snapshots */
    MORE = 7,   /* tokens behind it */
    PARTS = 64, /* pages of one at most */
};

/* Two sequences of one text, cut differently, leave a snapshot each at POS; `later` is the first
 * one's at the end. */
typedef struct {
    k3_engine *e;
    seq a, b;
    int32_t n, one[PARTS], two[PARTS], later[PARTS]; /* n pages each */
    float want[MORE * V];                            /* behind POS */
    int32_t drafted[7];
} snapshots;

static void snapshots_take(snapshots *s, const int32_t *text)
{
    float logits[POS * V];
    s->e = open_pair("bf16", 2, NULL);
    drive_kv(s->e, 400, 4, 3);
    s->n = (int32_t)s->e->kv.shape.snapshot_blocks;
    assert_in_range(s->n, 3, PARTS);
    s->a = (seq){.e = s->e, .slot = 0, .block_tokens = 4};
    s->b = (seq){.e = s->e, .slot = 1, .block_tokens = 4};
    for (int32_t i = 0; i < 4; i++) {
        s->a.table[i] = 1 + i;
        s->b.table[i] = 11 + i;
    }
    for (int32_t i = 0; i < s->n; i++) {
        s->one[i] = 100 + i;
        s->two[i] = 200 + i;
        s->later[i] = 300 + i;
    }
    assert_int_equal(step(&s->a, text, POS, 0, NULL, s->one, logits), K3_OK);
    commit(&s->a, POS);
    assert_int_equal(step(&s->a, text + POS, MORE, 0, NULL, s->later, s->want), K3_OK);
    commit(&s->a, MORE);
    draft(&s->a, text[POS + MORE], 7, s->drafted);
    forward(&s->b, text, 5, 0, logits);
    commit(&s->b, 5);
    assert_int_equal(step(&s->b, text + 5, POS - 5, 0, NULL, s->two, logits), K3_OK);
    commit(&s->b, POS - 5);
}

/* A host that finds pages by the text they hold may bring together parts of several snapshots: they
 * are the same bits, for the target and for what the draft proposes behind them. */
static void snapshots_mix_by_part(void **state)
{
    (void)state;
    snapshots s;
    int32_t text[POS + MORE + 1], drafted[7], mixed[PARTS];
    float logits[MORE * V];
    test_prompt(&test_model_pair, text, POS + MORE + 1);
    snapshots_take(&s, text);
    for (uint64_t mask = 0; mask < 6; mask++) { /* all of one, of the other, and four mixtures */
        uint64_t rnd = mask;
        seq c = {.e = s.e, .slot = 2, .len = POS, .block_tokens = 4, .table = {1, 2, 21, 22}};
        for (int32_t i = 0; i < s.n; i++)
            mixed[i] = (mask < 2 ? mask == 0 : test_rnd(&rnd) % 2 == 0) ? s.one[i] : s.two[i];
        assert_int_equal(step(&c, text + POS, MORE, 3, mixed, NULL, logits), K3_OK);
        assert_memory_equal(logits, s.want, sizeof logits);
        commit(&c, MORE);
        expect_same_memory(&c, &s.a, mask);
        draft(&c, text[POS + MORE], 7, drafted);
        assert_memory_equal(drafted, s.drafted, sizeof drafted);
        assert_int_equal(k3_slot_release(s.e, 2), K3_OK);
    }
    k3_close(s.e);
}

/* Parts that do not belong together are refused by the page, and nothing has happened. */
static void snapshots_of_other_parts_are_refused(void **state)
{
    (void)state;
    snapshots s;
    int32_t text[POS + MORE + 1], bad[PARTS];
    float logits[MORE * V];
    test_prompt(&test_model_pair, text, POS + MORE + 1);
    snapshots_take(&s, text);
    seq c = {.e = s.e, .slot = 2, .len = POS, .block_tokens = 4, .table = {1, 2, 21, 22}};
    for (int kind = 0; kind < 5; kind++) {
        memcpy(bad, s.one, sizeof bad);
        if (kind == 0)
            bad[1] = s.later[1]; /* right part, other position */
        else if (kind == 1)
            bad[1] = s.two[2]; /* right position, other part */
        else if (kind == 2)
            bad[s.n - 1] = 11; /* latents */
        else if (kind == 3)
            bad[0] = 99; /* never written */
        else
            assert_int_equal(k3_kv_copy(s.e, 2, bad[2]), K3_OK); /* written since */
        assert_int_equal(step(&c, text + POS, MORE, 0, bad, NULL, logits), K3_E_BLOCK);
        if (strstr(k3_last_error(s.e), "no snapshot") == NULL)
            fail_msg("case %d: %s", kind, k3_last_error(s.e));
        assert_false(s.e->pending);
    }
    assert_int_equal(step(&c, text + POS, MORE, 0, s.two, NULL, logits), K3_OK);
    assert_memory_equal(logits, s.want, sizeof logits);
    commit(&c, MORE);
    expect_same_memory(&c, &s.a, 0);
    k3_close(s.e);
}

/* No state copies per draft: the plan grows by the records alone, and they are small. */
static void memory_is_the_plan(void **state)
{
    (void)state;
    k3_info plain = {.size = sizeof plain}, spec = plain;
    k3_engine *a = drive_open(target_dir, "f32", 1, ""), *b = open_pair("f32", 1, NULL);
    assert_int_equal(k3_query(a, &plain), K3_OK);
    assert_int_equal(k3_query(b, &spec), K3_OK);
    assert_int_equal(plain.record_bytes, 0);
    assert_true(spec.state_bytes == plain.state_bytes);
    k3_kv_config c = {.size = sizeof c, .num_blocks = 10, .block_tokens = 16, .n_slots = 5};
    k3_kv_layout la = {.size = sizeof la}, lb = la;
    assert_int_equal(k3_kv_plan(a, &c, &la), K3_OK);
    assert_int_equal(k3_kv_plan(b, &c, &lb), K3_OK);
    assert_true(lb.slot_bytes - la.slot_bytes == 5 * spec.record_bytes);
    /* k, decay, e and the raw q, k, v of one row: 6 vectors of 16 per head, 4 heads, 6 layers,
     * rounded up to a cache line per head. */
    assert_true(spec.record_bytes == MAX_SPEC * 6 * 4 * 6 * 16 * 4);
    k3_close(a);
    k3_close(b);
}

/* Without drafts, rows wait for their context rows; there is always room for the taps of the
 * largest batch behind them. */
static void late_rows_have_their_place(void **state)
{
    (void)state;
    k3_engine *e = open_pair("f32", 1, NULL);
    drive_kv(e, BLOCKS, 7, 3);
    const k3i_draft *d = &e->draft;
    size_t row = d->taps.n * d->files.config.hidden_size * e->run.act_bytes, most = 0;
    float logits[V];
    seq s;
    seq_init(&s, e, 0, 7, 1);
    for (int32_t i = 0; i < 200; i++) {
        int32_t id = i % V;
        forward(&s, &id, 1, 0, logits);
        commit(&s, 1);
        assert_true((d->n_waiting + e->opt.max_num_batched_tokens) * row <= d->taps_bytes);
        most = d->n_waiting > most ? d->n_waiting : most;
    }
    assert_true(most > 1);
    k3_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speculation_leaves_no_trace),
        cmocka_unit_test(taps_are_the_streams),
        cmocka_unit_test(wrong_drafting_is_refused),
        cmocka_unit_test(snapshots_mix_by_part),
        cmocka_unit_test(snapshots_of_other_parts_are_refused),
        cmocka_unit_test(memory_is_the_plan),
        cmocka_unit_test(late_rows_have_their_place),
    };
    draft_pair_new(&target_dir, &draft_dir);
    return draft_pair_done(cmocka_run_group_tests(tests, NULL, NULL), target_dir, draft_dir);
}
