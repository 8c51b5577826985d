/* cmd_help.c: `k3 help` and `k3 help COMMAND`, from the tables. */
#include "args.h"

#include <stdio.h>
#include <string.h>

int k3i_cmd_help(const k3i_args *args)
{
    if (args->operand != NULL) {
        for (const k3i_command *c = k3i_commands; c->name != NULL; c++) {
            if (strcmp(c->name, args->operand) == 0) {
                k3i_args_help(c->name);
                printf("\nMore in the manual: man k3-%s\n", c->name);
                return K3I_EXIT_OK;
            }
        }
        fprintf(stderr, "k3 help: unknown command '%s'\n", args->operand);
        return K3I_EXIT_USAGE;
    }
    printf("k3 - Kimi-K3 inference\n\nUsage: k3 COMMAND [OPTIONS]\n\n");
    for (const k3i_command *c = k3i_commands; c->name != NULL; c++)
        printf("  %-12s %s\n", c->name, c->summary);
    printf("\nk3 help COMMAND explains one; k3 --version prints the version.\n\nEnvironment:\n");
#define ENV(name, text) printf("  %-12s %s\n", #name, text);
#include "env.def"
#undef ENV
    return K3I_EXIT_OK;
}
