/* report.h: a report of named values in sections, printed as aligned text or as one JSON object
 * with the same content. Output is standard output. */
#ifndef K3I_CLI_REPORT_H
#define K3I_CLI_REPORT_H

#include "err.h"

#include <stdbool.h>
#include <yyjson.h>

typedef struct {
    yyjson_mut_doc *doc; /* NULL: text */
    yyjson_mut_val *at;  /* the object that receives values */
    bool failed;         /* memory or the output */
} k3i_table;

void k3i_table_open(k3i_table *t, bool json);
/* A section; in JSON an object under `key`. Sections do not nest. */
void k3i_table_begin(k3i_table *t, const char *key, const char *title);
void k3i_table_end(k3i_table *t);

/* `key` for JSON, `title` for people. */
void k3i_table_text(k3i_table *t, const char *key, const char *title, const char *value);
void k3i_table_count(k3i_table *t, const char *key, const char *title, uint64_t value);
void k3i_table_bytes(k3i_table *t, const char *key, const char *title, uint64_t value);
void k3i_table_real(k3i_table *t, const char *key, const char *title, double value,
                    const char *unit);
void k3i_table_flag(k3i_table *t, const char *key, const char *title, bool value);

/* Writes what is left. */
k3_status k3i_table_close(k3i_table *t, k3i_err *err);

#endif
