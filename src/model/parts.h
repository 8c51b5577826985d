/* parts.h: what the files of the text model share: the workspace and one function per sub-layer. */
#ifndef K3I_PARTS_H
#define K3I_PARTS_H

#include "text.h"

/* Queries (row x head) that one attention task holds, rows of a task, and keys looked up at a time:
 * any multiple of K3I_ATTN_KEYS gives the same result. */
enum { K3I_MLA_QUERIES = 64, K3I_MLA_ROWS = 16, K3I_MLA_KEYS = 8 * K3I_ATTN_KEYS };

/* Rows that one head computes at a time, for its working set to stay in the cache. */
enum { K3I_KDA_TOKENS = 16 };

typedef struct {
    float *q, *k, *v; /* [T, n d] raw projections */
    float *f;         /* [T, n d] decay logits */
    float *gate;      /* [T, n d] */
    float *beta;      /* [T, n] logits, then their sigmoid */
    float *fa;        /* [T, d] */
    void *fa_act;     /* [T, d] */
    void *o;          /* acts [T, n d] */
} k3i_kda_ws;

typedef struct {
    float *qa, *kv, *gate; /* [T, Q], [T, C + Dr], [T, N Dv] */
    void *qa_act;          /* [T, Q] */
    float *q;              /* [T, N (Dn + Dr)] */
    void *o;               /* acts [T, N Dv] */
} k3i_mla_ws;

typedef struct {
    float *router;      /* [T, E] logits */
    float *latent;      /* [T, Z] */
    void *latent_act;   /* [T, Z] */
    void *shared_act;   /* [T, n_shared M] */
    float *sum;         /* [T, Z] weighted sum of expert outputs */
    void *sum_act;      /* [T, Z] */
    int32_t *expert;    /* [T, K] chosen, ascending */
    float *weight;      /* [T, K] */
    size_t *begin;      /* [members, E + 1] first pair of an expert */
    int32_t *pair_row;  /* [T K] rows by expert, ascending inside */
    float *pair_weight; /* [T K] */
    size_t cap;         /* pairs handled at a time */
    void *x_act;        /* [T + members K, Z] gathered latents; cap of them are used at a time */
    void *h_act;        /* [T + members K, M] */
} k3i_moe_ws;

struct k3i_text_ws {
    float **bank;       /* [B + 1] of [T, H]: snapshots, then the prefix */
    void *x;            /* acts [T, H] input of the sub-layer */
    float *a, *b;       /* [T, H] outputs of the sub-layer; b: of the shared experts */
    void *h;            /* acts [T, I] of the dense MLP */
    int32_t *logit_of;  /* [T] index of the row's logits or -1 */
    uint64_t *streamed; /* [members] matrix bytes of this step, by rows */
    k3i_kda_ws kda;
    k3i_mla_ws mla;
    k3i_moe_ws moe;
};

/* A token mixer in three stages: _in reads ws->x [T, H] and projects, _mix lets rows see each
 * other, _out writes ws->a [T, H]. _in and _out work row by row and take a member's run as well as
 * the team's (k3i_run_as_member); all rows of a sequence must have passed _in before _mix, which
 * takes a member's run if no sequence is split between members. */
void k3i_kda_in(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
void k3i_kda_mix(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
void k3i_kda_out(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
void k3i_mla_in(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
void k3i_mla_mix(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
void k3i_mla_out(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);
/* Reads ws->x, writes the routed part into ws->a, the shared into ws->b. Row by row. */
void k3i_moe_forward(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer);

void k3i_kda_layout_init(k3i_kda_layout *lay, const k3i_config *cfg, size_t act_bytes,
                         size_t max_spec);
void k3i_kda_ws_take(k3i_kda_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act);
void k3i_mla_ws_take(k3i_mla_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act);
void k3i_moe_ws_take(k3i_moe_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act,
                     size_t n_members);
size_t k3i_kda_scratch(const k3i_config *cfg);
size_t k3i_mla_scratch(const k3i_config *cfg);
size_t k3i_moe_scratch(const k3i_config *cfg);

/* text-model 4.8: chooses K experts for one token from its E router logits; ties go to the lowest
 * index, a NaN is never preferred. expert [K] ascending, weight [K] to match; scratch of
 * k3i_route_scratch bytes. */
void k3i_route(const k3i_ops *op, const k3i_config *cfg, const float *logit, const float *bias,
               void *scratch, int32_t *expert, float *weight);
size_t k3i_route_scratch(const k3i_config *cfg);

#endif
