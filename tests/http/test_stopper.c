/* Stop strings: the same cut for every way of cutting the text into pieces. */
#include "stopper.h"
#include "test.h"

static void run(const char *const *strings, int32_t n, bool include, const char *text,
                uint64_t seed, char *ret, int32_t *ret_hit)
{
    k3i_stopper s;
    k3i_buf out = K3I_BUF(4096);
    size_t len = strlen(text), at = 0;
    k3i_stopper_init(&s, strings, n, include);
    while (at < len) {
        size_t piece = 1 + (size_t)(test_rnd(&seed) % 4);
        piece = piece < len - at ? piece : len - at;
        assert_int_equal(k3i_stopper_push(&s, text + at, piece, &out, NULL), K3_OK);
        at += piece;
    }
    assert_int_equal(k3i_stopper_flush(&s, &out, NULL), K3_OK);
    memcpy(ret, out.data == NULL ? "" : out.data, out.n);
    ret[out.n] = 0;
    *ret_hit = s.hit;
    k3i_buf_done(&out);
    k3i_stopper_done(&s);
}

static void cuts_do_not_depend_on_pieces(void **state)
{
    (void)state;
    const char *const two[] = {"END", "\n\n"}, *const nested[] = {"abcd", "bc"},
                      *const self[] = {"aab"};
    const struct {
        const char *const *strings;
        int32_t n;
        bool include;
        const char *text, *want;
        int32_t hit;
    } cases[] = {
        {two, 2, false, "one two END three", "one two ", 0},
        {two, 2, true, "one two END three", "one two END", 0},
        {two, 2, false, "one\n\ntwo END", "one", 1},
        {two, 2, false, "EN EN ENN E", "EN EN ENN E", -1},
        {two, 2, false, "ends with EN", "ends with EN", -1},
        {nested, 2, false, "xabcd", "xa", 1}, /* the match that ends first wins */
        {self, 1, false, "aaaab.", "aa", 0},
        {two, 0, false, "END", "END", -1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (uint64_t seed = 1; seed < 200; seed++) {
            char got[64];
            int32_t hit;
            run(cases[c].strings, cases[c].n, cases[c].include, cases[c].text, seed, got, &hit);
            assert_string_equal(got, cases[c].want);
            assert_int_equal(hit, cases[c].hit);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts_do_not_depend_on_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
