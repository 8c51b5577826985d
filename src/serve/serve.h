/* serve.h: the engine thread. It owns the scheduler; clients hand requests over through a bounded
 * queue and read answers from the requests themselves. The thread sleeps when there is nothing to
 * compute, and never waits for a client. */
#ifndef K3I_SERVE_H
#define K3I_SERVE_H

#include "scheduler.h"

typedef struct k3i_serve k3i_serve;

/* max_waiting: requests that may wait for a slot; more are refused with K3_E_BUSY. */
k3_status k3i_serve_new(const k3i_sched_config *config, int32_t max_waiting, k3i_serve **ret,
                        k3i_err *err);
/* Cuts what is still running and ends the thread. NULL is allowed. */
void k3i_serve_free(k3i_serve *s);

/* Hands over a filled request. Errors: those of k3i_sched_check; K3_E_BUSY (queue full); K3_E_STATE
 * (draining); K3_E_FATAL (engine dead). On success the server holds a reference of its own. Any
 * thread. */
k3_status k3i_serve_submit(k3i_serve *s, k3i_request *r, k3i_err *err);

/* Refuses new requests, lets the present ones finish, cuts them at the limit. Returns when all have
 * ended. Any thread but the engine's. */
void k3i_serve_drain(k3i_serve *s, int64_t limit_ns);

/* A copy of the statistics as of the last step. Any thread. */
void k3i_serve_stats(k3i_serve *s, k3i_stats *ret);
const k3_info *k3i_serve_info(const k3i_serve *s);
const k3_kv_layout *k3i_serve_layout(const k3i_serve *s);
const k3i_sched_config *k3i_serve_config(const k3i_serve *s);
bool k3i_serve_is_dead(k3i_serve *s);

#endif
