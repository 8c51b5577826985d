/* attn.c: one segment of softmax attention, reference. For each query row and each block of
 * K3I_ATTN_KEYS keys:
 *
 *   s_j  = scale * q . k_j            M = max(m, max s)
 *   p_j  = exp(s_j - M)               c = exp(m - M)
 *   acc  = acc c + sum_j p_j v_j      l = l c + sum_j p_j         m = M
 *
 * The caller divides acc by l after the last segment. */
#include "ref.h"

#include <math.h>

typedef struct {
    const void *q, *k, *v;
    size_t q_stride, k_stride, v_stride;
    const size_t *key_off;
    size_t dk, dv;
    float scale;
    int is_bf16;
} segment;

static double element(const segment *s, const void *base, size_t i)
{
    return (double)(s->is_bf16 ? k3i_from_bf16(((const k3i_bf16 *)base)[i])
                               : ((const float *)base)[i]);
}

/* Keys [from, to) of row r. */
static void block(const segment *s, float *acc, float *m, float *l, size_t r, size_t from,
                  size_t to)
{
    float p[K3I_ATTN_KEYS];
    float max = *m;
    for (size_t j = from; j < to; j++) {
        size_t at = s->key_off ? s->key_off[j] : j * s->k_stride;
        double dot = 0;
        for (size_t i = 0; i < s->dk; i++)
            dot += element(s, s->q, r * s->q_stride + i) * element(s, s->k, at + i);
        p[j - from] = (float)dot * s->scale;
        max = p[j - from] > max ? p[j - from] : max;
    }
    float keep = (float)k3i_ref_exp((double)*m - (double)max);
    double sum = 0;
    for (size_t j = from; j < to; j++) {
        float e = (float)k3i_ref_exp((double)p[j - from] - (double)max);
        sum += (double)e;
        p[j - from] = s->is_bf16 ? k3i_round_bf16(e) : e;
    }
    for (size_t c = 0; c < s->dv; c++) {
        double a = (double)acc[c] * (double)keep;
        for (size_t j = from; j < to; j++) {
            size_t at = s->key_off ? s->key_off[j] : j * s->v_stride;
            a += (double)p[j - from] * element(s, s->v, at + c);
        }
        acc[c] = (float)a;
    }
    *l = (float)((double)*l * (double)keep + sum);
    *m = max;
}

static void rows(const segment *s, float *acc, float *m, float *l, size_t n_q, size_t n_key,
                 const uint32_t *row_keys)
{
    for (size_t r = 0; r < n_q; r++) {
        size_t n = row_keys ? row_keys[r] : n_key;
        for (size_t j = 0; j < n; j += K3I_ATTN_KEYS)
            block(s, acc + r * s->dv, m + r, l + r, r, j,
                  n - j < K3I_ATTN_KEYS ? n : j + K3I_ATTN_KEYS);
    }
}

void k3i_attn_segment__ref(float *acc, float *m, float *l, const float *q, size_t q_stride,
                           const float *k, size_t k_stride, const float *v, size_t v_stride,
                           const size_t *key_off, size_t n_q, size_t n_key,
                           const uint32_t *row_keys, size_t dk, size_t dv, float scale)
{
    segment s = {q, k, v, q_stride, k_stride, v_stride, key_off, dk, dv, scale, 0};
    rows(&s, acc, m, l, n_q, n_key, row_keys);
}

void k3i_attn_segment_bf16__ref(float *acc, float *m, float *l, const k3i_bf16 *q, size_t q_stride,
                                const k3i_bf16 *k, size_t k_stride, const k3i_bf16 *v,
                                size_t v_stride, const size_t *key_off, size_t n_q, size_t n_key,
                                const uint32_t *row_keys, size_t dk, size_t dv, float scale)
{
    segment s = {q, k, v, q_stride, k_stride, v_stride, key_off, dk, dv, scale, 1};
    rows(&s, acc, m, l, n_q, n_key, row_keys);
}
