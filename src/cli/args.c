/* args.c: see args.h. Long options take `--name value` or `--name=value`, short ones `-m value`. */
#include "args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const k3i_option k3i_options_table[] = {
#define OPTION(command, short_name, name, kind, accepts, metavar, initial, help) \
    {#command, short_name, name, K3I_OPT_##kind, accepts, metavar, initial, help},
#include "options.def"
#undef OPTION
    {.command = NULL},
};

const k3i_command k3i_commands[] = {
#define COMMAND(id, name, operand, summary) {#id, name, operand, summary, k3i_cmd_##id},
#include "commands.def"
#undef COMMAND
    {.name = NULL},
};

static const k3i_option *find_long(const k3i_args *args, const char *name, size_t len)
{
    for (size_t i = 0; i < args->n_options; i++) {
        const k3i_option *o = args->option[i];
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

static const k3i_option *find_short(const k3i_args *args, char c)
{
    for (size_t i = 0; i < args->n_options; i++) {
        if (args->option[i]->short_name == c)
            return args->option[i];
    }
    return NULL;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *p = choices; p != NULL; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, value, len) == 0 && (p[len] == 0 || p[len] == '|') && len > 0)
            return true;
    }
    return false;
}

/* A whole decimal number within the range of the option. */
static bool is_number(const k3i_option *o, const char *value)
{
    char *end, *rest;
    errno = 0;
    if (o->kind == K3I_OPT_INT) {
        long long min = strtoll(o->accepts, &rest, 10), max = strtoll(rest, NULL, 10);
        long long x = strtoll(value, &end, 10);
        return end != value && *end == 0 && errno == 0 && x >= min && x <= max;
    }
    double min = strtod(o->accepts, &rest), max = strtod(rest, NULL), x = strtod(value, &end);
    return end != value && *end == 0 && errno == 0 && isfinite(x) && x >= min && x <= max;
}

static k3_status check_value(const k3i_option *o, const char *value, k3i_err *err)
{
    switch (o->kind) {
    case K3I_OPT_CHOICE:
        if (!is_choice(o->accepts, value))
            return k3i_fail(err, K3_E_OPTION, "--%s is '%s', expected one of %s", o->name, value,
                            o->accepts);
        return K3_OK;
    case K3I_OPT_INT:
    case K3I_OPT_REAL:
        if (!is_number(o, value))
            return k3i_fail(err, K3_E_OPTION, "--%s is '%s', expected a number in the range %s",
                            o->name, value, o->accepts);
        return K3_OK;
    case K3I_OPT_STRING:
        if (value[0] == 0)
            return k3i_fail(err, K3_E_OPTION, "--%s is empty", o->name);
        return K3_OK;
    case K3I_OPT_FLAG:
        return K3_OK;
    }
    return K3_OK;
}

static bool given(const k3i_args *args, const k3i_option *o)
{
    for (size_t i = 0; i < args->n_words; i++) {
        if (args->word[i].option == o)
            return true;
    }
    return false;
}

/* One option at argv[*at]; advances *at behind it. */
static k3_status parse_option(k3i_args *args, int argc, char **argv, int *at, k3i_err *err)
{
    const char *word = argv[*at], *value = NULL;
    bool is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t len = equals != NULL ? (size_t)(equals - word) - 2 : strlen(word) - (is_long ? 2 : 1);
    const k3i_option *o = is_long    ? find_long(args, word + 2, len)
                          : len == 1 ? find_short(args, word[1])
                                     : NULL;
    if (o == NULL)
        return k3i_fail(err, K3_E_OPTION, "unknown option '%s' (k3 help %s lists them)", word,
                        args->command);
    if (given(args, o) && strcmp(o->accepts, "many") != 0)
        return k3i_fail(err, K3_E_OPTION, "--%s is given twice", o->name);
    if (args->n_words == K3I_ARGS_WORDS)
        return k3i_fail(err, K3_E_OPTION, "more than %d options", K3I_ARGS_WORDS);
    (*at)++;
    if (o->kind == K3I_OPT_FLAG) {
        if (equals != NULL)
            return k3i_fail(err, K3_E_OPTION, "--%s takes no value", o->name);
        value = "1";
    } else if (equals != NULL) {
        value = equals + 1;
    } else if (*at < argc) {
        value = argv[(*at)++];
    } else {
        return k3i_fail(err, K3_E_OPTION, "--%s needs a value: %s", o->name, o->metavar);
    }
    args->word[args->n_words].option = o;
    args->word[args->n_words++].value = value;
    return check_value(o, value, err);
}

k3_status k3i_args_parse(const k3i_command *command, int argc, char **argv, k3i_args *args,
                         k3i_err *err)
{
    *args = (k3i_args){.command = command->name};
    for (const k3i_option *o = k3i_options_table; o->command != NULL; o++) {
        if (strcmp(o->command, command->id) == 0 && args->n_options < K3I_ARGS_OPTIONS)
            args->option[args->n_options++] = o;
    }
    for (int at = 0; at < argc;) {
        if (argv[at][0] == '-' && argv[at][1] != 0) {
            k3_status st = parse_option(args, argc, argv, &at, err);
            if (st != K3_OK)
                return st;
        } else if (command->operand[0] != 0 && args->operand == NULL) {
            args->operand = argv[at++];
        } else {
            return k3i_fail(err, K3_E_OPTION, "unexpected '%s' (k3 help %s explains the command)",
                            argv[at], command->name);
        }
    }
    for (size_t i = 0; i < args->n_options; i++) {
        const k3i_option *o = args->option[i];
        if (strcmp(o->accepts, "required") == 0 && !given(args, o))
            return k3i_fail(err, K3_E_OPTION, "--%s %s is required", o->name, o->metavar);
    }
    return K3_OK;
}

const char *k3i_arg_nth(const k3i_args *args, const char *name, size_t i)
{
    for (size_t k = 0; k < args->n_words; k++) {
        if (strcmp(args->word[k].option->name, name) == 0 && i-- == 0)
            return args->word[k].value;
    }
    return NULL;
}

const char *k3i_arg_text(const k3i_args *args, const char *name)
{
    const k3i_option *o = find_long(args, name, strlen(name));
    K3_ASSERT(o != NULL);
    const char *value = k3i_arg_nth(args, name, 0);
    return value != NULL || o == NULL ? value : o->initial;
}

int64_t k3i_arg_int(const k3i_args *args, const char *name)
{
    const char *text = k3i_arg_text(args, name);
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

double k3i_arg_real(const k3i_args *args, const char *name)
{
    const char *text = k3i_arg_text(args, name);
    return text == NULL ? 0 : strtod(text, NULL);
}

bool k3i_arg_given(const k3i_args *args, const char *name)
{
    return k3i_arg_nth(args, name, 0) != NULL;
}

void k3i_args_help(const char *command)
{
    const k3i_command *c = k3i_commands;
    while (c->name != NULL && strcmp(c->name, command) != 0)
        c++;
    if (c->name == NULL)
        return;
    printf("k3 %s - %s\n\n", c->name, c->summary);
    if (c->operand[0] != 0)
        printf("Usage: k3 %s [OPTIONS] [%s]\n\n", c->name, c->operand);
    for (const k3i_option *o = k3i_options_table; o->command != NULL; o++) {
        if (strcmp(o->command, c->id) != 0)
            continue;
        char left[64], brief[8] = "    ";
        if (o->short_name != 0)
            snprintf(brief, sizeof brief, "-%c, ", o->short_name);
        snprintf(left, sizeof left, "%s--%s %s", brief, o->name, o->metavar);
        printf("  %-28s %s", left, o->help);
        if (o->initial != NULL)
            printf(" (default %s)", o->initial);
        else if (strcmp(o->accepts, "required") == 0)
            printf(" (required)");
        printf("\n");
    }
}

k3_status k3i_env_check(k3i_err *err)
{
    static const char *const known[] = {
#define ENV(name, help) #name,
#include "env.def"
#undef ENV
    };
    extern char **environ;
    for (char **e = environ; *e != NULL; e++) {
        size_t len = strcspn(*e, "=");
        bool ok = strncmp(*e, "K3_", 3) != 0;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !ok; i++)
            ok = strlen(known[i]) == len && memcmp(*e, known[i], len) == 0;
        if (!ok)
            return k3i_fail(err, K3_E_OPTION, "unknown environment variable %.*s (k3 help)",
                            (int)len, *e);
    }
    return K3_OK;
}

int k3i_report(const k3i_args *args, const k3i_err *err)
{
    fprintf(stderr, "k3 %s: %s\n", args->command, err->text);
    return err->code == K3_E_OPTION ? K3I_EXIT_USAGE : K3I_EXIT_FAILED;
}
