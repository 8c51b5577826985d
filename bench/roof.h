/* roof.h: what this machine's memory can deliver at most, measured: the yardstick of decoding. */
#ifndef K3_BENCH_ROOF_H
#define K3_BENCH_ROOF_H

#include "team.h"

/* Bytes a second that all members together read from buf[0..bytes), each its own contiguous part,
 * with the widest loads of the processor: best of several passes by the clock, and, into *ret_cpu,
 * best by the processor time of all members. `buf` should exceed the caches by far. */
double k3b_read_rate(k3i_team *team, const void *buf, size_t bytes, double *ret_cpu);

#endif
