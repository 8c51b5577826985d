/* json_text.c: printing and lenient scanning of JSON. Nothing recurses: containers are kept on an
 * explicit stack of bounded depth. */
#include "json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings -------------------------------------------------------------------------------- */

k3_status k3i_json_escape(const char *text, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = K3_OK;
    size_t from = 0;
    if (n == 0)
        return K3_OK; /* `text` may be NULL */
    for (size_t i = 0; i <= n && st == K3_OK; i++) {
        unsigned char c = i < n ? (unsigned char)text[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        st = k3i_buf_add(ret, text + from, i - from, err);
        from = i + 1;
        if (i == n || st != K3_OK)
            break;
        static const char short_name[] = "btn\vfr"; /* from U+0008; \v has no short form */
        char escape[8] = {'\\', (char)c, 0};
        if (c >= 8 && c <= 13 && c != 11)
            escape[1] = short_name[c - 8];
        else if (c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", c);
        st = k3i_buf_adds(ret, escape, err);
    }
    return st;
}

static k3_status print_string(const char *s, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = k3i_buf_add(ret, "\"", 1, err);
    if (st == K3_OK)
        st = k3i_json_escape(s, n, ret, err);
    return st == K3_OK ? k3i_buf_add(ret, "\"", 1, err) : st;
}

/* ---- numbers -------------------------------------------------------------------------------- */

/* The shortest decimal that reads back as v, laid out as Python does: exponent form below 1e-4 and
 * from 1e16 on, else positional with at least one decimal place. */
static void format_double(double v, char ret[40])
{
    char e[32];
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, v);
        if (strtod(e, NULL) == v)
            break;
    }
    if (!isfinite(v)) {
        snprintf(ret, 40, "%s", isnan(v) ? "NaN" : v < 0 ? "-Infinity" : "Infinity");
        return;
    }
    int exponent = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    if (v == 0)
        snprintf(ret, 40, "%s", signbit(v) ? "-0.0" : "0.0");
    else if (exponent < -4 || exponent >= 16)
        snprintf(ret, 40, "%s", e);
    else if (digits - 1 <= exponent)
        snprintf(ret, 40, "%.1f", v);
    else
        snprintf(ret, 40, "%.*f", digits - 1 - exponent, v);
}

static k3_status print_scalar(yyjson_val *val, k3i_buf *ret, k3i_err *err)
{
    char number[40];
    switch (yyjson_get_type(val)) {
    case YYJSON_TYPE_STR:
        return print_string(yyjson_get_str(val), yyjson_get_len(val), ret, err);
    case YYJSON_TYPE_RAW:
        return k3i_buf_add(ret, yyjson_get_raw(val), yyjson_get_len(val), err);
    case YYJSON_TYPE_BOOL:
        return k3i_buf_adds(ret, yyjson_get_bool(val) ? "true" : "false", err);
    case YYJSON_TYPE_NUM:
        if (yyjson_is_uint(val))
            snprintf(number, sizeof number, "%llu", (unsigned long long)yyjson_get_uint(val));
        else if (yyjson_is_sint(val))
            snprintf(number, sizeof number, "%lld", (long long)yyjson_get_sint(val));
        else
            format_double(yyjson_get_real(val), number);
        return k3i_buf_adds(ret, number, err);
    default:
        return k3i_buf_adds(ret, "null", err);
    }
}

/* ---- containers ----------------------------------------------------------------------------- */

/* An open container: its members [at, end) of the shared list; keys for objects, values for arrays.
 */
typedef struct {
    size_t at, end;
    bool is_object, is_first;
} level;

typedef struct {
    yyjson_val **member;
    size_t n, cap;
    level stack[K3I_JSON_MAX_DEPTH];
    size_t depth;
} printer;

static int compare_keys(const void *a, const void *b)
{
    yyjson_val *x = *(yyjson_val *const *)a, *y = *(yyjson_val *const *)b;
    size_t n = yyjson_get_len(x), m = yyjson_get_len(y);
    int order = memcmp(yyjson_get_str(x), yyjson_get_str(y), n < m ? n : m);
    if (order == 0 && n != m)
        return n < m ? -1 : 1;
    /* Equal keys keep their order: a later one lies at a higher address of the document. */
    return order != 0 ? order : (x > y) - (x < y);
}

static bool same_key(yyjson_val *x, yyjson_val *y)
{
    return yyjson_get_len(x) == yyjson_get_len(y) &&
           memcmp(yyjson_get_str(x), yyjson_get_str(y), yyjson_get_len(x)) == 0;
}

static k3_status push_level(printer *p, yyjson_val *val, int style, k3i_err *err)
{
    if (p->depth == K3I_JSON_MAX_DEPTH)
        return k3i_fail(err, K3_E_LIMIT, "JSON is nested deeper than %d levels",
                        K3I_JSON_MAX_DEPTH);
    size_t n = yyjson_is_obj(val) ? yyjson_obj_size(val) : yyjson_arr_size(val);
    if (n > p->cap - p->n) {
        size_t cap = 2 * p->cap + n + 64, bytes;
        yyjson_val **member =
            k3i_mul_size(cap, sizeof *member, &bytes) ? k3i_realloc(p->member, bytes) : NULL;
        if (member == NULL)
            return k3i_fail(err, K3_E_NOMEM, "out of memory (JSON of %zu members)", n);
        p->member = member;
        p->cap = cap;
    }
    level *l = &p->stack[p->depth++];
    *l = (level){.at = p->n, .end = p->n, .is_object = yyjson_is_obj(val), .is_first = true};
    if (!l->is_object) {
        yyjson_arr_iter it = yyjson_arr_iter_with(val);
        for (yyjson_val *v; (v = yyjson_arr_iter_next(&it)) != NULL;)
            p->member[l->end++] = v;
        p->n = l->end;
        return K3_OK;
    }
    yyjson_obj_iter it = yyjson_obj_iter_with(val);
    for (yyjson_val *key; (key = yyjson_obj_iter_next(&it)) != NULL;)
        p->member[l->end++] = key;
    if (style == K3I_JSON_SORTED) {
        qsort(p->member + l->at, l->end - l->at, sizeof *p->member, compare_keys);
        size_t kept = l->at;
        for (size_t i = l->at; i < l->end; i++) {
            if (i + 1 == l->end || !same_key(p->member[i], p->member[i + 1]))
                p->member[kept++] = p->member[i];
        }
        l->end = kept;
    }
    p->n = l->end;
    return K3_OK;
}

/* Prints what stands before the next member and returns its value; closes the container and returns
 * NULL when there is none. */
static yyjson_val *next_member(printer *p, int style, k3i_buf *ret, k3_status *st, k3i_err *err)
{
    level *l = &p->stack[p->depth - 1];
    if (l->at == l->end) {
        *st = k3i_buf_adds(ret, l->is_object ? "}" : "]", err);
        p->depth--;
        p->n = p->depth > 0 ? p->stack[p->depth - 1].end : 0;
        return NULL;
    }
    yyjson_val *member = p->member[l->at++];
    *st = l->is_first ? K3_OK : k3i_buf_adds(ret, style == K3I_JSON_SORTED ? "," : ", ", err);
    l->is_first = false;
    if (!l->is_object)
        return member;
    if (*st == K3_OK)
        *st = print_string(yyjson_get_str(member), yyjson_get_len(member), ret, err);
    if (*st == K3_OK)
        *st = k3i_buf_adds(ret, style == K3I_JSON_SORTED ? ":" : ": ", err);
    return yyjson_obj_iter_get_val(member);
}

k3_status k3i_json_print(yyjson_val *val, int style, k3i_buf *ret, k3i_err *err)
{
    if (!yyjson_is_ctn(val))
        return print_scalar(val, ret, err);
    printer *p = k3i_alloc_zero(sizeof *p);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (JSON printer)");
    k3_status st = K3_OK;
    do {
        if (val != NULL && yyjson_is_ctn(val)) {
            st = k3i_buf_adds(ret, yyjson_is_obj(val) ? "{" : "[", err);
            if (st == K3_OK)
                st = push_level(p, val, style, err);
        } else if (val != NULL) {
            st = print_scalar(val, ret, err);
        }
        if (st == K3_OK && p->depth > 0)
            val = next_member(p, style, ret, &st, err);
        else
            val = NULL;
    } while (st == K3_OK && (val != NULL || p->depth > 0));
    k3i_free(p->member);
    k3i_free(p);
    return st;
}

/* ---- lenient scanning ----------------------------------------------------------------------- */

size_t k3i_json_skip_space(const char *text, size_t n, size_t at)
{
    while (at < n && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
        at++;
    return at;
}

static bool is_hex4(const char *s)
{
    return strspn(s, "0123456789abcdefABCDEF") >= 4;
}

/* The end of the string literal at `at`, 0 if it is not one. */
static size_t skip_string(const char *text, size_t n, size_t at, bool lenient)
{
    if (at >= n || text[at] != '"')
        return 0;
    for (at++; at < n; at++) {
        if (text[at] == '"')
            return at + 1;
        if (!lenient && (unsigned char)text[at] < 0x20)
            return 0;
        if (text[at] != '\\')
            continue;
        if (++at == n)
            return 0;
        if (text[at] == 'u') {
            char hex[5] = {0};
            if (n - at < 5)
                return 0;
            memcpy(hex, text + at + 1, 4);
            if (!is_hex4(hex))
                return 0;
            at += 4;
        } else if (text[at] == '\0' || strchr("\"\\/bfnrt", text[at]) == NULL) {
            return 0;
        }
    }
    return 0;
}

static size_t skip_digits(const char *text, size_t n, size_t at)
{
    while (at < n && text[at] >= '0' && text[at] <= '9')
        at++;
    return at;
}

static size_t skip_number(const char *text, size_t n, size_t at)
{
    if (at < n && text[at] == '-')
        at++;
    size_t end = skip_digits(text, n, at);
    if (end == at)
        return 0;
    if (text[at] == '0')
        end = at + 1;
    if (end + 1 < n && text[end] == '.' && skip_digits(text, n, end + 1) > end + 1)
        end = skip_digits(text, n, end + 1);
    if (end < n && (text[end] == 'e' || text[end] == 'E')) {
        size_t exp = end + 1;
        if (exp < n && (text[exp] == '+' || text[exp] == '-'))
            exp++;
        if (skip_digits(text, n, exp) > exp)
            end = skip_digits(text, n, exp);
    }
    return end;
}

static size_t skip_scalar(const char *text, size_t n, size_t at, bool lenient)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    if (at < n && text[at] == '"')
        return skip_string(text, n, at, lenient);
    for (size_t i = 0; i < (lenient ? 6 : 3); i++) {
        size_t len = strlen(words[i]);
        if (n - at >= len && memcmp(text + at, words[i], len) == 0)
            return at + len;
    }
    return skip_number(text, n, at);
}

/* "key" : and the space after it; 0 if it is not there. */
static size_t skip_key(const char *text, size_t n, size_t at, bool lenient)
{
    at = skip_string(text, n, at, lenient);
    if (at == 0)
        return 0;
    at = k3i_json_skip_space(text, n, at);
    return at < n && text[at] == ':' ? k3i_json_skip_space(text, n, at + 1) : 0;
}

size_t k3i_json_skip(const char *text, size_t n, size_t at, bool lenient)
{
    char closer[K3I_JSON_MAX_DEPTH];
    size_t depth = 0;
    for (;;) {
        /* At the start of a value. */
        if (at < n && (text[at] == '{' || text[at] == '[')) {
            if (depth == K3I_JSON_MAX_DEPTH)
                return 0;
            closer[depth++] = text[at] == '{' ? '}' : ']';
            at = k3i_json_skip_space(text, n, at + 1);
            if (at >= n || text[at] != closer[depth - 1]) {
                if (closer[depth - 1] == '}' && (at = skip_key(text, n, at, lenient)) == 0)
                    return 0;
                continue;
            }
        } else {
            at = skip_scalar(text, n, at, lenient);
            if (at == 0)
                return 0;
        }
        /* After a value, or at the closer of an empty container. */
        while (depth > 0) {
            at = k3i_json_skip_space(text, n, at);
            if (at >= n)
                return 0;
            if (text[at] == ',') {
                at = k3i_json_skip_space(text, n, at + 1);
                if (closer[depth - 1] == '}' && (at = skip_key(text, n, at, lenient)) == 0)
                    return 0;
                break;
            }
            if (text[at] != closer[depth - 1])
                return 0;
            at++;
            depth--;
        }
        if (depth == 0)
            return at;
    }
}

static uint32_t hex4(const char *s)
{
    char hex[5] = {0};
    memcpy(hex, s, 4);
    return (uint32_t)strtoul(hex, NULL, 16);
}

static size_t put_utf8(char *p, uint32_t c)
{
    if (c < 0x80) {
        p[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        p[i] = (char)(0x80 | (c & 0x3F));
    p[0] = (char)((n == 2 ? 0xC0u : n == 3 ? 0xE0u : 0xF0u) | c);
    return n;
}

k3_status k3i_json_unescape(const char *text, size_t from, size_t to, k3i_buf *ret, k3i_err *err)
{
    k3_status st = K3_OK;
    size_t end = to - 1;
    for (size_t at = from + 1; at < end && st == K3_OK;) {
        const char *back = memchr(text + at, '\\', end - at);
        size_t stop = back != NULL ? (size_t)(back - text) : end;
        st = k3i_buf_add(ret, text + at, stop - at, err);
        at = stop;
        if (at == end || st != K3_OK)
            break;
        char c = text[at + 1], out[4];
        at += 2;
        if (c != 'u') {
            static const char from_letter[] = "bfnrt", to_byte[] = "\b\f\n\r\t";
            const char *l = strchr(from_letter, c);
            st = k3i_buf_add(ret, l != NULL ? &to_byte[l - from_letter] : &c, 1, err);
            continue;
        }
        uint32_t cp = hex4(text + at);
        at += 4;
        if (cp >= 0xD800 && cp < 0xDC00 && end - at >= 6 && text[at] == '\\' &&
            text[at + 1] == 'u') {
            uint32_t low = hex4(text + at + 2);
            if (low >= 0xDC00 && low < 0xE000) {
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                at += 6;
            }
        }
        if (cp >= 0xD800 && cp < 0xE000)
            cp = 0xFFFD;
        st = k3i_buf_add(ret, out, put_utf8(out, cp), err);
    }
    return st;
}

const char *k3i_json_type_name(char first)
{
    switch (first) {
    case '"':
        return "string";
    case '{':
        return "object";
    case '[':
        return "array";
    case 't':
    case 'f':
        return "boolean";
    case 'n':
        return "null";
    default:
        return "number";
    }
}
