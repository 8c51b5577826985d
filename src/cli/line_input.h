/* line_input.h: lines from the user: edited with history on a terminal, read plainly from a pipe.
 */
#ifndef K3I_CLI_LINE_INPUT_H
#define K3I_CLI_LINE_INPUT_H

#include "err.h"

typedef struct k3i_line_input k3i_line_input;

/* `prompt` is static. */
k3_status k3i_line_input_new(const char *prompt, k3i_line_input **ret, k3i_err *err);
/* The next line without its end, valid until the next call; NULL at the end of the input. Ctrl-C
 * drops the line and asks again. */
char *k3i_line_input_next(k3i_line_input *in);
void k3i_line_input_free(k3i_line_input *in);

#endif
