/* bind.c: names and shapes of the target (text-model 3, vision 4). Nothing in a checkpoint is
 * fused or transposed. */
#include "binder.h"

#include <stdio.h>
#include <string.h>

static k3i_kda_weights bind_kda(k3i_binder *b, const k3i_config *c)
{
    size_t width = k3i_bind_product(b, c->kda_heads, c->kda_head_dim);
    size_t hidden = c->hidden_size, d = c->kda_head_dim;
    const size_t conv[] = {width, 1, c->conv_taps};
    return (k3i_kda_weights){
        .q_proj = k3i_bind_matrix(b, "self_attn.q_proj.weight", width, hidden),
        .k_proj = k3i_bind_matrix(b, "self_attn.k_proj.weight", width, hidden),
        .v_proj = k3i_bind_matrix(b, "self_attn.v_proj.weight", width, hidden),
        .q_conv = k3i_bind_shape(b, "self_attn.q_conv1d.weight", K3I_DTYPE_F32, conv, 3, true),
        .k_conv = k3i_bind_shape(b, "self_attn.k_conv1d.weight", K3I_DTYPE_F32, conv, 3, true),
        .v_conv = k3i_bind_shape(b, "self_attn.v_conv1d.weight", K3I_DTYPE_F32, conv, 3, true),
        .f_a_proj = k3i_bind_matrix(b, "self_attn.f_a_proj.weight", d, hidden),
        .f_b_proj = k3i_bind_matrix(b, "self_attn.f_b_proj.weight", width, d),
        .dt_bias = k3i_bind_f32(b, "self_attn.dt_bias", width),
        .b_proj = k3i_bind_matrix(b, "self_attn.b_proj.weight", c->kda_heads, hidden),
        .o_norm = k3i_bind_f32(b, "self_attn.o_norm.weight", d),
        .g_proj = k3i_bind_matrix(b, "self_attn.g_proj.weight", width, hidden),
        .o_proj = k3i_bind_matrix(b, "self_attn.o_proj.weight", hidden, width),
    };
}

/* A_log is per head and stored longer; the tail must be zero. A nonzero tail would mean that it is
 * per channel after all (text-model 3.3). */
static const float *bind_a_log(k3i_binder *b, size_t heads)
{
    char name[K3I_ERR_TEXT];
    snprintf(name, sizeof name, "%sself_attn.A_log", b->scope);
    const k3i_tensor *t = b->st == K3_OK ? k3i_ckpt_find(b->ck, name) : NULL;
    size_t stored = t != NULL && t->n_dims == 1 && t->shape[0] > heads ? t->shape[0] : heads;
    const float *a = k3i_bind_f32(b, "self_attn.A_log", stored);
    for (size_t i = heads; b->st == K3_OK && i < stored; i++) {
        if (a[i] != 0.0f) {
            b->st = k3i_fail(b->err, K3_E_CHECKPOINT,
                             "%s: tensor '%s' holds %g at %zu, beyond its %zu heads, where zeros "
                             "belong",
                             k3i_ckpt_dir(b->ck), name, (double)a[i], i, heads);
        }
    }
    return a;
}

static void bind_experts(k3i_binder *b, const k3i_config *c, k3i_moe_weights *moe)
{
    size_t inner = c->moe_intermediate_size, latent = c->routed_hidden_size;
    moe->experts = k3i_bind_array(b, c->n_experts, sizeof *moe->experts);
    for (size_t e = 0; e < c->n_experts && b->st == K3_OK; e++) {
        char name[64];
        snprintf(name, sizeof name, "block_sparse_moe.experts.%zu.w1", e);
        moe->experts[e].w1 = k3i_bind_mxfp4(b, name, inner, latent);
        name[strlen(name) - 1] = '3';
        moe->experts[e].w3 = k3i_bind_mxfp4(b, name, inner, latent);
        name[strlen(name) - 1] = '2';
        moe->experts[e].w2 = k3i_bind_mxfp4(b, name, latent, inner);
    }
}

static k3i_moe_weights bind_moe(k3i_binder *b, const k3i_config *c)
{
#define MOE "block_sparse_moe."
    size_t shared = k3i_bind_product(b, c->n_shared_experts, c->moe_intermediate_size);
    size_t hidden = c->hidden_size, latent = c->routed_hidden_size;
    k3i_moe_weights moe = {
        .gate = k3i_bind_matrix(b, MOE "gate.weight", c->n_experts, hidden),
        .correction_bias = k3i_bind_f32(b, MOE "gate.e_score_correction_bias", c->n_experts),
        .down_proj = k3i_bind_matrix(b, MOE "routed_expert_down_proj.weight", latent, hidden),
        .norm = k3i_bind_vector(b, MOE "routed_expert_norm.weight", latent),
        .up_proj = k3i_bind_matrix(b, MOE "routed_expert_up_proj.weight", hidden, latent),
        .shared = k3i_bind_mlp(b, MOE "shared_experts", shared, hidden),
    };
    bind_experts(b, c, &moe);
    return moe;
#undef MOE
}

static void bind_layer(k3i_binder *b, const k3i_config *c, size_t i, k3i_layer_weights *w)
{
    size_t hidden = c->hidden_size;
    *w = (k3i_layer_weights){
        .is_kda = c->is_kda[i],
        .is_moe = c->is_moe[i],
        .input_layernorm = k3i_bind_vector(b, "input_layernorm.weight", hidden),
        .post_attention_layernorm = k3i_bind_vector(b, "post_attention_layernorm.weight", hidden),
        .attn_res_norm = k3i_bind_vector(b, "self_attention_res_norm.weight", hidden),
        .attn_res_proj = k3i_bind_row(b, "self_attention_res_proj.weight", hidden),
        .mlp_res_norm = k3i_bind_vector(b, "mlp_res_norm.weight", hidden),
        .mlp_res_proj = k3i_bind_row(b, "mlp_res_proj.weight", hidden),
    };
    if (w->is_kda) {
        w->kda = bind_kda(b, c);
        w->kda.a_log = bind_a_log(b, c->kda_heads);
    } else {
        w->mla = k3i_bind_mla(b, hidden, c->n_heads, c->q_lora_rank, c->kv_lora_rank,
                              c->qk_nope_head_dim, c->qk_rope_head_dim, c->v_head_dim, true);
    }
    if (w->is_moe)
        w->moe = bind_moe(b, c);
    else
        w->mlp = k3i_bind_mlp(b, "mlp", c->intermediate_size, hidden);
}

static void bind_text(k3i_binder *b, const k3i_config *c, k3i_text_weights *w)
{
    /* A flat configuration may come with either naming. */
    const char *prefix = "language_model.";
    if (!c->nested && k3i_ckpt_find(b->ck, "language_model.lm_head.weight") == NULL)
        prefix = "";
    size_t hidden = c->hidden_size, vocab = c->vocab_size;
    k3i_binder_scope(b, "%s", prefix);
    *w = (k3i_text_weights){
        .embed_tokens = k3i_bind_matrix(b, "model.embed_tokens.weight", vocab, hidden),
        .norm = k3i_bind_vector(b, "model.norm.weight", hidden),
        .output_res_norm = k3i_bind_vector(b, "model.output_attn_res_norm.weight", hidden),
        .output_res_proj = k3i_bind_row(b, "model.output_attn_res_proj.weight", hidden),
        .lm_head = k3i_bind_matrix(b, "lm_head.weight", vocab, hidden),
        .layers = k3i_bind_array(b, c->n_layers, sizeof *w->layers),
    };
    for (size_t i = 0; i < c->n_layers && b->st == K3_OK; i++) {
        k3i_binder_scope(b, "%smodel.layers.%zu.", prefix, i);
        bind_layer(b, c, i, &w->layers[i]);
    }
}

static k3i_weight matrix(k3i_binder *b, const char *name, size_t rows, size_t cols)
{
    return k3i_bind_weight(b, name, (const size_t[]){rows, cols}, 2);
}

static k3i_weight vector(k3i_binder *b, const char *name, size_t n)
{
    return k3i_bind_weight(b, name, &n, 1);
}

static void bind_vision(k3i_binder *b, const k3i_vision_config *v, k3i_vision_weights *w)
{
    size_t f = v->hidden_size, a = v->qkv_hidden_size;
    size_t merged = k3i_bind_product(b, f, v->merge_size * v->merge_size);
    const size_t patch[] = {f, 3, v->patch_size, v->patch_size};
    const size_t table[] = {v->pos_height, v->pos_width, f};
    k3i_binder_scope(b, "vision_tower.");
    *w = (k3i_vision_weights){
        .patch_proj = k3i_bind_weight(b, "patch_embed.proj.weight", patch, 4),
        .pos_emb = k3i_bind_weight(b, "patch_embed.pos_emb.weight", table, 3),
        .final_layernorm = vector(b, "encoder.final_layernorm.weight", f),
        .blocks = k3i_bind_array(b, v->n_layers, sizeof *w->blocks),
    };
    for (size_t i = 0; i < v->n_layers && b->st == K3_OK; i++) {
        k3i_binder_scope(b, "vision_tower.encoder.blocks.%zu.", i);
        w->blocks[i] = (k3i_vision_block){
            .norm0 = vector(b, "norm0.weight", f),
            .norm1 = vector(b, "norm1.weight", f),
            .wqkv = matrix(b, "wqkv.weight", 3 * a, f),
            .wo = matrix(b, "wo.weight", f, a),
            .fc0 = matrix(b, "mlp.fc0.weight", v->intermediate_size, f),
            .fc1 = matrix(b, "mlp.fc1.weight", f, v->intermediate_size),
        };
    }
    k3i_binder_scope(b, "mm_projector.");
    w->proj0 = matrix(b, "proj.0.weight", merged, merged);
    w->proj2 = matrix(b, "proj.2.weight", v->text_hidden_size, merged);
    w->post_norm = vector(b, "post_norm.weight", v->text_hidden_size);
}

k3_status k3i_target_open(const char *dir, k3i_target *ret, k3i_err *err)
{
    k3i_target t = {0};
    k3i_binder b;
    k3_status st = k3i_config_read(dir, &t.config, err);
    if (st == K3_OK)
        st = k3i_ckpt_open(dir, &t.ckpt, err);
    if (st == K3_OK) {
        k3i_arena_init(&t.arena, K3I_BIND_ARENA_MAX);
        k3i_binder_begin(&b, t.ckpt, &t.arena, err);
        bind_text(&b, &t.config, &t.text);
        if (t.config.has_vision)
            bind_vision(&b, &t.config.vision, &t.vision);
        st = k3i_binder_end(&b);
    }
    if (st != K3_OK) {
        k3i_target_done(&t);
        return st;
    }
    *ret = t;
    return K3_OK;
}

void k3i_target_done(k3i_target *target)
{
    if (target == NULL)
        return;
    k3i_config_done(&target->config);
    k3i_ckpt_free(target->ckpt);
    k3i_arena_done(&target->arena);
    *target = (k3i_target){0};
}
