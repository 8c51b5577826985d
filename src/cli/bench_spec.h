/* bench_spec.h: the second half of `k3 bench`: the same prompts decoded plainly and with a draft,
 * turn by turn in one run. */
#ifndef K3I_CLI_BENCH_SPEC_H
#define K3I_CLI_BENCH_SPEC_H

#include "args.h"
#include "report.h"

/* Measures --speculative-config over --prompts with --users at a time and writes section
 * "speculation". */
k3_status k3i_bench_spec(const k3i_args *args, k3i_table *t, k3i_err *err);

#endif
