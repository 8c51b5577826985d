/* fault.h: an error of the HTTP API, in vLLM's shape. */
#ifndef K3I_FAULT_H
#define K3I_FAULT_H

#include "buf.h"

typedef struct {
    int32_t status;   /* HTTP status, 0 = no error */
    const char *type; /* static */
    char param[64];   /* "" = null */
    char message[640];
} k3i_fault;

/* Fills the fault and returns false, so that a failure is one return statement. */
bool k3i_fault_set(k3i_fault *f, int32_t status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A value of a wrong type or a missing one: pydantic's heading, type "Bad Request". */
bool k3i_fault_field(k3i_fault *f, const char *field, const char *what);
/* From a status of the library: formats are the client's fault, memory and the rest are ours. */
bool k3i_fault_from(k3i_fault *f, const k3i_err *err, const char *param);
/* From the error that ended an answer. A limit is the request's fault (it leaves itself no token,
 * or its picture has no room), everything else is ours. */
bool k3i_fault_of_answer(k3i_fault *f, const k3i_err *err);
/* {"error":{...}} */
k3_status k3i_fault_body(const k3i_fault *f, k3i_buf *ret, k3i_err *err);

#endif
