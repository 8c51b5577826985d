/* test_text.c: k3_text_*, the tokenizer and chat format for foreign servers. The ids and counts are
 * published ones (tests/data/tokenizer/README.md). */
#include "test.h"

#include "alloc.h"

#define DIR K3_TEST_DATA "/tokenizer"

enum { MEDIA_BEGIN = 163602, MEDIA_END = 163604, MEDIA_PAD = 163605 };

static int setup(void **state)
{
    return k3_text_open(DIR, (k3_text **)state, NULL, 0);
}

static int teardown(void **state)
{
    k3_text_close(*state);
    return 0;
}

static int32_t chat(const k3_text *text, const char *json, int32_t *ids, int32_t cap)
{
    int32_t n = -1;
    assert_int_equal(k3_text_chat(text, json, strlen(json), ids, cap, &n, NULL, 0), K3_OK);
    return n;
}

static void missing_directory_is_named(void **state)
{
    k3_text *text = NULL;
    char err[200] = "";
    (void)state;
    assert_int_not_equal(k3_text_open("/nonexistent", &text, err, sizeof err), K3_OK);
    assert_null(text);
    assert_non_null(strstr(err, "/nonexistent"));
    k3_text_close(NULL);
}

static void encodes_plainly_and_with_specials(void **state)
{
    static const int32_t plain[] = {64, 22652, 4454, 91, 29, 291, 793, 33, 4110, 60, 275};
    static const int32_t special[] = {64, 220, 163587, 291, 220, 163584, 275};
    const char *s = "a <|open|> b [BOS] c";
    int32_t ids[16], n = 0;
    assert_int_equal(k3_text_encode(*state, s, strlen(s), 0, ids, 16, &n, NULL, 0), K3_OK);
    assert_int_equal(n, 11);
    assert_memory_equal(ids, plain, sizeof plain);
    assert_int_equal(k3_text_encode(*state, s, strlen(s), 1, ids, 16, &n, NULL, 0), K3_OK);
    assert_int_equal(n, 7);
    assert_memory_equal(ids, special, sizeof special);
}

static void small_buffers_get_the_beginning_and_the_count(void **state)
{
    int32_t ids[3] = {-7, -7, -7}, n = 0;
    assert_int_equal(k3_text_encode(*state, "a <|open|>", 10, 1, ids, 2, &n, NULL, 0), K3_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 64);
    assert_int_equal(ids[1], 220);
    assert_int_equal(ids[2], -7);
    assert_int_equal(k3_text_encode(*state, "a", 1, 1, NULL, 0, &n, NULL, 0), K3_OK);
    assert_int_equal(n, 1);
}

static void chat_counts_are_the_published_ones(void **state)
{
    /* 99 and 3 for the opener of the answer: KVV's case "assistant_hello". */
    assert_int_equal(
        chat(*state,
             "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\xE4\xBD\xA0\xE5\xA5\xBD\"}],"
             "\"reasoning_effort\":\"high\"}",
             NULL, 0),
        102);
}

static void each_picture_is_one_media_token(void **state)
{
    int32_t ids[512], n_pad = 0;
    int32_t n = chat(*state,
                     "{\"messages\":[{\"role\":\"user\",\"content\":["
                     "{\"type\":\"text\",\"text\":\"<|media_begin|><|media_pad|>\"},"
                     "{\"type\":\"image\",\"url\":\"\"},{\"type\":\"text\",\"text\":\"and\"},"
                     "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
                     ids, 512);
    assert_in_range(n, 10, 512);
    for (int32_t i = 0; i < n; i++) {
        n_pad += ids[i] == MEDIA_PAD;
        assert_false(ids[i] >= MEDIA_BEGIN && ids[i] <= MEDIA_END);
    }
    assert_int_equal(n_pad, 2);
}

static void bad_requests_name_the_field(void **state)
{
    static const struct {
        const char *json, *what;
    } cases[] = {
        {"{\"messages\":", "no JSON"},
        {"{}", "messages"},
        {"{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":3}", "tools"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[200] = "";
        int32_t n = -5;
        assert_int_equal(k3_text_chat(*state, cases[i].json, strlen(cases[i].json), NULL, 0, &n,
                                      err, sizeof err),
                         K3_E_FORMAT);
        assert_non_null(strstr(err, cases[i].what));
        assert_int_equal(n, -5);
    }
}

/* Every allocation fails once, until none is left to fail. */
static void out_of_memory_is_an_error(void **state)
{
    const char *json =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"url\":\"\"}]}]}";
    for (uint64_t at = 1;; at++) {
        int32_t n = 0;
        k3i_alloc_fail_at(at);
        k3_status st = k3_text_chat(*state, json, strlen(json), NULL, 0, &n, NULL, 0);
        k3i_alloc_fail_at(0);
        if (st == K3_OK) {
            assert_in_range(at, 2, 1000);
            return;
        }
        assert_int_equal(st, K3_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_directory_is_named),
        cmocka_unit_test(encodes_plainly_and_with_specials),
        cmocka_unit_test(small_buffers_get_the_beginning_and_the_count),
        cmocka_unit_test(chat_counts_are_the_published_ones),
        cmocka_unit_test(each_picture_is_one_media_token),
        cmocka_unit_test(bad_requests_name_the_field),
        cmocka_unit_test(out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
