/* json_out.h: writing JSON into a buffer. The first failure (memory, the buffer's maximum) sticks,
 * so that a body is a list of calls and one check at the end. */
#ifndef K3I_JSON_OUT_H
#define K3I_JSON_OUT_H

#include "buf.h"

typedef struct {
    k3i_buf *buf;
    k3_status status;
    k3i_err err;
} k3i_json;

k3i_json k3i_json_to(k3i_buf *buf);
/* Text as it stands. */
void k3i_json_raw(k3i_json *j, const char *text);
void k3i_json_fmt(k3i_json *j, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A quoted, escaped string; well-formed UTF-8 stays as it is. */
void k3i_json_str(k3i_json *j, const char *text);
void k3i_json_strn(k3i_json *j, const char *text, size_t n);
/* A number; infinities as -9999.0 (vLLM's convention for logprobs). */
void k3i_json_float(k3i_json *j, double x);
k3_status k3i_json_end(k3i_json *j, k3i_err *err);

#endif
