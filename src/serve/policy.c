/* policy.c: the measured cost table, the acceptance estimate, and the greedy choice of widths.
 *
 * The choice is that of dspark.md 6.1: sort all (request, next draft) pairs by their chance to
 * survive, admit the best while the expected tokens per second grow. Chances come from earlier
 * steps only, and the sampled text is keyed by position anyway, so no choice can bias it. */
#include "policy.h"

#include <math.h>
#include <string.h>

/* A fresh draft model is believed to be right this often, with the weight of four trials. */
static const double PRIOR_SURVIVAL = 0.7, PRIOR_WEIGHT = 4.0;
/* Per verdict: about the last 20 verdicts count. */
static const double DECAY = 0.95;
/* Per measurement: about the last 8 steps count. */
static const double COST_GAIN = 0.125;
/* Drafts that survive this often, but are not used to the full, raise doubts of the costs of wider
 * steps: these shrink by this factor every so many decisions. */
static const double USEFUL = 0.5, DOUBT = 0.95;
enum { DOUBT_DISTANCE = 32 };
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

static void blend(double *mean, double x)
{
    *mean = *mean == 0.0 ? x : *mean + COST_GAIN * (x - *mean);
}

static int32_t point_of(int32_t rows)
{
    if (rows <= K3_COST_EXACT)
        return rows - 1;
    int32_t octave = 0;
    while (rows >> (octave + 1) >= K3_COST_EXACT)
        octave++;
    int32_t at = K3_COST_EXACT + 4 * octave + rows / (K3_COST_EXACT / 4 << octave) - 4;
    return at < K3_COST_POINTS ? at : K3_COST_POINTS - 1;
}

void k3i_policy_saw_step(k3i_policy *p, int32_t rows, double ns)
{
    p->clock_ns += ns;
    if (rows < 1)
        return;
    /* The fastest of the first looks, a decayed mean from then on, to which a step that was
     * interrupted adds no more than one of twice the mean. */
    k3i_cost_point *c = &p->cost[point_of(rows)];
    if (c->is_doubted || c->n_seen == 0 ||
        (c->n_seen < FIRST_LOOKS && ns * c->rows < c->ns * rows)) {
        c->rows = rows;
        c->ns = ns;
    } else if (c->n_seen >= FIRST_LOOKS) {
        blend(&c->rows, rows);
        blend(&c->ns, ns < 2 * c->ns ? ns : 2 * c->ns);
    }
    c->is_doubted = false;
    c->n_seen++;
    /* Fewer rows never take longer: an unlucky yardstick must not make drafts look cheap. */
    for (k3i_cost_point *fewer = p->cost; fewer < c; fewer++)
        fewer->ns = fmin(fewer->ns, c->ns);
}

void k3i_policy_saw_draft(k3i_policy *p, int32_t n_reqs, int32_t width, double ns)
{
    p->clock_ns += ns;
    if (n_reqs < 1 || width < 1 || width > K3_MAX_WIDTH)
        return;
    double *seen = &p->draft_ns[width], one = ns / n_reqs;
    /* As with steps: a pass that was interrupted adds no more than one of twice the mean. */
    blend(seen, *seen > 0.0 ? fmin(one, 2 * *seen) : one);
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
    p->lately_tried++;
    p->lately_won += accepted > 0;
}

double k3i_policy_survival(const k3i_policy *p, const k3i_policy_req *r)
{
    double all = (p->survived + PRIOR_SURVIVAL * PRIOR_WEIGHT) / (p->tried + PRIOR_WEIGHT);
    return (r->survived + all * PRIOR_WEIGHT) / (r->tried + PRIOR_WEIGHT);
}

/* On the line through two points; beyond them flat towards fewer rows, and never falling. */
static double on_line(double x0, double y0, double x1, double y1, double x)
{
    double slope = x1 > x0 && y1 > y0 ? (y1 - y0) / (x1 - x0) : 0.0;
    return x > x0 ? y0 + slope * (x - x0) : y0;
}

double k3i_policy_step_cost(const k3i_policy *p, int32_t rows)
{
    const k3i_cost_point *lo = NULL, *hi = NULL, *before = NULL;
    for (const k3i_cost_point *c = p->cost; c < p->cost + K3_COST_POINTS && hi == NULL; c++) {
        if (c->n_seen == 0)
            continue;
        if (c->rows >= rows) {
            hi = c;
        } else {
            before = lo;
            lo = c;
        }
    }
    if (lo == NULL)
        return hi == NULL ? 0.0 : hi->ns;
    if (hi != NULL)
        return on_line(lo->rows, lo->ns, hi->rows, hi->ns, rows);
    /* Beyond everything seen: the slope of the last two. */
    return before == NULL ? lo->ns
                          : lo->ns + on_line(before->rows, 0.0, lo->rows, lo->ns - before->ns,
                                             before->rows + rows - lo->rows);
}

/* Time of a draft pass for one request, from the nearest widths that were measured. */
static double draft_cost(const k3i_policy *p, int32_t width)
{
    int32_t lo = width, hi = width;
    while (lo >= 1 && p->draft_ns[lo] == 0.0)
        lo--;
    while (hi <= K3_MAX_WIDTH && p->draft_ns[hi] == 0.0)
        hi++;
    if (hi > K3_MAX_WIDTH)
        return lo >= 1 ? p->draft_ns[lo] : 0.0;
    return lo < 1 ? p->draft_ns[hi] : on_line(lo, p->draft_ns[lo], hi, p->draft_ns[hi], width);
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
    int32_t width[K3_MAX_DRAFTING] = {0};
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
        double ns = k3i_policy_step_cost(p, rows) + n_drafting * draft_cost(p, widest);
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

static double mean_survival(const k3i_policy *p, int32_t n, k3i_policy_req *const *reqs)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += k3i_policy_survival(p, reqs[i]);
    return sum / n;
}

/* The costs of wider steps and of wider draft passes may have been measured in a bad moment. They
 * are believed a little less each time, until one looks cheap enough to be measured again. */
static void doubt_costs(k3i_policy *p, int32_t rows, int32_t widest)
{
    double least = k3i_policy_step_cost(p, rows);
    for (int32_t i = point_of(rows) + 1; i < K3_COST_POINTS; i++) {
        k3i_cost_point *c = &p->cost[i];
        if (c->n_seen > 0 && c->ns > least) {
            c->ns = fmax(least, c->ns * DOUBT);
            c->is_doubted = true;
        }
    }
    double pass = widest > 0 ? draft_cost(p, widest) : 0.0;
    for (int32_t w = widest + 1; w <= K3_MAX_WIDTH; w++) {
        if (p->draft_ns[w] > pass)
            p->draft_ns[w] = fmax(pass, p->draft_ns[w] * DOUBT);
    }
}

/* The width, the same for all, with the most expected tokens per second, and the time that a step
 * with it is expected to lose against plain ones. */
static int32_t best_uniform(const k3i_policy *p, int32_t n, k3i_policy_req *const *reqs,
                            const int32_t *cap, double *ret_loss)
{
    int32_t best = 0;
    double best_rate = 0.0, plain = k3i_policy_step_cost(p, n) / n;
    for (int32_t width = 1; width <= p->max_width; width++) {
        double tokens = n;
        int32_t rows = n;
        for (int32_t i = 0; i < n; i++) {
            double chance = 1.0, survive = k3i_policy_survival(p, reqs[i]);
            for (int32_t j = 0; j < width && j < cap[i]; j++, rows++)
                tokens += chance *= survive;
        }
        double ns = k3i_policy_step_cost(p, rows) + n * draft_cost(p, width);
        if (tokens / ns > best_rate) {
            best_rate = tokens / ns;
            best = width;
            *ret_loss = ns - tokens * plain;
        }
    }
    return best;
}

/* Drafts for all although they do not seem to pay, if the time that the probe may lose is there.
 * Good drafts that are too dear are probed at the width that comes nearest to paying, for only
 * costs can be learnt: the nearer, the more often. Drafts that are believed to be bad are probed
 * one at a time, and free if they have just stood: the more is learnt about them the sooner they
 * are used again. Returns the width, 0 = not now. */
static int32_t probe(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                     int32_t *ret)
{
    bool is_free = p->lately_tried > 0 && 2 * p->lately_won >= p->lately_tried;
    int32_t width = 1;
    double loss =
        k3i_policy_step_cost(p, 2 * n) - k3i_policy_step_cost(p, n) + n * draft_cost(p, 1);
    if (mean_survival(p, n, reqs) >= USEFUL) {
        is_free = false;
        width = best_uniform(p, n, reqs, cap, &loss);
    }
    p->lately_tried = p->lately_won = 0;
    if (!is_free && loss >= K3_PROBE_SHARE * (p->clock_ns - p->probed_ns))
        return 0;
    p->probed_ns = p->clock_ns;
    return all_at(n, cap, width, ret);
}

static int32_t adapt(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                     int32_t *ret)
{
    if (p->cost[point_of(n)].n_seen < FIRST_LOOKS || p->n_drafting >= p->next_look) {
        int64_t distance = p->n_drafting < FIRST_DISTANCE ? FIRST_DISTANCE : p->n_drafting;
        p->next_look = p->n_drafting + (distance < LAST_DISTANCE ? distance : LAST_DISTANCE);
        return all_at(n, cap, 0, ret); /* the yardstick first */
    }
    int32_t largest;
    if (p->n_wide < FIRST_LOOKS) {
        largest = all_at(n, cap, p->max_width, ret);
        p->n_wide += largest == p->max_width;
        return largest;
    }
    largest = grow(p, n, reqs, cap, ret);
    if (p->n_plain + p->n_drafting >= p->next_doubt) {
        p->next_doubt = p->n_plain + p->n_drafting + DOUBT_DISTANCE;
        int32_t rows = n;
        for (int32_t i = 0; i < n; i++)
            rows += ret[i];
        if (mean_survival(p, n, reqs) >= USEFUL)
            doubt_costs(p, rows, largest);
    }
    return largest > 0 ? largest : probe(p, n, reqs, cap, ret);
}

int32_t k3i_policy_choose(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                          int32_t *ret)
{
    int32_t largest = p->is_fixed || n > K3_MAX_DRAFTING ? all_at(n, cap, p->max_width, ret)
                                                         : adapt(p, n, reqs, cap, ret);
    if (largest > 0)
        p->n_drafting++;
    else
        p->n_plain++;
    return largest;
}
