/* gemm.c: matrix products, reference. One double sum per output, k ascending, rounded once. */
#include "ref.h"

#include <math.h>

/* E2M1 magnitudes and signs, text-model 3.5. Code 8 is -0. */
static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static double weight(const k3i_bf16 *w, size_t i)
{
    return (double)k3i_ref_bf16_at(w, i);
}

static double weight_f32(const float *w, size_t i)
{
    float f;
    memcpy(&f, (const char *)w + i * sizeof f, sizeof f);
    return (double)f;
}

/* Element c of one MXFP4 row: low nibble = even column, one scale a group of 32 columns. */
static double mxfp4(const uint8_t *packed, const uint8_t *scale, size_t c)
{
    uint8_t byte = packed[c / 2];
    unsigned code = c % 2 == 0 ? byte & 15u : (unsigned)byte >> 4;
    return (double)(e2m1[code] * k3i_from_e8m0(scale[c / 32]));
}

/* y[r, o] = sum over i < n of X W, both expressions of r, o and i. */
#define PRODUCT(n_out, n, X, W)               \
    for (size_t r = 0; r < n_row; r++) {      \
        for (size_t o = 0; o < n_out; o++) {  \
            double sum = 0;                   \
            for (size_t i = 0; i < n; i++)    \
                sum += (X) * (W);             \
            y[r * y_stride + o] = (float)sum; \
        }                                     \
    }

void k3i_gemm_bf16__ref(float *y, size_t y_stride, const k3i_bf16 *x, size_t x_stride,
                        const k3i_bf16 *w, size_t n_row, size_t n_out, size_t k)
{
    PRODUCT(n_out, k, (double)k3i_from_bf16(x[r * x_stride + i]), weight(w, o * k + i))
}

void k3i_gemm_f32__ref(float *y, size_t y_stride, const float *x, size_t x_stride,
                       const k3i_bf16 *w, size_t n_row, size_t n_out, size_t k)
{
    PRODUCT(n_out, k, (double)x[r * x_stride + i], weight(w, o * k + i))
}

void k3i_gemm_wf32__ref(float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
                        size_t n_row, size_t n_out, size_t k)
{
    PRODUCT(n_out, k, (double)x[r * x_stride + i], weight_f32(w, o * k + i))
}

void k3i_gemm_mxfp4_bf16__ref(float *y, size_t y_stride, const k3i_bf16 *x, size_t x_stride,
                              const uint8_t *packed, const uint8_t *scale, size_t n_row,
                              size_t n_out, size_t k)
{
    PRODUCT(n_out, k, (double)k3i_from_bf16(x[r * x_stride + i]),
            mxfp4(packed + o * (k / 2), scale + o * (k / 32), i))
}

void k3i_gemm_mxfp4_f32__ref(float *y, size_t y_stride, const float *x, size_t x_stride,
                             const uint8_t *packed, const uint8_t *scale, size_t n_row,
                             size_t n_out, size_t k)
{
    PRODUCT(n_out, k, (double)x[r * x_stride + i],
            mxfp4(packed + o * (k / 2), scale + o * (k / 32), i))
}

void k3i_gemm_t_f32__ref(float *y, size_t y_stride, const float *x, size_t x_stride,
                         const k3i_bf16 *w, size_t n_row, size_t n_in, size_t n_col)
{
    PRODUCT(n_col, n_in, (double)x[r * x_stride + i], weight(w, i * n_col + o))
}
