/* model.c: one list of tensors, walked twice: for the header and for the data. */
#include "model.h"

#include "bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const test_model test_model_a = {
    .vocab = 320,
    .hidden = 160,
    .layers = 9,
    .inter = 224,
    .heads = 4,
    .q_lora = 48,
    .kv_lora = 64,
    .nope = 24,
    .rope = 16,
    .v = 40,
    .kda_heads = 3,
    .kda_dim = 32,
    .taps = 4,
    .a_log_len = 8,
    .block = 3,
    .experts = 16,
    .top_k = 4,
    .shared = 2,
    .moe_inter = 64,
    .latent = 96,
    .groups = 1,
    .topk_groups = 1,
    .first_dense = 1,
    .moe_freq = 1,
    .is_kda = {1, 1, 1, 0, 1, 1, 1, 0, 0},
    .seed = "",
    .poison = -1,
};

const test_model test_model_b = {
    .vocab = 384,
    .hidden = 256,
    .layers = 13,
    .inter = 320,
    .heads = 2,
    .q_lora = 96,
    .kv_lora = 512,
    .nope = 128,
    .rope = 64,
    .v = 128,
    .kda_heads = 2,
    .kda_dim = 128,
    .taps = 4,
    .a_log_len = 128,
    .block = 12,
    .experts = 24,
    .top_k = 4,
    .shared = 2,
    .moe_inter = 96,
    .latent = 128,
    .groups = 1,
    .topk_groups = 1,
    .first_dense = 1,
    .moe_freq = 1,
    .is_kda = {1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0},
    .seed = "",
    .poison = -1,
};

uint64_t test_hash(const char *prefix, const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    const char *parts[2] = {prefix, s};
    for (size_t p = 0; p < 2; p++) {
        for (const char *c = parts[p]; *c != 0; c++)
            h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    }
    return h;
}

uint64_t test_hash_rnd(uint64_t hash, uint64_t i)
{
    uint64_t z = hash + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void test_prompt(const test_model *m, int32_t *ids, size_t n)
{
    uint64_t h = test_hash(m->seed, "prompt");
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(test_hash_rnd(h, i) % m->vocab);
}

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "test model: %s\n", what);
        abort();
    }
}

typedef enum { BF16, F32, PACKED, SCALE } kind;

typedef struct {
    const test_model *m;
    FILE *f;
    bool data; /* second walk */
    size_t offset, n;
    size_t zero_from; /* of the next tensor: elements from here are 0 */
    size_t times_256; /* of the next tensor: elements from here are multiplied by 256 */
} writer;

static void put_value(writer *w, kind k, uint64_t hash, size_t i, double a, double b)
{
    if (k == PACKED || k == SCALE) {
        uint64_t r = test_hash_rnd(hash, i);
        fputc(k == PACKED ? (int)(r >> 56) : 121 + (int)(r >> 62), w->f);
        return;
    }
    double u = (double)(test_hash_rnd(hash, i) >> 40) * 0x1p-23 - 1.0;
    double t = a * u;
    float x = (float)(b + t);
    if (i >= w->zero_from)
        x = 0;
    if (k == F32) {
        fwrite(&x, sizeof x, 1, w->f);
        return;
    }
    float r = k3i_round_bf16(x);
    k3i_bf16 h = k3i_to_bf16(i >= w->times_256 ? r * 256 : r);
    fwrite(&h, sizeof h, 1, w->f);
}

static void put(writer *w, kind k, double a, double b, size_t d0, size_t d1, size_t d2,
                const char *name)
{
    static const char *const dtype[] = {"BF16", "F32", "U8", "U8"};
    static const size_t size[] = {2, 4, 1, 1};
    size_t n = d0 * (d1 != 0 ? d1 : 1) * (d2 != 0 ? d2 : 1), bytes = n * size[k];
    if (w->data) {
        uint64_t hash = test_hash(w->m->seed, name);
        bool poison = w->m->poison >= 0 && strstr(name, "embed_tokens") != NULL;
        for (size_t i = 0; i < n; i++) {
            if (poison && i / w->m->hidden == (size_t)w->m->poison) {
                fwrite("\xc0\x7f", 2, 1, w->f);
            } else {
                put_value(w, k, hash, i, a, b);
            }
        }
    } else {
        fprintf(w->f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu", w->n == 0 ? "{" : ",", name,
                dtype[k], d0);
        if (d1 != 0)
            fprintf(w->f, ",%zu", d1);
        if (d2 != 0)
            fprintf(w->f, ",%zu", d2);
        fprintf(w->f, "],\"data_offsets\":[%zu,%zu]}", w->offset, w->offset + bytes);
    }
    w->offset += bytes;
    w->n++;
    w->zero_from = w->times_256 = SIZE_MAX;
}

/* prefix + name into a buffer of the caller. */
static const char *join(char *buf, size_t n, const char *prefix, const char *name)
{
    snprintf(buf, n, "%s%s", prefix, name);
    return buf;
}

static void linear(writer *w, const char *p, const char *name, size_t out, size_t in, double gain)
{
    char buf[200];
    put(w, BF16, gain * sqrt(3.0 / (double)in), 0, out, in, 0, join(buf, sizeof buf, p, name));
}

static void norm(writer *w, const char *p, const char *name, size_t n, kind k)
{
    char buf[200];
    put(w, k, 0.25, 1, n, 0, 0, join(buf, sizeof buf, p, name));
}

static void kda(writer *w, const char *p)
{
    const test_model *m = w->m;
    size_t C = m->kda_heads * m->kda_dim, H = m->hidden;
    char buf[200];
    linear(w, p, "q_proj.weight", C, H, 0.03);
    linear(w, p, "k_proj.weight", C, H, 0.03);
    linear(w, p, "v_proj.weight", C, H, 1);
    put(w, F32, 1, 0, C, 1, m->taps, join(buf, sizeof buf, p, "q_conv1d.weight"));
    put(w, F32, 1, 0, C, 1, m->taps, join(buf, sizeof buf, p, "k_conv1d.weight"));
    put(w, F32, 1, 0, C, 1, m->taps, join(buf, sizeof buf, p, "v_conv1d.weight"));
    w->zero_from = m->kda_heads;
    put(w, F32, 1, 0, m->a_log_len, 0, 0, join(buf, sizeof buf, p, "A_log"));
    put(w, F32, 3, -2, C, 0, 0, join(buf, sizeof buf, p, "dt_bias"));
    linear(w, p, "f_a_proj.weight", m->kda_dim, H, 1);
    linear(w, p, "f_b_proj.weight", C, m->kda_dim, 1);
    linear(w, p, "b_proj.weight", m->kda_heads, H, 1);
    norm(w, p, "o_norm.weight", m->kda_dim, F32);
    linear(w, p, "g_proj.weight", C, H, 1);
    linear(w, p, "o_proj.weight", H, C, 1);
}

static void mla(writer *w, const char *p)
{
    const test_model *m = w->m;
    size_t H = m->hidden;
    linear(w, p, "q_a_proj.weight", m->q_lora, H, 0.005);
    norm(w, p, "q_a_layernorm.weight", m->q_lora, BF16);
    linear(w, p, "q_b_proj.weight", m->heads * (m->nope + m->rope), m->q_lora, 1.5);
    w->times_256 = m->kv_lora * H;
    linear(w, p, "kv_a_proj_with_mqa.weight", m->kv_lora + m->rope, H, 0.005);
    norm(w, p, "kv_a_layernorm.weight", m->kv_lora, BF16);
    linear(w, p, "kv_b_proj.weight", m->heads * (m->nope + m->v), m->kv_lora, 1.5);
    linear(w, p, "g_proj.weight", m->heads * m->v, H, 1);
    linear(w, p, "o_proj.weight", H, m->heads * m->v, 1);
}

static void moe(writer *w, const char *p)
{
    const test_model *m = w->m;
    size_t H = m->hidden, Z = m->latent, M = m->moe_inter, I = m->shared * M;
    char buf[200], q[200];
    linear(w, p, "gate.weight", m->experts, H, 1);
    put(w, F32, 0.3, 0, m->experts, 0, 0, join(buf, sizeof buf, p, "gate.e_score_correction_bias"));
    linear(w, p, "routed_expert_down_proj.weight", Z, H, 1);
    norm(w, p, "routed_expert_norm.weight", Z, BF16);
    linear(w, p, "routed_expert_up_proj.weight", H, Z, 1);
    linear(w, p, "shared_experts.gate_proj.weight", I, H, 2);
    linear(w, p, "shared_experts.up_proj.weight", I, H, 4);
    linear(w, p, "shared_experts.down_proj.weight", H, I, 0.25);
    for (size_t e = 0; e < m->experts; e++) {
        for (size_t k = 1; k <= 3; k++) {
            size_t out = k == 2 ? Z : M, in = k == 2 ? M : Z;
            snprintf(q, sizeof q, "%sexperts.%zu.w%zu.", p, e, k);
            put(w, PACKED, 0, 0, out, in / 2, 0, join(buf, sizeof buf, q, "weight_packed"));
            put(w, SCALE, 0, 0, out, in / 32, 0, join(buf, sizeof buf, q, "weight_scale"));
        }
    }
}

static bool is_moe(const test_model *m, size_t layer)
{
    return layer >= m->first_dense && layer % m->moe_freq == 0;
}

static void layer(writer *w, size_t i)
{
    const test_model *m = w->m;
    size_t H = m->hidden;
    char p[100], q[150];
    snprintf(p, sizeof p, "language_model.model.layers.%zu.", i);
    norm(w, p, "input_layernorm.weight", H, BF16);
    norm(w, p, "post_attention_layernorm.weight", H, BF16);
    norm(w, p, "self_attention_res_norm.weight", H, BF16);
    norm(w, p, "mlp_res_norm.weight", H, BF16);
    linear(w, p, "self_attention_res_proj.weight", 1, H, 1.5);
    linear(w, p, "mlp_res_proj.weight", 1, H, 1.5);
    snprintf(q, sizeof q, "%sself_attn.", p);
    if (m->is_kda[i]) {
        kda(w, q);
    } else {
        mla(w, q);
    }
    if (is_moe(m, i)) {
        snprintf(q, sizeof q, "%sblock_sparse_moe.", p);
        moe(w, q);
    } else {
        linear(w, p, "mlp.gate_proj.weight", m->inter, H, 2);
        linear(w, p, "mlp.up_proj.weight", m->inter, H, 8);
        linear(w, p, "mlp.down_proj.weight", H, m->inter, 0.5);
    }
}

static void tensors(writer *w)
{
    const char *p = "language_model.";
    const test_model *m = w->m;
    w->offset = w->n = 0;
    w->zero_from = w->times_256 = SIZE_MAX;
    put(w, BF16, 1, 0, m->vocab, m->hidden, 0, "language_model.model.embed_tokens.weight");
    linear(w, p, "lm_head.weight", m->vocab, m->hidden, 2);
    norm(w, p, "model.norm.weight", m->hidden, BF16);
    norm(w, p, "model.output_attn_res_norm.weight", m->hidden, BF16);
    linear(w, p, "model.output_attn_res_proj.weight", 1, m->hidden, 1.5);
    for (size_t i = 0; i < m->layers; i++)
        layer(w, i);
}

static void write_tensors(const test_model *m, const char *path)
{
    writer w = {.m = m, .f = fopen(path, "wb")};
    must(w.f != NULL, path);
    uint64_t n = 0;
    fwrite(&n, sizeof n, 1, w.f);
    tensors(&w);
    fputc('}', w.f);
    while (ftell(w.f) % 8 != 0)
        fputc(' ', w.f);
    n = (uint64_t)ftell(w.f) - 8;
    w.data = true;
    tensors(&w);
    must(fseek(w.f, 0, SEEK_SET) == 0 && fwrite(&n, sizeof n, 1, w.f) == 1, path);
    must(fclose(w.f) == 0, path);
}

static void write_layers(FILE *f, const test_model *m, bool kda_layers)
{
    const char *comma = "";
    for (size_t i = 0; i < m->layers; i++) {
        if (m->is_kda[i] != kda_layers)
            continue;
        fprintf(f, "%s%zu", comma, i + 1);
        comma = ",";
    }
}

static void write_config(const test_model *m, const char *path)
{
    FILE *f = fopen(path, "wb");
    must(f != NULL, path);
    fprintf(
        f,
        "{\"architectures\":[\"KimiK3ForConditionalGeneration\"],\"model_type\":\"kimi_k3\","
        "\"dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,"
        "\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"kimi_linear\","
        "\"dtype\":\"bfloat16\",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0,"
        "\"vocab_size\":%zu,\"hidden_size\":%zu,\"num_hidden_layers\":%zu,"
        "\"intermediate_size\":%zu,\"hidden_act\":\"situ\",\"activation_situ_beta\":4.0,"
        "\"activation_situ_linear_beta\":25.0,\"rms_norm_eps\":1e-05,\"attn_res_block_size\":%zu,",
        m->vocab, m->hidden, m->layers, m->inter, m->block);
    fprintf(f,
            "\"num_attention_heads\":%zu,\"num_key_value_heads\":%zu,\"q_lora_rank\":%zu,"
            "\"kv_lora_rank\":%zu,\"qk_nope_head_dim\":%zu,\"qk_rope_head_dim\":%zu,"
            "\"v_head_dim\":%zu,\"mla_use_nope\":true,\"mla_use_output_gate\":true,",
            m->heads, m->heads, m->q_lora, m->kv_lora, m->nope, m->rope, m->v);
    fprintf(f,
            "\"num_experts\":%zu,\"num_experts_per_token\":%zu,\"num_shared_experts\":%zu,"
            "\"moe_intermediate_size\":%zu,\"routed_expert_hidden_size\":%zu,"
            "\"latent_moe_use_norm\":true,\"first_k_dense_replace\":%zu,\"moe_layer_freq\":%zu,"
            "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,"
            "\"routed_scaling_factor\":1.0,\"topk_method\":\"noaux_tc\",\"use_grouped_topk\":true,"
            "\"num_expert_group\":%zu,\"topk_group\":%zu,\"num_nextn_predict_layers\":0,"
            "\"max_position_embeddings\":1048576,\"tie_word_embeddings\":false,",
            m->experts, m->top_k, m->shared, m->moe_inter, m->latent, m->first_dense, m->moe_freq,
            m->groups, m->topk_groups);
    fprintf(f,
            "\"linear_attn_config\":{\"num_heads\":%zu,\"head_dim\":%zu,"
            "\"short_conv_kernel_size\":%zu,\"gate_lower_bound\":-5.0,\"use_full_rank_gate\":true,"
            "\"kda_layers\":[",
            m->kda_heads, m->kda_dim, m->taps);
    write_layers(f, m, true);
    fprintf(f, "],\"full_attn_layers\":[");
    write_layers(f, m, false);
    fprintf(f, "]},\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
               "\"quantization_status\":\"compressed\",\"format\":\"mxfp4-pack-quantized\","
               "\"config_groups\":{\"group_0\":{\"format\":\"mxfp4-pack-quantized\","
               "\"targets\":[\"Linear\"],\"input_activations\":null,\"output_activations\":null,"
               "\"weights\":{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\","
               "\"group_size\":32,\"scale_dtype\":\"torch.uint8\",\"symmetric\":true,"
               "\"dynamic\":false}}}}}}\n");
    must(fclose(f) == 0, path);
}

void test_model_write(const test_model *m, const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_config(m, path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    write_tensors(m, path);
}

char *test_dir_new(void)
{
    const char *tmp = getenv("TMPDIR");
    char path[500];
    snprintf(path, sizeof path, "%s/k3-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    must(mkdtemp(path) != NULL, path);
    return strdup(path);
}

void test_dir_remove(char *dir)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[600];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    free(dir);
}
