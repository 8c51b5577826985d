/* clock.h: the monotonic clock, for measurements and deadlines. */
#ifndef K3I_CLOCK_H
#define K3I_CLOCK_H

#include <stdint.h>

int64_t k3i_now_ns(void);

#endif
