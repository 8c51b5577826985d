/* bind.h: the tensors of a checkpoint as structs of typed pointers.
 *
 * Every tensor is bound by exact name, dtype and shape; what is missing, misshapen or left over is
 * refused by name. Matrices are [out, in], row-major, in the mapping: y = x W^T.
 *
 * Alignment. A checkpoint may place a tensor at any byte. BF16 matrices and MXFP4 stay where they
 * are, so only kernels (which take any alignment) may read them. Vectors and all F32 tensors are
 * small: they are copied where the file misaligns them and may be read as plain arrays.
 *
 * Letters as in config.h: V vocabulary, H hidden, N heads, n and d KDA heads and width, E experts,
 * M expert width, Z latent width. */
#ifndef K3I_BIND_H
#define K3I_BIND_H

#include "arena.h"
#include "bf16.h"
#include "config.h"
#include "safetensors.h"

/* A [rows, cols] MXFP4 matrix (text-model 3.5). No scale is 255. */
typedef struct {
    const uint8_t *packed; /* [rows, cols / 2], low nibble = even column */
    const uint8_t *scale;  /* [rows, cols / 32] E8M0 */
} k3i_mxfp4;

typedef struct {
    k3i_mxfp4 w1; /* [M, Z] gate */
    k3i_mxfp4 w3; /* [M, Z] up */
    k3i_mxfp4 w2; /* [Z, M] down */
} k3i_expert_weights;

typedef struct {
    const k3i_bf16 *gate_proj, *up_proj; /* [I, H] */
    const k3i_bf16 *down_proj;           /* [H, I] */
} k3i_mlp_weights;

typedef struct {
    const k3i_bf16 *q_proj, *k_proj, *v_proj; /* [n d, H] row = head * d + channel */
    const float *q_conv, *k_conv, *v_conv;    /* [n d, taps] the last tap is the current token */
    const k3i_bf16 *f_a_proj;                 /* [d, H] decay gate, low rank */
    const k3i_bf16 *f_b_proj;                 /* [n d, d] */
    const float *dt_bias;                     /* [n d] */
    const float *a_log;                       /* [n] per head */
    const k3i_bf16 *b_proj;                   /* [n, H] beta */
    const float *o_norm;                      /* [d] */
    const k3i_bf16 *g_proj;                   /* [n d, H] output gate */
    const k3i_bf16 *o_proj;                   /* [H, n d] */
} k3i_kda_weights;

typedef struct {
    const k3i_bf16 *q_a_proj;       /* [Q, H] */
    const k3i_bf16 *q_a_layernorm;  /* [Q] */
    const k3i_bf16 *q_b_proj;       /* [N (Dn + Dr), Q] */
    const k3i_bf16 *kv_a_proj;      /* [C + Dr, H] kv_a_proj_with_mqa */
    const k3i_bf16 *kv_a_layernorm; /* [C] */
    const k3i_bf16 *kv_b_proj;      /* [N (Dn + Dv), C] */
    const k3i_bf16 *g_proj;         /* [N Dv, H] output gate; NULL in a draft */
    const k3i_bf16 *o_proj;         /* [H, N Dv] */
} k3i_mla_weights;

typedef struct {
    const k3i_bf16 *gate;         /* [E, H] router */
    const float *correction_bias; /* [E] */
    const k3i_bf16 *down_proj;    /* [Z, H] routed_expert_down_proj */
    const k3i_bf16 *norm;         /* [Z] routed_expert_norm */
    const k3i_bf16 *up_proj;      /* [H, Z] routed_expert_up_proj */
    k3i_mlp_weights shared;       /* I = n_shared_experts * M */
    k3i_expert_weights *experts;  /* [E] */
} k3i_moe_weights;

typedef struct {
    bool is_kda, is_moe;                      /* which members below are bound */
    const k3i_bf16 *input_layernorm;          /* [H] */
    const k3i_bf16 *post_attention_layernorm; /* [H] */
    const k3i_bf16 *attn_res_norm;            /* [H] self_attention_res_norm */
    const k3i_bf16 *attn_res_proj;            /* [H] self_attention_res_proj, stored [1, H] */
    const k3i_bf16 *mlp_res_norm;             /* [H] */
    const k3i_bf16 *mlp_res_proj;             /* [H] */
    k3i_kda_weights kda;                      /* if is_kda */
    k3i_mla_weights mla;                      /* if not */
    k3i_moe_weights moe;                      /* if is_moe */
    k3i_mlp_weights mlp;                      /* if not */
} k3i_layer_weights;

typedef struct {
    const k3i_bf16 *embed_tokens;    /* [V, H] */
    const k3i_bf16 *norm;            /* [H] */
    const k3i_bf16 *output_res_norm; /* [H] */
    const k3i_bf16 *output_res_proj; /* [H] */
    const k3i_bf16 *lm_head;         /* [V, H] */
    k3i_layer_weights *layers;       /* [L] */
} k3i_text_weights;

/* A tensor of the vision part in the type of its file; one pointer is set. The release stores BF16
 * (matrices at any alignment); converted files store F32, or F16, which becomes F32 here. */
typedef struct {
    const k3i_bf16 *bf16;
    const float *f32;
} k3i_weight;

/* Vision, letters of this part: F hidden, A qkv width, G intermediate, s merge size. */
typedef struct {
    k3i_weight norm0, norm1; /* [F] before attention, before the MLP */
    k3i_weight wqkv;         /* [3 A, F] rows q, k, v; inside each head-major */
    k3i_weight wo;           /* [F, A] */
    k3i_weight fc0;          /* [G, F] */
    k3i_weight fc1;          /* [F, G] */
} k3i_vision_block;

typedef struct {
    k3i_weight patch_proj;      /* [F, 3 p p] column = channel * p p + y * p + x */
    k3i_weight pos_emb;         /* [rows, columns, F] */
    k3i_vision_block *blocks;   /* [n_layers] */
    k3i_weight final_layernorm; /* [F] an RMSNorm */
    k3i_weight proj0;           /* [F s s, F s s] mm_projector.proj.0 */
    k3i_weight proj2;           /* [H, F s s] mm_projector.proj.2 */
    k3i_weight post_norm;       /* [H] */
} k3i_vision_weights;

/* A target, everything of it: the one struct that engine and tools open. */
typedef struct {
    k3i_config config;
    k3i_ckpt *ckpt;
    k3i_text_weights text;
    k3i_vision_weights vision; /* bound if config.has_vision */
    k3i_arena arena;           /* the arrays above and realigned vectors */
} k3i_target;

/* Opens folder `dir`: configuration, tensors, binding. On failure *ret is untouched. */
k3_status k3i_target_open(const char *dir, k3i_target *ret, k3i_err *err);
void k3i_target_done(k3i_target *target);

/* Grouped-query attention of the qwen3 draft. */
typedef struct {
    const k3i_bf16 *q_proj;          /* [N D, H] */
    const k3i_bf16 *k_proj, *v_proj; /* [K D, H] */
    const k3i_bf16 *o_proj;          /* [H, N D] */
    const k3i_bf16 *q_norm, *k_norm; /* [D] */
} k3i_gqa_weights;

typedef struct {
    const k3i_bf16 *input_layernorm, *post_attention_layernorm; /* [H] */
    k3i_mla_weights mla;                                        /* if is_mla */
    k3i_gqa_weights gqa;                                        /* if not */
    k3i_mlp_weights mlp;                                        /* SwiGLU */
} k3i_draft_layer;

typedef struct {
    const k3i_bf16 *context_proj;           /* [H, n_taps H] `context_proj` or `fc` */
    const k3i_bf16 *context_norm;           /* [H] `context_norm` or `hidden_norm` */
    const k3i_bf16 *tap_norm[K3I_MAX_TAPS]; /* [H] each, fc_norm.i; NULL without has_tap_norms */
    k3i_draft_layer *layers;                /* [L] */
    const k3i_bf16 *final_norm;             /* [H] `final_norm` or `norm` */
    const k3i_bf16 *markov_w1, *markov_w2;  /* [V, R] */
    const k3i_bf16 *confidence_proj;        /* [H + R] or [H]; NULL without has_confidence */
    const k3i_bf16 *confidence_bias;        /* [1] */
} k3i_draft_weights;

typedef struct {
    k3i_draft_config config;
    k3i_ckpt *ckpt;
    k3i_draft_weights weights;
    k3i_arena arena;
} k3i_draft_files;

/* Opens a draft for a target. Copies of the target's embedding and head in the file are ignored. */
k3_status k3i_draft_open(const char *dir, const k3i_config *target, k3i_draft_files *ret,
                         k3i_err *err);
void k3i_draft_done(k3i_draft_files *draft);

#endif
