/* thread.c: see thread.h. */
#include "thread.h"

int k3i_thread_start(pthread_t *ret, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_attr_setstacksize(&attr, K3I_THREAD_STACK);
    if (rc == 0)
        rc = pthread_create(ret, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return rc;
}
