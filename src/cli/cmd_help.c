/* cmd_help.c: `k3 help` and `k3 help COMMAND`, from the tables. */
#include "args.h"

#include <stdio.h>
#include <string.h>

enum { MARGIN = 30, WIDTH = 80 }; /* columns: where explanations begin, and where they end */

/* Words from column `at` on, continued at the margin. Returns the column behind them. */
static size_t put_wrapped(const char *text, size_t at)
{
    while (*text != 0) {
        size_t len = strcspn(text, " ");
        if (at > MARGIN && at + 1 + len > WIDTH) {
            printf("\n%*s", MARGIN, "");
            at = MARGIN;
        } else if (at > MARGIN) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)len, text);
        at += len;
        text += len + (text[len] == ' ');
    }
    return at;
}

/* " (a or b; default a)": what a value may be, and what it is if none is given. */
static void put_values(const k3i_option *o, size_t at)
{
    char values[128] = "", note[256] = "";
    if (o->kind == K3I_OPT_CHOICE || o->kind == K3I_OPT_ISA)
        k3i_option_values(o, values, sizeof values);
    if (strcmp(o->accepts, "required") == 0)
        snprintf(note, sizeof note, "(required)");
    else if (strcmp(o->accepts, "many") == 0)
        snprintf(note, sizeof note, "(may be repeated)");
    else if (values[0] != 0 && o->initial != NULL)
        snprintf(note, sizeof note, "(%s; default %s)", values, o->initial);
    else if (values[0] != 0)
        snprintf(note, sizeof note, "(here: %s)", values);
    else if (o->initial != NULL)
        snprintf(note, sizeof note, "(default %s)", o->initial);
    put_wrapped(note, at);
}

void k3i_args_help(const k3i_command *command)
{
    printf("k3 %s - %s\n\nUsage: k3 %s %s\n", command->name, command->summary, command->name,
           command->usage);
    const char *gap = "\n";
    for (const k3i_option *o = k3i_options_table; o->command != NULL; o++) {
        if (strcmp(o->command, command->id) != 0)
            continue;
        char left[64], brief[8] = "    ";
        if (o->short_name != 0)
            snprintf(brief, sizeof brief, "-%c, ", o->short_name);
        size_t n = (size_t)snprintf(left, sizeof left, "  %s--%s%s%s", brief, o->name,
                                    o->metavar[0] == 0 ? "" : " ", o->metavar);
        printf("%s%s", gap, left);
        if (n + 1 > MARGIN)
            printf("\n%*s", MARGIN, "");
        else
            printf("%*s", (int)(MARGIN - n), "");
        put_values(o, put_wrapped(o->help, MARGIN));
        printf("\n");
        gap = "";
    }
    printf("\nMore in the manual: man k3-%s\n", command->name);
}

int k3i_cmd_help(const k3i_args *args)
{
    if (args->operand != NULL) {
        const k3i_command *command = k3i_command_find(args->operand);
        if (command == NULL) {
            fprintf(stderr, "k3 help: unknown command '%s': k3 help lists them\n", args->operand);
            return K3I_EXIT_USAGE;
        }
        k3i_args_help(command);
        return K3I_EXIT_OK;
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
