/* safetensors.h: the tensors of a checkpoint folder, mapped read-only and used in place.
 *
 * A folder holds model.safetensors.index.json and the shards it names, or, without an index, any
 * number of *.safetensors. Everything that could turn into a wrong answer is refused here with file
 * and tensor named: truncated files, ranges that overlap, leave holes or pass the end, unknown
 * dtypes, duplicate names, and an index that disagrees with the headers. */
#ifndef K3I_SAFETENSORS_H
#define K3I_SAFETENSORS_H

#include "alloc.h"

typedef enum { K3I_DTYPE_BF16, K3I_DTYPE_F32, K3I_DTYPE_U8, K3I_DTYPE_F16 } k3i_dtype;

#define K3I_MAX_DIMS 8 /* four are needed; more would not print in an error text */

typedef struct {
    const char *name;
    const uint8_t *data; /* in the mapping: any alignment */
    size_t bytes;
    size_t shape[K3I_MAX_DIMS]; /* row-major, last index fastest */
    uint32_t n_dims;            /* 0 is a scalar */
    uint32_t file;              /* index for k3i_ckpt_file */
    k3i_dtype dtype;
} k3i_tensor;

/* Immutable after opening, so that any number of threads may read it. */
typedef struct k3i_ckpt k3i_ckpt;

/* Opens all shards of `dir`. Errors: K3_E_IO, K3_E_CHECKPOINT, K3_E_LIMIT, K3_E_NOMEM. */
k3_status k3i_ckpt_open(const char *dir, k3i_ckpt **ret, k3i_err *err);
void k3i_ckpt_free(k3i_ckpt *ck);

/* NULL if there is none of that name. */
const k3i_tensor *k3i_ckpt_find(const k3i_ckpt *ck, const char *name);

/* Tensors in the order of files and offsets: 0 .. count - 1. */
size_t k3i_ckpt_count(const k3i_ckpt *ck);
const k3i_tensor *k3i_ckpt_at(const k3i_ckpt *ck, size_t i);

size_t k3i_ckpt_n_files(const k3i_ckpt *ck);
const char *k3i_ckpt_file(const k3i_ckpt *ck, uint32_t file); /* name within the folder */
const char *k3i_ckpt_dir(const k3i_ckpt *ck);
size_t k3i_ckpt_bytes(const k3i_ckpt *ck); /* of all tensors */

const char *k3i_dtype_name(k3i_dtype dtype); /* as in the file: "BF16" */
size_t k3i_dtype_bytes(k3i_dtype dtype);

/* "BF16 [320, 160]" into text[0..n). Returns text. */
char *k3i_shape_text(k3i_dtype dtype, const size_t *shape, size_t n_dims, char *text, size_t n);

/* Parses the header of one file held in memory into a checkpoint of one file (tests and fuzzing;
 * nothing is kept of `name`, `bytes` must outlive the result). */
k3_status k3i_ckpt_from_memory(const char *name, const uint8_t *bytes, size_t n, k3i_ckpt **ret,
                               k3i_err *err);

#endif
