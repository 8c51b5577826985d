/* params.c: one reader per field kind, then the fields in the order of the API reference. null
 * counts as absent; booleans are not integers. */
#include "params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

yyjson_val *k3i_member(yyjson_val *object, const char *key)
{
    yyjson_val *v = yyjson_obj_get(object, key);
    return yyjson_is_null(v) ? NULL : v;
}

bool k3i_member_bool(yyjson_val *root, const char *key, bool *ret, k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, key);
    if (v == NULL)
        return true;
    if (!yyjson_is_bool(v))
        return k3i_fault_field(fault, key, "Input should be a valid boolean");
    *ret = yyjson_get_bool(v);
    return true;
}

bool k3i_member_int(yyjson_val *root, const char *key, int64_t *ret, k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, key);
    if (v == NULL)
        return true;
    if (yyjson_is_real(v) && floor(yyjson_get_real(v)) == yyjson_get_real(v) &&
        fabs(yyjson_get_real(v)) < 9e15) {
        *ret = (int64_t)yyjson_get_real(v); /* 16.0 is an integer for JSON clients */
        return true;
    }
    if (!yyjson_is_int(v))
        return k3i_fault_field(fault, key, "Input should be a valid integer");
    if (yyjson_is_uint(v) && yyjson_get_uint(v) > INT64_MAX)
        return k3i_fault_field(fault, key, "Input should be a 64-bit integer");
    *ret = yyjson_get_sint(v);
    return true;
}

bool k3i_member_str(yyjson_val *root, const char *key, const char **ret, k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, key);
    if (v == NULL)
        return true;
    if (!yyjson_is_str(v) || strlen(yyjson_get_str(v)) != yyjson_get_len(v))
        return k3i_fault_field(fault, key, "Input should be a valid string");
    *ret = yyjson_get_str(v);
    return true;
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

/* As Python prints a float: 3.0, not 3. */
static const char *float_text(double x, char text[40])
{
    snprintf(text, 40, floor(x) == x && fabs(x) < 1e15 ? "%.1f" : "%.9g", x);
    return text;
}

static bool read_float(yyjson_val *root, const char *key, float *ret, k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, key);
    if (v == NULL)
        return true;
    if (!yyjson_is_num(v))
        return k3i_fault_field(fault, key, "Input should be a valid number");
    double x = yyjson_get_num(v);
    if (!isfinite(x) || fabs(x) > 3e38)
        return k3i_fault_set(fault, 400, key, "%s must be a finite number.", key);
    *ret = (float)x;
    return true;
}

static bool out_of_range(k3i_fault *fault, const char *key, const char *rule, double value)
{
    char text[40];
    float_text(value, text);
    return k3i_fault_set(fault, 400, key, "%s %s, got %s. (parameter=%s, value=%s)", key, rule,
                         text, key, text);
}

static bool int_out_of_range(k3i_fault *fault, const char *key, const char *rule, int64_t value)
{
    return k3i_fault_set(fault, 400, key, "%s %s, got %lld. (parameter=%s, value=%lld)", key, rule,
                         (long long)value, key, (long long)value);
}

static bool read_penalty(yyjson_val *root, const char *key, float *ret, k3i_fault *fault)
{
    if (!read_float(root, key, ret, fault))
        return false;
    if (*ret < -2.0f || *ret > 2.0f)
        return out_of_range(fault, key, "must be in [-2, 2]", (double)*ret);
    return true;
}

static bool read_sampling(yyjson_val *root, k3i_sampling *s, k3i_fault *fault)
{
    int64_t top_k = 0, min_tokens = 0;
    if (!read_float(root, "temperature", &s->temperature, fault) ||
        !read_float(root, "top_p", &s->top_p, fault) ||
        !k3i_member_int(root, "top_k", &top_k, fault) ||
        !read_float(root, "min_p", &s->min_p, fault) ||
        !read_penalty(root, "presence_penalty", &s->presence_penalty, fault) ||
        !read_penalty(root, "frequency_penalty", &s->frequency_penalty, fault) ||
        !read_float(root, "repetition_penalty", &s->repetition_penalty, fault) ||
        !k3i_member_int(root, "min_tokens", &min_tokens, fault))
        return false;
    if (s->temperature < 0.0f)
        return out_of_range(fault, "temperature", "must be non-negative", (double)s->temperature);
    if (s->temperature > 2.0f)
        return out_of_range(fault, "temperature", "must be in [0, 2]", (double)s->temperature);
    if (s->top_p <= 0.0f || s->top_p > 1.0f)
        return out_of_range(fault, "top_p", "must be in (0, 1]", (double)s->top_p);
    if (top_k < -1 || top_k > INT32_MAX)
        return int_out_of_range(fault, "top_k", "must be 0 (disable), or at least 1", top_k);
    if (s->min_p < 0.0f || s->min_p > 1.0f)
        return out_of_range(fault, "min_p", "must be in [0, 1]", (double)s->min_p);
    if (s->repetition_penalty <= 0.0f)
        return out_of_range(fault, "repetition_penalty", "must be greater than zero",
                            (double)s->repetition_penalty);
    if (min_tokens < 0 || min_tokens > INT32_MAX)
        return int_out_of_range(fault, "min_tokens", "must be greater than or equal to 0",
                                min_tokens);
    s->top_k = top_k < 1 ? 0 : (int32_t)top_k;
    s->min_tokens = (int32_t)min_tokens;
    return true;
}

/* What Moonshot's API fixes for Kimi-K3. */
static bool check_kimi(k3i_params *p, k3i_fault *fault)
{
    k3i_sampling *s = &p->sampling;
    if (s->temperature > 1.0f)
        return out_of_range(fault, "temperature", "must be in [0, 1] for this model",
                            (double)s->temperature);
    if (s->top_p == 1.0f) /* the SDK's default */
        s->top_p = 0.95f;
    if (fabsf(s->top_p - 0.95f) > 1e-6f)
        return out_of_range(fault, "top_p", "must be 0.95 for this model", (double)s->top_p);
    if (s->presence_penalty != 0.0f)
        return out_of_range(fault, "presence_penalty", "must be 0 for this model",
                            (double)s->presence_penalty);
    if (s->frequency_penalty != 0.0f)
        return out_of_range(fault, "frequency_penalty", "must be 0 for this model",
                            (double)s->frequency_penalty);
    if (p->n != 1)
        return int_out_of_range(fault, "n", "must be 1 for this model", p->n);
    return true;
}

/* ---- lists -------------------------------------------------------------------------------------
 */

static bool no_memory(k3i_fault *fault)
{
    return k3i_fault_set(fault, 503, NULL, "out of memory");
}

static bool add_stop(k3i_params *p, yyjson_val *v, k3i_fault *fault)
{
    if (!yyjson_is_str(v))
        return k3i_fault_field(fault, "stop", "Input should be a valid string");
    const char *text = yyjson_get_str(v);
    if (text[0] == 0)
        return k3i_fault_set(fault, 400, "stop", "stop cannot contain an empty string.");
    if (strlen(text) != yyjson_get_len(v) || yyjson_get_len(v) > K3_MAX_STOP_BYTES)
        return k3i_fault_set(fault, 400, "stop", "stop strings may have %d bytes and no NUL.",
                             K3_MAX_STOP_BYTES);
    if (p->n_stop == K3_MAX_STOP)
        return k3i_fault_set(fault, 400, "stop", "stop may have at most %d entries.", K3_MAX_STOP);
    p->stop[p->n_stop++] = text;
    return true;
}

static bool read_stop(yyjson_val *root, k3i_params *p, k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, "stop"), *item;
    if (v == NULL)
        return true;
    if (!yyjson_is_arr(v))
        return add_stop(p, v, fault);
    size_t i, n;
    yyjson_arr_foreach(v, i, n, item)
    {
        if (!add_stop(p, item, fault))
            return false;
    }
    return true;
}

/* The model's own stop ids first, then those of the request. */
static bool read_stop_ids(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                          k3i_fault *fault)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(ctx->tok);
    yyjson_val *v = k3i_member(root, "stop_token_ids"), *item;
    if (v != NULL && !yyjson_is_arr(v))
        return k3i_fault_field(fault, "stop_token_ids", "Input should be a valid list");
    if (yyjson_arr_size(v) > 1024)
        return k3i_fault_set(fault, 400, "stop_token_ids", "stop_token_ids may have 1024 entries.");
    int32_t *ids = k3i_arena_new(ctx->arena, int32_t, yyjson_arr_size(v) + 2);
    if (ids == NULL)
        return no_memory(fault);
    p->sampling.stop = ids;
    if (!p->ignore_eos) {
        ids[p->sampling.n_stop++] = special->end_of_msg;
        ids[p->sampling.n_stop++] = special->eot;
    }
    size_t i, n;
    yyjson_arr_foreach(v, i, n, item)
    {
        if (!yyjson_is_int(item))
            return k3i_fault_field(fault, "stop_token_ids", "Input should be a valid integer");
        int64_t id = yyjson_get_sint(item);
        if (id < 0 || id >= ctx->vocab)
            return k3i_fault_set(fault, 400, "stop_token_ids",
                                 "stop_token_ids: %lld is not in the vocabulary of %d.",
                                 (long long)id, ctx->vocab);
        ids[p->sampling.n_stop++] = (int32_t)id;
        p->n_stop_ids++;
    }
    return true;
}

static bool read_logit_bias(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                            k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, "logit_bias"), *key, *value;
    if (v == NULL)
        return true;
    if (!yyjson_is_obj(v))
        return k3i_fault_field(fault, "logit_bias", "Input should be a valid dictionary");
    k3i_logit_bias *bias = k3i_arena_new(ctx->arena, k3i_logit_bias, yyjson_obj_size(v) + 1);
    if (bias == NULL)
        return no_memory(fault);
    size_t i, n;
    yyjson_obj_foreach(v, i, n, key, value)
    {
        const char *text = yyjson_get_str(key);
        char *end;
        long id = strtol(text, &end, 10);
        if (end == text || end != text + yyjson_get_len(key) || id < 0 || id >= ctx->vocab)
            return k3i_fault_set(fault, 400, "logit_bias",
                                 "logit_bias: '%.40s' is not a token id of this model.", text);
        if (!yyjson_is_num(value) || !isfinite(yyjson_get_num(value)))
            return k3i_fault_field(fault, "logit_bias", "Input should be a valid number");
        double b = fmax(-100.0, fmin(100.0, yyjson_get_num(value)));
        bias[p->sampling.n_bias++] = (k3i_logit_bias){(int32_t)id, (float)b};
    }
    p->sampling.bias = bias;
    return true;
}

/* The ids of a bad word, with or without a space in front; they must live in the arena. */
static bool bad_word_ids(const k3i_params_ctx *ctx, const char *word, bool space, k3i_bad_word *ret,
                         k3i_fault *fault)
{
    char text[512];
    while (*word == ' ')
        word++;
    int len = snprintf(text, sizeof text, "%s%s", space ? " " : "", word);
    if (len <= 0 || len >= (int)sizeof text)
        return k3i_fault_set(fault, 400, "bad_words", "a bad word may have at most 500 bytes.");
    k3i_ids ids = K3I_IDS(1024);
    k3i_err err;
    if (k3i_tok_encode(ctx->tok, text, (size_t)len, K3I_TOK_PLAIN, &ids, &err) != K3_OK) {
        k3i_ids_done(&ids);
        return k3i_fault_from(fault, &err, "bad_words");
    }
    int32_t *copy = k3i_arena_new(ctx->arena, int32_t, ids.n);
    if (copy != NULL)
        memcpy(copy, ids.id, ids.n * sizeof *copy);
    *ret = (k3i_bad_word){copy, (int32_t)ids.n};
    k3i_ids_done(&ids);
    return copy == NULL ? no_memory(fault) : true;
}

/* Like vLLM: each word as it stands, and as it would begin after a space if that has as many ids.
 */
static bool read_bad_words(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                           k3i_fault *fault)
{
    yyjson_val *v = k3i_member(root, "bad_words"), *item;
    if (v == NULL)
        return true;
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > K3_MAX_BAD_WORDS)
        return k3i_fault_set(fault, 400, "bad_words",
                             "bad_words must be a list of at most %d strings.", K3_MAX_BAD_WORDS);
    k3i_bad_word *bad = k3i_arena_new(ctx->arena, k3i_bad_word, 2 * yyjson_arr_size(v) + 1);
    if (bad == NULL)
        return no_memory(fault);
    p->sampling.bad = bad;
    size_t i, n;
    yyjson_arr_foreach(v, i, n, item)
    {
        if (!yyjson_is_str(item) || strspn(yyjson_get_str(item), " ") == yyjson_get_len(item))
            return k3i_fault_set(fault, 400, "bad_words",
                                 "bad_words cannot contain an empty string.");
        if (strlen(yyjson_get_str(item)) != yyjson_get_len(item))
            return k3i_fault_set(fault, 400, "bad_words", "a bad word may have no NUL.");
        k3i_bad_word plain, spaced;
        if (!bad_word_ids(ctx, yyjson_get_str(item), false, &plain, fault) ||
            !bad_word_ids(ctx, yyjson_get_str(item), true, &spaced, fault))
            return false;
        bad[p->sampling.n_bad++] = plain;
        if (spaced.n == plain.n && spaced.ids[0] != plain.ids[0])
            bad[p->sampling.n_bad++] = spaced;
    }
    return true;
}

/* ---- the form of the answer --------------------------------------------------------------------
 */

static bool read_stream(yyjson_val *root, k3i_params *p, k3i_fault *fault)
{
    if (!k3i_member_bool(root, "stream", &p->stream, fault))
        return false;
    yyjson_val *v = k3i_member(root, "stream_options");
    if (v == NULL)
        return true;
    if (!yyjson_is_obj(v))
        return k3i_fault_field(fault, "stream_options", "Input should be a valid dictionary");
    if (!p->stream)
        return k3i_fault_set(fault, 400, "stream_options",
                             "Stream options can only be defined when `stream=True`.");
    return k3i_member_bool(v, "include_usage", &p->include_usage, fault) &&
           k3i_member_bool(v, "continuous_usage_stats", &p->continuous_usage, fault);
}

static bool check_top(int64_t n, const char *key, const char *what, k3i_fault *fault)
{
    if (n < 0)
        return int_out_of_range(fault, key, "must be non-negative", n);
    if (n > K3_MAX_TOP_LOGPROBS)
        return k3i_fault_set(fault, 400, key,
                             "Requested %s logprobs of %lld, which is greater than max allowed: %d",
                             what, (long long)n, K3_MAX_TOP_LOGPROBS);
    return true;
}

static bool read_logprobs(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                          k3i_fault *fault)
{
    int64_t top = 0, prompt = -1;
    p->logprobs = p->prompt_logprobs = -1;
    if (ctx->is_chat) {
        bool want = false;
        if (!k3i_member_bool(root, "logprobs", &want, fault) ||
            !k3i_member_int(root, "top_logprobs", &top, fault))
            return false;
        if (top != 0 && !want)
            return k3i_fault_set(fault, 400, "top_logprobs",
                                 "when using `top_logprobs`, `logprobs` must be set to true.");
        if (!check_top(top, "top_logprobs", "sample", fault))
            return false;
        p->logprobs = want ? (int32_t)top : -1;
    } else if (k3i_member(root, "logprobs") != NULL) {
        if (!k3i_member_int(root, "logprobs", &top, fault) ||
            !check_top(top, "logprobs", "sample", fault))
            return false;
        p->logprobs = (int32_t)top;
    }
    if (k3i_member(root, "prompt_logprobs") == NULL)
        return true;
    if (!k3i_member_int(root, "prompt_logprobs", &prompt, fault) ||
        !check_top(prompt, "prompt_logprobs", "prompt", fault))
        return false;
    if (p->stream)
        return k3i_fault_set(fault, 400, "prompt_logprobs",
                             "`prompt_logprobs` are not available when `stream=True`.");
    p->prompt_logprobs = (int32_t)prompt;
    return true;
}

static bool read_lengths(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                         k3i_fault *fault)
{
    int64_t max = ctx->is_chat ? -1 : 16, n = 1, seed = 0;
    const char *key = "max_tokens";
    if (ctx->is_chat && k3i_member(root, "max_completion_tokens") != NULL)
        key = "max_completion_tokens";
    if (!k3i_member_int(root, key, &max, fault) || !k3i_member_int(root, "n", &n, fault) ||
        !k3i_member_int(root, "seed", &seed, fault))
        return false;
    if (k3i_member(root, key) != NULL && max < 1 && !(max == 0 && !ctx->is_chat && p->echo))
        return int_out_of_range(fault, key, "must be at least 1", max);
    if (max > INT32_MAX)
        max = INT32_MAX; /* refused against the context length later */
    if (n < 1)
        return int_out_of_range(fault, "n", "must be at least 1", n);
    if (n > K3_MAX_CHOICES)
        return int_out_of_range(fault, "n", "must be at most 128", n);
    p->max_tokens = (int32_t)max;
    p->n = (int32_t)n;
    p->has_seed = k3i_member(root, "seed") != NULL;
    p->sampling.seed = (uint64_t)seed;
    if (p->max_tokens > 0 && p->sampling.min_tokens > p->max_tokens)
        return int_out_of_range(fault, "min_tokens", "must be less than or equal to max_tokens",
                                p->sampling.min_tokens);
    return true;
}

/* -1 is no budget, and so is one that nothing reaches. */
static bool read_budget(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *p,
                        k3i_fault *fault)
{
    int64_t budget = -1;
    if (!k3i_member_int(root, "thinking_token_budget", &budget, fault))
        return false;
    if (budget < -1)
        return int_out_of_range(fault, "thinking_token_budget", "must be -1 (no limit) or more",
                                budget);
    if (budget >= 0 && !ctx->is_chat)
        return k3i_fault_set(fault, 400, "thinking_token_budget",
                             "thinking_token_budget needs the chat format: completions have no "
                             "thinking channel.");
    p->thinking_budget = budget > INT32_MAX ? -1 : (int32_t)budget;
    return true;
}

static bool read_salt(yyjson_val *root, k3i_params *p, k3i_fault *fault)
{
    if (!k3i_member_str(root, "cache_salt", &p->salt, fault))
        return false;
    if (p->salt != NULL && p->salt[0] == 0)
        return k3i_fault_set(fault, 400, "cache_salt", "cache_salt must not be empty.");
    /* Every choice keeps it, the cache keeps it, and every lookup hashes it. */
    if (p->salt != NULL && strlen(p->salt) > K3_MAX_SALT_BYTES)
        return k3i_fault_set(fault, 400, "cache_salt", "cache_salt may have %d bytes.",
                             K3_MAX_SALT_BYTES);
    return true;
}

/* ---- what is not done --------------------------------------------------------------------------
 */

/* Fields of vLLM's and OpenAI's requests that would change what comes out and that this server does
 * not honour. A request that asks for one is refused: an answer that disregards it would look
 * right. All other unknown fields are ignored, as the API reference says. */
static const struct {
    const char *field;
    bool chat, completion; /* refused there */
    const char *instead;
} REFUSED[] = {
    {"structured_outputs", true, true, "use response_format"},
    {"guided_json", true, true, "use response_format"},
    {"guided_regex", true, true, "use response_format"},
    {"guided_choice", true, true, "use response_format with an enum"},
    {"guided_grammar", true, true, "use response_format"},
    {"response_format", false, true, "use /v1/chat/completions"},
    {"functions", true, false, "use tools"},
    {"function_call", true, false, "use tool_choice"},
    {"allowed_token_ids", true, true, "use logit_bias"},
    {"logits_processors", true, true, "use logit_bias"},
    {"use_beam_search", true, true, "use n"},
    {"best_of", true, true, "use n"},
    {"truncate_prompt_tokens", true, true, "shorten the prompt"},
    {"prompt_embeds", false, true, "use prompt"},
    {"chat_template", true, false, "the chat format of this model is fixed"},
    {"documents", true, false, "put them into a message"},
    {"audio", true, false, "answers are text"},
};

/* null, false, 0, 1 and what is empty ask for nothing; so does {"type":"text"}. */
static bool asks_for_something(yyjson_val *v)
{
    if (yyjson_is_bool(v))
        return yyjson_get_bool(v);
    if (yyjson_is_num(v))
        return yyjson_get_num(v) != 0.0 && yyjson_get_num(v) != 1.0;
    if (yyjson_is_str(v))
        return yyjson_get_len(v) > 0;
    if (yyjson_is_obj(v) && yyjson_equals_str(yyjson_obj_get(v, "type"), "text"))
        return false;
    return yyjson_get_len(v) > 0; /* members of an object, entries of a list */
}

static bool refuse_unhonoured(const k3i_params_ctx *ctx, yyjson_val *root, k3i_fault *fault)
{
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        yyjson_val *v = k3i_member(root, REFUSED[i].field);
        if (v == NULL || !(ctx->is_chat ? REFUSED[i].chat : REFUSED[i].completion) ||
            !asks_for_something(v))
            continue;
        return k3i_fault_set(fault, 400, REFUSED[i].field, "%s is not supported; %s.",
                             REFUSED[i].field, REFUSED[i].instead);
    }
    return true;
}

bool k3i_params_read(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *ret, k3i_fault *fault)
{
    k3i_params p = {
        .sampling = k3i_sampling_default(), .include_reasoning = true, .skip_special_tokens = true};
    if (ctx->kimi_policy)
        p.sampling.top_p = 0.95f;
    if (!k3i_member_bool(root, "echo", &p.echo, fault) ||
        !k3i_member_bool(root, "ignore_eos", &p.ignore_eos, fault) ||
        !k3i_member_bool(root, "include_stop_str_in_output", &p.include_stop, fault) ||
        !k3i_member_bool(root, "include_reasoning", &p.include_reasoning, fault) ||
        !k3i_member_bool(root, "skip_special_tokens", &p.skip_special_tokens, fault) ||
        !k3i_member_bool(root, "return_token_ids", &p.return_token_ids, fault) ||
        !k3i_member_bool(root, "return_tokens_as_token_ids", &p.tokens_as_ids, fault) ||
        !k3i_member_bool(root, "disable_speculation", &p.no_speculation, fault) ||
        !refuse_unhonoured(ctx, root, fault) || !read_salt(root, &p, fault) ||
        !read_sampling(root, &p.sampling, fault) || !read_stop(root, &p, fault) ||
        !read_stop_ids(ctx, root, &p, fault) || !read_logit_bias(ctx, root, &p, fault) ||
        !read_bad_words(ctx, root, &p, fault) || !read_lengths(ctx, root, &p, fault) ||
        !read_budget(ctx, root, &p, fault) || !read_stream(root, &p, fault) ||
        !read_logprobs(ctx, root, &p, fault))
        return false;
    if (ctx->kimi_policy && !check_kimi(&p, fault))
        return false;
    *ret = p;
    return true;
}
