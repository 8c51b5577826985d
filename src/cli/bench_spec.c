/* bench_spec.c: see bench_spec.h. Prompts are chat requests, one JSON object a line, because a
 * draft shows what it is worth on its own domain only. Two schedulers stand side by side, one plain
 * and one with the draft; they take turns, and the median of the rounds' ratios is reported. Only
 * decode steps are timed: steps in which every running request has its first token already. */
#include "bench_spec.h"

#include "clock.h"
#include "ids.h"
#include "map.h"
#include "progress.h"
#include "scheduler.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PROMPTS = 4096,
    MAX_ROUNDS = 100, /* as in options.def */
    MAX_FILE = 16 << 20
};

typedef struct {
    k3_engine *engine;
    k3i_sched *sched;
} side;

typedef struct {
    int32_t *ids;
    int32_t n;
} prompt;

typedef struct {
    const k3i_args *args;
    k3i_err *err;
    k3_text *text;
    prompt *prompts; /* [n_prompts] */
    size_t n_prompts, users;
    int32_t longest, max_tokens;
    side plain, spec;
} bench;

typedef struct {
    double ns;
    int64_t tokens;
} measure;

static k3_status add_prompt(bench *b, const char *line, size_t n)
{
    char why[K3I_ERR_TEXT] = "";
    int32_t count = 0;
    if (b->n_prompts == MAX_PROMPTS)
        return k3i_fail(b->err, K3_E_LIMIT, "--prompts: more than %d lines", MAX_PROMPTS);
    k3_status st = k3_text_chat(b->text, line, n, NULL, 0, &count, why, sizeof why);
    int32_t *ids = st == K3_OK ? k3i_alloc_array((size_t)count, sizeof *ids) : NULL;
    if (st == K3_OK && ids == NULL)
        return k3i_fail(b->err, K3_E_NOMEM, "no memory for a prompt of %" PRId32 " tokens", count);
    if (st == K3_OK)
        st = k3_text_chat(b->text, line, n, ids, count, &count, why, sizeof why);
    if (st != K3_OK) {
        k3i_free(ids);
        return k3i_fail(b->err, st, "--prompts, line %zu: %s", b->n_prompts + 1, why);
    }
    b->prompts[b->n_prompts++] = (prompt){.ids = ids, .n = count};
    b->longest = count > b->longest ? count : b->longest;
    return K3_OK;
}

static k3_status read_prompts(bench *b)
{
    char why[K3I_ERR_TEXT] = "", *file = NULL;
    size_t n = 0;
    const char *path = k3i_arg_text(b->args, "prompts");
    k3_status st = k3_text_open(k3i_arg_text(b->args, "model"), &b->text, why, sizeof why);
    if (st != K3_OK)
        return k3i_fail(b->err, st, "%s", why);
    b->prompts = k3i_alloc_array(MAX_PROMPTS, sizeof *b->prompts);
    if (b->prompts == NULL)
        return k3i_fail(b->err, K3_E_NOMEM, "no memory for the prompts");
    st = k3i_read_file(path, MAX_FILE, &file, &n, b->err);
    for (size_t at = 0; st == K3_OK && at < n;) {
        const char *end = memchr(file + at, '\n', n - at);
        size_t length = end != NULL ? (size_t)(end - file) - at : n - at;
        if (length > 0)
            st = add_prompt(b, file + at, length);
        at += length + 1;
    }
    k3i_free(file);
    if (st == K3_OK && b->n_prompts == 0)
        st = k3i_fail(b->err, K3_E_OPTION, "--prompts: %s holds no prompt", path);
    return st;
}

static k3_status open_side(bench *b, const k3i_spec_config *spec, side *s)
{
    int32_t length = b->longest + b->max_tokens;
    k3_status st =
        k3i_engine_open_many(b->args, length, 512, (int32_t)b->users, spec, &s->engine, b->err);
    k3_info info = {.size = sizeof info};
    if (st == K3_OK)
        st = k3_query(s->engine, &info);
    if (st != K3_OK)
        return st;
    int32_t pages = (length + K3_MAX_WIDTH) / K3I_CLI_BLOCK_TOKENS + 1;
    const k3i_sched_config config = {.engine = s->engine,
                                     .num_blocks = pages * (int32_t)b->users + 1,
                                     .block_tokens = K3I_CLI_BLOCK_TOKENS,
                                     .no_prefix_caching = true,
                                     .speculative_tokens = info.draft_tokens,
                                     .is_fixed_width = spec->is_fixed};
    return k3i_sched_new(&config, &s->sched, b->err);
}

static k3_status submit(bench *b, side *s, size_t i, k3i_request **ret)
{
    const prompt *p = &b->prompts[i];
    k3i_request *r = NULL;
    k3_status st = k3i_request_new(p->ids, p->n, &r, b->err);
    if (st == K3_OK) {
        int32_t eos = k3i_sched_info(s->sched)->eos_token_id;
        r->max_tokens = b->max_tokens;
        r->keep = k3i_alloc(sizeof eos);
        r->free_keep = k3i_free;
        if (r->keep == NULL)
            st = k3i_fail(b->err, K3_E_NOMEM, "no memory");
        else
            memcpy(r->keep, &eos, sizeof eos);
        r->sampling.temperature = (float)k3i_arg_real(b->args, "temperature");
        r->sampling.stop = r->keep;
        r->sampling.n_stop = 1;
    }
    if (st == K3_OK)
        st = k3i_sched_check(s->sched, r, b->err);
    if (st != K3_OK) {
        k3i_request_unref(r);
        return st;
    }
    k3i_sched_add(s->sched, r);
    *ret = r;
    return K3_OK;
}

/* Whether the next step is decode only, and the tokens out so far. */
static bool all_decode(k3i_request *const *r, size_t n, int64_t *ret_tokens)
{
    bool decode = true;
    *ret_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        *ret_tokens += r[i]->n_ready;
        decode = decode && r[i]->n_ready > 0;
    }
    return decode;
}

/* Prompts [from, from + n) at once, to their ends. */
static k3_status run_group(bench *b, side *s, size_t from, size_t n, measure *m)
{
    k3i_request **r = k3i_alloc_array(n, sizeof(k3i_request *));
    k3_status st = r != NULL ? K3_OK : k3i_fail(b->err, K3_E_NOMEM, "no memory");
    size_t n_made = 0;
    while (st == K3_OK && n_made < n) {
        st = submit(b, s, from + n_made, &r[n_made]);
        n_made += st == K3_OK;
    }
    for (bool more = st == K3_OK; more;) {
        int64_t before, after;
        bool decode = all_decode(r, n, &before);
        int64_t start = k3i_now_ns();
        more = k3i_sched_step(s->sched);
        int64_t ns = k3i_now_ns() - start;
        all_decode(r, n, &after);
        if (decode && more) {
            m->ns += (double)ns;
            m->tokens += after - before;
        }
    }
    for (size_t i = 0; i < n_made; i++) {
        if (st == K3_OK && r[i]->finish == K3_FINISH_ERROR) {
            *b->err = r[i]->error;
            st = b->err->code;
        }
        k3i_request_unref(r[i]);
    }
    k3i_free(r);
    return st;
}

/* A round: every prompt on both sides, which take turns after each group, since the speed of a
 * machine drifts within seconds. */
static k3_status run_round(bench *b, measure *plain, measure *spec)
{
    k3_status st = K3_OK;
    *plain = *spec = (measure){0};
    for (size_t at = 0; st == K3_OK && at < b->n_prompts; at += b->users) {
        size_t n = b->n_prompts - at < b->users ? b->n_prompts - at : b->users;
        st = run_group(b, &b->plain, at, n, plain);
        if (st == K3_OK)
            st = run_group(b, &b->spec, at, n, spec);
    }
    return st;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, by_value);
    return x[n / 2];
}

static void print(const bench *b, k3i_table *t, double *plain, double *spec, double *ratio,
                  size_t n)
{
    k3i_stats stats;
    k3i_sched_stats(b->spec.sched, &stats);
    double drafts = (double)stats.spec_drafts;
    k3i_table_begin(t, "speculation", "Speculation");
    k3i_table_count(t, "users", "users", b->users);
    k3i_table_count(t, "prompts", "prompts", b->n_prompts);
    k3i_table_real(t, "plain_tokens_per_s", "plain", median(plain, n), "tokens/s");
    k3i_table_real(t, "spec_tokens_per_s", "with the draft", median(spec, n), "tokens/s");
    k3i_table_real(t, "speedup", "speed-up", median(ratio, n), "x");
    k3i_table_real(t, "speedup_min", "  slowest round", ratio[0], "x");
    k3i_table_real(t, "speedup_max", "  fastest round", ratio[n - 1], "x");
    k3i_table_real(t, "mean_acceptance_length", "mean acceptance length",
                   drafts > 0 ? 1 + (double)stats.spec_accepted_tokens / drafts : 1, "tokens");
    k3i_table_real(t, "mean_draft_length", "mean draft length",
                   drafts > 0 ? (double)stats.spec_draft_tokens / drafts : 0, "tokens");
    k3i_table_count(t, "drafting_decisions", "steps with drafts", (uint64_t)stats.draft_decisions);
    k3i_table_count(t, "plain_decisions", "steps without", (uint64_t)stats.plain_decisions);
    k3i_table_end(t);
}

static k3_status measure_rounds(bench *b, k3i_table *t)
{
    double plain[MAX_ROUNDS], spec[MAX_ROUNDS], ratio[MAX_ROUNDS];
    size_t n = (size_t)k3i_arg_int(b->args, "rounds");
    k3_status st = K3_OK;
    /* A first round brings weights into memory and costs into the policy; it is not counted. */
    for (size_t i = 0; i <= n && st == K3_OK; i++) {
        measure p, s;
        st = run_round(b, &p, &s);
        if (st != K3_OK)
            break;
        if (p.tokens == 0 || s.tokens == 0)
            return k3i_fail(b->err, K3_E_OPTION, "--prompts: every answer is one token long");
        size_t k = i == 0 ? 0 : i - 1;
        plain[k] = (double)p.tokens / p.ns * 1e9;
        spec[k] = (double)s.tokens / s.ns * 1e9;
        ratio[k] = spec[k] / plain[k];
        k3i_progress_bar("measuring speculation", i, n);
    }
    k3i_progress_clear();
    if (st == K3_OK)
        print(b, t, plain, spec, ratio, n);
    return st;
}

static void close_side(side *s)
{
    k3i_sched_free(s->sched);
    k3_close(s->engine);
}

k3_status k3i_bench_spec(const k3i_args *args, k3i_table *t, k3i_err *err)
{
    bench b = {.args = args,
               .err = err,
               .users = (size_t)k3i_arg_int(args, "users"),
               .max_tokens = (int32_t)k3i_arg_int(args, "max-tokens")};
    k3i_spec_config spec = {0}, none = {0};
    k3_status st = k3i_spec_config_parse(k3i_arg_text(args, "speculative-config"), &spec, err);
    if (st == K3_OK)
        st = read_prompts(&b);
    if (st == K3_OK)
        st = open_side(&b, &none, &b.plain);
    if (st == K3_OK)
        st = open_side(&b, &spec, &b.spec);
    if (st == K3_OK)
        st = measure_rounds(&b, t);
    close_side(&b.plain);
    close_side(&b.spec);
    for (size_t i = 0; i < b.n_prompts; i++)
        k3i_free(b.prompts[i].ids);
    k3i_free(b.prompts);
    k3_text_close(b.text);
    k3i_spec_config_done(&spec);
    return st;
}
