/* choice.c: copies tokens out of the request under its lock, a few at a time, and unfolds them. */
#include "choice.h"

#include <string.h>

enum { AT_ONCE = 64 };

static k3_status on_event(void *user, const k3i_chat_event *e, k3i_err *err)
{
    k3i_choice *c = user;
    k3i_delta *last = c->n_delta > 0 ? &c->delta[c->n_delta - 1] : NULL;
    bool is_text = e->kind != K3I_EVENT_CALL_BEGIN && e->kind != K3I_EVENT_CALL_END;
    k3_status status = k3i_buf_add(&c->text, e->text, e->text == NULL ? 0 : e->n, err);
    if (status != K3_OK)
        return status;
    if (last != NULL && is_text && last->kind == e->kind && last->call == e->call) {
        last->n += e->n;
        return K3_OK;
    }
    if (c->n_delta == c->cap_delta) {
        size_t cap = c->cap_delta == 0 ? 8 : 2 * c->cap_delta;
        k3i_delta *grown = k3i_realloc(c->delta, cap * sizeof *grown);
        if (grown == NULL)
            return k3i_fail(err, K3_E_NOMEM, "answer: out of memory");
        c->delta = grown;
        c->cap_delta = cap;
    }
    size_t n = e->text == NULL ? 0 : e->n;
    c->delta[c->n_delta++] = (k3i_delta){e->kind, e->call, e->is_raw, c->text.n - n, n};
    return K3_OK;
}

static k3_status ignore_event(void *user, const k3i_chat_event *e, k3i_err *err)
{
    (void)user, (void)e, (void)err;
    return K3_OK;
}

bool k3i_choice_watch(k3i_choice *c, int32_t token)
{
    return c->watcher != NULL &&
           (k3i_unfold_push(c->watcher, token, NULL) != K3_OK || k3i_unfold_stop(c->watcher) >= 0);
}

k3_status k3i_choice_init(k3i_choice *c, k3i_request *req, const k3i_params *params,
                          const k3i_unfold_opts *opts, bool keep_tokens, k3i_err *err)
{
    *c = (k3i_choice){.params = params,
                      .keep_tokens = keep_tokens,
                      .last_token = -1,
                      .end_of_msg = k3i_tok_special_ids(opts->tok)->end_of_msg};
    c->text = K3I_BUF(K3I_OUTPUT_MAX_BYTES);
    k3_status status = k3i_unfold_new(opts, on_event, c, &c->unfold, err);
    if (status == K3_OK && opts->n_stop > 0)
        status = k3i_unfold_new(opts, ignore_event, NULL, &c->watcher, err);
    if (status != K3_OK) {
        k3i_choice_done(c);
        return status;
    }
    c->req = req;
    return K3_OK;
}

void k3i_choice_close(k3i_choice *c)
{
    if (c->req == NULL)
        return;
    k3i_request_cancel(c->req);
    k3i_request_unref(c->req);
    c->req = NULL;
}

void k3i_choice_done(k3i_choice *c)
{
    k3i_unfold_free(c->unfold);
    k3i_unfold_free(c->watcher);
    k3i_buf_done(&c->text);
    k3i_free(c->delta);
    k3i_free(c->tokens);
    k3i_request_unref(c->req);
    *c = (k3i_choice){0};
}

static bool is_stop_id(const k3i_choice *c, int32_t id)
{
    const k3i_sampling *s = &c->params->sampling;
    for (int32_t i = 0; i < s->n_stop; i++) {
        if (s->stop[i] == id)
            return true;
    }
    return false;
}

static k3_status keep_token(k3i_choice *c, int32_t id, const k3i_logprob *lp, k3i_err *err)
{
    if (c->n_tokens == c->cap_tokens) {
        size_t cap = c->cap_tokens == 0 ? 64 : 2 * c->cap_tokens;
        k3i_token_lp *grown = k3i_realloc(c->tokens, cap * sizeof *grown);
        if (grown == NULL)
            return k3i_fail(err, K3_E_NOMEM, "answer: out of memory");
        c->tokens = grown;
        c->cap_tokens = cap;
    }
    k3i_token_lp *t = &c->tokens[c->n_tokens++];
    t->id = id;
    if (lp != NULL)
        memcpy(t->lp, lp, (size_t)(1 + c->params->logprobs) * sizeof *lp);
    return K3_OK;
}

/* At most AT_ONCE tokens. *ret_more: call again. */
static k3_status take(k3i_choice *c, bool *ret_more, k3i_err *err)
{
    int32_t ids[AT_ONCE], n;
    k3i_logprob lp[AT_ONCE * (1 + K3_MAX_TOP_LOGPROBS)];
    int32_t per = c->params->logprobs >= 0 ? 1 + c->params->logprobs : 0;
    pthread_mutex_lock(&c->req->lock);
    int32_t ready = c->req->n_ready;
    k3i_finish finish = c->req->finish;
    n = ready - c->n_taken < AT_ONCE ? ready - c->n_taken : AT_ONCE;
    if (n > 0) /* before the first token there is no array */
        memcpy(ids, c->req->ready + c->n_taken, (size_t)n * sizeof *ids);
    if (per > 0 && n > 0)
        memcpy(lp, c->req->lp + c->n_taken * per, (size_t)(n * per) * sizeof *lp);
    if (finish != K3_FINISH_NONE)
        c->error = c->req->error;
    pthread_mutex_unlock(&c->req->lock);
    k3_status status = K3_OK;
    for (int32_t i = 0; i < n && status == K3_OK; i++) {
        /* A stop token is not text, except that the chat parser wants to see the end of the
         * message. It is always the last one, also while its finish has not been told yet. */
        bool is_shown = !is_stop_id(c, ids[i]) || c->params->include_stop ||
                        (ids[i] == c->end_of_msg && k3i_unfold_is_chat(c->unfold));
        if (is_shown)
            status = k3i_unfold_push(c->unfold, ids[i], err);
        if (status == K3_OK && c->keep_tokens)
            status = keep_token(c, ids[i], per > 0 ? lp + i * per : NULL, err);
        c->last_token = ids[i];
    }
    c->n_taken += n;
    *ret_more = c->n_taken < ready;
    if (status == K3_OK && !*ret_more && finish != K3_FINISH_NONE) {
        c->finish = finish;
        status = k3i_unfold_finish(c->unfold, err);
    }
    return status;
}

k3_status k3i_choice_pump(k3i_choice *c, k3i_err *err)
{
    bool more = c->finish == K3_FINISH_NONE;
    while (more) {
        k3_status status = take(c, &more, err);
        if (status != K3_OK)
            return status;
    }
    return K3_OK;
}

void k3i_choice_clear(k3i_choice *c)
{
    c->text.n = 0;
    c->n_delta = c->n_tokens = 0;
}

const char *k3i_choice_reason(const k3i_choice *c)
{
    if (c->finish == K3_FINISH_LENGTH)
        return "length";
    if (c->finish == K3_FINISH_STOP)
        return k3i_unfold_calls(c->unfold) > 0 ? "tool_calls" : "stop";
    return "abort";
}

const char *k3i_choice_stop_reason(const k3i_choice *c, int32_t *ret_token)
{
    *ret_token = -1;
    int32_t hit = k3i_unfold_stop(c->unfold);
    if (c->finish != K3_FINISH_STOP)
        return NULL;
    if (hit >= 0)
        return c->params->stop[hit];
    const k3i_sampling *s = &c->params->sampling;
    for (int32_t i = s->n_stop - c->params->n_stop_ids; i < s->n_stop; i++) {
        if (s->stop[i] == c->last_token)
            *ret_token = c->last_token;
    }
    return NULL;
}

int32_t k3i_choice_completion_tokens(const k3i_choice *c)
{
    return c->n_taken;
}
