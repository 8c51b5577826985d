/* err.c: formatting of error texts and the table of public statuses. */
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

k3_status k3i_fail(k3i_err *err, k3_status code, const char *format, ...)
{
    if (err == NULL)
        return code;
    /* Formatted aside, because an argument may be the old text. */
    char text[K3I_ERR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->code = code;
    memcpy(err->text, text, sizeof text);
    return code;
}

k3_status k3i_err_prefix(k3i_err *err, const char *format, ...)
{
    if (err == NULL)
        return K3_E_ARG;
    char text[K3I_ERR_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used < sizeof text)
        snprintf(text + used, sizeof text - used, ": %s", err->text);
    memcpy(err->text, text, sizeof text);
    return err->code;
}

const char *k3_status_text(k3_status status)
{
    switch (status) {
#define STATUS(name, value, text) \
    case value:                   \
        return text;
#include <k3/status.def>
#undef STATUS
    default:
        return "unknown status";
    }
}
