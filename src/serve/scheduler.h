/* scheduler.h: which rows the engine computes next. One call of k3i_sched_step is one transaction:
 * it admits, plans, runs the engine, samples, commits and drafts. No thread, no clock beyond
 * measurement, no socket: serve.h adds those.
 *
 * Order of service is order of arrival. Decoding requests come first in every step (one row, or one
 * plus drafts), prefills share what is left of the token budget; a full pool preempts the youngest,
 * which is computed again later, with the same tokens, because nothing of a request's answer
 * depends on the schedule. The oldest request is never preempted, so there is always progress. */
#ifndef K3I_SCHEDULER_H
#define K3I_SCHEDULER_H

#include "clock.h"
#include "stats.h"

typedef struct k3i_sched k3i_sched;

typedef struct {
    k3_engine *engine;  /* opened, without KV memory yet; outlives the scheduler */
    int32_t num_blocks; /* pages of the pool, with the reserved one */
    int32_t block_tokens;
    bool no_prefix_caching;
    int64_t snapshot_bytes;     /* budget of state snapshots; 0 = half of the pool */
    int32_t snapshot_interval;  /* tokens; 0 = so that they take as much memory as the latents */
    int32_t speculative_tokens; /* most drafts per request and step; 0 = no speculation */
    bool is_fixed_width;        /* always that many, instead of the measured best */
} k3i_sched_config;

/* Makes the engine's KV memory. Errors: as k3_kv_init; K3_E_ARG if the pool cannot hold one
 * sequence of max_model_len. */
k3_status k3i_sched_new(const k3i_sched_config *config, k3i_sched **ret, k3i_err *err);
/* Requests still there end with K3_FINISH_ABORT. NULL is allowed. */
void k3i_sched_free(k3i_sched *s);

/* Whether the request can run at all, before it is added: ids, pictures, lengths. Thread-safe. */
k3_status k3i_sched_check(const k3i_sched *s, const k3i_request *r, k3i_err *err);
/* Appends a checked request, with a reference of its own. */
void k3i_sched_add(k3i_sched *s, k3i_request *r);
/* The part of a step before the engine's: who has left ends, who fits is admitted. A step does it
 * anyway; by itself it is for statistics that shall not wait for the engine. */
void k3i_sched_begin(k3i_sched *s);
/* One step. False if there was nothing to compute. */
bool k3i_sched_step(k3i_sched *s);
bool k3i_sched_is_idle(const k3i_sched *s);
/* Ends every request with this reason (a shutdown at its limit, or a dead engine). */
void k3i_sched_end_all(k3i_sched *s, k3i_finish finish, const char *why);

const k3_info *k3i_sched_info(const k3i_sched *s);
const k3_kv_layout *k3i_sched_layout(const k3i_sched *s);
const k3i_sched_config *k3i_sched_get_config(const k3i_sched *s);
/* The statistics so far; gauges are brought up to date. Engine thread. */
void k3i_sched_stats(k3i_sched *s, k3i_stats *ret);

#endif
