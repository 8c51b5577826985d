/* The router alone (text-model 4.8): what it gets wrong hardly shows in a model's output, because
 * the norm behind the experts cancels a common factor of the weights. */
#include "test.h"

#include "parts.h"

#include <math.h>

static const k3i_ops *ref(void)
{
    return k3i_ops_nth(0);
}

static float logit(float p)
{
    return logf(p / (1 - p));
}

static void route(const k3i_config *cfg, const float *score, const float *bias, int32_t *expert,
                  float *weight)
{
    float logits[16];
    char *scratch = malloc(k3i_route_scratch(cfg));
    for (size_t i = 0; i < cfg->n_experts; i++)
        logits[i] = logit(score[i]);
    k3i_route(ref(), cfg, logits, bias, scratch, expert, weight);
    free(scratch);
}

static k3i_config config(size_t experts, size_t top_k)
{
    return (k3i_config){.n_experts = experts,
                        .n_experts_per_token = top_k,
                        .n_expert_groups = 1,
                        .topk_groups = 1,
                        .moe_renormalize = true,
                        .routed_scaling_factor = 1};
}

static void bias_chooses_but_does_not_weigh(void **state)
{
    (void)state;
    const k3i_config cfg = config(4, 2);
    const float score[] = {0.5f, 0.6f, 0.2f, 0.3f}, bias[] = {0, -0.4f, 0, 0.5f};
    int32_t e[2];
    float w[2];
    route(&cfg, score, bias, e, w); /* corrected: .5 .2 .2 .8 */
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 3);
    assert_true(fabsf(w[0] - 0.5f / 0.8f) < 1e-6f);
    assert_true(fabsf(w[1] - 0.3f / 0.8f) < 1e-6f);
}

static void weights_are_scaled_and_renormalised(void **state)
{
    (void)state;
    k3i_config cfg = config(4, 2);
    const float score[] = {0.5f, 0.6f, 0.2f, 0.3f}, bias[4] = {0};
    int32_t e[2];
    float w[2];
    cfg.routed_scaling_factor = 2.5f;
    route(&cfg, score, bias, e, w);
    assert_true(fabsf(w[0] - 2.5f * 0.5f / 1.1f) < 1e-6f);
    cfg.moe_renormalize = false;
    route(&cfg, score, bias, e, w);
    assert_true(fabsf(w[0] - 2.5f * 0.5f) < 1e-6f);
    assert_true(fabsf(w[1] - 2.5f * 0.6f) < 1e-6f);
}

static void ties_go_to_the_lowest_index(void **state)
{
    (void)state;
    const k3i_config cfg = config(6, 3);
    const float score[] = {0.2f, 0.5f, 0.5f, 0.7f, 0.5f, 0.5f}, bias[6] = {0};
    int32_t e[3];
    float w[3];
    route(&cfg, score, bias, e, w);
    assert_int_equal(e[0], 1);
    assert_int_equal(e[1], 2);
    assert_int_equal(e[2], 3);
}

static void only_the_best_groups_compete(void **state)
{
    (void)state;
    k3i_config cfg = config(8, 3);
    cfg.n_expert_groups = 4;
    cfg.topk_groups = 2;
    /* sums of the two largest: .9, 1.0, .9, .8; the tie goes to group 0 */
    const float score[] = {0.8f, 0.1f, 0.5f, 0.5f, 0.45f, 0.45f, 0.7f, 0.1f}, bias[8] = {0};
    int32_t e[3];
    float w[3];
    route(&cfg, score, bias, e, w);
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 2);
    assert_int_equal(e[2], 3);
    assert_true(fabsf(w[0] - 0.8f / 1.8f) < 1e-6f);
}

static void nan_is_never_preferred(void **state)
{
    (void)state;
    const k3i_config cfg = config(4, 3);
    const float score[] = {NAN, 0.1f, NAN, 0.2f}, bias[4] = {0};
    int32_t e[3];
    float w[3];
    route(&cfg, score, bias, e, w);
    assert_int_equal(e[0], 0);
    assert_int_equal(e[1], 1);
    assert_int_equal(e[2], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bias_chooses_but_does_not_weigh),
        cmocka_unit_test(weights_are_scaled_and_renormalised),
        cmocka_unit_test(ties_go_to_the_lowest_index),
        cmocka_unit_test(only_the_best_groups_compete),
        cmocka_unit_test(nan_is_never_preferred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
