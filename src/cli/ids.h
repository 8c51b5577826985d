/* ids.h: token ids and texts from the command line and standard input. */
#ifndef K3I_CLI_IDS_H
#define K3I_CLI_IDS_H

#include "tokenizer.h"

#include <stdio.h>

#define K3I_CLI_MAX_IDS ((size_t)1 << 24)  /* beyond any context length */
#define K3I_CLI_MAX_TEXT ((size_t)1 << 30) /* bytes of a text */

/* "1,2,3" (also separated by white space) to ids appended to *ret. */
k3_status k3i_ids_parse(const char *text, size_t n, k3i_ids *ret, k3i_err *err);

/* Everything of a stream. */
k3_status k3i_read_stream(FILE *f, const char *name, k3i_buf *ret, k3i_err *err);

/* Writes and flushes, so that what was generated is seen at once. */
k3_status k3i_write_text(FILE *f, const char *text, size_t n, k3i_err *err);

#endif
