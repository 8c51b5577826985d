/* elementwise.c: conversions, norms, activations, rotation and searches, reference. */
#include "ref.h"

#include <math.h>

static float rounded(float x, int round)
{
    return round ? k3i_round_bf16(x) : x;
}

void k3i_from_bf16__ref(float *y, const k3i_bf16 *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = k3i_ref_bf16_at(x, i);
}

void k3i_to_bf16__ref(k3i_bf16 *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = k3i_to_bf16(x[i]);
}

void k3i_round_bf16__ref(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = k3i_round_bf16(x[i]);
}

void k3i_add__ref(float *y, const float *a, const float *b, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        y[i] = rounded(a[i] + b[i], round);
}

void k3i_mul__ref(float *y, const float *a, const float *b, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        y[i] = rounded(a[i] * b[i], round);
}

void k3i_axpy__ref(float *y, float s, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += s * x[i];
}

/* 1 / sqrt(mean(x^2) + eps) */
static float inverse_rms(const float *x, size_t n, float eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(1.0 / sqrt(sum / (double)n + (double)eps));
}

static float scaled(float x, float r, float w, int round)
{
    return rounded(rounded(x * r, round == 1) * w, round);
}

void k3i_rmsnorm__ref(float *y, const float *x, const k3i_bf16 *w, size_t n, float eps, int round)
{
    float r = inverse_rms(x, n, eps);
    for (size_t i = 0; i < n; i++)
        y[i] = scaled(x[i], r, k3i_from_bf16(w[i]), round);
}

void k3i_rmsnorm_wf32__ref(float *y, const float *x, const float *w, size_t n, float eps, int round)
{
    float r = inverse_rms(x, n, eps);
    for (size_t i = 0; i < n; i++)
        y[i] = scaled(x[i], r, w[i], round);
}

/* text-model 4.4: s_j = (v_j . wq) / rms(v_j); the un-normalised sources are mixed. The running
 * form of softmax needs no room for n_src scores. */
void k3i_attnres_mix__ref(float *y, const float *const *src, size_t n_src, const float *wq,
                          size_t n, float eps, int round)
{
    double max = -(double)INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; pass == 1 && i < n; i++)
            y[i] = 0;
        for (size_t j = 0; j < n_src; j++) {
            double dot = 0;
            for (size_t i = 0; i < n; i++)
                dot += (double)src[j][i] * (double)wq[i];
            double s = dot * (double)inverse_rms(src[j], n, eps);
            if (pass == 0) {
                double top = s > max ? s : max;
                sum = sum * k3i_ref_exp(max - top) + k3i_ref_exp(s - top);
                max = top;
                continue;
            }
            float p = (float)(k3i_ref_exp(s - max) / sum);
            for (size_t i = 0; i < n; i++)
                y[i] += p * src[j][i];
        }
    }
    for (size_t i = 0; i < n; i++)
        y[i] = rounded(y[i], round);
}

/* text-model 4.7: beta tanh(g / beta) sigma(g) * lb tanh(u / lb); the sigmoid takes the raw gate.
 */
void k3i_situ__ref(float *y, const float *gate, const float *up, size_t n, float beta,
                   float linear_beta, int round)
{
    double b = (double)beta, lb = (double)linear_beta;
    for (size_t i = 0; i < n; i++) {
        double g = (double)gate[i], u = (double)up[i];
        double cap = lb != 0 ? lb * k3i_ref_tanh(u / lb) : u;
        y[i] = rounded((float)(b * k3i_ref_tanh(g / b) * k3i_ref_sigmoid(g) * cap), round);
    }
}

void k3i_silu_mul__ref(float *y, const float *gate, const float *up, size_t n, int round)
{
    for (size_t i = 0; i < n; i++) {
        double g = (double)gate[i];
        y[i] = rounded((float)(g * k3i_ref_sigmoid(g) * (double)up[i]), round);
    }
}

void k3i_sigmoid__ref(float *y, const float *x, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        y[i] = rounded((float)k3i_ref_sigmoid((double)x[i]), round);
}

void k3i_gelu_tanh__ref(float *y, const float *x, size_t n, int round)
{
    for (size_t i = 0; i < n; i++) {
        double z = (double)x[i];
        double t = k3i_ref_tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
        y[i] = rounded((float)(0.5 * z * (1.0 + t)), round);
    }
}

void k3i_gelu_erf__ref(float *y, const float *x, size_t n, int round)
{
    for (size_t i = 0; i < n; i++) {
        double z = (double)x[i];
        y[i] = rounded((float)(0.5 * z * (1.0 + k3i_ref_erf(z * 0.7071067811865476))), round);
    }
}

void k3i_rope__ref(float *y, const float *x, const float *cs, size_t n_pair, int round)
{
    for (size_t p = 0; p < n_pair; p++) {
        float e = x[2 * p], o = x[2 * p + 1], c = cs[2 * p], s = cs[2 * p + 1];
        y[2 * p] = rounded(e * c - o * s, round);
        y[2 * p + 1] = rounded(e * s + o * c, round);
    }
}

void k3i_argmax__ref(size_t *ret, const float *x, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        if (x[i] == x[i] && (best == n || x[i] > x[best]))
            best = i;
    }
    *ret = best;
}

void k3i_all_finite__ref(int *ret, const float *x, size_t n)
{
    int ok = 1;
    for (size_t i = 0; i < n; i++)
        ok &= isfinite(x[i]) != 0;
    *ret = ok;
}
