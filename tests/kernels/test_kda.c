/* The KDA recurrence: every instruction set against ref/, split into calls, replay, and the
 * extremes of decay and keys. */
#include "fixture.h"

#include <math.h>

typedef struct {
    size_t n_tok, dk, dv, stride;
    float *q, *k, *v, *decay, *beta;
} tokens;

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
        REF->kda_l2norm(t.q + i * t.stride, t.q + i * t.stride, dk, 1.0f / sqrtf((float)dk));
        REF->kda_l2norm(t.k + i * t.stride, t.k + i * t.stride, dk, 1.0f);
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

/* Tiny q and k: eps inside the root rules; zero vectors give zeros. */
static void tiny_keys_are_normalised_with_eps(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int p = -45; p < 1; p += 3) {
            float x[128], y[128];
            for (int i = 0; i < 128; i++)
                x[i] = ldexpf(1.0f, p);
            double want = ldexp(1.0, p) / sqrt(128.0 * ldexp(1.0, 2 * p) + 1e-6);
            ops->kda_l2norm(y, x, 128, 1.0f);
            for (int i = 0; i < 128; i++)
                assert_true(fabs((double)y[i] - want) <= 1e-6 * want);
            memset(x, 0, sizeof x);
            ops->kda_l2norm(y, x, 128, 1.0f);
            for (int i = 0; i < 128; i++)
                assert_true(y[i] == 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_match_ref),
        cmocka_unit_test(long_runs_match_ref),
        cmocka_unit_test(bits_do_not_depend_on_split),
        cmocka_unit_test(tiny_keys_are_normalised_with_eps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
