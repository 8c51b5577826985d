/* unfold.c: parser or detokeniser in front, stopper behind. */
#include "unfold.h"

struct k3i_unfold {
    const k3i_unfold_opts *opts;
    k3i_chat_event_fn fn;
    void *user;
    k3i_parser *parser; /* NULL for plain text */
    k3i_detok detok;
    k3i_stopper stopper;
    k3i_buf text; /* scratch */
    int32_t n_tokens;
};

static k3_status emit_content(k3i_unfold *u, k3i_err *err)
{
    if (u->text.n == 0)
        return K3_OK;
    k3i_chat_event e = {.kind = K3I_EVENT_CONTENT, .text = u->text.data, .n = u->text.n};
    k3_status status = u->fn(u->user, &e, err);
    u->text.n = 0;
    return status;
}

static k3_status take_content(k3i_unfold *u, const char *text, size_t n, k3i_err *err)
{
    k3_status status;
    if (u->n_tokens <= u->opts->min_tokens)
        status = k3i_buf_add(&u->text, text, n, err);
    else
        status = k3i_stopper_push(&u->stopper, text, n, &u->text, err);
    return status == K3_OK ? emit_content(u, err) : status;
}

static k3_status on_event(void *user, const k3i_chat_event *event, k3i_err *err)
{
    k3i_unfold *u = user;
    if (u->stopper.hit >= 0)
        return K3_OK;
    if (event->kind == K3I_EVENT_CONTENT)
        return take_content(u, event->text, event->n, err);
    return u->fn(u->user, event, err);
}

k3_status k3i_unfold_new(const k3i_unfold_opts *opts, k3i_chat_event_fn fn, void *user,
                         k3i_unfold **ret, k3i_err *err)
{
    k3i_unfold *u = k3i_alloc_zero(sizeof *u);
    if (u == NULL)
        return k3i_fail(err, K3_E_NOMEM, "answer: out of memory");
    u->opts = opts;
    u->fn = fn;
    u->user = user;
    u->text = K3I_BUF(K3I_OUTPUT_MAX_BYTES);
    k3i_stopper_init(&u->stopper, opts->stop, opts->n_stop, opts->include_stop);
    if (opts->is_chat) {
        k3_status status = k3i_parser_new(opts->tok, &opts->parser, on_event, u, &u->parser, err);
        if (status != K3_OK) {
            k3i_unfold_free(u);
            return status;
        }
    }
    *ret = u;
    return K3_OK;
}

void k3i_unfold_free(k3i_unfold *u)
{
    if (u == NULL)
        return;
    k3i_parser_free(u->parser);
    k3i_stopper_done(&u->stopper);
    k3i_buf_done(&u->text);
    k3i_free(u);
}

k3_status k3i_unfold_push(k3i_unfold *u, int32_t id, k3i_err *err)
{
    u->n_tokens++;
    if (u->parser != NULL)
        return k3i_parser_push(u->parser, id, err);
    k3i_buf piece = K3I_BUF(4096);
    k3_status status =
        k3i_detok_push(u->opts->tok, &u->detok, id, u->opts->skip_specials, &piece, err);
    if (status == K3_OK && piece.n > 0)
        status = take_content(u, piece.data, piece.n, err);
    k3i_buf_done(&piece);
    return status;
}

k3_status k3i_unfold_finish(k3i_unfold *u, k3i_err *err)
{
    k3_status status;
    if (u->parser != NULL) {
        status = k3i_parser_finish(u->parser, err);
    } else {
        k3i_buf piece = K3I_BUF(4096);
        status = k3i_detok_flush(&u->detok, &piece, err);
        if (status == K3_OK && piece.n > 0)
            status = take_content(u, piece.data, piece.n, err);
        k3i_buf_done(&piece);
    }
    if (status == K3_OK)
        status = k3i_stopper_flush(&u->stopper, &u->text, err);
    return status == K3_OK ? emit_content(u, err) : status;
}

int32_t k3i_unfold_stop(const k3i_unfold *u)
{
    return u->stopper.hit;
}

size_t k3i_unfold_calls(const k3i_unfold *u)
{
    return u->parser == NULL ? 0 : k3i_parser_calls(u->parser);
}

size_t k3i_unfold_reasoning_tokens(const k3i_unfold *u)
{
    return u->parser == NULL ? 0 : k3i_parser_reasoning_tokens(u->parser);
}

bool k3i_unfold_is_chat(const k3i_unfold *u)
{
    return u->parser != NULL;
}
