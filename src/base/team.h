/* team.h: a team of worker threads with fork-join steps. The caller's thread is member 0. Work is
 * split by the callee, statically or piece by piece as members come for it, always over outputs and
 * never inside a reduction, so results do not depend on the number of members or on who did what.
 * Between steps workers spin for a few microseconds, then sleep. */
#ifndef K3I_TEAM_H
#define K3I_TEAM_H

#include "alloc.h"

typedef struct k3i_team k3i_team;

/* Work of member `i` of `n` active ones; must not fail and must not call k3i_team_run on the same
 * team. */
typedef void (*k3i_team_fn)(void *arg, size_t i, size_t n);

/* n_threads >= 1 members. cpus: n_cpus CPU numbers to pin members to (member i to cpus[i %
 * n_cpus]), or NULL. Errors: K3_E_NOMEM, K3_E_ARG (a CPU that does not exist). */
k3_status k3i_team_new(size_t n_threads, const int32_t *cpus, size_t n_cpus, k3i_team **ret,
                       k3i_err *err);
void k3i_team_free(k3i_team *team);
size_t k3i_team_size(const k3i_team *team);

/* How many members, 1..k3i_team_size, take part in the steps that follow; the others sleep until
 * they are wanted again. At first all. Not during a step. */
void k3i_team_set_active(k3i_team *team, size_t n);
size_t k3i_team_active(const k3i_team *team);

/* How long member 0 has slept at the ends of all steps until the others were done, in nanoseconds.
 */
int64_t k3i_team_slept(const k3i_team *team);

/* Runs fn on all active members and returns when all have finished. A team of one just calls it. */
void k3i_team_run(k3i_team *team, k3i_team_fn fn, void *arg);

/* Deals items 0 .. n_items - 1, fewer than 2^32, out for the team step that comes next: every
 * active member gets an equal range. */
void k3i_team_deal(k3i_team *team, size_t n_items);

/* The next piece for member i: a part of what is left of its range, `least` items or more, and when
 * that is used up, from the end of another's; so nobody waits for a member that its processor slows
 * down. False when nothing is left. Pieces ascend until the range is used up. */
bool k3i_team_take(k3i_team *team, size_t i, size_t least, size_t *ret_from, size_t *ret_to);

/* The part [*ret_from, *ret_to) of 0..n_items-1 that member i of n owns: contiguous, sizes differ
 * by at most one `grain`; every boundary but the last is a multiple of grain. */
void k3i_team_split(size_t n_items, size_t grain, size_t i, size_t n, size_t *ret_from,
                    size_t *ret_to);

#endif
