/* stats.c: the bucket bounds of vLLM's metrics. */
#include "stats.h"

static const double TTFT[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double TPOT[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                              .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double LATENCY[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double ITERATION[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double COUNT[] = {1,     2,      5,      10,     20,     50,    100,
                               200,   500,    1000,   2000,   5000,   10000, 20000,
                               50000, 100000, 200000, 500000, 1000000};

static const double N[] = {1, 2, 5, 10, 20};

void k3i_stats_init(k3i_stats *s)
{
    *s = (k3i_stats){0};
#define TTFT_BOUNDS TTFT, sizeof TTFT / sizeof *TTFT
#define TPOT_BOUNDS TPOT, sizeof TPOT / sizeof *TPOT
#define LATENCY_BOUNDS LATENCY, sizeof LATENCY / sizeof *LATENCY
#define ITERATION_BOUNDS ITERATION, sizeof ITERATION / sizeof *ITERATION
#define COUNT_BOUNDS COUNT, sizeof COUNT / sizeof *COUNT
#define N_BOUNDS N, sizeof N / sizeof *N
#define COUNTER(field, name, help)
#define HISTOGRAM(field, name, help, bounds) s->field = (k3i_histogram){bounds, {0}, 0.0};
#include "metrics.def"
#undef COUNTER
#undef HISTOGRAM
}

void k3i_histogram_add(k3i_histogram *h, double value)
{
    int32_t i = 0;
    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    h->count[i]++;
    h->sum += value;
}
