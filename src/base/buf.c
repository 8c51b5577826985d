/* buf.c: growth is geometric, so that n additions cost O(n). */
#include "buf.h"

#include <string.h>

k3_status k3i_buf_reserve(k3i_buf *b, size_t n, k3i_err *err)
{
    if (n <= b->cap - b->n)
        return K3_OK;
    if (n > b->max - b->n)
        return k3i_fail(err, K3_E_LIMIT, "a buffer would exceed its limit of %zu bytes", b->max);
    size_t want = b->cap < b->max / 2 ? b->cap * 2 : b->max;
    if (want < b->n + n)
        want = b->n + n;
    if (want < 64)
        want = b->max < 64 ? b->max : 64;
    char *data = k3i_realloc(b->data, want);
    if (data == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu bytes)", want);
    b->data = data;
    b->cap = want;
    return K3_OK;
}

k3_status k3i_buf_add(k3i_buf *b, const void *bytes, size_t n, k3i_err *err)
{
    k3_status st = k3i_buf_reserve(b, n, err);
    if (st != K3_OK)
        return st;
    if (n > 0)
        memcpy(b->data + b->n, bytes, n);
    b->n += n;
    return K3_OK;
}

k3_status k3i_buf_adds(k3i_buf *b, const char *s, k3i_err *err)
{
    return k3i_buf_add(b, s, strlen(s), err);
}

void k3i_buf_done(k3i_buf *b)
{
    k3i_free(b->data);
    *b = (k3i_buf){.max = b->max};
}
