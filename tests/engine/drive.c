#include "drive.h"

#include "test.h"

k3_engine *drive_open(const char *dir, const char *mode, int threads, const char *more)
{
    char json[2000], err[600] = "";
    k3_engine *e = NULL;
    snprintf(json, sizeof json, "{\"model\":\"%s\",\"mode\":\"%s\",\"threads\":%d%s}", dir, mode,
             threads, more);
    k3_status st = k3_open(json, NULL, NULL, &e, err, sizeof err);
    if (st != K3_OK)
        fail_msg("k3_open: %d %s", st, err);
    return e;
}

void drive_kv(k3_engine *e, int32_t num_blocks, int32_t block_tokens, int32_t n_slots)
{
    const k3_kv_config c = {.size = sizeof c,
                            .num_blocks = num_blocks,
                            .block_tokens = block_tokens,
                            .n_slots = n_slots};
    if (k3_kv_init(e, &c, NULL) != K3_OK)
        fail_msg("k3_kv_init: %s", k3_last_error(e));
}

k3_status drive_step(drive_seq *s, const int32_t *ids, int32_t n, float *logits)
{
    int32_t q_start[2] = {0, n}, zero = 0, op = s->len == 0 ? K3_SLOT_RESET : K3_SLOT_KEEP;
    int32_t n_blocks = (s->len + n + s->block_tokens - 1) / s->block_tokens, off[2] = {0, n_blocks};
    int32_t *table = calloc((size_t)n_blocks, sizeof *table),
            *rows = calloc((size_t)n, sizeof *rows);
    k3_status status = K3_OK;
    k3_info info = {.size = sizeof info};
    assert_int_equal(k3_query(s->engine, &info), K3_OK);
    for (int32_t i = 0; i < n_blocks; i++)
        table[i] = s->first_block + i;
    for (int32_t i = 0; i < n; i++)
        rows[i] = i;
    const k3_batch b = {.size = sizeof b,
                        .n_reqs = 1,
                        .n_tokens = n,
                        .n_logit_rows = logits != NULL ? n : 0,
                        .token_ids = ids,
                        .q_start = q_start,
                        .ctx_len = &s->len,
                        .slot = &s->slot,
                        .slot_op = &op,
                        .n_spec = &zero,
                        .mla_off = off,
                        .mla_table = table,
                        .logit_row = rows,
                        .req_status = &status};
    k3_status st = k3_forward(s->engine, &b, logits, info.vocab_size);
    if (st == K3_OK) {
        const k3_commit_args c = {.size = sizeof c, .n_reqs = 1, .accepted = &n};
        st = k3_commit(s->engine, &c);
        s->len += n;
    }
    free(table);
    free(rows);
    return st != K3_OK ? st : status;
}
