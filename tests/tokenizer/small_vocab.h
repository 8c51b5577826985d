/* small_vocab.h: a vocabulary of 258 ranks made on the spot: the bytes from 255 down to 0, "ab",
 * "abc". */
#ifndef K3_TESTS_SMALL_VOCAB_H
#define K3_TESTS_SMALL_VOCAB_H

#include <stdio.h>

#define SMALL_RANKS 258

/* Writes tiktoken.model to m[8192] and tokenizer_config.json to c[4096]; returns the length of the
 * first. */
static inline size_t small_vocabulary(char *m, char *c, size_t *ret_c)
{
    static const char base64_digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    for (unsigned b = 0; b < 256; b++) {
        unsigned byte = 255 - b; /* an order of its own */
        n += (size_t)sprintf(m + n, "%c%c== %u\n", base64_digits[byte >> 2],
                             base64_digits[(byte & 3) << 4], b);
    }
    n += (size_t)sprintf(m + n, "YWI= 256\nYWJj 257\n"); /* ab, abc */
    static const struct {
        int at;
        const char *name;
    } names[] = {
#define SPECIAL(at, name) {at, name},
#include "special.def"
#undef SPECIAL
        {100, "<|reserved_token_358|>"}};
    size_t k = (size_t)sprintf(c, "{\"added_tokens_decoder\":{");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        k += (size_t)sprintf(c + k, "%s\"%d\":{\"content\":\"%s\",\"special\":true}",
                             i == 0 ? "" : ",", 258 + names[i].at, names[i].name);
    *ret_c = k + (size_t)sprintf(c + k, "}}");
    return n;
}

#endif
