/* alloc.h: the only way to the heap. All memory of the library goes through here, so that tests can
 * make the Nth allocation fail and a debug guard can trap allocations inside a step. */
#ifndef K3I_ALLOC_H
#define K3I_ALLOC_H

#include "err.h"

#include <stdbool.h>

#define K3I_ALIGN 64 /* cache line, and the widest vector */

/* All return NULL when memory is out; sizes of 0 give a valid pointer. Free with k3i_free. */
void *k3i_alloc(size_t bytes);
void *k3i_alloc_zero(size_t bytes);
/* n * size with overflow check; K3I_ALIGN-aligned, contents undefined. */
void *k3i_alloc_array(size_t n, size_t size);
/* Like realloc: on failure the old block stays. */
void *k3i_realloc(void *p, size_t bytes);
char *k3i_strdup(const char *s);
void k3i_free(void *p);

/* a * b and a + b of sizes that come from files or requests: false if it overflows. */
bool k3i_mul_size(size_t a, size_t b, size_t *ret);
bool k3i_add_size(size_t a, size_t b, size_t *ret);

/* Tests only: the Nth allocation of this thread from now on fails (0 = never again). Thread-local.
 */
void k3i_alloc_fail_at(uint64_t n);
/* Allocations of this thread so far: a debug guard compares it before and after a step. */
uint64_t k3i_alloc_count(void);

#endif
