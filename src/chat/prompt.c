/* prompt.c: segments become token ids; pictures are listed and bound to their places. */
#include "chat.h"

#include <stdio.h>
#include <string.h>

/* ---- pictures ------------------------------------------------------------------------------- */

static yyjson_val *get(yyjson_val *object, const char *key)
{
    yyjson_val *val = yyjson_obj_get(object, key);
    return yyjson_is_null(val) ? NULL : val;
}

/* The URL of a picture part: {"image_url": {"url": U}}, {"image_url": U}, {"image": U} or {"url":
 * U}. */
static yyjson_val *image_url(yyjson_val *part)
{
    yyjson_val *val = get(part, "image_url");
    if (val == NULL)
        val = get(part, "image");
    if (val == NULL)
        val = get(part, "url");
    return yyjson_is_obj(val) ? get(val, "url") : val;
}

/* Lists the pictures of all messages into `list` (NULL: only counts). */
static k3_status list_images(const k3i_chat_req *req, k3i_chat_image *list, size_t *ret_n,
                             k3i_err *err)
{
    size_t n = 0;
    yyjson_arr_iter it = yyjson_arr_iter_with(req->messages);
    for (yyjson_val *message; (message = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_arr_iter parts = yyjson_arr_iter_with(get(message, "content"));
        for (yyjson_val *part; (part = yyjson_arr_iter_next(&parts)) != NULL;) {
            yyjson_val *type = get(part, "type"), *url = image_url(part);
            if (!yyjson_equals_str(type, "image_url") && !yyjson_equals_str(type, "image"))
                continue;
            if (!yyjson_is_str(url))
                return k3i_fail(err, K3_E_FORMAT,
                                "messages[%zu].content[%zu]: image_url.url must be a string",
                                it.idx - 1, parts.idx - 1);
            if (list != NULL)
                list[n] =
                    (k3i_chat_image){.url = yyjson_get_str(url), .url_bytes = yyjson_get_len(url)};
            n++;
        }
    }
    *ret_n = n;
    return K3_OK;
}

k3_status k3i_chat_images(const k3i_chat_req *req, k3i_chat_image **ret, size_t *ret_n,
                          k3i_err *err)
{
    size_t n;
    k3_status st = list_images(req, NULL, &n, err);
    if (st != K3_OK)
        return st;
    k3i_chat_image *list = NULL;
    if (n > 0) {
        list = k3i_alloc_array(n, sizeof *list);
        if (list == NULL)
            return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu pictures)", n);
        list_images(req, list, &n, NULL);
    }
    *ret = list;
    *ret_n = n;
    return K3_OK;
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* <|media_begin|>image WxH<|media_content|> pads <|media_end|> */
static k3_status add_image(const k3i_tok *tok, const k3i_chat_image *image, uint32_t index,
                           k3i_chat_prompt *p, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    char size[48];
    int n = snprintf(size, sizeof size, "image %ux%u", image->width, image->height);
    k3_status st = k3i_ids_add(&p->ids, special->media_begin, err);
    if (st == K3_OK)
        st = k3i_tok_encode(tok, size, (size_t)n, K3I_TOK_PLAIN, &p->ids, err);
    if (st == K3_OK)
        st = k3i_ids_add(&p->ids, special->media_content, err);
    p->slot[p->n_slot++] = (k3i_chat_slot){.at = p->ids.n, .n = image->n_pad, .image = index};
    for (uint32_t i = 0; i < image->n_pad && st == K3_OK; i++)
        st = k3i_ids_add(&p->ids, special->media_pad, err);
    return st == K3_OK ? k3i_ids_add(&p->ids, special->media_end, err) : st;
}

static k3_status add_segment(const k3i_tok *tok, const k3i_chat_segs *segs, const k3i_chat_seg *seg,
                             const k3i_chat_image *images, k3i_chat_prompt *p, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    switch (seg->kind) {
    case K3I_SEG_OPEN:
        return k3i_ids_add(&p->ids, special->open, err);
    case K3I_SEG_CLOSE:
        return k3i_ids_add(&p->ids, special->close, err);
    case K3I_SEG_SEP:
        return k3i_ids_add(&p->ids, special->sep, err);
    case K3I_SEG_END_OF_MSG:
        return k3i_ids_add(&p->ids, special->end_of_msg, err);
    case K3I_SEG_IMAGE:
        return add_image(tok, &images[seg->image], seg->image, p, err);
    default:
        return k3i_tok_encode(tok, segs->text.data + seg->at, seg->n, K3I_TOK_PLAIN, &p->ids, err);
    }
}

k3_status k3i_chat_render(const k3i_tok *tok, const k3i_chat_req *req, const k3i_chat_image *images,
                          size_t n_image, size_t max_tokens, k3i_chat_prompt *ret, k3i_err *err)
{
    k3i_chat_segs segs;
    /* A token has at most K3I_TOK_MAX_BYTES bytes, so a longer text cannot fit into max_tokens. */
    size_t max_bytes;
    if (!k3i_mul_size(max_tokens, K3I_TOK_MAX_BYTES, &max_bytes))
        max_bytes = SIZE_MAX;
    k3_status st = k3i_chat_segments(req, n_image, max_bytes, &segs, err);
    if (st != K3_OK)
        return st;
    k3i_chat_prompt p = {
        .ids = K3I_IDS(max_tokens), .channel = segs.channel, .n_pending = segs.n_pending};
    size_t n_slot = 0;
    for (size_t i = 0; i < segs.n_seg; i++)
        n_slot += segs.seg[i].kind == K3I_SEG_IMAGE;
    if (n_slot > 0 && (p.slot = k3i_alloc_array(n_slot, sizeof *p.slot)) == NULL)
        st = k3i_fail(err, K3_E_NOMEM, "out of memory (%zu pictures)", n_slot);
    for (size_t i = 0; i < segs.n_seg && st == K3_OK; i++)
        st = add_segment(tok, &segs, &segs.seg[i], images, &p, err);
    k3i_chat_segs_done(&segs);
    if (st != K3_OK)
        k3i_chat_prompt_done(&p);
    else
        *ret = p;
    return st;
}

void k3i_chat_prompt_done(k3i_chat_prompt *prompt)
{
    k3i_ids_done(&prompt->ids);
    k3i_free(prompt->slot);
    prompt->slot = NULL;
    prompt->n_slot = 0;
}
