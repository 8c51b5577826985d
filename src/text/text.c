/* text.c: the public face of the tokenizer and the chat format (k3.h, "text").
 *
 * Owns nothing but the tokenizer. Both calls make a list of ids and copy what the caller has room
 * for. */
#include "chat.h"

#include <stdio.h>
#include <string.h>

#define MAX_IDS \
    ((size_t)1 << 27) /* far above any context length; bounds memory for hostile input */

struct k3_text {
    k3i_tok *tok;
};

/* Hands an error to the caller's buffer. */
static k3_status report(const k3i_err *e, k3_status st, char *err, size_t err_bytes)
{
    if (st != K3_OK && err != NULL && err_bytes > 0)
        snprintf(err, err_bytes, "%s", e->text);
    return st;
}

k3_status k3_text_open(const char *dir, k3_text **ret, char *err, size_t err_bytes)
{
    k3i_err e = {.text = ""};
    k3_text *text = k3i_alloc_zero(sizeof *text);
    if (text == NULL)
        return report(&e, k3i_fail(&e, K3_E_NOMEM, "out of memory"), err, err_bytes);
    k3_status st = k3i_tok_open(dir, &text->tok, &e);
    if (st == K3_OK)
        *ret = text;
    else
        k3i_free(text);
    return report(&e, st, err, err_bytes);
}

void k3_text_close(k3_text *text)
{
    if (text == NULL)
        return;
    k3i_tok_free(text->tok);
    k3i_free(text);
}

static void give(const k3i_ids *from, int32_t *ids, int32_t cap, int32_t *ret_n)
{
    size_t n = cap < 0 || from->n < (size_t)cap ? from->n : (size_t)cap;
    if (n > 0 && cap > 0)
        memcpy(ids, from->id, n * sizeof *ids);
    *ret_n = (int32_t)from->n;
}

k3_status k3_text_encode(const k3_text *text, const char *utf8, size_t n_bytes, int32_t specials,
                         int32_t *ids, int32_t cap, int32_t *ret_n, char *err, size_t err_bytes)
{
    k3i_err e = {.text = ""};
    k3i_ids list = K3I_IDS(MAX_IDS);
    int mode = specials != 0 ? K3I_TOK_SPECIAL : K3I_TOK_PLAIN;
    k3_status st = k3i_tok_encode(text->tok, utf8, n_bytes, mode, &list, &e);
    if (st == K3_OK)
        give(&list, ids, cap, ret_n);
    k3i_ids_done(&list);
    return report(&e, st, err, err_bytes);
}

/* Leaves of every picture block (begin, size, content, pad, end) only its pad. Only the renderer
 * makes these ids, so nothing that a user wrote can look like one. */
static void collapse_images(const k3i_tok_ids *special, k3i_ids *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->id[i] == special->media_begin) {
            while (ids->id[i] != special->media_content)
                i++;
        } else if (ids->id[i] != special->media_end) {
            ids->id[n++] = ids->id[i];
        }
    }
    ids->n = n;
}

static k3_status render(const k3_text *text, yyjson_val *root, k3i_chat_prompt *ret, k3i_err *err)
{
    k3i_chat_req req;
    k3i_chat_image *images = NULL;
    size_t n_image = 0;
    k3_status st = k3i_chat_parse(root, &req, err);
    if (st == K3_OK)
        st = k3i_chat_images(&req, &images, &n_image, err);
    for (size_t i = 0; i < n_image; i++)
        images[i].n_pad = 1;
    if (st == K3_OK)
        st = k3i_chat_render(text->tok, &req, images, n_image, MAX_IDS, ret, err);
    k3i_free(images);
    return st;
}

k3_status k3_text_chat(const k3_text *text, const char *json, size_t n_bytes, int32_t *ids,
                       int32_t cap, int32_t *ret_n, char *err, size_t err_bytes)
{
    k3i_err e = {.text = ""};
    k3i_chat_prompt prompt;
    yyjson_read_err parse;
    /* Without the in-situ flag the text is only read. */
    yyjson_doc *doc =
        yyjson_read_opts((char *)(uintptr_t)json, n_bytes, K3I_CHAT_READ_FLAGS, NULL, &parse);
    if (doc == NULL)
        return report(&e,
                      k3i_fail(&e, K3_E_FORMAT, "the request is no JSON: %s at byte %zu", parse.msg,
                               parse.pos),
                      err, err_bytes);
    k3_status st = render(text, yyjson_doc_get_root(doc), &prompt, &e);
    if (st == K3_OK) {
        collapse_images(k3i_tok_special_ids(text->tok), &prompt.ids);
        give(&prompt.ids, ids, cap, ret_n);
        k3i_chat_prompt_done(&prompt);
    }
    yyjson_doc_free(doc);
    return report(&e, st, err, err_bytes);
}
