/* pages.c: positions to places in the pool. A sequence's pages lie anywhere; the rows inside a page
 * follow each other, so that only a page needs a look-up. */
#include "pages.h"

size_t k3i_page_row(const k3i_pool *p, size_t layer, int32_t block, size_t pos, size_t row_bytes)
{
    return (size_t)block * p->page_bytes + p->layer_offset[layer] +
           pos % p->block_tokens * row_bytes;
}

void k3i_page_keys(const k3i_pool *p, size_t layer, const int32_t *blocks, size_t pos, size_t n,
                   size_t width, size_t elem_bytes, size_t *ret_key)
{
    size_t B = p->block_tokens;
    for (size_t k = 0; k < n;) {
        int32_t block = blocks[(pos + k) / B];
        size_t at = k3i_page_row(p, layer, block, pos + k, width * elem_bytes) / elem_bytes;
        size_t left = B - (pos + k) % B, end = n - k < left ? n : k + left;
        for (; k < end; k++, at += width)
            ret_key[k] = at;
    }
}
