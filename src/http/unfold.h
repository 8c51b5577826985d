/* unfold.h: from token ids to what the client sees: events of the chat format (output.h) or plain
 * text, cut at stop strings. A pure function of the ids: the engine thread uses one instance to
 * know when to stop, the connection another one to write the answer, and both cut at the same byte.
 */
#ifndef K3I_UNFOLD_H
#define K3I_UNFOLD_H

#include "output.h"
#include "stopper.h"

typedef struct {
    const k3i_tok *tok;
    bool is_chat;            /* else plain text: every token is content */
    bool skip_specials;      /* plain text */
    k3i_parser_opts parser;  /* chat */
    const char *const *stop; /* [n_stop]; they are looked for in the content */
    int32_t n_stop;
    bool include_stop;
    int32_t min_tokens; /* stop strings that begin in the first tokens do not count */
} k3i_unfold_opts;

typedef struct k3i_unfold k3i_unfold;

/* `opts` and all it points to must outlive the result. Free with k3i_unfold_free. */
k3_status k3i_unfold_new(const k3i_unfold_opts *opts, k3i_chat_event_fn fn, void *user,
                         k3i_unfold **ret, k3i_err *err);
void k3i_unfold_free(k3i_unfold *u);
k3_status k3i_unfold_push(k3i_unfold *u, int32_t id, k3i_err *err);
/* No more ids. */
k3_status k3i_unfold_finish(k3i_unfold *u, k3i_err *err);
bool k3i_unfold_is_chat(const k3i_unfold *u);
/* Index of the stop string that was met, -1 = none. */
int32_t k3i_unfold_stop(const k3i_unfold *u);
size_t k3i_unfold_calls(const k3i_unfold *u);
size_t k3i_unfold_reasoning_tokens(const k3i_unfold *u);

#endif
