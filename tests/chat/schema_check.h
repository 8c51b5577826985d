/* schema_check.h: a small JSON Schema validator for tests, written apart from the grammar compiler:
 * it looks at finished values, the compiler at bytes to come. Knows the keywords of the vendor
 * verifier's schemas. */
#ifndef K3_TESTS_SCHEMA_CHECK_H
#define K3_TESTS_SCHEMA_CHECK_H

#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <string.h>
#include <yyjson.h>

static inline bool schema_has_type(yyjson_val *v, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return yyjson_is_int(v) ||
               (yyjson_is_real(v) && yyjson_get_real(v) == floor(yyjson_get_real(v)));
    return strcmp(type, "number") == 0    ? yyjson_is_num(v)
           : strcmp(type, "string") == 0  ? yyjson_is_str(v)
           : strcmp(type, "boolean") == 0 ? yyjson_is_bool(v)
           : strcmp(type, "null") == 0    ? yyjson_is_null(v)
           : strcmp(type, "object") == 0  ? yyjson_is_obj(v)
                                          : yyjson_is_arr(v);
}

static inline size_t schema_chars(yyjson_val *v)
{
    size_t n = 0;
    for (size_t i = 0; i < yyjson_get_len(v); i++)
        n += (yyjson_get_str(v)[i] & 0xC0) != 0x80;
    return n;
}

static inline bool schema_same(yyjson_val *a, yyjson_val *b)
{
    return yyjson_is_num(a) && yyjson_is_num(b) ? yyjson_get_num(a) == yyjson_get_num(b)
                                                : yyjson_equals(a, b);
}

static inline bool schema_limit(yyjson_val *s, const char *min, const char *max, double v)
{
    yyjson_val *lo = yyjson_obj_get(s, min), *hi = yyjson_obj_get(s, max);
    return (lo == NULL || v >= yyjson_get_num(lo)) && (hi == NULL || v <= yyjson_get_num(hi));
}

static inline bool schema_pattern(yyjson_val *s, yyjson_val *v)
{
    yyjson_val *pattern = yyjson_obj_get(s, "pattern");
    regex_t re;
    if (pattern == NULL)
        return true;
    if (regcomp(&re, yyjson_get_str(pattern), REG_EXTENDED | REG_NOSUB) != 0)
        return false;
    bool ok = regexec(&re, yyjson_get_str(v), 0, NULL, 0) == 0;
    regfree(&re);
    return ok;
}

static inline bool schema_valid(yyjson_val *root, yyjson_val *s, yyjson_val *v);

static inline bool schema_object_valid(yyjson_val *root, yyjson_val *s, yyjson_val *v)
{
    yyjson_val *properties = yyjson_obj_get(s, "properties"),
               *rest = yyjson_obj_get(s, "additionalProperties");
    yyjson_arr_iter names = yyjson_arr_iter_with(yyjson_obj_get(s, "required"));
    for (yyjson_val *name; (name = yyjson_arr_iter_next(&names)) != NULL;) {
        if (yyjson_obj_get(v, yyjson_get_str(name)) == NULL)
            return false;
    }
    yyjson_obj_iter it = yyjson_obj_iter_with(v);
    for (yyjson_val *key; (key = yyjson_obj_iter_next(&it)) != NULL;) {
        yyjson_val *own = yyjson_obj_get(properties, yyjson_get_str(key));
        if (!schema_valid(root, own != NULL ? own : rest, yyjson_obj_iter_get_val(key)))
            return false;
    }
    return true;
}

/* A NULL schema accepts everything. */
static inline bool schema_valid(yyjson_val *root, yyjson_val *s, yyjson_val *v)
{
    if (s == NULL || yyjson_is_bool(s))
        return s == NULL || yyjson_get_bool(s);
    yyjson_val *ref = yyjson_obj_get(s, "$ref"), *any = yyjson_obj_get(s, "anyOf"),
               *list = yyjson_obj_get(s, "enum");
    if (ref != NULL) {
        const char *path = yyjson_get_str(ref) + 1;
        return schema_valid(root, *path == '\0' ? root : yyjson_ptr_get(root, path), v);
    }
    bool ok = any == NULL;
    yyjson_arr_iter it = yyjson_arr_iter_with(any);
    for (yyjson_val *o; (o = yyjson_arr_iter_next(&it)) != NULL && !ok;)
        ok = schema_valid(root, o, v);
    bool listed = list == NULL;
    it = yyjson_arr_iter_with(list);
    for (yyjson_val *o; (o = yyjson_arr_iter_next(&it)) != NULL && !listed;)
        listed = schema_same(o, v);
    yyjson_val *type = yyjson_obj_get(s, "type");
    bool typed = type == NULL || (yyjson_is_str(type) && schema_has_type(v, yyjson_get_str(type)));
    it = yyjson_arr_iter_with(type);
    for (yyjson_val *o; (o = yyjson_arr_iter_next(&it)) != NULL && !typed;)
        typed = schema_has_type(v, yyjson_get_str(o));
    if (!ok || !listed || !typed)
        return false;
    if (yyjson_is_str(v))
        return schema_limit(s, "minLength", "maxLength", (double)schema_chars(v)) &&
               schema_pattern(s, v);
    if (yyjson_is_num(v))
        return schema_limit(s, "minimum", "maximum", yyjson_get_num(v));
    if (yyjson_is_obj(v))
        return schema_object_valid(root, s, v);
    it = yyjson_arr_iter_with(v);
    for (yyjson_val *item; (item = yyjson_arr_iter_next(&it)) != NULL;) {
        if (!schema_valid(root, yyjson_obj_get(s, "items"), item))
            return false;
    }
    return !yyjson_is_arr(v) || schema_limit(s, "minItems", "maxItems", (double)yyjson_arr_size(v));
}

#endif
