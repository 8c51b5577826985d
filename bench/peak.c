/* peak.c: independent multiply-adds in registers, as many chains as hide the latency. */
#include "peak.h"

#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROUNDS = 300000, CHAINS = 12, REPEATS = 5 };

/* Twelve statements: written out, so that every compiler keeps the chains in registers. */
#define EACH_CHAIN(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double k3b_now(void)
{
    return seconds(CLOCK_MONOTONIC);
}

double k3b_cpu(void)
{
    return seconds(CLOCK_PROCESS_CPUTIME_ID);
}

typedef float (*chain_fn)(void);

static float chain_plain(void)
{
    float a[CHAINS] = {0};
    for (int i = 0; i < ROUNDS; i++) {
#define STEP(c) a[c] = a[c] * 0.5f + 1.0f;
        EACH_CHAIN(STEP)
#undef STEP
    }
    float sum = 0;
    for (int c = 0; c < CHAINS; c++)
        sum += a[c];
    return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static float chain_avx2(void)
{
    __m256 a[CHAINS], x = _mm256_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++)
        a[c] = _mm256_set1_ps((float)c);
    for (int i = 0; i < ROUNDS; i++) {
#define STEP(c) a[c] = _mm256_fmadd_ps(a[c], x, x);
        EACH_CHAIN(STEP)
#undef STEP
    }
    for (int c = 1; c < CHAINS; c++)
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
#define STEP(c) a[c] = _mm512_dpbf16_ps(a[c], x, x);
        EACH_CHAIN(STEP)
#undef STEP
    }
    for (int c = 1; c < CHAINS; c++)
        a[0] = _mm512_add_ps(a[0], a[c]);
    return _mm512_cvtss_f32(a[0]);
}
#endif

enum { MAX_MEMBERS = 1024 };

typedef struct {
    chain_fn fn;
    volatile float sink[MAX_MEMBERS];
    double time[MAX_MEMBERS];
} job;

static void member(void *arg, size_t i, size_t n)
{
    job *j = arg;
    (void)n;
    double from = seconds(CLOCK_THREAD_CPUTIME_ID);
    j->sink[i % MAX_MEMBERS] = j->fn();
    j->time[i % MAX_MEMBERS] = seconds(CLOCK_THREAD_CPUTIME_ID) - from;
}

double k3b_peak_flops(k3i_team *team, const char *isa, const char **ret_name)
{
    job j = {.fn = chain_plain}; /* 16 KB */
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
        flops = 16.0 * ROUNDS * CHAINS;
        *ret_name = "f32, AVX2";
    }
#endif
    double best = 0;
    for (int r = 0; r < REPEATS; r++) {
        k3i_team_run(team, member, &j);
        for (size_t i = 0; i < k3i_team_size(team) && i < MAX_MEMBERS; i++)
            best = flops / j.time[i] > best ? flops / j.time[i] : best;
    }
    return best;
}
