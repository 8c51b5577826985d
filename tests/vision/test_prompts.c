/* Picture prompts end to end, through k3.h: files are decoded, encoded, and their rows fed to the text model. The
 * bundled model's golden prompts must come out token by token; chunks, threads, batches and the order of
 * encoding must not change a bit.
 *
 *   test_vision_prompts [MODEL_DIR GOLDEN_DIR]     default: models/mini and tests/data/mini
 *
 * Answers with status 77 (not run) where the model is missing. */
#include "test.h"

#include "image.h"
#include "map.h"

#include <math.h>
#include <unistd.h>
#include <yyjson.h>

enum { MAX_PICTURES = 4, BLOCK = 16, BLOCKS = 200 };

static const char *model_dir = K3_SOURCE_DIR "/models/mini";
static const char *golden_dir = K3_TEST_DATA "/mini";

typedef struct {
    int32_t *ids;
    size_t n;
    int32_t *greedy;
    size_t n_greedy;
    double margin;      /* smallest distance between the two best logits on the way */
    const char *logits; /* file of the logits of the last prompt row, or NULL */
    size_t n_pictures;
    struct {
        const char *file;
        int32_t first, tokens;
    } picture[MAX_PICTURES];
} prompt;

typedef struct {
    yyjson_doc *doc;
    prompt *list; /* those with pictures */
    size_t n;
} golden;

static int32_t *id_list(yyjson_val *arr, size_t *ret_n)
{
    size_t n = yyjson_arr_size(arr), i, max;
    int32_t *ids = calloc(n + 1, sizeof *ids);
    yyjson_val *v;
    yyjson_arr_foreach(arr, i, max, v) ids[i] = (int32_t)yyjson_get_int(v);
    *ret_n = n;
    return ids;
}

static golden golden_load(void)
{
    golden g = {0};
    char path[4096], *text;
    size_t n, i, max;
    k3i_err err;
    snprintf(path, sizeof path, "%s/golden.json", golden_dir);
    if (k3i_read_file(path, 16 << 20, &text, &n, &err) != K3_OK)
        fail_msg("%s", err.text);
    g.doc = yyjson_read(text, n, 0);
    k3i_free(text);
    yyjson_val *root = yyjson_doc_get_root(g.doc), *v;
    if (yyjson_is_obj(root))
        root = yyjson_obj_get(root, "prompts");
    assert_true(yyjson_is_arr(root));
    g.list = calloc(yyjson_arr_size(root), sizeof *g.list);
    yyjson_arr_foreach(root, i, max, v)
    {
        yyjson_val *pictures = yyjson_obj_get(v, "images");
        prompt *p = &g.list[g.n];
        if (yyjson_arr_size(pictures) == 0)
            continue;
        assert_in_range(yyjson_arr_size(pictures), 1, MAX_PICTURES);
        p->n_pictures = yyjson_arr_size(pictures);
        for (size_t k = 0; k < p->n_pictures; k++) {
            yyjson_val *im = yyjson_arr_get(pictures, k);
            p->picture[k].file = yyjson_get_str(yyjson_obj_get(im, "file"));
            p->picture[k].first = (int32_t)yyjson_get_int(yyjson_obj_get(im, "first_pad"));
            p->picture[k].tokens = (int32_t)yyjson_get_int(yyjson_obj_get(im, "tokens"));
        }
        p->ids = id_list(yyjson_obj_get(v, "prompt_ids"), &p->n);
        p->greedy = id_list(yyjson_obj_get(v, "greedy_ids"), &p->n_greedy);
        p->margin = yyjson_get_num(yyjson_obj_get(v, "min_margin"));
        p->logits = yyjson_get_str(yyjson_obj_get(v, "last_logits"));
        g.n++;
    }
    assert_in_range(g.n, 1, 1000);
    return g;
}

static void golden_done(golden *g)
{
    for (size_t i = 0; i < g->n; i++) {
        free(g->list[i].ids);
        free(g->list[i].greedy);
    }
    free(g->list);
    yyjson_doc_free(g->doc);
}

static k3_engine *engine_open(const char *mode, int threads)
{
    char json[5000], err[600] = "";
    k3_engine *e;
    snprintf(json, sizeof json, "{\"model\":\"%s\",\"mode\":\"%s\",\"threads\":%d}", model_dir, mode,
             threads);
    if (k3_open(json, NULL, NULL, &e, err, sizeof err) != K3_OK)
        fail_msg("%s", err);
    const k3_kv_config kv = {.size = sizeof kv, .num_blocks = BLOCKS, .block_tokens = BLOCK, .n_slots = 1};
    assert_int_equal(k3_kv_init(e, &kv, NULL), K3_OK);
    return e;
}

static k3i_patches picture_load(const char *file)
{
    char path[4096], *bytes;
    size_t n;
    k3i_err err;
    k3i_image_settings s;
    k3i_patches p;
    snprintf(path, sizeof path, "%s/%s", golden_dir, file);
    if (k3i_image_settings_read(model_dir, &s, &err) != K3_OK ||
        k3i_read_file(path, 16 << 20, &bytes, &n, &err) != K3_OK ||
        k3i_image_prepare((uint8_t *)bytes, n, &s, &p, &err) != K3_OK)
        fail_msg("%s", err.text);
    k3i_free(bytes);
    return p;
}

static k3_image image_of(uint64_t key, const k3i_patches *p)
{
    return (k3_image){.key = key, .pixels = p->pixels, .n_patches = (int32_t)p->n_patches, .grid_t = 1,
                      .grid_h = (int32_t)p->plan.grid_h, .grid_w = (int32_t)p->plan.grid_w};
}

/* Encodes the pictures of a prompt under keys base, base + 1, ... in one call. */
static void encode_pictures(k3_engine *e, const prompt *p, uint64_t base)
{
    k3i_patches patches[MAX_PICTURES];
    k3_image im[MAX_PICTURES];
    for (size_t i = 0; i < p->n_pictures; i++) {
        patches[i] = picture_load(p->picture[i].file);
        assert_int_equal(patches[i].plan.n_tokens, p->picture[i].tokens);
        im[i] = image_of(base + i, &patches[i]);
    }
    if (k3_encode_image(e, (int32_t)p->n_pictures, im) != K3_OK)
        fail_msg("%s", k3_last_error(e));
    for (size_t i = 0; i < p->n_pictures; i++)
        k3i_patches_done(&patches[i]);
}

/* Rows [from, to) of the prompt in one step; logits of the last. Pictures that the chunk cuts give it the rows
 * that fall inside. */
static void feed(k3_engine *e, const prompt *p, uint64_t base, int32_t from, int32_t to, float *logits)
{
    int32_t token[MAX_PICTURES], row[MAX_PICTURES], count[MAX_PICTURES], n_media = 0;
    uint64_t key[MAX_PICTURES];
    for (size_t i = 0; i < p->n_pictures; i++) {
        int32_t a = p->picture[i].first, b = a + p->picture[i].tokens;
        int32_t lo = a > from ? a : from, hi = b < to ? b : to;
        if (lo >= hi)
            continue;
        token[n_media] = lo - from;
        row[n_media] = lo - a;
        count[n_media] = hi - lo;
        key[n_media++] = base + i;
    }
    int32_t q_start[] = {0, to - from}, ctx = from, slot = 0, zero = 0, table[BLOCKS];
    int32_t op = from == 0 ? K3_SLOT_RESET : K3_SLOT_KEEP, off[] = {0, (to + BLOCK - 1) / BLOCK};
    int32_t last = to - from - 1, n = to - from;
    for (int32_t i = 0; i < BLOCKS - 1; i++)
        table[i] = i + 1;
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    const k3_batch b = {.size = sizeof b, .n_reqs = 1, .n_tokens = n, .n_logit_rows = 1,
                        .n_media = n_media, .token_ids = p->ids + from, .q_start = q_start,
                        .ctx_len = &ctx, .slot = &slot, .slot_op = &op, .n_spec = &zero, .mla_off = off,
                        .mla_table = table, .logit_row = &last, .media_token = token,
                        .media_key = key, .media_row = row, .media_count = count};
    if (k3_forward(e, &b, logits, info.vocab_size) != K3_OK)
        fail_msg("%s", k3_last_error(e));
    const k3_commit_args c = {.size = sizeof c, .n_reqs = 1, .accepted = &n};
    assert_int_equal(k3_commit(e, &c), K3_OK);
}

/* The prompt in chunks of `chunk` rows (0: whole). */
static void prefill(k3_engine *e, const prompt *p, uint64_t base, int32_t chunk, float *logits)
{
    int32_t n = (int32_t)p->n;
    for (int32_t at = 0; at < n;) {
        int32_t to = chunk == 0 || at + chunk > n ? n : at + chunk;
        feed(e, p, base, at, to, logits);
        at = to;
    }
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static int32_t vocab_of(k3_engine *e)
{
    k3_info info = {.size = sizeof info};
    assert_int_equal(k3_query(e, &info), K3_OK);
    assert_int_equal(info.has_vision, 1);
    assert_int_equal(info.image_patch_size, 14);
    assert_int_equal(info.image_merge_size, 2);
    return info.vocab_size;
}

static void expect_file_logits(const prompt *p, const float *logits, int32_t vocab)
{
    char path[4096], *bytes;
    size_t n;
    k3i_err err;
    if (p->logits == NULL)
        return;
    snprintf(path, sizeof path, "%s/%s", golden_dir, p->logits);
    if (k3i_read_file(path, 1 << 24, &bytes, &n, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n, (size_t)vocab * 4);
    double diff = 0, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        float want;
        memcpy(&want, bytes + (size_t)i * 4, 4);
        diff += ((double)want - (double)logits[i]) * ((double)want - (double)logits[i]);
        sum += (double)want * (double)want;
    }
    printf("%s: relative L2 %.2g\n", p->logits, sqrt(diff / sum));
    assert_true(sqrt(diff / sum) < 1e-4);
    k3i_free(bytes);
}

static void golden_prompts_come_out(void **state)
{
    (void)state;
    golden g = golden_load();
    for (int mode = 0; mode < 2; mode++) {
        k3_engine *e = engine_open(mode == 0 ? "f32" : "bf16", 2);
        int32_t vocab = vocab_of(e);
        float *logits = calloc((size_t)vocab, sizeof *logits);
        for (size_t i = 0; i < g.n; i++) {
            prompt *p = &g.list[i];
            if (mode == 1 && p->margin < 1)
                continue; /* too near a tie for bf16 rounding */
            encode_pictures(e, p, 10 * i);
            prefill(e, p, 10 * i, 0, logits);
            if (mode == 0)
                expect_file_logits(p, logits, vocab);
            /* The answer, token by token, behind the prompt. */
            prompt q = *p;
            q.ids = calloc(p->n + p->n_greedy, sizeof *q.ids);
            memcpy(q.ids, p->ids, p->n * sizeof *q.ids);
            for (size_t t = 0; t < p->n_greedy; t++) {
                int32_t id = argmax(logits, vocab);
                if (id != p->greedy[t])
                    fail_msg("prompt %zu, answer token %zu: %d, expected %d", i, t, id, p->greedy[t]);
                q.ids[q.n++] = id;
                feed(e, &q, 10 * i, (int32_t)q.n - 1, (int32_t)q.n, logits);
            }
            free(q.ids);
        }
        printf("%zu picture prompts, %s\n", g.n, mode == 0 ? "f32" : "bf16");
        free(logits);
        k3_close(e);
    }
    golden_done(&g);
}

static void no_chunking_changes_a_bit(void **state)
{
    (void)state;
    golden g = golden_load();
    k3_engine *e = engine_open("bf16", 2);
    int32_t vocab = vocab_of(e);
    size_t bytes = (size_t)vocab * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    for (size_t i = 0; i < g.n; i++) {
        prompt *p = &g.list[i];
        encode_pictures(e, p, 10 * i);
        prefill(e, p, 10 * i, 0, want);
        static const int32_t chunks[] = {1, 3, 7, 16, 33};
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            prefill(e, p, 10 * i, chunks[c], got);
            assert_memory_equal(want, got, bytes);
        }
        /* Every split point inside and at the ends of a picture. */
        for (size_t k = 0; k < p->n_pictures; k++) {
            int32_t first = p->picture[k].first;
            for (int32_t cut = first; cut <= first + p->picture[k].tokens; cut++) {
                feed(e, p, 10 * i, 0, cut, got);
                feed(e, p, 10 * i, cut, (int32_t)p->n, got);
                assert_memory_equal(want, got, bytes);
            }
        }
    }
    free(want);
    free(got);
    k3_close(e);
    golden_done(&g);
}

/* Rows under key `key` of an engine on `threads` threads, all pictures in one call or each alone. */
static float *rows_of(int threads, bool together, const k3i_patches *p, size_t n, uint64_t key,
                      int32_t *ret_n)
{
    k3_engine *e = engine_open("bf16", threads);
    k3_image im[8];
    for (size_t i = 0; i < n; i++)
        im[i] = image_of(i, &p[i]);
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
    golden g = golden_load();
    k3i_patches p[8];
    size_t n = 0;
    for (size_t i = 0; i < g.n && n < 8; i++)
        p[n++] = picture_load(g.list[i].picture[0].file);
    for (uint64_t key = 0; key < n; key++) {
        int32_t na, nb;
        float *a = rows_of(1, true, p, n, key, &na), *b = rows_of(3, false, p, n, key, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, (size_t)na * sizeof *a);
        free(a);
        free(b);
    }
    for (size_t i = 0; i < n; i++)
        k3i_patches_done(&p[i]);
    golden_done(&g);
}

static void swapped_pictures_change_the_answer(void **state)
{
    (void)state;
    golden g = golden_load();
    for (size_t i = 0; i < g.n; i++) {
        prompt *p = &g.list[i];
        if (p->n_pictures < 2)
            continue;
        k3_engine *e = engine_open("bf16", 2);
        int32_t vocab = vocab_of(e);
        size_t bytes = (size_t)vocab * sizeof(float);
        float *a = malloc(bytes), *b = malloc(bytes);
        encode_pictures(e, p, 0);
        prefill(e, p, 0, 0, a);
        const char *file = p->picture[0].file; /* in place of the second, cut to its rows */
        k3i_patches q = picture_load(file);
        k3_image im = image_of(7, &q);
        assert_int_equal(k3_encode_image(e, 1, &im), K3_OK);
        k3_free_image(e, 1);
        im.key = 1;
        if ((int32_t)q.plan.n_tokens >= p->picture[1].tokens) {
            assert_int_equal(k3_encode_image(e, 1, &im), K3_OK);
            prefill(e, p, 0, 0, b);
            assert_memory_not_equal(a, b, bytes);
        }
        k3i_patches_done(&q);
        free(a);
        free(b);
        k3_close(e);
    }
    golden_done(&g);
}

static void expect_error(k3_engine *e, const k3_image *im, int32_t n, k3_status want, const char *part)
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
    snprintf(json, sizeof json, "{\"model\":\"%s\",\"threads\":1,\"image_cache_bytes\":12000}", model_dir);
    assert_int_equal(k3_open(json, NULL, NULL, &e, text, sizeof text), K3_OK);
    k3_info info = {.size = sizeof info};
    k3_query(e, &info);
    float *pixels = calloc(64 * 588, sizeof *pixels);
    const k3_image good = {.key = 1, .pixels = pixels, .n_patches = 4, .grid_t = 1, .grid_h = 2, .grid_w = 2};
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
    k3_engine *e = engine_open("bf16", 1);
    float *pixels = calloc(4 * 588, sizeof *pixels);
    const k3_image im = {.key = 1, .pixels = pixels, .n_patches = 4, .grid_t = 1, .grid_h = 2, .grid_w = 2};
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

int main(int argc, char **argv)
{
    if (argc == 3) {
        model_dir = argv[1];
        golden_dir = argv[2];
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", model_dir);
    if (access(path, R_OK) != 0) {
        printf("NOT RUN: %s is missing\n", path);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_prompts_come_out),
        cmocka_unit_test(no_chunking_changes_a_bit),
        cmocka_unit_test(encoding_does_not_depend_on_company),
        cmocka_unit_test(swapped_pictures_change_the_answer),
        cmocka_unit_test(bad_images_are_refused_and_leave_nothing),
        cmocka_unit_test(failed_allocations_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
