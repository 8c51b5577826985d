/* The acceptance rules against exact enumeration. Every probability of an instance is a multiple of
 * 1/6, so all thresholds of the standard rule are multiples of 1/60 and midpoints of 60 cells on
 * each uniform cover its law exactly: integers are compared, not floats. */
#include "accept.h"
#include "test.h"

#include <math.h>

enum { V = 3, K = 2, M = 60 };

/* Rows of sixths: target after (), (a), (a, b) and proposal after (), (a). */
typedef struct {
    int p0[V], p1[V][V], p2[V][V][V];
    int q0[V], q1[V][V];
} instance;

static void sixths(uint64_t *seed, int *row)
{
    row[0] = (int)(test_rnd(seed) % 7);
    row[1] = (int)(test_rnd(seed) % (uint64_t)(7 - row[0]));
    row[2] = 6 - row[0] - row[1];
}

static instance random_instance(uint64_t *seed)
{
    instance in;
    sixths(seed, in.p0);
    sixths(seed, in.q0);
    for (int a = 0; a < V; a++) {
        sixths(seed, in.p1[a]);
        sixths(seed, in.q1[a]);
        for (int b = 0; b < V; b++)
            sixths(seed, in.p2[a][b]);
    }
    return in;
}

static void fill(double *row, const int *n)
{
    for (int t = 0; t < V; t++)
        row[t] = n[t] / 6.0;
}

/* Adds `weight` times the law of everything that continues the emitted tokens out[0..n). */
static void complete(const instance *in, int64_t law[V][V][V], const int *out, int n,
                     int64_t weight)
{
    for (int a = 0; a < V; a++) {
        for (int b = 0; b < V; b++) {
            for (int c = 0; c < V; c++) {
                if (a != out[0] || (n > 1 && b != out[1]) || (n > 2 && c != out[2]))
                    continue;
                int64_t w = weight * (n > 1 ? 6 : in->p1[a][b]) * (n > 2 ? 6 : in->p2[a][b][c]);
                law[a][b][c] += w;
            }
        }
    }
}

static void standard_is_exact(void **state)
{
    (void)state;
    for (uint64_t seed0 = 1; seed0 <= 12; seed0++) {
        uint64_t seed = seed0;
        instance in = random_instance(&seed);
        int point = seed0 % 3 == 0; /* a greedy draft: proposals are fixed */
        int64_t law[V][V][V] = {0};
        for (int x = 0; x < V; x++) {
            for (int y = 0; y < V; y++) {
                int64_t weight = point ? (x == 1 && y == 2 ? 36 : 0) : in.q0[x] * in.q1[x][y];
                if (weight == 0)
                    continue;
                double p[3 * V], q[2 * V];
                fill(p, in.p0);
                fill(p + V, in.p1[x]);
                fill(p + 2 * V, in.p2[x][y]);
                fill(q, in.q0);
                fill(q + V, in.q1[x]);
                int32_t drafts[K] = {x, y};
                for (int cell = 0; cell < M * M * M; cell++) {
                    double u[3] = {(cell % M + 0.5) / M, (cell / M % M + 0.5) / M,
                                   (cell / M / M + 0.5) / M};
                    k3i_verdict v = k3i_accept_standard(p, point ? NULL : q, drafts, K, V, u);
                    int out[3] = {x, y, 0};
                    out[v.n_accepted] = v.token;
                    complete(&in, law, out, v.n_accepted + 1, weight);
                }
            }
        }
        for (int a = 0; a < V; a++) {
            for (int b = 0; b < V; b++) {
                for (int c = 0; c < V; c++) {
                    int64_t want =
                        (int64_t)36 * M * M * M * in.p0[a] * in.p1[a][b] * in.p2[a][b][c];
                    if (law[a][b][c] * 6 != want)
                        fail_msg("seed %d: P(%d%d%d)", (int)seed0, a, b, c);
                }
            }
        }
    }
}

static void invalid_drafts_are_rejected(void **state)
{
    (void)state;
    double p[3 * V] = {0.5, 0.25, 0.25, 0.1, 0.2, 0.7, 1, 0, 0};
    double q[2 * V] = {1, 0, 0, 0.2, 0.2, 0.6};
    int32_t drafts[K] = {-1, 2};
    double u[3] = {0.01, 0.01, 0.9};
    assert_int_equal(k3i_accept_standard(p, q, drafts, K, V, u).n_accepted, 0);
    assert_int_equal(k3i_accept_standard(p, q, drafts, K, V, u).token, 2);
    assert_int_equal(k3i_accept_block(p, q, drafts, K, V, u).n_accepted, 0);
    assert_int_equal(k3i_accept_block(p, q, drafts, K, V, u).token, 2);
    drafts[0] = 99;
    assert_int_equal(k3i_accept_standard(p, NULL, drafts, K, V, u).n_accepted, 0);
}

/* Worked by hand in the paper's terms: see dspark.md 4.4. */
static void block_hand_vectors(void **state)
{
    (void)state;
    double p[3 * V] = {.5, .3, .2, .1, .2, .7, .3, .3, .4};
    double q1[2 * V] = {.2, .6, .2, .3, .3, .4};
    int32_t d1[K] = {1, 2};
    double u[3] = {0.001, 0.874, 0.999};
    assert_int_equal(k3i_accept_block(p, q1, d1, K, V, u).n_accepted, 2);
    u[1] = 0.876;
    assert_int_equal(k3i_accept_block(p, q1, d1, K, V, u).n_accepted, 0);
    assert_int_equal(k3i_accept_block(p, q1, d1, K, V, u).token, 0);

    double q2[2 * V] = {.2, .6, .2, .3, .6, .1};
    int32_t d2[K] = {1, 0};
    u[0] = 0.9, u[1] = 0.1;
    assert_int_equal(k3i_accept_block(p, q2, d2, K, V, u).n_accepted, 2);
    u[0] = 0.33, u[1] = 0.17;
    assert_int_equal(k3i_accept_block(p, q2, d2, K, V, u).n_accepted, 1);
    assert_int_equal(k3i_accept_block(p, q2, d2, K, V, u).token, 2);
    u[0] = 0.34;
    assert_int_equal(k3i_accept_block(p, q2, d2, K, V, u).n_accepted, 0);
}

/* P(the decision on draft i is yes), found by bisection of the function itself: the largest u_i at
 * which at least i drafts are accepted while later uniforms are 1 (never accepted). */
static double threshold(const double *p, const double *q, const int32_t *d, int i)
{
    double lo = 0.0, hi = 1.0;
    for (int step = 0; step < 50; step++) {
        double u[3] = {2, 2, 0.5}, mid = (lo + hi) / 2;
        u[i] = mid;
        if (k3i_accept_block(p, q, d, K, V, u).n_accepted == i + 1)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void block_keeps_the_law(void **state)
{
    (void)state;
    for (uint64_t seed0 = 100; seed0 < 140; seed0++) {
        uint64_t seed = seed0;
        instance in = random_instance(&seed);
        double law[V] = {0};
        for (int x = 0; x < V; x++) {
            for (int y = 0; y < V; y++) {
                double weight = in.q0[x] * in.q1[x][y] / 36.0;
                if (weight == 0)
                    continue;
                double p[3 * V], q[2 * V];
                fill(p, in.p0);
                fill(p + V, in.p1[x]);
                fill(p + 2 * V, in.p2[x][y]);
                fill(q, in.q0);
                fill(q + V, in.q1[x]);
                int32_t d[K] = {x, y};
                double h1 = threshold(p, q, d, 0), h2 = threshold(p, q, d, 1);
                law[x] += weight * (h2 + (1 - h2) * h1);
                enum { FINE = 6000 };
                for (int i = 0; i < FINE; i++) {
                    double u[3] = {2, 2, (i + 0.5) / FINE};
                    k3i_verdict v = k3i_accept_block(p, q, d, K, V, u);
                    assert_int_equal(v.n_accepted, 0);
                    law[v.token] += weight * (1 - h2) * (1 - h1) / FINE;
                }
            }
        }
        for (int a = 0; a < V; a++) {
            if (fabs(law[a] - in.p0[a] / 6.0) > 1e-3)
                fail_msg("seed %d: P(%d) = %g, want %g", (int)seed0, a, law[a], in.p0[a] / 6.0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_is_exact),
        cmocka_unit_test(invalid_drafts_are_rejected),
        cmocka_unit_test(block_hand_vectors),
        cmocka_unit_test(block_keeps_the_law),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
