/* accept.c: pure functions over probability rows. Sums ascend by id. Formulas: dspark.md 4.3
 * and 4.4; test_accept checks both rules by exact enumeration in rational arithmetic. */
#include "accept.h"

#include <math.h>
#include <stddef.h>

/* Inverse distribution function of the weights max(a * p - q, 0), q may be NULL; `skip` has weight
 * 0. Falls back to p where the weights vanish: then p == q and the rejection had probability 0. */
static int32_t draw_residual(const double *p, const double *q, double a, int32_t skip,
                             int32_t vocab, double u)
{
    double sum = 0.0;
    for (int32_t t = 0; t < vocab; t++) {
        double w = a * p[t] - (q == NULL ? 0.0 : q[t]);
        if (w > 0.0 && t != skip)
            sum += w;
    }
    if (sum <= 0.0) {
        if (q == NULL && skip < 0)
            return 0; /* an empty row; the sampler refuses it before */
        return draw_residual(p, NULL, 1.0, -1, vocab, u);
    }
    double target = u * sum, acc = 0.0;
    int32_t last = 0;
    for (int32_t t = 0; t < vocab; t++) {
        double w = a * p[t] - (q == NULL ? 0.0 : q[t]);
        if (w <= 0.0 || t == skip)
            continue;
        acc += w;
        last = t;
        if (acc > target)
            return t;
    }
    return last; /* rounding of the sum */
}

/* Nothing at or behind an invalid draft can be accepted; before it the rules apply to a shorter
 * run. */
static int32_t n_valid(const int32_t *drafts, int32_t k, int32_t vocab)
{
    int32_t n = 0;
    while (n < k && drafts[n] >= 0 && drafts[n] < vocab)
        n++;
    return n;
}

k3i_verdict k3i_accept_standard(const double *p, const double *q, const int32_t *drafts, int32_t k,
                                int32_t vocab, const double *uniform)
{
    size_t v = (size_t)vocab;
    double last = uniform[k];
    k = n_valid(drafts, k, vocab);
    for (int32_t i = 0; i < k; i++) {
        const double *pi = p + (size_t)i * v, *qi = q == NULL ? NULL : q + (size_t)i * v;
        int32_t x = drafts[i];
        double qx = qi == NULL ? 1.0 : qi[x];
        if (uniform[i] * qx < pi[x] || qx == 0.0)
            continue;
        int32_t skip = qi == NULL ? x : -1;
        return (k3i_verdict){i, draw_residual(pi, qi, 1.0, skip, vocab, last)};
    }
    return (k3i_verdict){k, draw_residual(p + (size_t)k * v, NULL, 1.0, -1, vocab, last)};
}

k3i_verdict k3i_accept_block(const double *p, const double *q, const int32_t *drafts, int32_t k,
                             int32_t vocab, const double *uniform)
{
    size_t v = (size_t)vocab;
    double last = uniform[k];
    k = n_valid(drafts, k, vocab);
    double joint = 1.0, joint_at_a = 1.0; /* P_i of the accepted length so far */
    int32_t a = 0;
    for (int32_t i = 1; i <= k; i++) {
        int32_t x = drafts[i - 1];
        double px = p[(size_t)(i - 1) * v + (size_t)x], qx = q[(size_t)(i - 1) * v + (size_t)x];
        joint = qx > 0.0 ? fmin(joint * px / qx, 1.0) : 1.0;
        double h = joint;
        if (i < k) {
            const double *pn = p + (size_t)i * v, *qn = q + (size_t)i * v;
            double rest = 0.0;
            for (int32_t t = 0; t < vocab; t++)
                rest += fmax(joint * pn[t] - qn[t], 0.0);
            double den = rest + 1.0 - joint;
            h = den > 0.0 ? rest / den : 1.0;
        }
        if (uniform[i - 1] <= h) {
            a = i;
            joint_at_a = joint;
        }
    }
    const double *pa = p + (size_t)a * v;
    if (a == k)
        return (k3i_verdict){a, draw_residual(pa, NULL, 1.0, -1, vocab, last)};
    return (k3i_verdict){a, draw_residual(pa, q + (size_t)a * v, joint_at_a, -1, vocab, last)};
}
