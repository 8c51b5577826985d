/* arguments.c: the arguments of a whole call. A model may write an argument twice; a stream has
 * sent both by then, a whole reply keeps the last. */
#include "output.h"

#include "json_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *key, *end; /* from the key's quote to after the value */
    size_t n_key;          /* quotes included; equal keys were escaped alike */
} member;

/* Equal keys side by side, the last of them last. */
static int by_key(const void *pa, const void *pb)
{
    const member *a = *(const member *const *)pa, *b = *(const member *const *)pb;
    size_t n = a->n_key < b->n_key ? a->n_key : b->n_key;
    int order = memcmp(a->key, b->key, n);
    if (order == 0)
        order = (a->n_key > b->n_key) - (a->n_key < b->n_key);
    return order != 0 ? order : (a->key > b->key) - (a->key < b->key);
}

/* The members of an object as the parser writes it: "{", members apart by ", ", "}"; 0 if it is
 * not one. With ret NULL only counts. */
static size_t list_members(const char *s, size_t n, member *ret)
{
    size_t n_member = 0, at = 1;
    while (at + 1 < n) {
        size_t from = k3i_json_skip_space(s, n, at), colon = k3i_json_skip(s, n, from, false);
        size_t end = colon == 0 || colon >= n
                         ? 0
                         : k3i_json_skip(s, n, k3i_json_skip_space(s, n, colon + 1), false);
        if (end == 0)
            return 0;
        if (ret != NULL)
            ret[n_member] = (member){s + from, s + end, colon - from};
        n_member++;
        at = end + 1;
    }
    return at == n ? n_member : 0;
}

static k3_status write_kept(const member *m, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = k3i_buf_add(ret, "{", 1, err);
    bool is_first = true;
    for (size_t i = 0; i < n && st == K3_OK; i++) {
        if (m[i].n_key == 0)
            continue;
        if (!is_first)
            st = k3i_buf_add(ret, ", ", 2, err);
        if (st == K3_OK)
            st = k3i_buf_add(ret, m[i].key, (size_t)(m[i].end - m[i].key), err);
        is_first = false;
    }
    return st == K3_OK ? k3i_buf_add(ret, "}", 1, err) : st;
}

k3_status k3i_arguments_last(const char *text, size_t n, k3i_buf *ret, k3i_err *err)
{
    size_t n_member = list_members(text, n, NULL);
    if (n_member < 2)
        return k3i_buf_add(ret, text, n, err);
    member *m = k3i_alloc_array(n_member, sizeof *m);
    member **sorted = k3i_alloc_array(n_member, sizeof *sorted);
    k3_status st = K3_OK;
    if (m == NULL || sorted == NULL) {
        st = k3i_fail(err, K3_E_NOMEM, "out of memory (%zu arguments)", n_member);
    } else {
        list_members(text, n, m);
        for (size_t i = 0; i < n_member; i++)
            sorted[i] = &m[i];
        qsort(sorted, n_member, sizeof *sorted, by_key);
        for (size_t i = 0; i + 1 < n_member; i++) {
            if (sorted[i]->n_key == sorted[i + 1]->n_key &&
                memcmp(sorted[i]->key, sorted[i + 1]->key, sorted[i]->n_key) == 0)
                sorted[i]->n_key = 0; /* a later one stands */
        }
        st = write_kept(m, n_member, ret, err);
    }
    k3i_free(sorted);
    k3i_free(m);
    return st;
}
