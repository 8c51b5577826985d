/* args.h: commands and their options, from commands.def and options.def. */
#ifndef K3I_ARGS_H
#define K3I_ARGS_H

#include "err.h"

#include <stdbool.h>

/* Exit codes of the program. */
enum { K3I_EXIT_OK = 0, K3I_EXIT_FAILED = 1, K3I_EXIT_USAGE = 2 };

typedef enum {
    K3I_OPT_STRING,
    K3I_OPT_FLAG,
    K3I_OPT_INT,
    K3I_OPT_REAL,
    K3I_OPT_CHOICE,
    K3I_OPT_ISA
} k3i_opt_kind;

typedef struct {
    const char *command;
    char short_name; /* 0: none */
    const char *name;
    k3i_opt_kind kind;
    const char *accepts, *metavar, *initial, *help;
} k3i_option;

/* All options, in the order of options.def; ends with command NULL. */
extern const k3i_option k3i_options_table[];

#define K3I_ARGS_OPTIONS 64 /* of one command */
#define K3I_ARGS_WORDS 1024 /* options given on one command line */

/* What was given on one command line. Strings belong to argv. */
typedef struct {
    const char *command;
    size_t n_options;
    const k3i_option *option[K3I_ARGS_OPTIONS]; /* those of the command */
    size_t n_words;
    struct {
        const k3i_option *option;
        const char *value;
    } word[K3I_ARGS_WORDS]; /* in their order; a flag has the value "1" */
    const char *operand;    /* NULL: not given, or the value of --model */
    bool wants_help;        /* --help or -h was among them */
} k3i_args;

typedef struct {
    const char *id; /* what options.def calls it: the name with _ for - */
    const char *name, *operand, *needs, *usage, *summary;
    int (*run)(const k3i_args *args); /* returns an exit code */
} k3i_command;

/* All commands; ends with name NULL. */
extern const k3i_command k3i_commands[];

#define COMMAND(id, name, operand, needs, usage, summary) int k3i_cmd_##id(const k3i_args *args);
#include "commands.def"
#undef COMMAND

/* NULL: no such command. */
const k3i_command *k3i_command_find(const char *name);

/* Parses argv[0..argc), the words behind the command. Unknown options, values out of range,
 * repeated options and stray words are errors (K3_E_OPTION); with --help or -h among the words
 * nothing else is looked at. `args` is overwritten, also on failure. */
k3_status k3i_args_parse(const k3i_command *command, int argc, char **argv, k3i_args *args,
                         k3i_err *err);

/* Whether --model names a folder that holds what the command needs: said here once, because the
 * commands open its files in different orders. */
k3_status k3i_args_check_model(const k3i_command *command, const k3i_args *args, k3i_err *err);

/* Values by long name, the default where none was given. The name must be one of the command's. */
const char *k3i_arg_text(const k3i_args *args, const char *name); /* NULL without a default */
int64_t k3i_arg_int(const k3i_args *args, const char *name);
double k3i_arg_real(const k3i_args *args, const char *name);
bool k3i_arg_given(const k3i_args *args, const char *name); /* also the value of a flag */
/* The i-th value of a repeatable option, NULL behind the last. */
const char *k3i_arg_nth(const k3i_args *args, const char *name, size_t i);

/* The values of a CHOICE or ISA as "a, b or c". */
void k3i_option_values(const k3i_option *o, char *ret, size_t size);

/* Prints the usage and the options of a command to standard output. */
void k3i_args_help(const k3i_command *command);

/* Refuses unknown K3_* variables. */
k3_status k3i_env_check(k3i_err *err);

/* "k3 COMMAND: text" to standard error; returns K3I_EXIT_USAGE for K3_E_OPTION, else
 * K3I_EXIT_FAILED. */
int k3i_report(const k3i_args *args, const k3i_err *err);

#endif
