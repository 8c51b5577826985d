/* request.h: one sequence to be generated. The client fills it and submits it; from then on the
 * engine thread owns everything except the fields marked "shared", which lie under `lock` or are
 * atomic. */
#ifndef K3I_REQUEST_H
#define K3I_REQUEST_H

#include "policy.h"
#include "sampler.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum {
    K3_FINISH_NONE,   /* not yet */
    K3_FINISH_STOP,   /* end-of-message, stop id or stop string */
    K3_FINISH_LENGTH, /* max_tokens or max_model_len */
    K3_FINISH_ABORT,  /* cancelled, deadline, or cut by a shutdown */
    K3_FINISH_ERROR   /* error.text says why */
} k3i_finish;

/* One picture: `rows` placeholder tokens from prompt index `at` on. Pixels as in k3_image; they
 * stay until the request is freed, because a preempted request may need them again. */
typedef struct {
    uint64_t key; /* below 2^40; equal keys mean equal pictures (media.h) */
    int32_t at, rows;
    const float *pixels; /* owned, freed with k3i_free */
    bool is_borrowed;    /* not owned: they are the leader's */
    int32_t grid_t, grid_h, grid_w;
    bool is_encoded; /* engine thread: counted as a user of the engine's rows */
} k3i_media;

/* What may come next, decided by the tokens before: structured output. Called on the engine thread.
 */
typedef struct {
    void *self; /* NULL = no constraint */
    /* Fills ceil(vocab / 32) words for the next token; *ret_is_active = false means anything goes.
     */
    k3_status (*mask)(void *self, uint32_t *words, bool *ret_is_active, k3i_err *err);
    k3_status (*accept)(void *self, int32_t token, k3i_err *err);
    void (*free)(void *self);
} k3i_constraint;

typedef struct k3i_request k3i_request;

struct k3i_request {
    /* ---- filled by the client before submit, constant afterwards; owned by the request ---- */
    int32_t *prompt; /* [n_prompt] */
    int32_t n_prompt;
    k3i_media *media; /* [n_media] ascending */
    int32_t n_media;
    k3i_sampling sampling; /* its arrays belong to `keep` */
    int32_t max_tokens;    /* >= 1, or 0 with prompt_logprobs: only the prompt is computed */
    bool no_speculation;
    int32_t logprobs;        /* -1 = none, else alternatives per token */
    int32_t prompt_logprobs; /* likewise for the prompt */
    char *salt;              /* cache_salt or NULL */
    int64_t deadline_ns;     /* monotonic clock, 0 = none */
    k3i_request *leader;     /* same prompt, computed first (n > 1); a reference is held */
    int32_t n_choices;       /* n: this request and those that it leads */
    k3i_constraint constraint;
    /* Called with every token that joins the output; nonzero ends the request with K3_FINISH_STOP.
     * Engine thread. */
    int32_t (*on_token)(void *user, int32_t token);
    /* Something new can be taken. Engine thread, no lock held. May be NULL. */
    void (*notify)(void *user);
    void *user;
    void *keep; /* freed by free_keep: the arrays that sampling points to */
    void (*free_keep)(void *keep);

    /* ---- shared ---- */
    atomic_int n_refs;
    atomic_bool is_cancelled;
    pthread_mutex_t lock;
    int32_t n_ready; /* output tokens that may be read by the client */
    int32_t *ready;  /* [n_ready] */
    int32_t cap_ready;
    k3i_logprob *lp; /* [n_ready * (1 + logprobs)] */
    /* [n_prompt * (1 + prompt_logprobs)]; entry 0 is unused, and those from n_prompt_lp on. Both
     * are the engine's until the first token or the end. */
    k3i_logprob *prompt_lp;
    int32_t n_prompt_lp;
    k3i_finish finish;
    k3i_err error;
    atomic_int n_cached;                                    /* prompt tokens reused */
    atomic_int n_drafted, n_accepted;                       /* drafts verified, drafts kept */
    int64_t submit_ns, start_ns, first_ns, last_ns, end_ns; /* monotonic */

    /* ---- engine thread ---- */
    uint64_t arrival;
    int32_t *tokens; /* prompt, then output; NULL until it is admitted */
    uint64_t *wide;  /* tokens as prefix.h wants them; grows with tokens */
    int32_t n_tokens, cap_tokens;
    int32_t ctx;  /* committed tokens in the engine */
    int32_t slot; /* -1 = not running */
    int32_t slot_op;
    int32_t hit_snap; /* pinned snapshot to restore from, -1 = none */
    int32_t *table;   /* [n_table] pages, one reference each */
    int32_t n_table, cap_table;
    int32_t branch; /* position at which a snapshot would have helped, 0 = none */
    int32_t draft[K3_MAX_WIDTH];
    int32_t n_draft;
    int32_t n_ended, most_tokens; /* leader: of the n choices, how many have ended; the longest */
    k3i_policy_req policy;
    k3i_sampler *sampler;
    k3i_request *next; /* in the list it is on */
};

/* A request with one reference, for the client. tokens [n_prompt] is copied. */
k3_status k3i_request_new(const int32_t *tokens, int32_t n_prompt, k3i_request **ret, k3i_err *err);
void k3i_request_ref(k3i_request *r);
/* Frees it with the last reference; NULL is allowed. */
void k3i_request_unref(k3i_request *r);
/* Takes effect before the next step. Any thread. */
void k3i_request_cancel(k3i_request *r);

/* The 64-bit token of picture row `row` of `key`; text tokens are their ids. */
static inline uint64_t k3i_wide_media(uint64_t key, int32_t row)
{
    return UINT64_C(1) << 63 | key << 23 | (uint64_t)(uint32_t)row;
}

#endif
