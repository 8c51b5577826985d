/* args.c: see args.h. Long options take `--name value` or `--name=value`, with - or _ between the
 * words of a name, short ones `-m value`. */
#include "args.h"
#include "kernels.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const k3i_option k3i_options_table[] = {
#define OPTION(command, short_name, name, kind, accepts, metavar, initial, help) \
    {#command, short_name, name, K3I_OPT_##kind, accepts, metavar, initial, help},
#include "options.def"
#undef OPTION
    {.command = NULL},
};

const k3i_command k3i_commands[] = {
#define COMMAND(id, name, operand, needs, usage, summary) \
    {#id, name, operand, needs, usage, summary, k3i_cmd_##id},
#include "commands.def"
#undef COMMAND
    {.name = NULL},
};

/* max_model_len is max-model-len: vLLM takes both, and the engine's keys have underscores. */
static const k3i_option *find_long(const k3i_args *args, const char *name, size_t len)
{
    for (size_t i = 0; i < args->n_options; i++) {
        const char *known = args->option[i]->name;
        size_t at = 0;
        while (at < len && known[at] == (name[at] == '_' ? '-' : name[at]))
            at++;
        if (at == len && known[at] == 0)
            return args->option[i];
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

const k3i_command *k3i_command_find(const char *name)
{
    for (const k3i_command *c = k3i_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

/* The i-th value of a CHOICE or ISA and its length; NULL behind the last. */
static const char *nth_value(const k3i_option *o, size_t i, size_t *ret_len)
{
    const char *p = o->accepts;
    if (o->kind == K3I_OPT_ISA) {
        const k3i_ops *ops = k3i_ops_nth(i);
        p = ops == NULL ? NULL : ops->isa;
    } else {
        while (p != NULL && i-- > 0) {
            p = strchr(p, '|');
            p = p == NULL ? NULL : p + 1;
        }
    }
    *ret_len = p == NULL ? 0 : strcspn(p, "|");
    return p;
}

void k3i_option_values(const k3i_option *o, char *ret, size_t size)
{
    size_t used = 0, len, next;
    ret[0] = 0;
    for (size_t i = 0; used < size; i++) {
        const char *value = nth_value(o, i, &len);
        if (value == NULL)
            return;
        const char *join = i == 0 ? "" : nth_value(o, i + 1, &next) == NULL ? " or " : ", ";
        used += (size_t)snprintf(ret + used, size - used, "%s%.*s", join, (int)len, value);
    }
}

static bool is_choice(const k3i_option *o, const char *value)
{
    size_t len;
    for (size_t i = 0;; i++) {
        const char *known = nth_value(o, i, &len);
        if (known == NULL)
            return false;
        if (strlen(value) == len && memcmp(known, value, len) == 0)
            return true;
    }
}

/* A whole number as vLLM takes it: 32, 32k (thousands) or 32K (times 1,024); likewise m, g, t.
 * False if it is none or does not fit. */
static bool read_whole(const char *text, int64_t *ret)
{
    static const char UNITS[] = "kmgtKMGT";
    char *end;
    errno = 0;
    int64_t x = strtoll(text, &end, 10);
    if (end == text || errno != 0)
        return false;
    if (*end != 0) {
        const char *unit = strchr(UNITS, *end);
        if (unit == NULL || end[1] != 0)
            return false;
        int64_t base = unit < UNITS + 4 ? 1000 : 1024;
        for (int power = (int)(unit - UNITS) % 4; power >= 0; power--) {
            if (x > INT64_MAX / base || x < INT64_MIN / base)
                return false;
            x *= base;
        }
    }
    *ret = x;
    return true;
}

/* A decimal number within the range of the option. */
static bool is_number(const k3i_option *o, const char *value)
{
    char *end, *rest;
    errno = 0;
    if (o->kind == K3I_OPT_INT) {
        int64_t min = strtoll(o->accepts, &rest, 10), max = strtoll(rest, NULL, 10), x;
        return read_whole(value, &x) && x >= min && x <= max;
    }
    double min = strtod(o->accepts, &rest), max = strtod(rest, NULL), x = strtod(value, &end);
    return end != value && *end == 0 && errno == 0 && isfinite(x) && x >= min && x <= max;
}

static k3_status refuse_number(const k3i_option *o, const char *value, k3i_err *err)
{
    int min = (int)strcspn(o->accepts, " ");
    return k3i_fail(err, K3_E_OPTION, "--%s is '%s', expected a %s from %.*s to %s", o->name, value,
                    o->kind == K3I_OPT_INT ? "whole number" : "number", min, o->accepts,
                    o->accepts + min + 1);
}

static k3_status refuse_choice(const k3i_option *o, const char *value, k3i_err *err)
{
    char values[128];
    k3i_option_values(o, values, sizeof values);
    return k3i_fail(err, K3_E_OPTION, "--%s is '%s', expected %s%s", o->name, value, values,
                    o->kind == K3I_OPT_ISA ? " (what this machine runs)" : "");
}

static k3_status check_value(const k3i_option *o, const char *value, k3i_err *err)
{
    k3i_ops const *ops;
    switch (o->kind) {
    case K3I_OPT_CHOICE:
        return is_choice(o, value) ? K3_OK : refuse_choice(o, value, err);
    case K3I_OPT_ISA:
        return k3i_ops_select(value, &ops, NULL) == K3_OK && value[0] != 0
                   ? K3_OK
                   : refuse_choice(o, value, err);
    case K3I_OPT_INT:
    case K3I_OPT_REAL:
        return is_number(o, value) ? K3_OK : refuse_number(o, value, err);
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

/* One more option with its value. */
static k3_status add_word(k3i_args *args, const k3i_option *o, const char *value, k3i_err *err)
{
    if (given(args, o) && strcmp(o->accepts, "many") != 0)
        return k3i_fail(err, K3_E_OPTION, "--%s is given twice", o->name);
    if (args->n_words == K3I_ARGS_WORDS)
        return k3i_fail(err, K3_E_OPTION, "more than %d options", K3I_ARGS_WORDS);
    args->word[args->n_words].option = o;
    args->word[args->n_words++].value = value;
    return check_value(o, value, err);
}

/* The option that `word` names, NULL if there is none; *ret_value is what stands behind its "=",
 * NULL without one. */
static const k3i_option *find_option(const k3i_args *args, const char *word, const char **ret_value)
{
    *ret_value = NULL;
    if (word[1] != '-')
        return word[1] != 0 && word[2] == 0 ? find_short(args, word[1]) : NULL;
    size_t len = strcspn(word, "=");
    if (word[len] == '=')
        *ret_value = word + len + 1;
    return find_long(args, word + 2, len - 2);
}

/* One option at argv[*at]; advances *at behind it. */
static k3_status parse_option(k3i_args *args, int argc, char **argv, int *at, k3i_err *err)
{
    const char *word = argv[(*at)++], *value;
    const k3i_option *o = find_option(args, word, &value);
    if (o == NULL)
        return k3i_fail(err, K3_E_OPTION, "unknown option '%s' (k3 help %s lists them)", word,
                        args->command);
    if (o->kind == K3I_OPT_FLAG) {
        if (value != NULL)
            return k3i_fail(err, K3_E_OPTION, "--%s takes no value", o->name);
        value = "1";
    } else if (value == NULL) {
        if (*at == argc)
            return k3i_fail(err, K3_E_OPTION, "--%s needs a value: %s", o->name, o->metavar);
        value = argv[(*at)++];
    }
    return add_word(args, o, value, err);
}

/* A word without a dash. A folder is the value of --model. */
static k3_status parse_word(k3i_args *args, const k3i_command *command, const char *word,
                            k3i_err *err)
{
    const k3i_option *model = find_long(args, "model", strlen("model"));
    bool is_model = strcmp(command->operand, "DIR") == 0 && model != NULL;
    if (is_model && !given(args, model))
        return add_word(args, model, word, err);
    if (is_model || command->operand[0] == 0 || args->operand != NULL)
        return k3i_fail(err, K3_E_OPTION, "unexpected '%s' (k3 help %s explains the command)", word,
                        command->name);
    args->operand = word;
    return K3_OK;
}

/* --help or -h where an option may stand, not as the value of another. */
static bool asks_for_help(const k3i_args *args, int argc, char **argv)
{
    const char *value;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
        const k3i_option *o = argv[i][0] == '-' ? find_option(args, argv[i], &value) : NULL;
        i += o != NULL && o->kind != K3I_OPT_FLAG && value == NULL;
    }
    return false;
}

k3_status k3i_args_parse(const k3i_command *command, int argc, char **argv, k3i_args *args,
                         k3i_err *err)
{
    k3_status st = K3_OK;
    *args = (k3i_args){.command = command->name};
    for (const k3i_option *o = k3i_options_table; o->command != NULL; o++) {
        if (strcmp(o->command, command->id) == 0 && args->n_options < K3I_ARGS_OPTIONS)
            args->option[args->n_options++] = o;
    }
    args->wants_help = asks_for_help(args, argc, argv);
    if (args->wants_help)
        return K3_OK;
    for (int at = 0; at < argc && st == K3_OK;) {
        if (argv[at][0] == '-' && argv[at][1] != 0)
            st = parse_option(args, argc, argv, &at, err);
        else
            st = parse_word(args, command, argv[at++], err);
    }
    for (size_t i = 0; i < args->n_options && st == K3_OK; i++) {
        const k3i_option *o = args->option[i];
        if (strcmp(o->accepts, "required") != 0 || given(args, o))
            continue;
        if (strcmp(o->name, "model") == 0 && strcmp(command->operand, "DIR") == 0)
            st = k3i_fail(err, K3_E_OPTION, "name the folder of the checkpoint: k3 %s DIR",
                          command->name);
        else
            st = k3i_fail(err, K3_E_OPTION, "--%s %s is required", o->name, o->metavar);
    }
    return st;
}

k3_status k3i_args_check_model(const k3i_command *command, const k3i_args *args, k3i_err *err)
{
    struct stat st;
    char path[4096];
    if (command->needs[0] == 0)
        return K3_OK;
    const char *dir = k3i_arg_text(args, "model");
    if (stat(dir, &st) != 0)
        return k3i_fail(err, K3_E_IO, "%s: %s", dir,
                        errno == ENOENT ? "no such folder" : strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return k3i_fail(err, K3_E_IO, "%s: not a folder", dir);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, command->needs) >= sizeof path)
        return k3i_fail(err, K3_E_LIMIT, "%s: the name is too long", dir);
    if (stat(path, &st) != 0 && errno == ENOENT)
        return k3i_fail(err, K3_E_IO, "no %s in %s", command->needs, dir);
    return K3_OK; /* whatever else is wrong shows when it is opened */
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
    int64_t x = 0;
    return text != NULL && read_whole(text, &x) ? x : 0;
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

/* The engine's "option 'max_model_len' is ..." and "isa: ...", with the name that people gave: the
 * option's, or that of the environment. Nothing else is touched, since a key may also be a word
 * that somebody typed; texts of our own begin otherwise. */
static void print_named(const k3i_args *args, const char *text)
{
    static const char LEAD[] = "option '", LENGTH[] = "option 'max_model_len'", ISA[] = "isa:";
    const char *rest = text;
    if (strncmp(text, LEAD, sizeof LEAD - 1) == 0) {
        const char *key = text + sizeof LEAD - 1;
        size_t len = strcspn(key, "'");
        const k3i_option *o = key[len] == '\'' ? find_long(args, key, len) : NULL;
        if (o != NULL) {
            fprintf(stderr, "--%s", o->name);
            rest = key + len + 1;
        } else if (strncmp(text, LENGTH, sizeof LENGTH - 1) == 0) {
            fputs("the number of tokens", stderr); /* asked for in another way */
            rest = text + sizeof LENGTH - 1;
        }
    } else if (strncmp(text, ISA, sizeof ISA - 1) == 0) {
        fputs("K3_ISA:", stderr); /* --isa was checked before the engine saw it */
        rest = text + sizeof ISA - 1;
    }
    fputs(rest, stderr);
}

int k3i_report(const k3i_args *args, const k3i_err *err)
{
    fprintf(stderr, "k3 %s: ", args->command);
    if (err->code == K3_E_OPTION)
        print_named(args, err->text);
    else
        fputs(err->text, stderr);
    fputc('\n', stderr);
    return err->code == K3_E_OPTION ? K3I_EXIT_USAGE : K3I_EXIT_FAILED;
}
