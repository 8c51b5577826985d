/* arena.h: memory with one lifetime, freed in one call. A chain of chunks; allocations are aligned
 * to K3I_ALIGN and never move. */
#ifndef K3I_ARENA_H
#define K3I_ARENA_H

#include "alloc.h"

typedef struct k3i_arena_chunk k3i_arena_chunk;

typedef struct {
    k3i_arena_chunk *head; /* chunk in use; older ones behind it */
    size_t total;          /* bytes of all chunks */
    size_t max;            /* hard limit on `total`, bytes */
    size_t used;           /* bytes handed out */
} k3i_arena;

/* Every buffer that grows is given its maximum when it is made. No memory is taken yet. */
void k3i_arena_init(k3i_arena *a, size_t max_bytes);
/* NULL if memory is out or the maximum would be exceeded. Contents undefined. */
void *k3i_arena_alloc(k3i_arena *a, size_t bytes);
/* n * size, overflow-checked. */
void *k3i_arena_array(k3i_arena *a, size_t n, size_t size);
#define k3i_arena_new(a, type, n) ((type *)k3i_arena_array((a), (n), sizeof(type)))
char *k3i_arena_strndup(k3i_arena *a, const char *s, size_t n);
void k3i_arena_done(k3i_arena *a);

#endif
