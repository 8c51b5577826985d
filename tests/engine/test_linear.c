/* Products large enough to be dealt out piece by piece: the bits are those of one member. */
#include "test.h"

#include "run.h"

#include <unistd.h>

enum { K = 545, ROWS = 3, PLAIN = 1000, F32 = 37, GLU = 300 };

typedef struct {
    float *y, *f32;
    k3i_bf16 *h;
} outputs;

static k3i_bf16 *random_bf16(uint64_t *seed, size_t n)
{
    k3i_bf16 *p = k3i_alloc_array(n, sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = k3i_to_bf16(test_rnd_float(seed));
    return p;
}

/* The three kinds side by side, by n_members (rank `rank` of `ranks`), into fresh outputs. */
static outputs product(const k3i_ops *op, size_t n_members, size_t rank, size_t ranks, size_t n_row)
{
    uint64_t seed = 1;
    outputs out = {k3i_alloc_zero(ROWS * PLAIN * sizeof(float)),
                   k3i_alloc_zero(ROWS * F32 * sizeof(float)),
                   k3i_alloc_zero(ROWS * GLU * sizeof(k3i_bf16))};
    k3i_bf16 *x = random_bf16(&seed, ROWS * K), *w = random_bf16(&seed, PLAIN * K),
             *router = random_bf16(&seed, F32 * K), *gate = random_bf16(&seed, GLU * K),
             *up = random_bf16(&seed, GLU * K);
    const k3i_item items[] = {
        {.x = x, .w = w, .n_out = PLAIN, .k = K, .y = out.y},
        {.kind = K3I_LINEAR_F32, .x = x, .w = router, .n_out = F32, .k = K, .y = out.f32},
        {.kind = K3I_GLU, .x = x, .w = gate, .w_up = up, .n_out = GLU, .k = K, .h = out.h},
    };
    k3i_run run = {.op = op,
                   .n_members = n_members,
                   .bf16 = 1,
                   .act_bytes = sizeof(k3i_bf16),
                   .scratch = k3i_alloc(n_members * k3i_linear_scratch()),
                   .scratch_bytes = k3i_linear_scratch(),
                   .ranks = {.rank = rank, .size = ranks, .failed = true /* nothing to gather */}};
    assert_int_equal(k3i_team_new(n_members, NULL, 0, &run.team, NULL), K3_OK);
    k3i_linear(&run, n_row, items, 3);
    k3i_team_free(run.team);
    k3i_free(run.scratch);
    k3i_free(x);
    k3i_free(w);
    k3i_free(router);
    k3i_free(gate);
    k3i_free(up);
    return out;
}

static void expect_same(const outputs *a, const outputs *b)
{
    assert_memory_equal(a->y, b->y, ROWS * PLAIN * sizeof(float));
    assert_memory_equal(a->f32, b->f32, ROWS * F32 * sizeof(float));
    assert_memory_equal(a->h, b->h, ROWS * GLU * sizeof(k3i_bf16));
}

static void outputs_done(outputs *o)
{
    k3i_free(o->y);
    k3i_free(o->f32);
    k3i_free(o->h);
}

static void dealt_products_have_the_same_bits(void **state)
{
    (void)state;
    const k3i_ops *op;
    assert_int_equal(k3i_ops_select(NULL, &op, NULL), K3_OK);
    for (size_t n_row = 1; n_row <= ROWS; n_row += ROWS - 1) {
        for (size_t rank = 0; rank < 2; rank++) {
            outputs one = product(op, 1, rank, 1 + rank, n_row);
            for (size_t n = 2; n < 6; n++) {
                outputs many = product(op, n, rank, 1 + rank, n_row);
                expect_same(&many, &one);
                outputs_done(&many);
            }
            outputs_done(&one);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dealt_products_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
