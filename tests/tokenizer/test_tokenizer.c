/* Tokenizer properties: round trips, long inputs, streaming, damaged files, failing memory. */
#include "test.h"

#include "tokenizer.h"

#include "map.h"
#include "small_vocab.h"
#include "tok_internal.h"

static k3i_tok *tok;
static char *model, *config;
static size_t model_bytes, config_bytes;

static int set_up(void **state)
{
    (void)state;
    k3i_err err;
    if (k3i_read_file(K3_TEST_DATA "/tokenizer/tiktoken.model", 1 << 24, &model, &model_bytes,
                      &err) != K3_OK ||
        k3i_read_file(K3_TEST_DATA "/tokenizer/tokenizer_config.json", 1 << 20, &config,
                      &config_bytes, &err) != K3_OK ||
        k3i_tok_parse(model, model_bytes, config, config_bytes, &tok, &err) != K3_OK)
        fail_msg("%s", err.text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    k3i_tok_free(tok);
    k3i_free(model);
    k3i_free(config);
    return 0;
}

static size_t put_char(char *p, uint32_t c)
{
    if (c < 0x80) {
        p[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        p[i] = (char)(0x80 | (c & 0x3F));
    p[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* A character from a mixture that exercises every class: ASCII, Latin, marks, Han, Hangul, emoji,
 * any. */
static uint32_t random_char(uint64_t *seed)
{
    static const uint32_t ranges[][2] = {
        {0x20, 0x7E},     {0x09, 0x0D},     {0x41, 0x5A},     {0x30, 0x39},     {0xA0, 0x17F},
        {0x300, 0x36F},   {0x4E00, 0x4E80}, {0x3001, 0x3030}, {0xAC00, 0xAC40}, {0x1F600, 0x1F640},
        {0x2000, 0x2030}, {0x2E80, 0x2E99}, {0, 0x10FFFF},
    };
    for (;;) {
        uint64_t r = test_rnd(seed);
        const uint32_t *range = ranges[r % (sizeof ranges / sizeof *ranges)];
        uint32_t c = range[0] + (uint32_t)((r >> 8) % (range[1] - range[0] + 1));
        if (c < 0xD800 || c > 0xDFFF)
            return c;
    }
}

static size_t random_text(uint64_t *seed, char *text, size_t n_char)
{
    size_t n = 0;
    for (size_t i = 0; i < n_char; i++) {
        uint32_t c = random_char(seed);
        size_t repeat = test_rnd(seed) % 4 == 0 ? 1 + test_rnd(seed) % 3 : 1;
        while (repeat-- > 0)
            n += put_char(text + n, c);
    }
    return n;
}

static void encode(const char *text, size_t n, int mode, k3i_ids *ids)
{
    k3i_err err;
    ids->n = 0;
    if (k3i_tok_encode(tok, text, n, mode, ids, &err) != K3_OK)
        fail_msg("%s", err.text);
}

static void decode(const k3i_ids *ids, k3i_buf *text)
{
    text->n = 0;
    assert_int_equal(k3i_tok_decode(tok, ids->id, ids->n, false, text, NULL), K3_OK);
}

/* 100,000 random strings come back from encode and decode; and from a stream that is flushed token
 * by token, whose every prefix is whole characters. */
static void round_trip(void **state)
{
    (void)state;
    uint64_t seed = 20260917;
    print_message("seed %llu\n", (unsigned long long)seed);
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    k3i_buf back = K3I_BUF(SIZE_MAX);
    for (int i = 0; i < 100000; i++) {
        char text[512];
        size_t n = random_text(&seed, text, test_rnd(&seed) % 25);
        encode(text, n, i % 2 == 0 ? K3I_TOK_PLAIN : K3I_TOK_SPECIAL, &ids);
        decode(&ids, &back);
        if (back.n != n || (n > 0 && memcmp(back.data, text, n) != 0))
            fail_msg("string %d: %.*s", i, (int)n, text);
        for (size_t k = 0; i % 2 == 0 && k < ids.n; k++)
            assert_false(k3i_tok_is_special(tok, ids.id[k]));
        k3i_detok d = {0};
        back.n = 0;
        for (size_t k = 0; k < ids.n; k++) {
            size_t from = back.n;
            assert_int_equal(k3i_detok_push(tok, &d, ids.id[k], false, &back, NULL), K3_OK);
            assert_true(d.n <= 3);
            for (size_t at = from; at < back.n;) {
                size_t len = k3i_utf8_length((uint8_t *)back.data + at, back.n - at);
                assert_true(len > 0 && len <= back.n - at);
                at += len;
            }
            assert_memory_equal(back.data, text, back.n);
        }
        assert_int_equal(d.n, 0);
    }
    k3i_ids_done(&ids);
    k3i_buf_done(&back);
}

/* Pieces of the pre-tokeniser, as the reference engine cuts them ('|' stands between pieces). */
static void pieces(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "Hello|World",
        "XMLHttp|Request",
        "\xED\x95\x9C\xEA\xB5\xAD|ABC",
        "ABC\xED\x95\x9C\xEA\xB5\xAD|DEF",
        " |\xE4\xB8\xAD\xE6\x96\x87",
        "A|\xE4\xB8\xAD|B",
        "x|\xE3\x80\x85|y",
        "1\xE3\x80\x87\xE3\x80\x87|\xE3\x80\x87",
        " \xE2\xBA\x80|x",
        "\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A\xE3\x83\xBC|\xE4\xB8\xAD",
        "\xEF\xBC\x90\xEF\xBC\x91\xEF\xBC\x92|\xEF\xBC\x93",
        "I'M",
        "they'LL",
        "it'\xC5\xBF",
        "it'rE|x",
        "I|\xE2\x80\x99m",
        "!\n|/x",
        "a|  | b",
        " \n \n| x",
        "\x1c\x1c| a",
        "123|4",
        "a|'b",
        "a|'",
        " \xC2\xA0|\xC2\xA0z",
        "\xCC\x81|A'd",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        size_t end[32], n = 0, n_end = 0, at = 0;
        for (const char *p = cases[i]; *p != '\0'; p++) {
            if (*p == '|')
                end[n_end++] = n;
            else
                text[n++] = *p;
        }
        end[n_end++] = n;
        for (size_t k = 0; k < n_end; k++) {
            at = k3i_pretok_next(tok, (const uint8_t *)text, at, n);
            if (at != end[k])
                fail_msg("%s: piece %zu ends at byte %zu, not %zu", cases[i], k, at, end[k]);
        }
    }
}

/* Tokens of a piece by the definition, quadratic: the oracle of the array and of the heap. */
static size_t naive_bpe(const uint8_t *piece, size_t n, int32_t *ret)
{
    size_t start[4097], n_part = n;
    for (size_t i = 0; i <= n; i++)
        start[i] = i;
    for (;;) {
        int32_t best_rank = INT32_MAX;
        size_t best = 0;
        k3i_ids one = K3I_IDS(1);
        for (size_t i = 0; i + 1 < n_part; i++) {
            one.n = 0;
            /* A concatenation is a token if and only if it encodes to one id. */
            if (start[i + 2] - start[i] <= K3I_TOK_MAX_BYTES &&
                k3i_tok_encode(tok, (const char *)piece + start[i], start[i + 2] - start[i],
                               K3I_TOK_PLAIN, &one, NULL) == K3_OK &&
                one.n == 1 && one.id[0] < best_rank) {
                best_rank = one.id[0];
                best = i;
            }
        }
        if (best_rank == INT32_MAX) {
            for (size_t i = 0; i < n_part; i++) {
                one.n = 0;
                assert_int_equal(k3i_tok_encode(tok, (const char *)piece + start[i],
                                                start[i + 1] - start[i], 0, &one, NULL),
                                 K3_OK);
                ret[i] = one.id[0];
            }
            k3i_ids_done(&one);
            return n_part;
        }
        k3i_ids_done(&one);
        memmove(start + best + 1, start + best + 2, (n_part - best - 1) * sizeof *start);
        n_part--;
    }
}

static void bpe_matches_definition(void **state)
{
    (void)state;
    uint64_t seed = 7;
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    static const char letters[] = "aeinorst";
    /* Lengths around the switch from array to heap (96 bytes), one piece each: small letters only.
     */
    for (size_t n = 2; n < 140; n += n < 90 ? 7 : 1) {
        char text[140];
        int32_t want[140];
        for (size_t i = 0; i < n; i++)
            text[i] = letters[test_rnd(&seed) % 8];
        encode(text, n, K3I_TOK_PLAIN, &ids);
        size_t n_want = naive_bpe((uint8_t *)text, n, want);
        assert_int_equal(ids.n, n_want);
        assert_memory_equal(ids.id, want, n_want * sizeof *want);
    }
    k3i_ids_done(&ids);
}

/* 10 MB of a single run, 256 KB of other kinds. A quadratic step anywhere would take hours, so
 * ending is the test. */
static void long_runs(void **state)
{
    (void)state;
    static const char *const unit[] = {
        "a",  "<|",           " ",        "A", "<", "\xF0\x9F\x99\x82", "\xCC\x81",
        "\n", "\xE6\xB1\x89", "A\xCC\x81"};
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    k3i_buf back = K3I_BUF(SIZE_MAX);
    char *text = malloc(10u << 20);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
        size_t n = strlen(unit[u]), bytes = u < 2 ? 10u << 20 : 1u << 18, len = bytes / n * n;
        for (size_t i = 0; i < len; i++)
            text[i] = unit[u][i % n];
        encode(text, len, K3I_TOK_SPECIAL, &ids);
        decode(&ids, &back);
        assert_int_equal(back.n, len);
        assert_memory_equal(back.data, text, len);
    }
    free(text);
    k3i_ids_done(&ids);
    k3i_buf_done(&back);
}

/* Ill-formed bytes: one U+FFFD per maximal ill-formed subpart. The expected texts are Python's
 * bytes.decode("utf-8", "replace"). */
static void ill_formed(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"a\xC3", "a\xEF\xBF\xBD"},
        {"\x80", "\xEF\xBF\xBD"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE2\x82"
         "x",
         "\xEF\xBF\xBDx"},
        {"\xF0\x9F\x99", "\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xE0\x80\xC3\xA9", "\xEF\xBF\xBD\xEF\xBF\xBD\xC3\xA9"},
        {"\xF0\x9F\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"},
    };
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    k3i_buf back = K3I_BUF(SIZE_MAX);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].bytes), n_want = strlen(cases[i].want);
        encode(cases[i].bytes, n, K3I_TOK_PLAIN, &ids);
        decode(&ids, &back);
        assert_int_equal(back.n, n_want);
        assert_memory_equal(back.data, cases[i].want, n_want);
        /* A stream of bytes, one at a time. */
        k3i_detok d = {0};
        back.n = 0;
        for (size_t k = 0; k < n; k++)
            assert_int_equal(
                k3i_detok_bytes(&d, (const uint8_t *)cases[i].bytes + k, 1, &back, NULL), K3_OK);
        assert_int_equal(k3i_detok_flush(&d, &back, NULL), K3_OK);
        assert_int_equal(back.n, n_want);
        assert_memory_equal(back.data, cases[i].want, n_want);
    }
    k3i_err err;
    const int32_t bad[] = {-1, 163840, INT32_MAX};
    for (int i = 0; i < 3; i++)
        assert_int_equal(k3i_tok_decode(tok, &bad[i], 1, false, &back, &err), K3_E_ARG);
    const int32_t specials[] = {163586, 163587, 64};
    back.n = 0;
    assert_int_equal(k3i_tok_decode(tok, specials, 3, true, &back, &err), K3_OK);
    assert_int_equal(back.n, 9);
    assert_memory_equal(back.data, "<|open|>a", 9);
    k3i_ids_done(&ids);
    k3i_buf_done(&back);
}

static void limits(void **state)
{
    (void)state;
    k3i_err err;
    k3i_ids ids = K3I_IDS(3);
    assert_int_equal(k3i_tok_encode(tok, "one two three four", 18, K3I_TOK_PLAIN, &ids, &err),
                     K3_E_LIMIT);
    assert_true(ids.n <= 3);
    k3i_ids_done(&ids);
    k3i_buf text = K3I_BUF(3);
    const int32_t hello[] = {19180};
    assert_int_equal(k3i_tok_decode(tok, hello, 1, false, &text, &err), K3_E_LIMIT);
    k3i_buf_done(&text);
}

static void expect_refused(const char *m, size_t m_bytes, const char *c, size_t c_bytes,
                           k3_status want, const char *word)
{
    k3i_tok *t = NULL;
    k3i_err err = {0};
    k3_status st = k3i_tok_parse(m, m_bytes, c, c_bytes, &t, &err);
    if (st != want || strstr(err.text, word) == NULL)
        fail_msg("status %d, '%s'; expected %d and '%s'", st, err.text, want, word);
    assert_null(t);
}

/* The file with `from` (first occurrence) replaced by `to`. */
static char *edited(const char *text, size_t n, const char *from, const char *to, size_t *ret_n)
{
    const char *at = memmem(text, n, from, strlen(from));
    assert_non_null(at);
    size_t head = (size_t)(at - text), tail = n - head - strlen(from);
    char *p = malloc(n + strlen(to) + 1);
    memcpy(p, text, head);
    memcpy(p + head, to, strlen(to));
    memcpy(p + head + strlen(to), at + strlen(from), tail);
    *ret_n = head + strlen(to) + tail;
    return p;
}

static void damaged_files(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *word;
    } model_cases[] = {
        {"IQ== 0\n", "", "line 1"},         /* a missing line */
        {"IQ== 0\n", "IQ== 1\n", "line 1"}, /* another rank */
        {"IQ== 0\n", "IQ== 00\n", "line 1"},
        {"IQ== 0\n", "IQ==  0\n", "line 1"},
        {"IQ== 0\n", "IR== 0\n", "base64"}, /* unused bits set */
        {"IQ== 0\n", "I*== 0\n", "base64"},
        {"IQ== 0\n", "IQ= 0\n", "base64"},
        {"IQ== 0\n", "Ig== 0\n", "same token"}, /* duplicate of rank 1 */
        {"IQ== 0\n", "ISE= 0\n", "same token"},
        {"IQ== 0\n", "\nIQ== 0\n", "line 1"},
        {"IQ== 0\n", " 0\n", "line 1"},
    };
    for (size_t i = 0; i < sizeof model_cases / sizeof *model_cases; i++) {
        size_t n;
        char *p = edited(model, model_bytes, model_cases[i].from, model_cases[i].to, &n);
        expect_refused(p, n, config, config_bytes, K3_E_CHECKPOINT, model_cases[i].word);
        free(p);
    }
    static const struct {
        const char *from, *to, *word;
    } config_cases[] = {
        {"<|open|>", "<|im_user|>", "163587"},
        {"\"163584\"", "\"163583\"", "163583"},
        {"\"163584\"", "\"163840\"", "163840"},
        {"\"163584\"", "\"x\"", "'x'"},
        {"\"163585\"", "\"163584\"", "[EOS]"},
        {"\"special\": true", "\"special\": 1", "special"},
        {"\"added_tokens_decoder\"", "\"other\"", "added_tokens_decoder"},
        {"{", "[", "JSON"},
    };
    for (size_t i = 0; i < sizeof config_cases / sizeof *config_cases; i++) {
        size_t n;
        char *p = edited(config, config_bytes, config_cases[i].from, config_cases[i].to, &n);
        expect_refused(model, model_bytes, p, n, K3_E_CONFIG, config_cases[i].word);
        free(p);
    }
    static const char no_names[] = "{\"added_tokens_decoder\": {}}";
    expect_refused(model, model_bytes, no_names, strlen(no_names), K3_E_CONFIG, "[BOS]");
    expect_refused("", 0, config, config_bytes, K3_E_CHECKPOINT, "0 bytes");
    /* A shorter vocabulary moves the special ids, so the names no longer fit. */
    expect_refused(model, model_bytes - 20, config, config_bytes, K3_E_CONFIG, "163584");
    /* The K2.5 table has other names on the same ids. */
    k3i_err err;
    char *k25;
    size_t k25_bytes;
    assert_int_equal(k3i_read_file(K3_TEST_DATA "/tokenizer/tokenizer_config.kimi-k2.5.json",
                                   1 << 20, &k25, &k25_bytes, &err),
                     K3_OK);
    expect_refused(model, model_bytes, k25, k25_bytes, K3_E_CONFIG, "<|im_end|>");
    k3i_free(k25);
    k3i_tok *t = NULL;
    assert_int_equal(k3i_tok_open("/nonexistent", &t, &err), K3_E_IO);
    assert_non_null(strstr(err.text, "no such folder"));
}

/* Nothing depends on the size of the genuine vocabulary. */
static void other_sizes(void **state)
{
    (void)state;
    char m[8192], c[4096];
    size_t c_bytes, m_bytes = small_vocabulary(m, c, &c_bytes);
    k3i_tok *t = NULL;
    k3i_err err;
    if (k3i_tok_parse(m, m_bytes, c, c_bytes, &t, &err) != K3_OK)
        fail_msg("%s", err.text);
    assert_int_equal(k3i_tok_size(t), 258 + 256);
    assert_int_equal(k3i_tok_special_ids(t)->open, 261);
    k3i_ids ids = K3I_IDS(100);
    static const char text[] = "abcab<|open|>b<|reserved_token_260|><|reserved_token_300|>";
    assert_int_equal(k3i_tok_encode(t, text, strlen(text), K3I_TOK_SPECIAL, &ids, &err), K3_OK);
    /* abc, ab, the marker, b, then a name that is no token (260 is <|end_of_msg|>), then one that
     * is. */
    static const int32_t want[] = {257, 256, 261, 255 - 'b'};
    assert_memory_equal(ids.id, want, sizeof want);
    assert_int_equal(ids.id[4], 255 - '<');
    assert_int_equal(ids.id[ids.n - 1], 300);
    k3i_ids_done(&ids);
    k3i_tok_free(t);
}

/* Opening and encoding with the Nth allocation failing, for every N: an error, never a crash. */
static void failing_memory(void **state)
{
    (void)state;
    char m[8192], c[4096], text[400];
    size_t c_bytes, m_bytes = small_vocabulary(m, c, &c_bytes);
    memset(text, 'x', sizeof text);
    text[399] = '\xC3';
    for (uint64_t n = 1;; n++) {
        k3i_tok *t = NULL;
        k3i_ids ids = K3I_IDS(1000);
        k3i_err err;
        k3i_alloc_fail_at(n);
        k3_status st = k3i_tok_parse(m, m_bytes, c, c_bytes, &t, &err);
        if (st == K3_OK)
            st = k3i_tok_encode(t, text, sizeof text, K3I_TOK_PLAIN, &ids, &err);
        k3i_alloc_fail_at(0);
        size_t n_ids = ids.n;
        k3i_ids_done(&ids);
        k3i_tok_free(t);
        if (st == K3_OK) {
            assert_true(n > 6);
            assert_int_equal(n_ids, 399 + 3);
            return;
        }
        assert_int_equal(st, K3_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(bpe_matches_definition),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(ill_formed),
        cmocka_unit_test(limits),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(other_sizes),
        cmocka_unit_test(failing_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
