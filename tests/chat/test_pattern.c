/* Patterns: the automaton against the C library's regular expressions on random strings, characters
 * beyond ASCII, what is refused, and answers generated under a pattern. */
#include "test.h"

#include "pattern_dfa.h"
#include "tokenizer.h"

#include <regex.h>

static bool matches(const k3i_regex *re, const char *s)
{
    uint32_t q = 0;
    for (size_t n = strlen(s), at = 0; at < n && q != K3I_REGEX_DEAD;) {
        size_t len = k3i_utf8_length((const uint8_t *)s + at, n - at);
        uint32_t c = len == 1 ? (uint8_t)s[at] : (uint8_t)s[at] & (0xFFu >> (len + 1));
        for (size_t i = 1; i < len; i++)
            c = c << 6 | ((uint8_t)s[at + i] & 0x3Fu);
        q = re->next[q * re->n_class + k3i_regex_class(re, c)];
        at += len;
    }
    return q != K3I_REGEX_DEAD && re->accepts[q];
}

static k3i_regex compiled(const char *pattern)
{
    k3i_regex re;
    k3i_err err;
    if (k3i_regex_compile(pattern, strlen(pattern), &re, &err) != K3_OK)
        fail_msg("%s", err.text);
    return re;
}

/* Patterns that POSIX extended expressions read alike. */
static void matches_posix(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "^[a-z]+$",   "^a*$",
        "a",          "ab",
        "^(a|b)*c$",  "^(ab?c){2,3}$",
        "^a{2}$",     "^a{1,}b{0,2}$",
        "b+$",        "^[^ab]*$",
        "^(a|bc|)*$", "^((a|b)(b|c))+$",
        "^a.c$",      "^(a(b(c|a)?)*){1,2}$",
        "(a|b)c{2,}", "",
        "^$",         "^[abc]{3,5}$",
        "^a?b?c?$",
    };
    uint64_t seed = 99;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        k3i_regex re = compiled(patterns[i]);
        regex_t oracle;
        assert_int_equal(regcomp(&oracle, patterns[i], REG_EXTENDED | REG_NOSUB), 0);
        for (int round = 0; round < 3000; round++) {
            char s[12];
            size_t n = test_rnd(&seed) % 10;
            for (size_t k = 0; k < n; k++)
                s[k] = "abcabcabcx"[test_rnd(&seed) % 10];
            s[n] = '\0';
            bool want = regexec(&oracle, s, 0, NULL, 0) == 0;
            if (matches(&re, s) != want)
                fail_msg("pattern %s, string '%s': expected %d", patterns[i], s, want);
        }
        regfree(&oracle);
        k3i_regex_done(&re);
    }
}

static void characters(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *yes, *no;
    } cases[] = {
        {"^\\d{4}-\\d{2}$", "2026-11", "2026-1"},
        {"^\\w+$", "a_Z9", "a-b"},
        {"^\\s$", "\t", "x"},
        {"^\\S$", "\xC3\xA9", "\xC2\xA0"},
        {"^\\W\\D$", "-a", "a-"},
        {"^.$", "\xF0\x9F\x99\x82", "\n"},
        {"^[\xC3\xA0-\xC3\xBC]{2}$", "\xC3\xA9\xC3\xA0", "\xC3\xA9z"},
        {"^[^\xE6\xB1\x89]+$", "a\xE5\xAD\x97", "\xE6\xB1\x89"},
        {"^\\u00e9\\x41\\/\\.\\-$",
         "\xC3\xA9"
         "A/.-",
         "\xC3\xA9"
         "A/x-"},
        {"^[\\w.+-]+@[a-z]+\\.com$", "a.b+c@x.com", "a@x.org"},
        {"^[\\]\\\\^-]$", "]", "a"},
        {"^[a\\d]$", "7", "b"},
        {"^a+?b*?$", "aab", "b"},
        {"^(?:ab)+$", "abab", "aba"},
        {"\\$$", "a$", "a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        k3i_regex re = compiled(cases[i].pattern);
        if (!matches(&re, cases[i].yes) || matches(&re, cases[i].no))
            fail_msg("%s", cases[i].pattern);
        k3i_regex_done(&re);
    }
}

static void refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(",
                                           ")",
                                           ")(",
                                           "[a",
                                           "a{2",
                                           "a{3,2}",
                                           "*a",
                                           "a**",
                                           "(?=a)",
                                           "(?<n>a)",
                                           "\\1",
                                           "\\bword",
                                           "^a|b$",
                                           "a^b",
                                           "a$b",
                                           "\\p{L}",
                                           "[b-a]",
                                           "a{0}",
                                           "a{1001}",
                                           "\\u12",
                                           "x\\",
                                           "^ab|^ba",
                                           "((((a{100}){100}){100}){100})",
                                           "(a|b)*a(a|b){20}"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        k3i_regex re = {0};
        k3i_err err = {0};
        k3_status st = k3i_regex_compile(patterns[i], strlen(patterns[i]), &re, &err);
        if (st != K3_E_FORMAT || strstr(err.text, "not supported") == NULL)
            fail_msg("%s: status %d '%s'", patterns[i], st, err.text);
        assert_null(re.next);
    }
}

static void failing_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        k3i_regex re = {0};
        k3i_alloc_fail_at(n);
        k3_status st = k3i_regex_compile("^[^a]{2,3}b*$", 13, &re, NULL);
        k3i_alloc_fail_at(0);
        k3i_regex_done(&re);
        if (st == K3_OK) {
            assert_true(n > 5);
            return;
        }
        assert_int_equal(st, K3_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_posix),
        cmocka_unit_test(characters),
        cmocka_unit_test(refused),
        cmocka_unit_test(failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
