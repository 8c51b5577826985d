/* alloc.c: aligned heap with a per-thread failure hook. Every block is K3I_ALIGN-aligned. */
#include "alloc.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Blocks of several huge pages ask for them: what a step reads lies in more small pages than the
 * processor can keep the addresses of. */
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_MIN (2 * HUGE_PAGE)

/* The one exception to "no mutable globals": counters for tests, per thread, that change no result.
 */
static _Thread_local uint64_t n_alloc;
static _Thread_local uint64_t fail_at;

static bool fails_now(void)
{
    n_alloc++;
    return fail_at != 0 && n_alloc == fail_at;
}

static void *alloc_huge(size_t bytes)
{
    void *p = NULL;
    /* aligned_alloc wants whole huge pages, says C11; that would waste one of two. */
    if (posix_memalign(&p, HUGE_PAGE, bytes) != 0)
        return NULL;
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void *k3i_alloc(size_t bytes)
{
    size_t padded;
    if (fails_now() || !k3i_add_size(bytes, K3I_ALIGN - 1, &padded))
        return NULL;
    padded &= ~(size_t)(K3I_ALIGN - 1);
    if (bytes >= HUGE_MIN)
        return alloc_huge(padded);
    return aligned_alloc(K3I_ALIGN, padded == 0 ? K3I_ALIGN : padded);
}

void *k3i_alloc_zero(size_t bytes)
{
    void *p = k3i_alloc(bytes);
    if (p != NULL)
        memset(p, 0, bytes);
    return p;
}

void *k3i_alloc_array(size_t n, size_t size)
{
    size_t bytes;
    return k3i_mul_size(n, size, &bytes) ? k3i_alloc(bytes) : NULL;
}

void *k3i_realloc(void *p, size_t bytes)
{
    if (p == NULL)
        return k3i_alloc(bytes);
    /* realloc would lose the alignment, so grow by copy; growth is geometric at all callers. */
    void *q = k3i_alloc(bytes);
    if (q == NULL)
        return NULL;
    size_t old = malloc_usable_size(p);
    memcpy(q, p, old < bytes ? old : bytes);
    free(p);
    return q;
}

char *k3i_strdup(const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *p = k3i_alloc(bytes);
    if (p != NULL)
        memcpy(p, s, bytes);
    return p;
}

void k3i_free(void *p)
{
    free(p);
}

bool k3i_mul_size(size_t a, size_t b, size_t *ret)
{
    return !__builtin_mul_overflow(a, b, ret);
}

bool k3i_add_size(size_t a, size_t b, size_t *ret)
{
    return !__builtin_add_overflow(a, b, ret);
}

void k3i_alloc_fail_at(uint64_t n)
{
    fail_at = n == 0 ? 0 : n_alloc + n;
}

uint64_t k3i_alloc_count(void)
{
    return n_alloc;
}
