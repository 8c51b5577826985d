/* watch.c: an epoll instance of its own beside the server's, for hang-ups only. Ids instead of
 * pointers: an event may be on its way while the connection ends. */
#include "watch.h"

#include "clock.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct k3i_watch {
    int epoll, stop;
    pthread_t thread;
    void (*gone)(void *user, uint64_t id);
    void (*tick)(void *user);
    void *user;
};

#define SECOND_NS INT64_C(1000000000)

static void *run(void *arg)
{
    k3i_watch *w = arg;
    struct epoll_event events[64];
    int64_t next = k3i_now_ns() + SECOND_NS;
    for (;;) {
        int64_t left = next - k3i_now_ns();
        int n = epoll_wait(w->epoll, events, 64, left > 0 ? (int)(left / 1000000) + 1 : 0);
        if (n < 0 && errno != EINTR)
            return NULL;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0)
                return NULL;
            w->gone(w->user, events[i].data.u64);
        }
        if (k3i_now_ns() >= next) {
            w->tick(w->user);
            next = k3i_now_ns() + SECOND_NS;
        }
    }
}

k3_status k3i_watch_new(void (*gone)(void *user, uint64_t id), void (*tick)(void *user), void *user,
                        k3i_watch **ret, k3i_err *err)
{
    k3i_watch *w = k3i_alloc_zero(sizeof *w);
    if (w == NULL)
        return k3i_fail(err, K3_E_NOMEM, "connection watcher: out of memory");
    w->gone = gone;
    w->tick = tick;
    w->user = user;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop = eventfd(0, EFD_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    if (w->epoll < 0 || w->stop < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->stop, &e) != 0 ||
        k3i_thread_start(&w->thread, run, w) != 0) {
        k3i_fail(err, K3_E_IO, "connection watcher: %s", strerror(errno));
        if (w->epoll >= 0)
            close(w->epoll);
        if (w->stop >= 0)
            close(w->stop);
        k3i_free(w);
        return K3_E_IO;
    }
    *ret = w;
    return K3_OK;
}

void k3i_watch_free(k3i_watch *w)
{
    if (w == NULL)
        return;
    uint64_t one = 1;
    ssize_t written = write(w->stop, &one, sizeof one);
    (void)written; /* 8 bytes into an eventfd that nobody reads cannot fail */
    pthread_join(w->thread, NULL);
    close(w->epoll);
    close(w->stop);
    k3i_free(w);
}

void k3i_watch_add(k3i_watch *w, int fd, uint64_t id)
{
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};
    if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &e) != 0 && errno == EEXIST)
        epoll_ctl(w->epoll, EPOLL_CTL_MOD, fd, &e);
}

void k3i_watch_remove(k3i_watch *w, int fd)
{
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, fd, NULL);
}
