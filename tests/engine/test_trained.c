/* A trained model with golden answers from an independent float64 implementation: the text prompts
 * of golden.json in f32 mode must give the same greedy ids, and the logits of the last prompt
 * position (pNN.f32) within 1e-5 relative L2.
 *
 *   test_trained [MODEL_DIR GOLDEN_DIR]     default: models/mini and tests/data/mini */
#include "test.h"

#include "drive.h"

#include <math.h>
#include <yyjson.h>

enum { BLOCK = 32 };

typedef struct {
    const char *model, *golden;
} folders;

static size_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static void check_last_logits(const char *dir, size_t index, const float *got, size_t V)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/p%02zu.f32", dir, index);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return;
    double diff = 0, norm = 0;
    for (size_t i = 0; i < V; i++) {
        float want;
        assert_int_equal(fread(&want, sizeof want, 1, f), 1);
        diff += ((double)got[i] - want) * ((double)got[i] - want);
        norm += (double)want * want;
    }
    fclose(f);
    if (!(sqrt(diff / norm) < 1e-5))
        fail_msg("prompt %zu: last logits differ by %g relative L2", index, sqrt(diff / norm));
}

static void check_prompt(k3_engine *e, const char *dir, size_t index, yyjson_val *p, size_t V)
{
    yyjson_val *prompt = yyjson_obj_get(p, "prompt_ids"), *greedy = yyjson_obj_get(p, "greedy_ids");
    size_t n = yyjson_arr_size(prompt);
    int32_t *ids = malloc(n * sizeof *ids);
    float *x = malloc(n * V * sizeof *x);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)yyjson_get_uint(yyjson_arr_get(prompt, i));
    drive_seq s = {.engine = e, .first_block = 1, .block_tokens = BLOCK};
    assert_int_equal(drive_step(&s, ids, (int32_t)n, x), K3_OK);
    float *last = x + (n - 1) * V;
    check_last_logits(dir, index, last, V);
    for (size_t i = 0; i < yyjson_arr_size(greedy); i++) {
        int32_t id = (int32_t)argmax(last, V);
        int32_t want = (int32_t)yyjson_get_uint(yyjson_arr_get(greedy, i));
        if (id != want)
            fail_msg("prompt %zu: greedy id %zu is %d, expected %d", index, i, id, want);
        assert_int_equal(drive_step(&s, &id, 1, last), K3_OK);
    }
    free(x);
    free(ids);
}

static void golden_answers(void **state)
{
    const folders *dirs = *state;
    const char *dir = dirs->golden;
    char path[1000];
    snprintf(path, sizeof path, "%s/golden.json", dir);
    yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);
    assert_non_null(doc);
    k3_engine *e = drive_open(dirs->model, "f32", 2, ",\"max_num_batched_tokens\":2048");
    drive_kv(e, 128, BLOCK, 1);
    k3_info info = {.size = sizeof info};
    assert_int_equal(k3_query(e, &info), K3_OK);
    size_t i, max, n_text = 0;
    yyjson_val *p;
    yyjson_arr_foreach(yyjson_doc_get_root(doc), i, max, p)
    {
        if (yyjson_arr_size(yyjson_obj_get(p, "images")) > 0)
            continue;
        check_prompt(e, dir, i, p, (size_t)info.vocab_size);
        n_text++;
    }
    assert_true(n_text > 0);
    print_message("%zu text prompts\n", n_text);
    k3_close(e);
    yyjson_doc_free(doc);
}

int main(int argc, char **argv)
{
    folders dirs = {K3_SOURCE_DIR "/models/mini", K3_TEST_DATA "/mini"};
    if (argc == 3)
        dirs = (folders){argv[1], argv[2]};
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(golden_answers, &dirs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
