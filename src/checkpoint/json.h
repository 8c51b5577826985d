/* json.h: parsing of JSON from files within fixed limits, and a reader of objects that must know
 * every field. yyjson parses without recursion; depth and count are bounded before it runs, so that
 * memory is a small multiple of the text. */
#ifndef K3I_JSON_H
#define K3I_JSON_H

#include "alloc.h"

#include <yyjson.h>

#define K3I_JSON_MAX_DEPTH 32        /* published files use 6 */
#define K3I_JSON_MAX_VALUES 16000000 /* 16 bytes each; the published index has a million */

/* Strict JSON (no comments, one value). `name` is what errors call the text; `code` is the status
 * of malformed text. Free with yyjson_doc_free. Errors: code, K3_E_LIMIT, K3_E_NOMEM. */
k3_status k3i_json_parse(const char *name, const char *text, size_t n, k3_status code,
                         yyjson_doc **ret, k3i_err *err);

/* True for a string without NUL inside, equal to `s`. */
bool k3i_json_is(yyjson_val *val, const char *s);

#define K3I_FIELDS_MAX 512 /* fields of one object; the published text_config has 104 */

/* One object whose fields are read by name. The first error sticks: later reads give harmless
 * values and change nothing, so that a table of fields needs one check at its end (k3i_fields_end).
 */
typedef struct {
    const char *file;  /* for errors */
    const char *scope; /* "text_config." */
    yyjson_val *obj;   /* NULL: an absent object, every field is missing */
    bool read[K3I_FIELDS_MAX];
    k3_status st;
    k3i_err *err;
} k3i_fields;

/* Errors are K3_E_CONFIG. A value that is no object, or has a field twice, is an error. */
void k3i_fields_begin(k3i_fields *f, const char *file, const char *scope, yyjson_val *obj,
                      k3i_err *err);

/* The raw value, marked as read; NULL if absent. */
yyjson_val *k3i_field(k3i_fields *f, const char *key);
/* True if present and not null; does not mark. */
bool k3i_field_given(const k3i_fields *f, const char *key);

/* Required fields. min <= value <= max. */
size_t k3i_field_size(k3i_fields *f, const char *key, size_t min, size_t max);
double k3i_field_number(k3i_fields *f, const char *key, double min, double max);
bool k3i_field_bool(k3i_fields *f, const char *key);
/* Required, and only `value` is supported. */
void k3i_field_must_be(k3i_fields *f, const char *key, const char *value);
void k3i_field_must_be_bool(k3i_fields *f, const char *key, bool value);
/* Optional, and only null is supported. */
void k3i_field_must_be_null(k3i_fields *f, const char *key);
/* Optional, an empty object or array, or null. */
void k3i_field_must_be_empty(k3i_fields *f, const char *key);
/* A token id 0..vocab-1; -1 where the field is null or absent. */
int32_t k3i_field_token(k3i_fields *f, const char *key, size_t vocab);
/* Optional, any value. */
void k3i_field_skip(k3i_fields *f, const char *key);

/* Fails with "field 'scope.key' ..." unless an earlier error sticks. */
void k3i_field_fail(k3i_fields *f, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Refuses fields that nobody has read. Returns the first error of all. */
k3_status k3i_fields_end(k3i_fields *f);

#endif
