/* text_call.c: routes that need the tokenizer but not the engine. */
#include "call.h"

static bool out_failed(k3i_fault *fault, const k3i_err *err)
{
    return k3i_fault_from(fault, err, NULL);
}

static bool write_tokens(k3i_api_call *c, const k3i_ids *ids, bool with_text, k3i_fault *fault)
{
    k3i_json j = k3i_json_to(&c->out);
    k3i_err err;
    k3i_json_fmt(&j, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", ids->n,
                 (int)k3i_serve_info(c->api->serve)->max_model_len);
    for (size_t i = 0; i < ids->n; i++)
        k3i_json_fmt(&j, i == 0 ? "%d" : ",%d", (int)ids->id[i]);
    k3i_json_raw(&j, with_text ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; with_text && i < ids->n; i++) {
        k3i_buf text = K3I_BUF(4096);
        if (j.status == K3_OK)
            j.status = k3i_tok_decode(c->api->tok, &ids->id[i], 1, false, &text, &j.err);
        k3i_json_raw(&j, i == 0 ? "" : ",");
        k3i_json_strn(&j, text.n > 0 ? text.data : "", text.n);
        k3i_buf_done(&text);
    }
    if (with_text)
        k3i_json_raw(&j, "]}");
    return k3i_json_end(&j, &err) == K3_OK || out_failed(fault, &err);
}

bool k3i_tokenize_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    bool with_text = false, ignored = true;
    if (!k3i_member_bool(root, "return_token_strs", &with_text, fault) ||
        !k3i_member_bool(root, "add_special_tokens", &ignored, fault))
        return false;
    if (k3i_member(root, "messages") != NULL) {
        k3i_media_picture *pictures;
        size_t n;
        if (!k3i_chat_read_prompt(c, root, &pictures, &n, fault))
            return false;
        k3i_pictures_free(pictures, n);
        return write_tokens(c, &c->prompt.ids, with_text, fault);
    }
    yyjson_val *text = k3i_member(root, "prompt");
    if (!yyjson_is_str(text))
        return k3i_fault_field(fault, "prompt", "Field required: a string, or messages");
    k3i_ids ids = K3I_IDS((size_t)1 << 26);
    k3i_err err;
    bool ok = k3i_tok_encode(c->api->tok, yyjson_get_str(text), yyjson_get_len(text),
                             K3I_TOK_SPECIAL, &ids, &err) == K3_OK ||
              k3i_fault_from(fault, &err, "prompt");
    ok = ok && write_tokens(c, &ids, with_text, fault);
    k3i_ids_done(&ids);
    return ok;
}

bool k3i_detokenize_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    yyjson_val *list = k3i_member(root, "tokens"), *item;
    if (!yyjson_is_arr(list))
        return k3i_fault_field(fault, "tokens", "Field required: a list of integers");
    k3i_buf text = K3I_BUF((size_t)1 << 28);
    k3i_detok detok = {0};
    k3i_err err;
    size_t i, n;
    bool ok = true;
    yyjson_arr_foreach(list, i, n, item)
    {
        int64_t id = yyjson_is_int(item) ? yyjson_get_sint(item) : -1;
        if (!ok)
            break;
        if (id < 0 || id >= k3i_tok_size(c->api->tok))
            ok = k3i_fault_set(fault, 400, "tokens", "tokens[%zu] is not an id of this model.", i);
        else if (k3i_detok_push(c->api->tok, &detok, (int32_t)id, false, &text, &err) != K3_OK)
            ok = k3i_fault_from(fault, &err, "tokens");
    }
    if (ok && k3i_detok_flush(&detok, &text, &err) != K3_OK)
        ok = k3i_fault_from(fault, &err, "tokens");
    if (ok) {
        k3i_json j = k3i_json_to(&c->out);
        k3i_json_raw(&j, "{\"prompt\":");
        k3i_json_strn(&j, text.n > 0 ? text.data : "", text.n);
        k3i_json_raw(&j, "}");
        ok = k3i_json_end(&j, &err) == K3_OK || out_failed(fault, &err);
    }
    k3i_buf_done(&text);
    return ok;
}

bool k3i_estimate_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    k3i_media_picture *pictures;
    size_t n;
    k3i_err err;
    if (!k3i_chat_read_prompt(c, root, &pictures, &n, fault))
        return false;
    k3i_pictures_free(pictures, n);
    k3i_json j = k3i_json_to(&c->out);
    k3i_json_fmt(&j, "{\"data\":{\"total_tokens\":%zu}}", c->prompt.ids.n - c->prompt.n_pending);
    return k3i_json_end(&j, &err) == K3_OK || out_failed(fault, &err);
}
