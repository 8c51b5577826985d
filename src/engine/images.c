/* images.c: pictures are encoded in batches and their rows kept by key, within a byte budget.
 * Nothing is dropped by itself: the host decides what is freed. A call keeps all of its pictures or
 * none. */
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

void k3i_images_done(k3i_images *im)
{
    for (size_t i = 0; i < im->n; i++)
        k3i_free(im->list[i].rows);
    k3i_free(im->list);
    *im = (k3i_images){0};
}

/* ---- encoding ----------------------------------------------------------------------------------
 */

/* Patches that the tower takes at once: enough to read the weights seldom, few enough to bound
 * memory. One picture may be larger. */
#define BATCH_PATCHES 16384

/* Pictures from this size on report progress. */
#define LARGE_PATCHES 4096

static k3_status check_image(k3_engine *e, const k3_image *im)
{
    unsigned long long key = im->key;
    const k3i_vision_config *c = &e->target.config.vision;
    if (im->grid_t > 1)
        return k3i_fail(
            &e->err, K3_E_UNSUPPORTED,
            "image %llu: grid_t is %d: video is not supported, because the prompt format of "
            "Kimi-K3 for it is not published",
            key, im->grid_t);
    if (im->grid_t != 1 || im->grid_h < 1 || im->grid_w < 1)
        return k3i_fail(&e->err, K3_E_ARG, "image %llu: a grid of %d x %d x %d", key, im->grid_t,
                        im->grid_h, im->grid_w);
    k3_status st = k3i_vision_check(c, 1, (size_t)im->grid_h, (size_t)im->grid_w, &e->err);
    if (st != K3_OK)
        return k3i_err_prefix(&e->err, "image %llu", key);
    if (im->n_patches != im->grid_h * im->grid_w)
        return k3i_fail(&e->err, K3_E_ARG, "image %llu: n_patches is %d, the grid %d x %d", key,
                        im->n_patches, im->grid_h, im->grid_w);
    int finite = 0;
    if (im->pixels != NULL)
        e->run.op->all_finite(&finite, im->pixels,
                              (size_t)im->n_patches * 3 * c->patch_size * c->patch_size);
    if (!finite)
        return k3i_fail(&e->err, K3_E_ARG,
                        "image %llu: pixels is NULL or holds a value that is not finite", key);
    return K3_OK;
}

static size_t rows_of(const k3_engine *e, const k3_image *im)
{
    return k3i_vision_rows(&e->target.config.vision, (size_t)im->grid_h, (size_t)im->grid_w);
}

/* What one call encodes: pictures that are not held yet, each key once. */
typedef struct {
    k3i_vision_item *item; /* [n]; their rows are owned until they are in the list */
    uint64_t *key;         /* [n] */
    size_t n;
} work;

static void work_done(work *w)
{
    for (size_t i = 0; w->item != NULL && i < w->n; i++)
        k3i_free(w->item[i].rows);
    k3i_free(w->item);
    k3i_free(w->key);
}

static bool is_listed(const work *w, uint64_t key)
{
    for (size_t i = 0; i < w->n; i++) {
        if (w->key[i] == key)
            return true;
    }
    return false;
}

/* Checks everything, and takes all the memory that keeping the rows will need. */
static k3_status plan(k3_engine *e, size_t n_images, const k3_image *images, work *w)
{
    size_t row_bytes = e->target.config.hidden_size * sizeof(float);
    uint64_t bytes = e->images.bytes;
    w->item = k3i_alloc_array(n_images, sizeof *w->item);
    w->key = k3i_alloc_array(n_images, sizeof *w->key);
    if (w->item == NULL || w->key == NULL)
        return k3i_fail(&e->err, K3_E_NOMEM, "no memory for a list of %zu images", n_images);
    for (size_t i = 0; i < n_images; i++) {
        const k3_image *im = &images[i];
        k3_status st = check_image(e, im);
        if (st != K3_OK)
            return st;
        if (k3i_images_find(&e->images, im->key) != NULL || is_listed(w, im->key))
            continue;
        uint64_t more = rows_of(e, im) * row_bytes;
        if (more > e->opt.image_cache_bytes || bytes > e->opt.image_cache_bytes - more)
            return k3i_fail(
                &e->err, K3_E_LIMIT,
                "image %llu: its %llu bytes beside %llu held ones exceed image_cache_bytes %llu",
                (unsigned long long)im->key, (unsigned long long)more, (unsigned long long)bytes,
                (unsigned long long)e->opt.image_cache_bytes);
        bytes += more;
        float *rows = k3i_alloc_array(rows_of(e, im), row_bytes);
        if (rows == NULL)
            return k3i_fail(&e->err, K3_E_NOMEM, "no memory for the %zu rows of an image",
                            rows_of(e, im));
        w->key[w->n] = im->key;
        w->item[w->n++] = (k3i_vision_item){.pixels = im->pixels,
                                            .t = 1,
                                            .h = (size_t)im->grid_h,
                                            .w = (size_t)im->grid_w,
                                            .rows = rows};
    }
    size_t cap = e->images.n + w->n; /* of the list */
    k3i_image *list =
        cap <= e->images.cap ? e->images.list : k3i_realloc(e->images.list, 2 * cap * sizeof *list);
    if (list == NULL && cap > 0)
        return k3i_fail(&e->err, K3_E_NOMEM, "no memory for a list of %zu images", cap);
    e->images.cap = cap <= e->images.cap ? e->images.cap : 2 * cap;
    e->images.list = list;
    return K3_OK;
}

static void show_progress(void *user, size_t done, size_t total)
{
    if (done % 4 == 0 || done == total)
        k3i_log(user, 2, "encoding pictures: step %zu of %zu", done, total);
}

static k3_status compute(k3_engine *e, const work *w)
{
    size_t hidden = e->target.config.hidden_size;
    for (size_t from = 0, to; from < w->n; from = to) {
        size_t patches = 0;
        for (to = from; to < w->n; to++) {
            size_t n = w->item[to].h * w->item[to].w;
            if (to > from && patches + n > BATCH_PATCHES)
                break;
            patches += n;
        }
        k3i_threads_before(e, patches);
        k3_status st =
            k3i_vision_encode(&e->vision, w->item + from, to - from,
                              patches >= LARGE_PATCHES ? show_progress : NULL, e, &e->err);
        if (st != K3_OK)
            return st;
    }
    for (size_t i = 0; i < w->n; i++) {
        int finite;
        size_t n = k3i_vision_rows(&e->target.config.vision, w->item[i].h, w->item[i].w);
        e->run.op->all_finite(&finite, w->item[i].rows, n * hidden);
        if (!finite)
            return k3i_fail(&e->err, K3_E_NONFINITE, "image %llu: a row is not finite",
                            (unsigned long long)w->key[i]);
    }
    return K3_OK;
}

/* Moves the rows into the list, for which `plan` has made room. */
static void keep(k3_engine *e, work *w)
{
    for (size_t i = 0; i < w->n; i++) {
        size_t n = k3i_vision_rows(&e->target.config.vision, w->item[i].h, w->item[i].w);
        e->images.list[e->images.n++] =
            (k3i_image){.key = w->key[i], .n_rows = n, .rows = w->item[i].rows};
        e->images.bytes += n * e->target.config.hidden_size * sizeof(float);
        w->item[i].rows = NULL;
        e->stats.images++;
    }
}

k3_status k3_encode_image(k3_engine *e, int32_t n_images, const k3_image *images)
{
    if (e == NULL)
        return K3_E_ARG;
    if (!e->target.config.has_vision)
        return k3i_fail(&e->err, K3_E_UNSUPPORTED, "this model does not accept image input");
    if (n_images < 0 || (n_images > 0 && images == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "n_images is %d, or images is NULL", n_images);
    int64_t start = k3i_now_ns();
    work w = {0};
    k3_status st = plan(e, (size_t)n_images, images, &w);
    if (st == K3_OK)
        st = compute(e, &w);
    if (st == K3_OK) {
        keep(e, &w);
        e->stats.image_ns += k3i_now_ns() - start;
    }
    work_done(&w);
    return st;
}

/* ---- rows that are held ------------------------------------------------------------------------
 */

k3_status k3_image_rows(k3_engine *e, uint64_t key, float *rows, int32_t cap, int32_t *ret_rows)
{
    if (e == NULL)
        return K3_E_ARG;
    const k3i_image *im = k3i_images_find(&e->images, key);
    if (im == NULL || ret_rows == NULL)
        return k3i_fail(&e->err, K3_E_ARG,
                        im == NULL ? "image %llu is not encoded" : "image %llu: ret_rows is NULL",
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
