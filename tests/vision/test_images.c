/* Pictures behind the ABI on a random tiny model with a tower: batches, threads, chunks, limits,
 * errors. */
#include "drive_pictures.h"

#include <math.h>

static const char model_dir[] = K3_TEST_MODELS "/tiny";
static const char pictures_dir[] = K3_TEST_DATA "/image";

/* Rows under key `key` of an engine on `threads` threads, all pictures in one call or each alone.
 */
static float *rows_of(int threads, bool together, const k3i_patches *p, size_t n, uint64_t key,
                      int32_t *ret_n)
{
    k3_engine *e = pictures_open(model_dir, "bf16", threads);
    k3_image im[8];
    for (size_t i = 0; i < n; i++)
        im[i] = pictures_image(i, &p[i]);
    if (together) {
        assert_int_equal(k3_encode_image(e, (int32_t)n, im), K3_OK);
    } else {
        for (size_t i = n; i-- > 0;)
            assert_int_equal(k3_encode_image(e, 1, &im[i]), K3_OK);
    }
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    assert_int_equal(k3_image_rows(e, key, NULL, 0, ret_n), K3_OK);
    float *rows = malloc((size_t)*ret_n * (size_t)info.hidden_size * sizeof *rows);
    assert_int_equal(k3_image_rows(e, key, rows, *ret_n - 1, ret_n), K3_E_ARG);
    assert_int_equal(k3_image_rows(e, key, rows, *ret_n, ret_n), K3_OK);
    *ret_n *= info.hidden_size;
    k3_close(e);
    return rows;
}

static void encoding_does_not_depend_on_company(void **state)
{
    (void)state;
    static const char *const files[] = {"rgb8.png", "lossy.webp", "1x1.png", "gray.gif",
                                        "3000x1.png"};
    k3i_patches p[5];
    for (size_t i = 0; i < 5; i++)
        p[i] = pictures_load(model_dir, pictures_dir, files[i]);
    for (uint64_t key = 0; key < 5; key++) {
        int32_t na, nb;
        float *a = rows_of(1, true, p, 5, key, &na), *b = rows_of(3, false, p, 5, key, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, (size_t)na * sizeof *a);
        free(a);
        free(b);
    }
    for (size_t i = 0; i < 5; i++)
        k3i_patches_done(&p[i]);
}

static void no_chunking_changes_a_bit(void **state)
{
    (void)state;
    enum { TALL = 108 }; /* rows of 1 x 3000 pixels */
    int32_t ids[7 + TALL + 9];
    for (int32_t i = 0; i < 7 + TALL + 9; i++)
        ids[i] = i * 7 % 61;
    /* The second picture begins where the first ends, and the third ends the prompt. */
    const picture_prompt p = {
        .ids = ids,
        .n = 7 + TALL + 9,
        .n_pictures = 3,
        .picture = {{"rgb8.png", 3, 4}, {"1x3000.png", 7, TALL}, {"pal4.png", 7 + TALL + 5, 4}}};
    for (int mode = 0; mode < 2; mode++) {
        k3_engine *e = pictures_open(model_dir, mode == 0 ? "bf16" : "f32", 2);
        pictures_encode(e, model_dir, pictures_dir, &p, 40);
        pictures_check_chunks(e, &p, 40);
        k3_close(e);
    }
}

static void rows_of_a_picture_matter(void **state)
{
    (void)state;
    int32_t ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    picture_prompt p = {
        .ids = ids, .n = 12, .n_pictures = 2, .picture = {{"rgb8.png", 1, 4}, {"gray8.png", 6, 4}}};
    k3_engine *e = pictures_open(model_dir, "bf16", 1);
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    size_t bytes = (size_t)info.vocab_size * sizeof(float);
    float *a = malloc(bytes), *b = malloc(bytes);
    pictures_encode(e, model_dir, pictures_dir, &p, 1);
    pictures_prefill(e, &p, 1, 0, a);
    ids[2] = 50; /* the id of a media row is ignored */
    pictures_prefill(e, &p, 1, 0, b);
    assert_memory_equal(a, b, bytes);
    p.picture[0].first = 6; /* the two change places */
    p.picture[1].first = 1;
    pictures_prefill(e, &p, 1, 0, b);
    assert_memory_not_equal(a, b, bytes);
    free(a);
    free(b);
    k3_close(e);
}

static void expect_error(k3_engine *e, const k3_image *im, int32_t n, k3_status want,
                         const char *part)
{
    assert_int_equal(k3_encode_image(e, n, im), want);
    if (strstr(k3_last_error(e), part) == NULL)
        fail_msg("'%s' does not say '%s'", k3_last_error(e), part);
}

static void bad_images_are_refused_and_leave_nothing(void **state)
{
    (void)state;
    char json[5000], text[600];
    k3_engine *e;
    snprintf(json, sizeof json, "{\"model\":\"%s\",\"threads\":1,\"image_cache_bytes\":%d}",
             model_dir, 2 * 32 * 4 + 100); /* room for two rows */
    assert_int_equal(k3_open(json, NULL, NULL, &e, text, sizeof text), K3_OK);
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    float *pixels = calloc(64 * 588, sizeof *pixels);
    const k3_image good = {
        .key = 1, .pixels = pixels, .n_patches = 4, .grid_t = 1, .grid_h = 2, .grid_w = 2};
    k3_image bad = good;
    bad.grid_t = 2;
    expect_error(e, &bad, 1, K3_E_UNSUPPORTED, "video");
    bad.grid_t = 0;
    expect_error(e, &bad, 1, K3_E_ARG, "grid");
    bad = good;
    bad.grid_h = 3;
    expect_error(e, &bad, 1, K3_E_ARG, "multiples of 2");
    bad = good;
    bad.n_patches = 5;
    expect_error(e, &bad, 1, K3_E_ARG, "n_patches");
    bad = good;
    bad.pixels = NULL;
    expect_error(e, &bad, 1, K3_E_ARG, "pixels");
    expect_error(e, NULL, 1, K3_E_ARG, "images is NULL");
    expect_error(e, &good, -1, K3_E_ARG, "n_images");
    pixels[3] = NAN;
    expect_error(e, &good, 1, K3_E_ARG, "finite");
    pixels[3] = 0;
    k3_image two[] = {good, good, good};
    two[1].key = 2;
    two[2].grid_w = 200;
    expect_error(e, two, 3, K3_E_ARG, "n_patches");
    int32_t n;
    assert_int_equal(k3_image_rows(e, 1, NULL, 0, &n), K3_E_ARG); /* nothing was kept */
    two[2] = good;
    two[2].key = 3;
    two[2].n_patches = 64;
    two[2].grid_h = two[2].grid_w = 8; /* 16 rows: beyond the budget */
    expect_error(e, two, 3, K3_E_LIMIT, "image_cache_bytes");
    assert_int_equal(k3_image_rows(e, 1, NULL, 0, &n), K3_E_ARG);
    two[2] = good; /* the same key twice is one picture */
    assert_int_equal(k3_encode_image(e, 3, two), K3_OK);
    k3_stats_t s = {.size = sizeof s};
    k3_stats(e, &s);
    assert_int_equal(s.images, 2);
    assert_int_equal(s.image_bytes, 2 * info.hidden_size * 4);
    assert_int_equal(k3_encode_image(e, 3, two), K3_OK); /* held already */
    k3_stats(e, &s);
    assert_int_equal(s.images, 2);
    k3_free_image(e, 1);
    k3_free_image(e, 1);
    assert_int_equal(k3_reset(e), K3_OK);
    k3_stats(e, &s);
    assert_int_equal(s.image_bytes, 0);
    free(pixels);
    k3_close(e);
}

static void failed_allocations_keep_nothing(void **state)
{
    (void)state;
    k3_engine *e = pictures_open(model_dir, "bf16", 1);
    float *pixels = calloc(4 * 588, sizeof *pixels);
    const k3_image im = {
        .key = 1, .pixels = pixels, .n_patches = 4, .grid_t = 1, .grid_h = 2, .grid_w = 2};
    uint64_t k = 1;
    for (k3_status st = K3_E_NOMEM; st != K3_OK; k++) {
        int32_t n;
        k3i_alloc_fail_at(k);
        st = k3_encode_image(e, 1, &im);
        k3i_alloc_fail_at(0);
        assert_true(st == K3_OK || st == K3_E_NOMEM);
        assert_int_equal(k3_image_rows(e, 1, NULL, 0, &n), st == K3_OK ? K3_OK : K3_E_ARG);
    }
    assert_in_range(k, 5, 40);
    free(pixels);
    k3_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoding_does_not_depend_on_company),
        cmocka_unit_test(no_chunking_changes_a_bit),
        cmocka_unit_test(rows_of_a_picture_matter),
        cmocka_unit_test(bad_images_are_refused_and_leave_nothing),
        cmocka_unit_test(failed_allocations_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
