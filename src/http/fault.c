/* fault.c: the table of types by HTTP status, and the body. */
#include "fault.h"

#include "json_out.h"
#include "tokenizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of(int32_t status)
{
    switch (status) {
    case 400:
        return "BadRequestError";
    case 401:
        return "Unauthorized";
    case 404:
        return "NotFoundError";
    case 405:
        return "Method Not Allowed";
    case 413:
        return "Request Entity Too Large";
    case 415:
        return "Unsupported Media Type";
    case 422:
        return "UnprocessableEntityError";
    case 429:
        return "rate_limit_reached_error";
    case 503:
        return "ServiceUnavailableError";
    default:
        return "InternalServerError";
    }
}

bool k3i_fault_set(k3i_fault *f, int32_t status, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    f->status = status;
    f->type = type_of(status);
    snprintf(f->param, sizeof f->param, "%s", param == NULL ? "" : param);
    vsnprintf(f->message, sizeof f->message, format, args);
    va_end(args);
    return false;
}

bool k3i_fault_field(k3i_fault *f, const char *field, const char *what)
{
    k3i_fault_set(f, 400, field, "1 validation error:\n  %s: %s", field, what);
    f->type = "Bad Request";
    return false;
}

bool k3i_fault_from(k3i_fault *f, const k3i_err *err, const char *param)
{
    switch (err->code) {
    case K3_E_FORMAT:
    case K3_E_ARG:
    case K3_E_LIMIT:
    case K3_E_UNSUPPORTED:
    case K3_E_CONTEXT:
        return k3i_fault_set(f, 400, param, "%s", err->text);
    case K3_E_BUSY:
        return k3i_fault_set(f, 429, NULL, "%s", err->text);
    case K3_E_STATE:
    case K3_E_NOMEM:
        return k3i_fault_set(f, 503, NULL, "%s", err->text);
    default:
        return k3i_fault_set(f, 500, NULL, "%s", err->text);
    }
}

bool k3i_fault_of_answer(k3i_fault *f, const k3i_err *err)
{
    return k3i_fault_set(f, err->code == K3_E_LIMIT ? 400 : 500, NULL, "%s", err->text);
}

k3_status k3i_fault_body(const k3i_fault *f, k3i_buf *ret, k3i_err *err)
{
    /* Names of the client's are cut to a length, perhaps within a character. */
    k3i_buf message = K3I_BUF(4 * sizeof f->message);
    k3i_detok whole = {0};
    k3i_json j = k3i_json_to(ret);
    j.status =
        k3i_detok_bytes(&whole, (const uint8_t *)f->message, strlen(f->message), &message, &j.err);
    if (j.status == K3_OK)
        j.status = k3i_detok_flush(&whole, &message, &j.err);
    k3i_json_raw(&j, "{\"error\":{\"message\":");
    k3i_json_strn(&j, message.n > 0 ? message.data : "", message.n);
    k3i_buf_done(&message);
    k3i_json_raw(&j, ",\"type\":");
    k3i_json_str(&j, f->type);
    k3i_json_raw(&j, ",\"param\":");
    if (f->param[0] == 0)
        k3i_json_raw(&j, "null");
    else
        k3i_json_str(&j, f->param);
    k3i_json_fmt(&j, ",\"code\":%d}}", (int)f->status);
    return k3i_json_end(&j, err);
}
