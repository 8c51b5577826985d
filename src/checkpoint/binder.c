/* binder.c: see binder.h. A shape is compared in full, and what is found is printed beside what the
 * configuration asks for. */
#include "binder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void k3i_binder_begin(k3i_binder *b, const k3i_ckpt *ck, k3i_arena *arena, k3i_err *err)
{
    *b = (k3i_binder){.ck = ck, .arena = arena, .err = err, .st = K3_OK};
    b->taken = k3i_alloc_zero(k3i_ckpt_count(ck));
    if (b->taken == NULL)
        b->st = k3i_fail(err, K3_E_NOMEM, "%s: no memory", k3i_ckpt_dir(ck));
}

void k3i_binder_scope(k3i_binder *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(b->scope, sizeof b->scope, format, args);
    va_end(args);
}

/* Marks and returns scope + name + suffix; NULL with an error if it is missing. */
static const k3i_tensor *take(k3i_binder *b, const char *name, const char *suffix)
{
    char full[K3I_ERR_TEXT];
    if (b->st != K3_OK)
        return NULL;
    snprintf(full, sizeof full, "%s%s%s", b->scope, name, suffix);
    const k3i_tensor *t = k3i_ckpt_find(b->ck, full);
    if (t == NULL) {
        b->st = k3i_fail(b->err, K3_E_CHECKPOINT, "%s: tensor '%s' is missing", k3i_ckpt_dir(b->ck),
                         full);
        return NULL;
    }
    b->taken[t - k3i_ckpt_at(b->ck, 0)] = true;
    return t;
}

static void check_shape(k3i_binder *b, const k3i_tensor *t, k3i_dtype dtype, const size_t *shape,
                        size_t n_dims)
{
    if (t == NULL || (t->dtype == dtype && t->n_dims == n_dims &&
                      memcmp(t->shape, shape, n_dims * sizeof *shape) == 0))
        return;
    char found[96], want[96];
    b->st = k3i_fail(b->err, K3_E_CHECKPOINT, "%s/%s: tensor '%s' is %s, the config asks for %s",
                     k3i_ckpt_dir(b->ck), k3i_ckpt_file(b->ck, t->file), t->name,
                     k3i_shape_text(t->dtype, t->shape, t->n_dims, found, sizeof found),
                     k3i_shape_text(dtype, shape, n_dims, want, sizeof want));
}

/* Where the file puts a small tensor between two elements, it is copied to an aligned place. */
static const void *aligned(k3i_binder *b, const k3i_tensor *t)
{
    if (((uintptr_t)t->data & (k3i_dtype_bytes(t->dtype) - 1)) == 0)
        return t->data;
    void *p = k3i_arena_alloc(b->arena, t->bytes);
    if (p == NULL) {
        b->st = k3i_fail(b->err, K3_E_NOMEM, "%s: no memory to align '%s'", k3i_ckpt_dir(b->ck),
                         t->name);
        return NULL;
    }
    memcpy(p, t->data, t->bytes);
    return p;
}

const void *k3i_bind_shape(k3i_binder *b, const char *name, k3i_dtype dtype, const size_t *shape,
                           size_t n_dims, bool align)
{
    const k3i_tensor *t = take(b, name, "");
    check_shape(b, t, dtype, shape, n_dims);
    if (b->st != K3_OK)
        return NULL;
    return align ? aligned(b, t) : t->data;
}

const k3i_bf16 *k3i_bind_matrix(k3i_binder *b, const char *name, size_t rows, size_t cols)
{
    return k3i_bind_shape(b, name, K3I_DTYPE_BF16, (const size_t[]){rows, cols}, 2, false);
}

const k3i_bf16 *k3i_bind_vector(k3i_binder *b, const char *name, size_t n)
{
    return k3i_bind_shape(b, name, K3I_DTYPE_BF16, &n, 1, true);
}

const k3i_bf16 *k3i_bind_row(k3i_binder *b, const char *name, size_t n)
{
    return k3i_bind_shape(b, name, K3I_DTYPE_BF16, (const size_t[]){1, n}, 2, true);
}

const float *k3i_bind_f32(k3i_binder *b, const char *name, size_t n)
{
    return k3i_bind_shape(b, name, K3I_DTYPE_F32, &n, 1, true);
}

/* IEEE half precision, subnormals included: exact in f32. */
static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, frac = h & 1023u;
    if (exp == 0)
        return (sign != 0 ? -0x1p-24f : 0x1p-24f) * (float)frac;
    uint32_t bits = sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | frac << 13;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static const float *widened(k3i_binder *b, const k3i_tensor *t)
{
    size_t n = t->bytes / sizeof(uint16_t);
    float *p = k3i_arena_new(b->arena, float, n);
    if (p == NULL) {
        b->st = k3i_fail(b->err, K3_E_NOMEM, "%s: no memory to convert '%s'", k3i_ckpt_dir(b->ck),
                         t->name);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, t->data + i * sizeof h, sizeof h);
        p[i] = from_f16(h);
    }
    return p;
}

k3i_weight k3i_bind_weight(k3i_binder *b, const char *name, const size_t *shape, size_t n_dims)
{
    k3i_weight w = {0};
    const k3i_tensor *t = take(b, name, "");
    bool is_f32 = t != NULL && t->dtype == K3I_DTYPE_F32;
    bool is_f16 = t != NULL && t->dtype == K3I_DTYPE_F16;
    check_shape(b, t,
                is_f32   ? K3I_DTYPE_F32
                : is_f16 ? K3I_DTYPE_F16
                         : K3I_DTYPE_BF16,
                shape, n_dims);
    if (b->st != K3_OK)
        return w;
    if (is_f32)
        w.f32 = aligned(b, t);
    else if (is_f16)
        w.f32 = widened(b, t);
    else
        w.bf16 = n_dims == 2 || n_dims == 4 ? (const void *)t->data : aligned(b, t);
    return w;
}

k3i_mxfp4 k3i_bind_mxfp4(k3i_binder *b, const char *name, size_t rows, size_t cols)
{
    const k3i_tensor *packed = take(b, name, ".weight_packed");
    check_shape(b, packed, K3I_DTYPE_U8, (const size_t[]){rows, cols / 2}, 2);
    const k3i_tensor *scale = take(b, name, ".weight_scale");
    check_shape(b, scale, K3I_DTYPE_U8, (const size_t[]){rows, cols / 32}, 2);
    if (b->st != K3_OK)
        return (k3i_mxfp4){0};
    /* E8M0 255 is NaN by the standard. memchr runs at the speed of memory: scales are 1/17 of the
     * experts. */
    const uint8_t *nan = memchr(scale->data, 255, scale->bytes);
    if (nan != NULL) {
        b->st =
            k3i_fail(b->err, K3_E_CHECKPOINT,
                     "%s/%s: tensor '%s' has the NaN scale 255 at element %zu", k3i_ckpt_dir(b->ck),
                     k3i_ckpt_file(b->ck, scale->file), scale->name, (size_t)(nan - scale->data));
    }
    return (k3i_mxfp4){.packed = packed->data, .scale = scale->data};
}

k3i_mlp_weights k3i_bind_mlp(k3i_binder *b, const char *name, size_t inner, size_t hidden)
{
    char full[128];
    k3i_mlp_weights w;
    snprintf(full, sizeof full, "%s.gate_proj.weight", name);
    w.gate_proj = k3i_bind_matrix(b, full, inner, hidden);
    snprintf(full, sizeof full, "%s.up_proj.weight", name);
    w.up_proj = k3i_bind_matrix(b, full, inner, hidden);
    snprintf(full, sizeof full, "%s.down_proj.weight", name);
    w.down_proj = k3i_bind_matrix(b, full, hidden, inner);
    return w;
}

k3i_mla_weights k3i_bind_mla(k3i_binder *b, size_t hidden, size_t heads, size_t q_rank,
                             size_t kv_rank, size_t nope, size_t rope, size_t v, bool gated)
{
    size_t q_rows = k3i_bind_product(b, heads, nope + rope);
    size_t kv_rows = k3i_bind_product(b, heads, nope + v);
    size_t o_cols = k3i_bind_product(b, heads, v);
    return (k3i_mla_weights){
        .q_a_proj = k3i_bind_matrix(b, "self_attn.q_a_proj.weight", q_rank, hidden),
        .q_a_layernorm = k3i_bind_vector(b, "self_attn.q_a_layernorm.weight", q_rank),
        .q_b_proj = k3i_bind_matrix(b, "self_attn.q_b_proj.weight", q_rows, q_rank),
        .kv_a_proj =
            k3i_bind_matrix(b, "self_attn.kv_a_proj_with_mqa.weight", kv_rank + rope, hidden),
        .kv_a_layernorm = k3i_bind_vector(b, "self_attn.kv_a_layernorm.weight", kv_rank),
        .kv_b_proj = k3i_bind_matrix(b, "self_attn.kv_b_proj.weight", kv_rows, kv_rank),
        .g_proj = gated ? k3i_bind_matrix(b, "self_attn.g_proj.weight", o_cols, hidden) : NULL,
        .o_proj = k3i_bind_matrix(b, "self_attn.o_proj.weight", hidden, o_cols),
    };
}

void *k3i_bind_array(k3i_binder *b, size_t n, size_t size)
{
    /* Each element binds one tensor or more, so a checkpoint of fewer is refused before memory is
     * asked for. */
    if (b->st == K3_OK && n > k3i_ckpt_count(b->ck)) {
        b->st = k3i_fail(b->err, K3_E_CHECKPOINT,
                         "%s: holds %zu tensors, the config asks for %zu parts '%s*'",
                         k3i_ckpt_dir(b->ck), k3i_ckpt_count(b->ck), n, b->scope);
    }
    void *p = b->st == K3_OK ? k3i_arena_array(b->arena, n, size) : NULL;
    if (p == NULL && b->st == K3_OK)
        b->st = k3i_fail(b->err, K3_E_NOMEM, "%s: no memory", k3i_ckpt_dir(b->ck));
    if (p != NULL)
        memset(p, 0, n * size);
    return p;
}

size_t k3i_bind_product(k3i_binder *b, size_t x, size_t y)
{
    size_t product;
    if (k3i_mul_size(x, y, &product))
        return product;
    if (b->st == K3_OK)
        b->st = k3i_fail(b->err, K3_E_LIMIT, "%s: the config asks for %zu x %zu rows in '%s*'",
                         k3i_ckpt_dir(b->ck), x, y, b->scope);
    return 0;
}

void k3i_binder_ignore(k3i_binder *b, const char *prefix)
{
    for (size_t i = 0; b->taken != NULL && i < k3i_ckpt_count(b->ck); i++) {
        if (strncmp(k3i_ckpt_at(b->ck, i)->name, prefix, strlen(prefix)) == 0)
            b->taken[i] = true;
    }
}

k3_status k3i_binder_end(k3i_binder *b)
{
    for (size_t i = 0; b->st == K3_OK && i < k3i_ckpt_count(b->ck); i++) {
        const k3i_tensor *t = k3i_ckpt_at(b->ck, i);
        if (!b->taken[i]) {
            b->st = k3i_fail(b->err, K3_E_CHECKPOINT, "%s/%s: tensor '%s' is unknown to this model",
                             k3i_ckpt_dir(b->ck), k3i_ckpt_file(b->ck, t->file), t->name);
        }
    }
    k3i_free(b->taken);
    b->taken = NULL;
    return b->st;
}
