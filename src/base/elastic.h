/* elastic.h: fewer members while other programs want the processors.
 *
 * A step is done when its last member is done. If one of them waits for a processor that another
 * program has, all wait with it, for milliseconds, at each of the hundred meetings of a step: two
 * members beside one busy program are slower than one alone (docs/decisions/elastic-threads.md).
 * Linux tells how long a thread has waited so. Where that costs more than a member is worth, the
 * team goes on with fewer, and tries all of them again from time to time. */
#ifndef K3I_ELASTIC_H
#define K3I_ELASTIC_H

#include "team.h"

#include <stdint.h>

/* The rule, without a team. Times in nanoseconds. */
typedef struct {
    size_t size, active; /* members, and those that work */
    size_t fallback;     /* while all are tried: how many worked before; else 0 */
    int64_t hold;        /* work until all are tried again */
    int64_t held;        /* of it done */
} k3i_elastic_rule;

void k3i_elastic_rule_init(k3i_elastic_rule *rule, size_t size);

/* Steps have taken `busy`; their members have waited for a processor for `waited`, all together,
 * and member 0 has slept for `slept` at the ends of steps. Returns how many should work in the
 * next. */
size_t k3i_elastic_rule_saw(k3i_elastic_rule *rule, int64_t busy, int64_t waited, int64_t slept);

typedef struct k3i_elastic k3i_elastic;

/* For a team that outlives it. Errors: K3_E_NOMEM. Where the kernel tells nothing, all work always.
 */
k3_status k3i_elastic_new(k3i_team *team, k3i_elastic **ret, k3i_err *err);
void k3i_elastic_free(k3i_elastic *elastic);

/* Before a step, by the thread that runs it; `busy` is the time that all steps so far have taken.
 * Looks now and then, a team step of 7 us for two members, and sets the team's active members. Long
 * steps, mostly large products whose pieces go to whoever is there, are judged apart from short
 * ones. */
void k3i_elastic_before(k3i_elastic *elastic, bool is_long, int64_t busy);

#endif
