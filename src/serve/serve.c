/* serve.c: the engine thread and its inbox. The lock guards the inbox, the flags and the copy of
 * the statistics; it is held for a few instructions, never during a step. */
#include "serve.h"

#include "thread.h"

#include <errno.h>
#include <time.h>

/* With requests that cannot run yet (held by a deadline only) the thread looks again after this. */
enum { IDLE_MS = 10 };

struct k3i_serve {
    k3i_sched *sched; /* engine thread, except k3i_sched_check and the constant parts */
    pthread_t thread;
    int32_t max_waiting;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* the inbox or a flag has changed */
    pthread_cond_t quiet; /* all requests have ended */
    /* Under the lock. */
    k3i_request **inbox; /* [max_waiting] */
    int32_t n_inbox;
    int32_t n_open; /* handed over and not yet known to have ended */
    bool is_draining, is_cut, is_over, is_dead;
    k3i_stats stats;
};

static void publish(k3i_serve *s)
{
    k3i_stats stats;
    k3i_sched_stats(s->sched, &stats);
    pthread_mutex_lock(&s->lock);
    s->stats = stats;
    s->is_dead = stats.is_dead != 0;
    s->n_open = stats.running + stats.waiting + s->n_inbox;
    if (s->n_open == 0)
        pthread_cond_broadcast(&s->quiet);
    pthread_mutex_unlock(&s->lock);
}

/* Moves the inbox to the scheduler; sleeps while there is nothing at all. False = the thread ends.
 */
static bool take_inbox(k3i_serve *s, bool did_work, bool *ret_is_new)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_inbox == 0 && !s->is_over && !s->is_cut && !did_work) {
        if (!k3i_sched_is_idle(s->sched)) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += IDLE_MS * 1000000L;
            if (until.tv_nsec >= 1000000000L) {
                until.tv_nsec -= 1000000000L;
                until.tv_sec++;
            }
            pthread_cond_timedwait(&s->work, &s->lock, &until);
            break;
        }
        pthread_cond_wait(&s->work, &s->lock);
    }
    for (int32_t i = 0; i < s->n_inbox; i++) {
        k3i_sched_add(s->sched, s->inbox[i]);
        k3i_request_unref(s->inbox[i]); /* the inbox's reference */
    }
    *ret_is_new = s->n_inbox > 0;
    s->stats.waiting += s->n_inbox; /* until publish() tells exactly */
    s->n_inbox = 0;
    bool cut = s->is_cut || s->is_over, over = s->is_over;
    s->is_cut = false;
    pthread_mutex_unlock(&s->lock);
    if (cut)
        k3i_sched_end_all(s->sched, K3_FINISH_ABORT, "the server is shutting down");
    return !over;
}

static void *run(void *arg)
{
    k3i_serve *s = arg;
    bool did_work = false, is_new;
    while (take_inbox(s, did_work, &is_new)) {
        if (is_new) { /* they are counted before the step, which may take seconds */
            k3i_sched_begin(s->sched);
            publish(s);
        }
        did_work = k3i_sched_step(s->sched);
        publish(s);
    }
    publish(s);
    return NULL;
}

k3_status k3i_serve_new(const k3i_sched_config *config, int32_t max_waiting, k3i_serve **ret,
                        k3i_err *err)
{
    k3i_serve *s = k3i_alloc_zero(sizeof *s);
    if (s == NULL)
        return k3i_fail(err, K3_E_NOMEM, "server: out of memory");
    s->max_waiting = max_waiting;
    s->inbox = k3i_alloc_array((size_t)max_waiting + 1, sizeof *s->inbox);
    if (s->inbox == NULL) {
        k3i_free(s);
        return k3i_fail(err, K3_E_NOMEM, "server: out of memory");
    }
    k3_status status = k3i_sched_new(config, &s->sched, err);
    if (status != K3_OK) {
        k3i_free(s->inbox);
        k3i_free(s);
        return status;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->quiet, NULL);
    k3i_sched_stats(s->sched, &s->stats);
    int e = k3i_thread_start(&s->thread, run, s);
    if (e != 0) {
        k3i_sched_free(s->sched);
        k3i_free(s->inbox);
        k3i_free(s);
        return k3i_fail(err, K3_E_NOMEM, "engine thread: error %d", e);
    }
    *ret = s;
    return K3_OK;
}

void k3i_serve_free(k3i_serve *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->is_over = s->is_draining = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    k3i_sched_free(s->sched);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->quiet);
    k3i_free(s->inbox);
    k3i_free(s);
}

k3_status k3i_serve_submit(k3i_serve *s, k3i_request *r, k3i_err *err)
{
    k3_status status = k3i_sched_check(s->sched, r, err);
    if (status != K3_OK)
        return status;
    r->submit_ns = k3i_now_ns();
    pthread_mutex_lock(&s->lock);
    if (s->is_dead)
        status = k3i_fail(err, K3_E_FATAL, "the engine has failed");
    else if (s->is_draining)
        status = k3i_fail(err, K3_E_STATE, "the server is shutting down");
    else if (s->n_inbox + s->stats.waiting >= s->max_waiting)
        status = k3i_fail(err, K3_E_BUSY, "%d requests are waiting already", s->max_waiting);
    if (status == K3_OK) {
        k3i_request_ref(r);
        s->inbox[s->n_inbox++] = r;
        s->n_open++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void k3i_serve_drain(k3i_serve *s, int64_t limit_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ns / 1000000000;
    until.tv_nsec += limit_ns % 1000000000;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_mutex_lock(&s->lock);
    s->is_draining = true;
    while (s->n_open > 0) {
        if (pthread_cond_timedwait(&s->quiet, &s->lock, &until) != ETIMEDOUT)
            continue;
        s->is_cut = true;
        pthread_cond_signal(&s->work);
        while (s->n_open > 0)
            pthread_cond_wait(&s->quiet, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

void k3i_serve_stats(k3i_serve *s, k3i_stats *ret)
{
    pthread_mutex_lock(&s->lock);
    *ret = s->stats;
    ret->waiting += s->n_inbox;
    pthread_mutex_unlock(&s->lock);
}

const k3_info *k3i_serve_info(const k3i_serve *s)
{
    return k3i_sched_info(s->sched);
}

const k3_kv_layout *k3i_serve_layout(const k3i_serve *s)
{
    return k3i_sched_layout(s->sched);
}

const k3i_sched_config *k3i_serve_config(const k3i_serve *s)
{
    return k3i_sched_get_config(s->sched);
}

bool k3i_serve_is_dead(k3i_serve *s)
{
    pthread_mutex_lock(&s->lock);
    bool is_dead = s->is_dead;
    pthread_mutex_unlock(&s->lock);
    return is_dead;
}
