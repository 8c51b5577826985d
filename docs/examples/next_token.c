/* next_token: the whole life of an engine. Prints the most probable token behind the given ids.
 *
 *   cc next_token.c -lk3 -o next_token && ./next_token DIR 237 9 264 */
#include <k3/k3.h>

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 512, BLOCK_TOKENS = 64 };

/* One sequence in slot 0; its pages are 1, 2, ... because page 0 is reserved. */
static k3_status forward(k3_engine *engine, const int32_t *ids, int32_t n, float *logits, int32_t vocab)
{
    int32_t table[MAX_TOKENS / BLOCK_TOKENS], q_start[] = {0, n}, mla_off[] = {0, 0};
    int32_t ctx_len = 0, slot = 0, slot_op = K3_SLOT_RESET, n_spec = 0, last = n - 1;
    k3_batch batch = {.size = sizeof batch, .n_reqs = 1, .n_tokens = n, .n_logit_rows = 1};
    k3_commit_args commit = {.size = sizeof commit, .n_reqs = 1, .accepted = &n};
    mla_off[1] = (n + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    for (int32_t i = 0; i < mla_off[1]; i++)
        table[i] = i + 1;
    batch.token_ids = ids;
    batch.q_start = q_start;
    batch.ctx_len = &ctx_len;
    batch.slot = &slot;
    batch.slot_op = &slot_op;
    batch.n_spec = &n_spec;
    batch.mla_off = mla_off;
    batch.mla_table = table;
    batch.logit_row = &last;
    k3_status status = k3_forward(engine, &batch, logits, vocab);
    return status != K3_OK ? status : k3_commit(engine, &commit);
}

int main(int argc, char **argv)
{
    char options[4096], text[512];
    int32_t ids[MAX_TOKENS], n = 0, best = 0;
    k3_engine *engine = NULL;
    k3_info info = {.size = sizeof info};
    k3_kv_config kv = {.size = sizeof kv, .num_blocks = 1 + MAX_TOKENS / BLOCK_TOKENS,
                       .block_tokens = BLOCK_TOKENS, .n_slots = 1};
    if (argc < 3)
        return 2;
    for (int i = 2; i < argc && n < MAX_TOKENS; i++)
        ids[n++] = (int32_t)strtol(argv[i], NULL, 10);
    snprintf(options, sizeof options, "{\"model\": \"%s\", \"mode\": \"f32\", \"max_model_len\": %d}", argv[1],
             MAX_TOKENS);
    if (k3_open(options, NULL, NULL, &engine, text, sizeof text) != K3_OK) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    k3_query(engine, &info);
    float *logits = malloc((size_t)info.vocab_size * sizeof *logits);
    if (logits == NULL || k3_kv_init(engine, &kv, NULL) != K3_OK ||
        forward(engine, ids, n, logits, info.vocab_size) != K3_OK) {
        fprintf(stderr, "%s\n", k3_last_error(engine));
        free(logits);
        k3_close(engine);
        return 1;
    }
    for (int32_t i = 1; i < info.vocab_size; i++)
        best = logits[i] > logits[best] ? i : best;
    printf("%d\n", (int)best);
    free(logits);
    k3_close(engine);
    return 0;
}
