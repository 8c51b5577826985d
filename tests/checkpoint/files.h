/* files.h: a checkpoint folder that tests may damage: a temporary copy of a synthetic one, and a
 * model of one safetensors file that can be changed tensor by tensor and written back. */
#ifndef K3_TESTS_FILES_H
#define K3_TESTS_FILES_H

#include "test.h"

#include "bind.h"

typedef struct {
    char *data;
    size_t n;
} blob;

/* Whole file; fails the test if it cannot be read. Free data with free(). */
blob blob_read(const char *path);
void blob_write(const char *path, const void *data, size_t n);

/* Makes an empty folder; the name is written to dir[64]. */
void folder_new(char *dir);
/* Copies all plain files of `from` into a new folder. */
void folder_copy(const char *from, char *dir);
void folder_remove(const char *dir);

/* "dir/name" in a static buffer of the calling test; two are in use at most. */
const char *path_of(const char *dir, const char *name);

typedef struct {
    char name[160];
    char dtype[16];
    size_t shape[4];
    size_t n_dims;
    char *data; /* owned */
    size_t n;
} st_tensor;

typedef struct {
    st_tensor tensors[512];
    size_t n;
} st_file;

/* Independent of the reader under test (a parser of its own would be overkill: yyjson). */
st_file *st_load(const char *path);
/* Tensors back to back, header padded to `align` bytes plus `odd`. */
void st_save(const st_file *f, const char *path, size_t odd);
void st_free(st_file *f);
st_tensor *st_find(st_file *f, const char *name);

/* Opens the target in `dir` and fails unless it is refused with `code` and every word of `words`
 * (NULL: any) in the text. */
void expect_refused(const char *dir, k3_status code, const char *word, const char *word2);
void expect_opens(const char *dir);

#endif
