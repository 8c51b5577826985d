/* roofs.h: what this machine can do, measured in the same run as what it does: the denominators of
 * the benchmarks. */
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

/* The best of several rounds and several ways of reading, beside which the best run of a kernel
 * belongs; about half a second. Needs 64 MiB a member, 256 at least. Errors: K3_E_NOMEM. */
k3_status k3i_roofs_measure(k3i_team *team, const k3i_ops *ops, k3i_roofs *ret, k3i_err *err);

/* The same loops in slices between slices of work, for machines whose memory is shared: the mean
 * of reading over a slice belongs beside the mean of the work. */
typedef struct k3i_meter k3i_meter;

/* Loops that read differ in their streams and in how far ahead they ask. */
enum { K3I_READ_WAYS = 6 };

/* Needs the memory of k3i_roofs_measure. Errors: K3_E_NOMEM. */
k3_status k3i_meter_new(k3i_team *team, const k3i_ops *ops, k3i_meter **ret, k3i_err *err);
void k3i_meter_free(k3i_meter *m);

/* Reads for `seconds` or a little more, the ways taking turns; ret_rate [K3I_READ_WAYS]: bytes a
 * second of all members, by way. */
void k3i_meter_read(k3i_meter *m, double seconds, double *ret_rate);

/* FLOP a second of all members in bf16: the median of steps of some milliseconds, over `seconds` or
 * a little more. Registers are nobody else's: what disturbs a step is no property of the machine.
 */
double k3i_meter_bf16(k3i_meter *m, double seconds);

#endif
