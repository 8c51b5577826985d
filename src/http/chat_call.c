/* chat_call.c: /v1/chat/completions and the other routes that render a chat. */
#include "call.h"

#include <stdio.h>

void k3i_pictures_free(k3i_media_picture *pictures, size_t n)
{
    for (size_t i = 0; i < n && pictures != NULL; i++)
        k3i_patches_done(&pictures[i].patches);
    k3i_free(pictures);
}

static bool load_pictures(k3i_api_call *c, k3i_chat_image *images, size_t n,
                          k3i_media_picture *pictures, k3i_fault *fault)
{
    const k3i_media_config *media = &c->api->config->media;
    if (n > 0 && !k3i_serve_info(c->api->serve)->has_vision)
        return k3i_fault_set(fault, 400, "messages", "this model does not accept image input");
    if (n > (size_t)media->max_images)
        return k3i_fault_set(fault, 400, "messages",
                             "%zu images, at most %d are allowed in a request", n,
                             media->max_images);
    for (size_t i = 0; i < n; i++) {
        char where[32];
        snprintf(where, sizeof where, "image %zu", i + 1);
        if (!k3i_media_load(c->api->media, images[i].url, images[i].url_bytes, where, &pictures[i],
                            fault))
            return false;
        images[i].width = pictures[i].patches.plan.w;
        images[i].height = pictures[i].patches.plan.h;
        images[i].n_pad = pictures[i].patches.plan.n_tokens;
    }
    return true;
}

bool k3i_chat_read_prompt(k3i_api_call *c, yyjson_val *root, k3i_media_picture **ret_pictures,
                          size_t *ret_n_pictures, k3i_fault *fault)
{
    k3i_err err;
    const char *field;
    k3i_chat_image *images = NULL;
    k3i_media_picture *pictures = NULL;
    size_t n = 0;
    if (k3i_chat_parse_named(root, &c->chat, &field, &err) != K3_OK)
        return k3i_fault_from(fault, &err, field);
    if (k3i_chat_images(&c->chat, &images, &n, &err) != K3_OK)
        return k3i_fault_from(fault, &err, "messages");
    pictures = k3i_alloc_zero((n + 1) * sizeof *pictures);
    bool ok = pictures != NULL || k3i_fault_set(fault, 503, NULL, "out of memory");
    ok = ok && load_pictures(c, images, n, pictures, fault);
    /* A prompt far beyond the context is refused while rendering; slightly too long ones with
     * counts. */
    size_t max = 2 * (size_t)k3i_serve_info(c->api->serve)->max_model_len + 65536;
    if (ok && k3i_chat_render(c->api->tok, &c->chat, images, n, max, &c->prompt, &err) != K3_OK)
        ok = k3i_fault_from(fault, &err, "messages");
    k3i_free(images);
    if (!ok) {
        k3i_pictures_free(pictures, n);
        return false;
    }
    *ret_pictures = pictures;
    *ret_n_pictures = n;
    return true;
}

/* Gives a request its pictures. The first one takes the pixels over, the others look at them there:
 * each holds a reference to the first (link_siblings). */
static bool attach(k3i_api_call *c, k3i_request *r, k3i_media_picture *pictures, k3i_fault *fault)
{
    const k3i_request *first = c->choice[0].req;
    size_t n = c->prompt.n_slot;
    if (n == 0)
        return true;
    r->media = k3i_alloc_zero(n * sizeof *r->media);
    if (r->media == NULL)
        return k3i_fault_set(fault, 503, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const k3i_chat_slot *slot = &c->prompt.slot[i];
        k3i_patches *p = &pictures[slot->image].patches;
        bool is_owner = r == first;
        r->media[r->n_media++] = (k3i_media){.key = pictures[slot->image].key,
                                             .at = (int32_t)slot->at,
                                             .rows = (int32_t)slot->n,
                                             .pixels = is_owner ? p->pixels : first->media[i].pixels,
                                             .is_borrowed = !is_owner,
                                             .grid_t = 1,
                                             .grid_h = (int32_t)p->plan.grid_h,
                                             .grid_w = (int32_t)p->plan.grid_w};
        if (is_owner)
            p->pixels = NULL;
    }
    return true;
}

/* ---- constrained answers -----------------------------------------------------------------------
 */

static bool read_grammar(k3i_api_call *c, k3i_fault *fault)
{
    k3i_err err;
    bool is_format = c->chat.format != K3I_FORMAT_TEXT;
    if (k3i_grammar_new(&c->chat, c->prompt.channel, &c->grammar, &err) != K3_OK)
        return k3i_fault_from(fault, &err, is_format ? "response_format" : "tools");
    if (c->grammar != NULL && c->params.sampling.min_tokens > 0)
        return k3i_fault_set(fault, 400, "min_tokens",
                             "min_tokens cannot be combined with forced tools or response_format.");
    return true;
}

static bool make_choices(k3i_api_call *c, k3i_media_picture *pictures, k3i_fault *fault)
{
    c->choice = k3i_arena_new(&c->arena, k3i_choice, (size_t)c->params.n);
    if (c->choice == NULL)
        return k3i_fault_set(fault, 503, NULL, "out of memory");
    for (int32_t i = 0; i < c->params.n; i++) {
        k3i_request *r;
        if (!k3i_call_add_choice(c, i, 0, c->prompt.ids.id, (int32_t)c->prompt.ids.n, &r, fault) ||
            !k3i_call_constrain(c, r, fault) ||
            !attach(c, r, pictures, fault))
            return false;
    }
    return true;
}

static void set_unfold(k3i_api_call *c)
{
    c->unfold = (k3i_unfold_opts){
        .tok = c->api->tok,
        .is_chat = true,
        .parser = {.channel = c->prompt.channel,
                   .discard_calls = !c->chat.has_tools || c->chat.tool_choice == K3I_TOOLS_NONE,
                   .single_call = !c->chat.parallel_tool_calls},
        .stop = c->params.stop,
        .n_stop = c->params.n_stop,
        .include_stop = c->params.include_stop,
        .min_tokens = c->params.sampling.min_tokens};
}

/* `echo`: the content begins with that of the last message, if the assistant wrote it. */
static bool read_echo(k3i_api_call *c, k3i_fault *fault)
{
    yyjson_val *last = yyjson_arr_get_last(c->chat.messages), *part;
    yyjson_val *content = k3i_member(last, "content");
    k3i_err err;
    k3_status st = K3_OK;
    if (!c->params.echo || !yyjson_equals_str(k3i_member(last, "role"), "assistant"))
        return true;
    if (yyjson_is_str(content))
        st = k3i_buf_add(&c->echo, yyjson_get_str(content), yyjson_get_len(content), &err);
    size_t i, n;
    yyjson_arr_foreach(content, i, n, part)
    {
        yyjson_val *text = k3i_member(part, "text");
        if (st == K3_OK && yyjson_is_str(text))
            st = k3i_buf_add(&c->echo, yyjson_get_str(text), yyjson_get_len(text), &err);
    }
    return st == K3_OK || k3i_fault_from(fault, &err, "echo");
}

bool k3i_chat_prepare(k3i_api_call *c, yyjson_val *root, k3i_fault *fault)
{
    k3i_params_ctx ctx = {.tok = c->api->tok,
                          .vocab = k3i_serve_info(c->api->serve)->vocab_size,
                          .is_chat = true,
                          .kimi_policy = c->api->config->kimi_policy,
                          .arena = &c->arena};
    k3i_media_picture *pictures = NULL;
    size_t n_pictures = 0;
    if (!k3i_params_read(&ctx, root, &c->params, fault))
        return false;
    if (!k3i_chat_read_prompt(c, root, &pictures, &n_pictures, fault))
        return false;
    bool ok = read_echo(c, fault) && read_grammar(c, fault);
    set_unfold(c);
    ok = ok && make_choices(c, pictures, fault);
    k3i_pictures_free(pictures, n_pictures);
    return ok;
}
