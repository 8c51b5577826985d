/* draft_file.c: see draft_file.h. Weights from the counter generator of tests/engine/model.h. */
#include "draft_file.h"

#include "bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const test_model test_model_pair = {
    .vocab = 97,
    .hidden = 64,
    .layers = 8,
    .inter = 96,
    .heads = 4,
    .q_lora = 32,
    .kv_lora = 32,
    .nope = 16,
    .rope = 8,
    .v = 16,
    .kda_heads = 4,
    .kda_dim = 16,
    .taps = 4,
    .a_log_len = 16,
    .block = 3,
    .experts = 8,
    .top_k = 2,
    .shared = 2,
    .moe_inter = 32,
    .latent = 32,
    .groups = 1,
    .topk_groups = 1,
    .first_dense = 1,
    .moe_freq = 1,
    .is_kda = {1, 1, 1, 0, 1, 1, 1, 0},
    .seed = "pair/",
    .poison = -1,
};

static const char config[] =
    "{\"model_type\":\"k3_dspark\",\"architectures\":[\"K3DSparkModel\"],\"dtype\":\"bfloat16\","
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"q_lora_rank\":32,\"kv_lora_rank\":32,"
    "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":16,\"mla_use_nope\":false,"
    "\"mla_use_output_gate\":false,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
    "\"vocab_size\":97,\"draft_vocab_size\":97,\"max_position_embeddings\":1024,"
    "\"rope_theta\":50000,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
    "\"original_max_position_embeddings\":32,\"rope_theta\":50000,\"beta_fast\":32,"
    "\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0},\"num_target_layers\":4,"
    "\"target_layer_ids\":[0,2,4,7],\"target_hidden_size\":64,\"target_num_hidden_layers\":8,"
    "\"mask_token_id\":95,\"markov_rank\":8,\"markov_head_type\":\"vanilla\","
    "\"enable_confidence_head\":true,\"confidence_head_with_markov\":true}";

typedef struct {
    const char *name;
    size_t rows, cols; /* cols 0: a vector */
    bool norm;         /* around 1 instead of 0 */
} tensor;

enum { PER_LAYER = 12 };

static const tensor outer[] = {
    {"context_proj.weight", 64, 256, false},
    {"context_norm.weight", 64, 0, true},
    {"final_norm.weight", 64, 0, true},
    {"markov_head.markov_w1.weight", 97, 8, false},
    {"markov_head.markov_w2.weight", 97, 8, false},
    {"confidence_head.proj.weight", 1, 72, false},
    {"confidence_head.proj.bias", 1, 0, false},
};

static const tensor layer[PER_LAYER] = {
    {"input_layernorm.weight", 64, 0, true},
    {"post_attention_layernorm.weight", 64, 0, true},
    {"self_attn.q_a_proj.weight", 32, 64, false},
    {"self_attn.q_a_layernorm.weight", 32, 0, true},
    {"self_attn.q_b_proj.weight", 96, 32, false},
    {"self_attn.kv_a_proj_with_mqa.weight", 40, 64, false},
    {"self_attn.kv_a_layernorm.weight", 32, 0, true},
    {"self_attn.kv_b_proj.weight", 128, 32, false},
    {"self_attn.o_proj.weight", 64, 64, false},
    {"mlp.gate_proj.weight", 96, 64, false},
    {"mlp.up_proj.weight", 96, 64, false},
    {"mlp.down_proj.weight", 64, 96, false},
};

static FILE *create(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        perror(path);
        abort();
    }
    return f;
}

static void put(FILE *header, FILE *data, const char *prefix, const tensor *t, size_t *offset)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", prefix, t->name);
    size_t n = t->rows * (t->cols != 0 ? t->cols : 1);
    double gain = t->norm ? 0.25 : sqrt(3.0 / (double)(t->cols != 0 ? t->cols : 1));
    uint64_t hash = test_hash("draft/", name);
    for (size_t i = 0; i < n; i++) {
        double u = (double)(test_hash_rnd(hash, i) >> 40) * 0x1p-23 - 1.0;
        k3i_bf16 h = k3i_to_bf16((float)((t->norm ? 1.0 : 0.0) + gain * u));
        fwrite(&h, sizeof h, 1, data);
    }
    fprintf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%zu", *offset == 0 ? "{" : ",", name,
            t->rows);
    if (t->cols != 0)
        fprintf(header, ",%zu", t->cols);
    fprintf(header, "],\"data_offsets\":[%zu,%zu]}", *offset, *offset + 2 * n);
    *offset += 2 * n;
}

void draft_file_write(const char *dir)
{
    char *head = NULL, *body = NULL;
    size_t head_bytes, body_bytes, offset = 0;
    FILE *header = open_memstream(&head, &head_bytes), *data = open_memstream(&body, &body_bytes);
    if (header == NULL || data == NULL)
        abort();
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
        put(header, data, "", &outer[i], &offset);
    for (size_t l = 0; l < 2; l++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "layers.%zu.", l);
        for (size_t i = 0; i < PER_LAYER; i++)
            put(header, data, prefix, &layer[i], &offset);
    }
    fprintf(header, "}");
    fclose(header);
    fclose(data);
    FILE *f = create(dir, "model.safetensors");
    uint64_t n = head_bytes;
    fwrite(&n, sizeof n, 1, f); /* little-endian machine */
    fwrite(head, 1, head_bytes, f);
    fwrite(body, 1, body_bytes, f);
    fclose(f);
    f = create(dir, "config.json");
    fputs(config, f);
    fclose(f);
    free(head);
    free(body);
}

void draft_pair_new(char **target_dir, char **draft_dir)
{
    *target_dir = test_dir_new();
    *draft_dir = test_dir_new();
    test_model_write(&test_model_pair, *target_dir);
    draft_file_write(*draft_dir);
}

int draft_pair_done(int failed, char *target_dir, char *draft_dir)
{
    test_dir_remove(target_dir);
    test_dir_remove(draft_dir);
    return failed;
}
