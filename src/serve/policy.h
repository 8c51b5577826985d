/* policy.h: how many drafts the next step should verify, per request. Correctness never depends on
 * it.
 *
 * Two things are measured: the time of a step by its number of rows (and of a draft pass by its
 * width), and for each request how often a draft survives. From both follows the expected number of
 * tokens per second of every width; the best wins, 0 = plain decoding. Requests whose drafts do not
 * pay are probed again now and then, so rarely that all probes together are expected to cost at most
 * K3_PROBE_SHARE of the time, unless drafts that were believed to be bad succeed: then the next
 * follows at once. */
#ifndef K3I_POLICY_H
#define K3I_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum {
    K3_MAX_WIDTH = 16,
    K3_MAX_DRAFTING =
        256,           /* requests whose widths are chosen one by one; more draft as configured */
    K3_COST_EXACT = 64, /* row counts up to here have a point each: costs rise in stairs */
    K3_COST_POINTS = K3_COST_EXACT + 4 * 7, /* four an octave from there, up to 8191 rows */
};

/* Part of the time that probing a useless draft may take. The draft's context rows, which are
 * written for every token, cost another 0 to 3 %, and its weights take room in the caches: together
 * it should stay below 5 %, and does not always (docs/dspark.md 8). */
#define K3_PROBE_SHARE 0.01

/* What a request knows of its drafts. */
typedef struct {
    double survived, tried; /* decayed counts of single-draft trials */
} k3i_policy_req;

/* Time of a step by rows, one measured point. Neighbouring row counts share a point: each by itself
 * would be seen too rarely, and the choice would favour those that were lucky once. */
typedef struct {
    double rows, ns; /* decayed means; rows 0 = not seen */
    int32_t n_seen;
    bool is_doubted; /* ns was lowered: the next step here tells */
} k3i_cost_point;

typedef struct {
    int32_t max_width;
    bool is_fixed; /* always max_width */
    k3i_cost_point cost[K3_COST_POINTS];
    double draft_ns[K3_MAX_WIDTH + 1]; /* by width, for one request in the pass */
    double survived, tried;            /* over all requests: the prior of a new one */
    double clock_ns, probed_ns;        /* time of decode steps so far; at the last probe */
    int64_t lately_tried;              /* verdicts since drafts last did not pay, and */
    int64_t lately_won;                /* those whose first draft stood */
    int32_t n_wide;                    /* first looks at the full width */
    int64_t next_look;                 /* n_drafting at which a plain step is measured again */
    int64_t next_doubt;                /* decision at which the costs of wide steps are doubted */
    int64_t n_plain, n_drafting;       /* decisions by kind, for the statistics */
} k3i_policy;

void k3i_policy_init(k3i_policy *p, int32_t max_width, bool is_fixed);
/* A decode step (no prefill rows in it) took `ns`. */
void k3i_policy_saw_step(k3i_policy *p, int32_t rows, double ns);
void k3i_policy_saw_draft(k3i_policy *p, int32_t n_reqs, int32_t width, double ns);
/* Of `width` verified drafts the first `accepted` stood. */
void k3i_policy_saw_verdict(k3i_policy *p, k3i_policy_req *r, int32_t width, int32_t accepted);

/* Widths for the next step of n decoding requests: ret[i] in 0..cap[i], caps at most max_width.
 * Returns the largest. */
int32_t k3i_policy_choose(k3i_policy *p, int32_t n, k3i_policy_req *const *reqs, const int32_t *cap,
                          int32_t *ret);

/* Estimated time of a step with this many rows, 0 if nothing was measured. */
double k3i_policy_step_cost(const k3i_policy *p, int32_t rows);
double k3i_policy_survival(const k3i_policy *p, const k3i_policy_req *r);

#endif
