/* ref.h: the portable implementation of every operation: scalar C that reads like the formula, and
 * the oracle of the other instruction sets. Sums and transcendental functions run in double and
 * round once to f32. */
#ifndef K3I_REF_H
#define K3I_REF_H

#include "kernels.h"

#define OP(name, class, args) void k3i_##name##__ref args;
#include "kernels.def"
#undef OP

/* Weight i: they lie where the checkpoint has them, possibly at odd addresses. */
static inline float k3i_ref_bf16_at(const k3i_bf16 *w, size_t i)
{
    k3i_bf16 h;
    memcpy(&h, (const char *)w + i * sizeof h, sizeof h);
    return k3i_from_bf16(h);
}

/* Own functions, so that results do not depend on the version of libm. Error below 1e-14 relative.
 */
double k3i_ref_exp(double x);
double k3i_ref_sigmoid(double x);
double k3i_ref_tanh(double x);
double k3i_ref_erf(double x);

#endif
