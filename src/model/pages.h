/* pages.h: where a position's row of a layer lies in the pages of the pool: the latents of the
 * target's MLA layers, keys and values of a draft's layers. */
#ifndef K3I_PAGES_H
#define K3I_PAGES_H

#include <stddef.h>
#include <stdint.h>

/* Rows of all such layers, target then draft: page [layers][block_tokens, row] acts. */
typedef struct {
    char *base;
    size_t page_bytes, block_tokens;
    const size_t *layer_offset; /* [layers] bytes from the start of a page */
} k3i_pool;

/* Bytes from the pool's base to the row of `pos`, whose page is `block`. */
size_t k3i_page_row(const k3i_pool *p, size_t layer, int32_t block, size_t pos, size_t row_bytes);

/* ret_key[k] = elements of elem_bytes from the pool's base to the row, `width` elements, of pos + k
 * for k < n: a look-up a page. blocks: the pages of the sequence. */
void k3i_page_keys(const k3i_pool *p, size_t layer, const int32_t *blocks, size_t pos, size_t n,
                   size_t width, size_t elem_bytes, size_t *ret_key);

#endif
