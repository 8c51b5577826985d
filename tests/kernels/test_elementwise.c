/* Elementwise ops, norms, activations and searches: every instruction set against ref/ at every
 * tail length, with misaligned buffers between guard bytes, extreme and special values. */
#include "fixture.h"

#include <math.h>

static const size_t lengths[] = {0,  1,  2,  3,  4,  5,  6,  7,   8,   9,   10,  11,  12,
                                 13, 14, 15, 16, 17, 18, 19, 23,  24,  25,  31,  32,  33,
                                 47, 48, 49, 63, 64, 65, 66, 127, 128, 129, 200, 1027};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

/* Special values of every kind, in the first elements; the rest keeps its contents. */
static void sprinkle(float *x, size_t n)
{
    static const float special[] = {0.0f,       -0.0f,     1.0f,   -1.0f,      0x1p-149f,
                                    -0x1p-130f, 0x1p-126f, 1e-20f, 88.72f,     -88.0f,
                                    0x1.01p0f,  0x1.03p0f, 3e38f,  -3e38f,     1e4f,
                                    -1e4f,      0.625f,    0.05f,  0x1.ffp127f};
    for (size_t i = 0; i < n && i < sizeof special / sizeof special[0]; i++)
        x[n - 1 - i] = special[i];
}

static void sprinkle_nonfinite(float *x, size_t n)
{
    if (n > 2) {
        x[0] = NAN;
        x[n / 2] = INFINITY;
        x[n - 1] = -INFINITY;
    }
}

static void conversions_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t c = 0; c < N_LENGTHS; c++) {
            size_t n = lengths[c];
            fx f;
            fx_init(&f, c + 1);
            float *x = fx_floats(&f, n, 3.0f), *y = fx_out(&f, n), *want = fx_out(&f, n);
            sprinkle(x, n);
            sprinkle_nonfinite(x, n);
            k3i_bf16 *h = fx_bf16(&f, n, 0), *h_want = fx_bf16(&f, n, 0);
            ops->to_bf16(h, x, n);
            REF->to_bf16(h_want, x, n);
            fx_same(h, h_want, n * sizeof *h, "to_bf16 %s n %zu", ops->isa, n);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(h[i], k3i_to_bf16(x[i]));
            ops->from_bf16(y, h, n);
            REF->from_bf16(want, h, n);
            fx_same(y, want, n * sizeof *y, "from_bf16 %s n %zu", ops->isa, n);
            void *odd = memcpy(fx_new(&f, n * sizeof *h, 1, 1), h, n * sizeof *h);
            ops->from_bf16(y, odd, n);
            fx_same(y, want, n * sizeof *y, "from_bf16 at an odd address %s n %zu", ops->isa, n);
            ops->round_bf16(x, n);
            fx_same(x, want, n * sizeof *y, "round_bf16 %s n %zu", ops->isa, n);
            fx_done(&f, "conversions");
        }
}

/* All ops of the shape y[i] = f(a[i], b[i]) under one loop. */
typedef void (*binary_fn)(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                          int round);

static void run_add(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                    int round)
{
    ops->add(y, a, b, n, round);
}

static void run_mul(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                    int round)
{
    ops->mul(y, a, b, n, round);
}

static void run_axpy(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                     int round)
{
    (void)round;
    memcpy(y, b, n * sizeof *y);
    ops->axpy(y, -1.7f, a, n);
}

static void run_situ(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                     int round)
{
    ops->situ(y, a, b, n, 4.0f, 25.0f, round);
}

static void run_situ_uncapped(const k3i_ops *ops, float *y, const float *a, const float *b,
                              size_t n, int round)
{
    ops->situ(y, a, b, n, 1.0f, 0.0f, round);
}

static void run_silu(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                     int round)
{
    ops->silu_mul(y, a, b, n, round);
}

static void run_sigmoid(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                        int round)
{
    (void)b;
    ops->sigmoid(y, a, n, round);
}

static void run_gelu_tanh(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                          int round)
{
    (void)b;
    ops->gelu_tanh(y, a, n, round);
}

static void run_gelu_erf(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                         int round)
{
    (void)b;
    ops->gelu_erf(y, a, n, round);
}

static void run_rope(const k3i_ops *ops, float *y, const float *a, const float *b, size_t n,
                     int round)
{
    ops->rope(y, a, b, n / 2, round);
    if (n % 2)
        y[n - 1] = 0;
}

static const struct {
    const char *name;
    binary_fn run;
    const float *tol;
    float scale;
} binary_ops[] = {
    {"add", run_add, &fx_tol.add, 3.0f},
    {"mul", run_mul, &fx_tol.mul, 3.0f},
    {"axpy", run_axpy, &fx_tol.axpy, 3.0f},
    {"situ", run_situ, &fx_tol.situ, 30.0f},
    {"situ small", run_situ, &fx_tol.situ, 1e-3f},
    {"situ uncapped", run_situ_uncapped, &fx_tol.situ, 5.0f},
    {"silu_mul", run_silu, &fx_tol.silu_mul, 8.0f},
    {"sigmoid", run_sigmoid, &fx_tol.sigmoid, 30.0f},
    {"sigmoid tail", run_sigmoid, &fx_tol.sigmoid, 100.0f},
    {"gelu_tanh", run_gelu_tanh, &fx_tol.gelu_tanh, 6.0f},
    {"gelu_tanh small", run_gelu_tanh, &fx_tol.gelu_tanh, 1e-3f},
    {"gelu_erf", run_gelu_erf, &fx_tol.gelu_erf, 6.0f},
    {"gelu_erf small", run_gelu_erf, &fx_tol.gelu_erf, 1e-3f},
    {"rope", run_rope, &fx_tol.rope, 1.0f},
};

/* bf16 results may differ by one rounding where the f32 results straddle a tie: half of 2^-7. */
static float rounding_tol(float tol, int round)
{
    return tol == 0 || !round ? tol : 0x1p-8f;
}

static void binary_ops_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t o = 0; o < sizeof binary_ops / sizeof binary_ops[0]; o++)
            for (size_t c = 0; c < N_LENGTHS; c++)
                for (int round = 0; round < 2; round++) {
                    size_t n = lengths[c];
                    fx f;
                    fx_init(&f, 100 * o + c);
                    float *a = fx_floats(&f, n, binary_ops[o].scale),
                          *b = fx_floats(&f, n, binary_ops[o].scale);
                    float *y = fx_out(&f, n), *want = fx_out(&f, n);
                    if (*binary_ops[o].tol == 0)
                        sprinkle(a, n);
                    binary_ops[o].run(ops, y, a, b, n, round);
                    binary_ops[o].run(REF, want, a, b, n, round);
                    fx_expect(y, want, n, rounding_tol(*binary_ops[o].tol, round),
                              "%s %s n %zu round %d", binary_ops[o].name, ops->isa, n, round);
                    fx_done(&f, binary_ops[o].name);
                }
}

/* The bits of an element do not depend on its place: the same inputs shifted by one give the same
 * outputs. */
static void binary_ops_do_not_depend_on_place(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t o = 0; o < sizeof binary_ops / sizeof binary_ops[0]; o++) {
            size_t n = 70;
            fx f;
            fx_init(&f, o);
            float *a = fx_floats(&f, n, binary_ops[o].scale),
                  *b = fx_floats(&f, n, binary_ops[o].scale);
            float *y = fx_out(&f, n), *one = fx_out(&f, n);
            binary_ops[o].run(ops, y, a, b, n, 0);
            for (size_t i = 0; i + 2 <= n; i += 2)
                binary_ops[o].run(ops, one + i, a + i, b + i, 2, 0);
            fx_same(one, y, n * sizeof *y, "%s %s", binary_ops[o].name, ops->isa);
            fx_done(&f, binary_ops[o].name);
        }
}

/* Extreme arguments against ref: no overflow to NaN, saturation at the right ends, NaN stays NaN.
 */
static void activations_take_extreme_values(void **state)
{
    (void)state;
    static const float x[] = {0.0f,  -0.0f,  1e-30f,   -1e-30f,   0x1p-140f, 87.0f,  -87.0f,
                              88.6f, -88.6f, 89.5f,    -89.5f,    -103.0f,   104.0f, -105.0f,
                              1e4f,  -1e4f,  INFINITY, -INFINITY, NAN,       0.6249f};
    enum { N = sizeof x / sizeof x[0] };
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t i = 0; i < N; i++) {
            float y, want, up = 1.0f;
            ops->sigmoid(&y, x + i, 1, 0);
            REF->sigmoid(&want, x + i, 1, 0);
            if (x[i] < -87.0f) { /* subnormal or nearly: may be 0 */
                assert_true(fabsf(y - want) < 0x1p-126f);
            } else {
                fx_expect(&y, &want, 1, 1e-6f, "sigmoid(%g) %s", (double)x[i], ops->isa);
            }
            ops->situ(&y, x + i, &up, 1, 4.0f, 25.0f, 0);
            REF->situ(&want, x + i, &up, 1, 4.0f, 25.0f, 0);
            if (x[i] < -87.0f) {
                assert_true(fabsf(y - want) < 0x1p-123f);
            } else {
                fx_expect(&y, &want, 1, 1e-6f, "situ(%g) %s", (double)x[i], ops->isa);
            }
            if (fabsf(x[i]) <= 1e4f) {
                float z = x[i];
                ops->gelu_tanh(&y, &z, 1, 0);
                REF->gelu_tanh(&want, &z, 1, 0);
                assert_true(fabsf(y - want) <= 1e-6f * fabsf(z));
                ops->gelu_erf(&y, &z, 1, 0);
                REF->gelu_erf(&want, &z, 1, 0);
                assert_true(fabsf(y - want) <= 1e-6f * fabsf(z));
            }
        }
}

static void norms_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t c = 1; c < N_LENGTHS; c++)
            for (int round = 0; round < 3; round++) {
                size_t n = lengths[c];
                fx f;
                fx_init(&f, c);
                /* 1e-3: eps decides; 1e-18: squares are subnormal or 0; 50: late vision blocks */
                float scale = c % 3 == 0 ? 1e-3f : c % 3 == 1 ? 50.0f : 1e-18f;
                float *x = fx_floats(&f, n, scale), *y = fx_out(&f, n), *want = fx_out(&f, n);
                float *wf = fx_floats(&f, n, 2.0f), *gate = fx_floats(&f, n, 3.0f);
                k3i_bf16 *w = fx_bf16(&f, n, 2.0f);
                ops->rmsnorm(y, x, w, n, 1e-5f, round);
                REF->rmsnorm(want, x, w, n, 1e-5f, round);
                fx_expect(y, want, n, round ? 0x1p-7f : fx_tol.rmsnorm, "rmsnorm %s n %zu round %d",
                          ops->isa, n, round);
                ops->rmsnorm_wf32(y, x, wf, n, 1e-6f, round);
                REF->rmsnorm_wf32(want, x, wf, n, 1e-6f, round);
                fx_expect(y, want, n, round ? 0x1p-7f : fx_tol.rmsnorm_wf32,
                          "rmsnorm_wf32 %s n %zu", ops->isa, n);
                if (round < 2) {
                    ops->kda_out(y, x, gate, wf, n, 1e-5f, round);
                    REF->kda_out(want, x, gate, wf, n, 1e-5f, round);
                    fx_expect(y, want, n, rounding_tol(fx_tol.kda_out, round), "kda_out %s n %zu",
                              ops->isa, n);
                }
                float *in_place = fx_copy(&f, x, n);
                ops->rmsnorm(y, x, w, n, 1e-5f, round);
                ops->rmsnorm(in_place, in_place, w, n, 1e-5f, round);
                fx_same(in_place, y, n * sizeof *y, "rmsnorm in place %s", ops->isa);
                fx_done(&f, "norms");
            }
}

static void attnres_matches_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    static const size_t sources[] = {1, 2, 3, 9, 64, 65, 130};
    FOR_EACH_ISA (ops)
        for (size_t c = 0; c < sizeof sources / sizeof sources[0]; c++)
            for (size_t n = 1; n < 300; n = 2 * n + 3)
                for (int round = 0; round < 2; round++) {
                    size_t n_src = sources[c];
                    fx f;
                    fx_init(&f, n + c);
                    const float *src[130];
                    float *all = fx_floats(&f, n_src * n, 2.0f), *wq = fx_floats(&f, n, 1.5f);
                    for (size_t j = 0; j < n_src; j++)
                        src[j] = all + j * n;
                    float *y = fx_out(&f, n), *want = fx_out(&f, n);
                    ops->attnres_mix(y, src, n_src, wq, n, 1e-5f, round);
                    REF->attnres_mix(want, src, n_src, wq, n, 1e-5f, round);
                    /* scores reach 100: their rounding shows in the weights */
                    fx_expect(y, want, n, round ? 0x1p-7f : 2e-5f, "attnres %s sources %zu n %zu",
                              ops->isa, n_src, n);
                    fx_done(&f, "attnres");
                }
}

static void searches_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t c = 0; c < N_LENGTHS; c++)
            for (uint64_t seed = 0; seed < 8; seed++) {
                size_t n = lengths[c], got = 77, want = 78;
                fx f;
                fx_init(&f, seed);
                float *x = fx_floats(&f, n, 1.0f);
                for (size_t i = 0; i < n; i++) {
                    if (seed & 1)
                        x[i] = (float)(int)(x[i] * 4.0f); /* many ties */
                    if ((seed & 2) && i % 3 == seed % 3)
                        x[i] = NAN;
                    if (seed == 4)
                        x[i] = -INFINITY;
                    if (seed == 5)
                        x[i] = NAN;
                }
                ops->argmax(&got, x, n);
                REF->argmax(&want, x, n);
                assert_int_equal(got, want);
                int finite, finite_want;
                ops->all_finite(&finite, x, n);
                REF->all_finite(&finite_want, x, n);
                assert_int_equal(finite, finite_want);
                for (size_t i = 0; i < n; i++) { /* one bad value anywhere is seen */
                    float keep = x[i];
                    for (size_t j = 0; j < n; j++)
                        x[j] = 1.0f;
                    x[i] = seed & 1 ? NAN : seed & 2 ? INFINITY : -INFINITY;
                    ops->all_finite(&finite, x, n);
                    assert_int_equal(finite, 0);
                    x[i] = keep;
                }
                fx_done(&f, "searches");
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_match_ref),
        cmocka_unit_test(binary_ops_match_ref),
        cmocka_unit_test(binary_ops_do_not_depend_on_place),
        cmocka_unit_test(activations_take_extreme_values),
        cmocka_unit_test(norms_match_ref),
        cmocka_unit_test(attnres_matches_ref),
        cmocka_unit_test(searches_match_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
