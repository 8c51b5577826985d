/* The tokenizer against vectors of other implementations (tests/data/tokenizer/README.md says
 * whose). */
#include "golden.h"
#include "published_tok.h"

static uint64_t fnv1a_u32(uint64_t h, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        h = (h ^ (v >> (8 * i) & 0xFF)) * 0x100000001B3u;
    return h;
}

static void encode(const char *text, size_t n, bool special, k3i_ids *ids)
{
    k3i_err err;
    ids->n = 0;
    if (k3i_tok_encode(tok, text, n, special ? K3I_TOK_SPECIAL : K3I_TOK_PLAIN, ids, &err) != K3_OK)
        fail_msg("%s", err.text);
}

static void expect_decodes(const char *id, const k3i_ids *ids, const char *text, size_t n)
{
    k3i_buf back = K3I_BUF(SIZE_MAX);
    assert_int_equal(k3i_tok_decode(tok, ids->id, ids->n, false, &back, NULL), K3_OK);
    if (back.n != n || (n > 0 && memcmp(back.data, text, n) != 0))
        fail_msg("%s: decoding does not give the text back", id);
    k3i_buf_done(&back);
}

typedef struct {
    k3i_ids ids;
    int n_encode, n_digest, n_combinatorial;
} counts;

static void check_combinatorial(counts *c, const char *id, yyjson_val *root)
{
    yyjson_val *fragments = yyjson_obj_get(root, "fragments");
    size_t n = yyjson_arr_size(fragments), total = 0;
    bool special = yyjson_get_bool(yyjson_obj_get(root, "allow_special"));
    uint64_t h = 0xCBF29CE484222325u;
    char text[256] = {0};
    for (size_t i = 0; i < n * n * n; i++) {
        const size_t part[3] = {i / (n * n), i / n % n, i % n};
        size_t len = 0;
        for (int k = 0; k < 3; k++) {
            yyjson_val *f = yyjson_arr_get(fragments, part[k]);
            memcpy(text + len, yyjson_get_str(f), yyjson_get_len(f));
            len += yyjson_get_len(f);
        }
        encode(text, len, special, &c->ids);
        expect_decodes(id, &c->ids, text, len);
        h = fnv1a_u32(h, (uint32_t)c->ids.n);
        for (size_t k = 0; k < c->ids.n; k++)
            h = fnv1a_u32(h, (uint32_t)c->ids.id[k]);
        total += c->ids.n;
    }
    assert_int_equal(total, yyjson_get_uint(yyjson_obj_get(root, "n_ids")));
    assert_int_equal(h, strtoull(yyjson_get_str(yyjson_obj_get(root, "fnv1a64")), NULL, 16));
    c->n_combinatorial++;
}

static void check_digest(counts *c, const char *id, yyjson_val *root)
{
    yyjson_val *repeat = yyjson_obj_get(root, "repeat"), *tail = yyjson_obj_get(root, "tail");
    size_t n = yyjson_get_len(repeat), count = yyjson_get_uint(yyjson_obj_get(root, "count"));
    size_t len = n * count + yyjson_get_len(tail);
    char *text = calloc(len + 1, 1);
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * n, yyjson_get_str(repeat), n);
    memcpy(text + n * count, yyjson_get_str(tail), yyjson_get_len(tail));
    encode(text, len, yyjson_get_bool(yyjson_obj_get(root, "allow_special")), &c->ids);
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t k = 0; k < c->ids.n; k++)
        h = fnv1a_u32(h, (uint32_t)c->ids.id[k]);
    if (c->ids.n != yyjson_get_uint(yyjson_obj_get(root, "n_ids")))
        fail_msg("%s: %zu ids", id, c->ids.n);
    assert_int_equal(h, strtoull(yyjson_get_str(yyjson_obj_get(root, "fnv1a64_le_u32")), NULL, 16));
    expect_decodes(id, &c->ids, text, len);
    free(text);
    c->n_digest++;
}

static void check_vector(void *ctx, const char *kind, const char *id, yyjson_val *root)
{
    counts *c = ctx;
    if (strcmp(kind, "encode") == 0) {
        yyjson_val *text = yyjson_obj_get(root, "text");
        encode(yyjson_get_str(text), yyjson_get_len(text),
               yyjson_get_bool(yyjson_obj_get(root, "allow_special")), &c->ids);
        golden_expect_ids(id, c->ids.id, c->ids.n, yyjson_obj_get(root, "ids"));
        expect_decodes(id, &c->ids, yyjson_get_str(text), yyjson_get_len(text));
        c->n_encode++;
    } else if (strcmp(kind, "encode_digest") == 0) {
        check_digest(c, id, root);
    } else if (strcmp(kind, "combinatorial_digest") == 0) {
        check_combinatorial(c, id, root);
    }
}

static void golden_vectors(void **state)
{
    (void)state;
    counts c = {.ids = K3I_IDS(SIZE_MAX)};
    golden_each(check_vector, &c);
    k3i_ids_done(&c.ids);
    assert_int_equal(c.n_encode, 162);
    assert_int_equal(c.n_digest, 4);
    assert_int_equal(c.n_combinatorial, 2);
}

/* The ids of the released tokenizer, written out. */
static void special_ids(void **state)
{
    (void)state;
    const k3i_tok_ids *s = k3i_tok_special_ids(tok);
    assert_int_equal(k3i_tok_size(tok), 163840);
    assert_int_equal(s->end_of_msg, 163586);
    assert_int_equal(s->open, 163587);
    assert_int_equal(s->close, 163588);
    assert_int_equal(s->sep, 163589);
    assert_int_equal(s->media_pad, 163605);
    assert_int_equal(s->pad, 163839);
    int n_skipped = 0;
    for (int32_t id = 0; id < k3i_tok_size(tok); id++)
        n_skipped += k3i_tok_is_skipped(tok, id);
    assert_int_equal(n_skipped, 13);
    assert_false(k3i_tok_is_skipped(tok, s->open));
    size_t n;
    const uint8_t *name = k3i_tok_bytes(tok, 163592, &n);
    assert_int_equal(n, 25);
    assert_memory_equal(name, "<|reserved_token_163592|>", 25);
}

/* Digits of the class sizes that the reference engine has. */
static void class_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long count;
    } want[] = {{"HAN", 99030}, {"L", 141028}, {"N", 1911},
                {"WS", 25},     {"UP", 42584}, {"LO", 42953}};
    FILE *f = fopen(K3_TEST_DATA "/tokenizer/unicode16_classes.tsv", "rb");
    assert_non_null(f);
    long count[6] = {0};
    char line[256], name[16];
    unsigned first, last;
    while (fgets(line, sizeof line, f) != NULL) {
        if (line[0] == '#' || sscanf(line, "%15s %x %x", name, &first, &last) != 3)
            continue;
        for (int i = 0; i < 6; i++) {
            if (strcmp(name, want[i].name) == 0)
                count[i] += (long)(last - first) + 1;
        }
    }
    fclose(f);
    for (int i = 0; i < 6; i++)
        assert_int_equal(count[i], want[i].count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors),
        cmocka_unit_test(special_ids),
        cmocka_unit_test(class_sizes),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
