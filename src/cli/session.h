/* session.h: one engine with one sequence: what run, logits and bench drive. */
#ifndef K3I_CLI_SESSION_H
#define K3I_CLI_SESSION_H

#include "args.h"
#include "spec_config.h"

#include <stddef.h>

/* Tokens of a page: small against a sequence, large against a table entry. */
enum { K3I_CLI_BLOCK_TOKENS = 64 };

typedef struct {
    k3_engine *engine;
    k3_info info;
    int32_t *table; /* [n_blocks] all pages but the reserved one */
    int32_t n_blocks;
    int32_t n_ctx; /* tokens committed */
    bool started;  /* the slot holds the sequence */
} k3i_session;

/* The JSON text of k3_open for --model, --threads, --mode and --isa (or K3_ISA); free() it. max_len
 * 0: the engine's own; spec NULL, or without a model: no draft. NULL if memory is out. */
char *k3i_open_options(const k3i_args *args, int32_t max_len, int32_t chunk, int32_t n_seqs,
                       const k3i_spec_config *spec);

/* Opens --model with --threads, --mode and --isa (or K3_ISA) for one sequence of at most max_len
 * tokens, computed at most `chunk` at a time, and the draft of `spec` if there is one (NULL: none).
 * Close with k3_close. */
k3_status k3i_engine_open(const k3i_args *args, int32_t max_len, int32_t chunk,
                          const k3i_spec_config *spec, k3_engine **ret, k3i_err *err);
/* The same for up to n_seqs sequences at a time. */
k3_status k3i_engine_open_many(const k3i_args *args, int32_t max_len, int32_t chunk, int32_t n_seqs,
                               const k3i_spec_config *spec, k3_engine **ret, k3i_err *err);

/* An engine and its one sequence. Close with k3i_session_close also after errors (zero-initialise
 * first). */
k3_status k3i_session_open(const k3i_args *args, int32_t max_len, int32_t chunk, k3i_session *ret,
                           k3i_err *err);
void k3i_session_close(k3i_session *s);

/* Computes ids[0..n) behind what is there, n <= chunk. logits: [n, vocab_size] with all_rows, else
 * [vocab_size] of the last one; NULL if none is wanted. */
k3_status k3i_session_forward(k3i_session *s, const int32_t *ids, int32_t n, bool all_rows,
                              float *logits, k3i_err *err);

/* Forgets the sequence; the next forward starts a new one. */
k3_status k3i_session_restart(k3i_session *s, k3i_err *err);

#endif
