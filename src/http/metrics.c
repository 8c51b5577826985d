/* metrics.c: the text format, from metrics.def and the gauges of the scheduler. */
#include "metrics.h"

#include "json_out.h"

#include <malloc.h>
#include <stdio.h>

typedef struct {
    k3i_json out;       /* used as a plain text writer */
    const char *labels; /* model_name="..",engine="0" */
} writer;

static void head(writer *w, const char *name, const char *suffix, const char *type,
                 const char *help)
{
    k3i_json_fmt(&w->out, "# HELP vllm:%s%s ", name, suffix);
    k3i_json_raw(&w->out, help);
    k3i_json_fmt(&w->out, "\n# TYPE vllm:%s%s %s\n", name, suffix, type);
}

static void sample(writer *w, const char *name, const char *suffix, const char *more, double value)
{
    k3i_json_fmt(&w->out, "vllm:%s%s{", name, suffix);
    k3i_json_raw(&w->out, w->labels);
    k3i_json_raw(&w->out, more);
    k3i_json_fmt(&w->out, "} %.17g\n", value);
}

static void counter(writer *w, const char *name, const char *help, int64_t value)
{
    head(w, name, "_total", "counter", help);
    sample(w, name, "_total", "", (double)value);
}

static void gauge(writer *w, const char *name, const char *help, double value)
{
    head(w, name, "", "gauge", help);
    sample(w, name, "", "", value);
}

static void histogram(writer *w, const char *name, const char *help, const k3i_histogram *h)
{
    int64_t sum = 0;
    head(w, name, "", "histogram", help);
    for (int32_t i = 0; i <= h->n_bounds; i++) {
        char more[48];
        sum += h->count[i];
        if (i < h->n_bounds)
            snprintf(more, sizeof more, ",le=\"%g\"", h->bounds[i]);
        else
            snprintf(more, sizeof more, ",le=\"+Inf\"");
        sample(w, name, "_bucket", more, (double)sum);
    }
    sample(w, name, "_sum", "", h->sum);
    sample(w, name, "_count", "", (double)sum);
}

static void finished(writer *w, const k3i_stats *s)
{
    static const struct {
        k3i_finish finish;
        const char *label;
    } REASONS[] = {{K3_FINISH_STOP, ",finished_reason=\"stop\""},
                   {K3_FINISH_LENGTH, ",finished_reason=\"length\""},
                   {K3_FINISH_ABORT, ",finished_reason=\"abort\""},
                   {K3_FINISH_ERROR, ",finished_reason=\"error\""}};
    head(w, "request_success", "_total", "counter", "Requests by the way they ended.");
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        sample(w, "request_success", "_total", REASONS[i].label,
               (double)s->finished[REASONS[i].finish]);
}

/* An info metric: what was configured, as labels of a 1. */
static void cache_config(writer *w, const k3i_api *api)
{
    const k3_kv_layout *kv = k3i_serve_layout(api->serve);
    const k3i_sched_config *config = k3i_serve_config(api->serve);
    char more[256];
    snprintf(more, sizeof more,
             ",block_size=\"%d\",num_gpu_blocks=\"%d\",page_bytes=\"%lld\",pool_bytes=\"%lld\","
             "enable_prefix_caching=\"%s\"",
             (int)config->block_tokens, (int)config->num_blocks, (long long)kv->page_bytes,
             (long long)kv->pool_bytes, config->no_prefix_caching ? "False" : "True");
    head(w, "cache_config_info", "", "gauge", "The KV cache as planned at the start.");
    sample(w, "cache_config_info", "", more, 1);
}

static void prompt_sources(writer *w, const k3i_stats *s)
{
    head(w, "prompt_tokens_by_source", "_total", "counter",
         "Prompt tokens by where they came from.");
    sample(w, "prompt_tokens_by_source", "_total", ",source=\"local_compute\"",
           (double)s->prompt_tokens);
    sample(w, "prompt_tokens_by_source", "_total", ",source=\"local_cache_hit\"",
           (double)s->cached_tokens);
    sample(w, "prompt_tokens_by_source", "_total", ",source=\"external_kv_transfer\"", 0);
    counter(w, "external_prefix_cache_queries", "There is no cache outside this process.", 0);
    counter(w, "external_prefix_cache_hits", "There is no cache outside this process.", 0);
}

static void tool_calls(writer *w, k3i_api *api)
{
    head(w, "tool_call_parser_invocations", "_total", "counter",
         "Answers of requests with tools, by whether they hold a call.");
    for (int i = 0; i < 4; i++) {
        char more[128];
        snprintf(more, sizeof more, ",mode=\"%s\",outcome=\"%s\",request_type=\"chat_completions\"",
                 i / 2 ? "streaming" : "non_streaming", i % 2 ? "tool_call" : "no_tool_call");
        sample(w, "tool_call_parser_invocations", "_total", more,
               (double)atomic_load(&api->n_parsed[i / 2][i % 2]));
    }
}

static void speculation(writer *w, const k3i_stats *s, int32_t width)
{
    head(w, "spec_decode_num_accepted_tokens_per_pos", "_total", "counter",
         "Accepted draft tokens by position in the draft.");
    for (int32_t i = 0; i < width; i++) {
        char more[32];
        snprintf(more, sizeof more, ",position=\"%d\"", (int)i);
        sample(w, "spec_decode_num_accepted_tokens_per_pos", "_total", more,
               (double)s->spec_accepted_at[i]);
    }
    gauge(w, "spec_decode_expected_survival",
          "The policy's estimate that a draft token is accepted.", s->spec_survival);
    head(w, "spec_decode_decisions", "_total", "counter",
         "Decode steps planned with and without drafts.");
    sample(w, "spec_decode_decisions", "_total", ",kind=\"draft\"", (double)s->draft_decisions);
    sample(w, "spec_decode_decisions", "_total", ",kind=\"plain\"", (double)s->plain_decisions);
}

static void prefix_cache(writer *w, const k3i_stats *s)
{
    head(w, "prefix_cache_misses", "_total", "counter",
         "Lookups that reused less than the prompt, by cause.");
    sample(w, "prefix_cache_misses", "_total", ",reason=\"tokens\"", (double)s->miss_tokens);
    sample(w, "prefix_cache_misses", "_total", ",reason=\"snapshot\"", (double)s->miss_snapshot);
    gauge(w, "prefix_cache_snapshots", "State snapshots held.", s->snapshots);
}

/* Bytes that are allocated now, 0 where the C library does not tell. Not what is resident: that
 * also counts what was freed and kept for the next request, and leaves out what was never touched.
 */
static double heap_in_use(void)
{
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd);
#else
    return 0;
#endif
}

k3_status k3i_metrics_write(k3i_api *api, k3i_buf *ret, k3i_err *err)
{
    k3i_stats s;
    k3i_buf labels = K3I_BUF(4096);
    k3i_json l = k3i_json_to(&labels);
    k3i_json_raw(&l, "model_name=");
    k3i_json_str(&l, api->config->names[0]);
    k3i_json_raw(&l, ",engine=\"0\"");
    k3_status status = k3i_json_end(&l, err);
    if (status == K3_OK)
        status = k3i_buf_add(&labels, "", 1, err);
    if (status != K3_OK) {
        k3i_buf_done(&labels);
        return status;
    }
    k3i_serve_stats(api->serve, &s);
    writer w = {.out = k3i_json_to(ret), .labels = labels.data};
    gauge(&w, "num_requests_running", "Requests in the batch.", s.running);
    gauge(&w, "num_requests_waiting", "Requests in the queue.", s.waiting);
    head(&w, "num_requests_waiting_by_reason", "", "gauge", "Requests in the queue, by cause.");
    sample(&w, "num_requests_waiting_by_reason", "", ",reason=\"capacity\"", s.waiting);
    sample(&w, "num_requests_waiting_by_reason", "", ",reason=\"deferred\"", 0);
    double used = s.pages - s.pages_free - s.pages_evictable;
    gauge(&w, "kv_cache_usage_perc", "Pages that running requests hold, 0 to 1.",
          s.pages > 0 ? used / s.pages : 0);
    gauge(&w, "heap_in_use_bytes",
          "Allocated memory, mapped weights excepted: steady on an idle server.", heap_in_use());
    gauge(&w, "engine_threads_active",
          "Threads that share a step: fewer than all while other programs want the processors.",
          s.threads_active);
    gauge(&w, "engine_sleep_state", "1 while the engine is awake.", 1);
    cache_config(&w, api);
    finished(&w, &s);
    head(&w, "engine_seconds", "_total", "counter",
         "Time inside the engine's calls; the rest of a busy server's time is its own.");
    sample(&w, "engine_seconds", "_total", "", (double)s.engine_ns * 1e-9);
#define COUNTER(field, name, help) counter(&w, name, help, s.field);
#define HISTOGRAM(field, name, help, bounds) histogram(&w, name, help, &s.field);
#include "metrics.def"
#undef COUNTER
#undef HISTOGRAM
    speculation(&w, &s, k3i_serve_info(api->serve)->draft_tokens);
    prefix_cache(&w, &s);
    prompt_sources(&w, &s);
    tool_calls(&w, api);
    k3i_buf_done(&labels);
    return k3i_json_end(&w.out, err);
}
