/* main.c: finds the command, parses its options, runs it. */
#include "args.h"

#include <stdio.h>
#include <string.h>

static bool is_word(const char *s, const char *a, const char *b)
{
    return strcmp(s, a) == 0 || strcmp(s, b) == 0;
}

static int fail(const k3i_err *err)
{
    fprintf(stderr, "k3: %s\n", err->text);
    return K3I_EXIT_USAGE;
}

static int run(const k3i_command *command, int argc, char **argv)
{
    k3i_err err;
    k3i_args args;
    k3_status st = k3i_args_parse(command, argc, argv, &args, &err);
    if (st == K3_OK && args.wants_help) {
        k3i_args_help(command);
        return K3I_EXIT_OK;
    }
    if (st == K3_OK)
        st = k3i_args_check_model(command, &args, &err);
    return st == K3_OK ? command->run(&args) : k3i_report(&args, &err);
}

static int dispatch(int argc, char **argv)
{
    k3i_err err;
    if (k3i_env_check(&err) != K3_OK)
        return fail(&err);
    if (argc < 2) {
        k3i_fail(&err, K3_E_OPTION, "name a command: k3 help lists them");
        return fail(&err);
    }
    const char *name = argv[1];
    if (is_word(name, "--version", "-V")) {
        printf("k3 %s (ABI %d)\n", K3_VERSION, (int)k3_abi_version());
        return K3I_EXIT_OK;
    }
    if (is_word(name, "--help", "-h")) /* `k3 --help run` is `k3 help run` */
        name = "help";
    const k3i_command *command = k3i_command_find(name);
    if (command != NULL)
        return run(command, argc - 2, argv + 2);
    k3i_fail(&err, K3_E_OPTION, "unknown %s '%s': k3 help lists the commands",
             name[0] == '-' ? "option" : "command", name);
    return fail(&err);
}

int main(int argc, char **argv)
{
    int code = dispatch(argc, argv);
    /* What was printed must have arrived, also where nobody looked at each call. */
    if (code == K3I_EXIT_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "k3: the output cannot be written\n");
        code = K3I_EXIT_FAILED;
    }
    return code;
}
