#include "fixture.h"

#include <math.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

const fx_tolerances fx_tol = {
#define OP(name, class, args) .name = class,
#include "kernels.def"
#undef OP
};

void fx_init(fx *f, uint64_t seed)
{
    memset(f, 0, sizeof *f);
    f->seed = seed;
}

void *fx_new(fx *f, size_t n, size_t size, size_t offset)
{
    assert_true(f->n_buf < sizeof f->buf / sizeof f->buf[0]);
    size_t lead = GUARD + offset * size, bytes = lead + n * size + GUARD;
    uint8_t *base = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(base);
    memset(base, GUARD_BYTE, (bytes + 63) / 64 * 64);
    f->buf[f->n_buf].base = base;
    f->buf[f->n_buf].bytes = bytes;
    /* The lead is found again by fx_done through `bytes`: keep it in the guard's first byte. */
    base[0] = (uint8_t)lead;
    f->n_buf++;
    return base + lead;
}

void fx_done(fx *f, const char *what)
{
    for (size_t b = 0; b < f->n_buf; b++) {
        uint8_t *base = f->buf[b].base;
        size_t lead = base[0], bytes = f->buf[b].bytes;
        for (size_t i = 1; i < lead; i++) {
            if (base[i] != GUARD_BYTE)
                fail_msg("%s: byte %zu before buffer %zu was written", what, lead - i, b);
        }
        for (size_t i = bytes - GUARD; i < bytes; i++) {
            if (base[i] != GUARD_BYTE)
                fail_msg("%s: byte %zu behind buffer %zu was written", what, i - bytes + GUARD, b);
        }
        free(base);
    }
    f->n_buf = 0;
}

static size_t offset(fx *f)
{
    return test_rnd(&f->seed) % 4;
}

float *fx_out(fx *f, size_t n)
{
    return fx_new(f, n, sizeof(float), offset(f));
}

float *fx_floats(fx *f, size_t n, float scale)
{
    float *x = fx_out(f, n);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * test_rnd_float(&f->seed);
    return x;
}

float *fx_copy(fx *f, const float *x, size_t n)
{
    float *y = fx_out(f, n);
    memcpy(y, x, n * sizeof *x);
    return y;
}

k3i_bf16 *fx_bf16(fx *f, size_t n, float scale)
{
    k3i_bf16 *x = fx_new(f, n, sizeof(k3i_bf16), offset(f));
    for (size_t i = 0; i < n; i++)
        x[i] = k3i_to_bf16(scale * test_rnd_float(&f->seed));
    return x;
}

uint8_t *fx_bytes(fx *f, size_t n, uint8_t from, uint8_t to)
{
    uint8_t *x = fx_new(f, n, 1, offset(f));
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(from + test_rnd(&f->seed) % ((uint64_t)(to - from) + 1));
    return x;
}

void fx_expect(const float *got, const float *want, size_t n, float tol, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    float top = 0;
    for (size_t i = 0; i < n; i++) {
        if (isfinite(want[i]) && fabsf(want[i]) > top)
            top = fabsf(want[i]);
    }
    for (size_t i = 0; i < n; i++) {
        int ok;
        if (isnan(want[i])) {
            ok = isnan(got[i]);
        } else if (tol == 0.0f) {
            ok = memcmp(got + i, want + i, sizeof *got) == 0;
        } else if (isinf(want[i])) {
            ok = isinf(got[i]) && signbit(got[i]) == signbit(want[i]);
        } else {
            ok = fabs((double)got[i] - (double)want[i]) <= (double)tol * (double)top;
        }
        if (!ok)
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g (largest %.3g, tolerance %.1e)",
                     what, i, n, (double)got[i], (double)want[i], (double)top, (double)tol);
    }
}

void fx_same(const void *got, const void *want, size_t bytes, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const uint8_t *g = got, *w = want;
    for (size_t i = 0; i < bytes; i++) {
        if (g[i] != w[i])
            fail_msg("%s: byte %zu of %zu is %02x, expected %02x", what, i, bytes, g[i], w[i]);
    }
}
