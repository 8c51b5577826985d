/* call.c: the life of a call: routing, starting of requests, reading of the stream, the end. */
#include "call.h"

#include <stdio.h>
#include <string.h>

typedef bool (*handler)(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);

static const struct {
    const char *path;
    handler fn;
} ROUTES[] = {
    {"/v1/chat/completions", k3i_chat_prepare},
    {"/v1/completions", k3i_completion_prepare},
    {"/tokenize", k3i_tokenize_handle},
    {"/detokenize", k3i_detokenize_handle},
    {"/v1/tokenizers/estimate-token-count", k3i_estimate_handle},
};

static handler find_route(const char *path)
{
    for (size_t i = 0; i < sizeof ROUTES / sizeof *ROUTES; i++) {
        if (strcmp(path, ROUTES[i].path) == 0)
            return ROUTES[i].fn;
    }
    return NULL;
}

bool k3i_call_has_route(const char *path)
{
    return find_route(path) != NULL;
}

/* ---- life --------------------------------------------------------------------------------------
 */

k3_status k3i_call_new(k3i_api *api, k3i_api_call **ret, k3i_err *err)
{
    k3i_api_call *c = k3i_alloc_zero(sizeof *c);
    if (c == NULL)
        return k3i_fail(err, K3_E_NOMEM, "call: out of memory");
    c->api = api;
    atomic_init(&c->n_refs, 1);
    atomic_init(&c->phase, K3_CALL_NEW);
    atomic_init(&c->n_open, 0);
    pthread_mutex_init(&c->lock, NULL);
    c->body = K3I_BUF(api->config->max_body_bytes);
    c->out = K3I_BUF((size_t)1 << 30);
    c->echo = K3I_BUF(api->config->max_body_bytes);
    c->content_type = "application/json";
    k3i_arena_init(&c->arena, (size_t)64 << 20);
    *ret = c;
    return K3_OK;
}

void k3i_call_ref(k3i_api_call *c)
{
    atomic_fetch_add(&c->n_refs, 1);
}

void k3i_call_unref(k3i_api_call *c)
{
    if (c == NULL || atomic_fetch_sub(&c->n_refs, 1) != 1)
        return;
    for (int32_t i = 0; i < c->n_choices; i++)
        k3i_choice_done(&c->choice[i]);
    k3i_grammar_free(c->grammar);
    k3i_chat_prompt_done(&c->prompt);
    yyjson_doc_free(c->doc);
    k3i_arena_done(&c->arena);
    k3i_buf_done(&c->body);
    k3i_buf_done(&c->out);
    k3i_buf_done(&c->echo);
    pthread_mutex_destroy(&c->lock);
    k3i_free(c);
}

void k3i_call_close(k3i_api_call *c)
{
    for (int32_t i = 0; i < c->n_choices; i++)
        k3i_choice_close(&c->choice[i]);
    if (c->is_counted)
        atomic_fetch_sub(&c->api->load, 1);
    c->is_counted = false;
    k3i_call_unref(c);
}

void k3i_call_fail(k3i_api_call *c, const k3i_fault *fault)
{
    c->out.n = 0;
    c->status = fault->status;
    c->content_type = "application/json";
    if (fault->status == 401) /* vLLM's body */
        k3i_buf_adds(&c->out, "{\"error\":\"Unauthorized\"}", NULL);
    else
        k3i_fault_body(fault, &c->out, NULL);
    atomic_store(&c->phase, K3_CALL_READY);
}

/* ---- start -------------------------------------------------------------------------------------
 */

bool k3i_check_model(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    const char *name = NULL;
    const k3i_api_config *config = c->api->config;
    c->model = config->names[0];
    if (!k3i_member_str(root, "model", &name, fault))
        return false;
    if (name == NULL)
        return true;
    for (int32_t i = 0; i < config->n_names; i++) {
        if (strcmp(name, config->names[i]) == 0) {
            c->model = config->names[i];
            return true;
        }
    }
    return k3i_fault_set(fault, 404, "model", "The model `%.200s` does not exist.", name);
}

bool k3i_check_lengths(k3i_api_call *c, size_t n_ids, int32_t *ret_max_tokens, k3i_fault *fault)
{
    int32_t limit = k3i_serve_info(c->api->serve)->max_model_len, want = c->params.max_tokens;
    if (want > limit)
        return k3i_fault_set(fault, 400, "max_tokens",
                             "max_tokens=%d cannot be greater than max_model_len=%d.", want, limit);
    size_t least = n_ids + (size_t)(want < 0 ? 1 : want);
    if (least > (size_t)limit)
        return k3i_fault_set(
            fault, 400, "input_tokens",
            "This model's maximum context length is %d tokens. However, you requested %d output "
            "tokens and your prompt contains at least %zu input tokens, for a total of at least "
            "%zu "
            "tokens. Please reduce the length of the input prompt or the number of requested "
            "output "
            "tokens.",
            limit, want < 0 ? 1 : want, n_ids, least);
    *ret_max_tokens = want < 0 ? limit - (int32_t)n_ids : want;
    return true;
}

static void on_notify(void *user)
{
    k3i_choice *ch = user;
    k3i_api_call *c = ch->call;
    pthread_mutex_lock(&ch->req_of_engine->lock);
    bool is_over = ch->req_of_engine->finish != K3_FINISH_NONE;
    pthread_mutex_unlock(&ch->req_of_engine->lock);
    bool is_last = is_over && atomic_fetch_sub(&c->n_open, 1) == 1;
    if (is_last || c->params.stream)
        c->wake(c);
}

static int32_t on_token(void *user, int32_t token)
{
    return k3i_choice_watch(user, token);
}

static void free_keep(void *call)
{
    k3i_call_unref(call);
}

/* splitmix64: seeds of requests that gave none. */
static uint64_t random_seed(k3i_api *api)
{
    uint64_t z = api->id_seed + (uint64_t)atomic_fetch_add(&api->n_calls, 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

bool k3i_call_add_choice(k3i_api_call *c, int32_t index, int32_t prompt, const int32_t *ids,
                         int32_t n_ids, k3i_request **ret, k3i_fault *fault)
{
    k3i_err err;
    k3i_request *r = NULL;
    k3i_choice *ch = &c->choice[index];
    int32_t max_tokens;
    if (!k3i_check_lengths(c, (size_t)n_ids, &max_tokens, fault))
        return false;
    if (k3i_request_new(ids, n_ids, &r, &err) != K3_OK)
        return k3i_fault_from(fault, &err, NULL);
    r->sampling = c->params.sampling;
    if (!c->params.has_seed && index == 0)
        c->params.sampling.seed = random_seed(c->api);
    /* With the client's seed each prompt of a list has the answers that it has alone. */
    int32_t nth = c->params.has_seed ? index % c->params.n : index;
    r->sampling.seed = c->params.sampling.seed + (uint64_t)nth;
    r->max_tokens = max_tokens;
    r->n_choices = c->params.n;
    r->logprobs = c->params.logprobs;
    r->prompt_logprobs = c->params.prompt_logprobs;
    r->no_speculation = c->params.no_speculation;
    if (c->params.echo && c->params.logprobs >= 0 && r->prompt_logprobs < 0)
        r->prompt_logprobs = c->params.logprobs;
    if (c->api->config->request_timeout_ns > 0)
        r->deadline_ns = k3i_now_ns() + c->api->config->request_timeout_ns;
    if (c->params.salt != NULL && (r->salt = k3i_strdup(c->params.salt)) == NULL) {
        k3i_request_unref(r);
        return k3i_fault_set(fault, 503, NULL, "out of memory");
    }
    bool keep_tokens = c->params.logprobs >= 0 || c->params.return_token_ids;
    if (k3i_choice_init(ch, r, &c->params, &c->unfold, keep_tokens, &err) != K3_OK) {
        k3i_request_unref(r);
        return k3i_fault_from(fault, &err, NULL);
    }
    c->n_choices = index + 1;
    ch->index = index;
    ch->prompt = prompt;
    ch->call = c;
    ch->req_of_engine = r;
    r->on_token = c->params.n_stop > 0 ? on_token : NULL;
    r->notify = on_notify;
    r->user = ch;
    /* What sampling points to lives in the call: the request keeps it. */
    k3i_call_ref(c);
    r->keep = c;
    r->free_keep = free_keep;
    *ret = r;
    return true;
}

/* Siblings wait until the first of their prompt has been computed; it is found in the cache then.
 */
static void link_siblings(k3i_api_call *c)
{
    for (int32_t i = 0; i < c->n_choices; i++) {
        int32_t first = i - i % c->params.n;
        if (i == first || c->choice[i].req->leader != NULL)
            continue;
        k3i_request_ref(c->choice[first].req);
        c->choice[i].req->leader = c->choice[first].req;
    }
}

static bool submit_all(k3i_api_call *c, k3i_fault *fault)
{
    link_siblings(c);
    atomic_store(&c->n_open, c->n_choices);
    /* Set before the engine can wake anybody; the server looks at it only after handle(). */
    atomic_store(&c->phase, c->params.stream ? K3_CALL_STREAMS : K3_CALL_WAITS);
    for (int32_t i = 0; i < c->n_choices; i++) {
        k3i_err err;
        if (k3i_serve_submit(c->api->serve, c->choice[i].req, &err) != K3_OK) {
            for (int32_t k = 0; k < i; k++)
                k3i_request_cancel(c->choice[k].req);
            return k3i_fault_from(fault, &err, err.code == K3_E_CONTEXT ? "input_tokens" : NULL);
        }
    }
    atomic_fetch_add(&c->api->load, 1);
    c->is_counted = true;
    return true;
}

static yyjson_val *parse_body(k3i_api_call *c, k3i_fault *fault)
{
    yyjson_read_err e;
    c->doc = yyjson_read_opts(c->body.data == NULL ? (char *)(uintptr_t) "" : c->body.data,
                              c->body.n, K3I_CHAT_READ_FLAGS, NULL, &e);
    if (c->doc == NULL) {
        k3i_fault_set(fault, 400, NULL, "1 validation error:\n  body: invalid JSON at byte %zu: %s",
                      e.pos, e.msg);
        fault->type = "Bad Request";
        return NULL;
    }
    k3i_buf_done(&c->body); /* the document has its own copy of the strings */
    yyjson_val *root = yyjson_doc_get_root(c->doc);
    if (!yyjson_is_obj(root)) {
        k3i_fault_field(fault, "body", "Input should be a valid dictionary");
        return NULL;
    }
    return root;
}

static void make_id(k3i_api_call *c)
{
    const char *prefix = c->is_chat ? "chatcmpl" : "cmpl";
    if (c->request_id[0] != 0)
        snprintf(c->id, sizeof c->id, "%s-%s", prefix, c->request_id);
    else
        snprintf(c->id, sizeof c->id, "%s-%016llx%016llx", prefix,
                 (unsigned long long)random_seed(c->api), (unsigned long long)random_seed(c->api));
}

void k3i_call_handle(k3i_api_call *c)
{
    k3i_fault fault = {0};
    handler fn = find_route(c->path);
    yyjson_val *root = parse_body(c, &fault);
    c->status = 200;
    c->is_chat = fn == k3i_chat_prepare;
    if (root == NULL || !k3i_check_model(c, root, &fault) || !fn(c, root, &fault)) {
        k3i_call_fail(c, &fault);
        return;
    }
    if (c->n_choices == 0) {
        atomic_store(&c->phase, K3_CALL_READY);
        return;
    }
    make_id(c);
    if (!submit_all(c, &fault)) {
        k3i_call_fail(c, &fault);
        return;
    }
    c->content_type = c->params.stream ? "text/event-stream; charset=utf-8" : "application/json";
}

/* ---- answers -----------------------------------------------------------------------------------
 */

static void count_parsed(k3i_api_call *c)
{
    for (int32_t i = 0; i < c->n_choices && c->is_chat && c->chat.has_tools; i++) {
        bool has_call = k3i_unfold_calls(c->choice[i].unfold) > 0;
        atomic_fetch_add(&c->api->n_parsed[c->params.stream][has_call], 1);
    }
}

void k3i_call_finish(k3i_api_call *c)
{
    k3i_fault fault = {0};
    k3i_err err;
    k3_status status = K3_OK;
    for (int32_t i = 0; i < c->n_choices && status == K3_OK; i++) {
        status = k3i_choice_pump(&c->choice[i], &err);
        if (status == K3_OK && c->choice[i].finish == K3_FINISH_ERROR) {
            k3i_fault_of_answer(&fault, &c->choice[i].error);
            k3i_call_fail(c, &fault);
            return;
        }
    }
    if (status == K3_OK) {
        k3i_json j = k3i_json_to(&c->out);
        k3i_reply_whole(c, &j);
        status = k3i_json_end(&j, &err);
    }
    if (status != K3_OK) {
        k3i_fault_set(&fault, 500, NULL, "%s", err.text);
        k3i_call_fail(c, &fault);
        return;
    }
    count_parsed(c);
    atomic_store(&c->phase, K3_CALL_READY);
}

/* Writes what is due; at the end the closing events. */
static void pump_stream(k3i_api_call *c)
{
    k3i_json j = k3i_json_to(&c->out);
    k3i_err err;
    bool all_over = true;
    c->out.n = c->out_at = 0;
    for (int32_t i = 0; i < c->n_choices && j.status == K3_OK; i++) {
        j.status = k3i_choice_pump(&c->choice[i], &j.err);
        if (j.status == K3_OK)
            k3i_reply_chunks(c, &c->choice[i], &j);
        all_over = all_over && c->choice[i].finish != K3_FINISH_NONE;
    }
    if (j.status == K3_OK && all_over) {
        k3i_reply_end(c, &j);
        count_parsed(c);
    }
    c->is_done = all_over;
    if (k3i_json_end(&j, &err) !=
        K3_OK) { /* memory: cut the stream rather than send half an event */
        c->out.n = 0;
        c->is_done = true;
    }
}

size_t k3i_call_read(k3i_api_call *c, char *to, size_t max)
{
    if (c->out_at == c->out.n && !c->is_done)
        pump_stream(c);
    size_t n = c->out.n - c->out_at < max ? c->out.n - c->out_at : max;
    if (n > 0)
        memcpy(to, c->out.data + c->out_at, n);
    c->out_at += n;
    return n;
}
