/* api.h: what all API calls share. Made once by the server, constant afterwards except for the
 * parts with their own locks (serve, media keys) and the atomic counters. */
#ifndef K3I_API_H
#define K3I_API_H

#include "grammar.h"
#include "media.h"
#include "serve.h"
#include "tokenizer.h"

typedef struct {
    const char *const *names; /* [n_names] served model names; the first is the one reported */
    int32_t n_names;
    const char *root;            /* model directory as given */
    const char *const *api_keys; /* [n_api_keys]; none = open */
    int32_t n_api_keys;
    bool kimi_policy;           /* docs/recipes/kvv.md */
    size_t max_body_bytes;      /* of one request */
    size_t max_total_bytes;     /* of all bodies at once */
    int64_t request_timeout_ns; /* of one generation; 0 = none */
    int32_t max_connections;
    int32_t n_workers;      /* threads that read requests and pictures */
    int32_t idle_timeout_s; /* of a connection that neither sends nor takes anything */
    k3i_media_config media;
    void (*log)(void *user, int32_t level, const char *text);
    void *log_user;
} k3i_api_config;

typedef struct {
    const k3i_api_config *config;
    k3i_serve *serve;
    const k3i_tok *tok;
    const k3i_vocab *vocab; /* for constrained answers */
    k3i_media_store *media;
    int64_t created;       /* UNIX seconds */
    atomic_llong n_calls;  /* makes ids unique */
    atomic_int load;       /* generation calls in flight */
    /* Answers in which calls were looked for: [streamed or not][with a call or without]. */
    atomic_llong n_parsed[2][2];
    uint64_t id_seed;
} k3i_api;

#endif
