/* fixture.h: a small draft in memory (the tiny pair of dspark.md 10.1 and variants of it) with a
 * page pool, for tests of src/model/dspark*.c without files. */
#ifndef K3_DSPARK_FIXTURE_H
#define K3_DSPARK_FIXTURE_H

#include "dspark.h"

/* The vocabulary is worth the whole team's while; positions need more than one look-up of keys. */
enum { FIX_VOCAB = 6007, FIX_BLOCK = 8, FIX_PAGES = 100, FIX_MAX_POS = 640 };

typedef struct {
    bool gqa, causal, tap_norms, half_split;
    size_t layers;
    const char *isa;
    size_t threads;
    bool rows; /* members share rows, not outputs */
    int bf16;
    size_t max_draft;
} fix_options;

typedef struct {
    k3i_draft_files files;
    k3i_text_weights target;
    k3i_arena arena;
    k3i_run run;
    k3i_dspark d;
    k3i_pool pool;
    size_t layer_offset[8];
    float *taps; /* [FIX_MAX_POS, n_taps H]: tap row of position i, f32 */
    void *acts;  /* the same as acts */
} fixture;

void fix_open(fixture *f, fix_options o);
void fix_close(fixture *f);

/* Writes the context rows of positions from..to-1 into the pages of a table. */
void fix_context(fixture *f, size_t from, size_t to, const int32_t *table);

/* Pages for positions 0..n-1, in a pseudo-random order chosen by `seed`; none twice for one
 * `taken`. */
void fix_table(uint64_t seed, size_t n, unsigned char *taken, int32_t *table);

#endif
