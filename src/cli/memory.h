/* memory.h: how much memory the program may still take. */
#ifndef K3I_CLI_MEMORY_H
#define K3I_CLI_MEMORY_H

#include <stdint.h>

/* Bytes to be had without taking pages from mapped weights of weight_bytes: on the machine, and
 * within the limits of the control groups (containers) that the process is in. `root` stands before
 * /proc and /sys: "" but in tests. 0: nothing, or nothing is known. */
int64_t k3i_free_memory(const char *root, int64_t weight_bytes);

#endif
