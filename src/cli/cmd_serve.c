/* cmd_serve.c: the server in the foreground: opens, prints what it does, waits for a signal,
 * drains. */
#include "args.h"
#include "fetch.h"
#include "host.h"
#include "server.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_LIST = 64, REPORT_SECONDS = 10 };

/* A comma-separated option. */
typedef struct {
    char *text;
    const char *item[MAX_LIST];
    int32_t n;
} list;

typedef struct {
    k3i_host host;
    k3i_api_config config;
    k3i_api api;
    k3i_server *server;
    k3i_vocab *vocab;
    list names, keys, domains;
} serve_state;

static k3_status split(const char *option, const char *text, list *ret, k3i_err *err)
{
    if (text == NULL)
        return K3_OK;
    ret->text = k3i_strdup(text);
    if (ret->text == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory");
    for (char *p = ret->text, *next; p != NULL; p = next) {
        next = strchr(p, ',');
        if (next != NULL)
            *next++ = 0;
        if (*p == 0 || ret->n == MAX_LIST)
            return k3i_fail(err, K3_E_OPTION, "--%s: an empty entry, or more than %d", option,
                            MAX_LIST);
        ret->item[ret->n++] = p;
    }
    return K3_OK;
}

static void log_line(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= 2)
        fprintf(stderr, "k3 serve: %s\n", text);
}

static bool is_kimi(const k3i_args *args, const char *name)
{
    const char *when = k3i_arg_text(args, "kimi-policy");
    return strcmp(when, "on") == 0 ||
           (strcmp(when, "auto") == 0 && strncmp(name, "kimi-k3", 7) == 0);
}

static k3_status configure(const k3i_args *args, serve_state *s, k3i_err *err)
{
    k3_status st =
        split("served-model-name", k3i_arg_text(args, "served-model-name"), &s->names, err);
    if (st == K3_OK)
        st = split("api-key", k3i_arg_text(args, "api-key"), &s->keys, err);
    if (st == K3_OK)
        st = split("allowed-media-domains", k3i_arg_text(args, "allowed-media-domains"),
                   &s->domains, err);
    if (st != K3_OK)
        return st;
    if (k3i_arg_given(args, "enable-prefix-caching") &&
        k3i_arg_given(args, "no-enable-prefix-caching"))
        return k3i_fail(err, K3_E_OPTION,
                        "--enable-prefix-caching and its opposite are both given");
    const char *model = k3i_arg_text(args, "model");
    if (s->names.n == 0)
        s->names.item[s->names.n++] = model;
    size_t body = (size_t)k3i_arg_int(args, "max-body-bytes");
    s->config = (k3i_api_config){
        .names = s->names.item,
        .n_names = s->names.n,
        .root = model,
        .api_keys = s->keys.item,
        .n_api_keys = s->keys.n,
        .kimi_policy = is_kimi(args, s->names.item[0]),
        .max_body_bytes = body,
        .max_total_bytes = 8 * body, /* uploads at one time: eight of the largest */
        .request_timeout_ns = k3i_arg_int(args, "request-timeout") * 1000000000,
        .max_connections = (int32_t)k3i_arg_int(args, "max-connections"),
        .n_workers = 2, /* one large request must not hold up the small ones */
        .idle_timeout_s = (int32_t)k3i_arg_int(args, "idle-timeout"),
        .media = {.allowed_domains = s->domains.item,
                  .n_allowed_domains = s->domains.n,
                  .allow_private = k3i_arg_given(args, "allow-private-media"),
                  .max_bytes = (size_t)k3i_arg_int(args, "max-image-bytes"),
                  .max_images = (int32_t)k3i_arg_int(args, "max-images"),
                  .timeout_s = 10,
                  .max_redirects = 3},
        .log = log_line};
    return K3_OK;
}

static k3_status open_all(const k3i_args *args, serve_state *s, k3i_err *err)
{
    k3i_host_config config = {.max_num_seqs = (int32_t)k3i_arg_int(args, "max-num-seqs"),
                              .max_num_batched_tokens =
                                  (int32_t)k3i_arg_int(args, "max-num-batched-tokens"),
                              .block_tokens = (int32_t)k3i_arg_int(args, "block-size"),
                              .max_waiting = (int32_t)k3i_arg_int(args, "max-waiting"),
                              .num_blocks = (int32_t)k3i_arg_int(args, "num-gpu-blocks-override"),
                              .kv_bytes = k3i_arg_int(args, "kv-cache-memory-bytes"),
                              .snapshot_bytes = k3i_arg_int(args, "prefix-snapshot-bytes"),
                              .no_prefix_caching = k3i_arg_given(args, "no-enable-prefix-caching")};
    k3_status st = configure(args, s, err);
    config.model = s->config.root;
    if (st == K3_OK && !k3i_fetch_init())
        st = k3i_fail(err, K3_E_IO, "libcurl cannot be initialised");
    if (st == K3_OK)
        st = k3i_host_open(args, &config, &s->host, err);
    if (st != K3_OK)
        return st;
    s->host.image.decode.max_bytes = s->config.media.max_bytes;
    s->host.image.decode.max_pixels = (uint64_t)k3i_arg_int(args, "max-image-pixels");
    s->api.config = &s->config;
    s->api.serve = s->host.serve;
    s->api.tok = s->host.tok;
    s->api.created = (int64_t)time(NULL);
    if (getrandom(&s->api.id_seed, sizeof s->api.id_seed, 0) != sizeof s->api.id_seed)
        return k3i_fail(err, K3_E_IO, "the system gives no random bytes");
    st = k3i_vocab_new(s->host.tok, &s->vocab, err);
    s->api.vocab = s->vocab;
    if (st == K3_OK)
        st = k3i_media_store_new(&s->config.media, &s->host.image, s->config.root, &s->api.media,
                                 err);
    if (st == K3_OK)
        st = k3i_server_start(&s->api, k3i_arg_text(args, "host"),
                              (int32_t)k3i_arg_int(args, "port"), &s->server, err);
    return st;
}

static void close_all(serve_state *s)
{
    k3i_serve_free(s->host.serve); /* its requests use the vocabulary */
    s->host.serve = NULL;
    k3i_vocab_free(s->vocab);
    k3i_host_close(&s->host);
    k3i_media_store_free(s->api.media);
    k3i_free(s->names.text);
    k3i_free(s->keys.text);
    k3i_free(s->domains.text);
}

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* What runs, in the order in which one would ask. */
static void print_plan(const k3i_args *args, const serve_state *s)
{
    const k3_info *i = &s->host.info;
    const k3_kv_layout *kv = k3i_serve_layout(s->host.serve);
    const char *host = k3i_arg_text(args, "host");
    fprintf(stderr, "k3 serve: model %s: %d layers, vocabulary %d, %s%.1f MiB of weights\n",
            s->config.root, (int)i->num_layers, (int)i->vocab_size, i->has_vision ? "vision, " : "",
            mib(i->weight_bytes));
    fprintf(stderr, "k3 serve: backend cpu, %s kernels, %s, %d threads\n", i->isa, i->mode,
            (int)i->threads);
    fprintf(
        stderr,
        "k3 serve: KV cache %.1f MiB: %d pages of %d tokens; %d requests at a time, %.1f MiB of "
        "state; %d tokens a step; longest sequence %d\n",
        mib(kv->pool_bytes), (int)s->host.sched.num_blocks, (int)s->host.sched.block_tokens,
        (int)i->max_num_seqs, mib(kv->slot_bytes), (int)i->max_num_batched_tokens,
        (int)i->max_model_len);
    fprintf(stderr, "k3 serve: prefix caching %s", s->host.sched.no_prefix_caching ? "off" : "on");
    fprintf(stderr,
            s->host.sched.speculative_tokens > 0 ? "; dspark, up to %d drafts, %s width\n"
                                                 : "; no speculation\n",
            (int)s->host.sched.speculative_tokens,
            s->host.sched.is_fixed_width ? "fixed" : "measured");
    if (s->config.kimi_policy)
        fprintf(stderr,
                "k3 serve: Kimi policy on: temperature 0..1, top_p 0.95, no penalties, n 1\n");
    fprintf(stderr, "k3 serve: names:");
    for (int32_t k = 0; k < s->names.n; k++)
        fprintf(stderr, " %s", s->names.item[k]);
    fprintf(stderr, "\nk3 serve: ready at http://%s:%d\n", host, (int)k3i_server_port(s->server));
    fflush(stderr);
}

/* One line every few seconds while there is work, with vLLM's figures. */
static void report(k3i_serve *serve, k3i_stats *last, double seconds)
{
    k3i_stats now;
    k3i_serve_stats(serve, &now);
    int64_t in = now.prompt_tokens - last->prompt_tokens;
    int64_t out = now.generation_tokens - last->generation_tokens;
    if (in > 0 || out > 0) {
        int64_t drafts = now.spec_drafts - last->spec_drafts;
        int64_t kept = now.spec_accepted_tokens - last->spec_accepted_tokens;
        double used = now.pages - now.pages_free - now.pages_evictable;
        fprintf(
            stderr,
            "k3 serve: prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, KV "
            "cache %.1f %%, prefix hits %.1f %%",
            (double)in / seconds, (double)out / seconds, (int)now.running, (int)now.waiting,
            now.pages > 0 ? 100.0 * used / now.pages : 0.0,
            now.prefix_queries > 0 ? 100.0 * (double)now.prefix_hits / (double)now.prefix_queries
                                   : 0.0);
        if (drafts > 0)
            fprintf(stderr, ", mean acceptance length %.2f", 1.0 + (double)kept / (double)drafts);
        fprintf(stderr, "\n");
    }
    *last = now;
}

/* Returns the signal that ends the server. */
static int wait_for_signal(const sigset_t *set, k3i_serve *serve)
{
    k3i_stats last = {0};
    for (;;) {
        struct timespec patience = {.tv_sec = REPORT_SECONDS};
        int sig = sigtimedwait(set, NULL, &patience);
        if (sig > 0)
            return sig;
        report(serve, &last, REPORT_SECONDS);
    }
}

/* Many connections need many descriptors; what is not granted is a smaller limit, not an error. */
static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* glibc gives each thread a heap of its own, which keeps what was freed there: eight of them grew
 * for many minutes under a mixed load that allocates no more at its end than at its beginning
 * (bench/serve_load.py). Steps of the engine do not allocate, so two are enough. */
static void share_heaps(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 2);
#endif
}

int k3i_cmd_serve(const k3i_args *args)
{
    k3i_err err;
    serve_state s = {0};
    sigset_t set;
    /* Blocked in every thread; this one waits for them. */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    share_heaps();
    k3_status st = open_all(args, &s, &err);
    if (st == K3_OK) {
        print_plan(args, &s);
        int sig = wait_for_signal(&set, s.host.serve);
        int64_t limit = k3i_arg_int(args, "shutdown-timeout");
        fprintf(stderr, "k3 serve: %s: finishing what runs, at most %" PRId64 " s\n",
                sig == SIGTERM ? "SIGTERM" : "SIGINT", limit);
        signal(SIGINT, SIG_DFL); /* a second Ctrl-C does not wait */
        signal(SIGTERM, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
        k3i_server_stop(s.server, limit * 1000000000);
        fprintf(stderr, "k3 serve: stopped\n");
    }
    close_all(&s);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
