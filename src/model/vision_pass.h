/* vision_pass.h: one batch on its way through the tower: what vision.c and vision_place.c share. */
#ifndef K3I_VISION_PASS_H
#define K3I_VISION_PASS_H

#include "vision.h"

/* Where a row of the batch stands. */
typedef struct {
    uint32_t item;
    uint16_t t, y, x; /* frame, patch row, patch column; sides are at most K3I_VISION_MAX_SIDE */
} k3i_place;

/* The learned position table [rows, columns, F] resampled at patch (y, x) of an h x w grid, plus the time term
 * of frame t for clips: one row of F values, rounded as the release does in bf16 mode. */
void k3i_vision_position(const k3i_vision *v, const k3i_vision_item *item, const k3i_place *at,
                         float *row);

/* cos and sin of p f_i for p < n_side, i < E / 4: [n_side, E / 4, 2]. */
void k3i_vision_angles(size_t head_dim, size_t n_side, float *table);

/* The factors of one patch for the rope operation, [E / 2, 2]: even pairs turn by the column, odd pairs
 * by the row. */
void k3i_vision_turn(const float *table, size_t head_dim, const k3i_place *at, float *cs);

#endif
