/* kernels.c (AVX-512 without the bf16 product): every operation from the bodies under simd/, on 16
 * lanes. */
#include "vec.h"

#include "../simd/isa.h"

#include "../simd/math.inc"

#include "../simd/elementwise.inc"
#include "../simd/gemm.inc"
#include "../simd/kda.inc"
#include "../simd/roof.inc"

#include "../simd/attn_f32.inc"
