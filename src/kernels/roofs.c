/* roofs.c: see roofs.h. A roof is only honest if nothing can beat it, so there are several ways of
 * reading to choose the fastest of, and the arithmetic loops have more independent chains than the
 * latency needs. The best of many short steps, all members together and the slowest one counts,
 * ignores whatever disturbs; a slice is many longer ones, in which the work is dealt out as that of
 * large matrices is, so that no member waits long for another. */
#include "roofs.h"

#include "clock.h"

#include <stdlib.h>

#define LEAST_BYTES ((size_t)256 << 20) /* all parts together, and */
#define PART_BYTES \
    ((size_t)64    \
     << 20) /* one member's part: beyond the last-level cache by the time it comes again */
#define PIECE_BYTES \
    ((size_t)8 << 20) /* read in one timed step: short, so that some step runs undisturbed */
#define DEAL_BYTES ((size_t)1 << 20) /* the least part that is dealt out of a slice's step */
enum {
    READ_STEPS = 480,
    FLOP_STEPS = 30,
    FLOP_PARTS = 4,   /* of a member, dealt out in a slice's step, */
    FLOP_RATES = 256, /* steps of a slice at most */
};

/* Each was among the fastest on some processor at some time. */
static const struct {
    size_t n_stream, ahead;
} ways[K3I_READ_WAYS] = {{1, 0}, {1, 4096}, {2, 1024}, {2, 2048}, {4, 1024}, {8, 1024}};

enum { FILL, READ, READ_DEALT, BF16, BF16_DEALT, F32 };

struct k3i_meter {
    k3i_team *team;
    const k3i_ops *ops;
    unsigned char *buf;
    size_t part, piece; /* bytes of a member; where its next piece starts */
    size_t way;
    int kind;       /* what to run, see above */
    size_t n;       /* rounds of multiply-adds */
    double *flop;   /* [members], of the last step */
    uint64_t *sink; /* [members]: keeps results alive */
};

static void read_dealt(k3i_meter *m, size_t i)
{
    size_t from, to;
    while (k3i_team_take(m->team, i, 1, &from, &to))
        m->ops->roof_read(&m->sink[i], m->buf + from * DEAL_BYTES, (to - from) * DEAL_BYTES,
                          ways[m->way].n_stream, ways[m->way].ahead);
}

static void bf16_dealt(k3i_meter *m, size_t i)
{
    size_t from, to;
    m->flop[i] = 0;
    while (k3i_team_take(m->team, i, 1, &from, &to)) {
        float f;
        double flop;
        m->ops->roof_bf16(&f, &flop, m->n * (to - from));
        m->flop[i] += flop;
        m->sink[i] += (uint64_t)(f > 0);
    }
}

static void member(void *arg, size_t i, size_t n)
{
    (void)n;
    k3i_meter *m = arg;
    float f = 0;
    switch (m->kind) {
    case FILL: /* written by the member that reads it, so its memory is near; not zero, so the pages
                  are real */
        memset(m->buf + i * m->part, (int)i + 1, m->part);
        break;
    case READ:
        m->ops->roof_read(&m->sink[i], m->buf + i * m->part + m->piece, PIECE_BYTES,
                          ways[m->way].n_stream, ways[m->way].ahead);
        break;
    case READ_DEALT:
        read_dealt(m, i);
        break;
    case BF16:
        m->ops->roof_bf16(&f, &m->flop[i], m->n);
        break;
    case BF16_DEALT:
        bf16_dealt(m, i);
        break;
    default:
        m->ops->roof_f32(&f, &m->flop[i], m->n);
        break;
    }
    if (f != 0)
        m->sink[i] += (uint64_t)(f > 0);
}

/* One step of all members; its nanoseconds. */
static double step(k3i_meter *m, int kind)
{
    m->kind = kind;
    int64_t from = k3i_now_ns();
    k3i_team_run(m->team, member, m);
    return (double)(k3i_now_ns() - from);
}

/* Reads the next piece of each part. */
static double read_step(k3i_meter *m, size_t way)
{
    m->way = way;
    double ns = step(m, READ);
    m->piece = (m->piece + PIECE_BYTES) % m->part;
    return ns;
}

/* Steps of a millisecond or more, whatever the CPU. */
static void size_flops(k3i_meter *m, int kind)
{
    m->n = 10000;
    while (step(m, kind) < 1e6)
        m->n *= 2;
}

k3_status k3i_meter_new(k3i_team *team, const k3i_ops *ops, k3i_meter **ret, k3i_err *err)
{
    size_t n = k3i_team_size(team);
    k3i_meter *m = k3i_alloc_zero(sizeof *m);
    if (m == NULL)
        return k3i_fail(err, K3_E_NOMEM, "roofs: no memory");
    m->team = team;
    m->ops = ops;
    m->part = PART_BYTES;
    while (n * m->part < LEAST_BYTES)
        m->part += PIECE_BYTES;
    m->buf = k3i_alloc_array(n, m->part);
    m->flop = k3i_alloc_array(n, sizeof *m->flop);
    m->sink = k3i_alloc_array(n, sizeof *m->sink);
    if (!m->buf || !m->flop || !m->sink) {
        k3_status st =
            k3i_fail(err, K3_E_NOMEM, "roofs: no memory for %zu x %zu bytes", n, m->part);
        k3i_meter_free(m);
        return st;
    }
    memset(m->sink, 0, n * sizeof *m->sink);
    step(m, FILL);
    *ret = m;
    return K3_OK;
}

void k3i_meter_free(k3i_meter *m)
{
    if (m == NULL)
        return;
    k3i_free(m->buf);
    k3i_free(m->flop);
    k3i_free(m->sink);
    k3i_free(m);
}

void k3i_meter_read(k3i_meter *m, double seconds, double *ret_rate)
{
    int64_t until = k3i_now_ns() + (int64_t)(1e9 * seconds);
    size_t bytes = k3i_team_size(m->team) * m->part;
    double ns[K3I_READ_WAYS] = {0}, n = 0;
    do {
        for (m->way = 0; m->way < K3I_READ_WAYS; m->way++) {
            k3i_team_deal(m->team, bytes / DEAL_BYTES);
            ns[m->way] += step(m, READ_DEALT);
        }
        n++;
    } while (k3i_now_ns() < until);
    for (size_t way = 0; way < K3I_READ_WAYS; way++)
        ret_rate[way] = 1e9 * n * (double)bytes / ns[way];
}

/* FLOP of the last step. */
static double flops(const k3i_meter *m)
{
    double sum = 0;
    for (size_t i = 0; i < k3i_team_size(m->team); i++)
        sum += m->flop[i];
    return sum;
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double k3i_meter_bf16(k3i_meter *m, double seconds)
{
    int64_t until = k3i_now_ns() + (int64_t)(1e9 * seconds);
    double rate[FLOP_RATES];
    size_t n = 0;
    size_flops(m, BF16);
    do {
        k3i_team_deal(m->team, FLOP_PARTS * k3i_team_size(m->team));
        double ns = step(m, BF16_DEALT);
        rate[n++] = 1e9 * flops(m) / ns;
    } while (n < FLOP_RATES && k3i_now_ns() < until);
    qsort(rate, n, sizeof *rate, by_size);
    return rate[n / 2];
}

static double best_read(k3i_meter *m)
{
    double best = 0, bytes = (double)PIECE_BYTES * (double)k3i_team_size(m->team);
    for (size_t i = 0; i < READ_STEPS; i++) {
        double rate = 1e9 * bytes / read_step(m, i % K3I_READ_WAYS);
        best = rate > best ? rate : best;
    }
    return best;
}

static double best_flops(k3i_meter *m, int kind)
{
    double best = 0;
    size_flops(m, kind);
    for (size_t i = 0; i < FLOP_STEPS; i++) {
        double ns = step(m, kind), rate = 1e9 * flops(m) / ns;
        best = rate > best ? rate : best;
    }
    return best;
}

k3_status k3i_roofs_measure(k3i_team *team, const k3i_ops *ops, k3i_roofs *ret, k3i_err *err)
{
    k3i_meter *m = NULL;
    k3_status st = k3i_meter_new(team, ops, &m, err);
    if (st != K3_OK)
        return st;
    *ret = (k3i_roofs){best_read(m), best_flops(m, BF16), best_flops(m, F32)};
    k3i_meter_free(m);
    return K3_OK;
}
