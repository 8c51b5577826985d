/* thread.h: starts a thread whose stack does not depend on the shell's limit (ulimit -s) or on the
 * C library, some of which give 128 KiB. */
#ifndef K3I_THREAD_H
#define K3I_THREAD_H

#include <pthread.h>

/* Most of what a call into the engine takes of the caller's stack, as k3.h promises. A kernel keeps
 * 128 KiB of activations there (kernels/avx512/gemm_bf16.c), everything else less than 32 KiB. */
#define K3I_CALL_STACK ((size_t)256 << 10)

/* Of our own threads: what glibc gives where there is no limit; also decoders of pictures, TLS and
 * name look-ups run on them, and sanitizers enlarge every frame. Only touched pages are memory. */
#define K3I_THREAD_STACK ((size_t)2 << 20)

/* pthread_create with that stack; 0 or an errno. */
int k3i_thread_start(pthread_t *ret, void *(*run)(void *), void *arg);

#endif
