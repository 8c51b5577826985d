/* pool.h: which pages of the engine's pool are in use, and by how many. A page is shared by
 * counting: sequences hold one reference each, the prefix index holds its own kind, so that "only
 * the index wants it" (evictable) is known at any time. Block 0 is the engine's reserved page. */
#ifndef K3I_POOL_H
#define K3I_POOL_H

#include "alloc.h"

typedef struct {
    int32_t n_blocks;
    int32_t n_free;
    int32_t n_evictable; /* pages that only the index holds */
    int32_t *free_ids;   /* [n_free] stack */
    int32_t *n_ref;      /* [n_blocks] all references */
    int32_t *n_index;    /* [n_blocks] of those, the index's */
} k3i_pool;

k3_status k3i_pool_init(k3i_pool *p, int32_t n_blocks, k3i_err *err);
void k3i_pool_done(k3i_pool *p);

/* A free page with one reference, or -1. */
int32_t k3i_pool_take(k3i_pool *p);
void k3i_pool_ref(k3i_pool *p, int32_t block);
void k3i_pool_unref(k3i_pool *p, int32_t block);
/* The same for references of the prefix index. */
void k3i_pool_index_ref(k3i_pool *p, int32_t block);
void k3i_pool_index_unref(k3i_pool *p, int32_t block);

#endif
