/* select.c: the tables and the choice among them. The only place that asks the CPU what it can do.
 */
#include "kernels.h"

#include "ref/ref.h"

#include <string.h>

static const k3i_ops ref_ops = {
    .isa = "ref",
#define OP(name, class, args) .name = k3i_##name##__ref,
#include "kernels.def"
#undef OP
};

/* Slowest first. */
static const k3i_ops *const tables[] = {&ref_ops};

/* Whether this CPU and operating system run the code of `isa`. */
static int cpu_has(const char *isa)
{
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
                    "isa: unknown name '%.32s', expected ref, avx2, avx512-plain, avx512 or amx",
                    isa);
}
