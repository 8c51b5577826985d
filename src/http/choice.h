/* choice.h: one sequence of an answer, from the engine's tokens to events and logprobs that the
 * reply writers (reply.c) put into words. Used on the connection's thread, except the stop watcher.
 */
#ifndef K3I_CHOICE_H
#define K3I_CHOICE_H

#include "params.h"
#include "request.h"
#include "unfold.h"

/* A run of text of one kind, merged from neighbouring events. */
typedef struct {
    int32_t kind; /* K3I_EVENT_* */
    int32_t call;
    bool is_raw;
    size_t at, n; /* in k3i_choice.text */
} k3i_delta;

/* A token with its alternatives, as taken from the request. */
typedef struct {
    int32_t id;
    k3i_logprob lp[1 + K3_MAX_TOP_LOGPROBS];
} k3i_token_lp;

typedef struct {
    int32_t index;              /* in the answer's choices */
    int32_t prompt;             /* index of its prompt */
    void *call;                 /* k3i_api_call, for the wake-up */
    k3i_request *req;           /* one reference, until the connection closes */
    k3i_request *req_of_engine; /* the same, without a reference: valid in the engine's callbacks */
    const k3i_params *params;
    k3i_unfold *unfold;
    k3i_unfold *watcher; /* engine thread: finds stop strings while generating; NULL without any */
    int32_t n_taken;     /* tokens read from the request */
    k3i_finish finish;   /* set when everything was taken */
    k3i_err error;
    /* What came since the last k3i_choice_clear. */
    k3i_buf text;
    k3i_delta *delta;
    size_t n_delta, cap_delta;
    k3i_token_lp *tokens; /* where logprobs or token ids were asked for */
    size_t n_tokens, cap_tokens;
    bool keep_tokens;
    /* Written so far. */
    bool has_role, has_finish;
    size_t offset; /* characters of text: text_offset of completions */
    k3i_detok offset_detok;
    int32_t last_token, end_of_msg;
} k3i_choice;

/* `req` is taken over. On failure nothing is. */
k3_status k3i_choice_init(k3i_choice *c, k3i_request *req, const k3i_params *params,
                          const k3i_unfold_opts *opts, bool keep_tokens, k3i_err *err);
void k3i_choice_done(k3i_choice *c);

/* Does the output end with this token? For the engine thread, while the connection's thread reads.
 */
bool k3i_choice_watch(k3i_choice *c, int32_t token);

/* The connection is gone: stops the generation and lets go of the request; the watcher stays until
 * k3i_choice_done, because the engine may be using it. */
void k3i_choice_close(k3i_choice *c);

/* Takes what the engine has produced since; fills deltas and tokens, and finish at the end. */
k3_status k3i_choice_pump(k3i_choice *c, k3i_err *err);
void k3i_choice_clear(k3i_choice *c);

/* "stop", "length", "tool_calls", "abort". */
const char *k3i_choice_reason(const k3i_choice *c);
/* The stop string, NULL and *ret_token the stop token id, or NULL and -1. */
const char *k3i_choice_stop_reason(const k3i_choice *c, int32_t *ret_token);
int32_t k3i_choice_completion_tokens(const k3i_choice *c);

#endif
