/* clock.c: see clock.h. */
#include "clock.h"

#include <time.h>

int64_t k3i_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
