/* test.h: what every unit test includes, in the order cmocka wants. */
#ifndef K3_TEST_H
#define K3_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* splitmix64: a seeded source for property tests; the state is the seed. */
static inline uint64_t test_rnd(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static inline float test_rnd_float(uint64_t *state)
{
    return (float)((double)(test_rnd(state) >> 40) * 0x1p-23 - 1.0);
}

#endif
