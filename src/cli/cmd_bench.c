/* cmd_bench.c: prefill and decode of one sequence, each beside the limit that the machine shows in
 * the same run: the rate at which memory can be read, and the rate at which registers can multiply.
 * Machines drift, so each round measures limit, work and limit again; a share is of the mean of its
 * two neighbours, and the median round is reported. */
#include "args.h"
#include "bench_spec.h"
#include "bind.h"
#include "cost.h"
#include "progress.h"
#include "report.h"
#include "roofs.h"
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_ROUNDS 100 /* as in options.def */

/* A piece of work and the limit around it. */
typedef struct {
    double seconds;
    double limit; /* of the machine: bytes or FLOP a second */
    double share; /* of the limit */
} measure;

typedef struct {
    k3i_session session;
    k3i_cost cost;
    k3i_team *team;
    const k3i_ops *ops;
    float *logits;
    int32_t *ids; /* [n_prefill] */
    int32_t n_prefill, n_decode;
} bench_state;

static int32_t most_probable(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

static k3_status run_prefill(bench_state *b, k3i_err *err)
{
    return k3i_session_forward(&b->session, b->ids, b->n_prefill, false, b->logits, err);
}

static k3_status run_decode(bench_state *b, k3i_err *err)
{
    k3_status st = K3_OK;
    for (int32_t i = 0; i < b->n_decode && st == K3_OK; i++) {
        int32_t token = most_probable(b->logits, b->session.info.vocab_size);
        st = k3i_session_forward(&b->session, &token, 1, false, b->logits, err);
    }
    return st;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static k3_status timed(bench_state *b, k3_status (*work)(bench_state *, k3i_err *), measure *m,
                       k3i_err *err)
{
    double from = now();
    k3_status st = work(b, err);
    m->seconds = now() - from;
    return st;
}

/* Bytes that decoding moves: every weight in use, the state, and the cache of a context that grows.
 */
static double decode_bytes(const bench_state *b)
{
    double per_token = (double)(b->cost.weights + b->cost.state + b->cost.conv);
    double context = b->n_prefill + 0.5 * (b->n_decode + 1);
    return b->n_decode * (per_token + context * (double)b->cost.latent_per_token);
}

static double prefill_flop(const bench_state *b)
{
    double n = b->n_prefill;
    return n * (double)(b->cost.flop_linear - b->cost.flop_head + b->cost.flop_recurrence) +
           0.5 * n * (n + 1) * (double)b->cost.flop_pair + (double)b->cost.flop_head;
}

/* `amount` of bytes or operations was done; the limit is all threads'. */
static void set_share(double amount, double limit, measure *m)
{
    m->limit = limit;
    m->share = amount / m->seconds / limit;
}

/* Limits, prompt, single tokens, limits. */
static k3_status one_round(bench_state *b, measure *prefill, measure *decode, k3i_err *err)
{
    k3i_roofs before, after;
    k3_status st = k3i_session_restart(&b->session, err);
    if (st == K3_OK)
        st = k3i_roofs_measure(b->team, b->ops, &before, err);
    if (st == K3_OK)
        st = timed(b, run_prefill, prefill, err);
    if (st == K3_OK)
        st = timed(b, run_decode, decode, err);
    if (st == K3_OK)
        st = k3i_roofs_measure(b->team, b->ops, &after, err);
    if (st != K3_OK)
        return st;
    set_share(prefill_flop(b), 0.5 * (before.bf16_flop_per_s + after.bf16_flop_per_s), prefill);
    set_share(decode_bytes(b), 0.5 * (before.read_bytes_per_s + after.read_bytes_per_s), decode);
    return K3_OK;
}

static int by_share(const void *a, const void *b)
{
    const measure *x = a, *y = b;
    return (x->share > y->share) - (x->share < y->share);
}

/* `m` is sorted: the median is reported, and the spread. */
static void print_shares(k3i_table *t, const char *key, const char *title, const measure *m,
                         size_t n)
{
    k3i_table_real(t, key, title, m[n / 2].share, "");
    k3i_table_real(t, "share_min", "  slowest round", m[0].share, "");
    k3i_table_real(t, "share_max", "  fastest round", m[n - 1].share, "");
}

static k3_status print(const k3i_args *args, const bench_state *b, const measure *prefill,
                       const measure *decode, size_t n, k3i_err *err)
{
    const measure *p = &prefill[n / 2], *d = &decode[n / 2];
    k3i_table t;
    k3i_table_open(&t, k3i_arg_given(args, "json"));
    k3i_table_text(&t, "model", "Checkpoint", k3i_arg_text(args, "model"));
    k3i_table_text(&t, "isa", "Kernels", b->session.info.isa);
    k3i_table_text(&t, "mode", "Mode", b->session.info.mode);
    k3i_table_count(&t, "threads", "Threads", (uint64_t)b->session.info.threads);
    k3i_table_count(&t, "rounds", "Rounds (medians follow)", n);
    k3i_table_begin(&t, "prefill", "Prefill");
    k3i_table_count(&t, "tokens", "tokens", (uint64_t)b->n_prefill);
    k3i_table_real(&t, "tokens_per_s", "speed", b->n_prefill / p->seconds, "tokens/s");
    k3i_table_real(&t, "gflop_per_s", "arithmetic", prefill_flop(b) / p->seconds * 1e-9, "GFLOP/s");
    k3i_table_real(&t, "peak_gflop_per_s", "peak measured", p->limit * 1e-9, "GFLOP/s");
    print_shares(&t, "share_of_bf16_peak", "share of the peak", prefill, n);
    k3i_table_end(&t);
    k3i_table_begin(&t, "decode", "Decode");
    k3i_table_count(&t, "tokens", "tokens", (uint64_t)b->n_decode);
    k3i_table_real(&t, "tokens_per_s", "speed", b->n_decode / d->seconds, "tokens/s");
    k3i_table_bytes(&t, "bytes_per_token", "bytes moved per token",
                    (uint64_t)(decode_bytes(b) / b->n_decode));
    k3i_table_real(&t, "gb_per_s", "memory", decode_bytes(b) / d->seconds * 1e-9, "GB/s");
    k3i_table_real(&t, "read_roof_gb_per_s", "read roof measured", d->limit * 1e-9, "GB/s");
    print_shares(&t, "share_of_read_roof", "share of the roof", decode, n);
    k3i_table_end(&t);
    k3_status st = K3_OK;
    if (k3i_arg_given(args, "speculative-config"))
        st = k3i_bench_spec(args, &t, err);
    k3_status closed = k3i_table_close(&t, st == K3_OK ? err : NULL);
    return st == K3_OK ? closed : st;
}

/* The options of speculation come together. */
static k3_status check_options(const k3i_args *args, k3i_err *err)
{
    bool has_spec = k3i_arg_given(args, "speculative-config");
    static const char *const with[] = {"prompts", "users", "max-tokens", "temperature"};
    for (size_t i = 0; i < sizeof with / sizeof with[0]; i++) {
        if (!has_spec && k3i_arg_given(args, with[i]))
            return k3i_fail(err, K3_E_OPTION, "--%s has no effect without --speculative-config",
                            with[i]);
    }
    if (has_spec && !k3i_arg_given(args, "prompts"))
        return k3i_fail(err, K3_E_OPTION, "--speculative-config needs --prompts");
    /* Found out before minutes of measuring, not after. */
    const char *prompts = k3i_arg_text(args, "prompts");
    if (prompts != NULL && access(prompts, R_OK) != 0)
        return k3i_fail(err, K3_E_IO, "%s: cannot be read: %s", prompts, strerror(errno));
    return K3_OK;
}

static k3_status prepare(const k3i_args *args, bench_state *b, k3i_err *err)
{
    k3i_config config;
    b->n_prefill = (int32_t)k3i_arg_int(args, "prefill");
    b->n_decode = (int32_t)k3i_arg_int(args, "decode");
    k3_status st = k3i_config_read(k3i_arg_text(args, "model"), &config, err);
    if (st != K3_OK)
        return st;
    b->cost = k3i_cost_of(&config);
    k3i_config_done(&config);
    st = k3i_session_open(args, b->n_prefill + b->n_decode, b->n_prefill, &b->session, err);
    if (st != K3_OK)
        return st;
    st = k3i_ops_select(b->session.info.isa, &b->ops, err);
    if (st == K3_OK)
        st = k3i_team_new((size_t)b->session.info.threads, NULL, 0, &b->team, err);
    if (st != K3_OK)
        return st;
    b->logits = k3i_alloc_array((size_t)b->session.info.vocab_size, sizeof *b->logits);
    b->ids = k3i_alloc_array((size_t)b->n_prefill, sizeof *b->ids);
    if (b->logits == NULL || b->ids == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the benchmark");
    /* Ids spread over the vocabulary (a multiplicative hash), so that experts are used as by varied
     * text. */
    for (int32_t i = 0; i < b->n_prefill; i++)
        b->ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)b->session.info.vocab_size);
    return K3_OK;
}

int k3i_cmd_bench(const k3i_args *args)
{
    k3i_err err;
    bench_state b = {0};
    measure prefill[MAX_ROUNDS] = {{0}}, decode[MAX_ROUNDS] = {{0}};
    size_t n = (size_t)k3i_arg_int(args, "rounds");
    k3_status st = check_options(args, &err);
    if (st == K3_OK)
        st = prepare(args, &b, &err);
    /* A first round brings the weights into memory; it is overwritten. */
    for (size_t i = 0; i <= n && st == K3_OK; i++) {
        size_t at = i == 0 ? 0 : i - 1;
        st = one_round(&b, &prefill[at], &decode[at], &err);
        k3i_progress_bar("measuring", i, n);
    }
    k3i_progress_clear();
    if (st == K3_OK) {
        qsort(prefill, n, sizeof *prefill, by_share);
        qsort(decode, n, sizeof *decode, by_share);
        st = print(args, &b, prefill, decode, n, &err);
    }
    k3i_team_free(b.team);
    k3i_free(b.logits);
    k3i_free(b.ids);
    k3i_session_close(&b.session);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
