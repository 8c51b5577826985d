/* fixture.h: guarded, misaligned buffers and comparisons for the kernel tests. */
#ifndef K3_KERNEL_FIXTURE_H
#define K3_KERNEL_FIXTURE_H

#include "test.h"

#include "kernels.h"

/* Tolerance of each op across instruction sets, from the class in kernels.def: 0 = the same bits.
 */
#define EXACT 0.0f
#define REL(x) ((float)(x))
typedef struct {
#define OP(name, class, args) float name;
#include "kernels.def"
#undef OP
} fx_tolerances;
extern const fx_tolerances fx_tol;

/* A pool of buffers that live for one case. Every buffer has 64 guard bytes on both sides. */
typedef struct {
    struct {
        uint8_t *base;
        size_t bytes;
    } buf[48];
    size_t n_buf;
    uint64_t seed;
} fx;

void fx_init(fx *f, uint64_t seed);
/* n elements of `size` bytes whose address is `offset` elements past a 64-byte boundary; contents
 * are guard bytes. */
void *fx_new(fx *f, size_t n, size_t size, size_t offset);
/* Checks all guards and frees everything. */
void fx_done(fx *f, const char *what);

/* Random contents, offset 0..3 elements from the seed. */
float *fx_floats(fx *f, size_t n, float scale);
k3i_bf16 *fx_bf16(fx *f, size_t n, float scale);
uint8_t *fx_bytes(fx *f, size_t n, uint8_t from, uint8_t to); /* uniform in from..to */
/* Uninitialised output with the same offset rule. */
float *fx_out(fx *f, size_t n);
float *fx_copy(fx *f, const float *x, size_t n);

/* |got - want| <= tol * max |want|, NaN where NaN, equal infinities; tol 0: the same bits (any NaN
 * for NaN). */
void fx_expect(const float *got, const float *want, size_t n, float tol, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same bytes. */
void fx_same(const void *got, const void *want, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define FOR_EACH_ISA(ops) for (size_t isa_ = 0; ops = k3i_ops_nth(isa_), ops != NULL; isa_++)
#define REF (k3i_ops_nth(0))

#endif
