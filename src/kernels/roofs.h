/* roofs.h: what this machine can do, measured in the same run as what it does: the denominators of
 * `k3 bench`. */
#ifndef K3I_ROOFS_H
#define K3I_ROOFS_H

#include "kernels.h"
#include "team.h"

typedef struct {
    double read_bytes_per_s; /* all members of the team streaming from memory beyond the caches */
    double bf16_flop_per_s;  /* independent multiply-adds on all members, multiply and add counted
                                separately */
    double f32_flop_per_s;
} k3i_roofs;

/* The best of several rounds and several ways of reading; about half a second. Needs 64 MiB a
 * member, 256 at least. Errors: K3_E_NOMEM. */
k3_status k3i_roofs_measure(k3i_team *team, const k3i_ops *ops, k3i_roofs *ret, k3i_err *err);

#endif
