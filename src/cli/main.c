/* main.c: finds the command, parses its options, runs it. */
#include "args.h"

#include <stdio.h>
#include <string.h>

static int usage(void)
{
    fprintf(stderr, "k3: name a command: k3 help lists them\n");
    return K3I_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    k3i_err err;
    k3i_args args = {.command = "help"};
    if (k3i_env_check(&err) != K3_OK) {
        fprintf(stderr, "k3: %s\n", err.text);
        return K3I_EXIT_USAGE;
    }
    if (argc < 2)
        return usage();
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return k3i_cmd_help(&args);
    if (strcmp(argv[1], "--version") == 0) {
        printf("k3 %s (ABI %d)\n", K3_VERSION, (int)k3_abi_version());
        return K3I_EXIT_OK;
    }
    for (const k3i_command *c = k3i_commands; c->name != NULL; c++) {
        if (strcmp(c->name, argv[1]) != 0)
            continue;
        if (argc > 2 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
            k3i_args_help(c->name);
            return K3I_EXIT_OK;
        }
        if (k3i_args_parse(c, argc - 2, argv + 2, &args, &err) != K3_OK)
            return k3i_report(&args, &err);
        return c->run(&args);
    }
    fprintf(stderr, "k3: unknown command '%s': k3 help lists them\n", argv[1]);
    return K3I_EXIT_USAGE;
}
