/* Tensor parallelism: ranks in threads with a gather over shared memory. Every rank must return the
 * very logits of one rank alone, for prefill, decode and verification, with and without a draft; a
 * failed exchange kills the engine, not the process. */
#include "test.h"

#include "drive.h"
#include "model.h"
#include "thread.h"

#include <pthread.h>

/* What k3.h asks of a caller's stack; the sanitizers put space around every local variable. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK ((size_t)4 << 20)
#else
#define STACK K3I_CALL_STACK
#endif

enum { MAX_RANKS = 3, PROMPT = 37, STEPS = 12, SPEC = 3 };

/* One exchange at a time: everybody writes its part, waits, reads all, waits. */
typedef struct {
    pthread_barrier_t barrier;
    char *shared;
    size_t cap;
    int size, fail_at, calls;
} hub;

typedef struct {
    hub *hub;
    int rank;
    const char *dir, *mode;
    int threads;
    float *logits; /* [PROMPT + STEPS * (1 + SPEC), vocab] */
    k3_status status;
} rank_arg;

static int32_t gather(void *user, void *buffer, size_t bytes)
{
    rank_arg *a = user;
    hub *h = a->hub;
    size_t all = bytes * (size_t)h->size;
    if (pthread_barrier_wait(&h->barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        h->calls++;
        if (all > h->cap) {
            free(h->shared);
            h->shared = malloc(all);
            h->cap = all;
        }
    }
    pthread_barrier_wait(&h->barrier);
    size_t at = bytes * (size_t)a->rank;
    memcpy(h->shared + at, (char *)buffer + at, bytes);
    pthread_barrier_wait(&h->barrier);
    memcpy(buffer, h->shared, all);
    pthread_barrier_wait(&h->barrier);
    return h->fail_at != 0 && h->calls >= h->fail_at;
}

/* Prefill in two chunks, then steps that verify SPEC drafts and accept none to all of them. */
static k3_status run(k3_engine *e, float *logits, size_t vocab)
{
    int32_t ids[PROMPT + 4 * STEPS * (1 + SPEC)], rows[PROMPT], slot = 0, ctx = 0;
    int32_t table[64], accepted;
    test_prompt(&test_model_a, ids, sizeof ids / sizeof *ids);
    for (int32_t i = 0; i < 64; i++)
        table[i] = i + 1;
    for (int32_t i = 0; i < PROMPT; i++)
        rows[i] = i;
    for (int step = -2; step < STEPS; step++) {
        int32_t n = step == -2 ? 20 : step == -1 ? PROMPT - 20 : 1 + SPEC;
        int32_t n_spec = step < 0 ? 0 : SPEC, q[2] = {0, n}, off[2] = {0, (ctx + n + 7) / 8};
        int32_t op = ctx == 0 ? K3_SLOT_RESET : K3_SLOT_KEEP;
        const k3_batch b = {.size = sizeof b,
                            .n_reqs = 1,
                            .n_tokens = n,
                            .n_logit_rows = n,
                            .token_ids = ids + ctx,
                            .q_start = q,
                            .ctx_len = &ctx,
                            .slot = &slot,
                            .slot_op = &op,
                            .n_spec = &n_spec,
                            .mla_off = off,
                            .mla_table = table,
                            .logit_row = rows};
        k3_status st = k3_forward(e, &b, logits, (int64_t)vocab);
        if (st != K3_OK)
            return st;
        accepted = step < 0 ? n : 1 + step % (1 + SPEC);
        const k3_commit_args c = {.size = sizeof c, .n_reqs = 1, .accepted = &accepted};
        st = k3_commit(e, &c);
        if (st != K3_OK)
            return st;
        ctx += accepted;
        logits += (size_t)n * vocab;
    }
    return K3_OK;
}

static void *rank_main(void *arg)
{
    rank_arg *a = arg;
    char more[100];
    snprintf(more, sizeof more, ",\"num_speculative_tokens\":%d,\"tp_rank\":%d,\"tp_size\":%d",
             SPEC, a->rank, a->hub->size);
    k3_engine *e = drive_open(a->dir, a->mode, a->threads, more);
    k3_kv_config kv = {.size = sizeof kv, .num_blocks = 65, .block_tokens = 8, .n_slots = 1};
    a->status = k3_kv_init(e, &kv, NULL);
    if (a->status == K3_E_STATE && k3_set_collective(e, gather, a) == K3_OK &&
        k3_kv_init(e, &kv, NULL) == K3_OK)
        a->status = run(e, a->logits, test_model_a.vocab);
    k3_close(e);
    return NULL;
}

static void run_ranks(const char *dir, const char *mode, int size, int fail_at, rank_arg *args)
{
    hub h = {.size = size, .fail_at = fail_at};
    pthread_t thread[MAX_RANKS];
    size_t n = (PROMPT + STEPS * (1 + SPEC)) * test_model_a.vocab;
    pthread_barrier_init(&h.barrier, NULL, (unsigned)size);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    for (int r = 0; r < size; r++) {
        args[r] = (rank_arg){.hub = &h,
                             .rank = r,
                             .dir = dir,
                             .mode = mode,
                             .threads = 1 + r % 2,
                             .logits = calloc(n, sizeof(float))};
        assert_int_equal(pthread_create(&thread[r], &attr, rank_main, &args[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(thread[r], NULL);
    pthread_attr_destroy(&attr);
    pthread_barrier_destroy(&h.barrier);
    free(h.shared);
}

static void ranks_give_the_bits_of_one(void **state)
{
    const char *dir = *state, *const mode[] = {"f32", "bf16"};
    size_t n = (PROMPT + STEPS * (1 + SPEC)) * test_model_a.vocab;
    for (size_t m = 0; m < 2; m++) {
        float *want = calloc(n, sizeof *want);
        k3_engine *e = drive_open(dir, mode[m], 1, ",\"num_speculative_tokens\":3");
        drive_kv(e, 65, 8, 1);
        assert_int_equal(k3_set_collective(e, gather, NULL), K3_E_UNSUPPORTED);
        assert_int_equal(run(e, want, test_model_a.vocab), K3_OK);
        k3_close(e);
        for (int size = 2; size <= MAX_RANKS; size++) {
            rank_arg args[MAX_RANKS];
            run_ranks(dir, mode[m], size, 0, args);
            for (int r = 0; r < size; r++) {
                assert_int_equal(args[r].status, K3_OK);
                assert_memory_equal(args[r].logits, want, n * sizeof *want);
                free(args[r].logits);
            }
        }
        free(want);
    }
}

static void a_failed_exchange_is_fatal(void **state)
{
    rank_arg args[MAX_RANKS];
    run_ranks(*state, "f32", 2, 9, args);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(args[r].status, K3_E_FATAL);
        free(args[r].logits);
    }
}

int main(void)
{
    char *dir = test_dir_new();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(ranks_give_the_bits_of_one, dir),
        cmocka_unit_test_prestate(a_failed_exchange_is_fatal, dir),
    };
    test_model_write(&test_model_a, dir);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_dir_remove(dir);
    return failed;
}
