/* output.h: what the model writes, taken apart while it streams: reasoning, content, tool calls.
 *
 * The parser reads token ids, not text: the structural markers are single ids, so a marker spelled
 * out in ordinary tokens is data, no marker is ever cut in two, and nothing is held back except an
 * unfinished UTF-8 character. Malformed output never leaks a marker and never fails. */
#ifndef K3I_OUTPUT_H
#define K3I_OUTPUT_H

#include "tokenizer.h"

#define K3I_OUTPUT_MAX_BYTES ((size_t)1 << 28) /* 1,048,576 tokens of 256 bytes */

enum {
    K3I_EVENT_REASONING,  /* text: more of the reasoning */
    K3I_EVENT_CONTENT,    /* text: more of the content */
    K3I_EVENT_CALL_BEGIN, /* text: the function's name */
    K3I_EVENT_CALL_ARGS,  /* text: more of the call's `arguments` string */
    K3I_EVENT_CALL_END    /* the call is complete; a call without this event was cut off */
};

/* `text` is whole UTF-8 characters, valid during the call. `call` counts calls from 0. `is_raw`
 * (CALL_END): the arguments are a json block, passed on as it stands. */
typedef struct {
    int32_t kind;
    int32_t call;
    bool is_raw;
    const char *text;
    size_t n;
} k3i_chat_event;

/* Returns K3_OK, or a status that ends k3i_parser_push with it. */
typedef k3_status (*k3i_chat_event_fn)(void *user, const k3i_chat_event *event, k3i_err *err);

typedef struct k3i_parser k3i_parser;

typedef struct {
    int32_t channel;    /* K3I_CHANNEL_ of chat.h that the prompt left open */
    bool discard_calls; /* no tools declared, or tool_choice none: calls are read and dropped */
    bool single_call;   /* parallel_tool_calls false: calls after the first are dropped */
} k3i_parser_opts;

/* Free with k3i_parser_free. `tok`, `fn` and `user` must outlive the parser. */
k3_status k3i_parser_new(const k3i_tok *tok, const k3i_parser_opts *opts, k3i_chat_event_fn fn,
                         void *user, k3i_parser **ret, k3i_err *err);
void k3i_parser_free(k3i_parser *p);

/* Takes the next generated id, the end-of-message id included if the host passes it. */
k3_status k3i_parser_push(k3i_parser *p, int32_t id, k3i_err *err);
/* The output ended without end-of-message (token limit, stop string): what is held back is sent; an
 * open call stays incomplete, no bracket is invented. After an end of message it does nothing. */
k3_status k3i_parser_finish(k3i_parser *p, k3i_err *err);

/* The message has ended; further ids are dropped. */
bool k3i_parser_is_done(const k3i_parser *p);
/* Inside the thinking channel now? */
bool k3i_parser_is_reasoning(const k3i_parser *p);
/* Ids before the marker that closed the thinking channel. */
size_t k3i_parser_reasoning_tokens(const k3i_parser *p);
/* Complete calls so far. */
size_t k3i_parser_calls(const k3i_parser *p);

/* Appends the arguments of a complete call that is not raw, with the last of equal keys only: for
 * replies that are not streamed. */
k3_status k3i_arguments_last(const char *text, size_t n, k3i_buf *ret, k3i_err *err);

#endif
