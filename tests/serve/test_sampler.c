/* The sampler against an independent brute-force reading of the same rules (sort everything, loop),
 * and its noise against the published vectors and against chi-square at 100,000 seeds. */
#include "philox.h"
#include "sampler.h"
#include "test.h"

#include <math.h>

static void philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t c[4], k[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t got[4];
        k3i_philox(kat[i].c, kat[i].k, got);
        assert_memory_equal(got, kat[i].want, sizeof got);
    }
    k3i_gumbel g;
    k3i_gumbel_init(&g, 1, 2, K3_STREAM_TARGET);
    double sum = 0;
    for (int32_t t = 0; t < 40000; t++) {
        double x = k3i_gumbel_at(&g, t);
        assert_true(x <= K3I_GUMBEL_MAX && x >= -3.2);
        sum += x;
    }
    assert_true(fabs(sum / 40000 - 0.5772156649) < 0.03); /* the mean is Euler's constant */
    assert_true(-log(-log(1 - 0x1p-33)) < K3I_GUMBEL_MAX);
}

/* ---- brute force -------------------------------------------------------------------------------
 */

enum { V = 8 };

/* A small autoregressive model: the row depends on the last token. */
static void model_row(int32_t last, float *row)
{
    uint64_t seed = 77u + (uint64_t)last;
    for (int t = 0; t < V; t++)
        row[t] = 2.0f * test_rnd_float(&seed);
}

static void brute_probs(const k3i_sampling *p, const float *row, double *prob)
{
    int order[V];
    double x[V], mass[V], sum = 0, top = -1e300;
    for (int t = 0; t < V; t++) {
        x[t] = (double)row[t] / (double)p->temperature;
        top = x[t] > top ? x[t] : top;
        order[t] = t;
    }
    for (int i = 0; i < V; i++) {
        for (int j = i + 1; j < V; j++) {
            if (x[order[j]] > x[order[i]]) {
                int swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
        }
    }
    int n = 0;
    while (n < V && exp(x[order[n]] - top) >= (double)p->min_p)
        n++;
    if (p->top_k > 0 && n > p->top_k)
        n = p->top_k;
    for (int i = 0; i < n; i++)
        sum += mass[i] = exp(x[order[i]] - top);
    double acc = 0;
    int kept = 0;
    while (kept < n && (kept == 0 || acc < (double)p->top_p * sum))
        acc += mass[kept++];
    memset(prob, 0, V * sizeof *prob);
    for (int i = 0; i < kept; i++)
        prob[order[i]] = mass[i] / acc;
}

/* Upper 0.1 % point of chi-square, by Wilson and Hilferty. */
static double chi2_limit(int dof)
{
    double a = 2.0 / (9.0 * dof), z = 3.0902;
    return dof * pow(1 - a + z * sqrt(a), 3);
}

static void three_tokens_follow_the_law(void **state)
{
    (void)state;
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {
        {0.3f, 1, 0, 0}, {1, 1, 0, 0}, {2, 1, 0, 0},    {0.3f, 0.9f, 0, 5},   {1, 0.8f, 0, 6},
        {2, 0.9f, 0, 0}, {1, 1, 0, 3}, {2, 1, 0.2f, 0}, {1, 0.95f, 0.05f, 7},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        k3i_sampling p = k3i_sampling_default();
        p.temperature = cases[c].temperature;
        p.top_p = cases[c].top_p;
        p.min_p = cases[c].min_p;
        p.top_k = cases[c].top_k;
        static int count[V * V * V];
        memset(count, 0, sizeof count);
        enum { SEEDS = 100000 };
        k3i_sampler *s;
        assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &s, NULL), K3_OK);
        for (int i = 0; i < SEEDS; i++) {
            p.seed = 0x1234567000u + (uint64_t)i;
            int32_t last = 0, cell = 0;
            for (int pos = 1; pos <= 3; pos++) {
                float row[V];
                model_row(last, row);
                assert_int_equal(k3i_sample(s, row, NULL, pos, &last, NULL), K3_OK);
                cell = cell * V + last;
            }
            count[cell]++;
        }
        k3i_sampler_free(s);
        double chi2 = 0, rest_want = 0, rest_got = 0;
        int dof = -1;
        for (int cell = 0; cell < V * V * V; cell++) {
            int32_t t[4] = {0, cell / V / V, cell / V % V, cell % V};
            double want = SEEDS;
            for (int i = 0; i < 3; i++) {
                float row[V];
                double prob[V];
                model_row(t[i], row);
                brute_probs(&p, row, prob);
                want *= prob[t[i + 1]];
            }
            if (want == 0)
                assert_int_equal(count[cell], 0);
            if (want < 5) {
                rest_want += want;
                rest_got += count[cell];
                continue;
            }
            chi2 += (count[cell] - want) * (count[cell] - want) / want;
            dof++;
        }
        if (rest_want >= 5) {
            chi2 += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
            dof++;
        }
        print_message("case %d: chi2 %.1f, %d degrees, limit %.1f\n", (int)c, chi2, dof,
                      chi2_limit(dof));
        assert_true(chi2 < chi2_limit(dof));
    }
}

/* Each draw is the likeliest token once its noise is added to the logarithm of its probability. */
static void draws_match_brute_force(void **state)
{
    (void)state;
    for (uint64_t seed0 = 1; seed0 < 3000; seed0++) {
        uint64_t seed = seed0;
        k3i_sampling p = k3i_sampling_default();
        p.seed = seed0;
        p.temperature = 0.2f + 2.0f * (float)(test_rnd(&seed) % 100) / 100.0f;
        p.top_k = (int32_t)(test_rnd(&seed) % 10) - 1;
        p.top_p = seed0 % 2 ? 1.0f : 0.3f + 0.69f * (float)(test_rnd(&seed) % 100) / 100.0f;
        p.min_p = seed0 % 3 ? 0.0f : 0.3f;
        float logits[V], row[V];
        for (int t = 0; t < V; t++)
            logits[t] = 3.0f * test_rnd_float(&seed);
        double want[V];
        brute_probs(&p, logits, want);
        k3i_sampler *s;
        assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &s, NULL), K3_OK);
        for (int32_t position = 0; position < 16; position++) {
            int32_t got;
            memcpy(row, logits, sizeof row);
            assert_int_equal(k3i_sample(s, row, NULL, position, &got, NULL), K3_OK);
            k3i_gumbel noise;
            k3i_gumbel_init(&noise, p.seed, position, K3_STREAM_TARGET);
            double score[V], best = -INFINITY;
            for (int32_t t = 0; t < V; t++) {
                score[t] = log(want[t]) + k3i_gumbel_at(&noise, t);
                best = fmax(best, score[t]);
            }
            if (score[got] < best - 1e-5) /* rounding to f32 may decide between equals */
                fail_msg("seed %d, position %d: token %d has %g, the best %g", (int)seed0,
                         (int)position, (int)got, score[got], best);
        }
        k3i_sampler_free(s);
    }
}

/* ---- processing --------------------------------------------------------------------------------
 */

static int32_t greedy(const k3i_sampling *p, const int32_t *prompt, int32_t n_prompt,
                      const int32_t *out, int32_t n_out, const float *logits, const uint32_t *mask)
{
    k3i_sampler *s;
    float row[V];
    int32_t token = -1;
    assert_int_equal(k3i_sampler_new(p, V, prompt, n_prompt, &s, NULL), K3_OK);
    for (int32_t i = 0; i < n_out; i++)
        assert_int_equal(k3i_sampler_push(s, out[i], NULL), K3_OK);
    memcpy(row, logits, sizeof row);
    assert_int_equal(k3i_sample(s, row, mask, 5, &token, NULL), K3_OK);
    k3i_sampler_free(s);
    return token;
}

static void each_processor_acts(void **state)
{
    (void)state;
    const float logits[V] = {1.0f, 3.0f, 2.9f, 2.8f, -1.0f, 2.0f, 3.0f, 0.5f};
    int32_t out[] = {1, 6, 1}, prompt[] = {2, 2, 7};
    k3i_sampling p = k3i_sampling_default();
    p.temperature = 0;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 1); /* tie with 6: lowest id */
    uint32_t mask = 0x38;                                             /* 3, 4, 5 */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, &mask), 3);
    p.presence_penalty = 0.15f; /* 1 and 6 fall to 2.85, 2 stays at 2.9 */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 2);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.05f; /* 1: 2.9, 6: 2.95 */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 6);
    p.frequency_penalty = 0;
    p.repetition_penalty = 1.2f; /* prompt too: 2 falls, 3 leads */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 3);
    p.repetition_penalty = 0.5f; /* below 1 rewards, negative ones too: 1 -> 6 */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 1);
    p.repetition_penalty = 1.0f;
    k3i_logit_bias bias[] = {{4, 100.0f}, {1, -100.0f}};
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 4);
    p.n_bias = 0;
    int32_t stop[] = {1, 6};
    p.stop = stop;
    p.n_stop = 2;
    p.min_tokens = 4;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 2);
    p.min_tokens = 3;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 1);
    int32_t word1[] = {6, 1, 1}, word2[] = {1, 1, 6}, word3[] = {2};
    k3i_bad_word bad[] = {{word1, 3}, {word2, 3}, {word3, 1}};
    p.bad = bad;
    p.n_bad = 3; /* 6, 1 then 1 is forbidden; 1, 1 then 6 is not pending */
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 6);
    p.n_bad = 0;
    /* The same with a temperature: a bias of 100 decides, a mask excludes. */
    p.temperature = 1;
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, NULL), 4);
    p.n_bias = 0;
    mask = 0x10;
    assert_int_equal(greedy(&p, prompt, 3, out, 3, logits, &mask), 4);
}

static void broken_rows_are_errors(void **state)
{
    (void)state;
    k3i_sampling p = k3i_sampling_default();
    k3i_sampler *s;
    k3i_err err = {0};
    int32_t token = -7;
    assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &s, &err), K3_OK);
    float row[V] = {0};
    row[3] = NAN;
    assert_int_equal(k3i_sample(s, row, NULL, 1, &token, &err), K3_E_NONFINITE);
    assert_non_null(strstr(err.text, "token 3"));
    row[3] = INFINITY;
    assert_int_equal(k3i_sample(s, row, NULL, 1, &token, &err), K3_E_NONFINITE);
    memset(row, 0, sizeof row);
    uint32_t none = 0;
    assert_int_equal(k3i_sample(s, row, &none, 1, &token, &err), K3_E_LIMIT);
    for (int t = 0; t < V; t++)
        row[t] = -INFINITY;
    assert_int_equal(k3i_sample(s, row, NULL, 1, &token, &err), K3_E_LIMIT);
    assert_int_equal(token, -7);
    assert_int_equal(k3i_sampler_push(s, V, &err), K3_E_ARG);
    k3i_sampler_free(s);
    int32_t stop[] = {V};
    p.stop = stop;
    p.n_stop = 1;
    assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &s, &err), K3_E_ARG);
    for (uint64_t n = 1;; n++) { /* every allocation in turn fails */
        p.n_stop = 0;
        p.repetition_penalty = 1.1f;
        k3i_alloc_fail_at(n);
        k3_status status = k3i_sampler_new(&p, V, NULL, 0, &s, &err);
        k3i_alloc_fail_at(0);
        if (status == K3_OK)
            break;
        assert_int_equal(status, K3_E_NOMEM);
    }
    k3i_sampler_free(s);
}

static void draws_depend_on_seed_and_position_only(void **state)
{
    (void)state;
    k3i_sampling p = k3i_sampling_default();
    p.seed = 42;
    k3i_sampler *a, *b;
    assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &a, NULL), K3_OK);
    assert_int_equal(k3i_sampler_new(&p, V, NULL, 0, &b, NULL), K3_OK);
    int differs = 0;
    for (int32_t pos = 0; pos < 200; pos++) {
        float r1[V], r2[V];
        int32_t t1, t2;
        model_row(pos % V, r1);
        memcpy(r2, r1, sizeof r2);
        assert_int_equal(k3i_sample(a, r1, NULL, pos, &t1, NULL), K3_OK);
        model_row(3, r1); /* an unrelated draw between must not matter */
        int32_t other;
        assert_int_equal(k3i_sample(b, r1, NULL, 1000 + pos, &other, NULL), K3_OK);
        assert_int_equal(k3i_sample(b, r2, NULL, pos, &t2, NULL), K3_OK);
        assert_int_equal(t1, t2);
        model_row(pos % V, r1);
        assert_int_equal(k3i_sample(a, r1, NULL, pos + 1, &t2, NULL), K3_OK);
        differs += t1 != t2;
    }
    assert_true(differs > 50);
    k3i_sampler_free(a);
    k3i_sampler_free(b);
}

static void logprobs_are_log_softmax(void **state)
{
    (void)state;
    float row[V] = {0, 1, 2, 2, -1, 0.5f, 1.5f, -3};
    double sum = 0;
    for (int t = 0; t < V; t++)
        sum += exp((double)row[t]);
    k3i_logprob lp[5];
    k3i_logprobs(row, V, 5, 4, lp);
    int32_t order[] = {5, 2, 3, 6, 1}, rank[] = {5, 1, 2, 3, 4};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lp[i].token, order[i]);
        assert_int_equal(lp[i].rank, rank[i]);
        assert_true(fabs((double)lp[i].logprob - ((double)row[order[i]] - log(sum))) < 1e-6);
    }
    k3i_logprob all[V + 1];
    k3i_logprobs(row, V, 0, V, all);
    assert_int_equal(all[V].token, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(draws_match_brute_force),
        cmocka_unit_test(three_tokens_follow_the_law),
        cmocka_unit_test(each_processor_acts),
        cmocka_unit_test(broken_rows_are_errors),
        cmocka_unit_test(draws_depend_on_seed_and_position_only),
        cmocka_unit_test(logprobs_are_log_softmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
