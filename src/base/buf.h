/* buf.h: a growing byte buffer with a hard maximum. Zero-initialise with K3I_BUF(max). */
#ifndef K3I_BUF_H
#define K3I_BUF_H

#include "alloc.h"

typedef struct {
    char *data;         /* NULL until the first byte; not NUL-terminated */
    size_t n, cap, max; /* bytes used, allocated, allowed */
} k3i_buf;

#define K3I_BUF(max_bytes) ((k3i_buf){.max = (max_bytes)})

/* Appends n bytes. K3_E_LIMIT beyond max, K3_E_NOMEM; the buffer is unchanged then. */
k3_status k3i_buf_add(k3i_buf *b, const void *bytes, size_t n, k3i_err *err);
/* Appends a NUL-terminated string. */
k3_status k3i_buf_adds(k3i_buf *b, const char *s, k3i_err *err);
/* Room for n more bytes, so that the next additions of n bytes in all cannot fail. */
k3_status k3i_buf_reserve(k3i_buf *b, size_t n, k3i_err *err);
void k3i_buf_done(k3i_buf *b);

#endif
