/* binder.h: takes tensors out of a checkpoint by exact name, dtype and shape. Shared by bind.c and
 * bind_draft.c. The first error sticks, so that a list of bindings reads as a table and is checked
 * once, at k3i_binder_end. */
#ifndef K3I_BINDER_H
#define K3I_BINDER_H

#include "bind.h"

/* Experts of the published model take 4 MB; the rest is room for F32 vectors that a file misaligns.
 */
#define K3I_BIND_ARENA_MAX ((size_t)4 << 30)

typedef struct {
    const k3i_ckpt *ck;
    k3i_arena *arena; /* realigned vectors */
    bool *taken;      /* [count] */
    char scope[256];  /* before every name: "language_model.model.layers.5." */
    k3_status st;
    k3i_err *err;
} k3i_binder;

void k3i_binder_begin(k3i_binder *b, const k3i_ckpt *ck, k3i_arena *arena, k3i_err *err);
void k3i_binder_scope(k3i_binder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A BF16 matrix [rows, cols], where it lies. */
const k3i_bf16 *k3i_bind_matrix(k3i_binder *b, const char *name, size_t rows, size_t cols);
/* A BF16 vector [n], aligned. */
const k3i_bf16 *k3i_bind_vector(k3i_binder *b, const char *name, size_t n);
/* A BF16 row [1, n], aligned. */
const k3i_bf16 *k3i_bind_row(k3i_binder *b, const char *name, size_t n);
/* An F32 vector [n], aligned. */
const float *k3i_bind_f32(k3i_binder *b, const char *name, size_t n);
/* Any shape. */
const void *k3i_bind_shape(k3i_binder *b, const char *name, k3i_dtype dtype, const size_t *shape,
                           size_t n_dims, bool align);
/* BF16, F32 or F16 of any shape; vectors and tables are aligned. */
k3i_weight k3i_bind_weight(k3i_binder *b, const char *name, const size_t *shape, size_t n_dims);
/* name.weight_packed and name.weight_scale; scales of 255 are refused. */
k3i_mxfp4 k3i_bind_mxfp4(k3i_binder *b, const char *name, size_t rows, size_t cols);
k3i_mlp_weights k3i_bind_mlp(k3i_binder *b, const char *name, size_t inner, size_t hidden);
/* The MLA tensors under self_attn., with g_proj if `gated`. */
k3i_mla_weights k3i_bind_mla(k3i_binder *b, size_t hidden, size_t heads, size_t q_rank,
                             size_t kv_rank, size_t nope, size_t rope, size_t v, bool gated);
/* n zeroed structs in the arena; sticks K3_E_NOMEM. */
void *k3i_bind_array(k3i_binder *b, size_t n, size_t size);

/* x * y of configuration sizes; sticks K3_E_LIMIT and gives 0 if it overflows. */
size_t k3i_bind_product(k3i_binder *b, size_t x, size_t y);

/* Marks tensors whose name starts with `prefix` as known but unused. */
void k3i_binder_ignore(k3i_binder *b, const char *prefix);
/* Refuses tensors that nobody has taken. Returns the first error. */
k3_status k3i_binder_end(k3i_binder *b);

#endif
