/* The scheduler's contract as a property: under random load, pool sizes, snapshot budgets, chunk
 * sizes, drafts, cancels, preemptions and prefix hits the output of every request equals its solo
 * output in a roomy engine. */
#include "fake_engine.h"
#include "scheduler.h"
#include "test.h"

enum { VOCAB = 60, STOP = 0, POISON = 7, N_REQ = 40 };

typedef struct {
    int32_t prompt[400], n_prompt, max_tokens, media_at, media_rows, n_media;
    uint64_t key[2];
    k3i_sampling sampling;
    int32_t no_speculation;
} spec;

static const int32_t stop_ids[] = {STOP};

static int32_t rnd_below(uint64_t *seed, int32_t n)
{
    return (int32_t)(test_rnd(seed) % (uint64_t)n);
}

/* Prompts share prefixes of a few families, pictures repeat, sampling varies. */
static void random_specs(uint64_t *seed, spec *specs, int32_t max_len)
{
    static const k3i_logit_bias bias[] = {{3, 1.5f}};
    for (int32_t i = 0; i < N_REQ; i++) {
        spec *s = &specs[i];
        memset(s, 0, sizeof *s);
        uint64_t family = 500 + test_rnd(seed) % 3, own = test_rnd(seed);
        s->n_prompt = 1 + rnd_below(seed, max_len - 40);
        int32_t shared = rnd_below(seed, s->n_prompt + 1);
        for (int32_t t = 0; t < s->n_prompt; t++) {
            uint64_t *from = t < shared ? &family : &own;
            do {
                s->prompt[t] = rnd_below(from, VOCAB);
            } while (s->prompt[t] == POISON);
        }
        if (s->n_prompt > 12 && i % 3 == 0) {
            s->n_media = 1 + rnd_below(seed, 2);
            s->media_rows = 1 + rnd_below(seed, 4);
            s->media_at = rnd_below(seed, s->n_prompt - 2 * s->media_rows - 1);
            s->key[0] = test_rnd(seed) % 4;
            s->key[1] = test_rnd(seed) % 4;
        }
        s->max_tokens = 1 + rnd_below(seed, 30);
        s->sampling = k3i_sampling_default();
        s->sampling.seed = test_rnd(seed);
        s->sampling.temperature = i % 2 ? 0.0f : 0.7f;
        s->sampling.stop = stop_ids;
        s->sampling.n_stop = 1;
        if (i % 5 == 0)
            s->sampling.presence_penalty = 0.8f;
        if (i % 7 == 0)
            s->sampling.repetition_penalty = 1.3f;
        if (i % 4 == 0) {
            s->sampling.bias = bias;
            s->sampling.n_bias = 1;
            s->sampling.min_tokens = s->max_tokens / 2;
        }
        s->no_speculation = i % 11 == 0;
    }
}

static k3i_request *make(const spec *s)
{
    k3i_request *r;
    assert_int_equal(k3i_request_new(s->prompt, s->n_prompt, &r, NULL), K3_OK);
    r->sampling = s->sampling;
    r->max_tokens = s->max_tokens;
    r->no_speculation = s->no_speculation;
    r->media = k3i_alloc_zero((size_t)s->n_media * sizeof *r->media);
    r->n_media = s->n_media;
    for (int32_t i = 0; i < s->n_media; i++)
        r->media[i] = (k3i_media){.key = s->key[i],
                                  .at = s->media_at + i * s->media_rows,
                                  .rows = s->media_rows,
                                  .pixels = NULL,
                                  .grid_t = 1};
    return r;
}

static k3i_sched *open_sched(const k3i_sched_config *config)
{
    k3i_sched *s;
    k3i_err err = {0};
    if (k3i_sched_new(config, &s, &err) != K3_OK)
        fail_msg("%s", err.text);
    return s;
}

static k3i_sched *new_sched(k3_engine *e, int32_t num_blocks, int32_t block_tokens,
                            int32_t spec_tokens, int32_t fixed, int32_t no_cache)
{
    return open_sched(&(k3i_sched_config){.engine = e,
                                          .num_blocks = num_blocks,
                                          .block_tokens = block_tokens,
                                          .speculative_tokens = spec_tokens,
                                          .is_fixed_width = fixed,
                                          .no_prefix_caching = no_cache,
                                          .snapshot_interval = 16});
}

static void expect_clean(const k3_engine *e)
{
    if (fake_violation(e)[0] != 0)
        fail_msg("engine: %s", fake_violation(e));
}

/* Plain, alone, uncached, one chunk: the reference. */
static k3i_request *solo_with(const spec *s, int32_t poison)
{
    fake_config c = {.vocab = VOCAB,
                     .max_num_seqs = 1,
                     .max_num_batched_tokens = 512,
                     .max_model_len = 400,
                     .snapshot_blocks = 1,
                     .poison = poison,
                     .image_budget = 9};
    k3_engine *e = fake_new(&c);
    k3i_sched *sched = new_sched(e, 200, 4, 0, 0, 1);
    k3i_request *r = make(s);
    k3i_sched_add(sched, r);
    while (!k3i_sched_is_idle(sched))
        assert_true(k3i_sched_step(sched));
    expect_clean(e);
    k3i_sched_free(sched);
    fake_free(e);
    return r;
}

static k3i_request *solo(const spec *s)
{
    return solo_with(s, -1);
}

static void expect_same(const k3i_request *got, const k3i_request *want, uint64_t seed, int32_t i)
{
    if (got->finish != want->finish || got->n_ready != want->n_ready ||
        memcmp(got->ready, want->ready, (size_t)got->n_ready * sizeof *got->ready) != 0)
        fail_msg("seed %d, request %d: finish %d (want %d), %d tokens (want %d)", (int)seed, i,
                 got->finish, want->finish, got->n_ready, want->n_ready);
}

/* How many state snapshots may exist at a time. */
typedef enum {
    NO_SNAPSHOT,
    ONE_SNAPSHOT,
    FEW_SNAPSHOTS,
    MANY_SNAPSHOTS,
    NO_CACHE,
    N_BUDGETS
} budget;

/* What the runs with one budget have seen. */
typedef struct {
    int64_t preempted, cached, kept;
    int32_t
        full; /* steps that ended with as many snapshots as the budget has: the next one evicts */
    int32_t mixed; /* runs with evictions, preemptions and accepted drafts */
} tally;

static k3i_sched *random_sched(k3_engine *e, const fake_config *c, budget kind, uint64_t *seed,
                               int32_t *ret_most)
{
    static const int32_t page_bytes = 64; /* fake_engine.c */
    int32_t block = 1 + rnd_below(seed, 9), least = (c->max_model_len + block - 1) / block + 1;
    /* One time in three nothing is left beside one request of full length. */
    int32_t more = rnd_below(seed, 3) == 0 ? 0 : rnd_below(seed, 3 * least);
    int32_t most = kind == NO_SNAPSHOT || kind == NO_CACHE ? 0
                   : kind == ONE_SNAPSHOT                  ? 1
                   : kind == FEW_SNAPSHOTS                 ? 2 + rnd_below(seed, 3)
                                                           : 1000;
    int64_t bytes = (int64_t)most * c->snapshot_blocks * page_bytes;
    *ret_most = most;
    return open_sched(&(k3i_sched_config){
        .engine = e,
        .num_blocks = least + more,
        .block_tokens = block,
        .speculative_tokens = c->draft_tokens,
        .is_fixed_width = rnd_below(seed, 2),
        .no_prefix_caching = kind == NO_CACHE,
        .snapshot_interval = 8 + rnd_below(seed, 24),
        .snapshot_bytes = bytes + 1 + rnd_below(seed, c->snapshot_blocks * page_bytes - 1)});
}

/* The next request of the list; now and then it has the prompt of its neighbour, and waits for it.
 */
static k3i_request *add_random(k3i_sched *s, spec *specs, k3i_request **r, int32_t n,
                               uint64_t *seed)
{
    r[n] = make(&specs[n]);
    if (n % 6 == 5 && rnd_below(seed, 2)) {
        k3i_request_unref(r[n]);
        specs[n] = specs[n - 1];
        specs[n].sampling.seed = test_rnd(seed);
        r[n] = make(&specs[n]);
        r[n]->leader = r[n - 1];
        k3i_request_ref(r[n - 1]);
    }
    k3i_err err;
    assert_int_equal(k3i_sched_check(s, r[n], &err), K3_OK);
    k3i_sched_add(s, r[n]);
    return r[n];
}

static void expect_solo(k3i_request **r, const spec *specs, const bool *cancelled, uint64_t seed)
{
    for (int32_t i = 0; i < N_REQ; i++) {
        if (!cancelled[i] || r[i]->finish != K3_FINISH_ABORT) {
            k3i_request *want = solo_with(&specs[i], POISON);
            expect_same(r[i], want, seed, i);
            k3i_request_unref(want);
        }
        k3i_request_unref(r[i]);
    }
}

static void run_random(uint64_t seed0, budget kind, tally *total)
{
    uint64_t seed = seed0;
    static spec specs[N_REQ];
    enum { MAX_LEN = 120 };
    random_specs(&seed, specs, MAX_LEN);
    int32_t seqs = 1 + rnd_below(&seed, 8), most;
    fake_config c = {.vocab = VOCAB,
                     .max_num_seqs = seqs,
                     .max_num_batched_tokens = seqs + rnd_below(&seed, 60),
                     .max_model_len = MAX_LEN,
                     .snapshot_blocks = 1 + rnd_below(&seed, 3),
                     .draft_tokens = rnd_below(&seed, 5),
                     .draft_mode = rnd_below(&seed, 4),
                     .poison = POISON,
                     .image_budget = 2 + rnd_below(&seed, 3)};
    k3_engine *e = fake_new(&c);
    k3i_sched *s = random_sched(e, &c, kind, &seed, &most);
    k3i_request *r[N_REQ] = {0};
    k3i_stats stats;
    int32_t n_added = 0, n_full = 0;
    bool cancelled[N_REQ] = {0};
    while (n_added < N_REQ || !k3i_sched_is_idle(s)) {
        while (n_added < N_REQ && rnd_below(&seed, 3) == 0) {
            add_random(s, specs, r, n_added, &seed);
            n_added++;
        }
        if (n_added > 0 && rnd_below(&seed, 60) == 0) {
            int32_t victim = rnd_below(&seed, n_added);
            k3i_request_cancel(r[victim]);
            cancelled[victim] = true;
        }
        k3i_sched_step(s);
        expect_clean(e);
        k3i_sched_stats(s, &stats);
        assert_true(stats.snapshots <= most);
        n_full += most > 0 && stats.snapshots == most;
    }
    expect_solo(r, specs, cancelled, seed0);
    total->preempted += stats.preemptions;
    total->cached += stats.cached_tokens;
    total->kept += stats.spec_accepted_tokens;
    total->full += n_full;
    total->mixed += n_full > 0 && stats.preemptions > 0 && stats.spec_accepted_tokens > 0;
    /* Nothing leaks: every page is free or only the index's. */
    assert_int_equal(stats.pages_free + stats.pages_evictable, stats.pages);
    k3i_sched_free(s);
    fake_free(e);
}

static void outputs_equal_solo_runs(void **state)
{
    (void)state;
    static const char *const names[] = {"no snapshot", "one", "few", "many", "no cache"};
    tally t[N_BUDGETS] = {0};
    for (uint64_t seed = 1; seed <= 400; seed++)
        run_random(seed, (budget)(seed % N_BUDGETS), &t[seed % N_BUDGETS]);
    for (budget k = 0; k < N_BUDGETS; k++) {
        print_message(
            "%s: %d preemptions, %d cached tokens, %d accepted drafts, %d steps at the limit "
            "of snapshots, %d runs with all\n",
            names[k], (int)t[k].preempted, (int)t[k].cached, (int)t[k].kept, t[k].full, t[k].mixed);
        /* The load did exercise them. */
        assert_true(t[k].preempted > 100 && t[k].kept > 300);
        bool is_cached = k != NO_SNAPSHOT && k != NO_CACHE;
        assert_true(is_cached ? t[k].cached > 200 : t[k].cached == 0);
        assert_true((k != ONE_SNAPSHOT && k != FEW_SNAPSHOTS) ||
                    (t[k].full > 500 && t[k].mixed > 10));
    }
}

/* ---- single properties -------------------------------------------------------------------------
 */

static const fake_config ROOMY = {.vocab = VOCAB,
                                  .max_num_seqs = 4,
                                  .max_num_batched_tokens = 64,
                                  .max_model_len = 300,
                                  .snapshot_blocks = 2,
                                  .draft_tokens = 4,
                                  .poison = -1,
                                  .image_budget = 9};

static void finish_all(k3i_sched *s)
{
    while (!k3i_sched_is_idle(s))
        k3i_sched_step(s);
}

static spec plain_spec(int32_t n_prompt, uint64_t seed)
{
    spec s = {.n_prompt = n_prompt, .max_tokens = 10, .sampling = k3i_sampling_default()};
    s.sampling.temperature = 0;
    for (int32_t t = 0; t < n_prompt; t++) {
        do {
            s.prompt[t] = rnd_below(&seed, VOCAB);
        } while (s.prompt[t] == POISON);
    }
    return s;
}

/* A follow-up turn computes its new tokens and the one that was sampled last, at any length. */
static void follow_up_reuses_the_exact_end(void **state)
{
    (void)state;
    for (int32_t n = 1; n < 60; n++) {
        k3_engine *e = fake_new(&ROOMY);
        k3i_sched *s = new_sched(e, 400, 8, 4, 0, 0);
        spec first = plain_spec(n, (uint64_t)n);
        k3i_request *a = make(&first);
        k3i_sched_add(s, a);
        finish_all(s);
        spec next = plain_spec(n + a->n_ready + 9, 777);
        memcpy(next.prompt, first.prompt, (size_t)n * sizeof(int32_t));
        memcpy(next.prompt + n, a->ready, (size_t)a->n_ready * sizeof(int32_t));
        k3i_request *b = make(&next), *again = make(&first);
        k3i_sched_add(s, b);
        finish_all(s);
        assert_int_equal(b->n_cached, n + a->n_ready - 1);
        k3i_request *want = solo(&next);
        expect_same(b, want, 0, n);
        k3i_sched_add(s, again); /* the same prompt again: all but its last token */
        finish_all(s);
        assert_int_equal(again->n_cached, n - 1);
        expect_same(again, a, 0, n);
        expect_clean(e);
        k3i_request_unref(a);
        k3i_request_unref(b);
        k3i_request_unref(again);
        k3i_request_unref(want);
        k3i_sched_free(s);
        fake_free(e);
    }
}

/* Two users of one system prompt: the second leaves a snapshot where they part, the third reuses
 * it. */
static void shared_system_prompt_is_kept(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched_config c = {
        .engine = e, .num_blocks = 400, .block_tokens = 8, .snapshot_interval = 1000};
    k3i_sched *s;
    assert_int_equal(k3i_sched_new(&c, &s, NULL), K3_OK);
    int32_t cached[3];
    for (int32_t i = 0; i < 3; i++) {
        spec p = plain_spec(90, 1000 + (uint64_t)i), system = plain_spec(70, 1);
        memcpy(p.prompt, system.prompt, 70 * sizeof(int32_t));
        p.prompt[70] = 10 + i;
        k3i_request *r = make(&p);
        k3i_sched_add(s, r);
        finish_all(s);
        cached[i] = r->n_cached;
        k3i_request_unref(r);
    }
    assert_int_equal(cached[0], 0);
    assert_int_equal(cached[1], 0);
    assert_int_equal(cached[2], 64); /* the last full block of the 70 tokens in common */
    k3i_stats stats;
    k3i_sched_stats(s, &stats);
    assert_int_equal(stats.miss_snapshot, 1);
    k3i_sched_free(s);
    fake_free(e);
}

static void salts_and_pictures_do_not_mix(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched *s = new_sched(e, 400, 8, 0, 0, 0);
    spec p = plain_spec(50, 3);
    p.n_media = 1;
    p.media_at = 10;
    p.media_rows = 6;
    p.key[0] = 1;
    struct {
        const char *salt;
        uint64_t key;
        int32_t want;
    } cases[] = {{NULL, 1, 0}, {NULL, 1, 49}, {"x", 1, 0}, {"x", 1, 49}, {"y", 1, 0}, {NULL, 2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.key[0] = cases[i].key;
        k3i_request *r = make(&p);
        r->salt = cases[i].salt == NULL ? NULL : k3i_strdup(cases[i].salt);
        k3i_sched_add(s, r);
        finish_all(s);
        if (cases[i].key == 2)
            assert_true(r->n_cached <= 10); /* what lies before the picture may be reused */
        else
            assert_int_equal(r->n_cached, cases[i].want);
        k3i_request_unref(r);
    }
    expect_clean(e);
    k3i_sched_free(s);
    fake_free(e);
}

static void poisoned_request_ends_alone(void **state)
{
    (void)state;
    fake_config c0 = ROOMY;
    c0.poison = POISON;
    k3_engine *e = fake_new(&c0);
    k3i_sched *s = new_sched(e, 400, 8, 4, 0, 0);
    spec good = plain_spec(30, 5), bad = plain_spec(30, 6);
    bad.prompt[17] = POISON;
    k3i_request *a = make(&good), *b = make(&bad), *c = make(&good);
    k3i_sched_add(s, a);
    k3i_sched_add(s, b);
    k3i_sched_add(s, c);
    finish_all(s);
    assert_int_equal(b->finish, K3_FINISH_ERROR);
    assert_int_equal(b->error.code, K3_E_NONFINITE);
    k3i_request *want = solo_with(&good, POISON);
    expect_same(a, want, 0, 0);
    expect_same(c, want, 0, 2);
    expect_clean(e);
    k3i_request_unref(a);
    k3i_request_unref(b);
    k3i_request_unref(c);
    k3i_request_unref(want);
    k3i_sched_free(s);
    fake_free(e);
}

static void logprobs_follow_tokens(void **state)
{
    (void)state;
    for (int32_t n_spec = 0; n_spec <= 4; n_spec += 4) {
        k3_engine *e = fake_new(&ROOMY);
        k3i_sched *s = new_sched(e, 400, 8, n_spec, 1, 0);
        spec p = plain_spec(50, 8);
        for (int32_t round = 0; round < 2; round++) { /* the second finds the prompt cached */
            k3i_request *r = make(&p);
            r->logprobs = 3;
            r->prompt_logprobs = 2;
            k3i_sched_add(s, r);
            finish_all(s);
            assert_int_equal(r->finish, K3_FINISH_LENGTH);
            assert_int_equal(r->n_prompt_lp, 50);
            assert_int_equal(r->n_cached, 0);
            for (int32_t i = 0; i < r->n_ready; i++) {
                assert_int_equal(r->lp[4 * i].token, r->ready[i]);
                assert_int_equal(r->lp[4 * i].rank, 1); /* greedy */
                assert_int_equal(r->lp[4 * i + 1].token, r->ready[i]);
            }
            for (int32_t i = 1; i < 50; i++)
                assert_int_equal(r->prompt_lp[3 * i].token, p.prompt[i]);
            k3i_request_unref(r);
        }
        spec echo = p; /* only the prompt: no token is sampled */
        echo.max_tokens = 0;
        k3i_request *r = make(&echo);
        r->prompt_logprobs = 0;
        k3i_sched_add(s, r);
        finish_all(s);
        assert_int_equal(r->n_ready, 0);
        assert_int_equal(r->finish, K3_FINISH_LENGTH);
        assert_int_equal(r->prompt_lp[49].token, p.prompt[49]);
        k3i_request_unref(r);
        expect_clean(e);
        k3i_sched_free(s);
        fake_free(e);
    }
}

static void impossible_requests_are_refused(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched_config small = {.engine = e, .num_blocks = 30, .block_tokens = 8};
    k3i_sched *s = NULL;
    k3i_err err = {0};
    assert_int_equal(k3i_sched_new(&small, &s, &err), K3_E_ARG);
    assert_non_null(strstr(err.text, "needs 39 blocks"));
    s = new_sched(e, 39, 8, 0, 0, 0);
    spec p = plain_spec(300, 1);
    k3i_request *r = make(&p);
    assert_int_equal(k3i_sched_check(s, r, &err), K3_E_CONTEXT);
    r->n_prompt = 299;
    assert_int_equal(k3i_sched_check(s, r, &err), K3_OK);
    r->prompt[3] = VOCAB;
    assert_int_equal(k3i_sched_check(s, r, &err), K3_E_ARG);
    k3i_request_unref(r);
    k3i_sched_free(s);
    fake_free(e);
}

static int32_t stop_after_five(void *user, int32_t token)
{
    (void)token;
    return ++*(int32_t *)user == 5;
}

/* Drafts take pages when they are verified, not before, and none at all for a request that has no
 * use for them. */
static void drafting_takes_no_page(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched *s = new_sched(e, 400, 4, 4, 1, 1);
    spec p = plain_spec(20, 3);
    k3i_request *r = make(&p);
    k3i_stats stats;
    k3i_sched_add(s, r);
    k3i_sched_step(s);
    k3i_sched_stats(s, &stats);
    assert_int_equal(r->n_ready, 1);
    assert_true(r->n_draft > 0);
    assert_int_equal(stats.pages - stats.pages_free, 5);
    k3i_sched_step(s);
    k3i_sched_stats(s, &stats);
    assert_int_equal(stats.pages - stats.pages_free, 7); /* the token and its drafts */
    finish_all(s);
    expect_clean(e);
    k3i_request_unref(r);
    k3i_sched_free(s);
    fake_free(e);
}

/* A stop in the middle of an accepted run cuts there, and the end state is the one of plain
 * decoding. */
static void stop_inside_accepted_run(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched *s = new_sched(e, 400, 8, 4, 1, 0);
    spec p = plain_spec(20, 11);
    p.max_tokens = 30;
    int32_t seen = 0;
    k3i_request *r = make(&p), *whole = solo(&p);
    r->on_token = stop_after_five;
    r->user = &seen;
    k3i_sched_add(s, r);
    finish_all(s);
    assert_int_equal(r->finish, K3_FINISH_STOP);
    assert_int_equal(r->n_ready, 5);
    assert_memory_equal(r->ready, whole->ready, 5 * sizeof(int32_t));
    assert_true(r->n_accepted > 0);
    spec next = plain_spec(26, 9);
    memcpy(next.prompt, p.prompt, 20 * sizeof(int32_t));
    memcpy(next.prompt + 20, r->ready, 5 * sizeof(int32_t));
    k3i_request *b = make(&next), *want = solo(&next);
    k3i_sched_add(s, b);
    finish_all(s);
    assert_int_equal(b->n_cached, 24);
    expect_same(b, want, 0, 0);
    expect_clean(e);
    k3i_request_unref(r);
    k3i_request_unref(whole);
    k3i_request_unref(b);
    k3i_request_unref(want);
    k3i_sched_free(s);
    fake_free(e);
}

/* The next step knows that nobody waits for an answer any more, running or not. */
static void cancelling_takes_one_step(void **state)
{
    (void)state;
    fake_config narrow = ROOMY;
    narrow.max_num_seqs = 1;
    k3_engine *e = fake_new(&narrow);
    k3i_sched *s = new_sched(e, 400, 8, 4, 0, 0);
    spec p = plain_spec(20, 11);
    p.max_tokens = 200;
    k3i_request *running = make(&p), *waiting = make(&p);
    k3i_sched_add(s, running);
    k3i_sched_add(s, waiting);
    k3i_sched_step(s);
    k3i_sched_step(s);
    assert_true(running->n_ready > 0 && waiting->n_ready == 0);
    k3i_request_cancel(running);
    k3i_request_cancel(waiting);
    assert_false(k3i_sched_step(s));
    assert_int_equal(running->finish, K3_FINISH_ABORT);
    assert_int_equal(waiting->finish, K3_FINISH_ABORT);
    assert_true(k3i_sched_is_idle(s));
    expect_clean(e);
    k3i_request_unref(running);
    k3i_request_unref(waiting);
    k3i_sched_free(s);
    fake_free(e);
}

/* Long prompts hold up nobody: who decodes gets a token in every step, and a short prompt that
 * comes later begins to answer before the long ones do. */
static void everybody_gets_on(void **state)
{
    (void)state;
    fake_config c = ROOMY;
    c.max_num_batched_tokens = 64; /* shares of at least 16 */
    k3_engine *e = fake_new(&c);
    k3i_sched *s = new_sched(e, 400, 8, 0, 0, 1);
    spec first = plain_spec(10, 1), lengthy = plain_spec(250, 2), brief = plain_spec(12, 3);
    first.max_tokens = 200;
    k3i_request *a = make(&first), *b = make(&lengthy), *c1 = make(&lengthy), *d = make(&brief);
    k3i_sched_add(s, a);
    k3i_sched_step(s);
    assert_int_equal(a->n_ready, 1);
    k3i_sched_add(s, b);
    k3i_sched_add(s, c1);
    k3i_sched_step(s);
    k3i_sched_add(s, d);
    while (b->n_ready == 0) {
        int32_t before = a->n_ready, at_b = b->ctx, at_c = c1->ctx;
        k3i_sched_step(s);
        assert_int_equal(a->n_ready, before + 1);
        assert_true(b->ctx > at_b && c1->ctx > at_c);
    }
    assert_true(d->n_ready > 1);
    finish_all(s);
    expect_clean(e);
    k3i_request_unref(a);
    k3i_request_unref(b);
    k3i_request_unref(c1);
    k3i_request_unref(d);
    k3i_sched_free(s);
    fake_free(e);
}

/* A turn that is edited computes what comes after the last state in common: the end of the answer
 * before it, or else the end of the prompt before that. */
static void edited_turn_reuses_the_deepest_state(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched *s = new_sched(e, 400, 8, 4, 0, 0);
    spec turn1 = plain_spec(61, 5);
    k3i_request *a = make(&turn1);
    k3i_sched_add(s, a);
    finish_all(s);
    int32_t end1 = 61 + a->n_ready;
    for (int32_t edit = 0; edit < 3; edit++) {
        spec turn2 = plain_spec(end1 + 20, 70 + (uint64_t)edit);
        memcpy(turn2.prompt, turn1.prompt, 61 * sizeof(int32_t));
        /* The last time the answer itself is edited, in its third token. */
        memcpy(turn2.prompt + 61, a->ready, (size_t)a->n_ready * sizeof(int32_t));
        if (edit == 2)
            turn2.prompt[63] = (turn2.prompt[63] + 1) % VOCAB == POISON
                                   ? POISON + 1
                                   : (turn2.prompt[63] + 1) % VOCAB;
        k3i_request *b = make(&turn2), *want = solo(&turn2);
        k3i_sched_add(s, b);
        finish_all(s);
        assert_int_equal(b->n_cached, edit == 2 ? 60 : end1 - 1);
        expect_same(b, want, 0, edit);
        k3i_request_unref(b);
        k3i_request_unref(want);
    }
    expect_clean(e);
    k3i_request_unref(a);
    k3i_sched_free(s);
    fake_free(e);
}

static void deadlines_end_requests(void **state)
{
    (void)state;
    k3_engine *e = fake_new(&ROOMY);
    k3i_sched *s = new_sched(e, 400, 8, 0, 0, 0);
    spec p = plain_spec(20, 11);
    p.max_tokens = 200;
    k3i_request *r = make(&p);
    r->deadline_ns = k3i_now_ns() - 1;
    k3i_sched_add(s, r);
    k3i_sched_step(s);
    assert_int_equal(r->finish, K3_FINISH_ABORT);
    assert_true(k3i_sched_is_idle(s));
    k3i_request_unref(r);
    k3i_sched_free(s);
    fake_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_equal_solo_runs),
        cmocka_unit_test(follow_up_reuses_the_exact_end),
        cmocka_unit_test(shared_system_prompt_is_kept),
        cmocka_unit_test(salts_and_pictures_do_not_mix),
        cmocka_unit_test(poisoned_request_ends_alone),
        cmocka_unit_test(logprobs_follow_tokens),
        cmocka_unit_test(impossible_requests_are_refused),
        cmocka_unit_test(drafting_takes_no_page),
        cmocka_unit_test(stop_inside_accepted_run),
        cmocka_unit_test(cancelling_takes_one_step),
        cmocka_unit_test(everybody_gets_on),
        cmocka_unit_test(edited_turn_reuses_the_deepest_state),
        cmocka_unit_test(deadlines_end_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
