/* policy.c: the measured cost table, the acceptance estimate, and the greedy choice of widths.
 *
 * The choice is that of dspark.md 6.1: sort all (request, next draft) pairs by their chance to
 * survive, admit the best while the expected tokens per second grow. Chances come from earlier
 * steps only, and the sampled text is keyed by position anyway, so no choice can bias it. */
#include "policy.h"

#include <math.h>
#include <string.h>

/* A fresh draft model is believed to be right this often, with the weight of two trials. */
static const double PRIOR_SURVIVAL = 0.7, PRIOR_WEIGHT = 2.0;
/* Per verdict: about the last 20 verdicts count. */
static const double DECAY = 0.95;
/* Per measurement: about the last 8 steps count. */
static const double COST_GAIN = 0.125;
/* Drafts that survive this often and do not pay raise doubts of the costs, which then shrink by
 * this factor with every probe. */
static const double USEFUL = 0.5, DOUBT = 0.95;
/* Plain steps before the first draft: the first runs on cold caches and says little. Later they are
 * measured again after so many drafting steps, at growing distance, because costs drift with
 * context. */
enum { FIRST_LOOKS = 3, FIRST_DISTANCE = 16, LAST_DISTANCE = 256 };

void k3i_policy_init(k3i_policy *p, int32_t max_width, bool is_fixed)
{
    memset(p, 0, sizeof *p);
    p->max_width = max_width;
    p->is_fixed = is_fixed;
}

static void blend(double *mean, double ns)
{
    *mean = *mean == 0.0 ? ns : *mean + COST_GAIN * (ns - *mean);
}

void k3i_policy_saw_step(k3i_policy *p, int32_t rows, double ns)
{
    p->clock_ns += ns;
    if (rows < 1 || rows > K3_COST_ROWS)
        return;
    /* The fastest of the first looks, a decayed mean from then on, to which a step that was
     * interrupted adds no more than one of twice the mean. */
    double *mean = &p->step_ns[rows];
    if (p->is_doubted[rows]) {
        *mean = ns;
        p->is_doubted[rows] = false;
    } else if (p->step_seen[rows]++ >= FIRST_LOOKS)
        blend(mean, ns < 2 * *mean ? ns : 2 * *mean);
    else if (*mean == 0.0 || ns < *mean)
        *mean = ns;
    /* Fewer rows never take longer: an unlucky yardstick must not make drafts look cheap. */
    for (int32_t i = 1; i < rows; i++) {
        if (p->step_ns[i] > *mean)
            p->step_ns[i] = *mean;
    }
}

void k3i_policy_saw_draft(k3i_policy *p, int32_t n_reqs, int32_t width, double ns)
{
    p->clock_ns += ns;
    if (n_reqs >= 1 && width >= 1 && width <= K3_MAX_WIDTH)
        blend(&p->draft_ns[width], ns / n_reqs);
}

void k3i_policy_saw_verdict(k3i_policy *p, k3i_policy_req *r, int32_t width, int32_t accepted)
{
    /* Every accepted draft is a trial won, the first rejected one a trial lost; later ones tell
     * nothing. */
    double tried = accepted + (accepted < width);
    r->survived = DECAY * r->survived + accepted;
    r->tried = DECAY * r->tried + tried;
    p->survived = DECAY * p->survived + accepted;
    p->tried = DECAY * p->tried + tried;
    p->probe_won += p->probe_tried > 0 && accepted > 0;
}

double k3i_policy_survival(const k3i_policy *p, const k3i_policy_req *r)
{
    double all = (p->survived + PRIOR_SURVIVAL * PRIOR_WEIGHT) / (p->tried + PRIOR_WEIGHT);
    return (r->survived + all * PRIOR_WEIGHT) / (r->tried + PRIOR_WEIGHT);
}

/* The nearest measured row counts at or below and at or above; -1 where there is none. */
static void neighbours(const double *ns, int32_t n, int32_t at, int32_t *ret_lo, int32_t *ret_hi)
{
    int32_t lo = at, hi = at;
    while (lo >= 1 && ns[lo] == 0.0)
        lo--;
    while (hi <= n && ns[hi] == 0.0)
        hi++;
    *ret_lo = lo >= 1 ? lo : -1;
    *ret_hi = hi <= n ? hi : -1;
}

static double interpolate(const double *ns, int32_t n, int32_t at)
{
    int32_t lo, hi;
    neighbours(ns, n, at, &lo, &hi);
    if (lo < 0 && hi < 0)
        return 0.0;
    if (hi < 0) {
        /* Beyond everything seen: the slope of the last two, at least flat. */
        int32_t before, ignored;
        neighbours(ns, n, lo - 1, &before, &ignored);
        double slope = before > 0 ? (ns[lo] - ns[before]) / (lo - before) : 0.0;
        return ns[lo] + (slope > 0.0 ? slope * (at - lo) : 0.0);
    }
    if (lo < 0)
        return ns[hi];
    if (lo == hi)
        return ns[lo];
    return ns[lo] + (ns[hi] - ns[lo]) * (at - lo) / (hi - lo);
}

double k3i_policy_step_cost(const k3i_policy *p, int32_t rows)
{
    return interpolate(p->step_ns, K3_COST_ROWS, rows < K3_COST_ROWS ? rows : K3_COST_ROWS);
}

static int32_t all_at(int32_t n, const int32_t *cap, int32_t width, int32_t *ret)
{
    int32_t largest = 0;
    for (int32_t i = 0; i < n; i++) {
        ret[i] = cap[i] < width ? cap[i] : width;
        largest = ret[i] > largest ? ret[i] : largest;
    }
    return largest;
}

/* Grows ret greedily; returns the largest width. */
static int32_t grow(const k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                    int32_t *ret)
{
    double best_rate = n / k3i_policy_step_cost(p, n), tokens = n;
    int32_t rows = n, widest = 0, n_drafting = 0, best_total = 0, total = 0;
    int32_t width[K3_COST_ROWS] = {0};
    for (;;) {
        int32_t pick = -1;
        double chance = 0.0;
        for (int32_t i = 0; i < n; i++) {
            if (width[i] >= cap[i])
                continue;
            double survive = k3i_policy_survival(p, reqs[i]), s = survive;
            for (int32_t j = 0; j < width[i]; j++)
                s *= survive;
            if (s > chance) {
                chance = s;
                pick = i;
            }
        }
        if (pick < 0)
            break;
        n_drafting += width[pick] == 0;
        total++;
        if (++width[pick] > widest)
            widest = width[pick];
        rows++;
        tokens += chance;
        double ns = k3i_policy_step_cost(p, rows) +
                    n_drafting * interpolate(p->draft_ns, K3_MAX_WIDTH, widest);
        /* All totals are looked at, not only the first rise: a step's cost has plateaus. */
        if (tokens / ns > best_rate) {
            best_rate = tokens / ns;
            best_total = total;
            memcpy(ret, width, (size_t)n * sizeof *ret);
        }
    }
    if (best_total == 0)
        return all_at(n, cap, 0, ret);
    int32_t largest = 0;
    for (int32_t i = 0; i < n; i++)
        largest = ret[i] > largest ? ret[i] : largest;
    return largest;
}

/* The costs of wider steps may have been measured in a bad moment. They are believed a little less
 * each time, until one looks cheap enough to be measured again. */
static void doubt_costs(k3i_policy *p, int32_t n)
{
    for (int32_t rows = n + 1; rows <= K3_COST_ROWS; rows++) {
        if (p->step_ns[rows] > p->step_ns[n]) {
            p->step_ns[rows] = fmax(p->step_ns[n], p->step_ns[rows] * DOUBT);
            p->is_doubted[rows] = true;
        }
    }
}

/* One draft for each request although drafts do not seem to pay, if the time that it may lose is
 * there. Returns the width, 0 = not now. */
static int32_t probe(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                     int32_t *ret)
{
    bool won = p->probe_tried > 0 && 2 * p->probe_won >= p->probe_tried;
    double loss = k3i_policy_step_cost(p, 2 * n) - k3i_policy_step_cost(p, n) +
                  n * interpolate(p->draft_ns, K3_MAX_WIDTH, 1);
    p->probe_tried = p->probe_won = 0;
    if (!won && loss >= K3_PROBE_SHARE * (p->clock_ns - p->probed_ns))
        return 0;
    p->probed_ns = p->clock_ns;
    double survive = 0.0;
    for (int32_t i = 0; i < n; i++)
        survive += k3i_policy_survival(p, reqs[i]) / n;
    if (survive > USEFUL)
        doubt_costs(p, n);
    int32_t largest = all_at(n, cap, 1, ret);
    for (int32_t i = 0; i < n; i++)
        p->probe_tried += ret[i];
    return largest;
}

int32_t k3i_policy_choose(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                          int32_t *ret)
{
    int32_t largest;
    if (p->is_fixed || n > K3_COST_ROWS / 2) {
        largest = all_at(n, cap, p->max_width, ret);
    } else if (p->step_seen[n] < FIRST_LOOKS || p->n_drafting >= p->next_look) {
        largest = all_at(n, cap, 0, ret); /* the yardstick first */
        int64_t distance = p->n_drafting < FIRST_DISTANCE ? FIRST_DISTANCE : p->n_drafting;
        p->next_look = p->n_drafting + (distance < LAST_DISTANCE ? distance : LAST_DISTANCE);
        p->n_plain++;
        return 0;
    } else if (p->n_wide < FIRST_LOOKS) {
        largest = all_at(n, cap, p->max_width, ret);
        p->n_wide += largest == p->max_width;
    } else {
        largest = grow(p, n, reqs, cap, ret);
    }
    if (largest == 0 && !p->is_fixed && p->step_seen[n] >= FIRST_LOOKS)
        largest = probe(p, n, reqs, cap, ret);
    if (largest > 0)
        p->n_drafting++;
    else
        p->n_plain++;
    return largest;
}
