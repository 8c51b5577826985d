/* call.h: one API call, from its bytes to its answer, without any socket. The server makes it, lets
 * a worker handle it, and then either sends the whole reply or reads the stream piece by piece.
 *
 * Threads. handle() runs on a worker; finish(), read() and close() on the connection's thread,
 * never at the same time as handle(). The engine thread only wakes. A call lives until the
 * connection and every request made from it have let go. */
#ifndef K3I_CALL_H
#define K3I_CALL_H

#include "api.h"
#include "chat.h"
#include "choice.h"
#include "grammar.h"
#include "json_out.h"

typedef struct k3i_api_call k3i_api_call;

enum {
    K3_CALL_NEW,
    K3_CALL_READY,  /* `out` is the whole reply */
    K3_CALL_WAITS,  /* requests run; finish() when n_open is 0 */
    K3_CALL_STREAMS /* read() */
};

struct k3i_api_call {
    k3i_api *api;
    atomic_int n_refs;
    /* The request; filled by the server before handle(). */
    char path[64];
    char request_id[128]; /* X-Request-Id or "" */
    k3i_buf body;
    /* What the server sees of the answer. */
    atomic_int phase;
    int32_t status;
    const char *content_type;
    k3i_buf out;
    size_t out_at;                    /* read() has delivered so much of out */
    atomic_int n_open;                /* requests that have not ended */
    void (*wake)(k3i_api_call *call); /* any thread */
    pthread_mutex_t lock;             /* guards `server` and what it points to */
    void *server;                     /* the server's own; NULL once the connection is gone */
    /* How it is made. */
    k3i_arena arena;
    yyjson_doc *doc;
    k3i_params params;
    k3i_chat_req chat;
    k3i_chat_prompt prompt;
    k3i_unfold_opts unfold;
    k3i_grammar *grammar;  /* NULL: the answer is free */
    k3i_buf echo;          /* chat: what stands before each content */
    bool is_chat, is_done; /* is_done: the stream is complete */
    char id[176];
    int64_t created;
    const char *model;
    int32_t n_prompts, n_choices;
    k3i_choice *choice; /* [n_choices] prompt-major */
    bool is_counted;    /* in api->load */
};

k3_status k3i_call_new(k3i_api *api, k3i_api_call **ret, k3i_err *err);
void k3i_call_ref(k3i_api_call *c);
void k3i_call_unref(k3i_api_call *c);

/* Is there a handler for this POST path? */
bool k3i_call_has_route(const char *path);
/* Reads the body and starts what it asks for. Afterwards phase is READY, WAITS or STREAMS. */
void k3i_call_handle(k3i_api_call *c);
/* WAITS with n_open 0: writes the reply and becomes READY. */
void k3i_call_finish(k3i_api_call *c);
/* STREAMS: copies up to `max` bytes that are due now; 0 = nothing yet, or is_done. */
size_t k3i_call_read(k3i_api_call *c, char *to, size_t max);
/* The connection is gone or served: stops what still runs. The caller's reference is dropped. */
void k3i_call_close(k3i_api_call *c);

/* Makes the reply an error. */
void k3i_call_fail(k3i_api_call *c, const k3i_fault *fault);

/* ---- between the files of a call ---- */
bool k3i_chat_prepare(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
bool k3i_completion_prepare(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
bool k3i_tokenize_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
bool k3i_detokenize_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
bool k3i_estimate_handle(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
/* Renders the chat of `root` into c->chat and c->prompt, pictures included. On success the
 * pictures' patches are in *ret_pictures [c->prompt.n_slot], to be freed by the caller. */
bool k3i_chat_read_prompt(k3i_api_call *c, yyjson_val *root, k3i_media_picture **ret_pictures,
                          size_t *ret_n_pictures, k3i_fault *fault);
void k3i_pictures_free(k3i_media_picture *pictures, size_t n);
bool k3i_check_model(k3i_api_call *c, yyjson_val *root, k3i_fault *fault);
/* Makes choice `index` from a prompt; the seed of its k-th sibling is seed + k. */
bool k3i_call_add_choice(k3i_api_call *c, int32_t index, int32_t prompt, const int32_t *ids,
                         int32_t n_ids, k3i_request **ret, k3i_fault *fault);
/* Binds the grammar and the thinking budget of a chat to one of its requests. */
bool k3i_call_constrain(k3i_api_call *c, k3i_request *r, k3i_fault *fault);
/* Checks lengths against the context; sets *ret_max_tokens. */
bool k3i_check_lengths(k3i_api_call *c, size_t n_ids, int32_t *ret_max_tokens, k3i_fault *fault);

/* reply.c: JSON of answers. */
void k3i_reply_whole(k3i_api_call *c, k3i_json *j);
/* Chunks for what a choice has pumped; `c` decides the format. */
void k3i_reply_chunks(k3i_api_call *c, k3i_choice *ch, k3i_json *j);
/* The closing usage chunk (if due) and [DONE]. */
void k3i_reply_end(k3i_api_call *c, k3i_json *j);

#endif
