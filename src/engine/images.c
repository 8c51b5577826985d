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

k3_status k3_encode_image(k3_engine *e, int32_t n_images, const k3_image *images)
{
    (void)n_images;
    (void)images;
    if (e == NULL)
        return K3_E_ARG;
    return k3i_fail(&e->err, K3_E_UNSUPPORTED, "this model has no vision tower");
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
