/* Picture prompts end to end, through k3.h: files are decoded, encoded, and their rows fed to the
 * text model. The bundled model's golden prompts must come out token by token, whatever the chunks.
 *
 *   test_vision_prompts [MODEL_DIR GOLDEN_DIR]     default: models/mini and tests/data/mini
 *
 * Answers with status 77 (not run) where the model is missing. */
#include "drive_pictures.h"

#include "map.h"

#include <math.h>
#include <unistd.h>
#include <yyjson.h>

static const char *model_dir = K3_SOURCE_DIR "/models/mini";
static const char *golden_dir = K3_TEST_DATA "/mini";

typedef struct {
    picture_prompt ask;
    int32_t *greedy;
    size_t n_greedy;
    double margin;      /* smallest distance between the two best logits on the way */
    const char *logits; /* file of the logits of the last prompt row, or NULL */
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
        p->ask.n_pictures = yyjson_arr_size(pictures);
        for (size_t k = 0; k < p->ask.n_pictures; k++) {
            yyjson_val *im = yyjson_arr_get(pictures, k);
            p->ask.picture[k].file = yyjson_get_str(yyjson_obj_get(im, "file"));
            p->ask.picture[k].first = (int32_t)yyjson_get_int(yyjson_obj_get(im, "first_pad"));
            p->ask.picture[k].tokens = (int32_t)yyjson_get_int(yyjson_obj_get(im, "tokens"));
        }
        p->ask.ids = id_list(yyjson_obj_get(v, "prompt_ids"), &p->ask.n);
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
        free(g->list[i].ask.ids);
        free(g->list[i].greedy);
    }
    free(g->list);
    yyjson_doc_free(g->doc);
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
        k3_engine *e = pictures_open(model_dir, mode == 0 ? "f32" : "bf16", 2);
        int32_t vocab = vocab_of(e);
        float *logits = calloc((size_t)vocab, sizeof *logits);
        for (size_t i = 0; i < g.n; i++) {
            prompt *p = &g.list[i];
            if (mode == 1 && p->margin < 1)
                continue; /* too near a tie for bf16 rounding */
            pictures_encode(e, model_dir, golden_dir, &p->ask, 10 * i);
            pictures_prefill(e, &p->ask, 10 * i, 0, logits);
            if (mode == 0)
                expect_file_logits(p, logits, vocab);
            /* The answer, token by token, behind the prompt. */
            picture_prompt q = p->ask;
            q.ids = calloc(q.n + p->n_greedy, sizeof *q.ids);
            memcpy(q.ids, p->ask.ids, q.n * sizeof *q.ids);
            for (size_t t = 0; t < p->n_greedy; t++) {
                int32_t id = argmax(logits, vocab);
                if (id != p->greedy[t])
                    fail_msg("prompt %zu, answer token %zu: %d, expected %d", i, t, id,
                             p->greedy[t]);
                q.ids[q.n++] = id;
                pictures_feed(e, &q, 10 * i, (int32_t)q.n - 1, (int32_t)q.n, logits);
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
    k3_engine *e = pictures_open(model_dir, "bf16", 2);
    for (size_t i = 0; i < g.n; i++) {
        pictures_encode(e, model_dir, golden_dir, &g.list[i].ask, 10 * i);
        pictures_check_chunks(e, &g.list[i].ask, 10 * i);
    }
    k3_close(e);
    golden_done(&g);
}

static void swapped_pictures_change_the_answer(void **state)
{
    (void)state;
    golden g = golden_load();
    for (size_t i = 0; i < g.n; i++) {
        prompt *p = &g.list[i];
        if (p->ask.n_pictures < 2)
            continue;
        k3_engine *e = pictures_open(model_dir, "bf16", 2);
        int32_t vocab = vocab_of(e);
        size_t bytes = (size_t)vocab * sizeof(float);
        float *a = malloc(bytes), *b = malloc(bytes);
        pictures_encode(e, model_dir, golden_dir, &p->ask, 0);
        pictures_prefill(e, &p->ask, 0, 0, a);
        const char *file = p->ask.picture[0].file; /* in place of the second, cut to its rows */
        k3i_patches q = pictures_load(model_dir, golden_dir, file);
        k3_image im = pictures_image(7, &q);
        assert_int_equal(k3_encode_image(e, 1, &im), K3_OK);
        k3_free_image(e, 1);
        im.key = 1;
        if ((int32_t)q.plan.n_tokens >= p->ask.picture[1].tokens) {
            assert_int_equal(k3_encode_image(e, 1, &im), K3_OK);
            pictures_prefill(e, &p->ask, 0, 0, b);
            assert_memory_not_equal(a, b, bytes);
        }
        k3i_patches_done(&q);
        free(a);
        free(b);
        k3_close(e);
    }
    golden_done(&g);
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
        cmocka_unit_test(swapped_pictures_change_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
