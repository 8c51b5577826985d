/* kernels.h: the table of operations. kernels.def says what each one computes; a table holds one
 * implementation of each for one instruction set. It is chosen once, before any thread starts, and
 * is const. */
#ifndef K3I_KERNELS_H
#define K3I_KERNELS_H

#include "bf16.h"
#include "consts.h"
#include "err.h"

#include <stddef.h>

typedef struct k3i_ops {
    const char *isa; /* "ref", "avx2", "avx512", "avx512-plain" */
#define OP(name, class, args) void(*name) args;
#include "kernels.def"
#undef OP
} k3i_ops;

/* The table for `isa`, or for the best level of this CPU if isa is NULL or "". A name lowers the
 * level: "ref" (portable C), "avx2" (with FMA), "avx512-plain" (F, BW, DQ, VL), "avx512" (the same,
 * and the bf16 product where the CPU has it). Errors: K3_E_OPTION for a name that is unknown or
 * that this CPU or build lacks. */
k3_status k3i_ops_select(const char *isa, const k3i_ops **ret, k3i_err *err);

/* The i-th table that runs on this CPU, slowest (ref) first, or NULL: for tests and benchmarks. */
const k3i_ops *k3i_ops_nth(size_t i);

#endif
