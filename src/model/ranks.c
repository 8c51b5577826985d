/* ranks.c: see ranks.h. */
#include "ranks.h"

#include "team.h"

#include <string.h>

void k3i_ranks_part(const k3i_ranks *r, size_t n_out, size_t grain, size_t rank, size_t *ret_from,
                    size_t *ret_to)
{
    k3i_team_split(n_out, grain, rank, r->size, ret_from, ret_to);
}

/* Bytes of one rank's share of m: that of rank 0, which has the most outputs. */
static size_t share_bytes(const k3i_ranks *r, const k3i_shared *m, size_t grain)
{
    size_t from, to;
    k3i_ranks_part(r, m->n_out, grain, 0, &from, &to);
    return (to - from) * m->elem_bytes * m->n_row;
}

/* Copies rank `rank`'s share of m to or from `part`, rows one behind the other. */
static void copy_share(const k3i_ranks *r, const k3i_shared *m, size_t grain, size_t rank,
                       char *part, bool out)
{
    size_t from, to;
    k3i_ranks_part(r, m->n_out, grain, rank, &from, &to);
    size_t bytes = (to - from) * m->elem_bytes;
    for (size_t row = 0; row < m->n_row; row++) {
        char *at = (char *)m->base + row * m->row_bytes + from * m->elem_bytes;
        if (out) {
            memcpy(part + row * bytes, at, bytes);
        } else {
            memcpy(at, part + row * bytes, bytes);
        }
    }
}

/* Grows with the first steps to what the largest one needs, then stays. */
static bool reserve(k3i_ranks *r, size_t bytes)
{
    if (bytes <= r->buffer_bytes)
        return true;
    k3i_free(r->buffer);
    r->buffer = k3i_alloc(bytes);
    r->buffer_bytes = r->buffer != NULL ? bytes : 0;
    return r->buffer != NULL;
}

void k3i_ranks_gather(k3i_ranks *r, const k3i_shared *m, size_t n, size_t grain)
{
    size_t part = 0;
    if (r->size == 1 || r->failed)
        return;
    for (size_t i = 0; i < n; i++)
        part += share_bytes(r, &m[i], grain);
    if (!reserve(r, part * r->size)) {
        r->failed = true;
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        copy_share(r, &m[i], grain, r->rank, r->buffer + r->rank * part + at, true);
        at += share_bytes(r, &m[i], grain);
    }
    if (r->fn(r->user, r->buffer, part) != 0) {
        r->failed = true;
        return;
    }
    for (size_t rank = 0; rank < r->size; rank++) {
        at = 0;
        for (size_t i = 0; i < n && rank != r->rank; i++) {
            copy_share(r, &m[i], grain, rank, r->buffer + rank * part + at, false);
            at += share_bytes(r, &m[i], grain);
        }
    }
}

void k3i_ranks_done(k3i_ranks *r)
{
    k3i_free(r->buffer);
    r->buffer = NULL;
    r->buffer_bytes = 0;
}
