/* draft_config.c: config.json of a DSpark draft (dspark.md 1.1-1.2), MLA (`k3_dspark`) or
 * grouped-query
 * (`qwen3`). Published drafts are not interchangeable: taps, stream, mask id, causality, rank and
 * RoPE are all read here, none is inferred from another but the default of the stream. */
#include "config_read.h"
#include "map.h"

#include <stdio.h>
#include <string.h>

#define DIM K3I_DIM_MAX

/* The first of `keys` (NULL-terminated) that is given, looked up in f; all are marked as read. */
static const char *first_given(k3i_fields *f, const char *const *keys)
{
    const char *found = NULL;
    for (; *keys != NULL; keys++) {
        if (found == NULL && k3i_field_given(f, *keys))
            found = *keys;
        k3i_field_skip(f, *keys);
    }
    return found;
}

static void read_rope_set(k3i_fields *f, k3i_draft_config *cfg)
{
    const char *const types[] = {"rope_type", "type", NULL};
    const char *key = first_given(f, types);
    yyjson_val *type = key == NULL ? NULL : k3i_field(f, key);
    if (k3i_field_given(f, "rope_theta"))
        cfg->rope_theta = k3i_field_number(f, "rope_theta", 1.0 + 1e-9, 1e12);
    if (k3i_json_is(type, "default"))
        return;
    if (!k3i_json_is(type, "yarn")) {
        k3i_field_fail(f, "rope_type", "must be 'default' or 'yarn'");
        return;
    }
    cfg->has_yarn = true;
    cfg->yarn_factor = k3i_field_number(f, "factor", 1.0, 1e6);
    cfg->yarn_original_max = (double)k3i_field_size(f, "original_max_position_embeddings", 1, DIM);
    cfg->yarn_beta_fast =
        k3i_field_given(f, "beta_fast") ? k3i_field_number(f, "beta_fast", 1e-3, 1e6) : 32.0;
    cfg->yarn_beta_slow =
        k3i_field_given(f, "beta_slow") ? k3i_field_number(f, "beta_slow", 1e-3, 1e6) : 1.0;
    cfg->yarn_mscale = k3i_field_given(f, "mscale") ? k3i_field_number(f, "mscale", 0, 1e3) : 0.0;
    cfg->yarn_mscale_all_dim =
        k3i_field_given(f, "mscale_all_dim") ? k3i_field_number(f, "mscale_all_dim", 0, 1e3) : 0.0;
    if (k3i_field_given(f, "attention_factor"))
        cfg->yarn_attention_factor = k3i_field_number(f, "attention_factor", 1e-3, 1e3);
    k3i_field_skip(f, "attention_factor");
}

static void read_rope(k3i_fields *f, k3i_draft_config *cfg)
{
    const char *const sets[] = {"rope_parameters", "rope_scaling", NULL};
    const char *key = first_given(f, sets);
    bool top = k3i_field_given(f, "rope_theta");
    if (top)
        cfg->rope_theta = k3i_field_number(f, "rope_theta", 1.0 + 1e-9, 1e12);
    double outer = cfg->rope_theta;
    if (key != NULL) {
        k3i_fields set;
        k3i_fields_begin(&set, f->file, "rope_parameters.", k3i_field(f, key),
                         f->st == K3_OK ? f->err : NULL);
        read_rope_set(&set, cfg);
        k3_status st = k3i_fields_end(&set);
        if (f->st == K3_OK)
            f->st = st;
    }
    if (cfg->rope_theta == 0.0)
        k3i_field_fail(f, "rope_theta", "is missing");
    if (top && cfg->rope_theta != outer)
        k3i_field_fail(f, "rope_theta", "differs between the file and its rope parameters");
    /* Absent: pairs for MLA, halves for the Qwen3 layout. */
    cfg->rope_interleaved = cfg->is_mla;
    if (k3i_field_given(f, "rope_interleave")) {
        cfg->rope_interleaved = k3i_field_bool(f, "rope_interleave");
        if (cfg->rope_interleaved != cfg->is_mla)
            k3i_field_fail(f, "rope_interleave", "does not fit this attention");
    }
}

static void read_attention(k3i_fields *f, k3i_draft_config *cfg)
{
    cfg->n_heads = k3i_field_size(f, "num_attention_heads", 1, DIM);
    if (!cfg->is_mla) {
        cfg->n_kv_heads = k3i_field_size(f, "num_key_value_heads", 1, cfg->n_heads);
        cfg->head_dim = k3i_field_size(f, "head_dim", 2, DIM);
        if (cfg->n_heads % cfg->n_kv_heads != 0)
            k3i_field_fail(f, "num_key_value_heads", "does not divide num_attention_heads");
        if (cfg->head_dim % 2 != 0)
            k3i_field_fail(f, "head_dim", "is odd, rotation needs pairs");
        if (k3i_field_given(f, "attention_bias"))
            k3i_field_must_be_bool(f, "attention_bias", false);
        if (k3i_field_given(f, "use_sliding_window"))
            k3i_field_must_be_bool(f, "use_sliding_window", false);
        k3i_field_must_be_null(f, "sliding_window");
        k3i_field_skip(f, "attention_bias");
        k3i_field_skip(f, "use_sliding_window");
        k3i_field_skip(f, "attention_dropout");
        k3i_field_skip(f, "max_window_layers");
        return;
    }
    cfg->n_kv_heads = k3i_field_size(f, "num_key_value_heads", cfg->n_heads, cfg->n_heads);
    cfg->q_lora_rank = k3i_field_size(f, "q_lora_rank", 1, DIM);
    cfg->kv_lora_rank = k3i_field_size(f, "kv_lora_rank", 1, DIM);
    cfg->qk_nope_head_dim = k3i_field_size(f, "qk_nope_head_dim", 1, DIM);
    cfg->qk_rope_head_dim = k3i_field_size(f, "qk_rope_head_dim", 2, DIM);
    cfg->v_head_dim = k3i_field_size(f, "v_head_dim", 1, DIM);
    if (cfg->qk_rope_head_dim % 2 != 0)
        k3i_field_fail(f, "qk_rope_head_dim", "is odd, rotation needs pairs");
    k3i_field_must_be_bool(f, "mla_use_nope", false);
    k3i_field_must_be_bool(f, "mla_use_output_gate", false);
}

static void read_taps(k3i_fields *f, yyjson_val *list, const char *key, const k3i_config *target,
                      k3i_draft_config *cfg)
{
    size_t i, n;
    yyjson_val *v;
    if (!yyjson_is_arr(list) || yyjson_arr_size(list) < 1 || yyjson_arr_size(list) > K3I_MAX_TAPS) {
        k3i_field_fail(f, key, "is missing or not an array of 1..%d layers", K3I_MAX_TAPS);
        return;
    }
    yyjson_arr_foreach(list, i, n, v)
    {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= target->n_layers ||
            (i > 0 && yyjson_get_uint(v) <= cfg->taps[i - 1])) {
            k3i_field_fail(f, key, "must ascend within the target's layers 0..%zu",
                           target->n_layers - 1);
            return;
        }
        cfg->taps[i] = (size_t)yyjson_get_uint(v);
    }
    cfg->n_taps = n;
}

/* "any sliding layer type means causal" (dspark.md 1.2). */
static bool has_sliding_layer(yyjson_val *types)
{
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(types, i, n, v)
    {
        if (k3i_json_is(v, "sliding_attention"))
            return true;
    }
    return false;
}

/* The fields that may stand at the top or inside dflash_config, in the order of their precedence.
 */
static void read_dspark(k3i_fields *f, k3i_fields *flash, const k3i_config *target,
                        k3i_draft_config *cfg)
{
    const char *const masks[] = {"mask_token_id", "dspark_noise_token_id", "pard_token",
                                 "ptd_token_id", NULL};
    const char *const taps[] = {"target_layer_ids", "dspark_target_layer_ids", NULL};
    const char *key = first_given(f, masks);
    bool inside = k3i_field_given(flash, "mask_token_id");
    k3i_field_skip(flash, "mask_token_id");
    if (!inside && key == NULL)
        k3i_field_fail(f, "mask_token_id", "is missing");
    else
        cfg->mask_token_id =
            k3i_field_token(inside ? flash : f, inside ? "mask_token_id" : key, target->vocab_size);
    key = first_given(f, taps);
    yyjson_val *inner = k3i_field(flash, "target_layer_ids");
    read_taps(f, key != NULL ? k3i_field(f, key) : inner, "target_layer_ids", target, cfg);

    const char *const causal[] = {"is_causal", NULL};
    const char *const full[] = {"full_attention_causal", NULL};
    yyjson_val *types = k3i_field(f, "layer_types");
    const char *top = first_given(f, causal), *other = first_given(f, full);
    bool inner_causal = k3i_field_given(flash, "causal");
    cfg->causal = top != NULL     ? k3i_field_bool(f, top)
                  : inner_causal  ? k3i_field_bool(flash, "causal")
                  : other != NULL ? k3i_field_bool(f, other)
                                  : has_sliding_layer(types);
    k3i_field_skip(flash, "causal");

    bool inner_stream = k3i_field_given(flash, "aux_hidden_stream");
    yyjson_val *stream = k3i_field(f, "aux_hidden_stream");
    yyjson_val *stream2 = k3i_field(flash, "aux_hidden_stream");
    if (stream == NULL && inner_stream)
        stream = stream2;
    if (stream == NULL || yyjson_is_null(stream))
        cfg->stream = cfg->is_mla ? K3I_STREAM_PREFIX : K3I_STREAM_ATTN_RES;
    else if (k3i_json_is(stream, "prefix"))
        cfg->stream = K3I_STREAM_PREFIX;
    else if (k3i_json_is(stream, "attn_res"))
        cfg->stream = K3I_STREAM_ATTN_RES;
    else
        k3i_field_fail(f, "aux_hidden_stream", "must be 'prefix' or 'attn_res'");
}

static size_t either(k3i_fields *f, k3i_fields *flash, const char *key, size_t max)
{
    bool inside = k3i_field_given(flash, key), outside = k3i_field_given(f, key);
    k3i_field_skip(f, key);
    k3i_field_skip(flash, key);
    if (!inside && !outside)
        return 0;
    return k3i_field_size(outside ? f : flash, key, 1, max);
}

static bool flag(k3i_fields *f, k3i_fields *flash, const char *key)
{
    bool inside = k3i_field_given(flash, key), outside = k3i_field_given(f, key);
    k3i_field_skip(f, key);
    k3i_field_skip(flash, key);
    return (inside || outside) && k3i_field_bool(outside ? f : flash, key);
}

static void read_heads(k3i_fields *f, k3i_fields *flash, k3i_draft_config *cfg)
{
    const char *const ranks[] = {"markov_rank", "dspark_markov_rank", NULL};
    const char *key = first_given(f, ranks);
    if (key != NULL)
        cfg->markov_rank = k3i_field_size(f, key, 1, DIM);
    else
        cfg->markov_rank = k3i_field_size(flash, "markov_rank", 1, DIM);
    k3i_field_skip(flash, "markov_rank");
    if (k3i_field_given(flash, "markov_head_type") && !k3i_field_given(f, "markov_head_type"))
        k3i_field_must_be(flash, "markov_head_type", "vanilla");
    else
        k3i_field_must_be(f, "markov_head_type", "vanilla");
    k3i_field_skip(flash, "markov_head_type");
    cfg->has_confidence = flag(f, flash, "enable_confidence_head");
    cfg->confidence_with_markov = flag(f, flash, "confidence_head_with_markov");
    cfg->has_tap_norms = flag(f, flash, "fc_norm");
    cfg->block_size = either(f, flash, "block_size", K3I_MAX_DRAFT);
}

/* num_target_layers is the number of taps in MLA drafts and the target's depth in the others. */
static void check_target(k3i_fields *f, const k3i_config *target, k3i_draft_config *cfg)
{
    size_t n = cfg->is_mla ? cfg->n_taps : target->n_layers;
    if (k3i_field_given(f, "num_target_layers"))
        (void)k3i_field_size(f, "num_target_layers", n, n);
    k3i_field_skip(f, "num_target_layers");
    const struct {
        const char *key;
        size_t value;
    } same[] = {{"target_hidden_size", target->hidden_size},
                {"target_num_hidden_layers", target->n_layers},
                {"draft_vocab_size", target->vocab_size}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (k3i_field_given(f, same[i].key))
            (void)k3i_field_size(f, same[i].key, same[i].value, same[i].value);
        k3i_field_skip(f, same[i].key);
    }
}

static k3_status read_draft(const char *file, yyjson_val *root, const k3i_config *target,
                            k3i_draft_config *cfg, k3i_err *err)
{
    k3i_fields f, flash;
    k3i_fields_begin(&f, file, "", root, err);
    k3i_fields_begin(&flash, file, "dflash_config.", k3i_field(&f, "dflash_config"), err);
    k3i_field_skip(&f, "model_type");
    k3i_field_dtype(&f);
    cfg->vocab_size = k3i_field_size(&f, "vocab_size", target->vocab_size, target->vocab_size);
    cfg->hidden_size = k3i_field_size(&f, "hidden_size", target->hidden_size, target->hidden_size);
    cfg->n_layers = k3i_field_size(&f, "num_hidden_layers", 1, DIM);
    cfg->intermediate_size = k3i_field_size(&f, "intermediate_size", 1, DIM);
    cfg->max_position_embeddings = k3i_field_size(&f, "max_position_embeddings", 1, DIM);
    cfg->rms_norm_eps = (float)k3i_field_number(&f, "rms_norm_eps", 1e-12, 1.0);
    k3i_field_must_be(&f, "hidden_act", "silu");
    read_attention(&f, cfg);
    read_rope(&f, cfg);
    read_dspark(&f, &flash, target, cfg);
    read_heads(&f, &flash, cfg);
    check_target(&f, target, cfg);
    (void)k3i_field_token(&f, "bos_token_id", target->vocab_size);
    (void)k3i_field_token(&f, "eos_token_id", target->vocab_size);
    (void)k3i_field_token(&f, "pad_token_id", target->vocab_size);
    k3i_field_skip(&f, "tie_word_embeddings");
    k3i_fields_skip_inert(&f);
    k3_status st = f.st != K3_OK ? f.st : k3i_fields_end(&flash);
    return st != K3_OK ? st : k3i_fields_end(&f);
}

k3_status k3i_draft_config_parse(const char *name, const char *text, size_t n,
                                 const k3i_config *target, k3i_draft_config *ret, k3i_err *err)
{
    yyjson_doc *doc;
    k3i_draft_config cfg = {0};
    k3_status st = k3i_json_parse(name, text, n, K3_E_CONFIG, &doc, err);
    if (st != K3_OK)
        return st;
    yyjson_val *root = yyjson_doc_get_root(doc);
    yyjson_val *type = yyjson_obj_get(root, "model_type");
    cfg.is_mla = k3i_json_is(type, "k3_dspark");
    if (cfg.is_mla || k3i_json_is(type, "qwen3"))
        st = read_draft(name, root, target, &cfg, err);
    else
        st = k3i_fail(err, K3_E_CONFIG,
                      "%s: field 'model_type' is '%.60s', supported are 'k3_dspark' and 'qwen3'",
                      name, yyjson_is_str(type) ? yyjson_get_str(type) : "");
    yyjson_doc_free(doc);
    if (st == K3_OK)
        *ret = cfg;
    return st;
}

k3_status k3i_draft_config_read(const char *dir, const k3i_config *target, k3i_draft_config *ret,
                                k3i_err *err)
{
    char path[K3I_PATH];
    char *text;
    size_t n;
    k3_status st = k3i_read_in(dir, "config.json", K3I_CONFIG_MAX_BYTES, path, &text, &n, err);
    if (st != K3_OK)
        return st;
    st = k3i_draft_config_parse(path, text, n, target, ret, err);
    k3i_free(text);
    return st;
}
