/* safetensors.c: one file's header to tensors, and the table of names.
 *
 * A file is 8 bytes of little-endian header length N, N bytes of JSON, then data; offsets count
 * from byte 8 + N. The ranges of a file must tile its data exactly: what overlaps, leaves a hole or
 * ends early is damage. Formulas: text-model 3.1. */
#include "ckpt.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_TENSORS 64 /* first capacity of the list */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [K3I_DTYPE_BF16] = {"BF16", 2},
    [K3I_DTYPE_F32] = {"F32", 4},
    [K3I_DTYPE_U8] = {"U8", 1},
    [K3I_DTYPE_F16] = {"F16", 2}, /* converted vision parts only */
};

const char *k3i_dtype_name(k3i_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t k3i_dtype_bytes(k3i_dtype dtype)
{
    return dtypes[dtype].bytes;
}

char *k3i_shape_text(k3i_dtype dtype, const size_t *shape, size_t n_dims, char *text, size_t n)
{
    size_t used = (size_t)snprintf(text, n, "%s [", k3i_dtype_name(dtype));
    for (size_t i = 0; i < n_dims && used < n; i++)
        used += (size_t)snprintf(text + used, n - used, i == 0 ? "%zu" : ", %zu", shape[i]);
    if (used < n)
        snprintf(text + used, n - used, "]");
    return text;
}

k3_status k3i_ckpt_new(const char *dir, size_t n_files, k3i_ckpt **ret, k3i_err *err)
{
    k3i_ckpt *ck = k3i_alloc_zero(sizeof *ck);
    if (ck == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory", dir);
    k3i_arena_init(&ck->arena, K3I_CKPT_MAX_TENSORS * K3I_CKPT_MAX_NAME);
    ck->dir = k3i_arena_strndup(&ck->arena, dir, strlen(dir));
    ck->files = k3i_alloc_array(n_files, sizeof *ck->files);
    if (ck->dir == NULL || ck->files == NULL) {
        k3i_ckpt_free(ck);
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory", dir);
    }
    for (size_t i = 0; i < n_files; i++)
        ck->files[i] = (k3i_ckpt_source){0};
    ck->n_files = n_files;
    *ret = ck;
    return K3_OK;
}

void k3i_ckpt_free(k3i_ckpt *ck)
{
    if (ck == NULL)
        return;
    for (size_t i = 0; ck->files != NULL && i < ck->n_files; i++)
        k3i_map_close(&ck->files[i].map);
    k3i_free(ck->files);
    k3i_free(ck->tensors);
    k3i_free(ck->table);
    k3i_arena_done(&ck->arena);
    k3i_free(ck);
}

/* Errors of one tensor: "dir/file: tensor 'name' ...". */
static k3_status bad_tensor(const k3i_ckpt *ck, const k3i_tensor *t, const char *what, k3i_err *err)
{
    return k3i_fail(err, K3_E_CHECKPOINT, "%s/%s: tensor '%s' %s", ck->dir, ck->files[t->file].name,
                    t->name, what);
}

static bool read_dtype(yyjson_val *v, k3i_dtype *ret)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (k3i_json_is(v, dtypes[i].name)) {
            *ret = (k3i_dtype)i;
            return true;
        }
    }
    return false;
}

/* The product of the dimensions times the element size into *ret_bytes. */
static bool read_shape(yyjson_val *v, k3i_tensor *t, size_t *ret_bytes)
{
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > K3I_MAX_DIMS)
        return false;
    size_t bytes = k3i_dtype_bytes(t->dtype);
    size_t i, n;
    yyjson_val *dim;
    yyjson_arr_foreach(v, i, n, dim)
    {
        if (!yyjson_is_uint(dim) || !k3i_mul_size(bytes, yyjson_get_uint(dim), &bytes))
            return false;
        t->shape[i] = (size_t)yyjson_get_uint(dim);
    }
    t->n_dims = (uint32_t)n;
    *ret_bytes = bytes;
    return true;
}

/* One entry of the header: {"dtype", "shape", "data_offsets"} and nothing else. */
static k3_status read_entry(const k3i_ckpt *ck, yyjson_val *entry, const uint8_t *data,
                            size_t data_bytes, k3i_tensor *t, k3i_err *err)
{
    if (!yyjson_is_obj(entry) || yyjson_obj_size(entry) != 3)
        return bad_tensor(ck, t, "is not described by dtype, shape and data_offsets", err);
    yyjson_val *dtype = yyjson_obj_get(entry, "dtype");
    if (!read_dtype(dtype, &t->dtype)) {
        char what[96];
        snprintf(what, sizeof what, "has dtype '%.32s', which is not supported",
                 yyjson_is_str(dtype) ? yyjson_get_str(dtype) : "");
        return bad_tensor(ck, t, what, err);
    }
    size_t bytes;
    if (!read_shape(yyjson_obj_get(entry, "shape"), t, &bytes))
        return bad_tensor(ck, t, "has a malformed or too large shape", err);
    yyjson_val *offsets = yyjson_obj_get(entry, "data_offsets");
    yyjson_val *from = yyjson_arr_get(offsets, 0), *to = yyjson_arr_get(offsets, 1);
    if (yyjson_arr_size(offsets) != 2 || !yyjson_is_uint(from) || !yyjson_is_uint(to))
        return bad_tensor(ck, t, "has malformed data_offsets", err);
    uint64_t begin = yyjson_get_uint(from), end = yyjson_get_uint(to);
    if (begin > end || end > data_bytes) {
        char what[160];
        snprintf(what, sizeof what, "lies at bytes %llu..%llu of the data, but the file holds %zu",
                 (unsigned long long)begin, (unsigned long long)end, data_bytes);
        return bad_tensor(ck, t, what, err);
    }
    if (end - begin != bytes) {
        char what[160], shape[96];
        snprintf(what, sizeof what, "is %s, %zu bytes, but has %llu",
                 k3i_shape_text(t->dtype, t->shape, t->n_dims, shape, sizeof shape), bytes,
                 (unsigned long long)(end - begin));
        return bad_tensor(ck, t, what, err);
    }
    t->data = data + begin;
    t->bytes = bytes;
    return K3_OK;
}

static int by_offset(const void *a, const void *b)
{
    const k3i_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors [first, ck->n) of one file must tile its data. */
static k3_status check_tiling(k3i_ckpt *ck, size_t first, const uint8_t *data, size_t data_bytes,
                              const char *file, k3i_err *err)
{
    if (ck->n > first)
        qsort(ck->tensors + first, ck->n - first, sizeof *ck->tensors, by_offset);
    const uint8_t *at = data;
    for (size_t i = first; i < ck->n; i++) {
        const k3i_tensor *t = &ck->tensors[i];
        if (t->data < at) {
            char what[K3I_CKPT_MAX_NAME + 32];
            snprintf(what, sizeof what, "overlaps '%s'", ck->tensors[i - 1].name);
            return bad_tensor(ck, t, what, err);
        }
        if (t->data > at) {
            return k3i_fail(err, K3_E_CHECKPOINT,
                            "%s/%s: %zu bytes before tensor '%s' belong to no tensor", ck->dir,
                            file, (size_t)(t->data - at), t->name);
        }
        at += t->bytes;
    }
    if (at != data + data_bytes) {
        return k3i_fail(err, K3_E_CHECKPOINT, "%s/%s: the last %zu bytes belong to no tensor",
                        ck->dir, file, (size_t)(data + data_bytes - at));
    }
    ck->bytes += data_bytes;
    return K3_OK;
}

static k3_status grow(k3i_ckpt *ck, size_t more, const char *file, k3i_err *err)
{
    if (more > K3I_CKPT_MAX_TENSORS - ck->n) {
        return k3i_fail(err, K3_E_LIMIT, "%s/%s: more than %zu tensors", ck->dir, file,
                        K3I_CKPT_MAX_TENSORS);
    }
    if (ck->n + more <= ck->cap)
        return K3_OK;
    size_t cap = 2 * ck->cap > MIN_TENSORS ? 2 * ck->cap : MIN_TENSORS;
    cap = cap > ck->n + more ? cap : ck->n + more;
    k3i_tensor *p = k3i_realloc(ck->tensors, cap * sizeof *p);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s/%s: no memory for %zu tensors", ck->dir, file, cap);
    ck->tensors = p;
    ck->cap = cap;
    return K3_OK;
}

static k3_status add_tensors(k3i_ckpt *ck, uint32_t file, yyjson_val *root, const uint8_t *data,
                             size_t data_bytes, k3i_err *err)
{
    const char *file_name = ck->files[file].name;
    if (!yyjson_is_obj(root)) {
        return k3i_fail(err, K3_E_CHECKPOINT, "%s/%s: the header is not a JSON object", ck->dir,
                        file_name);
    }
    k3_status st = grow(ck, yyjson_obj_size(root), file_name, err);
    size_t first = ck->n, i, n;
    yyjson_val *key, *entry;
    if (st != K3_OK)
        return st;
    yyjson_obj_foreach(root, i, n, key, entry)
    {
        const char *name = yyjson_get_str(key);
        size_t len = yyjson_get_len(key);
        if (k3i_json_is(key, "__metadata__"))
            continue;
        if (len == 0 || len >= K3I_CKPT_MAX_NAME || memchr(name, 0, len) != NULL) {
            return k3i_fail(err, K3_E_CHECKPOINT,
                            "%s/%s: tensor number %zu has a malformed name of %zu bytes", ck->dir,
                            file_name, i, len);
        }
        k3i_tensor *t = &ck->tensors[ck->n];
        *t = (k3i_tensor){.name = k3i_arena_strndup(&ck->arena, name, len), .file = file};
        if (t->name == NULL)
            return k3i_fail(err, K3_E_NOMEM, "%s/%s: no memory for names", ck->dir, file_name);
        st = read_entry(ck, entry, data, data_bytes, t, err);
        if (st != K3_OK)
            return st;
        ck->n++;
    }
    return check_tiling(ck, first, data, data_bytes, file_name, err);
}

k3_status k3i_ckpt_add_file(k3i_ckpt *ck, uint32_t file, const uint8_t *bytes, size_t n,
                            k3i_err *err)
{
    char path[K3I_ERR_TEXT];
    snprintf(path, sizeof path, "%s/%s", ck->dir, ck->files[file].name);
    uint64_t len = 0;
    for (size_t i = 0; i < 8 && n >= 8; i++)
        len |= (uint64_t)bytes[i] << (8 * i);
    if (n < 8 || len > n - 8) {
        return k3i_fail(err, K3_E_CHECKPOINT,
                        "%s: truncated: %zu bytes cannot hold a header of %llu", path, n,
                        (unsigned long long)len);
    }
    if (len > K3I_CKPT_MAX_HEADER) {
        return k3i_fail(err, K3_E_LIMIT, "%s: the header has %llu bytes, the limit is %zu", path,
                        (unsigned long long)len, K3I_CKPT_MAX_HEADER);
    }
    yyjson_doc *doc;
    k3_status st =
        k3i_json_parse(path, (const char *)bytes + 8, (size_t)len, K3_E_CHECKPOINT, &doc, err);
    if (st != K3_OK)
        return st;
    st = add_tensors(ck, file, yyjson_doc_get_root(doc), bytes + 8 + len, n - 8 - (size_t)len, err);
    yyjson_doc_free(doc);
    return st;
}

/* FNV-1a: names are long and differ in the middle, and the table is at most half full. */
static size_t slot_of(const k3i_ckpt *ck, const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *s = name; *s != 0; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    size_t slot = (size_t)(h ^ (h >> 32)) & (ck->table_size - 1);
    while (ck->table[slot] != 0 && strcmp(ck->tensors[ck->table[slot] - 1].name, name) != 0)
        slot = (slot + 1) & (ck->table_size - 1);
    return slot;
}

k3_status k3i_ckpt_finish(k3i_ckpt *ck, k3i_err *err)
{
    ck->table_size = 16;
    while (ck->table_size < 2 * ck->n)
        ck->table_size *= 2;
    ck->table = k3i_alloc_zero(ck->table_size * sizeof *ck->table);
    if (ck->table == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory for %zu names", ck->dir, ck->n);
    for (size_t i = 0; i < ck->n; i++) {
        size_t slot = slot_of(ck, ck->tensors[i].name);
        if (ck->table[slot] != 0) {
            char what[160];
            snprintf(what, sizeof what, "is given twice, also in %.100s",
                     ck->files[ck->tensors[ck->table[slot] - 1].file].name);
            return bad_tensor(ck, &ck->tensors[i], what, err);
        }
        ck->table[slot] = (uint32_t)(i + 1);
    }
    return K3_OK;
}

const k3i_tensor *k3i_ckpt_find(const k3i_ckpt *ck, const char *name)
{
    uint32_t i = ck->table[slot_of(ck, name)];
    return i == 0 ? NULL : &ck->tensors[i - 1];
}

size_t k3i_ckpt_count(const k3i_ckpt *ck)
{
    return ck->n;
}

const k3i_tensor *k3i_ckpt_at(const k3i_ckpt *ck, size_t i)
{
    return &ck->tensors[i];
}

size_t k3i_ckpt_n_files(const k3i_ckpt *ck)
{
    return ck->n_files;
}

const char *k3i_ckpt_file(const k3i_ckpt *ck, uint32_t file)
{
    return ck->files[file].name;
}

const char *k3i_ckpt_dir(const k3i_ckpt *ck)
{
    return ck->dir;
}

size_t k3i_ckpt_bytes(const k3i_ckpt *ck)
{
    return ck->bytes;
}

k3_status k3i_ckpt_from_memory(const char *name, const uint8_t *bytes, size_t n, k3i_ckpt **ret,
                               k3i_err *err)
{
    k3i_ckpt *ck;
    k3_status st = k3i_ckpt_new(".", 1, &ck, err);
    if (st != K3_OK)
        return st;
    ck->files[0].name = k3i_arena_strndup(&ck->arena, name, strlen(name));
    if (ck->files[0].name == NULL)
        st = k3i_fail(err, K3_E_NOMEM, "%s: no memory", name);
    if (st == K3_OK)
        st = k3i_ckpt_add_file(ck, 0, bytes, n, err);
    if (st == K3_OK)
        st = k3i_ckpt_finish(ck, err);
    if (st != K3_OK) {
        k3i_ckpt_free(ck);
        return st;
    }
    *ret = ck;
    return K3_OK;
}
