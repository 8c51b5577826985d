/* team.c: fork-join on a generation counter. A step is published by storing the work and raising
 * `generation`; members report by lowering `busy`. Waiting is a bounded spin, then a futex sleep.
 * Written by: member 0 (work, generation). Read by all. `busy` and the sleep flags are atomic. */
#include "team.h"

#include "thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 20 us at 3 GHz with a pause of 40 cycles: longer than the gaps inside a step, far shorter
 * than a scheduler tick, so an idle engine costs nothing. */
#define SPIN 1500

/* A member takes this part of a range: few pieces, and the last ones small. */
#define TAKE 3

typedef struct {
    k3i_team *team;
    size_t index;
    pthread_t thread;
    _Alignas(K3I_ALIGN) _Atomic uint64_t range; /* items to be taken: from | to << 32 */
} member;

struct k3i_team {
    size_t n;
    size_t n_started;
    size_t spin;
    k3i_team_fn fn;
    void *arg;
    bool stop;
    _Alignas(K3I_ALIGN) _Atomic uint32_t generation;
    _Alignas(K3I_ALIGN) _Atomic uint32_t busy;
    _Alignas(K3I_ALIGN) _Atomic uint32_t sleepers; /* workers in a futex wait on `generation` */
    _Atomic uint32_t main_sleeps;
    member members[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* Waits until *word differs from `old`. */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t old, size_t spin,
                            _Atomic uint32_t *sleepers)
{
    for (size_t i = 0; i < spin; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
        relax();
    }
    for (;;) {
        atomic_fetch_add(sleepers, 1);
        if (atomic_load(word) == old)
            futex_wait(word, old);
        atomic_fetch_sub(sleepers, 1);
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
    }
}

static void *worker(void *arg)
{
    const member *m = arg;
    k3i_team *t = m->team;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_change(&t->generation, seen, t->spin, &t->sleepers);
        if (t->stop)
            return NULL;
        t->fn(t->arg, m->index, t->n);
        if (atomic_fetch_sub(&t->busy, 1) == 1 && atomic_load(&t->main_sleeps) != 0)
            futex_wake(&t->busy, 1);
    }
}

static void publish(k3i_team *t)
{
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->sleepers) != 0)
        futex_wake(&t->generation, (int)t->n);
}

static k3_status pin(pthread_t thread, int32_t cpu, k3i_err *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return k3i_fail(err, K3_E_ARG, "CPU %d does not exist", cpu);
    CPU_SET((unsigned)cpu, &set);
    if (pthread_setaffinity_np(thread, sizeof set, &set) != 0)
        return k3i_fail(err, K3_E_ARG, "a thread cannot be pinned to CPU %d", cpu);
    return K3_OK;
}

k3_status k3i_team_new(size_t n_threads, const int32_t *cpus, size_t n_cpus, k3i_team **ret,
                       k3i_err *err)
{
    size_t bytes;
    if (n_threads == 0 || n_threads > 4096)
        return k3i_fail(err, K3_E_ARG, "a team of %zu threads: 1..4096 are possible", n_threads);
    if (!k3i_mul_size(n_threads, sizeof(member), &bytes))
        return k3i_fail(err, K3_E_NOMEM, "no memory for %zu threads", n_threads);
    k3i_team *t = k3i_alloc_zero(sizeof *t + bytes);
    if (t == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for %zu threads", n_threads);
    t->n = n_threads;
    /* More members than processors: spinning would take the processor from the one that works. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    t->spin = online > 0 && n_threads <= (size_t)online ? SPIN : 0;
    k3_status st = n_cpus > 0 ? pin(pthread_self(), cpus[0], err) : K3_OK;
    for (size_t i = 1; st == K3_OK && i < n_threads; i++) {
        t->members[i] = (member){.team = t, .index = i};
        int rc = k3i_thread_start(&t->members[i].thread, worker, &t->members[i]);
        if (rc != 0) {
            st = k3i_fail(err, K3_E_NOMEM, "thread %zu of %zu cannot be made: %s", i, n_threads,
                          strerror(rc));
            break;
        }
        t->n_started++;
        if (n_cpus > 0)
            st = pin(t->members[i].thread, cpus[i % n_cpus], err);
    }
    if (st != K3_OK) {
        k3i_team_free(t);
        return st;
    }
    *ret = t;
    return K3_OK;
}

void k3i_team_free(k3i_team *team)
{
    if (team == NULL)
        return;
    team->stop = true;
    publish(team);
    for (size_t i = 1; i <= team->n_started; i++)
        pthread_join(team->members[i].thread, NULL);
    k3i_free(team);
}

size_t k3i_team_size(const k3i_team *team)
{
    return team->n;
}

void k3i_team_run(k3i_team *team, k3i_team_fn fn, void *arg)
{
    if (team->n == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    atomic_store(&team->busy, (uint32_t)(team->n - 1));
    publish(team);
    fn(arg, 0, team->n);
    for (uint32_t left = atomic_load(&team->busy); left != 0; left = atomic_load(&team->busy))
        wait_change(&team->busy, left, team->spin, &team->main_sleeps);
}

void k3i_team_deal(k3i_team *team, size_t n_items)
{
    for (size_t i = 0; i < team->n; i++) {
        size_t from, to;
        k3i_team_split(n_items, 1, i, team->n, &from, &to);
        atomic_store_explicit(&team->members[i].range, from | (uint64_t)to << 32,
                              memory_order_relaxed); /* published by the step */
    }
}

/* Takes from the beginning of a range, or from its end. */
static bool take(_Atomic uint64_t *range, bool end, size_t least, size_t *ret_from, size_t *ret_to)
{
    uint64_t old = atomic_load_explicit(range, memory_order_relaxed), rest;
    do {
        size_t from = old & UINT32_MAX, to = old >> 32;
        size_t n = (to - from) / TAKE;
        if (from == to)
            return false;
        n = n > least ? n : least;
        n = to - from < n + least ? to - from : n;
        *ret_from = end ? to - n : from;
        *ret_to = end ? to : from + n;
        rest = end ? from | (uint64_t)(to - n) << 32 : (from + n) | (uint64_t)to << 32;
    } while (!atomic_compare_exchange_weak_explicit(range, &old, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool k3i_team_take(k3i_team *team, size_t i, size_t least, size_t *ret_from, size_t *ret_to)
{
    for (size_t k = 0; k < team->n; k++) {
        if (take(&team->members[(i + k) % team->n].range, k > 0, least, ret_from, ret_to))
            return true;
    }
    return false;
}

void k3i_team_split(size_t n_items, size_t grain, size_t i, size_t n, size_t *ret_from,
                    size_t *ret_to)
{
    size_t n_grains = (n_items + grain - 1) / grain;
    size_t base = n_grains / n, extra = n_grains % n;
    size_t from = (i * base + (i < extra ? i : extra)) * grain;
    size_t to = ((i + 1) * base + (i + 1 < extra ? i + 1 : extra)) * grain;
    *ret_from = from < n_items ? from : n_items;
    *ret_to = to < n_items ? to : n_items;
}
