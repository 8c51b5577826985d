/* select.c: the tables and the choice among them. The only place that asks the CPU what it can do.
 */
#include "kernels.h"

#include "ref/ref.h"

#include <string.h>

/* Declarations of the other levels: the same list under another decoration. */
#ifdef K3_X86_64
#define OP(name, class, args)       \
    void k3i_##name##__avx2 args;   \
    void k3i_##name##__avx512 args; \
    void k3i_##name##__avx512bf16 args;
#include "kernels.def"
#undef OP
#endif

static const k3i_ops ref_ops = {
    .isa = "ref",
#define OP(name, class, args) .name = k3i_##name##__ref,
#include "kernels.def"
#undef OP
};

#ifdef K3_X86_64
static const k3i_ops avx2_ops = {
    .isa = "avx2",
#define OP(name, class, args) .name = k3i_##name##__avx2,
#include "kernels.def"
#undef OP
};

static const k3i_ops avx512_plain_ops = {
    .isa = "avx512-plain",
#define OP(name, class, args) .name = k3i_##name##__avx512,
#include "kernels.def"
#undef OP
};

/* Full of the plain kernels, then some of them replaced. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const k3i_ops avx512_ops = {
    .isa = "avx512",
#define OP(name, class, args) .name = k3i_##name##__avx512,
#include "kernels.def"
#undef OP
    .gemm_bf16 = k3i_gemm_bf16__avx512bf16,
    .gemm_mxfp4_bf16 = k3i_gemm_mxfp4_bf16__avx512bf16,
    .attn_segment_bf16 = k3i_attn_segment_bf16__avx512bf16,
    .roof_bf16 = k3i_roof_bf16__avx512bf16,
};
#pragma GCC diagnostic pop
#endif

/* Slowest first. */
static const k3i_ops *const tables[] = {
    &ref_ops,
#ifdef K3_X86_64
    &avx2_ops,
    &avx512_plain_ops,
    &avx512_ops,
#endif
};

/* Whether this CPU and operating system run the code of `isa`. The compiler's builtin looks at both
 * CPUID and the registers that the system saves. */
static int cpu_has(const char *isa)
{
#ifdef K3_X86_64
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (strcmp(isa, "avx2") == 0)
        return avx2;
    if (strcmp(isa, "avx512-plain") == 0)
        return avx512;
    if (strcmp(isa, "avx512") == 0)
        return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    return strcmp(isa, "ref") == 0;
}

const k3i_ops *k3i_ops_nth(size_t i)
{
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        if (cpu_has(tables[t]->isa) && i-- == 0)
            return tables[t];
    }
    return NULL;
}

k3_status k3i_ops_select(const char *isa, const k3i_ops **ret, k3i_err *err)
{
    if (!isa || !*isa) {
        for (size_t i = 0; k3i_ops_nth(i); i++)
            *ret = k3i_ops_nth(i);
        return K3_OK;
    }
    if (strcmp(isa, "avx512") == 0 && !cpu_has(isa))
        isa = "avx512-plain";
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        if (strcmp(isa, tables[t]->isa) != 0)
            continue;
        if (!cpu_has(isa))
            return k3i_fail(err, K3_E_OPTION, "isa: this CPU has no %s", isa);
        *ret = tables[t];
        return K3_OK;
    }
    if (strcmp(isa, "amx") == 0)
        return k3i_fail(err, K3_E_OPTION, "isa: this build has no amx kernels");
    return k3i_fail(err, K3_E_OPTION,
                    "isa: unknown name '%.32s', expected ref, avx2, avx512-plain or avx512", isa);
}
