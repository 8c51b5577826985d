/* params.h: what a generation request says about sampling and about the form of its answer, read
 * from its JSON object and checked with vLLM's words. */
#ifndef K3I_PARAMS_H
#define K3I_PARAMS_H

#include "arena.h"
#include "fault.h"
#include "sampler.h"
#include "stopper.h"
#include "tokenizer.h"

#include <yyjson.h>

enum {
    K3_MAX_TOP_LOGPROBS = 20,
    K3_MAX_CHOICES = 128,
    K3_MAX_BAD_WORDS = 128,
    K3_MAX_SALT_BYTES = 1024
};

typedef struct {
    const k3i_tok *tok;
    int32_t vocab;
    bool is_chat;     /* chat completions: logprobs is a bool, max_completion_tokens exists */
    bool kimi_policy; /* docs/recipes/kvv.md */
    k3i_arena *arena; /* holds every array of the result */
} k3i_params_ctx;

typedef struct {
    k3i_sampling sampling;
    bool has_seed;
    int32_t max_tokens; /* -1 = not given */
    int32_t n;
    int32_t n_stop;
    const char *stop[K3_MAX_STOP];
    bool include_stop, ignore_eos, skip_special_tokens;
    int32_t n_stop_ids; /* of sampling.stop, the last so many are the request's own */
    bool stream, include_usage, continuous_usage;
    int32_t logprobs, prompt_logprobs; /* alternatives, -1 = none */
    bool echo, include_reasoning, return_token_ids, tokens_as_ids, no_speculation;
    int32_t thinking_budget; /* tokens of reasoning, -1 = as many as the model likes */
    const char *salt;        /* cache_salt or NULL; points into the document */
} k3i_params;

/* False with a fault. */
bool k3i_params_read(const k3i_params_ctx *ctx, yyjson_val *root, k3i_params *ret,
                     k3i_fault *fault);

/* Present and not null. */
yyjson_val *k3i_member(yyjson_val *object, const char *key);
bool k3i_member_bool(yyjson_val *root, const char *key, bool *ret, k3i_fault *fault);
bool k3i_member_int(yyjson_val *root, const char *key, int64_t *ret, k3i_fault *fault);
bool k3i_member_str(yyjson_val *root, const char *key, const char **ret, k3i_fault *fault);

#endif
