/* golden.h: reads tests/data/tokenizer/golden.jsonl line by line for the tokenizer and chat tests.
 */
#ifndef K3_TESTS_GOLDEN_H
#define K3_TESTS_GOLDEN_H

#include "test.h"

#include <yyjson.h>

typedef void (*golden_fn)(void *ctx, const char *kind, const char *id, yyjson_val *root);

/* Calls `fn` for every object of the file; returns their number. */
static inline size_t golden_each(golden_fn fn, void *ctx)
{
    FILE *f = fopen(K3_TEST_DATA "/tokenizer/golden.jsonl", "rb");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0, n = 0;
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0; n++) {
        yyjson_doc *doc = yyjson_read(line, (size_t)len, 0);
        assert_non_null(doc);
        yyjson_val *root = yyjson_doc_get_root(doc);
        fn(ctx, yyjson_get_str(yyjson_obj_get(root, "kind")),
           yyjson_get_str(yyjson_obj_get(root, "id")), root);
        yyjson_doc_free(doc);
    }
    free(line);
    fclose(f);
    return n;
}

/* Fails with the vector's name and the first differing place. */
static inline void golden_expect_ids(const char *id, const int32_t *got, size_t n_got,
                                     yyjson_val *want)
{
    size_t n = yyjson_arr_size(want);
    for (size_t i = 0; i < n && i < n_got; i++) {
        int64_t w = yyjson_get_sint(yyjson_arr_get(want, i));
        if (got[i] != w)
            fail_msg("%s: id %zu is %d, expected %ld", id, i, got[i], (long)w);
    }
    if (n != n_got)
        fail_msg("%s: %zu ids, expected %zu", id, n_got, n);
}

#endif
