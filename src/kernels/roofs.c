/* roofs.c: see roofs.h. A roof is only honest if nothing can beat it, so the read loop tries
 * several numbers of streams and prefetch distances and keeps the best, and the arithmetic loops
 * have more independent chains than the latency needs. Members start together and the slowest one
 * counts: its time is the step's time. */
#include "roofs.h"

#include <time.h>

#define LEAST_BYTES ((size_t)256 << 20) /* all parts together, and */
#define PART_BYTES \
    ((size_t)64    \
     << 20) /* one member's part: beyond the last-level cache by the time it comes again */
#define PIECE_BYTES \
    ((size_t)8 << 20) /* read in one timed step: short, so that some step runs undisturbed */
enum { READ_STEPS = 480, FLOP_STEPS = 30 };

typedef struct {
    const k3i_ops *ops;
    unsigned char *buf;
    size_t part, piece; /* bytes of a member; where its next piece starts */
    size_t n_stream, ahead;
    int kind;       /* what to run, see below */
    size_t n;       /* rounds of multiply-adds */
    double *flop;   /* [members] */
    uint64_t *sink; /* [members]: keeps results alive */
} work;

enum { FILL, READ, BF16, F32 };

static void member(void *arg, size_t i, size_t n)
{
    (void)n;
    work *w = arg;
    float f = 0;
    switch (w->kind) {
    case FILL: /* written by the member that reads it, so its memory is near; not zero, so the pages
                  are real */
        memset(w->buf + i * w->part, (int)i + 1, w->part);
        break;
    case READ:
        w->ops->roof_read(&w->sink[i], w->buf + i * w->part + w->piece, PIECE_BYTES, w->n_stream,
                          w->ahead);
        break;
    case BF16:
        w->ops->roof_bf16(&f, &w->flop[i], w->n);
        break;
    default:
        w->ops->roof_f32(&f, &w->flop[i], w->n);
        break;
    }
    if (f != 0)
        w->sink[i] += (uint64_t)(f > 0);
}

static double seconds(k3i_team *team, work *w, int kind)
{
    struct timespec a, b;
    w->kind = kind;
    clock_gettime(CLOCK_MONOTONIC, &a);
    k3i_team_run(team, member, w);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

static double best_read(k3i_team *team, work *w)
{
    static const size_t streams[] = {1, 2, 4, 8}, ahead[] = {0, 1024, 4096};
    double best = 0, bytes = (double)PIECE_BYTES * (double)k3i_team_size(team);
    for (size_t i = 0; i < READ_STEPS; i++) {
        w->n_stream = streams[i % 4];
        w->ahead = ahead[i / 4 % 3];
        w->piece = i * PIECE_BYTES % w->part;
        double rate = bytes / seconds(team, w, READ);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Steps of a millisecond or more, whatever the CPU. */
static double best_flops(k3i_team *team, work *w, int kind)
{
    double best = 0;
    w->n = 10000;
    while (seconds(team, w, kind) < 1e-3)
        w->n *= 2;
    for (size_t i = 0; i < FLOP_STEPS; i++) {
        double t = seconds(team, w, kind), flop = 0;
        for (size_t j = 0; j < k3i_team_size(team); j++)
            flop += w->flop[j];
        best = flop / t > best ? flop / t : best;
    }
    return best;
}

k3_status k3i_roofs_measure(k3i_team *team, const k3i_ops *ops, k3i_roofs *ret, k3i_err *err)
{
    size_t n = k3i_team_size(team);
    work w = {.ops = ops, .part = PART_BYTES};
    k3_status status = K3_OK;
    while (n * w.part < LEAST_BYTES)
        w.part += PIECE_BYTES;
    w.buf = k3i_alloc_array(n, w.part);
    w.flop = k3i_alloc_array(n, sizeof *w.flop);
    w.sink = k3i_alloc_array(n, sizeof *w.sink);
    if (!w.buf || !w.flop || !w.sink) {
        status = k3i_fail(err, K3_E_NOMEM, "roofs: no memory for %zu x %zu bytes", n, w.part);
        goto out;
    }
    memset(w.sink, 0, n * sizeof *w.sink);
    seconds(team, &w, FILL);
    k3i_roofs r = {best_read(team, &w), best_flops(team, &w, BF16), best_flops(team, &w, F32)};
    *ret = r;
out:
    k3i_free(w.buf);
    k3i_free(w.flop);
    k3i_free(w.sink);
    return status;
}
