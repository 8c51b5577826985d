/* stats.h: counters and histograms of the scheduler, written on the engine thread, read by anybody
 * through k3i_serve_stats. */
#ifndef K3I_STATS_H
#define K3I_STATS_H

#include "request.h"

enum { K3_HISTOGRAM_MAX = 32 };

typedef struct {
    const double *bounds; /* [n_bounds] upper bounds, ascending; a last bucket is unbounded */
    int32_t n_bounds;
    int64_t count[K3_HISTOGRAM_MAX + 1];
    double sum;
} k3i_histogram;

typedef struct {
#define COUNTER(field, name, help) int64_t field;
#define HISTOGRAM(field, name, help, bounds) k3i_histogram field;
#include "metrics.def"
#undef COUNTER
#undef HISTOGRAM
    int64_t finished[K3_FINISH_ERROR + 1];           /* by k3i_finish */
    int64_t spec_accepted_at[K3_MAX_WIDTH];          /* drafts whose prefix was accepted past i */
    int64_t lookups, miss_tokens, miss_snapshot;     /* prefix lookups, and why they fell short */
    int64_t steps, plain_decisions, draft_decisions; /* engine steps; the policy's decisions */
    int64_t engine_ns;                               /* inside the engine's calls */
    double spec_survival;                            /* the policy's present estimate */
    int32_t running, waiting;                        /* requests */
    int32_t pages, pages_free, pages_evictable;      /* of the pool */
    int32_t snapshots;
    int32_t threads_active; /* of the engine, now */
    int32_t is_dead;        /* 1 after a fatal engine error */
} k3i_stats;

void k3i_stats_init(k3i_stats *s);
void k3i_histogram_add(k3i_histogram *h, double value);

#endif
