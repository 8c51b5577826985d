/* Attention segments: every instruction set against ref/, scattered keys, ragged rows, and the
 * promise that a row's bits depend on its own query and keys only. */
#include "fixture.h"

#include <math.h>

typedef struct {
    size_t n_q, n_key, dk, dv, q_stride, k_stride, v_stride;
    float scale;
    float *q, *k, *v;
    k3i_bf16 *qh, *kh, *vh;
    size_t *off;        /* NULL: strides */
    uint32_t *row_keys; /* NULL: all */
} attn;

static k3i_bf16 *to_bf16(fx *f, const float *x, size_t n)
{
    k3i_bf16 *h = fx_new(f, n, sizeof *h, test_rnd(&f->seed) % 4);
    REF->to_bf16(h, x, n);
    return h;
}

static attn attn_new(fx *f, size_t n_q, size_t n_key, size_t dk, size_t dv, int scattered,
                     int ragged)
{
    attn a = {.n_q = n_q, .n_key = n_key, .dk = dk, .dv = dv, .scale = 2.0f / sqrtf((float)dk)};
    size_t d = dk > dv ? dk : dv, slots = 3 * n_key + 1;
    a.q_stride = dk + test_rnd(&f->seed) % 3;
    a.k_stride = d + test_rnd(&f->seed) % 3;
    a.v_stride = scattered ? a.k_stride : dv + test_rnd(&f->seed) % 3;
    a.q = fx_floats(f, n_q * a.q_stride, 2.0f);
    a.k = fx_floats(f, slots * a.k_stride, 2.0f);
    a.v = fx_floats(f, slots * a.k_stride, 1.0f);
    if (scattered) { /* pages of one key each, in any order; what lies between them is poison */
        a.off = fx_new(f, n_key, sizeof *a.off, 0);
        for (size_t j = 0; j < n_key; j++)
            a.off[j] = (j * 7 % n_key * (n_key % 7 != 0) + j * (n_key % 7 == 0)) * 3 * a.k_stride;
        for (size_t s = 0; s < slots; s++) {
            for (size_t i = 0; i < a.k_stride && s % 3 != 0; i++)
                a.k[s * a.k_stride + i] = a.v[s * a.k_stride + i] = NAN;
        }
    }
    if (ragged) {
        a.row_keys = fx_new(f, n_q, sizeof *a.row_keys, 0);
        for (size_t r = 0; r < n_q; r++)
            a.row_keys[r] = (uint32_t)(test_rnd(&f->seed) % (n_key + 1));
    }
    a.qh = to_bf16(f, a.q, n_q * a.q_stride);
    a.kh = to_bf16(f, a.k, slots * a.k_stride);
    a.vh = to_bf16(f, a.v, slots * a.k_stride);
    return a;
}

/* Queries q0..q0+n-1. */
static void run(const k3i_ops *ops, const attn *a, int bf16, size_t q0, size_t n, float *acc,
                float *m, float *l)
{
    const uint32_t *rk = a->row_keys ? a->row_keys + q0 : NULL;
    if (bf16) {
        ops->attn_segment_bf16(acc + q0 * a->dv, m + q0, l + q0, a->qh + q0 * a->q_stride,
                               a->q_stride, a->kh, a->k_stride, a->vh, a->v_stride, a->off, n,
                               a->n_key, rk, a->dk, a->dv, a->scale);
    } else {
        ops->attn_segment(acc + q0 * a->dv, m + q0, l + q0, a->q + q0 * a->q_stride, a->q_stride,
                          a->k, a->k_stride, a->v, a->v_stride, a->off, n, a->n_key, rk, a->dk,
                          a->dv, a->scale);
    }
}

/* acc, m, l as after an earlier segment, or fresh. */
static void start(fx *f, const attn *a, int fresh, float **acc, float **m, float **l)
{
    *acc = fx_floats(f, a->n_q * a->dv, fresh ? 0.0f : 1.0f);
    *m = fx_floats(f, a->n_q, 1.0f);
    *l = fx_floats(f, a->n_q, 1.0f);
    for (size_t r = 0; r < a->n_q; r++) {
        (*m)[r] = fresh ? -INFINITY : (*m)[r];
        (*l)[r] = fresh ? 0.0f : 1.0f + fabsf((*l)[r]);
    }
    for (size_t i = 0; fresh && i < a->n_q * a->dv; i++)
        (*acc)[i] = 0.0f;
}

static void segments_match_ref(void **state)
{
    (void)state;
    static const size_t dims[] = {1, 2, 3, 8, 15, 16, 17, 32, 63, 64, 65, 128, 129, 192, 300};
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (uint64_t seed = 0; seed < 120; seed++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                fx f;
                fx_init(&f, seed);
                size_t n_q = seed % 10 == 9 ? 100 : 1 + test_rnd(&f.seed) % 13,
                       n_key = 1 + test_rnd(&f.seed) % 150;
                size_t dk = dims[test_rnd(&f.seed) % 15], dv = dims[test_rnd(&f.seed) % 15];
                attn a = attn_new(&f, n_q, n_key, dk, dv, seed % 2 == 1, seed % 4 > 1);
                float *acc, *m, *l;
                start(&f, &a, seed % 3 != 0, &acc, &m, &l);
                float *acc2 = fx_copy(&f, acc, n_q * dv), *m2 = fx_copy(&f, m, n_q),
                      *l2 = fx_copy(&f, l, n_q);
                run(ops, &a, bf16, 0, n_q, acc, m, l);
                run(REF, &a, bf16, 0, n_q, acc2, m2, l2);
                char what[96];
                snprintf(what, sizeof what, "%s bf16 %d seed %d q %zu keys %zu dk %zu dv %zu",
                         ops->isa, bf16, (int)seed, n_q, n_key, dk, dv);
                fx_expect(m, m2, n_q, 2e-6f, "m %s", what);
                fx_expect(l, l2, n_q, 1e-5f, "l %s", what);
                fx_expect(acc, acc2, n_q * dv, bf16 ? fx_tol.attn_segment_bf16 : 1e-5f, "acc %s",
                          what);
                fx_done(&f, what);
            }
}

/* Each query alone and any grouping of queries give the same bits. */
static void bits_do_not_depend_on_queries(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (uint64_t seed = 0; seed < 60; seed++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                fx f;
                fx_init(&f, seed);
                size_t n_q = 1 + test_rnd(&f.seed) % (seed % 8 == 7 ? 120 : 20),
                       n_key = 1 + test_rnd(&f.seed) % 150;
                size_t dk = 1 + test_rnd(&f.seed) % 140, dv = 1 + test_rnd(&f.seed) % 140;
                if (seed % 4 == 1) { /* whole vectors: few queries go another way */
                    dk = 8 * (dk / 8 + 1);
                    dv = 64 * (dv / 64 + 1);
                }
                attn a = attn_new(&f, n_q, n_key, dk, dv, seed % 2, 1);
                float *acc, *m, *l;
                start(&f, &a, seed % 3 != 0, &acc, &m, &l);
                for (size_t r = 0; r < n_q;
                     r++) { /* runs of equal lengths, as causal rows of many heads have */
                    if (r % 5 != 0)
                        a.row_keys[r] = a.row_keys[r - 1];
                }
                float *acc2 = fx_copy(&f, acc, n_q * a.dv), *m2 = fx_copy(&f, m, n_q),
                      *l2 = fx_copy(&f, l, n_q);
                run(ops, &a, bf16, 0, n_q, acc, m, l);
                for (size_t q = 0, n; q < n_q; q += n) {
                    n = seed % 2 ? 1 : 1 + test_rnd(&f.seed) % (n_q - q);
                    /* a lone query may not even know of the keys behind its own */
                    attn part = a;
                    if (n == 1)
                        part.n_key = a.row_keys[q];
                    run(ops, &part, bf16, q, n, acc2, m2, l2);
                }
                fx_same(acc2, acc, n_q * a.dv * 4, "acc %s bf16 %d seed %d", ops->isa, bf16,
                        (int)seed);
                fx_same(m2, m, n_q * 4, "m %s", ops->isa);
                fx_same(l2, l, n_q * 4, "l %s", ops->isa);
                fx_done(&f, "queries");
            }
}

/* Cutting a sequence into calls at multiples of the block changes nothing; where keys lie changes
 * nothing. */
static void bits_do_not_depend_on_calls_or_places(void **state)
{
    (void)state;
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            fx f;
            fx_init(&f, 77);
            attn a = attn_new(&f, 9, 300, 96, 80, 0, 0);
            a.v_stride = a.k_stride; /* key_off serves both */
            float *acc, *m, *l;
            start(&f, &a, 1, &acc, &m, &l);
            float *acc2 = fx_copy(&f, acc, 9 * 80), *m2 = fx_copy(&f, m, 9),
                  *l2 = fx_copy(&f, l, 9);
            run(ops, &a, bf16, 0, 9, acc, m, l);
            size_t off[300];
            for (size_t j = 0; j < 300; j++)
                off[j] = j * a.k_stride;
            for (size_t j = 0; j < 300; j += 2 * K3I_ATTN_KEYS) {
                attn part = a;
                part.off = off + j;
                part.n_key = 300 - j < 2 * K3I_ATTN_KEYS ? 300 - j : 2 * K3I_ATTN_KEYS;
                run(ops, &part, bf16, 0, 9, acc2, m2, l2);
            }
            fx_same(acc2, acc, 9 * 80 * 4, "acc by calls %s bf16 %d", ops->isa, bf16);
            fx_same(l2, l, 9 * 4, "l by calls %s", ops->isa);
            fx_done(&f, "calls");
        }
}

/* Keys behind a row's own may hold anything, NaN of a later token included: not even a product with
 * 0 sees them. */
static void later_keys_are_never_touched(void **state)
{
    (void)state;
    enum { N = 70, DK = 10, DV = 20 };
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int bf16 = 0; bf16 < 2; bf16++)
            for (uint32_t limit = 1; limit < N; limit++) {
                fx f;
                fx_init(&f, limit);
                attn a = attn_new(&f, 2, N, DK, DV, 0, 1);
                a.row_keys[0] = limit;
                a.row_keys[1] = N;
                float *acc, *m, *l;
                start(&f, &a, 1, &acc, &m, &l);
                float *acc2 = fx_copy(&f, acc, 2 * DV), *m2 = fx_copy(&f, m, 2);
                float *l2 = fx_copy(&f, l, 2);
                run(ops, &a, bf16, 0, 2, acc, m, l);
                for (size_t i = limit * a.k_stride; i < N * a.k_stride; i++) {
                    a.k[i] = NAN;
                    a.kh[i] = 0x7fc0;
                }
                for (size_t i = limit * a.v_stride; i < N * a.v_stride; i++) {
                    a.v[i] = NAN;
                    a.vh[i] = 0x7fc0;
                }
                run(ops, &a, bf16, 0, 2, acc2, m2, l2);
                fx_same(acc2, acc, DV * 4, "acc %s bf16 %d limit %u", ops->isa, bf16, limit);
                fx_same(m2, m, 4, "m %s bf16 %d limit %u", ops->isa, bf16, limit);
                fx_same(l2, l, 4, "l %s bf16 %d limit %u", ops->isa, bf16, limit);
                fx_done(&f, "later keys");
            }
}

/* The whole softmax against double arithmetic, with scores that reach +-300. */
static void whole_softmax_is_right(void **state)
{
    (void)state;
    enum { N = 140, DK = 24, DV = 33 };
    const k3i_ops *ops;
    FOR_EACH_ISA (ops)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            fx f;
            fx_init(&f, 3);
            attn a = attn_new(&f, 4, N, DK, DV, 0, 0);
            a.scale = 12.0f;
            for (size_t i = 0; i < 4 * a.q_stride; i++)
                a.q[i] = k3i_from_bf16(a.qh[i]);
            for (size_t i = 0; i < N * a.k_stride; i++)
                a.k[i] = k3i_from_bf16(a.kh[i]);
            float *acc, *m, *l;
            start(&f, &a, 1, &acc, &m, &l);
            run(ops, &a, bf16, 0, 4, acc, m, l);
            for (size_t r = 0; r < 4; r++) {
                double s[N], top = -INFINITY, sum = 0, out[DV] = {0};
                for (size_t j = 0; j < N; j++) {
                    s[j] = 0;
                    for (size_t i = 0; i < DK; i++)
                        s[j] += 12.0 * (double)a.q[r * a.q_stride + i] *
                                (double)a.k[j * a.k_stride + i];
                    top = s[j] > top ? s[j] : top;
                }
                for (size_t j = 0; j < N; j++) {
                    sum += exp(s[j] - top);
                    for (size_t c = 0; c < DV; c++)
                        out[c] += exp(s[j] - top) *
                                  (double)(bf16 ? k3i_from_bf16(a.vh[j * a.v_stride + c])
                                                : a.v[j * a.v_stride + c]);
                }
                for (size_t c = 0; c < DV; c++)
                    assert_true(fabs((double)acc[r * DV + c] / (double)l[r] - out[c] / sum) <
                                (bf16 ? 4e-3 : 1e-4));
            }
            fx_done(&f, "softmax");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_match_ref),
        cmocka_unit_test(bits_do_not_depend_on_queries),
        cmocka_unit_test(bits_do_not_depend_on_calls_or_places),
        cmocka_unit_test(later_keys_are_never_touched),
        cmocka_unit_test(whole_softmax_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
