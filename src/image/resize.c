/* resize.c: Pillow's bicubic (a = -0.5, widened on downscale), bit for bit: horizontal pass first,
 * 8-bit intermediate, 22-bit integer weights. Formulas: vision 3.3. RGBA is filtered with its
 * colours multiplied by alpha, so that hidden colours do not bleed. */
#include "picture.h"

#include "resize_pass.h"

#include <math.h>
#include <string.h>

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0)
        return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

/* Filter of one axis before and after rounding of the weights; real is [n_out, cap]. */
typedef struct {
    k3i_taps taps;
    double *real;
} filter;

static void filter_done(filter *f)
{
    k3i_free(f->taps.lo);
    k3i_free(f->taps.n);
    k3i_free(f->taps.q);
    k3i_free(f->real);
}

/* Weights of output i: f->real row i, normalised; returns nothing to free. */
static void filter_row(filter *f, size_t i, double scale, double widen, uint32_t n_in)
{
    double support = 2.0 * widen;
    double inv = 1.0 / widen;
    double center = ((double)i + 0.5) * scale;
    double from = center - support + 0.5;
    double to = center + support + 0.5;
    uint32_t lo = from < 0.0 ? 0 : (uint32_t)from;
    uint32_t hi = to > (double)n_in ? n_in : (uint32_t)to;
    double *k = f->real + i * f->taps.cap;
    double sum = 0.0;
    for (uint32_t j = 0; j < hi - lo; j++) {
        k[j] = bicubic(((double)(lo + j) - center + 0.5) * inv);
        sum += k[j];
    }
    for (uint32_t j = 0; j < hi - lo; j++) {
        if (sum != 0.0)
            k[j] /= sum;
        double q = k[j] * (double)(1 << K3I_RESIZE_BITS);
        f->taps.q[i * f->taps.cap + j] = (int32_t)(k[j] < 0 ? q - 0.5 : q + 0.5);
    }
    f->taps.lo[i] = lo;
    f->taps.n[i] = hi - lo;
}

static k3_status filter_new(uint32_t n_in, uint32_t n_out, filter *ret, k3i_err *err)
{
    double scale = (double)n_in / n_out;
    double widen = scale < 1.0 ? 1.0 : scale;
    filter f = {0};
    f.taps.cap = (size_t)ceil(2.0 * widen) * 2 + 1;
    size_t n = 0;
    bool fits = k3i_mul_size(f.taps.cap, n_out, &n);
    f.taps.lo = k3i_alloc_array(n_out, sizeof *f.taps.lo);
    f.taps.n = k3i_alloc_array(n_out, sizeof *f.taps.n);
    f.taps.q = fits ? k3i_alloc_array(n, sizeof *f.taps.q) : NULL;
    f.real = fits ? k3i_alloc_array(n, sizeof *f.real) : NULL;
    if (f.taps.lo == NULL || f.taps.n == NULL || f.taps.q == NULL || f.real == NULL) {
        filter_done(&f);
        return k3i_fail(err, K3_E_NOMEM, "no memory to resize %u pixels to %u", n_in, n_out);
    }
    for (size_t i = 0; i < n_out; i++)
        filter_row(&f, i, scale, widen, n_in);
    *ret = f;
    return K3_OK;
}

static const k3i_resize_passes *best_passes(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return &k3i_resize_avx2;
#endif
    return &k3i_resize_plain;
}

/* 32-bit samples: sums in f64, halves away from zero. The filter overshoots beside edges, so that
 * extreme samples leave the range: they stop at its ends. */
static int32_t round_wide(double s)
{
    double r = s >= 0.0 ? floor(s + 0.5) : -floor(fabs(s) + 0.5);
    return r >= INT32_MAX ? INT32_MAX : r <= INT32_MIN ? INT32_MIN : (int32_t)r;
}

static void wide_pass(int32_t *out, const int32_t *in, const filter *f, size_t i, size_t step)
{
    double sum = 0.0;
    for (size_t j = 0; j < f->taps.n[i]; j++)
        sum += (double)in[(f->taps.lo[i] + j) * step] * f->real[i * f->taps.cap + j];
    *out = round_wide(sum);
}

/* Replaces the picture by one of w columns. */
static k3_status resize_across(k3i_picture *pic, uint32_t w, k3i_err *err)
{
    size_t px = k3i_pix_bytes(pic->mode);
    filter f;
    k3_status st = filter_new(pic->w, w, &f, err);
    if (st != K3_OK)
        return st;
    uint8_t *data = k3i_alloc_array((size_t)w * pic->h, px);
    if (data == NULL) {
        filter_done(&f);
        return k3i_fail(err, K3_E_NOMEM, "no memory to resize to %u x %u", w, pic->h);
    }
    const k3i_resize_passes *passes = best_passes();
    for (size_t y = 0; y < pic->h; y++) {
        const uint8_t *in = pic->data + y * pic->w * px;
        uint8_t *out = data + y * w * px;
        if (pic->mode != K3I_PIX_WIDE) {
            passes->across(out, in, &f.taps, w, px);
            continue;
        }
        for (size_t x = 0; x < w; x++)
            wide_pass((int32_t *)(void *)out + x, (const int32_t *)(const void *)in, &f, x, 1);
    }
    filter_done(&f);
    k3i_free(pic->data);
    pic->data = data;
    pic->w = w;
    return K3_OK;
}

/* Replaces the picture by one of h rows. */
static k3_status resize_down(k3i_picture *pic, uint32_t h, k3i_err *err)
{
    size_t px = k3i_pix_bytes(pic->mode);
    size_t row = pic->w * px;
    filter f;
    k3_status st = filter_new(pic->h, h, &f, err);
    if (st != K3_OK)
        return st;
    uint8_t *data = k3i_alloc_array(row, h);
    int32_t *acc = k3i_alloc_array(row, sizeof *acc);
    if (data == NULL || acc == NULL) {
        k3i_free(data);
        k3i_free(acc);
        filter_done(&f);
        return k3i_fail(err, K3_E_NOMEM, "no memory to resize to %u x %u", pic->w, h);
    }
    const k3i_resize_passes *passes = best_passes();
    for (size_t y = 0; y < h; y++) {
        if (pic->mode != K3I_PIX_WIDE) {
            passes->down(data + y * row, pic->data, &f.taps, y, row, acc);
            continue;
        }
        int32_t *out = (int32_t *)(void *)(data + y * row);
        const int32_t *in = (const int32_t *)(const void *)pic->data;
        for (size_t x = 0; x < pic->w; x++)
            wide_pass(out + x, in + x, &f, y, pic->w);
    }
    k3i_free(acc);
    filter_done(&f);
    k3i_free(pic->data);
    pic->data = data;
    pic->h = h;
    return K3_OK;
}

/* Source index of each output: the position is accumulated, not multiplied, as in the reference. */
static uint32_t *nearest_table(uint32_t n_in, uint32_t n_out)
{
    uint32_t *t = k3i_alloc_array(n_out, sizeof *t);
    double step = (double)n_in / n_out;
    double at = step * 0.5;
    for (uint32_t i = 0; t != NULL && i < n_out; i++, at += step)
        t[i] = (uint32_t)at < n_in ? (uint32_t)at : n_in - 1;
    return t;
}

static k3_status resize_nearest(k3i_picture *pic, uint32_t w, uint32_t h, k3i_err *err)
{
    uint32_t *xs = nearest_table(pic->w, w);
    uint32_t *ys = nearest_table(pic->h, h);
    uint8_t *data = k3i_alloc_array(w, h);
    k3_status st = K3_OK;
    if (xs == NULL || ys == NULL || data == NULL) {
        st = k3i_fail(err, K3_E_NOMEM, "no memory to resize to %u x %u", w, h);
        goto out;
    }
    for (size_t y = 0; y < h; y++) {
        const uint8_t *row = pic->data + (size_t)ys[y] * pic->w;
        for (size_t x = 0; x < w; x++)
            data[y * w + x] = row[xs[x]];
    }
    uint8_t *old = pic->data;
    pic->data = data;
    data = old;
    pic->w = w;
    pic->h = h;
out:
    k3i_free(xs);
    k3i_free(ys);
    k3i_free(data);
    return st;
}

static void premultiply(k3i_picture *pic)
{
    size_t n = (size_t)pic->w * pic->h;
    for (uint8_t *p = pic->data; n > 0; n--, p += 4) {
        for (int c = 0; c < 3; c++)
            p[c] = k3i_muldiv255(p[c], p[3]);
    }
}

static void unpremultiply(k3i_picture *pic)
{
    size_t n = (size_t)pic->w * pic->h;
    for (uint8_t *p = pic->data; n > 0; n--, p += 4) {
        unsigned a = p[3];
        if (a == 0 || a == 255)
            continue;
        for (int c = 0; c < 3; c++) {
            unsigned v = 255u * p[c] / a;
            p[c] = (uint8_t)(v > 255 ? 255 : v);
        }
    }
}

k3_status k3i_picture_resize(k3i_picture *pic, uint32_t w, uint32_t h, k3i_err *err)
{
    if (w == pic->w && h == pic->h)
        return K3_OK;
    if (w == 0 || h == 0)
        return k3i_fail(err, K3_E_ARG, "a picture cannot be resized to %u x %u", w, h);
    if (pic->mode == K3I_PIX_BIT || pic->mode == K3I_PIX_PALETTE)
        return resize_nearest(pic, w, h, err);
    if (pic->mode == K3I_PIX_RGBA)
        premultiply(pic);
    k3_status st = w == pic->w ? K3_OK : resize_across(pic, w, err);
    if (st == K3_OK && h != pic->h)
        st = resize_down(pic, h, err);
    if (st == K3_OK && pic->mode == K3I_PIX_RGBA)
        unpremultiply(pic);
    return st;
}
