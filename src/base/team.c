/* team.c: fork-join on a generation counter. A step is published by storing the work and raising
 * `generation`; members report by lowering `busy`. Waiting is a bounded spin, then a futex sleep.
 * Written by: member 0 (work, generation, who works). Read by all. `busy` and the sleep flags are
 * atomic. A step without work sends the members from `stay` on to sleep. A call, which everybody
 * asleep looks at, brings those below `wanted` back; they begin with the step behind `called_at`.
 */
#include "team.h"

#include "clock.h"
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
    size_t n, active;
    size_t n_started;
    size_t spin;
    k3i_team_fn fn;
    void *arg;
    bool stop;
    size_t stay; /* of a step without work */
    int64_t slept;
    _Atomic uint32_t called_at; /* generation of the last call */
    _Atomic uint32_t wanted, calls;
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

/* Waits until *word differs from `old`. *ret_slept, which may be NULL, grows by the time in sleep.
 */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t old, size_t spin,
                            _Atomic uint32_t *sleepers, int64_t *ret_slept)
{
    for (size_t i = 0; i < spin; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != old)
            return now;
        relax();
    }
    int64_t start = ret_slept != NULL ? k3i_now_ns() : 0;
    uint32_t now;
    do {
        atomic_fetch_add(sleepers, 1);
        if (atomic_load(word) == old)
            futex_wait(word, old);
        atomic_fetch_sub(sleepers, 1);
        now = atomic_load_explicit(word, memory_order_acquire);
    } while (now == old);
    if (ret_slept != NULL)
        *ret_slept += k3i_now_ns() - start;
    return now;
}

/* Sleeps until a call behind number `seen` brings member i back; returns the last generation before
 * its first step. A member that was called cannot be sent to sleep before it has come: the step
 * that does so waits for it. */
static uint32_t wait_call(k3i_team *t, size_t i, uint32_t seen)
{
    do {
        while (atomic_load(&t->calls) == seen)
            futex_wait(&t->calls, seen);
        seen = atomic_load(&t->calls);
    } while (atomic_load(&t->wanted) <= i);
    return atomic_load(&t->called_at);
}

static void *worker(void *arg)
{
    const member *m = arg;
    k3i_team *t = m->team;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_change(&t->generation, seen, t->spin, &t->sleepers, NULL);
        if (t->stop)
            return NULL;
        bool leaves = t->fn == NULL && m->index >= t->stay;
        uint32_t calls = atomic_load(&t->calls);
        if (t->fn != NULL)
            t->fn(t->arg, m->index, t->active);
        if (atomic_fetch_sub(&t->busy, 1) == 1 && atomic_load(&t->main_sleeps) != 0)
            futex_wake(&t->busy, 1);
        if (leaves)
            seen = wait_call(t, m->index, calls);
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
    t->n = t->active = n_threads;
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
    k3i_team_set_active(team, team->n);
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

size_t k3i_team_active(const k3i_team *team)
{
    return team->active;
}

int64_t k3i_team_slept(const k3i_team *team)
{
    return team->slept;
}

/* All active members, also where there is no work for them. */
static void run_step(k3i_team *t, k3i_team_fn fn, void *arg)
{
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->busy, (uint32_t)(t->active - 1));
    publish(t);
    if (fn != NULL)
        fn(arg, 0, t->active);
    for (uint32_t left = atomic_load(&t->busy); left != 0; left = atomic_load(&t->busy))
        wait_change(&t->busy, left, t->spin, &t->main_sleeps, &t->slept);
}

void k3i_team_set_active(k3i_team *team, size_t n)
{
    if (n < team->active) {
        team->stay = n;
        run_step(team, NULL, NULL);
    } else if (n > team->active) {
        atomic_store(&team->called_at, atomic_load(&team->generation));
        atomic_store(&team->wanted, (uint32_t)n);
        atomic_fetch_add(&team->calls, 1);
        futex_wake(&team->calls, (int)team->n);
    }
    team->active = n;
}

void k3i_team_run(k3i_team *team, k3i_team_fn fn, void *arg)
{
    if (team->active == 1) {
        fn(arg, 0, 1);
    } else {
        run_step(team, fn, arg);
    }
}

void k3i_team_deal(k3i_team *team, size_t n_items)
{
    for (size_t i = 0; i < team->active; i++) {
        size_t from, to;
        k3i_team_split(n_items, 1, i, team->active, &from, &to);
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
    for (size_t k = 0; k < team->active; k++) {
        if (take(&team->members[(i + k) % team->active].range, k > 0, least, ret_from, ret_to))
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
