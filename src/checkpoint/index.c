/* index.c: from a folder to its files. With an index, exactly the files it names are opened and
 * must hold exactly the tensors it lists; without one, every *.safetensors of the folder is opened.
 */
#include "ckpt.h"
#include "json.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_NAME "model.safetensors.index.json"
#define SUFFIX ".safetensors"
#define MAX_PATH 4096
/* So many bytes of a checkpoint's files are read rather than mapped, in the order of their names:
 * all of a bundled model, next to nothing of a large one. */
#define READ_BYTES ((size_t)64 << 20)

/* Names of files; strings are owned, or belong to a JSON document if not. */
typedef struct {
    const char *names[K3I_CKPT_MAX_FILES];
    size_t n;
} file_list;

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* A plain name ending in .safetensors: an index must not lead out of the folder. */
static bool is_file_name(const char *s, size_t len)
{
    return len > strlen(SUFFIX) && len < 256 && s[0] != '.' && memchr(s, '/', len) == NULL &&
           memchr(s, 0, len) == NULL && strcmp(s + len - strlen(SUFFIX), SUFFIX) == 0;
}

/* Position of `name` in the list, or n. The index lists tensors file by file, so the newest is
 * tried first. */
static size_t list_find(const file_list *list, const char *name)
{
    if (list->n > 0 && strcmp(list->names[list->n - 1], name) == 0)
        return list->n - 1;
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->names[i], name) == 0)
            return i;
    }
    return list->n;
}

static k3_status list_from_index(const char *path, yyjson_val *map, file_list *list, k3i_err *err)
{
    size_t i, n;
    yyjson_val *key, *val;
    if (!yyjson_is_obj(map))
        return k3i_fail(err, K3_E_CHECKPOINT, "%s: has no object 'weight_map'", path);
    yyjson_obj_foreach(map, i, n, key, val)
    {
        const char *name = yyjson_get_str(val);
        if (!yyjson_is_str(val) || !is_file_name(name, yyjson_get_len(val))) {
            return k3i_fail(err, K3_E_CHECKPOINT,
                            "%s: tensor '%.200s' is mapped to something that is not a name ending "
                            "in " SUFFIX,
                            path, yyjson_get_str(key));
        }
        if (list_find(list, name) < list->n)
            continue;
        if (list->n == K3I_CKPT_MAX_FILES)
            return k3i_fail(err, K3_E_LIMIT, "%s: names more than %d files", path,
                            K3I_CKPT_MAX_FILES);
        list->names[list->n++] = name;
    }
    return list->n > 0 ? K3_OK
                       : k3i_fail(err, K3_E_CHECKPOINT, "%s: 'weight_map' names no tensor", path);
}

static k3_status list_from_folder(const char *dir, file_list *list, k3i_arena *arena, k3i_err *err)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return k3i_fail(err, K3_E_IO, "%s: cannot be opened: %s", dir, strerror(errno));
    k3_status st = K3_OK;
    for (const struct dirent *e = readdir(d); e != NULL && st == K3_OK; e = readdir(d)) {
        if (!is_file_name(e->d_name, strlen(e->d_name)))
            continue;
        const char *name = k3i_arena_strndup(arena, e->d_name, strlen(e->d_name));
        if (list->n == K3I_CKPT_MAX_FILES)
            st = k3i_fail(err, K3_E_LIMIT, "%s: more than %d files", dir, K3I_CKPT_MAX_FILES);
        else if (name == NULL)
            st = k3i_fail(err, K3_E_NOMEM, "%s: no memory", dir);
        else
            list->names[list->n++] = name;
    }
    closedir(d);
    if (st == K3_OK && list->n == 0)
        st = k3i_fail(err, K3_E_CHECKPOINT, "%s: holds no *%s", dir, SUFFIX);
    return st;
}

/* Behind 8 bytes and a header whose length they hold; kernels read whole lines at less cost. */
static void align_data(k3i_map *map)
{
    uint64_t header;
    if (map->bytes < sizeof header)
        return;
    memcpy(&header, map->data, sizeof header);
    if (header <= map->bytes - sizeof header)
        k3i_map_align(map, sizeof header + (size_t)header);
}

/* Maps or reads `path`; read_left: bytes that may still be read. */
static k3_status open_file(const char *path, size_t *read_left, k3i_map *map, k3i_err *err)
{
    k3_status st = k3i_map_open(path, *read_left, map, err);
    if (st == K3_OK && map->copy != NULL) {
        *read_left -= map->bytes;
        align_data(map);
    }
    return st;
}

static k3_status open_files(const char *dir, file_list *list, k3i_ckpt **ret, k3i_err *err)
{
    k3i_ckpt *ck;
    qsort(list->names, list->n, sizeof list->names[0], by_name);
    k3_status st = k3i_ckpt_new(dir, list->n, &ck, err);
    if (st != K3_OK)
        return st;
    size_t read_left = READ_BYTES;
    for (size_t i = 0; i < list->n && st == K3_OK; i++) {
        k3i_ckpt_source *f = &ck->files[i];
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%s/%s", dir, list->names[i]);
        f->name = k3i_arena_strndup(&ck->arena, list->names[i], strlen(list->names[i]));
        if (f->name == NULL)
            st = k3i_fail(err, K3_E_NOMEM, "%s: no memory", path);
        if (st == K3_OK)
            st = open_file(path, &read_left, &f->map, err);
        if (st == K3_OK)
            st = k3i_ckpt_add_file(ck, (uint32_t)i, f->map.data, f->map.bytes, err);
    }
    if (st == K3_OK)
        st = k3i_ckpt_finish(ck, err);
    if (st != K3_OK) {
        k3i_ckpt_free(ck);
        return st;
    }
    *ret = ck;
    return K3_OK;
}

/* The map and the headers must say the same, in both directions. */
static k3_status check_against_map(const k3i_ckpt *ck, yyjson_val *map, const char *path,
                                   k3i_err *err)
{
    k3_status st = K3_OK;
    bool *listed = k3i_alloc_zero(ck->n);
    if (listed == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory", path);
    size_t i, n;
    yyjson_val *key, *val;
    yyjson_obj_foreach(map, i, n, key, val)
    {
        const char *name = yyjson_get_str(key);
        const k3i_tensor *t = k3i_ckpt_find(ck, name);
        if (t == NULL || strlen(name) != yyjson_get_len(key) ||
            strcmp(k3i_ckpt_file(ck, t->file), yyjson_get_str(val)) != 0) {
            st = k3i_fail(err, K3_E_CHECKPOINT, "%s: tensor '%.200s' is not in %s", path, name,
                          yyjson_get_str(val));
            goto out;
        }
        if (listed[t - ck->tensors]) {
            st = k3i_fail(err, K3_E_CHECKPOINT, "%s: tensor '%s' is listed twice", path, name);
            goto out;
        }
        listed[t - ck->tensors] = true;
    }
    for (size_t j = 0; j < ck->n; j++) {
        if (!listed[j]) {
            st = k3i_fail(err, K3_E_CHECKPOINT, "%s: does not list tensor '%s' of %s", path,
                          ck->tensors[j].name, k3i_ckpt_file(ck, ck->tensors[j].file));
            goto out;
        }
    }
out:
    k3i_free(listed);
    return st;
}

static k3_status open_indexed(const char *dir, const char *path, file_list *list, k3i_ckpt **ret,
                              k3i_err *err)
{
    char *text;
    size_t n;
    yyjson_doc *doc = NULL;
    k3i_ckpt *ck = NULL;
    k3_status st = k3i_read_file(path, K3I_CKPT_MAX_INDEX, &text, &n, err);
    if (st != K3_OK)
        return st;
    st = k3i_json_parse(path, text, n, K3_E_CHECKPOINT, &doc, err);
    if (st != K3_OK)
        goto out;
    yyjson_val *map = yyjson_obj_get(yyjson_doc_get_root(doc), "weight_map");
    st = list_from_index(path, map, list, err);
    if (st == K3_OK)
        st = open_files(dir, list, &ck, err);
    if (st == K3_OK)
        st = check_against_map(ck, map, path, err);
    if (st == K3_OK) {
        *ret = ck;
        ck = NULL;
    }
out:
    k3i_ckpt_free(ck);
    yyjson_doc_free(doc);
    k3i_free(text);
    return st;
}

k3_status k3i_ckpt_open(const char *dir, k3i_ckpt **ret, k3i_err *err)
{
    char path[MAX_PATH];
    if (strlen(dir) + 300 > sizeof path)
        return k3i_fail(err, K3_E_LIMIT, "%.100s...: the path is too long", dir);
    file_list *list = k3i_alloc_zero(sizeof *list);
    if (list == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory", dir);
    k3i_arena names;
    k3i_arena_init(&names, (size_t)K3I_CKPT_MAX_FILES * 512);
    snprintf(path, sizeof path, "%s/%s", dir, INDEX_NAME);
    struct stat info;
    k3_status st;
    if (stat(path, &info) == 0) {
        st = open_indexed(dir, path, list, ret, err);
    } else {
        st = list_from_folder(dir, list, &names, err);
        if (st == K3_OK)
            st = open_files(dir, list, ret, err);
    }
    k3i_arena_done(&names);
    k3i_free(list);
    return st;
}
