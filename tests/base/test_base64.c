/* Base64 against the vectors of RFC 4648 section 10, every byte value, and texts that are none. */
#include "test.h"

#include "base64.h"

typedef struct {
    const char *bytes, *text;
} vector;

/* The last three are not in section 10: the two digits that are no letters, and bytes above 127. */
static const vector vectors[] = {{"", ""},
                                 {"f", "Zg=="},
                                 {"fo", "Zm8="},
                                 {"foo", "Zm9v"},
                                 {"foob", "Zm9vYg=="},
                                 {"fooba", "Zm9vYmE="},
                                 {"foobar", "Zm9vYmFy"},
                                 {"\xfb\xff\xbf", "+/+/"},
                                 {"\xff", "/w=="},
                                 {"\x14\xfb\x9c\x03\xd9\x7e", "FPucA9l+"}};

static void matches_the_rfc(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        k3i_buf text = K3I_BUF(100);
        assert_int_equal(k3i_base64_add(&text, v->bytes, strlen(v->bytes), NULL), K3_OK);
        assert_int_equal(text.n, strlen(v->text));
        if (text.n > 0)
            assert_memory_equal(text.data, v->text, text.n);
        k3i_buf_done(&text);
        for (int form = K3I_BASE64_LENIENT; form <= K3I_BASE64_CANONICAL; form++) {
            uint8_t bytes[16];
            size_t n = 99;
            assert_int_equal(
                k3i_base64_decode(v->text, strlen(v->text), (k3i_base64_form)form, bytes, &n, NULL),
                K3_OK);
            assert_int_equal(n, strlen(v->bytes));
            assert_memory_equal(bytes, v->bytes, n);
            assert_true(n <= K3I_BASE64_ROOM(strlen(v->text)));
        }
    }
}

static void every_byte_returns(void **state)
{
    (void)state;
    uint8_t bytes[600], back[K3I_BASE64_ROOM(800)];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 167 + i / 256);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        k3i_buf text = K3I_BUF(1000);
        size_t got = 0;
        assert_int_equal(k3i_base64_add(&text, bytes, n, NULL), K3_OK);
        assert_int_equal(text.n, (n + 2) / 3 * 4);
        assert_int_equal(k3i_base64_decode(text.n > 0 ? text.data : "", text.n,
                                           K3I_BASE64_CANONICAL, back, &got, NULL),
                         K3_OK);
        assert_int_equal(got, n);
        assert_memory_equal(back, bytes, n);
        k3i_buf_done(&text);
    }
    k3i_buf small = K3I_BUF(4);
    assert_int_equal(k3i_base64_add(&small, bytes, 4, NULL), K3_E_LIMIT);
    k3i_buf_done(&small);
}

static void only_the_alphabet(void **state)
{
    (void)state;
    /* lenient: what the bytes are where only canonical texts are refused; NULL: refused always */
    static const struct {
        const char *text, *lenient;
    } cases[] = {{"Zg", "f"},      {"Zm8", "fo"},   {"Zh==", "f"},   {"Zm9=", "fo"},
                 {"Z", NULL},      {"Zg=", NULL},   {"Zm9v=", NULL}, {"Zm 9v", NULL},
                 {"Zm9v\n", NULL}, {"Zm9-", NULL},  {"Zm9_", NULL},  {"Zg==Zg==", NULL},
                 {"====", NULL},   {"=Zm9v", NULL}, {"Z===", NULL},  {"Zm9v====", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[16];
        size_t n = 0, len = strlen(cases[i].text);
        k3_status st = k3i_base64_decode(cases[i].text, len, K3I_BASE64_LENIENT, bytes, &n, NULL);
        if (st != (cases[i].lenient != NULL ? K3_OK : K3_E_FORMAT))
            fail_msg("'%s': status %d", cases[i].text, st);
        if (st == K3_OK) {
            assert_int_equal(n, strlen(cases[i].lenient));
            assert_memory_equal(bytes, cases[i].lenient, n);
        }
        assert_int_equal(
            k3i_base64_decode(cases[i].text, len, K3I_BASE64_CANONICAL, bytes, &n, NULL),
            K3_E_FORMAT);
    }
    for (int c = 0; c < 256; c++) {
        char text[4] = {'A', (char)c, 'A', 'A'};
        uint8_t bytes[6];
        size_t n;
        bool is_digit = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                        (c >= '0' && c <= '9') || c == '+' || c == '/';
        assert_int_equal(k3i_base64_decode(text, 4, K3I_BASE64_LENIENT, bytes, &n, NULL),
                         is_digit ? K3_OK : K3_E_FORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_the_rfc),
                                       cmocka_unit_test(every_byte_returns),
                                       cmocka_unit_test(only_the_alphabet)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
