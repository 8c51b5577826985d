/* Configurations: the released one reads as published, and each field set wrong once is refused by
 * name. */
#include "files.h"

#include "cost.h"

#include <yyjson.h>

#define DATA K3_TEST_DATA "/config/"

/* The file with the member at `path` (dots between keys) replaced by JSON `value`, or removed if
 * NULL. */
static char *changed(const char *file, const char *path, const char *value, size_t *n)
{
    blob b = blob_read(file);
    yyjson_doc *doc = yyjson_read(b.data, b.n, 0);
    yyjson_mut_doc *mut = yyjson_doc_mut_copy(doc, NULL);
    yyjson_mut_val *at = yyjson_mut_doc_get_root(mut);
    char part[256];
    snprintf(part, sizeof part, "%s", path == NULL ? "" : path);
    char *key = part;
    for (char *dot = strchr(key, '.'); dot != NULL && path != NULL; dot = strchr(key, '.')) {
        *dot = 0;
        at = yyjson_mut_obj_get(at, key);
        if (at == NULL)
            fail_msg("the test names '%s', which is not in %s", path, file);
        key = dot + 1;
    }
    if (path != NULL) {
        yyjson_mut_obj_remove_key(at, key);
        if (value != NULL) {
            yyjson_doc *v = yyjson_read(value, strlen(value), 0);
            if (v == NULL)
                fail_msg("the test's value is no JSON: %s", value);
            yyjson_mut_obj_add_val(mut, at, key, yyjson_val_mut_copy(mut, yyjson_doc_get_root(v)));
            yyjson_doc_free(v);
        }
    }
    char *text = yyjson_mut_write(mut, 0, n);
    yyjson_mut_doc_free(mut);
    yyjson_doc_free(doc);
    free(b.data);
    return text;
}

static k3_status parse(const char *path, const char *value, k3i_config *cfg, k3i_err *err)
{
    size_t n;
    char *text = changed(DATA "kimi-k3.json", path, value, &n);
    /* No NUL behind the text: the parser must go by the length. */
    k3_status st = k3i_config_parse("config.json", text, n, cfg, err);
    free(text);
    return st;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot == NULL ? path : dot + 1;
}

static void released_config(void **state)
{
    (void)state;
    k3i_config c;
    k3i_err err = {0};
    if (parse(NULL, NULL, &c, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.vocab_size, 163840);
    assert_int_equal(c.hidden_size, 7168);
    assert_int_equal(c.n_layers, 93);
    assert_int_equal(c.n_kda_layers, 69);
    assert_int_equal(c.n_mla_layers, 24);
    assert_int_equal(c.n_moe_layers, 92);
    assert_int_equal(c.n_experts, 896);
    assert_int_equal(c.n_experts_per_token, 16);
    assert_int_equal(c.kda_heads * c.kda_head_dim, 12288);
    assert_int_equal(c.bos_token_id, 163584);
    assert_int_equal(c.eos_token_id, 163586);
    assert_int_equal(c.pad_token_id, 163839);
    assert_int_equal(c.media_token_id, 163605);
    assert_true(c.nested && c.has_vision && c.moe_renormalize);
    assert_true(c.situ_beta == 4.0f && c.situ_linear_beta == 25.0f);
    assert_true(c.rms_norm_eps == 1e-5f && c.latent_norm_eps == 1e-6f);
    assert_true(c.gate_lower_bound == -5.0f);
    assert_int_equal(c.attn_res_block_size, 12);
    /* 1-based lists against 0-based layers, and the two MLA layers at the end. */
    assert_true(c.is_kda[0] && !c.is_kda[3] && c.is_kda[4] && !c.is_kda[91] && !c.is_kda[92]);
    assert_true(!c.is_moe[0] && c.is_moe[1] && c.is_moe[92]);
    assert_int_equal(c.vision.head_dim, 128);
    assert_int_equal(c.vision.n_layers, 27);
    assert_int_equal(c.vision.merge_size, 2);
    k3i_config_done(&c);
}

/* The published sums of the released model (text-model 8.1, 8.3). */
static void bytes_per_token(void **state)
{
    (void)state;
    k3i_config c;
    assert_int_equal(parse(NULL, NULL, &c, NULL), K3_OK);
    k3i_cost cost = k3i_cost_of(&c);
    assert_int_equal(cost.embedding, 14336);
    assert_int_equal(cost.kda, 61214097408);
    assert_int_equal(cost.kda_f32, 44160000);
    assert_int_equal(cost.mla, 11145412608);
    assert_int_equal(cost.norms, 8042496);
    assert_int_equal(cost.dense, 1453326336);
    assert_int_equal(cost.router, 1182074880);
    assert_int_equal(cost.latent, 9454620672);
    assert_int_equal(cost.shared, 24310185984);
    assert_int_equal(cost.routed, 25829572608);
    assert_int_equal(cost.head, 2348810240);
    assert_int_equal(cost.weights, 136990317568);
    assert_int_equal(cost.state, 868220928);
    assert_int_equal(cost.conv, 30523392);
    assert_int_equal(cost.latent_per_token, 27648);
    assert_int_equal(cost.all_weights, 1559965606912);
    /* In GFLOP, rounded as published. */
    assert_int_equal((cost.flop_linear + 5000000) / 10000000, 20835);
    assert_int_equal(cost.flop_recurrence / 1000000, 759);
    assert_int_equal(cost.flop_pair, 1474560);
    k3i_config_done(&c);
}

static void flat_config(void **state)
{
    (void)state;
    blob b = blob_read(DATA "kimi-k3.json");
    yyjson_doc *doc = yyjson_read(b.data, b.n, 0);
    size_t n;
    char *text = yyjson_val_write(yyjson_obj_get(yyjson_doc_get_root(doc), "text_config"), 0, &n);
    k3i_config c;
    k3i_err err = {0};
    if (k3i_config_parse("config.json", text, n, &c, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_true(!c.nested && !c.has_vision);
    assert_int_equal(c.media_token_id, -1);
    assert_int_equal(c.n_mla_layers, 24);
    k3i_config_done(&c);
    free(text);
    yyjson_doc_free(doc);
    free(b.data);
}

#define T "text_config."
#define LIN "text_config.linear_attn_config."
#define Q "text_config.quantization_config."
#define W Q "config_groups.group_0.weights."
#define V "vision_config."

/* Every field that decides the computation, each wrong once (NULL: absent). */
static const struct {
    const char *path, *value;
} wrong[] = {
    {"model_type", "\"kimi_k2\""},
    {"model_type", NULL},
    {"dtype", "\"float16\""},
    {"tie_word_embeddings", "true"},
    {"text_config", "7"},
    {"text_config", NULL},
    {"bos_token_id", "5"},
    {"eos_token_id", "163840"},
    {"pad_token_id", "\"x\""},
    {"media_placeholder_token_id", "163840"},
    {"media_placeholder_token_id", NULL},
    {"something_new", "1"},
    {T "model_type", "\"kimi_k3\""},
    {T "dtype", "\"float32\""},
    {T "vocab_size", "0"},
    {T "vocab_size", "2147483648"},
    {T "vocab_size", "163840.0"},
    {T "hidden_size", "-7168"},
    {T "hidden_size", NULL},
    {T "num_hidden_layers", "92"},
    {T "num_hidden_layers", "94"},
    {T "intermediate_size", "null"},
    {T "max_position_embeddings", "0"},
    {T "hidden_act", "\"silu\""},
    {T "hidden_act", NULL},
    {T "activation_situ_beta", "-1"},
    {T "activation_situ_linear_beta", "\"25\""},
    {T "rms_norm_eps", "0"},
    {T "rms_norm_eps", NULL},
    {T "attn_res_block_size", "null"},
    {T "attn_res_block_size", "0"},
    {T "num_attention_heads", "0"},
    {T "num_key_value_heads", "8"},
    {T "q_lora_rank", "null"},
    {T "kv_lora_rank", "0"},
    {T "qk_nope_head_dim", NULL},
    {T "qk_rope_head_dim", "0"},
    {T "v_head_dim", "\"128\""},
    {T "mla_use_nope", "false"},
    {T "mla_use_nope", NULL},
    {T "mla_use_output_gate", "false"},
    {T "rope_scaling", "{\"type\":\"yarn\"}"},
    {LIN "num_heads", "0"},
    {LIN "head_dim", NULL},
    {LIN "short_conv_kernel_size", "0"},
    {LIN "gate_lower_bound", "-5.5"},
    {LIN "gate_lower_bound", "0"},
    {LIN "gate_lower_bound", "null"},
    {LIN "use_full_rank_gate", "false"},
    {LIN "kda_layers", "[1,2,3]"},
    {LIN "full_attn_layers", "null"},
    {LIN "new_gate", "true"},
    {T "linear_attn_config", NULL},
    {T "num_experts", "0"},
    {T "num_experts_per_token", "897"},
    {T "num_experts_per_token", NULL},
    {T "num_shared_experts", "0"},
    {T "moe_intermediate_size", "3071"},
    {T "routed_expert_hidden_size", "3600"},
    {T "latent_moe_use_norm", "false"},
    {T "first_k_dense_replace", "-1"},
    {T "moe_layer_freq", "0"},
    {T "moe_router_activation_func", "\"softmax\""},
    {T "moe_renormalize", "1"},
    {T "routed_scaling_factor", "0"},
    {T "topk_method", "\"greedy\""},
    {T "use_grouped_topk", NULL},
    {T "num_expert_group", "5"},
    {T "num_expert_group", "896"},
    {T "topk_group", "2"},
    {T "num_nextn_predict_layers", "1"},
    {T "tie_word_embeddings", "true"},
    {T "bos_token_id", "163840"},
    {T "quantization_config", NULL},
    {T "quantization_config", "[]"},
    {T "sliding_window", "4096"},
    {Q "quant_method", "\"fp8\""},
    {Q "quantization_status", "\"frozen\""},
    {Q "format", "\"nvfp4-pack-quantized\""},
    {Q "kv_cache_scheme", "{\"num_bits\":8}"},
    {Q "sparsity_config", "{\"format\":\"2:4\"}"},
    {Q "config_groups", "{}"},
    {Q "new_field", "0"},
    {Q "config_groups.group_0.format", "\"pack-quantized\""},
    {Q "config_groups.group_0.input_activations", "{}"},
    {Q "config_groups.group_0.output_activations", "{}"},
    {Q "config_groups.group_0.weights", NULL},
    {W "num_bits", "8"},
    {W "type", "\"int\""},
    {W "strategy", "\"channel\""},
    {W "group_size", "16"},
    {W "scale_dtype", "\"torch.float8_e4m3fn\""},
    {W "symmetric", "false"},
    {W "dynamic", "true"},
    {W "zp_dtype", "\"torch.int8\""},
    {W "actorder", "\"group\""},
    {W "block_structure", "[128,128]"},
    {V "patch_size", "0"},
    {V "vt_hidden_size", NULL},
    {V "mm_hidden_size", "1000"},
    {V "qkv_hidden_size", "1537"},
    {V "vt_intermediate_size", "0"},
    {V "vt_num_attention_heads", "0"},
    {V "vt_num_hidden_layers", "null"},
    {V "init_pos_emb_height", "0"},
    {V "init_pos_emb_width", "-1"},
    {V "init_pos_emb_time", "0"},
    {V "text_hidden_size", "4096"},
    {V "projector_ln_eps", "0"},
    {V "activation_func", "\"gelu\""},
    {V "merge_type", "\"sd2\""},
    {V "mlp_type", "\"mlp3\""},
    {V "mm_projector_type", "\"patchmerger\""},
    {V "norm_type", "\"layernorm\""},
    {V "pos_emb_interpolation_mode", "\"bicubic\""},
    {V "pos_emb_type", "\"learned\""},
    {V "projector_hidden_act", "\"silu\""},
    {V "attn_bias", "true"},
    {V "linear_bias", "true"},
    {V "patch_embed_proj_bias", "true"},
    {V "merge_kernel_size", "[2,3]"},
    {V "merge_kernel_size", "2"},
    {V "video_attn_type", "\"joint\""},
};

static void each_field_wrong_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        k3i_config c;
        k3i_err err = {0};
        k3_status st = parse(wrong[i].path, wrong[i].value, &c, &err);
        const char *value = wrong[i].value != NULL ? wrong[i].value : "absent";
        if (st == K3_OK)
            fail_msg("%s = %s is accepted", wrong[i].path, value);
        const char *name = last_part(wrong[i].path);
        /* A layer count that disagrees is reported at the lists, with both names. */
        if (st != K3_E_CONFIG || strstr(err.text, name) == NULL)
            fail_msg("%s = %s: status %d, '%s'", wrong[i].path, value, st, err.text);
    }
}

/* Fields that may differ from the release: what they become. */
static void variations(void **state)
{
    (void)state;
    static const char *const fine[][2] = {
        {"dtype", NULL},
        {"vision_config", NULL},
        {"bos_token_id", NULL},
        {T "bos_token_id", "null"},
        {T "temperature", "0.3"},
        {T "rope_theta", "10000"},
        {T "head_dim", "74"},
        {T "moe_renormalize", "false"},
        {T "routed_scaling_factor", "2.5"},
        {T "first_k_dense_replace", "93"},
        {T "attn_res_block_size", "1"},
        {T "attn_res_block_size", "100"},
        {T "num_expert_group", "8"},
        {LIN "gate_lower_bound", "-2"},
        {LIN "short_conv_kernel_size", "1"},
        {Q "version", "\"0.12\""},
        {Q "ignore", "[]"},
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        k3i_config c;
        k3i_err err = {0};
        if (parse(fine[i][0], fine[i][1], &c, &err) != K3_OK)
            fail_msg("%s: %s", fine[i][0], err.text);
        k3i_config_done(&c);
    }
    k3i_config c;
    assert_int_equal(parse(T "activation_situ_beta", "0", &c, NULL), K3_OK);
    assert_true(c.situ_beta == 1.0f);
    k3i_config_done(&c);
    assert_int_equal(parse(T "activation_situ_linear_beta", "null", &c, NULL), K3_OK);
    assert_true(c.situ_linear_beta == 0.0f);
    k3i_config_done(&c);
    assert_int_equal(parse(T "moe_layer_freq", "2", &c, NULL), K3_OK);
    assert_true(!c.is_moe[1] && c.is_moe[2]);
    k3i_config_done(&c);
}

/* The quantisation may stand at the top level too, where the release's class copies it. */
static void quantization_at_the_top(void **state)
{
    (void)state;
    k3i_config c;
    k3i_err err = {0};
    size_t n;
    assert_int_equal(parse("quantization_config", "{\"quant_method\":\"fp8\"}", &c, &err),
                     K3_E_CONFIG);
    assert_non_null(strstr(err.text, "quant_method"));
    blob b = blob_read(DATA "kimi-k3.json");
    yyjson_doc *doc = yyjson_read(b.data, b.n, 0);
    yyjson_mut_doc *mut = yyjson_doc_mut_copy(doc, NULL);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(mut);
    yyjson_mut_val *quant =
        yyjson_mut_obj_remove_key(yyjson_mut_obj_get(root, "text_config"), "quantization_config");
    yyjson_mut_obj_add_val(mut, root, "quantization_config", quant);
    char *text = yyjson_mut_write(mut, 0, &n);
    assert_int_equal(k3i_config_parse("config.json", text, n, &c, &err), K3_OK);
    k3i_config_done(&c);
    free(text);
    yyjson_mut_doc_free(mut);
    yyjson_doc_free(doc);
    free(b.data);
}

/* Layer lists of small models, given in place of the release's. */
static void layer_lists(void **state)
{
    (void)state;
    static const struct {
        const char *kda, *mla, *word;
    } lists[] = {
        {"[1,3]", "[2,4]", NULL},
        {"[]", "[4,3,2,1]", NULL},
        {"[1,2,3,4]", "[]", NULL},
        {"[1,2]", "[2,4]", "listed already"},
        {"[1,1]", "[2,4]", "listed already"},
        {"[0,1]", "[2,3]", "1..4"},
        {"[1,5]", "[2,3]", "1..4"},
        {"[1,\"2\"]", "[3,4]", "1..4"},
        {"[1,2]", "[3]", "list 3 layers"},
        {"[1,2,3]", "[3,4]", "list 5 layers"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        blob b = blob_read(DATA "kimi-k3.json");
        yyjson_doc *doc = yyjson_read(b.data, b.n, 0);
        yyjson_mut_doc *mut = yyjson_doc_mut_copy(doc, NULL);
        yyjson_mut_val *text = yyjson_mut_obj_get(yyjson_mut_doc_get_root(mut), "text_config");
        yyjson_mut_val *lin = yyjson_mut_obj_get(text, "linear_attn_config");
        yyjson_mut_obj_put(text, yyjson_mut_str(mut, "num_hidden_layers"), yyjson_mut_int(mut, 4));
        yyjson_mut_obj_put(lin, yyjson_mut_str(mut, "kda_layers"),
                           yyjson_mut_raw(mut, lists[i].kda));
        yyjson_mut_obj_put(lin, yyjson_mut_str(mut, "full_attn_layers"),
                           yyjson_mut_raw(mut, lists[i].mla));
        size_t n;
        char *json = yyjson_mut_write(mut, 0, &n);
        k3i_config c;
        k3i_err err = {0};
        k3_status st = k3i_config_parse("config.json", json, n, &c, &err);
        if (lists[i].word == NULL && st != K3_OK)
            fail_msg("%s + %s: %s", lists[i].kda, lists[i].mla, err.text);
        if (lists[i].word != NULL && (st != K3_E_CONFIG || strstr(err.text, lists[i].word) == NULL))
            fail_msg("%s + %s: '%s'", lists[i].kda, lists[i].mla, err.text);
        if (st == K3_OK)
            k3i_config_done(&c);
        free(json);
        yyjson_mut_doc_free(mut);
        yyjson_doc_free(doc);
        free(b.data);
    }
}

static void texts_that_are_no_config(void **state)
{
    (void)state;
    char deep[100];
    memset(deep, '[', sizeof deep);
    const struct {
        const char *text;
        size_t n;
        k3_status st;
    } cases[] = {{"", 0, K3_E_CONFIG},
                 {"[]", 2, K3_E_CONFIG},
                 {"{\"model_type\":\"kimi_k3\"", 23, K3_E_CONFIG},
                 {"{\"model_type\":\"kimi_k3\",\"model_type\":\"kimi_k3\"}", 47, K3_E_CONFIG},
                 {"{\"model_type\":\"kimi_linear\"}", 28, K3_E_CONFIG},
                 {deep, sizeof deep, K3_E_LIMIT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        k3i_config c;
        k3i_err err = {0};
        k3_status st = k3i_config_parse("config.json", cases[i].text, cases[i].n, &c, &err);
        if (st != cases[i].st || strstr(err.text, "config.json") == NULL)
            fail_msg("case %zu: status %d, '%s'", i, st, err.text);
    }
}

static k3_status parse_draft(const char *file, const char *path, const char *value,
                             const k3i_config *target, k3i_draft_config *d, k3i_err *err)
{
    size_t n;
    char *text = changed(file, path, value, &n);
    k3_status st = k3i_draft_config_parse("draft.json", text, n, target, d, err);
    free(text);
    return st;
}

static void published_drafts(void **state)
{
    (void)state;
    k3i_config c;
    k3i_draft_config d;
    k3i_err err = {0};
    assert_int_equal(parse(NULL, NULL, &c, &err), K3_OK);
    if (parse_draft(DATA "dspark-mla.json", NULL, NULL, &c, &d, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_true(d.is_mla && d.has_yarn && d.rope_interleaved && !d.causal && d.has_confidence);
    assert_true(d.stream == K3I_STREAM_PREFIX && d.n_taps == 5 && d.taps[4] == 89);
    assert_true(d.yarn_factor == 32.0 && d.rope_theta == 50000.0 && d.yarn_mscale_all_dim == 1.0);
    assert_true(d.mask_token_id == 163837 && d.markov_rank == 256 && d.block_size == 0);
    if (parse_draft(DATA "dspark-gqa.json", NULL, NULL, &c, &d, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_true(!d.is_mla && !d.rope_interleaved && d.n_kv_heads == 16 && d.head_dim == 64);
    assert_true(d.stream == K3I_STREAM_ATTN_RES && d.taps[0] == 7 && d.mask_token_id == 163824);
    assert_true(d.block_size == 7 && d.yarn_factor == 16.0 && d.rope_theta == 10000.0);
    k3i_config_done(&c);
}

static void draft_fields_wrong_once(void **state)
{
    (void)state;
    static const struct {
        const char *file, *path, *value;
    } bad[] = {
#define MLA DATA "dspark-mla.json"
#define GQA DATA "dspark-gqa.json"
        {MLA, "model_type", "\"llama\""},
        {MLA, "hidden_size", "4096"},
        {MLA, "vocab_size", "163839"},
        {MLA, "draft_vocab_size", "32000"},
        {MLA, "target_hidden_size", "4096"},
        {MLA, "target_num_hidden_layers", "61"},
        {MLA, "num_target_layers", "4"},
        {MLA, "num_hidden_layers", "0"},
        {MLA, "num_key_value_heads", "8"},
        {MLA, "q_lora_rank", "0"},
        {MLA, "q_lora_rank", "null"},
        {MLA, "qk_rope_head_dim", "63"},
        {MLA, "mla_use_nope", "true"},
        {MLA, "mla_use_output_gate", "true"},
        {MLA, "hidden_act", "\"gelu\""},
        {MLA, "rms_norm_eps", "-1"},
        {MLA, "target_layer_ids", "[2,2,47,71,89]"},
        {MLA, "target_layer_ids", "[2,23,47,71,93]"},
        {MLA, "target_layer_ids", "[23,2,47,71,89]"},
        {MLA, "target_layer_ids", "[]"},
        {MLA, "target_layer_ids", NULL},
        {MLA, "mask_token_id", "163840"},
        {MLA, "mask_token_id", NULL},
        {MLA, "markov_rank", "0"},
        {MLA, "markov_head_type", "\"gated\""},
        {MLA, "markov_head_type", NULL},
        {MLA, "aux_hidden_stream", "\"post\""},
        {MLA, "rope_interleave", "false"},
        {MLA, "rope_theta", "10000"},
        {MLA, "rope_parameters.rope_type", "\"linear\""},
        {MLA, "rope_parameters.factor", "0.5"},
        {MLA, "rope_parameters.original_max_position_embeddings", NULL},
        {MLA, "rope_parameters.short_factor", "[1]"},
        {MLA, "some_new_head", "true"},
        {GQA, "num_key_value_heads", "7"},
        {GQA, "head_dim", "63"},
        {GQA, "head_dim", NULL},
        {GQA, "attention_bias", "true"},
        {GQA, "use_sliding_window", "true"},
        {GQA, "sliding_window", "4096"},
        {GQA, "num_target_layers", "5"},
        {GQA, "block_size", "17"},
        {GQA, "dflash_config", NULL},
        {GQA, "dflash_config.mask_token_id", "-1"},
        {GQA, "dflash_config.target_layer_ids", "7"},
        {GQA, "dflash_config.unknown", "1"},
        {GQA, "rope_theta", NULL},
    };
    k3i_config c;
    assert_int_equal(parse(NULL, NULL, &c, NULL), K3_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        k3i_draft_config d;
        k3i_err err = {0};
        k3_status st = parse_draft(bad[i].file, bad[i].path, bad[i].value, &c, &d, &err);
        const char *value = bad[i].value != NULL ? bad[i].value : "absent";
        const char *name = last_part(bad[i].path);
        if (strcmp(name, "dflash_config") == 0)
            name = "mask_token_id";
        if (st != K3_E_CONFIG || strstr(err.text, name) == NULL)
            fail_msg("%s = %s: status %d, '%s'", bad[i].path, value, st, err.text);
    }
    k3i_config_done(&c);
}

static void draft_aliases(void **state)
{
    (void)state;
    k3i_config c;
    k3i_draft_config d;
    k3i_err err = {0};
    assert_int_equal(parse(NULL, NULL, &c, NULL), K3_OK);
    /* Precedence of the mask: dflash_config first. */
    assert_int_equal(parse_draft(MLA, "dflash_config", "{\"mask_token_id\":9}", &c, &d, &err),
                     K3_OK);
    assert_int_equal(d.mask_token_id, 9);
    assert_int_equal(parse_draft(MLA, "dspark_noise_token_id", "9", &c, &d, &err), K3_OK);
    assert_int_equal(d.mask_token_id, 163837);
    assert_int_equal(
        parse_draft(GQA, "dflash_config", "{\"ptd_x\":1,\"target_layer_ids\":[7]}", &c, &d, &err),
        K3_E_CONFIG);
    assert_int_equal(parse_draft(MLA, "is_causal", "true", &c, &d, &err), K3_OK);
    assert_true(d.causal);
    assert_int_equal(parse_draft(MLA, "full_attention_causal", "true", &c, &d, &err), K3_OK);
    assert_true(d.causal);
    assert_int_equal(parse_draft(MLA, "dflash_config", "{\"causal\":true}", &c, &d, &err), K3_OK);
    assert_true(d.causal);
    assert_int_equal(parse_draft(GQA, "layer_types", "[\"sliding_attention\"]", &c, &d, &err),
                     K3_OK);
    assert_true(d.causal);
    assert_int_equal(parse_draft(MLA, "fc_norm", "true", &c, &d, &err), K3_OK);
    assert_true(d.has_tap_norms);
    assert_int_equal(parse_draft(MLA, "aux_hidden_stream", "\"attn_res\"", &c, &d, &err), K3_OK);
    assert_int_equal(d.stream, K3I_STREAM_ATTN_RES);
    assert_int_equal(parse_draft(MLA, "enable_confidence_head", "false", &c, &d, &err), K3_OK);
    assert_false(d.has_confidence);
    k3i_config_done(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_config),  cmocka_unit_test(flat_config),
        cmocka_unit_test(bytes_per_token),  cmocka_unit_test(each_field_wrong_once),
        cmocka_unit_test(variations),       cmocka_unit_test(quantization_at_the_top),
        cmocka_unit_test(layer_lists),      cmocka_unit_test(texts_that_are_no_config),
        cmocka_unit_test(published_drafts), cmocka_unit_test(draft_fields_wrong_once),
        cmocka_unit_test(draft_aliases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
