/* vision.h: the MoonViT3d tower and its projector: patches of pictures to rows of the text model.
 *
 * A batch is any number of items (a picture, or a clip of a few frames), each of its own grid. Items are
 * computed together, so that weights are read once, but see only themselves: the rows of an item have the
 * same bits alone and in any batch, on any number of threads. Memory is linear in the patches.
 *
 * Formulas and traps: docs/MODEL.md and docs/vision.md 4. Letters as in checkpoint/bind.h: F hidden, A qkv
 * width, E head width, G intermediate, s merge size, H text hidden; N patches of the batch. */
#ifndef K3I_VISION_H
#define K3I_VISION_H

#include "bind.h"
#include "kernels.h"
#include "team.h"

/* The tower's RMSNorm: the machine epsilon of f32, whatever the type of the weights. */
#define K3I_VISION_RMS_EPS 0x1p-23f

/* RoPE is defined for grids of up to this many patches a side. */
#define K3I_VISION_MAX_SIDE 512

typedef struct {
    const k3i_vision_config *cfg;
    k3i_vision_weights w; /* in bf16 mode all BF16 */
    const k3i_ops *op;
    k3i_team *team;
    bool bf16;       /* the release's rounding points; else f32 throughout */
    float rms_eps;   /* K3I_VISION_RMS_EPS; experiments may change it */
    k3i_arena arena; /* converted weights */
} k3i_vision;

/* Binds weights to kernels and threads; all four must outlive it. Errors: K3_E_NOMEM. */
k3_status k3i_vision_init(k3i_vision *v, const k3i_vision_config *cfg, const k3i_vision_weights *w,
                          const k3i_ops *op, k3i_team *team, bool bf16, k3i_err *err);
void k3i_vision_done(k3i_vision *v);

typedef struct {
    const float *pixels; /* [t h w, 3 p p] normalised */
    size_t t, h, w;      /* patches */
    float *rows;         /* out [k3i_vision_rows, H] */
} k3i_vision_item;

/* K3_OK if the grid can be encoded: h and w multiples of s up to K3I_VISION_MAX_SIDE, 1 <= t <= pos_time.
 * Errors: K3_E_ARG, K3_E_UNSUPPORTED, naming the side. */
k3_status k3i_vision_check(const k3i_vision_config *cfg, size_t t, size_t h, size_t w, k3i_err *err);

/* Rows that an item gives: (h / s) (w / s), for any number of frames. */
size_t k3i_vision_rows(const k3i_vision_config *cfg, size_t h, size_t w);

/* Called on the caller's thread between layers: `done` of `total` steps. */
typedef void (*k3i_progress_fn)(void *user, size_t done, size_t total);

/* Encodes checked items as one batch. progress may be NULL. Errors: K3_E_NOMEM. */
k3_status k3i_vision_encode(const k3i_vision *v, const k3i_vision_item *items, size_t n_items,
                            k3i_progress_fn progress, void *user, k3i_err *err);

#endif
