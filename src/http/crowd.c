/* crowd.c: a list under a lock. A hang-up is a shutdown of the socket: the server's loop sees an
 * end of input and closes the descriptor itself. */
#include "crowd.h"

#include "clock.h"

#include <sys/socket.h>

#define SECOND_NS INT64_C(1000000000)

void k3i_crowd_init(k3i_crowd *c, int32_t max, int64_t patience_ns)
{
    *c = (k3i_crowd){.max = max, .patience_ns = patience_ns};
    pthread_mutex_init(&c->lock, NULL);
}

void k3i_crowd_done(k3i_crowd *c)
{
    pthread_mutex_destroy(&c->lock);
    k3i_free(c->poll);
    k3i_free(c->polled);
}

k3i_seat *k3i_crowd_enter(k3i_crowd *c, int fd)
{
    k3i_seat *seat = k3i_alloc_zero(sizeof *seat);
    if (seat == NULL)
        return NULL;
    seat->fd = fd;
    seat->since_ns = k3i_now_ns();
    pthread_mutex_lock(&c->lock);
    seat->is_excess = ++c->n > c->max;
    seat->next = c->seats;
    if (c->seats != NULL)
        c->seats->prev = seat;
    c->seats = seat;
    pthread_mutex_unlock(&c->lock);
    return seat;
}

void k3i_crowd_leave(k3i_crowd *c, k3i_seat *seat)
{
    if (seat == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    c->n--;
    if (seat->prev != NULL)
        seat->prev->next = seat->next;
    else
        c->seats = seat->next;
    if (seat->next != NULL)
        seat->next->prev = seat->prev;
    pthread_mutex_unlock(&c->lock);
    k3i_free(seat);
}

void k3i_crowd_expect(k3i_crowd *c, k3i_seat *seat, bool is_expected)
{
    if (seat == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    seat->since_ns = is_expected ? k3i_now_ns() : 0;
    pthread_mutex_unlock(&c->lock);
}

static bool poll_room(k3i_crowd *c)
{
    if (c->n <= c->cap_poll)
        return true;
    size_t cap = (size_t)c->n + 64;
    struct pollfd *p = k3i_realloc(c->poll, cap * sizeof *p);
    if (p != NULL)
        c->poll = p;
    k3i_seat **seats = k3i_realloc(c->polled, cap * sizeof *seats);
    if (seats != NULL)
        c->polled = seats;
    if (p == NULL || seats == NULL)
        return false;
    c->cap_poll = (int32_t)cap;
    return true;
}

static void hang_up(k3i_seat *seat)
{
    shutdown(seat->fd, SHUT_RDWR);
    seat->since_ns = 0;
}

/* Two passes, because one system call asks for all. */
void k3i_crowd_sweep(k3i_crowd *c)
{
    int64_t now = k3i_now_ns();
    int32_t n = 0;
    pthread_mutex_lock(&c->lock);
    bool has_room = poll_room(c);
    for (k3i_seat *seat = c->seats; seat != NULL; seat = seat->next) {
        int64_t waited = seat->since_ns == 0 ? 0 : now - seat->since_ns;
        if (waited >= c->patience_ns) {
            hang_up(seat);
        } else if (waited >= SECOND_NS && has_room) {
            c->poll[n] = (struct pollfd){.fd = seat->fd, .events = POLLRDHUP};
            c->polled[n++] = seat;
        }
    }
    int n_closed = n > 0 ? poll(c->poll, (nfds_t)n, 0) : 0;
    for (int32_t i = 0; i < n && n_closed > 0; i++) {
        if (c->poll[i].revents != 0)
            hang_up(c->polled[i]);
    }
    pthread_mutex_unlock(&c->lock);
}
