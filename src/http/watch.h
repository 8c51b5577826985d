/* watch.h: notices at once that a client has gone away, also while its connection waits and nobody
 * reads from or writes to it; and a clock that ticks every second. */
#ifndef K3I_WATCH_H
#define K3I_WATCH_H

#include "alloc.h"

typedef struct k3i_watch k3i_watch;

/* `gone` is called on the watcher's thread, once for each id; `tick` as well. */
k3_status k3i_watch_new(void (*gone)(void *user, uint64_t id), void (*tick)(void *user), void *user,
                        k3i_watch **ret, k3i_err *err);
void k3i_watch_free(k3i_watch *w);
/* Watches a socket under an id that is never used again. */
void k3i_watch_add(k3i_watch *w, int fd, uint64_t id);
void k3i_watch_remove(k3i_watch *w, int fd);

#endif
