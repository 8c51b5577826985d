/* peak.h: what this processor can multiply at most, measured: the yardstick of the benchmarks. */
#ifndef K3_BENCH_PEAK_H
#define K3_BENCH_PEAK_H

#include "team.h"

/* Multiply-adds (as 2 FLOP each) a second of all members together: bf16 products where the processor has
 * them (isa "avx512"), f32 otherwise. Best of several short runs. *ret_name says which. */
double k3b_peak_flops(k3i_team *team, const char *isa, const char **ret_name);

/* Seconds of a monotonic clock. */
double k3b_now(void);

#endif
