/* ckpt.h: the inside of a k3i_ckpt, shared by safetensors.c (headers) and index.c (folders). */
#ifndef K3I_CKPT_H
#define K3I_CKPT_H

#include "arena.h"
#include "map.h"
#include "safetensors.h"

#define K3I_CKPT_MAX_FILES 4096                 /* published: 96 */
#define K3I_CKPT_MAX_NAME 512                   /* bytes of a tensor name */
#define K3I_CKPT_MAX_HEADER ((size_t)100000000) /* the limit of the format itself */
#define K3I_CKPT_MAX_TENSORS ((size_t)16 << 20) /* published: 497,220 */
#define K3I_CKPT_MAX_INDEX ((size_t)1 << 30)    /* bytes; published: 60 MB */

typedef struct {
    const char *name; /* within the folder; in the arena */
    k3i_map map;      /* owned; empty for a checkpoint made from memory */
} k3i_ckpt_source;

struct k3i_ckpt {
    k3i_arena arena; /* names */
    const char *dir;
    k3i_ckpt_source *files; /* [n_files] */
    size_t n_files;
    k3i_tensor *tensors; /* [n], capacity cap */
    size_t n, cap;
    uint32_t *table; /* open addressing, [table_size] a power of two, tensor index + 1 or 0 */
    size_t table_size;
    size_t bytes;
};

/* An empty checkpoint with room for n_files names. */
k3_status k3i_ckpt_new(const char *dir, size_t n_files, k3i_ckpt **ret, k3i_err *err);
/* Appends the tensors of file number `file`, whose contents are bytes[0..n). */
k3_status k3i_ckpt_add_file(k3i_ckpt *ck, uint32_t file, const uint8_t *bytes, size_t n,
                            k3i_err *err);
/* Builds the table of names; duplicates are errors. */
k3_status k3i_ckpt_finish(k3i_ckpt *ck, k3i_err *err);

#endif
