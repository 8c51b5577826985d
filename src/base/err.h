/* err.h: how functions report failure. A fallible function returns a k3_status and takes a trailing
 * `k3i_err *err` (NULL allowed); the text names the thing, what was expected and what was found. */
#ifndef K3I_ERR_H
#define K3I_ERR_H

#include <k3/k3.h>

#define K3I_ERR_TEXT 512 /* bytes with the NUL: a path, a tensor name and a sentence */

typedef struct {
    k3_status code;
    char text[K3I_ERR_TEXT];
} k3i_err;

/* Fills err (if not NULL) and returns `code`, so that a failure is one return statement. */
k3_status k3i_fail(k3i_err *err, k3_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text of an error that is passed upwards. Returns err->code. */
k3_status k3i_err_prefix(k3i_err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef K3_DEBUG
#include <assert.h>
#define K3_ASSERT(x) assert(x) /* for our own bugs only, never for input */
#else
#define K3_ASSERT(x) ((void)sizeof(x))
#endif

#endif
