/* dspark.h: the DSpark draft model (dspark.md): context rows from tapped hidden states, and one
 * block pass with the Markov head that proposes tokens.
 *
 * The draft never sees its own past. Its past are *context rows*, one per committed token and draft
 * layer, made from the target's taps and kept in the pages of the sequence beside the target's
 * latents. A block pass reads the context before the anchor and its own rows, which live in scratch
 * memory and are never written to a page: nothing of a block can be mistaken for context.
 *
 * Letters as in bind.h, and T rows of a block (= drafts asked for). */
#ifndef K3I_DSPARK_H
#define K3I_DSPARK_H

#include "bind.h"
#include "text.h"

/* Where the context rows of a committed token go. */
typedef struct {
    size_t pos;
    int32_t block; /* the page of pos */
} k3i_context_row;

/* A sequence that wants drafts. */
typedef struct {
    size_t pos;            /* of the anchor = committed length: context rows 0..pos-1 exist */
    int32_t anchor;        /* the newest token, 0..V-1 */
    const int32_t *blocks; /* pages that cover positions 0..pos-1 */
    float temperature;     /* 0: the most probable token */
    uint64_t seed;
} k3i_block_seq;

typedef struct {
    size_t n_seqs, n_draft; /* T = n_draft <= max_draft */
    const k3i_block_seq *seqs;
    int32_t *ids;      /* [n_seqs, T] */
    float *confidence; /* [n_seqs, T] or NULL; only with a confidence head */
    float *logits;     /* [n_seqs, T, V] divided by the temperature (if > 0), or NULL */
} k3i_block;

typedef struct k3i_dspark_ws k3i_dspark_ws;

typedef struct {
    const k3i_draft_config *cfg;
    const k3i_draft_weights *w;
    const k3i_bf16 *embed, *lm_head; /* of the target: [V, H] */
    size_t row_width;                /* elements of a context row: C + Dr, or 2 K D */
    size_t first_layer;              /* index of draft layer 0 in the pool's layers */
    double *freq;                    /* [rotated / 2] rad per position (dspark.md 3.4) */
    double table_scale;              /* factor of cosine and sine */
    float softmax_scale;
    size_t max_draft, max_pos;
    size_t ctx_rows, block_rows; /* rows handled at a time */
    k3i_dspark_ws *ws;
    char *block;
    size_t workspace_bytes;
    k3i_arena arena;
} k3i_dspark;

/* Elements of a context row of one layer. */
size_t k3i_dspark_row_width(const k3i_draft_config *cfg);
/* Bytes of team scratch that a member needs. */
size_t k3i_dspark_scratch(const k3i_draft_config *cfg, size_t max_draft);

/* Prepares a draft; `run` already has at least k3i_dspark_scratch bytes a member. first_layer: the
 * target's MLA layers come first in a page. Errors: K3_E_NOMEM. */
k3_status k3i_dspark_init(k3i_dspark *d, const k3i_draft_files *files,
                          const k3i_text_weights *target, const k3i_run *run, size_t first_layer,
                          size_t max_draft, size_t max_pos, k3i_err *err);
void k3i_dspark_done(k3i_dspark *d);

/* Writes the context rows of all layers for committed rows (dspark.md 2.4, 3.1), each for itself:
 * it does not matter which come together. taps: acts [n_rows, n_taps H], as k3i_text_forward saved
 * them. */
void k3i_dspark_context(k3i_dspark *d, k3i_run *run, const k3i_pool *pool, const void *taps,
                        const k3i_context_row *rows, size_t n_rows);

/* Proposes tokens (dspark.md 3.2 - 3.7). A sampled proposal uses the noise of the target's own draw
 * at that position, which makes it as likely as can be to equal it; k3i_gumbel is keyed by position
 * only, so neighbours and widths do not matter to the noise. */
void k3i_dspark_block(k3i_dspark *d, k3i_run *run, const k3i_pool *pool, const k3i_block *b);

#endif
