/* Elastic: members that are sent to sleep and called again, the rule against states that were
 * measured, and a real team beside programs that take all processors. */
#include "test.h"

#include "clock.h"
#include "elastic.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 9 };
static const int64_t MS = 1000000;

typedef struct {
    _Atomic uint32_t calls[MOST];
    _Atomic uint32_t wrong;
    size_t active;
} work;

static void count(void *arg, size_t i, size_t n)
{
    work *w = arg;
    w->wrong += n != w->active || i >= n;
    w->calls[i]++;
}

/* Exactly the active members work, however often and however fast their number changes. */
static void active_members_work(void **state)
{
    (void)state;
    for (size_t n = 2; n <= MOST; n++) {
        k3i_team *t;
        work w = {0};
        uint32_t expected[MOST] = {0}, x = 1;
        assert_int_equal(k3i_team_new(n, NULL, 0, &t, NULL), K3_OK);
        for (int round = 0; round < 300; round++) {
            x = x * 1664525 + 1013904223; /* Knuth's linear congruence */
            w.active = 1 + (x >> 16) % n;
            k3i_team_set_active(t, w.active);
            assert_int_equal(k3i_team_active(t), w.active);
            for (uint32_t step = 0; step < (x >> 24) % 4; step++) {
                k3i_team_run(t, count, &w);
                for (size_t i = 0; i < w.active; i++)
                    expected[i]++;
            }
            if (round % 60 == 0)
                usleep(1000); /* long enough for all to fall asleep */
        }
        for (size_t i = 0; i < n; i++)
            assert_int_equal(w.calls[i], expected[i]);
        assert_int_equal(w.wrong, 0);
        assert_int_equal(k3i_team_size(t), n);
        k3i_team_free(t); /* with members asleep */
    }
}

static void take_all(void *arg, size_t i, size_t n)
{
    void **a = arg;
    size_t from, to;
    (void)n;
    while (k3i_team_take(a[0], i, 1, &from, &to))
        atomic_fetch_add((_Atomic uint32_t *)a[1], (uint32_t)(to - from));
}

/* Nobody waits for the share of a member that sleeps. */
static void active_members_are_dealt_all(void **state)
{
    (void)state;
    k3i_team *t;
    assert_int_equal(k3i_team_new(4, NULL, 0, &t, NULL), K3_OK);
    for (size_t active = 4; active >= 1; active--) {
        _Atomic uint32_t taken = 0;
        void *arg[2] = {t, &taken};
        k3i_team_set_active(t, active);
        k3i_team_deal(t, 1000);
        k3i_team_run(t, take_all, arg);
        assert_int_equal(taken, 1000);
    }
    k3i_team_free(t);
}

static size_t after(size_t size, int64_t busy, int64_t waited, int64_t slept)
{
    k3i_elastic_rule r;
    k3i_elastic_rule_init(&r, size);
    assert_int_equal(r.active, size);
    return k3i_elastic_rule_saw(&r, busy, waited, slept);
}

/* Two members beside one busy program were seen to wait for 73 and 82 of 100 ms, half of it each.
 */
static void a_member_is_dropped_where_that_wins(void **state)
{
    (void)state;
    assert_int_equal(after(2, 100 * MS, 73 * MS, 36 * MS), 1);
    assert_int_equal(after(2, 100 * MS, 0, 0), 2);
    assert_int_equal(after(2, 100 * MS, 40 * MS, 20 * MS), 2); /* 60 % are more than half */
    assert_int_equal(after(2, 100 * MS, 200 * MS, 100 * MS), 1);
    assert_int_equal(after(2, 100 * MS, 76 * MS, 3 * MS),
                     2); /* others did the pieces of the late */
    assert_int_equal(after(2, 100 * MS, 3 * MS, 76 * MS),
                     2); /* work that cannot be shared better */
    assert_int_equal(after(1, 100 * MS, 90 * MS, 0), 1);
    assert_int_equal(after(64, 100 * MS, 5 * MS, 5 * MS), 64);   /* a 64th, but see MARGIN */
    assert_int_equal(after(64, 100 * MS, 50 * MS, 50 * MS), 63); /* one busy program */
    assert_int_equal(after(8, 100 * MS, 300 * MS, 100 * MS), 5); /* three wait on average */
    assert_int_equal(after(8, 0, 0, 0), 8);
}

/* How many windows of 20 ms without losses pass until all are tried again. */
static int until_trial(k3i_elastic_rule *r)
{
    int n = 0;
    while (r->active < r->size && n < 1000) {
        k3i_elastic_rule_saw(r, 20 * MS, 0, 0);
        n++;
    }
    return n;
}

static void all_are_tried_again(void **state)
{
    (void)state;
    k3i_elastic_rule r;
    k3i_elastic_rule_init(&r, 4);
    assert_int_equal(k3i_elastic_rule_saw(&r, 20 * MS, 40 * MS, 20 * MS), 2);
    assert_int_equal(until_trial(&r), 10);
    /* In vain: back to what worked, and each time twice as long. */
    for (int hold = 20; hold <= 160; hold *= 2) {
        assert_int_equal(k3i_elastic_rule_saw(&r, 20 * MS, 40 * MS, 20 * MS), 2);
        assert_int_equal(until_trial(&r), hold);
    }
    assert_int_equal(k3i_elastic_rule_saw(&r, 20 * MS, 40 * MS, 20 * MS), 2);
    assert_int_equal(until_trial(&r), 160);
    /* The other program is gone: all stay, and the next one is met as the first was. */
    for (int i = 0; i < 100; i++)
        assert_int_equal(k3i_elastic_rule_saw(&r, 20 * MS, 0, 0), 4);
    assert_int_equal(k3i_elastic_rule_saw(&r, 20 * MS, 40 * MS, 20 * MS), 2);
    assert_int_equal(until_trial(&r), 10);
}

static void *take_processor(void *stop)
{
    while (!atomic_load((_Atomic bool *)stop))
        ;
    return NULL;
}

static void short_work(void *arg, size_t i, size_t n)
{
    (void)arg, (void)i, (void)n;
    for (int64_t end = k3i_now_ns() + 50000; k3i_now_ns() < end;)
        ;
}

/* Beside two busy threads for each processor a team of two becomes one. */
static void a_crowded_team_shrinks(void **state)
{
    (void)state;
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN), n_hogs = 2 * n_cpus;
    if (access("/proc/thread-self/schedstat", R_OK) != 0 || n_cpus > 64)
        skip(); /* the kernel keeps no account, or it would take hundreds of threads */
    pthread_t hog[128];
    _Atomic bool stop = false;
    k3i_team *t;
    k3i_elastic *e;
    for (long i = 0; i < n_hogs; i++)
        assert_int_equal(pthread_create(&hog[i], NULL, take_processor, &stop), 0);
    assert_int_equal(k3i_team_new(2, NULL, 0, &t, NULL), K3_OK);
    assert_int_equal(k3i_elastic_new(t, &e, NULL), K3_OK);
    int64_t busy = 0, limit = 60 * 1000 * MS;
    while (k3i_team_active(t) == 2 && busy < limit) {
        int64_t start = k3i_now_ns();
        k3i_team_run(t, short_work, NULL);
        busy += k3i_now_ns() - start;
        k3i_elastic_before(e, false, busy);
    }
    atomic_store(&stop, true);
    for (long i = 0; i < n_hogs; i++)
        pthread_join(hog[i], NULL);
    assert_true(busy < limit);
    k3i_elastic_free(e);
    k3i_team_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(active_members_work),
        cmocka_unit_test(active_members_are_dealt_all),
        cmocka_unit_test(a_member_is_dropped_where_that_wins),
        cmocka_unit_test(all_are_tried_again),
        cmocka_unit_test(a_crowded_team_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
