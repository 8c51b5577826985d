/* line_input.c: libedit where standard input is a terminal, getline elsewhere. */
#include "line_input.h"

#include "alloc.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_LINES = 1000 };

struct k3i_line_input {
    const char *prompt;
    EditLine *edit; /* NULL: not a terminal */
    History *history;
    char *line;   /* the last line of a pipe; malloc, because of getline */
    char *edited; /* the last line of the editor */
    size_t cap;
};

static char *prompt_of(EditLine *edit)
{
    k3i_line_input *in;
    el_get(edit, EL_CLIENTDATA, &in);
    return (char *)(uintptr_t)in->prompt;
}

k3_status k3i_line_input_new(const char *prompt, k3i_line_input **ret, k3i_err *err)
{
    k3i_line_input *in = k3i_alloc_zero(sizeof *in);
    if (in == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory");
    in->prompt = prompt;
    if (isatty(STDIN_FILENO) == 1) {
        setlocale(LC_CTYPE, "");
        in->edit = el_init("k3", stdin, stdout, stderr);
        in->history = history_init();
        if (in->edit == NULL || in->history == NULL) {
            k3i_line_input_free(in);
            return k3i_fail(err, K3_E_IO, "the terminal cannot be edited");
        }
        HistEvent event;
        history(in->history, &event, H_SETSIZE, HISTORY_LINES);
        el_set(in->edit, EL_CLIENTDATA, in);
        el_set(in->edit, EL_PROMPT, prompt_of);
        el_set(in->edit, EL_EDITOR, "emacs");
        el_set(in->edit, EL_HIST, history, in->history);
        el_set(in->edit, EL_SIGNAL, 1);
        /* A Ctrl-D typed while an answer is written, where the terminal still edits lines itself,
         * is kept by the terminal as a zero byte: the editor must take that for the end, as it
         * takes Ctrl-D. */
        el_set(in->edit, EL_BIND, "^@", "em-delete-or-list", NULL);
        el_source(in->edit, NULL); /* ~/.editrc */
    }
    *ret = in;
    return K3_OK;
}

static char *cut_end(char *line)
{
    line[strcspn(line, "\r\n")] = 0;
    return line;
}

static char *next_edited(k3i_line_input *in)
{
    for (;;) {
        int n = 0;
        errno = 0;
        const char *line = el_gets(in->edit, &n);
        if (line == NULL && errno == EINTR) {
            putchar('\n');
            continue;
        }
        if (line == NULL || n <= 0)
            return NULL;
        HistEvent event;
        if (line[0] != '\n')
            history(in->history, &event, H_ENTER, line);
        k3i_free(in->edited);
        in->edited = k3i_strdup(line);
        return in->edited == NULL ? NULL : cut_end(in->edited);
    }
}

char *k3i_line_input_next(k3i_line_input *in)
{
    if (in->edit != NULL)
        return next_edited(in);
    ssize_t n;
    do {
        clearerr(stdin);
        errno = 0;
        n = getline(&in->line, &in->cap, stdin);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? NULL : cut_end(in->line);
}

void k3i_line_input_free(k3i_line_input *in)
{
    if (in == NULL)
        return;
    if (in->history != NULL)
        history_end(in->history);
    if (in->edit != NULL)
        el_end(in->edit);
    free(in->line);
    k3i_free(in->edited);
    k3i_free(in);
}
