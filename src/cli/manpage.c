/* manpage.c: a build-time filter that turns docs/man/NAME.scd.in into scdoc text. Lines that
 * consist of a marker are replaced from the tables, so that manual and parser cannot disagree:
 *
 *   @OPTIONS command@   the options of a command      @COMMANDS@   all commands      @ENVIRONMENT@
 * all variables */
#include "args.h"

#include <stdio.h>
#include <string.h>

/* Text with scdoc's special characters escaped. */
static void put_text(const char *s)
{
    for (; *s != 0; s++) {
        if (strchr("\\_*[]|<>#`~", *s) != NULL)
            putchar('\\');
        putchar(*s);
    }
}

static void put_options(const char *command)
{
    for (const k3i_option *o = k3i_options_table; o->command != NULL; o++) {
        if (strcmp(o->command, command) != 0)
            continue;
        if (o->short_name != 0)
            printf("*-%c*, ", o->short_name);
        printf("*--%s*", o->name);
        if (o->kind != K3I_OPT_FLAG) {
            printf(" _");
            put_text(o->metavar);
            printf("_");
        }
        printf("\n\t");
        put_text(o->help);
        printf(".");
        if (strcmp(o->accepts, "required") == 0) {
            printf(" Required.");
        } else if (strcmp(o->accepts, "many") == 0) {
            printf(" May be repeated.");
        } else if (o->kind == K3I_OPT_CHOICE) {
            char values[128];
            k3i_option_values(o, values, sizeof values);
            printf(" One of ");
            put_text(values);
            printf(".");
        } else if (o->kind == K3I_OPT_ISA) {
            printf(" *k3 help* lists those of this machine.");
        }
        if (o->initial != NULL) {
            printf(" Default: ");
            put_text(o->initial);
            printf(".");
        }
        printf("\n\n");
    }
}

static void put_commands(void)
{
    for (const k3i_command *c = k3i_commands; c->name != NULL; c++) {
        printf("*k3 %s*\n\t", c->name);
        put_text(c->summary);
        printf(".\n\n");
    }
}

static void put_environment(void)
{
#define ENV(name, help) \
    printf("*");        \
    put_text(#name);    \
    printf("*\n\t");    \
    put_text(help);     \
    printf(".\n\n");
#include "env.def"
#undef ENV
}

/* A file as a literal block. False if it cannot be read. */
static bool put_file(const char *path)
{
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        fprintf(stderr, "k3_manpage: %s cannot be opened\n", path);
        return false;
    }
    printf("```\n");
    for (int c; (c = fgetc(f)) != EOF;)
        putchar(c);
    printf("```\n");
    fclose(f);
    return true;
}

int main(void)
{
    char line[4096], command[64], path[256];
    bool ok = true;
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (sscanf(line, "@OPTIONS %63[a-z-]@", command) == 1)
            put_options(command);
        else if (sscanf(line, "@FILE %255[^@]@", path) == 1)
            ok = put_file(path) && ok;
        else if (strcmp(line, "@COMMANDS@\n") == 0)
            put_commands();
        else if (strcmp(line, "@ENVIRONMENT@\n") == 0)
            put_environment();
        else
            fputs(line, stdout);
    }
    return ferror(stdin) || fflush(stdout) != 0 || !ok;
}
