/* stopper.c: `held` is searched for the earliest end of a match; the longest suffix that begins
 * some string stays. Strings are short and few, so the search is plain. */
#include "stopper.h"

#include <string.h>

void k3i_stopper_init(k3i_stopper *s, const char *const *strings, int32_t n, bool include)
{
    *s = (k3i_stopper){.strings = strings, .n = n, .include = include, .hit = -1};
    s->held = K3I_BUF((size_t)1 << 28);
}

/* The match that ends first; of those that end together, the one that began first. */
static bool find(const k3i_stopper *s, size_t *ret_at, int32_t *ret_index)
{
    size_t best_end = SIZE_MAX, best_at = SIZE_MAX;
    for (int32_t i = 0; i < s->n; i++) {
        size_t n = strlen(s->strings[i]);
        const char *p = s->held.n < n ? NULL : memmem(s->held.data, s->held.n, s->strings[i], n);
        if (p == NULL)
            continue;
        size_t at = (size_t)(p - s->held.data);
        if (at + n < best_end || (at + n == best_end && at < best_at)) {
            best_end = at + n;
            best_at = at;
            *ret_index = i;
        }
    }
    *ret_at = best_at;
    return best_end != SIZE_MAX;
}

/* Bytes at the end of `held` that begin a stop string. */
static size_t pending(const k3i_stopper *s)
{
    size_t most = 0;
    for (int32_t i = 0; i < s->n; i++) {
        size_t n = strlen(s->strings[i]) - 1;
        for (n = n < s->held.n ? n : s->held.n; n > most; n--) {
            if (memcmp(s->held.data + s->held.n - n, s->strings[i], n) == 0)
                most = n;
        }
    }
    return most;
}

k3_status k3i_stopper_push(k3i_stopper *s, const char *text, size_t n, k3i_buf *ret, k3i_err *err)
{
    if (s->hit >= 0)
        return K3_OK;
    if (s->n == 0)
        return k3i_buf_add(ret, text, n, err);
    k3_status status = k3i_buf_add(&s->held, text, n, err);
    if (status != K3_OK)
        return status;
    size_t at, keep = 0;
    int32_t index;
    size_t show = s->held.n;
    if (find(s, &at, &index)) {
        s->hit = index;
        show = at + (s->include ? strlen(s->strings[index]) : 0);
    } else {
        keep = pending(s);
        show -= keep;
    }
    status = k3i_buf_add(ret, s->held.data, show, err);
    if (status != K3_OK)
        return status;
    memmove(s->held.data, s->held.data + s->held.n - keep, keep);
    s->held.n = keep;
    return K3_OK;
}

k3_status k3i_stopper_flush(k3i_stopper *s, k3i_buf *ret, k3i_err *err)
{
    if (s->hit >= 0 || s->held.n == 0)
        return K3_OK;
    k3_status status = k3i_buf_add(ret, s->held.data, s->held.n, err);
    s->held.n = 0;
    return status;
}

void k3i_stopper_done(k3i_stopper *s)
{
    k3i_buf_done(&s->held);
}
