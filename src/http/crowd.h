/* crowd.h: the open connections: how many there may be, and how long one may take to send a
 * request. Somebody who sends a byte now and then is never idle, but has no right to a place; nor
 * has one who has said that nothing more will come. */
#ifndef K3I_CROWD_H
#define K3I_CROWD_H

#include "alloc.h"

#include <poll.h>
#include <pthread.h>

typedef struct k3i_seat_s k3i_seat;
struct k3i_seat_s {
    int fd;
    bool is_excess;   /* beyond the limit: to be told so */
    int64_t since_ns; /* a request has been due since then; 0 = one is being answered */
    k3i_seat *prev, *next;
};

typedef struct {
    pthread_mutex_t lock; /* guards all below and the seats */
    k3i_seat *seats;
    int32_t n, max;
    int64_t patience_ns;
    struct pollfd *poll; /* [cap_poll] of a sweep */
    k3i_seat **polled;   /* [cap_poll] */
    int32_t cap_poll;
} k3i_crowd;

void k3i_crowd_init(k3i_crowd *c, int32_t max, int64_t patience_ns);
void k3i_crowd_done(k3i_crowd *c);
/* A connection has come; NULL without memory, which the other functions allow. */
k3i_seat *k3i_crowd_enter(k3i_crowd *c, int fd);
/* Before its descriptor is closed. */
void k3i_crowd_leave(k3i_crowd *c, k3i_seat *seat);
/* Its request is complete, or its answer is. */
void k3i_crowd_expect(k3i_crowd *c, k3i_seat *seat, bool is_expected);
/* Hangs up on those that take too long, or have closed their side. One thread, once a second: a
 * request that came together with the end of input has been answered by then. */
void k3i_crowd_sweep(k3i_crowd *c);

#endif
