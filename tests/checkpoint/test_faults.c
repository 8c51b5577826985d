/* Damaged checkpoints. Each test first opens the intact copy (the control), then damages it in
 * every way of one kind; all must be refused with file or tensor named, none may crash. */
#include "files.h"

#include <unistd.h>
#include <yyjson.h>

#define TINY K3_TEST_MODELS "/tiny" /* two shards, index, vision */
#define ONE K3_TEST_MODELS "/one"   /* one file, no index */
#define INDEX "model.safetensors.index.json"
#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"

static void truncation_at_every_boundary(void **state)
{
    (void)state;
    char dir[64];
    folder_copy(TINY, dir);
    expect_opens(dir);
    const char *const shards[] = {SHARD1, SHARD2};
    for (size_t s = 0; s < 2; s++) {
        char path[512];
        snprintf(path, sizeof path, "%s", path_of(dir, shards[s]));
        st_file *f = st_load(path);
        blob b = blob_read(path);
        uint64_t len;
        memcpy(&len, b.data, 8);
        size_t data = 8 + (size_t)len, at = data;
        size_t cuts[1100] = {0, 1, 7, 8, 9, data / 2, data - 1, data}, n = 8;
        for (size_t i = 0; i < f->n; i++) {
            at += f->tensors[i].n;
            cuts[n++] = at - 1;
            if (at < b.n)
                cuts[n++] = at;
        }
        assert_int_equal(at, b.n);
        for (size_t i = n; i-- > 0;) {
            blob_write(path, b.data, cuts[i]);
            expect_refused(dir, 0, shards[s], NULL);
        }
        blob_write(path, b.data, b.n);
        /* One byte too many belongs to no tensor either. */
        b.data[b.n] = 0;
        blob_write(path, b.data, b.n + 1);
        expect_refused(dir, K3_E_CHECKPOINT, shards[s], "no tensor");
        blob_write(path, b.data, b.n);
        free(b.data);
        st_free(f);
    }
    expect_opens(dir);
    folder_remove(dir);
}

static void bit_flips_in_the_header(void **state)
{
    (void)state;
    char dir[64], path[512];
    folder_copy(ONE, dir);
    expect_opens(dir);
    snprintf(path, sizeof path, "%s", path_of(dir, "model.safetensors"));
    blob b = blob_read(path);
    uint64_t len, seed = 4;
    memcpy(&len, b.data, 8);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    for (size_t i = 0; i < 8 + len; i++) {
        /* All bits of the length, one of each byte of the JSON text. */
        for (unsigned bit = 0; bit < 8; bit++) {
            if (i >= 8 && bit != (test_rnd(&seed) & 7) && i % 16 != 0)
                continue;
            char flipped = (char)(b.data[i] ^ (1 << bit));
            assert_int_equal(pwrite(fileno(f), &flipped, 1, (off_t)i), 1);
            k3i_target t;
            k3i_err err = {0};
            if (k3i_target_open(dir, &t, &err) == K3_OK)
                fail_msg("byte %zu bit %u flipped: accepted", i, bit);
            assert_int_equal(pwrite(fileno(f), b.data + i, 1, (off_t)i), 1);
        }
    }
    fclose(f);
    free(b.data);
    expect_opens(dir);
    folder_remove(dir);
}

static void every_tensor_missing_misshapen_mistyped(void **state)
{
    (void)state;
    char dir[64], path[512];
    folder_copy(ONE, dir);
    snprintf(path, sizeof path, "%s", path_of(dir, "model.safetensors"));
    st_file *f = st_load(path);
    st_save(f, path, 0);
    expect_opens(dir);
    for (size_t i = 0; i < f->n; i++) {
        st_tensor *t = &f->tensors[i], keep = *t;
        /* Renamed: the old name is missing, or the new one unknown. */
        t->name[strlen(t->name) - 1] ^= 1;
        st_save(f, path, 0);
        expect_refused(dir, K3_E_CHECKPOINT, keep.name, "missing");
        *t = keep;
        /* One more in each dimension, the data grown to fit. */
        for (size_t k = 0; k < t->n_dims; k++) {
            size_t step = keep.n / keep.shape[k];
            t->shape[k]++;
            t->n = keep.n + step;
            t->data = calloc(1, t->n);
            assert_non_null(t->data);
            memcpy(t->data, keep.data, keep.n);
            st_save(f, path, 0);
            /* A longer A_log with zeros is legal: its tail is padding. */
            if (strstr(t->name, "A_log") != NULL)
                expect_opens(dir);
            else
                expect_refused(dir, K3_E_CHECKPOINT, keep.name, "the config asks for");
            free(t->data);
            *t = keep;
        }
        /* The same bytes as U8 (or a U8 tensor as BF16). */
        bool u8 = strcmp(t->dtype, "U8") == 0;
        snprintf(t->dtype, sizeof t->dtype, "%s", u8 ? "BF16" : "U8");
        if (u8 && t->shape[t->n_dims - 1] % 2 == 0)
            t->shape[t->n_dims - 1] /= 2;
        else if (u8)
            t->shape[0] /= 2;
        else
            t->shape[t->n_dims - 1] *= keep.dtype[0] == 'B' ? 2 : 4;
        st_save(f, path, 0);
        expect_refused(dir, K3_E_CHECKPOINT, keep.name, "the config asks for");
        *t = keep;
        snprintf(t->dtype, sizeof t->dtype, "F8_E4M3");
        st_save(f, path, 0);
        expect_refused(dir, K3_E_CHECKPOINT, keep.name, "F8_E4M3");
        *t = keep;
    }
    st_free(f);
    folder_remove(dir);
}

static void unknown_and_duplicate_tensors(void **state)
{
    (void)state;
    char dir[64];
    folder_copy(ONE, dir);
    st_file *f = st_load(path_of(dir, "model.safetensors"));
    st_file *extra = calloc(1, sizeof *extra);
    assert_non_null(extra);
    extra->n = 1;
    extra->tensors[0] = f->tensors[5];
    st_save(extra, path_of(dir, "second.safetensors"), 0);
    expect_refused(dir, K3_E_CHECKPOINT, f->tensors[5].name, "twice");
    snprintf(extra->tensors[0].name, sizeof extra->tensors[0].name, "model.mtp.weight");
    st_save(extra, path_of(dir, "second.safetensors"), 0);
    expect_refused(dir, K3_E_CHECKPOINT, "model.mtp.weight", "unknown");
    unlink(path_of(dir, "second.safetensors"));
    /* Twice within one file. */
    st_tensor keep = f->tensors[6];
    snprintf(f->tensors[6].name, sizeof f->tensors[6].name, "%s", f->tensors[5].name);
    st_save(f, path_of(dir, "model.safetensors"), 0);
    expect_refused(dir, K3_E_CHECKPOINT, f->tensors[5].name, NULL);
    f->tensors[6] = keep;
    free(extra);
    st_free(f);
    folder_remove(dir);
}

/* Header text around two tensors of 8 and 4 bytes, 12 bytes of data; the control fits exactly. */
static void ranges(void **state)
{
    (void)state;
    const struct {
        const char *a, *b, *word;
        size_t extra;
    } cases[] = {
        {"[0,8]", "[8,12]", NULL, 0},
        {"[4,12]", "[0,4]", NULL, 0},
        {"[0,8]", "[7,11]", "overlaps", 0},
        {"[0,8]", "[8,12]", "no tensor", 1},
        {"[0,8]", "[9,13]", "belong to no tensor", 1},
        {"[1,9]", "[9,13]", "belong to no tensor", 1},
        {"[0,8]", "[9,13]", "lies at bytes", 0},
        {"[0,8]", "[8,13]", "but has 5", 1},
        {"[8,0]", "[8,12]", "lies at bytes", 0},
        {"[0,18446744073709551615]", "[8,12]", "lies at bytes", 0},
        {"[0,18446744073709551616]", "[8,12]", "malformed data_offsets", 0},
        {"[-1,7]", "[8,12]", "malformed data_offsets", 0},
        {"[0,8,8]", "[8,12]", "malformed data_offsets", 0},
        {"[0.0,8]", "[8,12]", "malformed data_offsets", 0},
        {"8", "[8,12]", "malformed data_offsets", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char file[512] = {0};
        int n = snprintf(file + 8, sizeof file - 8,
                         "{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":%s},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":%s}}",
                         cases[i].a, cases[i].b);
        file[0] = (char)n;
        file[1] = (char)(n >> 8);
        k3i_ckpt *ck = NULL;
        k3i_err err = {0};
        k3_status st = k3i_ckpt_from_memory("m.safetensors", (uint8_t *)file,
                                            8 + (size_t)n + 12 + cases[i].extra, &ck, &err);
        if (cases[i].word == NULL) {
            assert_int_equal(st, K3_OK);
            assert_int_equal(k3i_ckpt_count(ck), 2);
            assert_ptr_equal(k3i_ckpt_find(ck, "a")->data,
                             file + 8 + n + (cases[i].a[1] == '4' ? 4 : 0));
            assert_null(k3i_ckpt_find(ck, "c"));
            k3i_ckpt_free(ck);
        } else if (st == K3_OK || strstr(err.text, cases[i].word) == NULL) {
            fail_msg("case %zu: '%s' instead of '%s'", i, err.text, cases[i].word);
        }
    }
}

/* A header text that must be refused as it stands. */
static void headers(void **state)
{
    (void)state;
    char deep[600];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    char long_name[700];
    snprintf(long_name, sizeof long_name,
             "{\"%0600d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    const struct {
        const char *text, *word;
    } cases[] = {
        {"", "JSON"},
        {"[]", "not a JSON object"},
        {"{", "JSON"},
        {"{}x", "JSON"},
        {"{} // note", "JSON"},
        {"{\"a\":[]}", "not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", "not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", "shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}",
         "not described"},
        {"{\"a\":{\"dtype\":\"u8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "dtype 'u8'"},
        {"{\"a\":{\"dtype\":7,\"shape\":[0],\"data_offsets\":[0,0]}}", "dtype ''"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,0]}}", "shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":\"0\",\"data_offsets\":[0,0]}}", "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         "shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,1,1,1,1,1,1,1,1],\"data_offsets\":[0,0]}}",
         "shape"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "malformed name"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         "malformed name"},
        {long_name, "malformed name"},
        {deep, "deeper"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char file[1024] = {0};
        size_t n = strlen(cases[i].text);
        memcpy(file + 8, cases[i].text, n);
        file[0] = (char)n;
        file[1] = (char)(n >> 8);
        k3i_ckpt *ck;
        k3i_err err = {0};
        k3_status st = k3i_ckpt_from_memory("m.safetensors", (uint8_t *)file, 8 + n, &ck, &err);
        if (st == K3_OK || strstr(err.text, cases[i].word) == NULL ||
            strstr(err.text, "m.safetensors") == NULL)
            fail_msg("case %zu: '%s' instead of '%s'", i, err.text, cases[i].word);
    }
    uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    k3i_ckpt *ck;
    assert_int_equal(k3i_ckpt_from_memory("m", huge, 8, &ck, NULL), K3_E_CHECKPOINT);
}

/* A bomb of values: 40 MB of "[],[],..." would ask for gigabytes. */
static void json_bomb(void **state)
{
    (void)state;
    size_t n = (size_t)40 << 20;
    uint8_t *file = malloc(8 + n);
    assert_non_null(file);
    memset(file, 0, 8);
    for (size_t i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> (8 * i));
    for (size_t i = 0; i < n; i++)
        file[8 + i] = i % 2 == 0 ? (uint8_t)0x2c : (uint8_t)0x30; /* ",0,0,0" */
    file[8] = '[';
    k3i_ckpt *ck;
    k3i_err err = {0};
    assert_int_equal(k3i_ckpt_from_memory("m", file, 8 + n, &ck, &err), K3_E_LIMIT);
    assert_non_null(strstr(err.text, "values"));
    free(file);
}

/* Rewrites the index with entry `i` dropped, redirected or doubled. */
static void write_index(const char *path, yyjson_val *map, size_t drop, const char *redirect,
                        const char *extra)
{
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *out = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_val(doc, root, "weight_map", out);
    size_t i, n;
    yyjson_val *key, *val;
    yyjson_obj_foreach(map, i, n, key, val)
    {
        const char *file = yyjson_get_str(val);
        if (i == drop && redirect == NULL && extra == NULL)
            continue;
        yyjson_mut_obj_add_strcpy(doc, out, yyjson_get_str(key),
                                  i == drop && redirect != NULL ? redirect : file);
        if (i == drop && extra != NULL)
            yyjson_mut_obj_add_strcpy(doc, out, extra, file);
    }
    size_t len;
    char *text = yyjson_mut_write(doc, 0, &len);
    blob_write(path, text, len);
    free(text);
    yyjson_mut_doc_free(doc);
}

static void index_disagrees(void **state)
{
    (void)state;
    char dir[64], path[512];
    folder_copy(TINY, dir);
    expect_opens(dir);
    snprintf(path, sizeof path, "%s", path_of(dir, INDEX));
    blob b = blob_read(path);
    yyjson_doc *doc = yyjson_read(b.data, b.n, 0);
    yyjson_val *map = yyjson_obj_get(yyjson_doc_get_root(doc), "weight_map");
    size_t i, n;
    yyjson_val *key, *val;
    write_index(path, map, SIZE_MAX, NULL, NULL);
    expect_opens(dir);
    yyjson_obj_foreach(map, i, n, key, val)
    {
        const char *name = yyjson_get_str(key), *file = yyjson_get_str(val);
        write_index(path, map, i, NULL, NULL);
        expect_refused(dir, K3_E_CHECKPOINT, name, "does not list");
        write_index(path, map, i, strcmp(file, SHARD1) == 0 ? SHARD2 : SHARD1, NULL);
        expect_refused(dir, K3_E_CHECKPOINT, name, "is not in");
        write_index(path, map, i, NULL, name);
        expect_refused(dir, K3_E_CHECKPOINT, name, "twice");
    }
    write_index(path, map, 0, NULL, "no.such.tensor");
    expect_refused(dir, K3_E_CHECKPOINT, "no.such.tensor", INDEX);
    const char *const bad[] = {("../" SHARD1), "/etc/x.safetensors", "x.bin", ".safetensors", ""};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        write_index(path, map, 0, bad[k], NULL);
        expect_refused(dir, K3_E_CHECKPOINT, INDEX, "not a name");
    }
    write_index(path, map, 0, "gone.safetensors", NULL);
    expect_refused(dir, K3_E_IO, "gone.safetensors", NULL);
    blob_write(path, "{}", 2);
    expect_refused(dir, K3_E_CHECKPOINT, INDEX, "weight_map");
    blob_write(path, "{\"weight_map\":", 14);
    expect_refused(dir, K3_E_CHECKPOINT, INDEX, "JSON");
    char deep[100];
    memset(deep, '[', sizeof deep);
    blob_write(path, deep, sizeof deep);
    expect_refused(dir, K3_E_LIMIT, INDEX, "deeper");
    yyjson_doc_free(doc);
    free(b.data);
    folder_remove(dir);
}

/* Two shards of the very same size, each header naming its own tensor. */
static void swapped_shards(void **state)
{
    (void)state;
    char dir[64], config[512];
    folder_new(dir);
    st_file *f = calloc(1, sizeof *f);
    assert_non_null(f);
    *f = (st_file){.n = 1};
    f->tensors[0] = (st_tensor){
        .name = "a", .dtype = "U8", .shape = {4}, .n_dims = 1, .data = calloc(1, 4), .n = 4};
    snprintf(config, sizeof config, "{\"weight_map\":{\"a\":\"%s\",\"b\":\"%s\"}}", SHARD1, SHARD2);
    blob_write(path_of(dir, INDEX), config, strlen(config));
    k3i_ckpt *ck;
    k3i_err err = {0};
    for (int swapped = 0; swapped < 2; swapped++) {
        f->tensors[0].name[0] = swapped ? 'b' : 'a';
        st_save(f, path_of(dir, SHARD1), 0);
        f->tensors[0].name[0] = swapped ? 'a' : 'b';
        st_save(f, path_of(dir, SHARD2), 0);
        k3_status st = k3i_ckpt_open(dir, &ck, &err);
        if (!swapped) {
            assert_int_equal(st, K3_OK);
            k3i_ckpt_free(ck);
        } else {
            assert_int_equal(st, K3_E_CHECKPOINT);
            assert_non_null(strstr(err.text, "is not in " SHARD1));
        }
    }
    st_free(f);
    folder_remove(dir);
}

static void values_that_must_not_be(void **state)
{
    (void)state;
    char dir[64], path[512];
    folder_copy(ONE, dir);
    snprintf(path, sizeof path, "%s", path_of(dir, "model.safetensors"));
    st_file *f = st_load(path);
    for (size_t i = 0; i < f->n; i++) {
        st_tensor *t = &f->tensors[i];
        if (strstr(t->name, "weight_scale") != NULL) {
            const size_t places[] = {0, t->n / 2, t->n - 1};
            for (size_t k = 0; k < 3; k++) {
                char keep = t->data[places[k]];
                t->data[places[k]] = (char)255;
                st_save(f, path, 0);
                expect_refused(dir, K3_E_CHECKPOINT, t->name, "255");
                t->data[places[k]] = (char)254;
                st_save(f, path, 0);
                expect_opens(dir);
                t->data[places[k]] = keep;
            }
        } else if (strstr(t->name, "A_log") != NULL) {
            float one = 1.0f;
            memcpy(t->data + t->n - 4, &one, 4);
            st_save(f, path, 0);
            expect_refused(dir, K3_E_CHECKPOINT, t->name, "beyond its 2 heads");
            memset(t->data + t->n - 4, 0, 4);
        }
    }
    st_free(f);
    folder_remove(dir);
}

/* Data that starts at an odd byte of the file: a small file's data begin a cache line all the same,
 * values are the same. */
static void odd_offsets(void **state)
{
    (void)state;
    char dir[64];
    folder_copy(ONE, dir);
    k3i_target a, b;
    assert_int_equal(k3i_target_open(ONE, &a, NULL), K3_OK);
    st_file *f = st_load(path_of(dir, "model.safetensors"));
    st_save(f, path_of(dir, "model.safetensors"), 3);
    assert_int_equal(k3i_target_open(dir, &b, NULL), K3_OK);
    const k3i_layer_weights *x = &a.text.layers[0], *y = &b.text.layers[0];
    assert_true(x->is_kda && y->is_kda && !x->is_moe);
    assert_int_equal((uintptr_t)y->kda.dt_bias % sizeof(float), 0);
    assert_int_equal((uintptr_t)y->input_layernorm % sizeof(k3i_bf16), 0);
    assert_memory_equal(x->kda.dt_bias, y->kda.dt_bias, 16 * sizeof(float));
    assert_memory_equal(x->input_layernorm, y->input_layernorm, 32 * sizeof(k3i_bf16));
    assert_int_equal((uintptr_t)y->kda.q_proj % 64, (uintptr_t)x->kda.q_proj % 64);
    assert_memory_equal(x->kda.q_proj, y->kda.q_proj, 16 * 32 * sizeof(k3i_bf16));
    assert_memory_equal(x->kda.q_proj,
                        st_find(f, "language_model.model.layers.0.self_attn.q_proj.weight")->data,
                        16 * 32 * 2);
    assert_memory_equal(
        a.text.layers[1].moe.experts[2].w2.packed,
        st_find(f, "language_model.model.layers.1.block_sparse_moe.experts.2.w2.weight_packed")
            ->data,
        512);
    k3i_target_done(&a);
    k3i_target_done(&b);
    st_free(f);
    folder_remove(dir);
}

/* Every allocation fails once: each time K3_E_NOMEM, nothing leaked (the sanitizer build sees
 * leaks). */
static void every_allocation_fails(void **state)
{
    (void)state;
    k3i_target t;
    k3i_draft_files d;
    k3i_err err;
    k3_status st = K3_E_NOMEM;
    uint64_t n = 0;
    while (st != K3_OK) {
        k3i_alloc_fail_at(++n);
        st = k3i_target_open(TINY, &t, &err);
        k3i_alloc_fail_at(0);
        if (st != K3_OK && st != K3_E_NOMEM)
            fail_msg("allocation %lu failed: status %d, %s", (unsigned long)n, st, err.text);
    }
    assert_true(n > 10);
    st = K3_E_NOMEM;
    for (n = 0; st != K3_OK;) {
        k3i_alloc_fail_at(++n);
        st = k3i_draft_open(K3_TEST_MODELS "/tiny-mla", &t.config, &d, &err);
        k3i_alloc_fail_at(0);
        assert_true(st == K3_OK || st == K3_E_NOMEM);
    }
    k3i_draft_done(&d);
    k3i_target_done(&t);
}

static void missing_folder_and_files(void **state)
{
    (void)state;
    char dir[64];
    expect_refused("/nonexistent", K3_E_IO, "/nonexistent: no such folder", NULL);
    folder_copy(ONE, dir);
    unlink(path_of(dir, "config.json"));
    expect_refused(dir, K3_E_IO, "/config.json: no such file", NULL);
    folder_remove(dir);
    folder_copy(ONE, dir);
    unlink(path_of(dir, "model.safetensors"));
    expect_refused(dir, K3_E_CHECKPOINT, "holds no", NULL);
    folder_remove(dir);
    folder_copy(TINY, dir);
    unlink(path_of(dir, SHARD2));
    expect_refused(dir, K3_E_IO, SHARD2, NULL);
    /* Without the index, what is left misses tensors. */
    unlink(path_of(dir, INDEX));
    expect_refused(dir, K3_E_CHECKPOINT, "missing", NULL);
    folder_remove(dir);
}

static void drafts(void **state)
{
    (void)state;
    k3i_target t;
    k3i_draft_files d;
    k3i_err err = {0};
    assert_int_equal(k3i_target_open(ONE, &t, &err), K3_OK);
    assert_int_equal(k3i_draft_open(K3_TEST_MODELS "/tiny-gqa", &t.config, &d, &err), K3_OK);
    assert_true(!d.config.is_mla && d.config.has_tap_norms && d.config.causal);
    assert_int_equal(d.config.stream, K3I_STREAM_PREFIX);
    assert_non_null(d.weights.tap_norm[0]);
    assert_non_null(d.weights.layers[1].gqa.q_norm);
    k3i_draft_done(&d);
    assert_int_equal(k3i_draft_open(K3_TEST_MODELS "/tiny-mla", &t.config, &d, &err), K3_OK);
    assert_true(d.config.is_mla && !d.config.causal && d.config.has_confidence);
    assert_null(d.weights.layers[0].mla.g_proj);
    k3i_draft_done(&d);

    char dir[64];
    folder_copy(K3_TEST_MODELS "/tiny-mla", dir);
    st_file *f = st_load(path_of(dir, "model.safetensors"));
    for (size_t i = 0; i < f->n; i++) {
        st_tensor *x = &f->tensors[i], keep = *x;
        x->name[0] = 'X';
        st_save(f, path_of(dir, "model.safetensors"), 0);
        assert_int_equal(k3i_draft_open(dir, &t.config, &d, &err), K3_E_CHECKPOINT);
        assert_non_null(strstr(err.text, keep.name));
        *x = keep;
    }
    /* Copies of the target's embedding and head are known and not read. */
    snprintf(f->tensors[f->n].name, 160, "embed_tokens.weight");
    snprintf(f->tensors[f->n].dtype, 16, "U8");
    f->tensors[f->n].n_dims = 1;
    f->tensors[f->n].shape[0] = f->tensors[f->n].n = 3;
    f->tensors[f->n].data = calloc(1, 3);
    f->n++;
    st_save(f, path_of(dir, "model.safetensors"), 0);
    assert_int_equal(k3i_draft_open(dir, &t.config, &d, &err), K3_OK);
    k3i_draft_done(&d);
    st_free(f);
    folder_remove(dir);
    k3i_target_done(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncation_at_every_boundary),
        cmocka_unit_test(bit_flips_in_the_header),
        cmocka_unit_test(every_tensor_missing_misshapen_mistyped),
        cmocka_unit_test(unknown_and_duplicate_tensors),
        cmocka_unit_test(ranges),
        cmocka_unit_test(headers),
        cmocka_unit_test(json_bomb),
        cmocka_unit_test(index_disagrees),
        cmocka_unit_test(swapped_shards),
        cmocka_unit_test(values_that_must_not_be),
        cmocka_unit_test(odd_offsets),
        cmocka_unit_test(every_allocation_fails),
        cmocka_unit_test(missing_folder_and_files),
        cmocka_unit_test(drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
