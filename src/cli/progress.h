/* progress.h: one line on standard error that shows what is going on. Only on a terminal, and only
 * when the work takes longer than a moment; nothing is written otherwise. */
#ifndef K3I_CLI_PROGRESS_H
#define K3I_CLI_PROGRESS_H

#include <stddef.h>

/* "loading models/mini ..."; `which` may be empty. */
void k3i_progress_note(const char *what, const char *which);
/* A bar of done/total. The first call of a run starts its clock. */
void k3i_progress_bar(const char *what, size_t done, size_t total);
/* Removes the line. */
void k3i_progress_clear(void);

#endif
