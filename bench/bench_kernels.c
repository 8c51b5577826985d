/* bench_kernels: each operation on one thread against the roof that bounds it, measured in the same
 * run.
 *
 *   bench_kernels [ISA] [NAME]     ISA as for --isa (default: best); NAME: only lines that contain
 * it
 *
 * Every figure is the best of many short runs in processor time: other work on the machine only
 * ever makes a run slower. Weights are cycled through a buffer larger than the caches, activations
 * stay where a model leaves them. */
#include "roofs.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { TRIES = 40 };
#define WEIGHT_BYTES ((size_t)192 << 20)

typedef struct {
    const k3i_ops *ops;
    k3i_roofs roofs;
    const char *filter;
    uint8_t *weights; /* WEIGHT_BYTES of bf16 numbers in [-1, 1) */
    uint8_t *scales;
    float *x, *y, *z; /* FLOATS each */
    k3i_bf16 *xh;
    size_t cursor;
} bench;

enum { FLOATS = 1 << 23 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* The next `bytes` of the weight buffer, long out of the caches. */
static void *fresh(bench *b, size_t bytes)
{
    if (b->cursor + bytes > WEIGHT_BYTES)
        b->cursor = 0;
    void *p = b->weights + b->cursor;
    b->cursor += bytes;
    return p;
}

/* One line: rate and share of the roofs, as far as they apply (0: does not). */
static void line(const bench *b, const char *name, const char *shape, double seconds, double flop,
                 double bytes)
{
    printf("%-18s %-34s %10.2f us", name, shape, 1e6 * seconds);
    if (flop > 0)
        printf("  %7.1f GFLOP/s %5.1f %% of bf16", flop / seconds / 1e9,
               100 * flop / seconds / b->roofs.bf16_flop_per_s);
    if (bytes > 0)
        printf("  %6.1f GB/s %5.1f %% of read", bytes / seconds / 1e9,
               100 * bytes / seconds / b->roofs.read_bytes_per_s);
    printf("\n");
    fflush(stdout);
}

static int skip(const bench *b, const char *name)
{
    return b->filter && !strstr(name, b->filter);
}

typedef enum { GEMM_BF16, GEMM_F32, GEMM_MXFP4, N_GEMM } gemm_kind;

static void bench_gemm(bench *b, gemm_kind kind, size_t n_row, size_t k)
{
    static const char *const names[] = {"gemm_bf16", "gemm_f32", "gemm_mxfp4_bf16"};
    if (skip(b, names[kind]))
        return;
    double row_bytes = kind == GEMM_MXFP4 ? (double)k * 17 / 32 : 2 * (double)k;
    /* about 2 ms of work, or 8 MB of weights where reading them is the work */
    size_t n_out =
        n_row > 16 ? (size_t)(4e8 / (2.0 * (double)(n_row * k))) : (size_t)(8e6 / row_bytes);
    n_out = n_out < 12 ? 12 : n_out / 6 * 6;
    double best = 1e9;
    for (int i = 0; i < TRIES; i++) {
        void *w = fresh(b, (size_t)row_bytes * n_out + 64);
        double t = now();
        switch (kind) {
        case GEMM_BF16:
            b->ops->gemm_bf16(b->y, n_out, b->xh, k, w, n_row, n_out, k);
            break;
        case GEMM_F32:
            b->ops->gemm_f32(b->y, n_out, b->x, k, w, n_row, n_out, k);
            break;
        default:
            b->ops->gemm_mxfp4_bf16(b->y, n_out, b->xh, k, w, b->scales, n_row, n_out, k);
            break;
        }
        t = now() - t;
        best = t < best ? t : best;
    }
    char shape[64];
    snprintf(shape, sizeof shape, "rows %zu k %zu outputs %zu", n_row, k, n_out);
    line(b, names[kind], shape, best, 2.0 * (double)(n_row * k * n_out),
         n_row <= 16 ? row_bytes * (double)n_out : 0);
}

static void bench_kda(bench *b, size_t n_tok, size_t heads)
{
    enum { D = 128 };
    if (skip(b, "kda_step"))
        return;
    double best = 1e9;
    size_t stride = heads * D, rows = n_tok * stride;
    float *q = b->x, *k = q + rows, *v = k + rows, *a = v + rows, *S = b->z;
    for (size_t i = 0; i < rows; i++)
        a[i] = 0.9f;
    for (int i = 0; i < TRIES; i++) {
        double t = now();
        for (size_t h = 0; h < heads; h++)
            b->ops->kda_step(S + h * D * D, b->y + h * D, b->y + rows + h * D, q + h * D, k + h * D,
                             v + h * D, a + h * D, stride, b->x + h, heads, n_tok, D, D);
        t = now() - t;
        best = t < best ? t : best;
    }
    char shape[64];
    snprintf(shape, sizeof shape, "tokens %zu heads %zu of 128 x 128", n_tok, heads);
    double flop = (double)(n_tok * heads) * 7 * D * D;
    printf("%-18s %-34s %10.2f us  %7.1f GFLOP/s %5.1f %% of f32  %7.3f us a token and head\n",
           "kda_step", shape, 1e6 * best, flop / best / 1e9,
           100 * flop / best / b->roofs.f32_flop_per_s, 1e6 * best / (double)(n_tok * heads));
}

static void bench_attn(bench *b, int bf16, size_t n_q, size_t n_key, size_t dk, size_t dv,
                       const char *what)
{
    const char *name = bf16 ? "attn_segment_bf16" : "attn_segment";
    if (skip(b, name))
        return;
    double best = 1e9;
    float *m = b->y + n_q * dv, *l = m + n_q;
    for (int i = 0; i < TRIES / 2; i++) {
        for (size_t j = 0; j < n_q; j++) {
            m[j] = -INFINITY;
            l[j] = 0;
        }
        memset(b->y, 0, n_q * dv * sizeof *b->y);
        double t = now();
        if (bf16) {
            b->ops->attn_segment_bf16(b->y, m, l, b->xh, dk, b->xh, dk, b->xh + n_key * dk, dv,
                                      NULL, n_q, n_key, NULL, dk, dv, 0.05f);
        } else {
            b->ops->attn_segment(b->y, m, l, b->x, dk, b->x, dk, b->x + n_key * dk, dv, NULL, n_q,
                                 n_key, NULL, dk, dv, 0.05f);
        }
        t = now() - t;
        best = t < best ? t : best;
    }
    char shape[64];
    snprintf(shape, sizeof shape, "%s: q %zu keys %zu", what, n_q, n_key);
    line(b, name, shape, best, 2.0 * (double)n_q * (double)n_key * (double)(dk + dv), 0);
}

static void bench_elementwise(bench *b)
{
    enum { N = 7168 };
#define TIME(name, call, bytes)                                            \
    do {                                                                   \
        if (!skip(b, name)) {                                              \
            double best = 1e9;                                             \
            for (int i = 0; i < 4 * TRIES; i++) {                          \
                double t = now();                                          \
                for (int j = 0; j < 10; j++)                               \
                    call;                                                  \
                t = now() - t;                                             \
                best = t < best ? t : best;                                \
            }                                                              \
            line(b, name, "7168 values", best / 10, 0, (double)(bytes)*N); \
        }                                                                  \
    } while (0)
    const float *src[9];
    for (size_t j = 0; j < 9; j++)
        src[j] = b->x + j * N;
    TIME("to_bf16", b->ops->to_bf16(b->xh, b->x, N), 6);
    TIME("add", b->ops->add(b->y, b->x, b->x + N, N, 1), 12);
    TIME("rmsnorm", b->ops->rmsnorm(b->y, b->x, (const k3i_bf16 *)(void *)b->weights, N, 1e-5f, 1),
         10);
    TIME("attnres_mix 9", b->ops->attnres_mix(b->y, src, 9, b->x + 9 * N, N, 1e-5f, 1), 44);
    TIME("situ", b->ops->situ(b->y, b->x, b->x + N, N, 4.0f, 25.0f, 1), 12);
    TIME("gelu_tanh", b->ops->gelu_tanh(b->y, b->x, N, 1), 8);
    TIME("gelu_erf", b->ops->gelu_erf(b->y, b->x, N, 1), 8);
    TIME("rope", b->ops->rope(b->y, b->x, b->x + N, N / 2, 1), 12);
#undef TIME
}

static void run(bench *b)
{
    static const size_t rows[] = {1, 2, 4, 8, 12, 16, 32, 64, 100, 512},
                        ks[] = {1024, 3584, 4096, 7168};
    for (gemm_kind kind = 0; kind < N_GEMM; kind++) {
        for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                bench_gemm(b, kind, rows[r], ks[i]);
        }
    }
    bench_kda(b, 1, 8);
    bench_kda(b, 1, 96);
    bench_kda(b, 64, 8);
    for (int bf16 = 1; bf16 >= 0; bf16--) {
        bench_attn(b, bf16, 512, 1024, 128, 128, "vision head");
        bench_attn(b, bf16, 96, 1024, 576, 512, "MLA, 96 heads, 1 token");
        bench_attn(b, bf16, 8, 1024, 576, 512, "MLA, 8 heads, 1 token");
        bench_attn(b, bf16, 1, 1024, 576, 512, "MLA, 1 head, 1 token");
    }
    bench_elementwise(b);
}

int main(int argc, char **argv)
{
    bench b = {.filter = argc > 2 ? argv[2] : NULL};
    k3i_err err = {0};
    k3i_team *team = NULL;
    uint64_t seed = 88172645463325252u;
    if (k3i_ops_select(argc > 1 ? argv[1] : NULL, &b.ops, &err) != K3_OK ||
        k3i_team_new(1, NULL, 0, &team, &err) != K3_OK ||
        k3i_roofs_measure(team, b.ops, &b.roofs, &err) != K3_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    b.weights = k3i_alloc_array(WEIGHT_BYTES, 1);
    b.scales = k3i_alloc_array(WEIGHT_BYTES / 16, 1);
    b.x = k3i_alloc_array(FLOATS, sizeof *b.x);
    b.y = k3i_alloc_array(FLOATS, sizeof *b.y);
    b.z = k3i_alloc_array(FLOATS, sizeof *b.z);
    b.xh = k3i_alloc_array(FLOATS, sizeof *b.xh);
    if (!b.weights || !b.scales || !b.x || !b.y || !b.z || !b.xh) {
        fprintf(stderr, "bench_kernels: out of memory\n");
        return 1;
    }
    for (size_t i = 0; i < WEIGHT_BYTES / 2; i++) {
        k3i_bf16 h = k3i_to_bf16((float)(rnd(&seed) >> 40) * 0x1p-23f - 1.0f);
        memcpy(b.weights + 2 * i, &h, 2);
    }
    memset(b.scales, 122, WEIGHT_BYTES / 16);
    for (size_t i = 0; i < FLOATS; i++) {
        b.x[i] = (float)(rnd(&seed) >> 40) * 0x1p-23f - 1.0f;
        b.xh[i] = k3i_to_bf16(b.x[i]);
        b.z[i] = b.y[i] = 0;
    }
    printf("isa %s, one thread: read %.1f GB/s, bf16 %.1f GFLOP/s, f32 %.1f GFLOP/s\n", b.ops->isa,
           b.roofs.read_bytes_per_s / 1e9, b.roofs.bf16_flop_per_s / 1e9,
           b.roofs.f32_flop_per_s / 1e9);
    run(&b);
    k3i_team_free(team);
    return 0;
}
