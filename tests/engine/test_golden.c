/* Golden models A and B of text-model.md 7 through the C API: logits, per-layer values, states,
 * latents, greedy continuation; and prefill 70 + 10 single steps equal to one prefill of 80, bit
 * for bit. */
#include "test.h"

#include "drive.h"
#include "engine.h"
#include "golden_values.h"
#include "model.h"
#include "parts.h"

#include <math.h>

enum { N = 80, BLOCK = 16 };

static const double tolerance = 1e-4; /* relative, text-model 7.5 */

static void expect_close(double got, double want, double scale, const char *what, size_t at)
{
    if (!(fabs(got - want) <= tolerance * scale))
        fail_msg("%s %zu: %.7g, expected %.7g", what, at, got, want);
}

static double l2(const float *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)x[i] * x[i];
    return sqrt(s);
}

static int32_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return (int32_t)best;
}

/* Experts of a token, ascending, and their weights where they are given. */
typedef struct {
    size_t layer, row;
    int32_t expert[4];
    double weight[4];
} golden_experts;

static const golden_experts experts_a[] = {
    {1, 0, {2, 4, 6, 15}, {0.323699, 0.196433, 0.228717, 0.251151}},
    {1, 79, {2, 4, 6, 11}, {0}},
    {5, 79, {1, 2, 11, 14}, {0}},
    {8, 79, {5, 11, 12, 13}, {0}},
    {SIZE_MAX, 0, {0}, {0}},
};
static const golden_experts experts_b[] = {{12, 79, {5, 6, 11, 17}, {0}}, {SIZE_MAX, 0, {0}, {0}}};

typedef struct {
    const k3_engine *engine;
    const golden_layer *layers;
    const golden_experts *experts;
    size_t n_seen, n_routed;
} traced;

/* The routing of a layer is still in the workspace when its output is reported. */
static void check_experts(traced *t, size_t layer)
{
    const k3i_moe_ws *ws = &t->engine->text.ws->moe;
    for (const golden_experts *g = t->experts; g->layer != SIZE_MAX; g++) {
        if (g->layer != layer)
            continue;
        for (size_t k = 0; k < 4; k++) {
            assert_int_equal(ws->expert[g->row * 4 + k], g->expert[k]);
            if (g->weight[0] != 0)
                expect_close(ws->weight[g->row * 4 + k], g->weight[k], 1, "expert weight of layer",
                             layer);
        }
        t->n_routed++;
    }
}

static void check_trace(void *user, const char *what, size_t layer, const float *x, size_t T,
                        size_t n)
{
    traced *t = user;
    const golden_layer *g = &t->layers[layer];
    double norm = l2(x, T * n);
    t->n_seen++;
    if (strcmp(what, "prefix") == 0) {
        expect_close(norm, g->prefix, g->prefix, "prefix of layer", layer);
        return;
    }
    bool attn = strcmp(what, "attn") == 0;
    if (!attn)
        check_experts(t, layer);
    double want = attn ? g->attn : g->ffn;
    const double *row = attn ? g->attn79 : g->ffn79;
    expect_close(norm, want, want, what, layer);
    for (size_t i = 0; i < 4 && row[0] != 0; i++)
        expect_close(x[79 * n + i], row[i], want / sqrt(80), what, layer);
}

typedef struct {
    const test_model *m;
    const golden_row *rows;
    const int32_t *argmax, *greedy;
    const golden_layer *layers;
    const golden_experts *experts;
    size_t n_routed;
} golden;

static const golden golden_a = {&test_model_a, rows_a, argmax_a, greedy_a, layers_a, experts_a, 4};
static const golden golden_b = {&test_model_b, rows_b, argmax_b, greedy_b, layers_b, experts_b, 1};

static void check_logits(const golden *g, const float *logits)
{
    size_t V = g->m->vocab;
    for (size_t i = 0; i < 7; i++) {
        const golden_row *r = &g->rows[i];
        const float *x = logits + r->row * V;
        expect_close(l2(x, V), r->l2, r->l2, "L2 of the logits of row", r->row);
        for (size_t c = 0; c < 8; c++)
            expect_close(x[c], r->logit[c], r->l2 / sqrt((double)V), "logit of row", r->row);
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(argmax(logits + i * V, V), g->argmax[i]);
}

/* State of a KDA layer (by number among them): row-major S of head 0, and norms over all heads. */
static void check_state(k3_engine *e, size_t kda_layer, const double *row0, const double *col0,
                        double sum, double norm)
{
    const k3i_kda_layout *lay = &e->text.kda;
    const char *at = e->kv.state + kda_layer * lay->n_heads * lay->head_bytes;
    double s = 0, sq = 0;
    for (size_t h = 0; h < lay->n_heads; h++) {
        const float *S = (const void *)(at + h * lay->head_bytes);
        for (size_t i = 0; i < lay->d * lay->d; i++) {
            s += S[i];
            sq += (double)S[i] * S[i];
        }
    }
    const float *S = (const void *)at;
    for (size_t i = 0; i < 4; i++) {
        if (row0 != NULL)
            expect_close(S[i], row0[i], 1, "S[0] of KDA layer", kda_layer);
        if (col0 != NULL)
            expect_close(S[i * lay->d], col0[i], 1, "S[.][0] of KDA layer", kda_layer);
    }
    expect_close(s, sum, norm, "sum of S of KDA layer", kda_layer);
    expect_close(sqrt(sq), norm, norm, "L2 of S of KDA layer", kda_layer);
}

static void check_latent(k3_engine *e, size_t mla_layer, size_t pos, const double *latent,
                         const double *pe)
{
    size_t W = k3i_latent_width(&e->target.config), C = e->target.config.kv_lora_rank;
    const char *page = e->kv.pool.base + (1 + pos / BLOCK) * e->kv.shape.page_bytes;
    const float *row = (const void *)(page + e->kv.layer_offset[mla_layer]);
    row += pos % BLOCK * W;
    for (size_t i = 0; i < 4; i++) {
        expect_close(row[i], latent[i], 1, "latent of MLA layer", mla_layer);
        if (pe != NULL)
            expect_close(row[C + i], pe[i], 1, "pe key of MLA layer", mla_layer);
    }
}

static void check_states_a(k3_engine *e)
{
    static const double row0[] = {0.376419, -0.643811, -0.471262, -0.616100};
    static const double col0[] = {0.376419, 0.824824, 0.078228, 0.062387};
    static const double row6[] = {-0.008656, 0.265892, -0.001382, 0.065107};
    static const double hist[] = {0.015583, -0.016674, -0.026292};
    static const double lat3[] = {-0.234021, -0.185546, -1.692066, 0.143478};
    static const double pe3[] = {0.357094, 2.777525, -0.618685, -1.023420};
    static const double lat8[] = {0.980191, 0.265780, -1.138011, -1.851573};
    check_state(e, 0, row0, col0, -10.838890, 9.112987);
    check_state(e, 5, row6, NULL, 11.508805, 7.504328);
    const float *h = (const void *)(e->kv.state + e->text.kda.S_bytes);
    for (size_t i = 0; i < 3; i++)
        expect_close(h[i * e->text.kda.d], hist[i], 0.1, "convolution history", i);
    check_latent(e, 0, 79, lat3, pe3);
    check_latent(e, 2, 79, lat8, NULL);
}

static void check_states_b(k3_engine *e)
{
    static const double row0[] = {-0.794045, -0.538177, -0.241673, -0.513135};
    static const double col0[] = {-0.794045, 0.084719, -0.466666, 0.057488};
    check_state(e, 0, row0, col0, -61.015851, 20.613360);
    check_state(e, 8, NULL, NULL, 38.431805, 13.676242);
}

static void check_greedy(const golden *g, drive_seq *s, const float *last)
{
    size_t V = g->m->vocab;
    float *x = malloc(V * sizeof *x);
    memcpy(x, last, V * sizeof *x);
    for (size_t i = 0; i < 16; i++) {
        int32_t id = argmax(x, V);
        assert_int_equal(id, g->greedy[i]);
        assert_int_equal(drive_step(s, &id, 1, x), K3_OK);
    }
    free(x);
}

static void check_model(const golden *g, void (*check_states)(k3_engine *e), const char *isa)
{
    char *dir = test_dir_new(), more[64];
    size_t V = g->m->vocab;
    float *one = malloc(N * V * sizeof *one), *split = malloc(N * V * sizeof *split);
    int32_t ids[N];
    test_prompt(g->m, ids, N);
    test_model_write(g->m, dir);
    snprintf(more, sizeof more, ",\"isa\":\"%s\"", isa);
    k3_engine *e = drive_open(dir, "f32", 2, more);
    drive_kv(e, 16, BLOCK, 1);
    traced t = {.engine = e, .layers = g->layers, .experts = g->experts};
    e->trace = check_trace;
    e->trace_user = &t;
    drive_seq s = {.engine = e, .first_block = 1, .block_tokens = BLOCK};
    assert_int_equal(drive_step(&s, ids, N, one), K3_OK);
    assert_int_equal(t.n_seen, 3 * g->m->layers);
    assert_int_equal(t.n_routed, g->n_routed);
    e->trace = NULL;
    check_logits(g, one);
    check_states(e);
    s.len = 0;
    assert_int_equal(drive_step(&s, ids, 70, split), K3_OK);
    for (int32_t i = 70; i < N; i++)
        assert_int_equal(drive_step(&s, ids + i, 1, split + (size_t)i * V), K3_OK);
    assert_memory_equal(one, split, N * V * sizeof *one);
    check_greedy(g, &s, split + (N - 1) * V);
    k3_close(e);
    free(one);
    free(split);
    test_dir_remove(dir);
}

static void model_a(void **state)
{
    (void)state;
    check_model(&golden_a, check_states_a, "ref");
    for (size_t i = 1; k3i_ops_nth(i) != NULL; i++)
        check_model(&golden_a, check_states_a, k3i_ops_nth(i)->isa);
}

static void model_b(void **state)
{
    (void)state;
    for (size_t i = 0; k3i_ops_nth(i) != NULL; i++)
        check_model(&golden_b, check_states_b, k3i_ops_nth(i)->isa);
}

/* A missing, doubled or misplaced rounding moves the norms by about 1e-4, the right ones by 1e-6.
 */
static void check_rounded(void *user, const char *what, size_t layer, const float *x, size_t T,
                          size_t n)
{
    size_t *n_seen = user;
    for (size_t i = 0; i < sizeof rounded_a / sizeof rounded_a[0]; i++) {
        const golden_rounded *g = &rounded_a[i];
        if (g->layer != layer || strcmp(g->what, what) != 0)
            continue;
        double norm = l2(x, T * n);
        if (!(fabs(norm - g->l2) < 1e-6 * g->l2))
            fail_msg("%s of layer %zu: L2 %.9g, expected %.9g", what, layer, norm, g->l2);
        for (size_t c = 0; c < 8; c++) {
            if (!(fabs(x[79 * n + c] - g->row79[c]) <= 1e-6 * fabs(g->row79[c])))
                fail_msg("%s of layer %zu: [79][%zu] is %.9g, expected %.9g", what, layer, c,
                         (double)x[79 * n + c], g->row79[c]);
        }
        (*n_seen)++;
    }
}

static void rounding_points(void **state)
{
    (void)state;
    char *dir = test_dir_new();
    int32_t ids[N];
    size_t n_seen = 0;
    test_prompt(&test_model_a, ids, N);
    test_model_write(&test_model_a, dir);
    k3_engine *e = drive_open(dir, "bf16", 2, ",\"isa\":\"ref\"");
    drive_kv(e, 16, BLOCK, 1);
    e->trace = check_rounded;
    e->trace_user = &n_seen;
    drive_seq s = {.engine = e, .first_block = 1, .block_tokens = BLOCK};
    assert_int_equal(drive_step(&s, ids, N, NULL), K3_OK);
    assert_int_equal(n_seen, 4);
    k3_close(e);
    test_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(model_a), cmocka_unit_test(model_b),
                                       cmocka_unit_test(rounding_points)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
