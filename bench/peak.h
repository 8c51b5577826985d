/* peak.h: what this processor can multiply at most, measured: the yardstick of the benchmarks. */
#ifndef K3_BENCH_PEAK_H
#define K3_BENCH_PEAK_H

#include "team.h"

/* Multiply-adds (as 2 FLOP each) of one member in a second of its own: bf16 products where the
 * processor has them (isa "avx512"), f32 otherwise. Measured on all members at once, best of
 * several runs, in processor time, so that other programs on the machine do not count. *ret_name
 * says which product. */
double k3b_peak_flops(k3i_team *team, const char *isa, const char **ret_name);

/* Seconds of a monotonic clock, and of processor time of all threads of this process. */
double k3b_now(void);
double k3b_cpu(void);

#endif
