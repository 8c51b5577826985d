/* model.h: small K3 checkpoints made from integer hashes (text-model.md 7.2), among them the two
 * golden models, written to a folder of their own in the published format. */
#ifndef K3_TEST_MODEL_H
#define K3_TEST_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEST_MAX_LAYERS = 40 };

typedef struct {
    size_t vocab, hidden, layers, inter;
    size_t heads, q_lora, kv_lora, nope, rope, v;     /* MLA */
    size_t kda_heads, kda_dim, taps, a_log_len;       /* KDA */
    size_t block;                                     /* AttnRes */
    size_t experts, top_k, shared, moe_inter, latent; /* MoE */
    size_t groups, topk_groups, first_dense, moe_freq;
    bool is_kda[TEST_MAX_LAYERS];
    const char *seed; /* goes before every tensor name in the hash; "" for the golden models */
    int32_t poison;   /* token whose embedding is NaN, -1: none */
} test_model;

extern const test_model test_model_a, test_model_b;

uint64_t test_hash(const char *prefix, const char *s);
uint64_t test_hash_rnd(uint64_t hash, uint64_t i);

/* Writes config.json and model.safetensors into `dir`, which exists. Aborts the test on failure. */
void test_model_write(const test_model *m, const char *dir);

/* The golden prompt. */
void test_prompt(const test_model *m, int32_t *ids, size_t n);

/* A fresh folder under the temporary directory; freed and removed with test_dir_remove. */
char *test_dir_new(void);
void test_dir_remove(char *dir);

#endif
