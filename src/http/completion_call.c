/* completion_call.c: /v1/completions: text or ids in, text out; no chat format. */
#include "call.h"

#include <string.h>

static bool bad_prompt(k3i_fault *fault)
{
    return k3i_fault_set(fault, 400, "prompt",
                         "Either prompt or prompt_embeds must be provided and non-empty.");
}

static bool encode(k3i_api_call *c, yyjson_val *text, k3i_ids *ret, k3i_fault *fault)
{
    k3i_err err;
    size_t max = 2 * (size_t)k3i_serve_info(c->api->serve)->max_model_len + 65536;
    *ret = K3I_IDS(max);
    if (k3i_tok_encode(c->api->tok, yyjson_get_str(text), yyjson_get_len(text), K3I_TOK_SPECIAL,
                       ret, &err) != K3_OK)
        return k3i_fault_from(fault, &err, "prompt");
    return ret->n > 0 || bad_prompt(fault);
}

static bool copy_ids(k3i_api_call *c, yyjson_val *list, k3i_ids *ret, k3i_fault *fault)
{
    int32_t vocab = k3i_serve_info(c->api->serve)->vocab_size;
    k3i_err err;
    size_t i, n;
    yyjson_val *item;
    *ret = K3I_IDS(yyjson_arr_size(list));
    yyjson_arr_foreach(list, i, n, item)
    {
        if (!yyjson_is_int(item))
            return k3i_fault_field(fault, "prompt", "Input should be a valid integer");
        int64_t id = yyjson_get_sint(item);
        if (id < 0 || id >= vocab)
            return k3i_fault_set(fault, 400, "prompt", "Token id %lld is out of vocabulary",
                                 (long long)id);
        if (k3i_ids_add(ret, (int32_t)id, &err) != K3_OK)
            return k3i_fault_from(fault, &err, "prompt");
    }
    return ret->n > 0 || bad_prompt(fault);
}

/* All choices of prompt number `prompt`. */
static bool add_prompt(k3i_api_call *c, int32_t prompt, yyjson_val *v, k3i_fault *fault)
{
    k3i_ids ids = {0};
    bool ok;
    if (yyjson_is_str(v))
        ok = encode(c, v, &ids, fault);
    else if (yyjson_is_arr(v))
        ok = copy_ids(c, v, &ids, fault);
    else
        ok = k3i_fault_field(fault, "prompt", "Input should be a string or a list of integers");
    for (int32_t k = 0; k < c->params.n && ok; k++) {
        k3i_request *r;
        ok = k3i_call_add_choice(c, prompt * c->params.n + k, prompt, ids.id, (int32_t)ids.n, &r,
                                 fault);
    }
    k3i_ids_done(&ids);
    return ok;
}

bool k3i_completion_prepare(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    k3i_params_ctx ctx = {.tok = c->api->tok,
                          .vocab = k3i_serve_info(c->api->serve)->vocab_size,
                          .kimi_policy = c->api->config->kimi_policy,
                          .arena = &c->arena};
    if (!k3i_params_read(&ctx, root, &c->params, fault))
        return false;
    yyjson_val *prompt = k3i_member(root, "prompt");
    if (prompt == NULL || (!yyjson_is_str(prompt) && !yyjson_is_arr(prompt)) ||
        (yyjson_is_arr(prompt) && yyjson_arr_size(prompt) == 0))
        return bad_prompt(fault);
    bool is_list = yyjson_is_arr(prompt) && !yyjson_is_num(yyjson_arr_get_first(prompt));
    size_t n_prompts = is_list ? yyjson_arr_size(prompt) : 1;
    if (n_prompts * (size_t)c->params.n > 1024)
        return k3i_fault_set(fault, 400, "prompt", "%zu prompts times n=%d: at most 1024 answers.",
                             n_prompts, c->params.n);
    c->unfold = (k3i_unfold_opts){.tok = c->api->tok,
                                  .skip_specials = c->params.skip_special_tokens,
                                  .stop = c->params.stop,
                                  .n_stop = c->params.n_stop,
                                  .include_stop = c->params.include_stop,
                                  .min_tokens = c->params.sampling.min_tokens};
    c->choice = k3i_arena_new(&c->arena, k3i_choice, n_prompts * (size_t)c->params.n);
    if (c->choice == NULL)
        return k3i_fault_set(fault, 503, NULL, "out of memory");
    if (!is_list)
        return add_prompt(c, 0, prompt, fault);
    size_t i, n;
    yyjson_val *item;
    yyjson_arr_foreach(prompt, i, n, item)
    {
        if (!add_prompt(c, (int32_t)i, item, fault))
            return false;
    }
    return true;
}
