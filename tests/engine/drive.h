/* drive.h: drives an engine through k3.h as a simple host would, one sequence at a time. */
#ifndef K3_TEST_DRIVE_H
#define K3_TEST_DRIVE_H

#include <k3/k3.h>

/* Opens `dir`; `more` is further JSON members, each with a leading comma. Fails the test on error.
 */
k3_engine *drive_open(const char *dir, const char *mode, int threads, const char *more);
void drive_kv(k3_engine *e, int32_t num_blocks, int32_t block_tokens, int32_t n_slots);

/* A sequence in one slot whose blocks are first_block, first_block + 1, ... */
typedef struct {
    k3_engine *engine;
    int32_t slot, first_block, block_tokens;
    int32_t len; /* committed */
} drive_seq;

/* One step of n final tokens, committed; logits of all rows if `logits` ([n, vocab]) is given.
 * Returns the status of the request (or of the call). */
k3_status drive_step(drive_seq *s, const int32_t *ids, int32_t n, float *logits);

#endif
