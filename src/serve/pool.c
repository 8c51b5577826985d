/* pool.c: reference counts over page ids; every change passes through `change`, which keeps the two
 * totals right. Used on the engine thread only. */
#include "pool.h"

k3_status k3i_pool_init(k3i_pool *p, int32_t n_blocks, k3i_err *err)
{
    *p = (k3i_pool){.n_blocks = n_blocks, .n_free = n_blocks - 1};
    size_t n = (size_t)n_blocks;
    p->free_ids = k3i_alloc_array(n, sizeof *p->free_ids);
    p->n_ref = k3i_alloc_zero(n * sizeof *p->n_ref);
    p->n_index = k3i_alloc_zero(n * sizeof *p->n_index);
    if (p->free_ids == NULL || p->n_ref == NULL || p->n_index == NULL) {
        k3i_pool_done(p);
        return k3i_fail(err, K3_E_NOMEM, "page table of %d blocks: out of memory", n_blocks);
    }
    for (int32_t i = 0; i < p->n_free; i++)
        p->free_ids[i] = n_blocks - 1 - i;
    return K3_OK;
}

void k3i_pool_done(k3i_pool *p)
{
    k3i_free(p->free_ids);
    k3i_free(p->n_ref);
    k3i_free(p->n_index);
    *p = (k3i_pool){0};
}

static void change(k3i_pool *p, int32_t block, int32_t ref, int32_t index)
{
    K3_ASSERT(block > 0 && block < p->n_blocks);
    bool was = p->n_ref[block] > 0 && p->n_ref[block] == p->n_index[block];
    p->n_ref[block] += ref;
    p->n_index[block] += index;
    K3_ASSERT(p->n_ref[block] >= p->n_index[block] && p->n_index[block] >= 0);
    bool is = p->n_ref[block] > 0 && p->n_ref[block] == p->n_index[block];
    p->n_evictable += (int32_t)is - (int32_t)was;
    if (p->n_ref[block] == 0)
        p->free_ids[p->n_free++] = block;
}

int32_t k3i_pool_take(k3i_pool *p)
{
    if (p->n_free == 0)
        return -1;
    int32_t block = p->free_ids[--p->n_free];
    p->n_ref[block] = 1;
    return block;
}

void k3i_pool_ref(k3i_pool *p, int32_t block)
{
    change(p, block, 1, 0);
}

void k3i_pool_unref(k3i_pool *p, int32_t block)
{
    change(p, block, -1, 0);
}

void k3i_pool_index_ref(k3i_pool *p, int32_t block)
{
    change(p, block, 1, 1);
}

void k3i_pool_index_unref(k3i_pool *p, int32_t block)
{
    change(p, block, -1, -1);
}
