/* json_out.c: see json_out.h. */
#include "json_out.h"

#include "json_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

k3i_json k3i_json_to(k3i_buf *buf)
{
    return (k3i_json){.buf = buf, .status = K3_OK};
}

static void add(k3i_json *j, const char *bytes, size_t n)
{
    if (j->status == K3_OK)
        j->status = k3i_buf_add(j->buf, bytes, n, &j->err);
}

void k3i_json_raw(k3i_json *j, const char *text)
{
    add(j, text, strlen(text));
}

void k3i_json_fmt(k3i_json *j, const char *format, ...)
{
    char text[256]; /* numbers and fixed words only */
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    K3_ASSERT(n >= 0 && (size_t)n < sizeof text);
    add(j, text, (size_t)n);
}

void k3i_json_strn(k3i_json *j, const char *text, size_t n)
{
    add(j, "\"", 1);
    if (j->status == K3_OK)
        j->status = k3i_json_escape(text, n, j->buf, &j->err);
    add(j, "\"", 1);
}

void k3i_json_str(k3i_json *j, const char *text)
{
    k3i_json_strn(j, text, strlen(text));
}

void k3i_json_float(k3i_json *j, double x)
{
    if (isfinite(x))
        k3i_json_fmt(j, "%.9g", x);
    else
        k3i_json_raw(j, "-9999.0");
}

k3_status k3i_json_end(k3i_json *j, k3i_err *err)
{
    if (j->status != K3_OK && err != NULL)
        *err = j->err;
    return j->status;
}
