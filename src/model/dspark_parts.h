/* dspark_parts.h: what dspark.c and dspark_block.c share. */
#ifndef K3I_DSPARK_PARTS_H
#define K3I_DSPARK_PARTS_H

#include "dspark.h"

/* Block rows computed together; a block is at most K3I_MAX_DRAFT rows. Requests are taken in groups
 * that fit, since base logits [rows, V] are the largest part of the workspace. */
enum { K3I_DSPARK_ROWS = 64 };

/* Heads of one sequence that an attention task handles. */
enum { K3I_DSPARK_HEADS = 8 };

/* Keys whose places are looked up together; whole blocks of attention. */
enum { K3I_DSPARK_KEYS = 8 * K3I_ATTN_KEYS };

/* The best token of a part of the vocabulary; id -1: none is a number. */
typedef struct {
    double score;
    int32_t id;
} k3i_dspark_best;

struct k3i_dspark_ws {
    void *x;               /* acts [rows, H] */
    float *kv;             /* [rows, row width] */
    void *kv_act;          /* acts [R, row width]: the block's own keys */
    float *h;              /* [rows, H] residual stream */
    float *angles;         /* [rows, rotated] cosines and sines, the same in all layers */
    void *taps;            /* acts [ctx rows, n_taps H], normed, of drafts with tap norms */
    float *a;              /* [R, H] sub-layer output */
    float *qa;             /* [R, Q] */
    void *qa_act;          /* acts [R, Q] */
    float *q;              /* [R, N (Dn + Dr)] or [R, N D] */
    void *o;               /* acts [R, N Dv] or [R, N D] */
    void *mlp;             /* acts [R, I] */
    float *U, *z;          /* [R, V] base logits; Markov biases of one step */
    void *e;               /* acts [R, Markov rank] */
    void *conf_in;         /* acts [R, H + Markov rank] */
    float *conf;           /* [R] */
    int32_t *token;        /* [R] token that each sequence chose last */
    k3i_dspark_best *best; /* [members, R] */
};

/* Channels that are rotated: Dr, or the whole head. */
size_t k3i_dspark_rotated(const k3i_draft_config *cfg);
/* Puts cosine and sine of the angles of a row's position, computed in double, into ws->angles. */
void k3i_dspark_angles(const k3i_dspark *d, size_t row, size_t pos);
/* Rotates x [rotated] in place; tmp [rotated]. */
void k3i_dspark_rotate(const k3i_dspark *d, const k3i_ops *op, float *x, const float *cs,
                       float *tmp);
/* Address of a context row; `block` is the page of pos. */
void *k3i_dspark_row_at(const k3i_dspark *d, const k3i_run *run, const k3i_pool *pool, size_t layer,
                        int32_t block, size_t pos);
void k3i_dspark_project_kv(const k3i_dspark *d, k3i_run *run, size_t layer, size_t n_row);
void k3i_dspark_finish_latent(const k3i_dspark *d, const k3i_run *run, size_t layer, float *kv,
                              const float *cs, float *tmp);
void k3i_dspark_finish_keys(const k3i_dspark *d, const k3i_run *run, size_t layer, float *kv,
                            const float *cs, float *tmp);
/* x = act(rmsnorm(h) * w) for rows of H. */
void k3i_dspark_norm_rows(const k3i_run *run, void *x, const float *h, const k3i_bf16 *w,
                          size_t n_row, size_t H, float eps);
/* Floats of scratch that one attention task needs. */
size_t k3i_dspark_attn_floats(const k3i_draft_config *cfg, size_t max_draft);
/* Attention of ws->q over context and block rows of every sequence of a group into ws->o. */
void k3i_dspark_attend(const k3i_dspark *d, const k3i_run *run, const k3i_pool *pool, size_t layer,
                       const k3i_block_seq *seqs, size_t n_seqs, size_t T);

#endif
