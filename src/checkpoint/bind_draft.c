/* bind_draft.c: names and shapes of a DSpark draft (dspark.md 1.3-1.4). The file may carry copies
 * of the target's embedding and head, and a confidence head that the configuration does not enable:
 * those are known, and not read. */
#include "binder.h"

#include <stdio.h>

static k3i_gqa_weights bind_gqa(k3i_binder *b, const k3i_draft_config *c)
{
    size_t q = k3i_bind_product(b, c->n_heads, c->head_dim);
    size_t kv = k3i_bind_product(b, c->n_kv_heads, c->head_dim);
    return (k3i_gqa_weights){
        .q_proj = k3i_bind_matrix(b, "self_attn.q_proj.weight", q, c->hidden_size),
        .k_proj = k3i_bind_matrix(b, "self_attn.k_proj.weight", kv, c->hidden_size),
        .v_proj = k3i_bind_matrix(b, "self_attn.v_proj.weight", kv, c->hidden_size),
        .o_proj = k3i_bind_matrix(b, "self_attn.o_proj.weight", c->hidden_size, q),
        .q_norm = k3i_bind_vector(b, "self_attn.q_norm.weight", c->head_dim),
        .k_norm = k3i_bind_vector(b, "self_attn.k_norm.weight", c->head_dim),
    };
}

static void bind_layers(k3i_binder *b, const k3i_draft_config *c, k3i_draft_weights *w)
{
    w->layers = k3i_bind_array(b, c->n_layers, sizeof *w->layers);
    for (size_t i = 0; i < c->n_layers && b->st == K3_OK; i++) {
        k3i_draft_layer *l = &w->layers[i];
        k3i_binder_scope(b, "layers.%zu.", i);
        l->input_layernorm = k3i_bind_vector(b, "input_layernorm.weight", c->hidden_size);
        l->post_attention_layernorm =
            k3i_bind_vector(b, "post_attention_layernorm.weight", c->hidden_size);
        if (c->is_mla)
            l->mla = k3i_bind_mla(b, c->hidden_size, c->n_heads, c->q_lora_rank, c->kv_lora_rank,
                                  c->qk_nope_head_dim, c->qk_rope_head_dim, c->v_head_dim, false);
        else
            l->gqa = bind_gqa(b, c);
        l->mlp = k3i_bind_mlp(b, "mlp", c->intermediate_size, c->hidden_size);
    }
    k3i_binder_scope(b, "%s", "");
}

static void bind_weights(k3i_binder *b, const k3i_draft_config *c, k3i_draft_weights *w)
{
    size_t hidden = c->hidden_size;
    const char *const proj = c->is_mla ? "context_proj.weight" : "fc.weight";
    const char *const norm = c->is_mla ? "context_norm.weight" : "hidden_norm.weight";
    const char *const last = c->is_mla ? "final_norm.weight" : "norm.weight";
    w->context_proj = k3i_bind_matrix(b, proj, hidden, k3i_bind_product(b, c->n_taps, hidden));
    w->context_norm = k3i_bind_vector(b, norm, hidden);
    w->final_norm = k3i_bind_vector(b, last, hidden);
    for (size_t i = 0; c->has_tap_norms && i < c->n_taps; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%zu.weight", i);
        w->tap_norm[i] = k3i_bind_vector(b, name, hidden);
    }
    bind_layers(b, c, w);
    w->markov_w1 =
        k3i_bind_matrix(b, "markov_head.markov_w1.weight", c->vocab_size, c->markov_rank);
    w->markov_w2 =
        k3i_bind_matrix(b, "markov_head.markov_w2.weight", c->vocab_size, c->markov_rank);
    if (c->has_confidence) {
        size_t n = hidden + (c->confidence_with_markov ? c->markov_rank : 0);
        w->confidence_proj = k3i_bind_row(b, "confidence_head.proj.weight", n);
        w->confidence_bias = k3i_bind_vector(b, "confidence_head.proj.bias", 1);
    } else {
        k3i_binder_ignore(b, "confidence_head.");
    }
    k3i_binder_ignore(b, "embed_tokens.");
    k3i_binder_ignore(b, "lm_head.");
}

k3_status k3i_draft_open(const char *dir, const k3i_config *target, k3i_draft_files *ret,
                         k3i_err *err)
{
    k3i_draft_files d = {0};
    k3i_binder b;
    k3_status st = k3i_draft_config_read(dir, target, &d.config, err);
    if (st == K3_OK)
        st = k3i_ckpt_open(dir, &d.ckpt, err);
    if (st == K3_OK) {
        k3i_arena_init(&d.arena, K3I_BIND_ARENA_MAX);
        k3i_binder_begin(&b, d.ckpt, &d.arena, err);
        bind_weights(&b, &d.config, &d.weights);
        st = k3i_binder_end(&b);
    }
    if (st != K3_OK) {
        k3i_draft_done(&d);
        return st;
    }
    *ret = d;
    return K3_OK;
}

void k3i_draft_done(k3i_draft_files *draft)
{
    if (draft == NULL)
        return;
    k3i_ckpt_free(draft->ckpt);
    k3i_arena_done(&draft->arena);
    *draft = (k3i_draft_files){0};
}
