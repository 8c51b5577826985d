/* answer.h: the parser's events collected into one answer, for tests that look at the whole of it.
 */
#ifndef K3_TEST_ANSWER_H
#define K3_TEST_ANSWER_H

#include "output.h"

typedef struct {
    k3i_buf name, arguments;
    bool is_complete;
} k3i_call;

/* Zero-initialise with K3I_ANSWER and pass k3i_answer_event with its address. */
typedef struct {
    k3i_buf reasoning, content;
    k3i_call *call; /* [n_call] */
    size_t n_call;
} k3i_answer;

#define K3I_ANSWER                                            \
    ((k3i_answer){.reasoning = K3I_BUF(K3I_OUTPUT_MAX_BYTES), \
                  .content = K3I_BUF(K3I_OUTPUT_MAX_BYTES)})

k3_status k3i_answer_event(void *answer, const k3i_chat_event *event, k3i_err *err);
void k3i_answer_done(k3i_answer *answer);

#endif
