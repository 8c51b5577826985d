/* config.c: config.json of a target. What each field means is text-model 1 and vision.md 1; here it
 * is read, checked, and refused by name where it asks for something that is not computed. */
#include "config_read.h"
#include "map.h"

#include <stdio.h>
#include <string.h>

/* A dimension: products of two fit 64 bits; memory sets the real limit when tensors are bound. */
#define DIM K3I_DIM_MAX
#define GROUP 32 /* columns that share one MXFP4 scale */

void k3i_fields_skip_inert(k3i_fields *f)
{
    static const char *const inert[] = {
#define INERT(name) #name,
#include "config_fields.def"
#undef INERT
    };
    for (size_t i = 0; i < sizeof inert / sizeof inert[0]; i++)
        k3i_field_skip(f, inert[i]);
}

void k3i_field_dtype(k3i_fields *f)
{
    const char *const names[] = {"dtype", "torch_dtype"};
    for (size_t i = 0; i < 2; i++) {
        if (k3i_field_given(f, names[i]))
            k3i_field_must_be(f, names[i], "bfloat16");
        k3i_field_skip(f, names[i]);
    }
}

/* text-model 1.5: weights packed as MXFP4, groups of 32, activations untouched. Which tensors are
 * packed is decided by what is stored, so `targets` and `ignore` are not interpreted. */
static k3_status read_quant_group(const char *file, yyjson_val *obj, k3i_err *err)
{
    k3i_fields f;
    k3i_fields_begin(&f, file, "quantization_config.config_groups.*.", obj, err);
    k3i_field_must_be(&f, "format", "mxfp4-pack-quantized");
    k3i_field_must_be_null(&f, "input_activations");
    k3i_field_must_be_null(&f, "output_activations");
    k3i_field_skip(&f, "targets");
    yyjson_val *weights = k3i_field(&f, "weights");
    if (weights == NULL)
        k3i_field_fail(&f, "weights", "is missing");
    k3_status st = k3i_fields_end(&f);
    if (st != K3_OK)
        return st;
    k3i_fields_begin(&f, file, "quantization_config.config_groups.*.weights.", weights, err);
    (void)k3i_field_size(&f, "num_bits", 4, 4);
    k3i_field_must_be(&f, "type", "float");
    k3i_field_must_be(&f, "strategy", "group");
    (void)k3i_field_size(&f, "group_size", GROUP, GROUP);
    k3i_field_must_be(&f, "scale_dtype", "torch.uint8");
    k3i_field_must_be_bool(&f, "symmetric", true);
    k3i_field_must_be_bool(&f, "dynamic", false);
    k3i_field_must_be_null(&f, "zp_dtype");
    k3i_field_must_be_null(&f, "actorder");
    k3i_field_must_be_null(&f, "block_structure");
    k3i_field_skip(&f, "observer");
    k3i_field_skip(&f, "observer_kwargs");
    return k3i_fields_end(&f);
}

static k3_status read_quantization(const char *file, yyjson_val *obj, k3i_err *err)
{
    k3i_fields f;
    k3i_fields_begin(&f, file, "quantization_config.", obj, err);
    k3i_field_must_be(&f, "quant_method", "compressed-tensors");
    k3i_field_must_be(&f, "quantization_status", "compressed");
    k3i_field_must_be(&f, "format", "mxfp4-pack-quantized");
    k3i_field_must_be_null(&f, "kv_cache_scheme");
    k3i_field_must_be_empty(&f, "sparsity_config");
    k3i_field_must_be_empty(&f, "transform_config");
    k3i_field_skip(&f, "global_compression_ratio");
    k3i_field_skip(&f, "ignore");
    k3i_field_skip(&f, "version");
    yyjson_val *groups = k3i_field(&f, "config_groups");
    if (!yyjson_is_obj(groups) || yyjson_obj_size(groups) != 1)
        k3i_field_fail(&f, "config_groups", "must be an object with exactly one group");
    k3_status st = k3i_fields_end(&f);
    if (st != K3_OK)
        return st;
    yyjson_obj_iter it = yyjson_obj_iter_with(groups);
    return read_quant_group(file, yyjson_obj_iter_get_val(yyjson_obj_iter_next(&it)), err);
}

/* Marks the 1-based layers of one list in seen[0..n_layers). */
static void read_layer_list(k3i_fields *f, const char *key, size_t n_layers, uint8_t mark,
                            uint8_t *seen)
{
    yyjson_val *list = k3i_field(f, key);
    size_t i, n;
    yyjson_val *v;
    if (!yyjson_is_arr(list)) {
        k3i_field_fail(f, key, "is missing or not an array");
        return;
    }
    yyjson_arr_foreach(list, i, n, v)
    {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) < 1 || yyjson_get_uint(v) > n_layers) {
            k3i_field_fail(f, key, "holds something else than layer numbers 1..%zu", n_layers);
            return;
        }
        size_t layer = (size_t)yyjson_get_uint(v) - 1;
        if (seen[layer] != 0) {
            k3i_field_fail(f, key, "names layer %zu, which is listed already", layer + 1);
            return;
        }
        seen[layer] = mark;
    }
}

enum { SEEN_KDA = 1, SEEN_MLA = 2 };

static void read_layer_map(k3i_fields *f, k3i_config *cfg)
{
    /* Before any memory is asked for: the lists must be able to cover the layers. */
    size_t listed =
        yyjson_arr_size(f->obj == NULL ? NULL : yyjson_obj_get(f->obj, "kda_layers")) +
        yyjson_arr_size(f->obj == NULL ? NULL : yyjson_obj_get(f->obj, "full_attn_layers"));
    if (listed != cfg->n_layers) {
        k3i_field_fail(f, "kda_layers",
                       "and full_attn_layers list %zu layers, num_hidden_layers is %zu", listed,
                       cfg->n_layers);
    }
    if (f->st != K3_OK)
        return;
    uint8_t *seen = k3i_alloc_zero(cfg->n_layers);
    cfg->is_kda = k3i_alloc_array(cfg->n_layers, sizeof *cfg->is_kda);
    cfg->is_moe = k3i_alloc_array(cfg->n_layers, sizeof *cfg->is_moe);
    if (seen == NULL || cfg->is_kda == NULL || cfg->is_moe == NULL) {
        f->st =
            k3i_fail(f->err, K3_E_NOMEM, "%s: no memory for %zu layers", f->file, cfg->n_layers);
        k3i_free(seen);
        return;
    }
    read_layer_list(f, "kda_layers", cfg->n_layers, SEEN_KDA, seen);
    read_layer_list(f, "full_attn_layers", cfg->n_layers, SEEN_MLA, seen);
    for (size_t i = 0; i < cfg->n_layers; i++) {
        cfg->is_kda[i] = seen[i] == SEEN_KDA;
        cfg->n_kda_layers += seen[i] == SEEN_KDA;
        cfg->n_mla_layers += seen[i] == SEEN_MLA;
    }
    k3i_free(seen);
}

static k3_status read_linear_attn(const char *file, yyjson_val *obj, k3i_config *cfg, k3i_err *err)
{
    k3i_fields f;
    k3i_fields_begin(&f, file, "linear_attn_config.", obj, err);
    cfg->kda_heads = k3i_field_size(&f, "num_heads", 1, DIM);
    cfg->kda_head_dim = k3i_field_size(&f, "head_dim", 1, DIM);
    cfg->conv_taps = k3i_field_size(&f, "short_conv_kernel_size", 1, DIM);
    /* Above -5 the decay of one token stays representable; 0 would switch the gate off. */
    cfg->gate_lower_bound = (float)k3i_field_number(&f, "gate_lower_bound", -5.0, -1e-6);
    k3i_field_must_be_bool(&f, "use_full_rank_gate", true);
    read_layer_map(&f, cfg);
    return k3i_fields_end(&f);
}

static void read_mla(k3i_fields *f, k3i_config *cfg)
{
    cfg->n_heads = k3i_field_size(f, "num_attention_heads", 1, DIM);
    (void)k3i_field_size(f, "num_key_value_heads", cfg->n_heads, cfg->n_heads);
    cfg->q_lora_rank = k3i_field_size(f, "q_lora_rank", 1, DIM);
    cfg->kv_lora_rank = k3i_field_size(f, "kv_lora_rank", 1, DIM);
    cfg->qk_nope_head_dim = k3i_field_size(f, "qk_nope_head_dim", 1, DIM);
    cfg->qk_rope_head_dim = k3i_field_size(f, "qk_rope_head_dim", 1, DIM);
    cfg->v_head_dim = k3i_field_size(f, "v_head_dim", 1, DIM);
    k3i_field_must_be_bool(f, "mla_use_nope", true);
    k3i_field_must_be_bool(f, "mla_use_output_gate", true);
    /* Supplied by a configuration class and meaningless without rotation. */
    k3i_field_skip(f, "head_dim");
    k3i_field_skip(f, "rope_theta");
    k3i_field_must_be_null(f, "rope_scaling");
    k3i_field_must_be_empty(f, "rope_parameters");
}

static void read_moe(k3i_fields *f, k3i_config *cfg)
{
    cfg->n_experts = k3i_field_size(f, "num_experts", 1, DIM);
    cfg->n_experts_per_token = k3i_field_size(f, "num_experts_per_token", 1, cfg->n_experts);
    cfg->n_shared_experts = k3i_field_size(f, "num_shared_experts", 1, DIM);
    cfg->moe_intermediate_size = k3i_field_size(f, "moe_intermediate_size", 1, DIM);
    cfg->routed_hidden_size = k3i_field_size(f, "routed_expert_hidden_size", 1, DIM);
    k3i_field_must_be_bool(f, "latent_moe_use_norm", true);
    size_t first_dense = k3i_field_size(f, "first_k_dense_replace", 0, DIM);
    size_t freq = k3i_field_size(f, "moe_layer_freq", 1, DIM);
    k3i_field_must_be(f, "moe_router_activation_func", "sigmoid");
    cfg->moe_renormalize = k3i_field_bool(f, "moe_renormalize");
    cfg->routed_scaling_factor = (float)k3i_field_number(f, "routed_scaling_factor", 1e-6, 1e6);
    k3i_field_must_be(f, "topk_method", "noaux_tc");
    cfg->n_expert_groups = k3i_field_size(f, "num_expert_group", 1, cfg->n_experts);
    cfg->topk_groups = k3i_field_size(f, "topk_group", 1, cfg->n_expert_groups);
    bool grouped = k3i_field_bool(f, "use_grouped_topk");
    if (f->st != K3_OK)
        return;
    if (cfg->moe_intermediate_size % GROUP != 0)
        k3i_field_fail(f, "moe_intermediate_size", "is no multiple of %d, the MXFP4 group", GROUP);
    if (cfg->routed_hidden_size % GROUP != 0)
        k3i_field_fail(f, "routed_expert_hidden_size", "is no multiple of %d, the MXFP4 group",
                       GROUP);
    if (cfg->n_expert_groups > 1 && !grouped)
        k3i_field_fail(f, "num_expert_group", "is above 1 while use_grouped_topk is false");
    if (cfg->n_experts % cfg->n_expert_groups != 0 ||
        (cfg->n_expert_groups > 1 && cfg->n_experts / cfg->n_expert_groups < 2))
        k3i_field_fail(f, "num_expert_group",
                       "does not split the experts into groups of 2 or more");
    else if (cfg->n_experts_per_token > cfg->n_experts / cfg->n_expert_groups * cfg->topk_groups)
        k3i_field_fail(f, "topk_group", "leaves fewer experts than num_experts_per_token");
    for (size_t i = 0; i < cfg->n_layers && f->st == K3_OK; i++) {
        cfg->is_moe[i] = i >= first_dense && i % freq == 0;
        cfg->n_moe_layers += cfg->is_moe[i];
    }
}

/* A cap whose absence or 0 means `fallback` (text-model 1.2). */
static float read_cap(k3i_fields *f, const char *key, float fallback)
{
    if (!k3i_field_given(f, key)) {
        k3i_field_skip(f, key);
        return fallback;
    }
    float x = (float)k3i_field_number(f, key, 0.0, 1e6);
    return x > 0.0f ? x : fallback;
}

/* The fields of text_config; `outer` holds a second place for quantization_config, or is NULL. */
static k3_status read_text(const char *file, yyjson_val *obj, k3i_fields *outer, k3i_config *cfg,
                           k3i_err *err)
{
    k3i_fields f;
    k3i_fields_begin(&f, file, outer != NULL ? "text_config." : "", obj, err);
    k3i_field_must_be(&f, "model_type", "kimi_linear");
    k3i_field_dtype(&f);
    cfg->vocab_size = k3i_field_size(&f, "vocab_size", 1, DIM);
    cfg->hidden_size = k3i_field_size(&f, "hidden_size", 1, DIM);
    cfg->n_layers = k3i_field_size(&f, "num_hidden_layers", 1, DIM);
    cfg->intermediate_size = k3i_field_size(&f, "intermediate_size", 1, DIM);
    cfg->max_position_embeddings = k3i_field_size(&f, "max_position_embeddings", 1, DIM);
    k3i_field_must_be(&f, "hidden_act", "situ");
    cfg->situ_beta = read_cap(&f, "activation_situ_beta", 1.0f);
    cfg->situ_linear_beta = read_cap(&f, "activation_situ_linear_beta", 0.0f);
    cfg->rms_norm_eps = (float)k3i_field_number(&f, "rms_norm_eps", 1e-12, 1.0);
    cfg->latent_norm_eps = 1e-6f;
    cfg->attn_res_block_size = k3i_field_size(&f, "attn_res_block_size", 1, DIM);
    (void)k3i_field_size(&f, "num_nextn_predict_layers", 0, 0);
    k3i_field_must_be_bool(&f, "tie_word_embeddings", false);
    cfg->bos_token_id = k3i_field_token(&f, "bos_token_id", cfg->vocab_size);
    cfg->eos_token_id = k3i_field_token(&f, "eos_token_id", cfg->vocab_size);
    cfg->pad_token_id = k3i_field_token(&f, "pad_token_id", cfg->vocab_size);
    read_mla(&f, cfg);
    yyjson_val *linear = k3i_field(&f, "linear_attn_config");
    if (linear == NULL)
        k3i_field_fail(&f, "linear_attn_config", "is missing");
    if (f.st == K3_OK)
        f.st = read_linear_attn(file, linear, cfg, err);
    read_moe(&f, cfg);
    yyjson_val *quant[2] = {k3i_field(&f, "quantization_config"),
                            outer != NULL ? k3i_field(outer, "quantization_config") : NULL};
    if (quant[0] == NULL && quant[1] == NULL && cfg->n_moe_layers > 0)
        k3i_field_fail(&f, "quantization_config", "is missing, and experts must be MXFP4");
    for (size_t i = 0; i < 2; i++) {
        if (quant[i] != NULL && f.st == K3_OK)
            f.st = read_quantization(file, quant[i], err);
    }
    k3i_fields_skip_inert(&f);
    return k3i_fields_end(&f);
}

static k3_status read_vision(const char *file, yyjson_val *obj, size_t text_hidden,
                             k3i_vision_config *vis, k3i_err *err)
{
    k3i_fields f;
    k3i_fields_begin(&f, file, "vision_config.", obj, err);
    vis->patch_size = k3i_field_size(&f, "patch_size", 1, 4096);
    vis->hidden_size = k3i_field_size(&f, "vt_hidden_size", 1, DIM);
    (void)k3i_field_size(&f, "mm_hidden_size", vis->hidden_size, vis->hidden_size);
    vis->qkv_hidden_size = k3i_field_size(&f, "qkv_hidden_size", 1, DIM);
    vis->intermediate_size = k3i_field_size(&f, "vt_intermediate_size", 1, DIM);
    vis->n_heads = k3i_field_size(&f, "vt_num_attention_heads", 1, vis->qkv_hidden_size);
    vis->n_layers = k3i_field_size(&f, "vt_num_hidden_layers", 1, DIM);
    vis->pos_height = k3i_field_size(&f, "init_pos_emb_height", 1, 65536);
    vis->pos_width = k3i_field_size(&f, "init_pos_emb_width", 1, 65536);
    vis->pos_time = k3i_field_size(&f, "init_pos_emb_time", 1, 65536);
    vis->text_hidden_size = k3i_field_size(&f, "text_hidden_size", text_hidden, text_hidden);
    vis->projector_eps = (float)k3i_field_number(&f, "projector_ln_eps", 1e-12, 1.0);
    k3i_field_must_be(&f, "activation_func", "gelu_pytorch_tanh");
    k3i_field_must_be(&f, "merge_type", "sd2_tpool");
    k3i_field_must_be(&f, "mlp_type", "mlp2");
    k3i_field_must_be(&f, "mm_projector_type", "patchmergerv2");
    k3i_field_must_be(&f, "norm_type", "rmsnorm");
    k3i_field_must_be(&f, "pos_emb_interpolation_mode", "bilinear");
    k3i_field_must_be(&f, "pos_emb_type", "divided_fixed");
    k3i_field_must_be(&f, "projector_hidden_act", "gelu");
    k3i_field_must_be_bool(&f, "attn_bias", false);
    k3i_field_must_be_bool(&f, "linear_bias", false);
    k3i_field_must_be_bool(&f, "patch_embed_proj_bias", false);
    yyjson_val *merge = k3i_field(&f, "merge_kernel_size");
    yyjson_val *rows = yyjson_arr_get(merge, 0), *cols = yyjson_arr_get(merge, 1);
    if (yyjson_arr_size(merge) != 2 || !yyjson_is_uint(rows) || !yyjson_equals(rows, cols) ||
        yyjson_get_uint(rows) < 1 || yyjson_get_uint(rows) > 64)
        k3i_field_fail(&f, "merge_kernel_size", "must be two equal integers from 1 to 64");
    vis->merge_size = (size_t)yyjson_get_uint(rows);
    vis->head_dim = vis->qkv_hidden_size / vis->n_heads;
    if (vis->head_dim * vis->n_heads != vis->qkv_hidden_size || vis->head_dim % 4 != 0)
        k3i_field_fail(&f, "qkv_hidden_size", "is not heads times a multiple of 4");
    k3i_fields_skip_inert(&f);
    return k3i_fields_end(&f);
}

/* The wrapper's own copies of token ids must agree with those of text_config where both are given.
 */
static void check_token(k3i_fields *f, const char *key, size_t vocab, int32_t *text)
{
    int32_t id = k3i_field_token(f, key, vocab);
    if (id < 0)
        return;
    if (*text >= 0 && *text != id)
        k3i_field_fail(f, key, "is %d, but text_config says %d", (int)id, (int)*text);
    *text = id;
}

static k3_status read_nested(const char *file, yyjson_val *root, k3i_config *cfg, k3i_err *err)
{
    k3i_fields f;
    cfg->nested = true;
    k3i_fields_begin(&f, file, "", root, err);
    k3i_field_must_be(&f, "model_type", "kimi_k3");
    k3i_field_dtype(&f);
    if (k3i_field_given(&f, "tie_word_embeddings"))
        k3i_field_must_be_bool(&f, "tie_word_embeddings", false);
    k3i_field_skip(&f, "tie_word_embeddings");
    yyjson_val *text = k3i_field(&f, "text_config");
    if (text == NULL)
        k3i_field_fail(&f, "text_config", "is missing");
    if (f.st == K3_OK)
        f.st = read_text(file, text, &f, cfg, err);
    check_token(&f, "bos_token_id", cfg->vocab_size, &cfg->bos_token_id);
    check_token(&f, "eos_token_id", cfg->vocab_size, &cfg->eos_token_id);
    check_token(&f, "pad_token_id", cfg->vocab_size, &cfg->pad_token_id);
    cfg->media_token_id = k3i_field_token(&f, "media_placeholder_token_id", cfg->vocab_size);
    cfg->has_vision = k3i_field_given(&f, "vision_config");
    yyjson_val *vision = k3i_field(&f, "vision_config");
    if (cfg->has_vision && f.st == K3_OK)
        f.st = read_vision(file, vision, cfg->hidden_size, &cfg->vision, err);
    if (cfg->has_vision && cfg->media_token_id < 0)
        k3i_field_fail(&f, "media_placeholder_token_id",
                       "is missing, but there is a vision_config");
    k3i_fields_skip_inert(&f);
    return k3i_fields_end(&f);
}

k3_status k3i_config_parse(const char *name, const char *text, size_t n, k3i_config *ret,
                           k3i_err *err)
{
    yyjson_doc *doc;
    k3i_config cfg = {.media_token_id = -1};
    k3_status st = k3i_json_parse(name, text, n, K3_E_CONFIG, &doc, err);
    if (st != K3_OK)
        return st;
    yyjson_val *root = yyjson_doc_get_root(doc);
    yyjson_val *type = yyjson_obj_get(root, "model_type");
    if (k3i_json_is(type, "kimi_k3"))
        st = read_nested(name, root, &cfg, err);
    else if (k3i_json_is(type, "kimi_linear"))
        st = read_text(name, root, NULL, &cfg, err);
    else
        st =
            k3i_fail(err, K3_E_CONFIG,
                     "%s: field 'model_type' is '%.60s', supported are 'kimi_k3' and 'kimi_linear'",
                     name, yyjson_is_str(type) ? yyjson_get_str(type) : "");
    yyjson_doc_free(doc);
    if (st != K3_OK) {
        k3i_config_done(&cfg);
        return st;
    }
    *ret = cfg;
    return K3_OK;
}

k3_status k3i_config_read(const char *dir, k3i_config *ret, k3i_err *err)
{
    char path[K3I_PATH];
    char *text;
    size_t n;
    k3_status st = k3i_read_in(dir, "config.json", K3I_CONFIG_MAX_BYTES, path, &text, &n, err);
    if (st != K3_OK)
        return st;
    st = k3i_config_parse(path, text, n, ret, err);
    k3i_free(text);
    return st;
}

void k3i_config_done(k3i_config *cfg)
{
    if (cfg == NULL)
        return;
    k3i_free(cfg->is_kda);
    k3i_free(cfg->is_moe);
    cfg->is_kda = cfg->is_moe = NULL;
}
