/* json.c: bounded parsing and the strict field reader of json.h. */
#include "json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void *json_malloc(void *ctx, size_t n)
{
    (void)ctx;
    return k3i_alloc(n);
}

static void *json_realloc(void *ctx, void *p, size_t old_n, size_t n)
{
    (void)ctx;
    (void)old_n;
    return k3i_realloc(p, n);
}

static void json_free(void *ctx, void *p)
{
    (void)ctx;
    k3i_free(p);
}

/* Bounds of nesting and values, from the structural bytes outside strings. Malformed text may be
 * miscounted: the parser refuses it afterwards. */
static k3_status check_limits(const char *name, const char *text, size_t n, k3i_err *err)
{
    size_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
            values++;
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',' || c == ':') {
            values++;
        }
        if (depth > K3I_JSON_MAX_DEPTH) {
            return k3i_fail(err, K3_E_LIMIT, "%s: JSON is nested deeper than %d levels at byte %zu",
                            name, K3I_JSON_MAX_DEPTH, i);
        }
        if (values > K3I_JSON_MAX_VALUES) {
            return k3i_fail(err, K3_E_LIMIT, "%s: JSON has more than %d values", name,
                            K3I_JSON_MAX_VALUES);
        }
    }
    return K3_OK;
}

k3_status k3i_json_parse(const char *name, const char *text, size_t n, k3_status code,
                         yyjson_doc **ret, k3i_err *err)
{
    k3_status st = check_limits(name, text, n, err);
    if (st != K3_OK)
        return st;
    const yyjson_alc alc = {
        .malloc = json_malloc, .realloc = json_realloc, .free = json_free, .ctx = NULL};
    yyjson_read_err fault;
    /* Without YYJSON_READ_INSITU the text is not written to. */
    yyjson_doc *doc =
        yyjson_read_opts((char *)(uintptr_t)text, n, YYJSON_READ_NOFLAG, &alc, &fault);
    if (doc == NULL) {
        if (fault.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
            return k3i_fail(err, K3_E_NOMEM, "%s: no memory to parse %zu bytes of JSON", name, n);
        return k3i_fail(err, code, "%s: not valid JSON at byte %zu: %s", name, fault.pos,
                        fault.msg);
    }
    *ret = doc;
    return K3_OK;
}

bool k3i_json_is(yyjson_val *val, const char *s)
{
    return yyjson_is_str(val) && yyjson_get_len(val) == strlen(s) &&
           memcmp(yyjson_get_str(val), s, strlen(s)) == 0;
}

void k3i_field_fail(k3i_fields *f, const char *key, const char *format, ...)
{
    if (f->st != K3_OK)
        return;
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->st = k3i_fail(f->err, K3_E_CONFIG, "%s: field '%s%.100s' %s", f->file, f->scope, key, text);
}

void k3i_fields_begin(k3i_fields *f, const char *file, const char *scope, yyjson_val *obj,
                      k3i_err *err)
{
    *f = (k3i_fields){.file = file, .scope = scope, .obj = obj, .err = err, .st = K3_OK};
    if (obj == NULL)
        return;
    if (!yyjson_is_obj(obj)) {
        f->obj = NULL;
        f->st = k3i_fail(err, K3_E_CONFIG, "%s: '%s' is not an object", file,
                         scope[0] == 0 ? "the file" : scope);
        return;
    }
    if (yyjson_obj_size(obj) > K3I_FIELDS_MAX) {
        f->st = k3i_fail(err, K3_E_CONFIG, "%s: '%s' has %zu fields, at most %d are possible", file,
                         scope, yyjson_obj_size(obj), K3I_FIELDS_MAX);
        f->obj = NULL;
        return;
    }
    yyjson_obj_iter it = yyjson_obj_iter_with(obj);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key != NULL;
         key = yyjson_obj_iter_next(&it)) {
        const char *s = yyjson_get_str(key);
        if (yyjson_obj_getn(obj, s, yyjson_get_len(key)) != yyjson_obj_iter_get_val(key))
            k3i_field_fail(f, s, "is given twice");
    }
}

yyjson_val *k3i_field(k3i_fields *f, const char *key)
{
    if (f->obj == NULL)
        return NULL;
    size_t i, n;
    yyjson_val *k, *v;
    yyjson_obj_foreach(f->obj, i, n, k, v)
    {
        if (k3i_json_is(k, key)) {
            f->read[i] = true;
            return v;
        }
    }
    return NULL;
}

bool k3i_field_given(const k3i_fields *f, const char *key)
{
    yyjson_val *v = f->obj == NULL ? NULL : yyjson_obj_get(f->obj, key);
    return v != NULL && !yyjson_is_null(v);
}

/* A short text of a value for error messages. */
static const char *value_text(yyjson_val *v, char *text, size_t n)
{
    if (yyjson_is_str(v))
        snprintf(text, n, "'%.60s'", yyjson_get_str(v));
    else if (yyjson_is_sint(v))
        snprintf(text, n, "%lld", (long long)yyjson_get_sint(v));
    else if (yyjson_is_uint(v))
        snprintf(text, n, "%llu", (unsigned long long)yyjson_get_uint(v));
    else if (yyjson_is_real(v))
        snprintf(text, n, "%g", yyjson_get_real(v));
    else if (yyjson_is_bool(v))
        snprintf(text, n, "%s", yyjson_get_bool(v) ? "true" : "false");
    else
        snprintf(text, n, "%s", yyjson_get_type_desc(v));
    return text;
}

static yyjson_val *required(k3i_fields *f, const char *key)
{
    yyjson_val *v = k3i_field(f, key);
    if (v == NULL)
        k3i_field_fail(f, key, "is missing");
    return v;
}

size_t k3i_field_size(k3i_fields *f, const char *key, size_t min, size_t max)
{
    char text[80];
    yyjson_val *v = required(f, key);
    if (v == NULL)
        return min;
    if (!yyjson_is_uint(v) || yyjson_get_uint(v) < min || yyjson_get_uint(v) > max) {
        k3i_field_fail(f, key, "is %s, expected an integer from %zu to %zu",
                       value_text(v, text, sizeof text), min, max);
        return min;
    }
    return (size_t)yyjson_get_uint(v);
}

double k3i_field_number(k3i_fields *f, const char *key, double min, double max)
{
    char text[80];
    yyjson_val *v = required(f, key);
    if (v == NULL)
        return min;
    double x = yyjson_is_num(v) ? yyjson_get_num(v) : (double)NAN;
    if (!(x >= min && x <= max)) {
        k3i_field_fail(f, key, "is %s, expected a number from %g to %g",
                       value_text(v, text, sizeof text), min, max);
        return min;
    }
    return x;
}

bool k3i_field_bool(k3i_fields *f, const char *key)
{
    char text[80];
    yyjson_val *v = required(f, key);
    if (v != NULL && !yyjson_is_bool(v))
        k3i_field_fail(f, key, "is %s, expected true or false", value_text(v, text, sizeof text));
    return v != NULL && yyjson_is_true(v);
}

void k3i_field_must_be(k3i_fields *f, const char *key, const char *value)
{
    char text[80];
    yyjson_val *v = required(f, key);
    if (v != NULL && !k3i_json_is(v, value)) {
        k3i_field_fail(f, key, "is %s, only '%s' is supported", value_text(v, text, sizeof text),
                       value);
    }
}

void k3i_field_must_be_bool(k3i_fields *f, const char *key, bool value)
{
    if (k3i_field_bool(f, key) != value) {
        k3i_field_fail(f, key, "is %s, only %s is supported", value ? "false" : "true",
                       value ? "true" : "false");
    }
}

void k3i_field_must_be_null(k3i_fields *f, const char *key)
{
    char text[80];
    yyjson_val *v = k3i_field(f, key);
    if (v != NULL && !yyjson_is_null(v))
        k3i_field_fail(f, key, "is %s, only null is supported", value_text(v, text, sizeof text));
}

void k3i_field_must_be_empty(k3i_fields *f, const char *key)
{
    yyjson_val *v = k3i_field(f, key);
    if (v != NULL && !yyjson_is_null(v) && !(yyjson_is_ctn(v) && yyjson_get_len(v) == 0))
        k3i_field_fail(f, key, "is not empty, which is not supported");
}

int32_t k3i_field_token(k3i_fields *f, const char *key, size_t vocab)
{
    if (!k3i_field_given(f, key)) {
        k3i_field_skip(f, key);
        return -1;
    }
    return (int32_t)k3i_field_size(f, key, 0, vocab > 0 ? vocab - 1 : 0);
}

void k3i_field_skip(k3i_fields *f, const char *key)
{
    (void)k3i_field(f, key);
}

k3_status k3i_fields_end(k3i_fields *f)
{
    if (f->st != K3_OK || f->obj == NULL)
        return f->st;
    size_t i, n;
    yyjson_val *k, *v;
    yyjson_obj_foreach(f->obj, i, n, k, v)
    {
        (void)v;
        if (!f->read[i]) {
            k3i_field_fail(f, yyjson_get_str(k),
                           "is unknown: it may change the computation, so it is refused");
        }
    }
    return f->st;
}
