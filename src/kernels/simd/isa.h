/* isa.h: what an instruction-set file may know of the rest: constants and its own declarations. It
 * includes neither kernels.h nor bf16.h, whose inline functions, compiled with this file's flags,
 * could be linked into code for older CPUs. The including file has defined ISA_NAME. */
#ifndef K3I_ISA_H
#define K3I_ISA_H

#include "consts.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t k3i_bf16; /* as in bf16.h */

#define OP(name, class, args) void ISA_NAME(name) args;
#include "kernels.def"
#undef OP

#endif
