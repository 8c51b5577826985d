/* Base: conversions against hand-computed bit patterns, arena, allocation hook, thread team. */
#include "test.h"

#include "arena.h"
#include "bf16.h"
#include "map.h"
#include "team.h"
#include "thread.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(k3i_to_bf16(1.0f), 0x3f80);
    assert_int_equal(k3i_to_bf16(0x1.01p0f), 0x3f80);        /* tie, even below */
    assert_int_equal(k3i_to_bf16(0x1.03p0f), 0x3f82);        /* tie, even above */
    assert_int_equal(k3i_to_bf16(0x1.010002p0f), 0x3f81);    /* just above a tie */
    assert_int_equal(k3i_to_bf16(-0x1.fffffep127f), 0xff80); /* overflow */
    assert_true(isnan(k3i_from_bf16(k3i_to_bf16(NAN))));
    assert_int_equal(k3i_to_bf16(0x1p-149f), 0x0000);
}

static void e8m0_covers_subnormal_and_top(void **state)
{
    (void)state;
    assert_true(k3i_from_e8m0(0) == 0x1p-127f);
    assert_true(k3i_from_e8m0(1) == 0x1p-126f);
    assert_true(k3i_from_e8m0(127) == 1.0f);
    assert_true(k3i_from_e8m0(254) == 0x1p127f);
}

static void arena_keeps_addresses_and_limit(void **state)
{
    (void)state;
    k3i_arena a;
    k3i_arena_init(&a, 1 << 20);
    char *p = k3i_arena_alloc(&a, 100);
    assert_non_null(p);
    memset(p, 7, 100);
    for (int i = 0; i < 8; i++) {
        void *q = k3i_arena_alloc(&a, 100000);
        assert_non_null(q);
        assert_int_equal((uintptr_t)q % K3I_ALIGN, 0);
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(p[i], 7);
    assert_null(k3i_arena_alloc(&a, 1 << 20));
    assert_null(k3i_arena_array(&a, SIZE_MAX / 2, 4));
    k3i_arena_done(&a);
}

static void allocation_fails_where_asked(void **state)
{
    (void)state;
    k3i_alloc_fail_at(2);
    void *a = k3i_alloc(8), *b = k3i_alloc(8), *c = k3i_alloc(8);
    k3i_alloc_fail_at(0);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    k3i_free(a);
    k3i_free(c);
    assert_null(k3i_alloc(SIZE_MAX - 3));
}

typedef struct {
    _Atomic uint64_t sum;
    _Atomic uint32_t calls;
} team_work;

static void team_add(void *arg, size_t i, size_t n)
{
    team_work *w = arg;
    size_t from, to;
    k3i_team_split(1000, 7, i, n, &from, &to);
    uint64_t s = 0;
    for (size_t k = from; k < to; k++)
        s += k;
    atomic_fetch_add(&w->sum, s);
    atomic_fetch_add(&w->calls, 1);
}

static void use_stack(void *arg, size_t i, size_t n)
{
    (void)n;
    volatile char big[K3I_CALL_STACK];
    for (size_t at = 0; at < sizeof big; at += 1024)
        big[at] = (char)i;
    ((volatile char *)arg)[i] = big[1024 * i];
}

/* Whatever threads get by default here, those of a team have room for a kernel. */
static void team_has_its_own_stack(void **state)
{
    (void)state;
    pthread_attr_t small, old;
    k3i_team *t;
    char out[3];
    assert_int_equal(pthread_getattr_default_np(&old), 0);
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 128 << 10), 0); /* musl's */
    assert_int_equal(pthread_setattr_default_np(&small), 0);
    assert_int_equal(k3i_team_new(3, NULL, 0, &t, NULL), K3_OK);
    k3i_team_run(t, use_stack, out);
    for (int i = 0; i < 3; i++)
        assert_int_equal(out[i], i);
    k3i_team_free(t);
    assert_int_equal(pthread_setattr_default_np(&old), 0);
    pthread_attr_destroy(&small);
    pthread_attr_destroy(&old);
}

static void team_covers_all_items_once(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 9; n += 2) {
        k3i_team *t;
        k3i_err err;
        assert_int_equal(k3i_team_new(n, NULL, 0, &t, &err), K3_OK);
        for (int round = 0; round < 200; round++) {
            team_work w = {0};
            k3i_team_run(t, team_add, &w);
            assert_int_equal(w.sum, 499500);
            assert_int_equal(w.calls, n);
            if (round % 50 == 0)
                usleep(2000); /* long enough for workers to fall asleep */
        }
        k3i_team_free(t);
    }
}

enum { DEALT = 1000 };

typedef struct {
    k3i_team *team;
    size_t least;
    _Atomic uint32_t taken[DEALT];
    _Atomic uint32_t wrong;
    _Atomic size_t n_taken;
} deal_work;

static void take_pieces(void *arg, size_t i, size_t n)
{
    deal_work *w = arg;
    size_t from, to;
    while (k3i_team_take(w->team, i, w->least, &from, &to)) {
        w->wrong += to <= from || to > DEALT || (to - from < w->least && to - from < DEALT / n);
        for (size_t k = from; k < to && k < DEALT; k++)
            w->taken[k]++;
        w->n_taken += to - from;
        /* Member 0 is slow: it comes back when everything is taken. */
        int ms = 0;
        while (i == 0 && n > 1 && w->n_taken < DEALT && ms < 5000) {
            usleep(1000);
            ms++;
        }
        w->wrong += ms == 5000;
    }
}

/* Every item once, whoever takes it; a slow member's are taken by others. */
static void team_deals_items_to_who_comes(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 4; n++) {
        for (size_t least = 1; least < 60; least += 29) {
            deal_work w = {.least = least};
            assert_int_equal(k3i_team_new(n, NULL, 0, &w.team, NULL), K3_OK);
            for (uint32_t round = 1; round < 4; round++) {
                w.n_taken = 0;
                k3i_team_deal(w.team, DEALT);
                k3i_team_run(w.team, take_pieces, &w);
                for (size_t k = 0; k < DEALT; k++)
                    assert_int_equal(w.taken[k], round);
            }
            assert_int_equal(w.wrong, 0);
            k3i_team_free(w.team);
        }
    }
}

static void missing_files_are_named(void **state)
{
    (void)state;
    k3i_err err;
    k3i_map map;
    assert_int_equal(k3i_map_open("/nonexistent/x.safetensors", 0, &map, &err), K3_E_IO);
    assert_string_equal(err.text, "/nonexistent: no such folder");
    assert_int_equal(k3i_map_open("/proc/self/exe/x.safetensors", 0, &map, &err), K3_E_IO);
    assert_string_equal(err.text, "/proc/self/exe: not a folder");
    assert_int_equal(k3i_map_open("/proc/self/x.safetensors", 0, &map, &err), K3_E_IO);
    assert_string_equal(err.text, "/proc/self/x.safetensors: no such file");
    assert_int_equal(k3i_map_open("x.safetensors", 0, &map, &err), K3_E_IO);
    assert_string_equal(err.text, "x.safetensors: no such file");
    assert_int_equal(k3i_map_open("/tmp", 0, &map, &err), K3_E_IO);
    char *text;
    size_t bytes;
    assert_int_equal(k3i_read_file("/proc/self/exe", 10, &text, &bytes, &err), K3_E_LIMIT);
    assert_int_equal(k3i_err_prefix(&err, "model '%s'", "m"), K3_E_LIMIT);
    assert_int_equal(strncmp(err.text, "model 'm': /proc", 16), 0);
}

/* A file that is small enough is read, and its data can be put on a cache line; a larger one is
 * mapped. */
static void small_files_are_read(void **state)
{
    (void)state;
    k3i_err err;
    k3i_map mapped, copied;
    assert_int_equal(k3i_map_open("/proc/self/exe", 0, &mapped, &err), K3_OK);
    assert_null(mapped.copy);
    assert_int_equal(k3i_map_open("/proc/self/exe", mapped.bytes - 1, &copied, &err), K3_OK);
    assert_null(copied.copy);
    k3i_map_close(&copied);
    assert_int_equal(k3i_map_open("/proc/self/exe", mapped.bytes, &copied, &err), K3_OK);
    assert_non_null(copied.copy);
    for (size_t at = 0; at < 130; at += 43) {
        k3i_map_align(&copied, at);
        assert_int_equal((uintptr_t)(copied.data + at) % K3I_ALIGN, 0);
        assert_int_equal(copied.bytes, mapped.bytes);
        assert_memory_equal(copied.data, mapped.data, mapped.bytes);
    }
    k3i_map_close(&copied);
    k3i_map_close(&mapped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(e8m0_covers_subnormal_and_top),
        cmocka_unit_test(arena_keeps_addresses_and_limit),
        cmocka_unit_test(allocation_fails_where_asked),
        cmocka_unit_test(team_has_its_own_stack),
        cmocka_unit_test(team_covers_all_items_once),
        cmocka_unit_test(team_deals_items_to_who_comes),
        cmocka_unit_test(missing_files_are_named),
        cmocka_unit_test(small_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
