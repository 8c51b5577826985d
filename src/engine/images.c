/* images.c: encoded images by key, within a byte budget. The host decides what is freed. */
#include "engine.h"

#include <string.h>

const k3i_image *k3i_images_find(const k3i_images *im, uint64_t key)
{
    for (size_t i = 0; i < im->n; i++) {
        if (im->list[i].key == key)
            return &im->list[i];
    }
    return NULL;
}

k3_status k3i_images_add(k3i_images *im, uint64_t budget, uint64_t key, float *rows, size_t n_rows,
                         size_t hidden, k3i_err *err)
{
    uint64_t bytes = n_rows * hidden * sizeof *rows;
    if (bytes > budget || im->bytes > budget - bytes)
        return k3i_fail(err, K3_E_LIMIT,
                        "an image of %llu bytes beside %llu held ones exceeds image_cache_bytes %llu",
                        (unsigned long long)bytes, (unsigned long long)im->bytes,
                        (unsigned long long)budget);
    if (im->n == im->cap) {
        size_t cap = im->cap == 0 ? 16 : 2 * im->cap;
        k3i_image *list = k3i_realloc(im->list, cap * sizeof *list);
        if (list == NULL)
            return k3i_fail(err, K3_E_NOMEM, "no memory for a list of %zu images", cap);
        im->list = list;
        im->cap = cap;
    }
    im->list[im->n++] = (k3i_image){.key = key, .n_rows = n_rows, .rows = rows};
    im->bytes += bytes;
    return K3_OK;
}

void k3i_images_done(k3i_images *im)
{
    for (size_t i = 0; i < im->n; i++)
        k3i_free(im->list[i].rows);
    k3i_free(im->list);
    *im = (k3i_images){0};
}

/* Checks image i of a call; *ret_rows: rows it will give, 0 if its key is present or came before. */
static k3_status check_image(k3_engine *e, const k3_image *images, int32_t i, size_t *ret_rows)
{
    const k3i_vision_config *vis = &e->target.config.vision;
    const k3_image *im = &images[i];
    *ret_rows = 0;
    if (im->grid_t != 1 || im->grid_h < 1 || im->grid_w < 1 || im->pixels == NULL ||
        (int64_t)im->grid_h * im->grid_w != im->n_patches)
        return k3i_fail(&e->err, K3_E_ARG, "image %d: %d patches in a grid of %d x %d x %d", i,
                        im->n_patches, im->grid_t, im->grid_h, im->grid_w);
    size_t h = (size_t)im->grid_h, w = (size_t)im->grid_w;
    k3_status st = k3i_vision_check(vis, 1, h, w, &e->err);
    if (st != K3_OK)
        return k3i_err_prefix(&e->err, "image %d", i);
    for (int32_t k = 0; k < i; k++) {
        if (images[k].key == im->key)
            return K3_OK;
    }
    if (k3i_images_find(&e->images, im->key) == NULL)
        *ret_rows = k3i_vision_rows(vis, h, w);
    return K3_OK;
}

/* Encodes items[0..n) and files them under their keys. `rows_of` are their row counts. */
static k3_status encode(k3_engine *e, const k3i_vision_item *items, const uint64_t *keys,
                        const size_t *rows_of, size_t n)
{
    size_t H = e->target.config.hidden_size, total = 0;
    for (size_t i = 0; i < n; i++)
        total += rows_of[i];
    float *all = k3i_alloc_array(total, H * sizeof *all);
    if (all == NULL)
        return k3i_fail(&e->err, K3_E_NOMEM, "no memory for %zu image rows", total);
    k3_status st = k3i_vision_encode(&e->vision, items, n, all, NULL, NULL, &e->err);
    const float *from = all;
    size_t n_added = 0;
    for (size_t i = 0; st == K3_OK && i < n; i++, from += rows_of[i - 1] * H) {
        float *rows = k3i_alloc_array(rows_of[i], H * sizeof *rows);
        if (rows == NULL) {
            st = k3i_fail(&e->err, K3_E_NOMEM, "no memory for %zu image rows", rows_of[i]);
            break;
        }
        memcpy(rows, from, rows_of[i] * H * sizeof *rows);
        st = k3i_images_add(&e->images, e->opt.image_cache_bytes, keys[i], rows, rows_of[i], H, &e->err);
        n_added += st == K3_OK;
        if (st != K3_OK)
            k3i_free(rows);
    }
    for (size_t i = 0; st != K3_OK && i < n_added; i++)
        k3_free_image(e, keys[i]);
    k3i_free(all);
    return st;
}

k3_status k3_encode_image(k3_engine *e, int32_t n_images, const k3_image *images)
{
    size_t n = 0, total = 0, room = n_images > 0 ? (size_t)n_images : 0;
    if (e == NULL)
        return K3_E_ARG;
    if (!e->target.config.has_vision)
        return k3i_fail(&e->err, K3_E_UNSUPPORTED, "this model has no vision tower");
    if (n_images < 0 || (n_images > 0 && images == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "n_images is %d, or images is NULL", n_images);
    int64_t start = k3i_now_ns();
    k3i_vision_item *items = k3i_alloc_array(room, sizeof *items);
    uint64_t *keys = k3i_alloc_array(room, sizeof *keys);
    size_t *rows = k3i_alloc_array(room, sizeof *rows);
    k3_status st = K3_OK;
    if (items == NULL || keys == NULL || rows == NULL)
        st = k3i_fail(&e->err, K3_E_NOMEM, "no memory for %d images", n_images);
    for (int32_t i = 0; st == K3_OK && i < n_images; i++) {
        st = check_image(e, images, i, &rows[n]);
        if (st != K3_OK || rows[n] == 0)
            continue;
        items[n] = (k3i_vision_item){.pixels = images[i].pixels,
                                     .t = 1,
                                     .h = (size_t)images[i].grid_h,
                                     .w = (size_t)images[i].grid_w};
        keys[n] = images[i].key;
        total += rows[n++];
    }
    uint64_t bytes = total * e->target.config.hidden_size * sizeof(float);
    if (st == K3_OK && (bytes > e->opt.image_cache_bytes ||
                        e->images.bytes > e->opt.image_cache_bytes - bytes))
        st = k3i_fail(&e->err, K3_E_LIMIT, "%zu images of %llu bytes exceed image_cache_bytes", n,
                      (unsigned long long)bytes);
    if (st == K3_OK && n > 0)
        st = encode(e, items, keys, rows, n);
    if (st == K3_OK) {
        e->stats.images += (int64_t)n;
        e->stats.image_ns += k3i_now_ns() - start;
    }
    k3i_free(items);
    k3i_free(keys);
    k3i_free(rows);
    return st;
}

k3_status k3_image_rows(k3_engine *e, uint64_t key, float *rows, int32_t cap, int32_t *ret_rows)
{
    if (e == NULL)
        return K3_E_ARG;
    const k3i_image *im = k3i_images_find(&e->images, key);
    if (im == NULL || ret_rows == NULL)
        return k3i_fail(&e->err, K3_E_ARG, im == NULL ? "image %llu is not encoded"
                                                      : "image %llu: ret_rows is NULL",
                        (unsigned long long)key);
    if (rows != NULL && (cap < 0 || (size_t)cap < im->n_rows))
        return k3i_fail(&e->err, K3_E_ARG, "image %llu has %zu rows, there is room for %d",
                        (unsigned long long)key, im->n_rows, cap);
    if (rows != NULL)
        memcpy(rows, im->rows, im->n_rows * e->target.config.hidden_size * sizeof *rows);
    *ret_rows = (int32_t)im->n_rows;
    return K3_OK;
}

void k3_free_image(k3_engine *e, uint64_t key)
{
    for (size_t i = 0; e != NULL && i < e->images.n; i++) {
        k3i_image *im = &e->images.list[i];
        if (im->key != key)
            continue;
        e->images.bytes -= im->n_rows * e->target.config.hidden_size * sizeof *im->rows;
        k3i_free(im->rows);
        memmove(im, im + 1, (e->images.n - i - 1) * sizeof *im);
        e->images.n--;
        return;
    }
}
