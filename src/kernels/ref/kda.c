/* kda.c: Kimi Delta Attention, reference. Formulas: text-model 4.5. */
#include "ref.h"

#include <math.h>

static void conv_silu(float *y, const float *const *rows, const float *w, size_t n, size_t n_tap,
                      int round)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t j = 0; j < n_tap; j++)
            sum += (double)rows[j][i] * (double)w[j * n + i];
        float v = (float)(sum * k3i_ref_sigmoid(sum));
        y[i] = round ? k3i_round_bf16(v) : v;
    }
}

static void l2norm(float *x, size_t d, double scale)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    double r = scale / sqrt(sum + 1e-6); /* eps on the sum, inside the root: 4.5.2 */
    for (size_t i = 0; i < d; i++)
        x[i] = (float)((double)x[i] * r);
}

void k3i_kda_in__ref(float *q, float *k, float *v, float *decay, const float *const *rows,
                     const float *w, const float *g, size_t g_stride, const float *dt_bias,
                     float exp_a, float lower_bound, size_t n_tok, size_t n_tap, size_t d,
                     int round)
{
    float *const y[3] = {q, k, v};
    for (size_t t = 0; t < n_tok; t++) {
        for (size_t x = 0; x < 3; x++)
            conv_silu(y[x] + t * d, rows + x * (n_tap - 1 + n_tok) + t, w + x * n_tap * d, d, n_tap,
                      round);
        l2norm(q + t * d, d, 1 / sqrt((double)d));
        l2norm(k + t * d, d, 1);
        for (size_t c = 0; c < d; c++) {
            double z = (double)exp_a * ((double)g[t * g_stride + c] + (double)dt_bias[c]);
            decay[t * d + c] = (float)k3i_ref_exp((double)lower_bound * k3i_ref_sigmoid(z));
        }
    }
}

/* kda_step: one column of S is independent of the others, so it can be walked alone.
 *
 *   S      [dk, dv]  rows are key channels                                   in/out
 *   q, k   [dk]      L2-normalised; q already times dk^-1/2
 *   decay  [dk]      in [e^lower_bound, 1]        beta in (0, 1)
 *
 * Any other order of these four gives fluent, wrong text:
 *   1. S[i,:] *= decay[i]        the gate is per key channel, not per head
 *   2. u  = S^T k                read after the decay
 *   3. S += k (beta (v - u))^T   correct the prediction; do not accumulate v
 *   4. o  = S^T q                read the updated state */
void k3i_kda_step__ref(float *S, float *o, float *e, const float *q, const float *k, const float *v,
                       const float *decay, size_t stride, const float *beta, size_t beta_stride,
                       size_t n_tok, size_t dk, size_t dv)
{
    for (size_t t = 0; t < n_tok; t++) {
        const float *qt = q + t * stride, *kt = k + t * stride, *at = decay + t * stride;
        for (size_t j = 0; j < dv; j++) {
            double u = 0, out = 0;
            for (size_t i = 0; i < dk; i++) {
                S[i * dv + j] *= at[i];
                u += (double)S[i * dv + j] * (double)kt[i];
            }
            float ej = (float)((double)beta[t * beta_stride] * ((double)v[t * stride + j] - u));
            for (size_t i = 0; i < dk; i++) {
                S[i * dv + j] += kt[i] * ej;
                out += (double)S[i * dv + j] * (double)qt[i];
            }
            o[t * stride + j] = (float)out;
            if (e)
                e[t * stride + j] = ej;
        }
    }
}

void k3i_kda_replay__ref(float *S, const float *k, const float *decay, const float *e,
                         size_t stride, size_t n_tok, size_t dk, size_t dv)
{
    for (size_t t = 0; t < n_tok; t++) {
        for (size_t i = 0; i < dk; i++) {
            for (size_t j = 0; j < dv; j++) {
                S[i * dv + j] *= decay[t * stride + i];
                S[i * dv + j] += k[t * stride + i] * e[t * stride + j];
            }
        }
    }
}

/* 4.5.5: norm first, then gate; the gate is a plain sigmoid. */
void k3i_kda_out__ref(float *y, const float *o, const float *gate, const float *w, size_t d,
                      float eps, int round)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++) {
        double x = (double)(round ? k3i_round_bf16(o[i]) : o[i]);
        sum += x * x;
    }
    double r = 1.0 / sqrt(sum / (double)d + (double)eps);
    for (size_t i = 0; i < d; i++) {
        double x = (double)(round ? k3i_round_bf16(o[i]) : o[i]);
        float z = (float)(x * r * (double)w[i] * k3i_ref_sigmoid((double)gate[i]));
        y[i] = round ? k3i_round_bf16(z) : z;
    }
}
