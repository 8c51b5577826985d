/* arena.c: chunks double in size, the newest first in the chain. */
#include "arena.h"

#include <string.h>

struct k3i_arena_chunk {
    k3i_arena_chunk *next;
    size_t bytes; /* usable, after the header */
    size_t used;
};

#define HEADER ((sizeof(k3i_arena_chunk) + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN)
#define FIRST_CHUNK ((size_t)64 << 10) /* small enough for a request, doubled from there */

void k3i_arena_init(k3i_arena *a, size_t max_bytes)
{
    *a = (k3i_arena){.max = max_bytes};
}

static k3i_arena_chunk *chunk_new(k3i_arena *a, size_t bytes)
{
    if (bytes > a->max - a->total)
        return NULL;
    k3i_arena_chunk *c = k3i_alloc(HEADER + bytes);
    if (c == NULL)
        return NULL;
    *c = (k3i_arena_chunk){.next = a->head, .bytes = bytes};
    a->head = c;
    a->total += bytes;
    return c;
}

void *k3i_arena_alloc(k3i_arena *a, size_t bytes)
{
    size_t padded;
    if (!k3i_add_size(bytes, K3I_ALIGN - 1, &padded))
        return NULL;
    padded &= ~(size_t)(K3I_ALIGN - 1);
    k3i_arena_chunk *c = a->head;
    if (c == NULL || padded > c->bytes - c->used) {
        size_t want = a->total < FIRST_CHUNK ? FIRST_CHUNK : a->total;
        size_t left = a->max - a->total;
        if (want > left)
            want = left;
        c = chunk_new(a, want < padded ? padded : want);
        if (c == NULL)
            return NULL;
    }
    void *p = (char *)c + HEADER + c->used;
    c->used += padded;
    a->used += padded;
    return p;
}

void *k3i_arena_array(k3i_arena *a, size_t n, size_t size)
{
    size_t bytes;
    return k3i_mul_size(n, size, &bytes) ? k3i_arena_alloc(a, bytes) : NULL;
}

char *k3i_arena_strndup(k3i_arena *a, const char *s, size_t n)
{
    size_t bytes;
    if (!k3i_add_size(n, 1, &bytes))
        return NULL;
    char *p = k3i_arena_alloc(a, bytes);
    if (p != NULL) {
        memcpy(p, s, n);
        p[n] = 0;
    }
    return p;
}

void k3i_arena_done(k3i_arena *a)
{
    while (a != NULL && a->head != NULL) {
        k3i_arena_chunk *next = a->head->next;
        k3i_free(a->head);
        a->head = next;
    }
    if (a != NULL)
        a->total = a->used = 0;
}
