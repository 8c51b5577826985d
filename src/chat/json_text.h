/* json_text.h: JSON as the chat format writes it (like Python's json module), and lenient reading
 * of the argument strings of tool calls. */
#ifndef K3I_JSON_TEXT_H
#define K3I_JSON_TEXT_H

#include "buf.h"

#include <yyjson.h>

#define K3I_JSON_MAX_DEPTH 256

enum {
    K3I_JSON_SORTED, /* keys sorted by code point, "," and ":", last of equal keys wins */
    K3I_JSON_SPACED  /* keys as they stand, ", " and ": " */
};

/* Appends `val`; NULL prints null. Non-ASCII is raw; numbers print as Python prints them, numbers
 * that were read raw as they stand. K3_E_LIMIT beyond K3I_JSON_MAX_DEPTH. */
k3_status k3i_json_print(yyjson_val *val, int style, k3i_buf *ret, k3i_err *err);

/* Appends text[0..n) escaped for the inside of a JSON string. */
k3_status k3i_json_escape(const char *text, size_t n, k3i_buf *ret, k3i_err *err);

/* The end of the JSON value that begins at text[at], or 0 if there is none. `lenient` allows
 * control characters inside strings, NaN and Infinity, as Python's non-strict mode does. */
size_t k3i_json_skip(const char *text, size_t n, size_t at, bool lenient);

/* Past blanks, tabs and line ends. */
size_t k3i_json_skip_space(const char *text, size_t n, size_t at);

/* Appends the text that the JSON string literal at [from, to), quotes included, stands for. The
 * literal was accepted by k3i_json_skip. A lone surrogate becomes U+FFFD. */
k3_status k3i_json_unescape(const char *text, size_t from, size_t to, k3i_buf *ret, k3i_err *err);

/* The type name that the chat format gives to the value whose text begins with `first`. */
const char *k3i_json_type_name(char first);

#endif
