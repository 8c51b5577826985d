/* Vision tensors of any floating type: BF16 in place, F32 aligned, F16 widened exactly. */
#include "test.h"

#include "binder.h"

#include <math.h>

/* Four values of each type; F32 begins at an odd multiple of two bytes. */
static const uint16_t halves[] = {0x3c00, 0x0001, 0xfbff, 0x8400}; /* 1, 2^-24, -65504, -2^-14 */
static const uint16_t brains[] = {0x3f80, 0xc000, 0x0000, 0x4049};
static const float floats[] = {1.5f, -0x1p-140f, 3e38f, 0.1f};

static size_t make_file(uint8_t *file)
{
    static const char json[] =
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
        "\"odd\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[8,10]},"
        "\"f\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[10,26]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[26,34]},"
        "\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[34,36]}}";
    uint64_t n = (sizeof json - 1 + 7) / 8 * 8;
    memcpy(file, &n, 8);
    memset(file + 8, ' ', n);
    memcpy(file + 8, json, sizeof json - 1);
    uint8_t *data = file + 8 + n;
    memcpy(data, halves, 8);
    memcpy(data + 8, halves, 2);
    memcpy(data + 10, floats, 16);
    memcpy(data + 26, brains, 8);
    memset(data + 34, 0, 2);
    return 8 + (size_t)n + 36;
}

static void every_type_is_bound(void **state)
{
    (void)state;
    _Alignas(64) uint8_t file[1024];
    k3i_err err = {0};
    k3i_ckpt *ck;
    if (k3i_ckpt_from_memory("x", file, make_file(file), &ck, &err) != K3_OK)
        fail_msg("%s", err.text);
    k3i_arena arena;
    k3i_binder b;
    k3i_arena_init(&arena, 1 << 20);
    k3i_binder_begin(&b, ck, &arena, &err);
    k3i_binder_scope(&b, "%s", "");
    k3i_weight h = k3i_bind_weight(&b, "h", (const size_t[]){4}, 1);
    k3i_weight f = k3i_bind_weight(&b, "f", (const size_t[]){2, 2}, 2);
    k3i_weight bf = k3i_bind_weight(&b, "b", (const size_t[]){2, 2}, 2);
    assert_int_equal(b.st, K3_OK);
    assert_null(h.bf16);
    assert_true(h.f32[0] == 1 && h.f32[1] == 0x1p-24f && h.f32[2] == -65504 &&
                h.f32[3] == -0x1p-14f);
    assert_null(f.bf16);
    assert_int_equal((uintptr_t)f.f32 % sizeof(float), 0);
    assert_memory_equal(f.f32, floats, sizeof floats);
    assert_null(bf.f32);
    assert_memory_equal(bf.bf16, brains, sizeof brains);
    k3i_bind_weight(&b, "u", (const size_t[]){2}, 1);
    assert_int_equal(k3i_binder_end(&b), K3_E_CHECKPOINT);
    assert_non_null(strstr(err.text, "'u' is U8 [2], the config asks for BF16 [2]"));
    k3i_arena_done(&arena);
    k3i_ckpt_free(ck);
}

static void shapes_are_exact(void **state)
{
    (void)state;
    _Alignas(64) uint8_t file[1024];
    k3i_err err = {0};
    k3i_ckpt *ck;
    assert_int_equal(k3i_ckpt_from_memory("x", file, make_file(file), &ck, &err), K3_OK);
    k3i_arena arena;
    k3i_binder b;
    k3i_arena_init(&arena, 1 << 20);
    k3i_binder_begin(&b, ck, &arena, &err);
    k3i_binder_scope(&b, "%s", "");
    k3i_bind_weight(&b, "f", (const size_t[]){4}, 1);
    assert_int_equal(k3i_binder_end(&b), K3_E_CHECKPOINT);
    assert_non_null(strstr(err.text, "F32 [2, 2]"));
    k3i_arena_done(&arena);
    k3i_ckpt_free(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_bound),
        cmocka_unit_test(shapes_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
