/* vision_place.c: what a patch's place adds: the learned table (bilinear, half-pixel centres, edges
 * clamped, no antialias), the sine table of frames, and the angles of the 2-D rotary embedding (vision
 * 4.2, 4.3). */
#include "vision_pass.h"

#include <math.h>

#define BASE 10000.0 /* of both, fixed by the release */

/* Two neighbours and the share of the second on one axis of the table. */
typedef struct {
    size_t i0, i1;
    float share;
} taps;

static taps taps_at(size_t i, size_t n_out, size_t n_table)
{
    float scale = (float)n_table / (float)n_out;
    float z = scale * ((float)i + 0.5f) - 0.5f;
    if (z < 0.0f)
        z = 0.0f;
    size_t i0 = (size_t)z;
    return (taps){i0, i0 + 1 < n_table ? i0 + 1 : n_table - 1, z - (float)i0};
}

static float entry(k3i_weight table, size_t i)
{
    return table.bf16 != NULL ? k3i_from_bf16(table.bf16[i]) : table.f32[i];
}

/* Frame f: sin(f w_j), then cos(f w_j), w_j = BASE^(-j / (F / 2)). */
static float time_at(size_t f, size_t c, size_t n)
{
    size_t half = n / 2;
    double angle = (double)f * pow(BASE, -(double)(c % half) / (double)half);
    return (float)(c < half ? sin(angle) : cos(angle));
}

void k3i_vision_position(const k3i_vision *v, const k3i_vision_item *item, const k3i_place *at,
                         float *row)
{
    const k3i_vision_config *cfg = v->cfg;
    size_t F = cfg->hidden_size;
    taps y = taps_at(at->y, item->h, cfg->pos_height);
    taps x = taps_at(at->x, item->w, cfg->pos_width);
    size_t r0 = y.i0 * cfg->pos_width, r1 = y.i1 * cfg->pos_width;
    size_t t00 = (r0 + x.i0) * F, t01 = (r0 + x.i1) * F;
    size_t t10 = (r1 + x.i0) * F, t11 = (r1 + x.i1) * F;
    k3i_weight T = v->w.pos_emb;
    for (size_t c = 0; c < F; c++) {
        float top = (1.0f - x.share) * entry(T, t00 + c) + x.share * entry(T, t01 + c);
        float low = (1.0f - x.share) * entry(T, t10 + c) + x.share * entry(T, t11 + c);
        row[c] = (1.0f - y.share) * top + y.share * low;
    }
    if (v->bf16)
        v->op->round_bf16(row, F);
    if (item->t == 1)
        return; /* a single picture has no time term, although that of frame 0 is not zero */
    for (size_t c = 0; c < F; c++) {
        float time = time_at(at->t, c, F);
        row[c] += v->bf16 ? k3i_round_bf16(time) : time;
    }
    if (v->bf16)
        v->op->round_bf16(row, F);
}

void k3i_vision_angles(size_t head_dim, size_t n_side, float *table)
{
    size_t n = head_dim / 4;
    for (size_t i = 0; i < n; i++) {
        double f = pow(BASE, -4.0 * (double)i / (double)head_dim);
        for (size_t p = 0; p < n_side; p++) {
            table[(p * n + i) * 2] = (float)cos((double)p * f);
            table[(p * n + i) * 2 + 1] = (float)sin((double)p * f);
        }
    }
}

void k3i_vision_turn(const float *table, size_t head_dim, const k3i_place *at, float *cs)
{
    size_t n = head_dim / 4;
    const float *col = table + at->x * n * 2, *row = table + at->y * n * 2;
    for (size_t i = 0; i < n; i++) {
        cs[4 * i] = col[2 * i];
        cs[4 * i + 1] = col[2 * i + 1];
        cs[4 * i + 2] = row[2 * i];
        cs[4 * i + 3] = row[2 * i + 1];
    }
}
