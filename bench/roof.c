/* roof.c: a plain sum over memory. Several accumulators, so that loads and not additions limit it.
 */
#include "roof.h"

#include "peak.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PASSES = 3, STEP = 512 /* bytes of one turn of the loops: eight cache lines */ };

typedef uint64_t (*sum_fn)(const uint8_t *p, size_t bytes);

static uint64_t sum_plain(const uint8_t *p, size_t bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        uint64_t x[8];
        memcpy(x, p + i, sizeof x);
        for (int k = 0; k < 8; k++)
            sum[k] += x[k];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t sum_avx2(const uint8_t *p, size_t bytes)
{
    __m256i sum[8];
    for (int k = 0; k < 8; k++)
        sum[k] = _mm256_setzero_si256();
    for (size_t i = 0; i + STEP <= bytes; i += STEP) {
        for (int k = 0; k < 16; k++)
            sum[k % 8] = _mm256_add_epi64(
                sum[k % 8], _mm256_loadu_si256((const void *)(p + i + 32 * (size_t)k)));
    }
    for (int k = 1; k < 8; k++)
        sum[0] = _mm256_add_epi64(sum[0], sum[k]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0);
}

__attribute__((target("avx512f"))) static uint64_t sum_avx512(const uint8_t *p, size_t bytes)
{
    __m512i sum[8];
    for (int k = 0; k < 8; k++)
        sum[k] = _mm512_setzero_si512();
    for (size_t i = 0; i + STEP <= bytes; i += STEP) {
        for (int k = 0; k < 8; k++)
            sum[k] = _mm512_add_epi64(sum[k], _mm512_loadu_si512(p + i + 64 * (size_t)k));
    }
    for (int k = 1; k < 8; k++)
        sum[0] = _mm512_add_epi64(sum[0], sum[k]);
    return (uint64_t)_mm512_reduce_add_epi64(sum[0]);
}
#endif

typedef struct {
    sum_fn fn;
    const uint8_t *buf;
    size_t bytes;
    volatile uint64_t sink[256];
} job;

static void member(void *arg, size_t i, size_t n)
{
    job *j = arg;
    size_t from, to;
    k3i_team_split(j->bytes, STEP, i, n, &from, &to);
    j->sink[i % 256] = j->fn(j->buf + from, to - from);
}

double k3b_read_rate(k3i_team *team, const void *buf, size_t bytes, double *ret_cpu)
{
    job j = {.fn = sum_plain, .buf = buf, .bytes = bytes};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        j.fn = sum_avx512;
    else if (__builtin_cpu_supports("avx2"))
        j.fn = sum_avx2;
#endif
    double best = 0, best_cpu = 0;
    for (int r = 0; r < PASSES; r++) {
        double from = k3b_now(), from_cpu = k3b_cpu();
        k3i_team_run(team, member, &j);
        double rate = (double)bytes / (k3b_now() - from);
        double rate_cpu = (double)bytes / (k3b_cpu() - from_cpu);
        best = rate > best ? rate : best;
        best_cpu = rate_cpu > best_cpu ? rate_cpu : best_cpu;
    }
    *ret_cpu = best_cpu;
    return best;
}
