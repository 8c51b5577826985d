/* text.h: the text model over one ragged batch (text-model.md 4). What is computed is here and in
 * kda.c, mla.c and moe.c; who owns sequences, pages and slots is the engine's business.
 *
 * Letters as in checkpoint/config.h. T rows of the batch, B = number of AttnRes blocks. */
#ifndef K3I_TEXT_H
#define K3I_TEXT_H

#include "bind.h"
#include "pages.h"
#include "run.h"

/* ---- memory by plan ----------------------------------------------------------------------------
 */

/* Hands out parts of one block. With base NULL it only counts, so that one function both sizes a
 * workspace and lays it out. Parts are K3I_ALIGN-aligned. */
typedef struct {
    char *base;
    size_t used, peak;
} k3i_bump;

/* n elements of `size` bytes; the limits checked at open keep the products far below SIZE_MAX. */
void *k3i_bump_take(k3i_bump *b, size_t n, size_t size);

/* ---- state of KDA layers ------------------------------------------------------------------------
 */

/* The state of a sequence is an array [KDA layers, heads] of head states: S [d, d] f32, key-major,
 * then the last taps - 1 raw rows of q, k and v (acts [3, taps - 1, d], oldest first). The records
 * of a slot's speculative rows are an array [KDA layers, heads, max_spec] of row records: k, decay,
 * e [3, d] f32, then the raw rows (acts [3, d]). One head is one contiguous piece in both. */
typedef struct {
    size_t n_layers, n_heads, d, n_hist; /* n_hist = taps - 1 */
    size_t max_spec;
    size_t S_bytes, hist_bytes, head_bytes;
    size_t record_bytes;      /* one row of one head */
    size_t state_bytes;       /* of a sequence */
    size_t slot_record_bytes; /* of a slot */
} k3i_kda_layout;

/* Pages that hold a snapshot, which is the state's bytes cut at page ends. */
typedef struct {
    char *pool;
    size_t page_bytes;
    const int32_t *block; /* [pages] */
} k3i_snap_pages;

void k3i_snap_write(const k3i_snap_pages *s, size_t offset, const void *src, size_t bytes);
void k3i_snap_read(const k3i_snap_pages *s, size_t offset, void *dst, size_t bytes);

/* A snapshot to be taken: the state of sequence `seq` (index in the step) after `pos` tokens. */
typedef struct {
    size_t seq;
    size_t pos;
    k3i_snap_pages pages;
} k3i_snap;

/* ---- one step ----------------------------------------------------------------------------------
 */

typedef struct {
    size_t from, n_rows;   /* rows of the batch */
    size_t n_spec;         /* of these, at the tail: may be rejected */
    size_t ctx;            /* position of the first row */
    char *state, *records; /* of the slot */
    const int32_t *blocks; /* pages of the sequence */
} k3i_seq;

/* Streams saved for a draft: for every row of the batch acts [n, H] in the order of `layer`. */
typedef struct {
    size_t n;
    const size_t *layer; /* ascending; tapped after this layer */
    k3i_stream stream;
    void *out; /* acts [T, n H] */
} k3i_taps;

/* Called between stages (tests): x [T, n] of layer `layer`. `what` is "attn", "ffn" or "prefix". */
typedef void (*k3i_trace_fn)(void *user, const char *what, size_t layer, const float *x, size_t T,
                             size_t n);

typedef struct {
    size_t n_rows, n_seqs;
    const int32_t *token;      /* [T] */
    const float *const *media; /* [T] the row that replaces the embedding, or NULL; may be NULL */
    const k3i_seq *seqs;       /* [n_seqs] */
    const k3i_snap *snaps;     /* inside final rows */
    size_t n_snaps;
    const k3i_pool *pool;
    const int32_t *logit_row; /* [n_logits] ascending */
    size_t n_logits;
    float *logits; /* [n_logits, logits_stride] */
    size_t logits_stride;
    unsigned char *row_bad; /* [T] out: 1 if the row holds a value that is not finite */
    const k3i_taps *taps;   /* or NULL */
    k3i_trace_fn trace;
    void *trace_user;
} k3i_step;

/* ---- the model ---------------------------------------------------------------------------------
 */

/* Small weights in the form the ops want, made once at open. */
typedef struct {
    const float *attn_wq, *mlp_wq; /* [H] AttnRes: norm weight * query (text-model 4.4) */
    const float *conv;             /* KDA: [n, 3, taps, d] of q, k, v */
    const float *exp_a;            /* KDA: [n] exp(A_log) */
    size_t kind_index;             /* number of earlier layers of the same kind (KDA or MLA) */
} k3i_layer_extra;

typedef struct k3i_text_ws k3i_text_ws;

typedef struct {
    const k3i_config *cfg;
    const k3i_text_weights *w;
    k3i_layer_extra *extra; /* [L] */
    const float *output_wq; /* [H] */
    k3i_kda_layout kda;
    size_t max_rows;
    k3i_text_ws *ws;
    k3i_arena arena;        /* the arrays above */
    char *block;            /* the workspace */
    size_t workspace_bytes; /* everything allocated here, scratch of the team included */
} k3i_text;

/* Prepares a model for steps of at most max_rows rows and gives `run` its
 * scratch memory of at least `min_scratch` bytes a member. Errors: K3_E_NOMEM. */
k3_status k3i_text_init(k3i_text *m, const k3i_config *cfg, const k3i_text_weights *w, k3i_run *run,
                        size_t max_rows, size_t max_spec, size_t min_scratch, k3i_err *err);
void k3i_text_done(k3i_text *m);

/* Computes a step. Everything has been checked: it cannot fail. */
void k3i_text_forward(k3i_text *m, k3i_run *run, const k3i_step *step);

/* Elements of one latent row of a target layer: C + Dr. */
size_t k3i_latent_width(const k3i_config *cfg);

/* ---- commit ------------------------------------------------------------------------------------
 */

typedef struct {
    const k3i_seq *seq;
    size_t n_accepted; /* speculative rows that stay, 0..seq->n_spec */
} k3i_accept;

/* Replays the accepted rows of every sequence from its records, bit-equal to having computed them
 * as final rows, and takes the snapshots on the way (snap.seq is an index into `a`). */
void k3i_kda_commit(k3i_text *m, k3i_run *run, const k3i_accept *a, size_t n, const k3i_snap *snaps,
                    size_t n_snaps);

#endif
