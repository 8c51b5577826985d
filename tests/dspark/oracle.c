/* oracle.c: see oracle.h. Plain loops, no sharing of work, everything in double. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *vec(size_t n)
{
    double *p = calloc(n, sizeof *p);
    if (p == NULL)
        abort();
    return p;
}

static void matvec(double *y, const k3i_bf16 *w, const double *x, size_t rows, size_t cols)
{
    for (size_t r = 0; r < rows; r++) {
        y[r] = 0;
        for (size_t i = 0; i < cols; i++)
            y[r] += (double)k3i_from_bf16(w[r * cols + i]) * x[i];
    }
}

static void rmsnorm(double *y, const double *x, const k3i_bf16 *w, size_t n, double eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double inv = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inv * (double)k3i_from_bf16(w[i]);
}

static size_t clamp_index(double x, double lo, double hi)
{
    return (size_t)(x < lo ? lo : x > hi ? hi : x);
}

static double frequency(const k3i_draft_config *c, size_t i, size_t D)
{
    double f = 1 / pow(c->rope_theta, 2.0 * (double)i / (double)D);
    if (!c->has_yarn)
        return f;
    double k = (double)D / (2 * log(c->rope_theta));
    double lo = floor(k * log(c->yarn_original_max / (2 * M_PI * c->yarn_beta_fast)));
    double hi = ceil(k * log(c->yarn_original_max / (2 * M_PI * c->yarn_beta_slow)));
    double low = (double)clamp_index(lo, 0, 1e9), high = hi > (double)D - 1 ? (double)D - 1 : hi;
    if (low == high)
        high += 0.001;
    double r = ((double)i - low) / (high - low);
    r = r < 0 ? 0 : r > 1 ? 1 : r;
    return f * (1 - r) + f / c->yarn_factor * r;
}

static double mscale(const k3i_draft_config *c, double s)
{
    return 0.1 * s * log(c->yarn_factor) + 1;
}

static void rope(const k3i_draft_config *c, double *x, size_t D, double pos)
{
    double scale = 1;
    if (c->has_yarn)
        scale = c->is_mla ? mscale(c, c->yarn_mscale) / mscale(c, c->yarn_mscale_all_dim)
                          : mscale(c, 1);
    for (size_t i = 0; i < D / 2; i++) {
        double a = pos * frequency(c, i, D);
        size_t u = c->rope_interleaved ? 2 * i : i, v = c->rope_interleaved ? 2 * i + 1 : i + D / 2;
        double xu = x[u], xv = x[v];
        x[u] = (xu * cos(a) - xv * sin(a)) * scale;
        x[v] = (xu * sin(a) + xv * cos(a)) * scale;
    }
}

static size_t width_of(const k3i_draft_config *c)
{
    return c->is_mla ? c->kv_lora_rank + c->qk_rope_head_dim : 2 * c->n_kv_heads * c->head_dim;
}

/* Key/value row of input x (already normed) at a position. */
static void kv_row(const k3i_draft_config *c, const k3i_draft_layer *l, const double *x, double pos,
                   double *out)
{
    size_t H = c->hidden_size, C = c->kv_lora_rank, D = c->head_dim;
    if (c->is_mla) {
        matvec(out, l->mla.kv_a_proj, x, width_of(c), H);
        rmsnorm(out, out, l->mla.kv_a_layernorm, C, (double)c->rms_norm_eps);
        rope(c, out + C, c->qk_rope_head_dim, pos);
        return;
    }
    matvec(out, l->gqa.k_proj, x, c->n_kv_heads * D, H);
    matvec(out + c->n_kv_heads * D, l->gqa.v_proj, x, c->n_kv_heads * D, H);
    for (size_t h = 0; h < c->n_kv_heads; h++) {
        rmsnorm(out + h * D, out + h * D, l->gqa.k_norm, D, (double)c->rms_norm_eps);
        rope(c, out + h * D, D, pos);
    }
}

void oracle_context(const k3i_draft_config *c, const k3i_draft_weights *w, const float *taps,
                    size_t pos, double *out)
{
    size_t H = c->hidden_size, n = c->n_taps * H;
    double *x = vec(n), *y = vec(H);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)taps[i];
    for (size_t t = 0; c->has_tap_norms && t < c->n_taps; t++)
        rmsnorm(x + t * H, x + t * H, w->tap_norm[t], H, (double)c->rms_norm_eps);
    matvec(y, w->context_proj, x, H, n);
    rmsnorm(y, y, w->context_norm, H, (double)c->rms_norm_eps);
    for (size_t l = 0; l < c->n_layers; l++)
        kv_row(c, &w->layers[l], y, (double)pos, out + l * width_of(c));
    free(x);
    free(y);
}

/* o [Dv] of one head of one row: rows[0..n) are the visible key/value rows. */
static void head_attention(const k3i_draft_config *c, const k3i_draft_layer *l, size_t h,
                           const double *q, const double **rows, size_t n, double *o)
{
    size_t C = c->kv_lora_rank, Dn = c->qk_nope_head_dim, Dr = c->qk_rope_head_dim;
    size_t Dv = c->is_mla ? c->v_head_dim : c->head_dim, D = c->head_dim;
    size_t kv = c->is_mla ? 0 : h / (c->n_heads / c->n_kv_heads);
    double scale = 1 / sqrt((double)(c->is_mla ? Dn + Dr : D));
    if (c->is_mla && c->has_yarn)
        scale *= mscale(c, c->yarn_mscale_all_dim) * mscale(c, c->yarn_mscale_all_dim);
    double *s = vec(n), *k = vec(Dn + Dv), max = -INFINITY, sum = 0;
    for (size_t j = 0; j < n; j++) {
        s[j] = 0;
        if (c->is_mla) {
            matvec(k, l->mla.kv_b_proj + h * (Dn + Dv) * C, rows[j], Dn, C);
            for (size_t i = 0; i < Dn; i++)
                s[j] += q[i] * k[i];
            for (size_t i = 0; i < Dr; i++)
                s[j] += q[Dn + i] * rows[j][C + i];
        } else {
            for (size_t i = 0; i < D; i++)
                s[j] += q[i] * rows[j][kv * D + i];
        }
        s[j] *= scale;
        max = s[j] > max ? s[j] : max;
    }
    memset(o, 0, Dv * sizeof *o);
    for (size_t j = 0; j < n; j++) {
        double p = exp(s[j] - max);
        sum += p;
        const double *v = rows[j] + (c->n_kv_heads + kv) * D;
        if (c->is_mla) {
            matvec(k, l->mla.kv_b_proj + (h * (Dn + Dv) + Dn) * C, rows[j], Dv, C);
            v = k;
        }
        for (size_t i = 0; i < Dv; i++)
            o[i] += p * v[i];
    }
    for (size_t i = 0; i < Dv; i++)
        o[i] /= sum;
    free(s);
    free(k);
}

static void queries(const k3i_draft_config *c, const k3i_draft_layer *l, const double *x,
                    double pos, double *q)
{
    size_t H = c->hidden_size, Q = c->q_lora_rank, D = c->head_dim;
    if (!c->is_mla) {
        matvec(q, l->gqa.q_proj, x, c->n_heads * D, H);
        for (size_t h = 0; h < c->n_heads; h++) {
            rmsnorm(q + h * D, q + h * D, l->gqa.q_norm, D, (double)c->rms_norm_eps);
            rope(c, q + h * D, D, pos);
        }
        return;
    }
    size_t Dn = c->qk_nope_head_dim, Dr = c->qk_rope_head_dim;
    double *qa = vec(Q);
    matvec(qa, l->mla.q_a_proj, x, Q, H);
    rmsnorm(qa, qa, l->mla.q_a_layernorm, Q, (double)c->rms_norm_eps);
    matvec(q, l->mla.q_b_proj, qa, c->n_heads * (Dn + Dr), Q);
    for (size_t h = 0; h < c->n_heads; h++)
        rope(c, q + h * (Dn + Dr) + Dn, Dr, pos);
    free(qa);
}

static void mlp(const k3i_draft_config *c, const k3i_draft_layer *l, const double *x, double *y)
{
    size_t H = c->hidden_size, I = c->intermediate_size;
    double *g = vec(I), *u = vec(I);
    matvec(g, l->mlp.gate_proj, x, I, H);
    matvec(u, l->mlp.up_proj, x, I, H);
    for (size_t i = 0; i < I; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    matvec(y, l->mlp.down_proj, g, H, I);
    free(g);
    free(u);
}

static void layer(const oracle_block_args *a, size_t index, double *h)
{
    const k3i_draft_config *c = a->c;
    const k3i_draft_layer *l = &a->w->layers[index];
    size_t H = c->hidden_size, W = width_of(c);
    size_t Dv = c->is_mla ? c->v_head_dim : c->head_dim;
    size_t Dq = c->is_mla ? c->qk_nope_head_dim + c->qk_rope_head_dim : c->head_dim;
    double *x = vec(a->T * H), *own = vec(a->T * W), *q = vec(c->n_heads * Dq);
    double *o = vec(c->n_heads * Dv), *y = vec(H);
    const double **rows = calloc(a->p + a->T, sizeof *rows);
    if (rows == NULL)
        abort();
    for (size_t j = 0; j < a->p; j++)
        rows[j] = a->ctx + (index * a->p + j) * W;
    for (size_t t = 0; t < a->T; t++) {
        rmsnorm(x + t * H, h + t * H, l->input_layernorm, H, (double)c->rms_norm_eps);
        kv_row(c, l, x + t * H, (double)(a->p + t), own + t * W);
        rows[a->p + t] = own + t * W;
    }
    for (size_t t = 0; t < a->T; t++) {
        queries(c, l, x + t * H, (double)(a->p + t), q);
        size_t n = a->p + (c->causal ? t + 1 : a->T);
        for (size_t hd = 0; hd < c->n_heads; hd++)
            head_attention(c, l, hd, q + hd * Dq, rows, n, o + hd * Dv);
        matvec(y, c->is_mla ? l->mla.o_proj : l->gqa.o_proj, o, H, c->n_heads * Dv);
        for (size_t i = 0; i < H; i++)
            h[t * H + i] += y[i];
        rmsnorm(x, h + t * H, l->post_attention_layernorm, H, (double)c->rms_norm_eps);
        mlp(c, l, x, y);
        for (size_t i = 0; i < H; i++)
            h[t * H + i] += y[i];
        /* x row 0 was overwritten; rows above t are still needed and untouched. */
    }
    free(x);
    free(own);
    free(q);
    free(o);
    free(y);
    free(rows);
}

void oracle_block(const oracle_block_args *a)
{
    const k3i_draft_config *c = a->c;
    size_t H = c->hidden_size, V = c->vocab_size, R = c->markov_rank;
    double *h = vec(a->T * H), *in = vec(H + R), *e = vec(R), *bias = vec(V);
    for (size_t t = 0; t < a->T; t++) {
        size_t id = (size_t)(t == 0 ? a->anchor : c->mask_token_id);
        for (size_t i = 0; i < H; i++)
            h[t * H + i] = (double)k3i_from_bf16(a->embed[id * H + i]);
    }
    for (size_t l = 0; l < c->n_layers; l++)
        layer(a, l, h);
    int32_t token = a->anchor;
    for (size_t t = 0; t < a->T; t++) {
        rmsnorm(in, h + t * H, a->w->final_norm, H, (double)c->rms_norm_eps);
        for (size_t i = 0; i < R; i++)
            e[i] = (double)k3i_from_bf16(a->w->markov_w1[(size_t)token * R + i]);
        memcpy(in + H, e, R * sizeof *e);
        double conf;
        matvec(&conf, a->w->confidence_proj, in, 1, H + R);
        a->conf[t] = 1 / (1 + exp(-conf - (double)k3i_from_bf16(a->w->confidence_bias[0])));
        matvec(a->z + t * V, a->lm_head, in, V, H);
        matvec(bias, a->w->markov_w2, e, V, R);
        size_t best = 0;
        for (size_t v = 0; v < V; v++) {
            a->z[t * V + v] += bias[v];
            best = a->z[t * V + v] > a->z[t * V + best] ? v : best;
        }
        token = a->ids[t] = (int32_t)best;
    }
    free(h);
    free(in);
    free(e);
    free(bias);
}
