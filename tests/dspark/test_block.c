/* The draft's context rows and block pass against a dense double re-implementation, and the
 * invariants 7, 8 and 9 of dspark.md 10.3: neighbours, pages, chunks, threads and bytes beyond the
 * context do not matter, siblings of the block do. */
#include "test.h"

#include "fixture.h"
#include "oracle.h"

#include <math.h>

static const fix_options plain = {.layers = 2, .threads = 1, .max_draft = 7, .isa = "ref"};

typedef struct {
    int32_t ids[K3I_MAX_DRAFT];
    float conf[K3I_MAX_DRAFT];
    float logits[K3I_MAX_DRAFT * FIX_VOCAB];
} result;

/* Writes the context of positions 0..p-1 in two pieces cut at `cut`, then drafts. */
static result draft(fixture *f, size_t p, size_t T, int32_t anchor, uint64_t table_seed, size_t cut)
{
    unsigned char taken[FIX_PAGES] = {0};
    int32_t table[FIX_PAGES];
    fix_table(table_seed, p + T, taken, table);
    fix_context(f, 0, cut, table);
    fix_context(f, cut, p, table);
    result r = {0};
    k3i_block_seq q = {.pos = p, .anchor = anchor, .blocks = table};
    k3i_block b = {.n_seqs = 1,
                   .n_draft = T,
                   .seqs = &q,
                   .ids = r.ids,
                   .confidence = r.conf,
                   .logits = r.logits};
    k3i_dspark_block(&f->d, &f->run, &f->pool, &b);
    return r;
}

static void expect_same(const result *a, const result *b)
{
    assert_memory_equal(a, b, sizeof *a);
}

/* Of the first row's logits in bf16 mode, relative: 0.007 at most was seen. */
#define BF16_ERROR 0.014

static void expect_oracle(fix_options o, size_t p, size_t T)
{
    fixture f;
    fix_open(&f, o);
    const k3i_draft_config *c = &f.files.config;
    size_t W = f.d.row_width;
    double *ctx = calloc(c->n_layers * p * W + 1, sizeof *ctx), *row = calloc(8 * W, sizeof *row);
    double z[K3I_MAX_DRAFT * FIX_VOCAB], conf[K3I_MAX_DRAFT];
    int32_t ids[K3I_MAX_DRAFT];
    assert_true(ctx != NULL && row != NULL);
    for (size_t i = 0; i < p; i++) {
        oracle_context(c, &f.files.weights, f.taps + i * c->n_taps * c->hidden_size, i, row);
        for (size_t l = 0; l < c->n_layers; l++)
            memcpy(ctx + (l * p + i) * W, row + l * W, W * sizeof *row);
    }
    oracle_block_args a = {.c = c,
                           .w = &f.files.weights,
                           .embed = f.target.embed_tokens,
                           .lm_head = f.target.lm_head,
                           .ctx = ctx,
                           .p = p,
                           .T = T,
                           .anchor = 11,
                           .z = z,
                           .conf = conf,
                           .ids = ids};
    oracle_block(&a);
    result got = draft(&f, p, T, 11, 5, p / 3);
    double err = 0, norm = 0;
    size_t rows = o.bf16 ? 1 : T; /* later ones depend on the choices before */
    for (size_t i = 0; i < rows * FIX_VOCAB; i++) {
        err += ((double)got.logits[i] - z[i]) * ((double)got.logits[i] - z[i]);
        norm += z[i] * z[i];
    }
    if (sqrt(err / norm) > (o.bf16 ? BF16_ERROR : 1e-5))
        fail_msg("logits are off by %.2e (p %zu, T %zu)", sqrt(err / norm), p, T);
    for (size_t k = 0; k < T && !o.bf16; k++) {
        assert_int_equal(got.ids[k], ids[k]);
        assert_true(fabs((double)got.conf[k] - conf[k]) < 1e-5);
    }
    free(ctx);
    free(row);
    fix_close(&f);
}

static void matches_dense_double(void **state)
{
    (void)state;
    static const size_t p[] = {1, 7, 40, 64, 100, 600}, T[] = {7, 3, 1, 7, 5, 7};
    for (size_t i = 0; i < 6; i++) {
        fix_options o = plain;
        expect_oracle(o, p[i], T[i]);
        o.causal = true;
        expect_oracle(o, p[i], T[i]);
        o.tap_norms = true;
        o.half_split = true;
        expect_oracle(o, p[i], T[i]);
        o.gqa = true;
        expect_oracle(o, p[i], T[i]);
        o.causal = false;
        o.half_split = false;
        expect_oracle(o, p[i], T[i]);
    }
}

static void bf16_is_near(void **state)
{
    (void)state;
    static const size_t p[] = {7, 64, 100, 600}, T[] = {3, 7, 7, 7};
    for (size_t i = 0; i < 4; i++) {
        fix_options o = plain;
        o.isa = NULL;
        o.bf16 = 1;
        expect_oracle(o, p[i], T[i]);
        o.causal = true;
        o.gqa = true;
        expect_oracle(o, p[i], T[i]);
    }
}

/* dspark.md 3.4, reference values of the published draft's rotation. */
static void yarn_reference_values(void **state)
{
    (void)state;
    fixture f;
    fix_open(&f, plain);
    k3i_draft_config *c = &f.files.config;
    c->qk_nope_head_dim = 128;
    c->qk_rope_head_dim = 64;
    c->yarn_factor = 32;
    c->yarn_original_max = 32768;
    k3i_dspark d;
    assert_int_equal(k3i_dspark_init(&d, &f.files, &f.target, &f.run, 0, 7, 1 << 20, NULL), K3_OK);
    static const struct {
        size_t i;
        double w;
    } want[] = {{0, 1},
                {1, 0.713111084911932},
                {15, 0.00627130337702138},
                {16, 0.0040782830725990486},
                {20, 0.0006472429221761893},
                {25, 2.5446983665530005e-05},
                {26, 4.752661605335366e-06},
                {31, 8.764412911589874e-07}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_true(fabs(d.freq[want[i].i] / want[i].w - 1) < 1e-12);
    assert_true(fabs((double)d.softmax_scale / 0.13086079996295005 - 1) < 1e-7);
    assert_true(fabs(d.table_scale - 1) < 1e-15);
    k3i_dspark_done(&d);
    fix_close(&f);
}

static void schedule_does_not_matter(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        fix_options o = plain;
        o.isa = NULL;
        o.bf16 = bf16;
        fixture f;
        fix_open(&f, o);
        result want = draft(&f, 50, 7, 3, 1, 0);
        for (uint64_t seed = 2; seed < 6; seed++) {
            result got = draft(&f, 50, 7, 3, seed, seed * 9);
            expect_same(&got, &want);
        }
        fix_close(&f);
        o.threads = 3;
        for (int rows = 0; rows < 2; rows++) {
            o.rows = rows;
            fix_open(&f, o);
            result got = draft(&f, 50, 7, 3, 1, 17);
            expect_same(&got, &want);
            fix_close(&f);
        }
    }
}

/* The same request at place `at` among twelve, more than one group holds. */
static void among_neighbours(fixture *f, size_t at, const result *want)
{
    enum { N = 12 };
    unsigned char taken[FIX_PAGES] = {0};
    int32_t table[N][8];
    k3i_block_seq q[N];
    for (size_t s = 0; s < N; s++) {
        size_t p = s == at ? 20 : 3 + s;
        fix_table(s + 1, p, taken, table[s]);
        fix_context(f, 0, p, table[s]);
        q[s] = (k3i_block_seq){.pos = p, .anchor = s == at ? 42 : (int32_t)s, .blocks = table[s]};
    }
    int32_t ids[N * 7];
    static float logits[N * 7 * FIX_VOCAB];
    k3i_block b = {.n_seqs = N, .n_draft = 7, .seqs = q, .ids = ids, .logits = logits};
    k3i_dspark_block(&f->d, &f->run, &f->pool, &b);
    assert_memory_equal(ids + at * 7, want->ids, 7 * sizeof *ids);
    assert_memory_equal(logits + at * 7 * FIX_VOCAB, want->logits, 7 * FIX_VOCAB * sizeof(float));
}

static void neighbours_do_not_matter(void **state)
{
    (void)state;
    fix_options o = plain;
    o.isa = NULL;
    o.threads = 2;
    for (int rows = 0; rows < 2; rows++) {
        o.rows = rows;
        fixture f;
        fix_open(&f, o);
        result want = draft(&f, 20, 7, 42, 3, 0);
        for (size_t at = 0; at < 12; at += 3)
            among_neighbours(&f, at, &want);
        fix_close(&f);
    }
}

static void siblings_matter_unless_causal(void **state)
{
    (void)state;
    fixture f;
    fix_open(&f, plain);
    result a = draft(&f, 20, 3, 1, 1, 0), b = draft(&f, 20, 3, 2, 1, 0);
    for (size_t k = 0; k < 3; k++)
        assert_memory_not_equal(a.logits + k * FIX_VOCAB, b.logits + k * FIX_VOCAB,
                                FIX_VOCAB * sizeof(float));
    result wide = draft(&f, 20, 7, 1, 1, 0); /* more mask rows change row 0 */
    assert_memory_not_equal(a.logits, wide.logits, FIX_VOCAB * sizeof(float));
    fix_close(&f);
    fix_options o = plain;
    o.causal = true;
    fix_open(&f, o);
    result narrow = draft(&f, 20, 3, 1, 1, 0);
    wide = draft(&f, 20, 7, 1, 1, 0);
    assert_memory_equal(narrow.logits, wide.logits, 3 * FIX_VOCAB * sizeof(float));
    fix_close(&f);
}

/* With a temperature the ids are the Gumbel-max choice under the position's noise: the same seed
 * gives the same ids, other seeds others, and the logits are those of temperature 0 divided by it.
 */
static void sampled_proposals(void **state)
{
    (void)state;
    fixture f;
    fix_open(&f, plain);
    unsigned char taken[FIX_PAGES] = {0};
    int32_t table[8], ids[5][7];
    fix_table(1, 20, taken, table);
    fix_context(&f, 0, 20, table);
    float logits[7 * FIX_VOCAB], greedy[7 * FIX_VOCAB];
    for (uint64_t seed = 0; seed < 5; seed++) {
        k3i_block_seq q = {
            .pos = 20, .anchor = 9, .blocks = table, .temperature = 2, .seed = seed % 4};
        k3i_block b = {.n_seqs = 1, .n_draft = 7, .seqs = &q, .ids = ids[seed], .logits = logits};
        k3i_dspark_block(&f.d, &f.run, &f.pool, &b);
    }
    assert_memory_equal(ids[0], ids[4], sizeof ids[0]);
    assert_memory_not_equal(ids[0], ids[1], sizeof ids[0]);
    assert_memory_not_equal(ids[1], ids[2], sizeof ids[0]);
    k3i_block_seq q = {.pos = 20, .anchor = 9, .blocks = table};
    k3i_block b = {.n_seqs = 1, .n_draft = 7, .seqs = &q, .ids = ids[0], .logits = greedy};
    k3i_dspark_block(&f.d, &f.run, &f.pool, &b);
    for (size_t i = 0; i < FIX_VOCAB; i++) /* row 0: the later ones saw other choices */
        assert_true(logits[i] == greedy[i] / 2);
    fix_close(&f);
}

/* Tokens of the second half are copies of the first: whoever finds the best token, the lower one of
 * the two is proposed. */
static void ties_go_to_the_lowest(void **state)
{
    (void)state;
    enum { HALF = FIX_VOCAB / 2 };
    fix_options o = plain;
    o.threads = 2;
    fixture f;
    fix_open(&f, o);
    size_t H = f.files.config.hidden_size, E = f.files.config.markov_rank;
    k3i_bf16 *head = (void *)(uintptr_t)f.target.lm_head;
    k3i_bf16 *bias = (void *)(uintptr_t)f.files.weights.markov_w2;
    memcpy(head + HALF * H, head, HALF * H * sizeof *head);
    memcpy(bias + HALF * E, bias, HALF * E * sizeof *bias);
    for (int32_t anchor = 0; anchor < 4; anchor++) {
        result r = draft(&f, 20, 7, anchor, 1, 0);
        for (size_t k = 0; k < 7; k++)
            assert_true(r.ids[k] < HALF || r.ids[k] == FIX_VOCAB - 1);
    }
    fix_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_dense_double),
        cmocka_unit_test(yarn_reference_values),
        cmocka_unit_test(schedule_does_not_matter),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(siblings_matter_unless_causal),
        cmocka_unit_test(sampled_proposals),
        cmocka_unit_test(bf16_is_near),
        cmocka_unit_test(ties_go_to_the_lowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
