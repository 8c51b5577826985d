/* cmd_bench.c: prefill and decode of one sequence, each beside the limit that the machine shows in
 * the same run: the rate at which memory can be read, and the rate at which registers can multiply.
 * What other guests leave of a shared machine's memory changes within seconds, so decode and
 * reading take turns in slices of a quarter of a second, and a slice's share is of the mean of the
 * reading just before and just after it, rates being means over a slice on both sides. Prefill is
 * one slice between two of multiplying, of which the higher counts. Shares are reported as the
 * median of all slices. */
#include "args.h"
#include "bench_spec.h"
#include "bind.h"
#include "clock.h"
#include "cost.h"
#include "progress.h"
#include "report.h"
#include "roofs.h"
#include "session.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ROUNDS 100 /* as in options.def */
#define SLICE_SECONDS 0.25
enum { MAX_SLICES = 64 }; /* of decode in a round */

/* A slice of work and the limit around it. */
typedef struct {
    double seconds, amount; /* bytes or FLOP */
    int32_t tokens;
    double limit; /* of the machine: bytes or FLOP a second */
    double share; /* of the limit */
} slice;

/* Decode of one round: slices, and the reading before, between and behind them. */
typedef struct {
    slice slices[MAX_SLICES];
    size_t n;
    double read[MAX_SLICES + 1][K3I_READ_WAYS];
} decode_round;

typedef struct {
    k3i_session session;
    k3i_cost cost;
    k3i_team *team;
    const k3i_ops *ops;
    k3i_meter *meter;
    float *logits;
    int32_t *ids; /* [n_prefill] */
    int32_t n_prefill, n_decode;
    size_t n; /* rounds */
    slice prefill[MAX_ROUNDS];
    decode_round *decode; /* [n] */
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

/* Bytes that the decode of tokens from .. to - 1 moves: every weight in use, the state, and the
 * cache of a context that grows. */
static double decode_bytes(const bench_state *b, int32_t from, int32_t to)
{
    double per_token = (double)(b->cost.weights + b->cost.state + b->cost.conv);
    double context = b->n_prefill + 0.5 * (from + to + 1);
    return (to - from) * (per_token + context * (double)b->cost.latent_per_token);
}

static double prefill_flop(const bench_state *b)
{
    double n = b->n_prefill;
    return n * (double)(b->cost.flop_linear - b->cost.flop_head + b->cost.flop_recurrence) +
           0.5 * n * (n + 1) * (double)b->cost.flop_pair + (double)b->cost.flop_head;
}

/* The limit is all threads'. */
static void set_share(slice *s, double limit)
{
    s->limit = limit;
    s->share = s->amount / s->seconds / limit;
}

static k3_status prefill_slice(bench_state *b, slice *s, k3i_err *err)
{
    double before = k3i_meter_bf16(b->meter, SLICE_SECONDS);
    int64_t from = k3i_now_ns();
    k3_status st = k3i_session_forward(&b->session, b->ids, b->n_prefill, false, b->logits, err);
    s->seconds = 1e-9 * (double)(k3i_now_ns() - from);
    s->amount = prefill_flop(b);
    s->tokens = b->n_prefill;
    if (st == K3_OK)
        set_share(s, fmax(before, k3i_meter_bf16(b->meter, SLICE_SECONDS)));
    return st;
}

/* Decodes for SLICE_SECONDS, at least the MAX_SLICESth part of all tokens and at most all of them;
 * `done`: tokens before. */
static k3_status decode_slice(bench_state *b, int32_t done, slice *s, k3i_err *err)
{
    k3_status st = K3_OK;
    int32_t n = 0, least = (b->n_decode + MAX_SLICES - 1) / MAX_SLICES;
    int64_t from = k3i_now_ns();
    for (bool more = true; more && st == K3_OK;) {
        int32_t token = most_probable(b->logits, b->session.info.vocab_size);
        st = k3i_session_forward(&b->session, &token, 1, false, b->logits, err);
        n++;
        s->seconds = 1e-9 * (double)(k3i_now_ns() - from);
        more = done + n < b->n_decode && (n < least || s->seconds < SLICE_SECONDS);
    }
    s->tokens = n;
    s->amount = decode_bytes(b, done, done + n);
    return st;
}

/* Prompt, then single tokens, each between its limits. The shares of decode follow when all rounds
 * are over, and with them the fastest way of reading. */
static k3_status one_round(bench_state *b, slice *prefill, decode_round *d, k3i_err *err)
{
    k3_status st = k3i_session_restart(&b->session, err);
    if (st == K3_OK)
        st = prefill_slice(b, prefill, err);
    if (st != K3_OK)
        return st;
    d->n = 0;
    k3i_meter_read(b->meter, SLICE_SECONDS, d->read[0]);
    for (int32_t done = 0; done < b->n_decode && st == K3_OK;) {
        slice *s = &d->slices[d->n++];
        st = decode_slice(b, done, s, err);
        done += s->tokens;
        k3i_meter_read(b->meter, SLICE_SECONDS, d->read[d->n]);
    }
    return st;
}

static int by_share(const void *a, const void *b)
{
    const slice *x = a, *y = b;
    return (x->share > y->share) - (x->share < y->share);
}

/* The slice of the median share, of an even number the lower one; sorts them. */
static const slice *median(slice *s, size_t n)
{
    qsort(s, n, sizeof *s, by_share);
    return &s[(n - 1) / 2];
}

typedef struct {
    const slice *median; /* of all slices */
    double min, max;     /* medians of the rounds */
} shares;

static shares prefill_shares(bench_state *b)
{
    const slice *m = median(b->prefill, b->n);
    return (shares){m, b->prefill[0].share, b->prefill[b->n - 1].share};
}

/* Beside one way of reading. all: room for the slices of all rounds. */
static shares shares_by_way(const bench_state *b, size_t way, slice *all)
{
    size_t n = 0;
    shares ret = {.min = INFINITY, .max = -INFINITY};
    for (size_t r = 0; r < b->n; r++) {
        const decode_round *d = &b->decode[r];
        for (size_t i = 0; i < d->n; i++) {
            all[n + i] = d->slices[i];
            set_share(&all[n + i], 0.5 * (d->read[i][way] + d->read[i + 1][way]));
        }
        double share = median(all + n, d->n)->share;
        ret.min = fmin(ret.min, share);
        ret.max = fmax(ret.max, share);
        n += d->n;
    }
    ret.median = median(all, n);
    return ret;
}

/* Beside the fastest way: the one that leaves the lowest share. */
static shares decode_shares(const bench_state *b, slice *all)
{
    size_t best = 0;
    double least = INFINITY;
    for (size_t way = 0; way < K3I_READ_WAYS; way++) {
        double share = shares_by_way(b, way, all).median->share;
        best = share < least ? way : best;
        least = fmin(least, share);
    }
    return shares_by_way(b, best, all);
}

static void print_shares(k3i_table *t, const char *key, const char *title, const shares *s)
{
    k3i_table_real(t, key, title, s->median->share, "");
    k3i_table_real(t, "share_min", "  slowest round", s->min, "");
    k3i_table_real(t, "share_max", "  fastest round", s->max, "");
}

static k3_status print(const k3i_args *args, const bench_state *b, const shares *prefill,
                       const shares *decode, k3i_err *err)
{
    const slice *p = prefill->median, *d = decode->median;
    k3i_table t;
    k3i_table_open(&t, k3i_arg_given(args, "json"));
    k3i_table_text(&t, "model", "Checkpoint", k3i_arg_text(args, "model"));
    k3i_table_text(&t, "isa", "Kernels", b->session.info.isa);
    k3i_table_text(&t, "mode", "Mode", b->session.info.mode);
    k3i_table_count(&t, "threads", "Threads", (uint64_t)b->session.info.threads);
    k3i_table_count(&t, "rounds", "Rounds (medians follow)", b->n);
    k3i_table_begin(&t, "prefill", "Prefill");
    k3i_table_count(&t, "tokens", "tokens", (uint64_t)b->n_prefill);
    k3i_table_real(&t, "tokens_per_s", "speed", p->tokens / p->seconds, "tokens/s");
    k3i_table_real(&t, "gflop_per_s", "arithmetic", p->amount / p->seconds * 1e-9, "GFLOP/s");
    k3i_table_real(&t, "peak_gflop_per_s", "peak measured", p->limit * 1e-9, "GFLOP/s");
    print_shares(&t, "share_of_bf16_peak", "share of the peak", prefill);
    k3i_table_end(&t);
    k3i_table_begin(&t, "decode", "Decode");
    k3i_table_count(&t, "tokens", "tokens", (uint64_t)b->n_decode);
    k3i_table_real(&t, "tokens_per_s", "speed", d->tokens / d->seconds, "tokens/s");
    k3i_table_bytes(&t, "bytes_per_token", "bytes moved per token",
                    (uint64_t)(decode_bytes(b, 0, b->n_decode) / b->n_decode));
    k3i_table_real(&t, "gb_per_s", "memory", d->amount / d->seconds * 1e-9, "GB/s");
    k3i_table_real(&t, "read_roof_gb_per_s", "read roof before and after", d->limit * 1e-9, "GB/s");
    print_shares(&t, "share_of_read_roof", "share of the roof", decode);
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
    st = k3i_meter_new(b->team, b->ops, &b->meter, err);
    if (st != K3_OK)
        return st;
    b->n = (size_t)k3i_arg_int(args, "rounds");
    b->decode = k3i_alloc_array(b->n, sizeof *b->decode);
    b->logits = k3i_alloc_array((size_t)b->session.info.vocab_size, sizeof *b->logits);
    b->ids = k3i_alloc_array((size_t)b->n_prefill, sizeof *b->ids);
    if (b->decode == NULL || b->logits == NULL || b->ids == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the benchmark");
    /* Ids spread over the vocabulary (a multiplicative hash), so that experts are used as by varied
     * text. */
    for (int32_t i = 0; i < b->n_prefill; i++)
        b->ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)b->session.info.vocab_size);
    return K3_OK;
}

static k3_status report_shares(const k3i_args *args, bench_state *b, k3i_err *err)
{
    slice *all = k3i_alloc_array(b->n, MAX_SLICES * sizeof *all);
    if (all == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the benchmark");
    shares prefill = prefill_shares(b), decode = decode_shares(b, all);
    k3_status st = print(args, b, &prefill, &decode, err);
    k3i_free(all);
    return st;
}

int k3i_cmd_bench(const k3i_args *args)
{
    k3i_err err;
    bench_state b = {0};
    k3_status st = check_options(args, &err);
    if (st == K3_OK)
        st = prepare(args, &b, &err);
    /* A first round brings the weights into memory; it is overwritten. */
    for (size_t i = 0; i <= b.n && st == K3_OK; i++) {
        size_t at = i == 0 ? 0 : i - 1;
        st = one_round(&b, &b.prefill[at], &b.decode[at], &err);
        k3i_progress_bar("measuring", i, b.n);
    }
    k3i_progress_clear();
    if (st == K3_OK)
        st = report_shares(args, &b, &err);
    k3i_meter_free(b.meter);
    k3i_team_free(b.team);
    k3i_free(b.decode);
    k3i_free(b.logits);
    k3i_free(b.ids);
    k3i_session_close(&b.session);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
