/* config.h: config.json of a target (nested `kimi_k3` or flat `kimi_linear`) and of a draft.
 *
 * Every field that affects the computation is read and checked; values that this code does not
 * compute are refused by name, unknown fields too, and the inert fields that libraries write are
 * skipped by name (config_fields.def). Sizes are limited by memory only. */
#ifndef K3I_CONFIG_H
#define K3I_CONFIG_H

#include "alloc.h"

/* The vision tower and projector (vision.md 1.2). */
typedef struct {
    size_t patch_size;            /* pixels */
    size_t hidden_size;           /* vt_hidden_size = mm_hidden_size */
    size_t qkv_hidden_size;       /* heads * head_dim, not the hidden size */
    size_t intermediate_size;     /* vt_intermediate_size */
    size_t n_heads, head_dim;     /* head_dim is a multiple of 4 */
    size_t n_layers;              /* vt_num_hidden_layers */
    size_t pos_height, pos_width; /* grid of the learned position table */
    size_t pos_time;              /* most frames */
    size_t merge_size;            /* patches per side merged into one row */
    size_t text_hidden_size;      /* equals the text model's hidden_size */
    float projector_eps;          /* post_norm only */
} k3i_vision_config;

typedef struct {
    /* Sizes; the letter is the one of the specification and of the shapes in bind.h. */
    size_t vocab_size;        /* V */
    size_t hidden_size;       /* H */
    size_t n_layers;          /* L */
    size_t intermediate_size; /* I: dense MLP */
    size_t max_position_embeddings;

    float situ_beta;            /* gate cap */
    float situ_linear_beta;     /* up cap; 0 leaves `up` as it is */
    float rms_norm_eps;         /* all norms but two */
    float latent_norm_eps;      /* q_a and kv_a norms: 1e-6, not a field of the file */
    size_t attn_res_block_size; /* layers per AttnRes block, >= 1 */

    /* MLA */
    size_t n_heads;          /* N */
    size_t q_lora_rank;      /* Q */
    size_t kv_lora_rank;     /* C */
    size_t qk_nope_head_dim; /* Dn */
    size_t qk_rope_head_dim; /* Dr; not rotated in the target */
    size_t v_head_dim;       /* Dv */

    /* KDA */
    size_t kda_heads;       /* n */
    size_t kda_head_dim;    /* d: key and value width */
    size_t conv_taps;       /* short_conv_kernel_size, >= 1 */
    float gate_lower_bound; /* in [-5, 0) */

    /* MoE */
    size_t n_experts;             /* E */
    size_t n_experts_per_token;   /* <= E, and <= those of the groups kept */
    size_t n_shared_experts;      /* stored as one MLP of width n_shared * M */
    size_t moe_intermediate_size; /* M, multiple of 32 */
    size_t routed_hidden_size;    /* Z: width of the latent, multiple of 32 */
    size_t n_expert_groups;       /* 1: no groups; divides E */
    size_t topk_groups;           /* groups kept if there are several */
    bool moe_renormalize;         /* divide the weights by their sum */
    float routed_scaling_factor;

    /* [n_layers] the layer map, 0-based */
    bool *is_kda; /* else MLA */
    bool *is_moe; /* else dense MLP */
    size_t n_kda_layers, n_mla_layers, n_moe_layers;

    int32_t bos_token_id, eos_token_id, pad_token_id; /* -1 where null or absent */
    int32_t media_token_id; /* media_placeholder_token_id, -1 if there is none */

    bool nested; /* tensors carry the prefix "language_model." */
    bool has_vision;
    k3i_vision_config vision; /* valid if has_vision */
} k3i_config;

/* Reads dir/config.json. On success *ret owns memory: k3i_config_done. Errors: K3_E_IO,
 * K3_E_CONFIG with the field named, K3_E_LIMIT, K3_E_NOMEM. */
k3_status k3i_config_read(const char *dir, k3i_config *ret, k3i_err *err);
/* The same from text; `name` is what errors call it. */
k3_status k3i_config_parse(const char *name, const char *text, size_t n, k3i_config *ret,
                           k3i_err *err);
void k3i_config_done(k3i_config *cfg);

/* Which hidden state the draft taps (dspark.md 2.2). */
typedef enum { K3I_STREAM_PREFIX, K3I_STREAM_ATTN_RES } k3i_stream;

#define K3I_MAX_TAPS 64  /* published drafts have 3 and 5 */
#define K3I_MAX_DRAFT 16 /* tokens per block, num_speculative_tokens of k3.h */

/* A DSpark draft (dspark.md 1.2): MLA with RoPE (`k3_dspark`) or grouped-query (`qwen3`). */
typedef struct {
    bool is_mla;                      /* else grouped-query attention with q/k norms */
    size_t vocab_size;                /* V, equals the target's */
    size_t hidden_size;               /* H, equals the target's */
    size_t n_layers;                  /* L */
    size_t intermediate_size;         /* I: SwiGLU */
    size_t n_heads;                   /* N */
    size_t n_kv_heads;                /* K: N for MLA, divides N for GQA */
    size_t q_lora_rank, kv_lora_rank; /* MLA: Q, C */
    size_t qk_nope_head_dim, qk_rope_head_dim, v_head_dim; /* MLA: Dn, Dr, Dv */
    size_t head_dim;                                       /* GQA: D, all of it rotated */
    size_t max_position_embeddings;
    float rms_norm_eps;

    double rope_theta;
    bool rope_interleaved; /* pairs (2i, 2i+1); else halves (i, i + D/2) */
    bool has_yarn;         /* the next fields are valid only then */
    double yarn_factor;
    double yarn_original_max; /* original_max_position_embeddings */
    double yarn_beta_fast, yarn_beta_slow;
    double yarn_mscale, yarn_mscale_all_dim;
    double yarn_attention_factor; /* 0: not given */

    size_t n_taps;
    size_t taps[K3I_MAX_TAPS]; /* 0-based target layers, tapped after the layer, ascending */
    k3i_stream stream;
    bool has_tap_norms; /* fc_norm: RMSNorm on each tap */
    bool causal;        /* mask inside the block */
    int32_t mask_token_id;
    size_t block_size;           /* trained width, 0 if the file does not say */
    size_t markov_rank;          /* R */
    bool has_confidence;         /* confidence_head.* is in the file */
    bool confidence_with_markov; /* its input is [h ; W1[x]], else [h] */
} k3i_draft_config;

/* Reads dir/config.json of a draft and checks it against its target. */
k3_status k3i_draft_config_read(const char *dir, const k3i_config *target, k3i_draft_config *ret,
                                k3i_err *err);
k3_status k3i_draft_config_parse(const char *name, const char *text, size_t n,
                                 const k3i_config *target, k3i_draft_config *ret, k3i_err *err);

#endif
