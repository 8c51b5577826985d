/* The KDA recurrence: every instruction set against ref/, split into calls, replay, and the
 * extremes of decay and keys. */
#include "fixture.h"

#include <math.h>

typedef struct {
    size_t n_tok, dk, dv, stride;
    float *q, *k, *v, *decay, *beta;
} tokens;

static void normalise(float *x, size_t d, float length)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < d; i++)
        x[i] = (float)((double)x[i] * (double)length / sqrt(sum + 1e-6));
}

/* Normalised keys, q scaled by dk^-1/2, decays between `decay_from` and 1, beta near 0, 1 and
 * between. */
static tokens tokens_new(fx *f, size_t n_tok, size_t dk, size_t dv, float decay_from)
{
    size_t d = dk > dv ? dk : dv;
    tokens t = {.n_tok = n_tok, .dk = dk, .dv = dv, .stride = d + test_rnd(&f->seed) % 5};
    t.q = fx_floats(f, n_tok * t.stride, 1.0f);
    t.k = fx_floats(f, n_tok * t.stride, 1.0f);
    t.v = fx_floats(f, n_tok * t.stride, 2.0f);
    t.decay = fx_floats(f, n_tok * t.stride, 1.0f);
    t.beta = fx_floats(f, n_tok * 3, 1.0f);
    for (size_t i = 0; i < n_tok; i++) {
        normalise(t.q + i * t.stride, dk, 1.0f / sqrtf((float)dk));
        normalise(t.k + i * t.stride, dk, 1.0f);
        for (size_t c = 0; c < dk; c++) {
            float *a = &t.decay[i * t.stride + c];
            *a = c % 7 == 0 ? 1.0f : decay_from + (1.0f - decay_from) * fabsf(*a);
        }
        t.beta[3 * i] = i % 5 == 0   ? 1.0f
                        : i % 5 == 1 ? 1e-6f
                                     : 0.01f + 0.98f * fabsf(t.beta[3 * i]);
    }
    return t;
}

static void step(const k3i_ops *ops, const tokens *t, size_t from, size_t n, float *S, float *o,
                 float *e)
{
    size_t at = from * t->stride;
    ops->kda_step(S, o + at, e ? e + at : NULL, t->q + at, t->k + at, t->v + at, t->decay + at,
                  t->stride, t->beta + 3 * from, 3, n, t->dk, t->dv);
}

/* Compares the dv columns of each token. */
static void expect_rows(const float *got, const float *want, const tokens *t, float tol,
                        const char *what, const char *isa)
{
    fx f;
    fx_init(&f, 1);
    float *a = fx_out(&f, t->n_tok * t->dv), *b = fx_out(&f, t->n_tok * t->dv);
    for (size_t i = 0; i < t->n_tok; i++) {
        memcpy(a + i * t->dv, got + i * t->stride, t->dv * sizeof *a);
        memcpy(b + i * t->dv, want + i * t->stride, t->dv * sizeof *b);
    }
    fx_expect(a, b, t->n_tok * t->dv, tol, "%s %s tokens %zu dk %zu dv %zu", what, isa, t->n_tok,
              t->dk, t->dv);
    fx_done(&f, what);
}

static void match(const k3i_ops *ops, size_t n_tok, size_t dk, size_t dv, float decay_from,
                  uint64_t seed)
{
    fx f;
    fx_init(&f, seed);
    tokens t = tokens_new(&f, n_tok, dk, dv, decay_from);
    float *S = fx_floats(&f, dk * dv, 1.0f), *S_want = fx_copy(&f, S, dk * dv);
    size_t n = n_tok * t.stride;
    float *o = fx_out(&f, n), *e = fx_out(&f, n), *o_want = fx_out(&f, n), *e_want = fx_out(&f, n);
    step(ops, &t, 0, n_tok, S, o, e);
    step(REF, &t, 0, n_tok, S_want, o_want, e_want);
    fx_expect(S, S_want, dk * dv, fx_tol.kda_step, "S %s tokens %zu dk %zu dv %zu", ops->isa, n_tok,
              dk, dv);
    expect_rows(o, o_want, &t, fx_tol.kda_step, "o", ops->isa);
    expect_rows(e, e_want, &t, fx_tol.kda_step, "e", ops->isa);
    for (size_t i = 0; i < n_tok; i++) /* nothing between the rows is touched */
        fx_same(o + i * t.stride + dv, o_want + i * t.stride + dv, (t.stride - dv) * 4, "gap");
    fx_done(&f, "kda");
}

static void steps_match_ref(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128};
    const k3i_ops *ops;
    uint64_t seed = 1;
    FOR_EACH_ISA (ops) {
        for (size_t i = 0; i < 15; i++) {
            for (size_t n_tok = 0; n_tok < 7; n_tok += n_tok < 3 ? 1 : 3)
                match(ops, n_tok, sizes[i], sizes[test_rnd(&seed) % 15], 0.5f, seed);
        }
        match(ops, 3, 128, 128, 0.0067f, 9);
    }
}

/* 200 tokens near the fastest and near the slowest decay: the state neither explodes nor drifts
 * from ref. */
static void long_runs_match_ref(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops) {
        match(ops, 200, 64, 64, expf(-5.0f), 3);
        match(ops, 200, 64, 64, 0.999f, 4);
        fx f;
        fx_init(&f, 8);
        tokens t = tokens_new(&f, 200, 32, 32, 1.0f);
        for (size_t i = 0; i < 200 * t.stride; i++)
            t.decay[i] = 0x1.b993fep-8f; /* e^-5 in every channel: the state is forgotten at once */
        float *S = fx_floats(&f, 32 * 32, 1e6f), *S2 = fx_floats(&f, 32 * 32, 1e-6f);
        float *o = fx_out(&f, 200 * t.stride), *o2 = fx_out(&f, 200 * t.stride);
        step(ops, &t, 0, 200, S, o, NULL);
        step(ops, &t, 0, 200, S2, o2, NULL);
        fx_expect(S, S2, 32 * 32, 0.0f, "forgotten start %s", ops->isa);
        for (size_t i = 0; i < 200; i++) {
            int ok;
            ops->all_finite(&ok, o + i * t.stride, 32);
            assert_true(ok);
        }
        fx_done(&f, "decay");
    }
}

/* Any split into calls, with and without e, and any split of the columns give the same bits. */
static void bits_do_not_depend_on_split(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (uint64_t seed = 0; seed < 20; seed++) {
            fx f;
            fx_init(&f, seed);
            size_t n_tok = 1 + test_rnd(&f.seed) % 9, dk = 1 + test_rnd(&f.seed) % 40,
                   dv = 1 + test_rnd(&f.seed) % 70;
            tokens t = tokens_new(&f, n_tok, dk, dv, 0.3f);
            float *S = fx_floats(&f, dk * dv, 1.0f), *S2 = fx_copy(&f, S, dk * dv),
                  *S3 = fx_copy(&f, S, dk * dv);
            size_t n = n_tok * t.stride;
            float *o = fx_out(&f, n), *o2 = fx_out(&f, n), *e = fx_out(&f, n), *e2 = fx_out(&f, n);
            step(ops, &t, 0, n_tok, S, o, e);
            for (size_t i = 0, m; i < n_tok; i += m) {
                m = 1 + test_rnd(&f.seed) % (n_tok - i);
                step(ops, &t, i, m, S2, o2, test_rnd(&f.seed) % 2 ? e2 : NULL);
            }
            fx_same(S2, S, dk * dv * 4, "S by calls %s seed %d", ops->isa, (int)seed);
            fx_same(o2, o, n * 4, "o by calls %s seed %d", ops->isa, (int)seed);
            /* replay of any prefix, then stepping on */
            size_t accepted = test_rnd(&f.seed) % (n_tok + 1);
            ops->kda_replay(S3, t.k, t.decay, e, t.stride, accepted, dk, dv);
            step(ops, &t, accepted, n_tok - accepted, S3, o2, NULL);
            fx_same(S3, S, dk * dv * 4, "replay of %zu of %zu %s seed %d", accepted, n_tok,
                    ops->isa, (int)seed);
            fx_done(&f, "split");
        }
}

/* What a head brings to the recurrence, of tokens whose raw rows lie in reverse order. */
typedef struct {
    size_t n_tok, n_tap, d, g_stride;
    const float *rows[3 * 16];
    float *w, *g, *bias;
} raw_rows;

static raw_rows raw_new(fx *f, size_t n_tok, size_t n_tap, size_t d)
{
    size_t span = n_tap - 1 + n_tok;
    raw_rows r = {.n_tok = n_tok, .n_tap = n_tap, .d = d, .g_stride = d + test_rnd(&f->seed) % 5};
    const float *all = fx_floats(f, 3 * span * d, 4.0f);
    assert_true(3 * span <= sizeof r.rows / sizeof r.rows[0]);
    for (size_t i = 0; i < 3 * span; i++)
        r.rows[i] = all + (3 * span - 1 - i) * d;
    r.w = fx_floats(f, 3 * n_tap * d, 1.0f);
    r.g = fx_floats(f, n_tok * r.g_stride, 10.0f);
    r.bias = fx_floats(f, d, 10.0f);
    return r;
}

/* y: q, k, v, decay, [n_tok, d] each. */
static void run_in(const k3i_ops *ops, const raw_rows *r, float *const *y, int round)
{
    ops->kda_in(y[0], y[1], y[2], y[3], r->rows, r->w, r->g, r->g_stride, r->bias, 1.3f, -5.0f,
                r->n_tok, r->n_tap, r->d, round);
}

static void inputs_match_ref(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 128, 200};
    static const char *const name[] = {"q", "k", "v", "decay"};
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t c = 0; c < sizeof sizes / sizeof sizes[0]; c++)
            for (size_t n_tap = 1; n_tap < 6; n_tap++)
                for (size_t n_tok = 0; n_tok < 4; n_tok++)
                    for (int round = 0; round < 2; round++) {
                        fx f;
                        fx_init(&f, c);
                        raw_rows r = raw_new(&f, n_tok, n_tap, sizes[c]);
                        size_t n = n_tok * r.d;
                        float *got[4], *want[4];
                        for (int y = 0; y < 4; y++) {
                            got[y] = fx_out(&f, n);
                            want[y] = fx_out(&f, n);
                        }
                        run_in(ops, &r, got, round);
                        run_in(REF, &r, want, round);
                        /* round: where the f32 results straddle a tie, half of 2^-7 */
                        for (int y = 0; y < 4; y++)
                            fx_expect(got[y], want[y], n, round && y < 3 ? 0x1p-8f : fx_tol.kda_in,
                                      "%s %s d %zu taps %zu tokens %zu", name[y], ops->isa, r.d,
                                      n_tap, n_tok);
                        fx_done(&f, "kda_in");
                    }
}

/* A token alone gives the bits it has among others. */
static void inputs_do_not_depend_on_split(void **state)
{
    (void)state;
    enum { TOKENS = 5, TAPS = 4, SPAN = TAPS - 1 + TOKENS };
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (size_t d = 20; d < 70; d += 12) {
            fx f;
            fx_init(&f, d);
            raw_rows r = raw_new(&f, TOKENS, TAPS, d), one = r;
            float *all[4], *single[4], *at[4];
            for (int y = 0; y < 4; y++) {
                all[y] = fx_out(&f, TOKENS * d);
                single[y] = fx_out(&f, TOKENS * d);
            }
            run_in(ops, &r, all, 1);
            one.n_tok = 1;
            for (size_t t = 0; t < TOKENS; t++) {
                for (size_t i = 0; i < 3 * TAPS; i++)
                    one.rows[i] = r.rows[i / TAPS * SPAN + t + i % TAPS];
                one.g = r.g + t * r.g_stride;
                for (int y = 0; y < 4; y++)
                    at[y] = single[y] + t * d;
                run_in(ops, &one, at, 1);
            }
            for (int y = 0; y < 4; y++)
                fx_same(single[y], all[y], TOKENS * d * 4, "kda_in by tokens %s d %zu", ops->isa,
                        d);
            fx_done(&f, "kda_in");
        }
}

/* Tiny q and k: eps inside the root rules; zero vectors give zeros. */
static void tiny_keys_are_normalised_with_eps(void **state)
{
    (void)state;
    enum { D = 128 };
    float x[D], w[3 * D], g[D] = {0}, y[4][D];
    const float *rows[3] = {x, x, x};
    for (int i = 0; i < 3 * D; i++)
        w[i] = 1;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int p = -45; p < 1; p += 3) {
            double raw = ldexp(1.0, p), v = raw / (1 + exp(-raw));
            double want = v / sqrt(D * v * v + 1e-6);
            for (int i = 0; i < D; i++)
                x[i] = (float)raw;
            ops->kda_in(y[0], y[1], y[2], y[3], rows, w, g, D, g, 1.0f, -5.0f, 1, 1, D, 0);
            for (int i = 0; i < D; i++) {
                assert_true(fabs((double)y[1][i] - want) <= 2e-6 * want);
                assert_true(fabs((double)y[0][i] - want / sqrt(D)) <= 2e-6 * want);
            }
            memset(x, 0, sizeof x);
            ops->kda_in(y[0], y[1], y[2], y[3], rows, w, g, D, g, 1.0f, -5.0f, 1, 1, D, 0);
            for (int i = 0; i < D; i++)
                assert_true(y[0][i] == 0 && y[1][i] == 0 && y[2][i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_match_ref),
        cmocka_unit_test(long_runs_match_ref),
        cmocka_unit_test(bits_do_not_depend_on_split),
        cmocka_unit_test(inputs_match_ref),
        cmocka_unit_test(inputs_do_not_depend_on_split),
        cmocka_unit_test(tiny_keys_are_normalised_with_eps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
