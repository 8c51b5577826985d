/* progress.c: see progress.h. The state is one line of a terminal, hence of the process. */
#include "progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define WIDTH 30 /* cells of the bar */

static bool visible;

static bool on_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void k3i_progress_note(const char *what, const char *which)
{
    if (!on_terminal())
        return;
    fprintf(stderr, "\r\033[K%s%s%s ...", what, which[0] == 0 ? "" : " ", which);
    fflush(stderr);
    visible = true;
}

void k3i_progress_bar(const char *what, size_t done, size_t total)
{
    char bar[WIDTH + 1];
    if (!on_terminal() || total == 0 || (done == total && !visible))
        return;
    for (size_t i = 0; i < WIDTH; i++)
        bar[i] = i * total < done * WIDTH ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %zu/%zu", what, bar, done, total);
    fflush(stderr);
    visible = true;
}

void k3i_progress_clear(void)
{
    if (visible)
        fputs("\r\033[K", stderr);
    visible = false;
}
