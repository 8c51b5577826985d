/* fake_engine.h: a link-time double of libk3 for scheduler tests. Its logits are a deterministic
 * function of the token prefix as found in the slot AND in every page the table names, so a wrong,
 * stale, overwritten or missing page, slot or snapshot changes the output. It checks every rule of
 * k3.h and remembers the first violation. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <k3/k3.h>

enum { DRAFT_PERFECT, DRAFT_RANDOM, DRAFT_HOSTILE, DRAFT_MIXED };

typedef struct {
    int32_t vocab, max_num_seqs, max_num_batched_tokens, max_model_len;
    int32_t snapshot_blocks, draft_tokens, draft_mode;
    int32_t poison;                    /* token whose computation is not finite, -1 = none */
    int32_t image_budget;              /* pictures that fit */
    int64_t step_ns, row_ns, draft_ns; /* simulated cost: the fake sleeps that long */
} fake_config;

k3_engine *fake_new(const fake_config *config);
void fake_free(k3_engine *e);
/* "" if every call so far obeyed k3.h. */
const char *fake_violation(const k3_engine *e);
int64_t fake_rows(const k3_engine *e);

#endif
