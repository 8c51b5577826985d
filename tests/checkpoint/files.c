/* files.c: see files.h. */
#include "files.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

blob blob_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat info;
    if (f == NULL || fstat(fileno(f), &info) != 0)
        fail_msg("%s cannot be read", path);
    blob b = {malloc((size_t)info.st_size + 1), (size_t)info.st_size};
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.n, f), b.n);
    b.data[b.n] = 0;
    fclose(f);
    return b;
}

void blob_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        fail_msg("%s cannot be written", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

void folder_new(char *dir)
{
    snprintf(dir, 64, "/tmp/k3-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

const char *path_of(const char *dir, const char *name)
{
    static char paths[4][512];
    static unsigned at;
    char *p = paths[at++ % 4];
    snprintf(p, 512, "%s/%s", dir, name);
    return p;
}

void folder_copy(const char *from, char *dir)
{
    folder_new(dir);
    DIR *d = opendir(from);
    if (d == NULL)
        fail_msg("%s is missing: run the whole of ctest, its fixture 'models' makes it", from);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (e->d_name[0] == '.')
            continue;
        blob b = blob_read(path_of(from, e->d_name));
        blob_write(path_of(dir, e->d_name), b.data, b.n);
        free(b.data);
    }
    closedir(d);
}

void folder_remove(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (e->d_name[0] != '.')
            unlink(path_of(dir, e->d_name));
    }
    closedir(d);
    rmdir(dir);
}

st_file *st_load(const char *path)
{
    blob b = blob_read(path);
    st_file *f = calloc(1, sizeof *f);
    assert_non_null(f);
    uint64_t len;
    memcpy(&len, b.data, 8);
    yyjson_doc *doc = yyjson_read(b.data + 8, (size_t)len, 0);
    assert_non_null(doc);
    size_t i, n, k, n_dims;
    yyjson_val *key, *v, *dim;
    yyjson_obj_foreach(yyjson_doc_get_root(doc), i, n, key, v)
    {
        st_tensor *t = &f->tensors[f->n++];
        assert_true(f->n <= sizeof f->tensors / sizeof f->tensors[0]);
        snprintf(t->name, sizeof t->name, "%s", yyjson_get_str(key));
        snprintf(t->dtype, sizeof t->dtype, "%s", yyjson_get_str(yyjson_obj_get(v, "dtype")));
        yyjson_arr_foreach(yyjson_obj_get(v, "shape"), k, n_dims, dim)
        {
            t->shape[k] = (size_t)yyjson_get_uint(dim);
        }
        t->n_dims = n_dims;
        yyjson_val *off = yyjson_obj_get(v, "data_offsets");
        size_t from = (size_t)yyjson_get_uint(yyjson_arr_get(off, 0));
        t->n = (size_t)yyjson_get_uint(yyjson_arr_get(off, 1)) - from;
        t->data = malloc(t->n + 1);
        assert_non_null(t->data);
        memcpy(t->data, b.data + 8 + len + from, t->n);
    }
    yyjson_doc_free(doc);
    free(b.data);
    return f;
}

void st_save(const st_file *f, const char *path, size_t odd)
{
    size_t total = 0;
    for (size_t i = 0; i < f->n; i++)
        total += f->tensors[i].n + 512;
    char *out = malloc(total + 64);
    assert_non_null(out);
    size_t at = 8, offset = 0;
    out[at++] = '{';
    for (size_t i = 0; i < f->n; i++) {
        const st_tensor *t = &f->tensors[i];
        at += (size_t)snprintf(out + at, total + 64 - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                               i ? "," : "", t->name, t->dtype);
        for (size_t k = 0; k < t->n_dims; k++)
            at += (size_t)snprintf(out + at, total + 64 - at, k ? ",%zu" : "%zu", t->shape[k]);
        at += (size_t)snprintf(out + at, total + 64 - at, "],\"data_offsets\":[%zu,%zu]}", offset,
                               offset + t->n);
        offset += t->n;
    }
    out[at++] = '}';
    while (at % 8 != odd)
        out[at++] = ' ';
    uint64_t len = at - 8;
    memcpy(out, &len, 8);
    for (size_t i = 0; i < f->n; i++) {
        memcpy(out + at, f->tensors[i].data, f->tensors[i].n);
        at += f->tensors[i].n;
    }
    blob_write(path, out, at);
    free(out);
}

void st_free(st_file *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->tensors[i].data);
    free(f);
}

st_tensor *st_find(st_file *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    }
    fail_msg("the test asks for '%s', which is not there", name);
    return NULL;
}

void expect_refused(const char *dir, k3_status code, const char *word, const char *word2)
{
    k3i_target t;
    k3i_err err = {0};
    k3_status st = k3i_target_open(dir, &t, &err);
    if (st == K3_OK)
        fail_msg("accepted, although %s %s", word != NULL ? word : "", word2 != NULL ? word2 : "");
    if (code != 0 && st != code)
        fail_msg("status %d instead of %d: %s", st, code, err.text);
    if ((word != NULL && strstr(err.text, word) == NULL) ||
        (word2 != NULL && strstr(err.text, word2) == NULL))
        fail_msg("'%s' names neither '%s' nor '%s'", err.text, word, word2);
}

void expect_opens(const char *dir)
{
    k3i_target t;
    k3i_err err = {0};
    if (k3i_target_open(dir, &t, &err) != K3_OK)
        fail_msg("refused: %s", err.text);
    k3i_target_done(&t);
}
