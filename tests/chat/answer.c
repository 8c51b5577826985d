/* answer.c: see answer.h. */
#include "answer.h"

static k3_status begin_call(k3i_answer *a, const k3i_chat_event *event, k3i_err *err)
{
    size_t bytes;
    k3i_call *call =
        k3i_mul_size(a->n_call + 1, sizeof *call, &bytes) ? k3i_realloc(a->call, bytes) : NULL;
    if (call == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu tool calls)", a->n_call + 1);
    a->call = call;
    call += a->n_call++;
    *call = (k3i_call){.name = K3I_BUF(K3I_OUTPUT_MAX_BYTES),
                       .arguments = K3I_BUF(K3I_OUTPUT_MAX_BYTES)};
    return k3i_buf_add(&call->name, event->text, event->n, err);
}

static k3_status end_call(k3i_call *call, bool is_raw, k3i_err *err)
{
    call->is_complete = true;
    if (is_raw)
        return K3_OK;
    k3i_buf unique = K3I_BUF(K3I_OUTPUT_MAX_BYTES);
    k3_status st = k3i_arguments_last(call->arguments.data, call->arguments.n, &unique, err);
    k3i_buf_done(st == K3_OK ? &call->arguments : &unique);
    if (st == K3_OK)
        call->arguments = unique;
    return st;
}

k3_status k3i_answer_event(void *answer, const k3i_chat_event *event, k3i_err *err)
{
    k3i_answer *a = answer;
    switch (event->kind) {
    case K3I_EVENT_REASONING:
        return k3i_buf_add(&a->reasoning, event->text, event->n, err);
    case K3I_EVENT_CONTENT:
        return k3i_buf_add(&a->content, event->text, event->n, err);
    case K3I_EVENT_CALL_BEGIN:
        return begin_call(a, event, err);
    case K3I_EVENT_CALL_ARGS:
        return k3i_buf_add(&a->call[event->call].arguments, event->text, event->n, err);
    default:
        return end_call(&a->call[event->call], event->is_raw, err);
    }
}

static void call_done(k3i_call *call)
{
    k3i_buf_done(&call->name);
    k3i_buf_done(&call->arguments);
}

void k3i_answer_done(k3i_answer *answer)
{
    for (size_t i = 0; i < answer->n_call; i++)
        call_done(&answer->call[i]);
    k3i_free(answer->call);
    k3i_buf_done(&answer->reasoning);
    k3i_buf_done(&answer->content);
    answer->call = NULL;
    answer->n_call = 0;
}
