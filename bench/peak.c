/* peak.c: independent multiply-adds in registers, as many chains as hide the latency. */
#include "peak.h"

#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROUNDS = 200000, CHAINS = 16, REPEATS = 5 };

double k3b_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef float (*chain_fn)(void);

static float chain_plain(void)
{
    float a[CHAINS] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        for (int c = 0; c < CHAINS; c++)
            a[c] = a[c] * 0.5f + 1.0f;
    }
    float sum = 0;
    for (int c = 0; c < CHAINS; c++)
        sum += a[c];
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float chain_avx2(void)
{
    __m256 a[CHAINS - 4], x = _mm256_set1_ps(0.5f);
    for (int c = 0; c < CHAINS - 4; c++)
        a[c] = _mm256_set1_ps((float)c);
    for (int i = 0; i < ROUNDS; i++) {
        for (int c = 0; c < CHAINS - 4; c++)
            a[c] = _mm256_fmadd_ps(a[c], x, x);
    }
    for (int c = 1; c < CHAINS - 4; c++)
        a[0] = _mm256_add_ps(a[0], a[c]);
    return _mm256_cvtss_f32(a[0]);
}

__attribute__((target("avx512f,avx512bf16"))) static float chain_bf16(void)
{
    __m512 a[CHAINS];
    __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
    for (int c = 0; c < CHAINS; c++)
        a[c] = _mm512_set1_ps((float)c);
    for (int i = 0; i < ROUNDS; i++) {
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm512_dpbf16_ps(a[c], x, x);
    }
    for (int c = 1; c < CHAINS; c++)
        a[0] = _mm512_add_ps(a[0], a[c]);
    return _mm512_cvtss_f32(a[0]);
}
#endif

typedef struct {
    chain_fn fn;
    volatile float sink[256];
} job;

static void member(void *arg, size_t i, size_t n)
{
    job *j = arg;
    (void)n;
    j->sink[i % 256] = j->fn();
}

double k3b_peak_flops(k3i_team *team, const char *isa, const char **ret_name)
{
    job j = {.fn = chain_plain};
    double flops = 2.0 * ROUNDS * CHAINS;
    *ret_name = "f32, scalar";
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0 && __builtin_cpu_supports("avx512bf16")) {
        j.fn = chain_bf16;
        flops = 64.0 * ROUNDS * CHAINS;
        *ret_name = "bf16, AVX-512";
    } else if (strcmp(isa, "ref") != 0 && __builtin_cpu_supports("avx2") &&
               __builtin_cpu_supports("fma")) {
        j.fn = chain_avx2;
        flops = 16.0 * ROUNDS * (CHAINS - 4);
        *ret_name = "f32, AVX2";
    }
#endif
    double best = 0;
    for (int r = 0; r < REPEATS; r++) {
        double from = k3b_now();
        k3i_team_run(team, member, &j);
        double rate = flops * (double)k3i_team_size(team) / (k3b_now() - from);
        best = rate > best ? rate : best;
    }
    return best;
}
