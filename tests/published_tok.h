/* published_tok.h: the published tokenizer (tests/data/tokenizer), open while a group of tests
 * runs: cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer). */
#ifndef K3_TESTS_PUBLISHED_TOK_H
#define K3_TESTS_PUBLISHED_TOK_H

#include "test.h"

#include "tokenizer.h"

static k3i_tok *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    k3i_err err;
    if (k3i_tok_open(K3_TEST_DATA "/tokenizer", &tok, &err) != K3_OK)
        fail_msg("%s", err.text);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    k3i_tok_free(tok);
    return 0;
}

#endif
