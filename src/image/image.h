/* image.h: from the bytes of a picture file to the patches that the vision tower reads: decode,
 * turn, size rule, resize, transparency, padding, normalisation, patch order (vision 3). Knows no
 * engine; everything may run on any thread. */
#ifndef K3I_IMAGE_H
#define K3I_IMAGE_H

#include "settings.h"

/* What the size rule makes of a picture. */
typedef struct {
    uint32_t w, h;           /* decoded size: what the prompt names */
    uint32_t new_w, new_h;   /* after the resize */
    uint32_t grid_w, grid_h; /* patches, after padding right and bottom to a multiple of `merge` */
    uint32_t n_tokens;       /* media rows */
} k3i_image_plan;

/* Plans a picture of w x h pixels; both at least 1. */
void k3i_image_plan_size(const k3i_image_settings *s, uint32_t w, uint32_t h, k3i_image_plan *ret);

typedef struct {
    k3i_image_plan plan;
    size_t n_patches;    /* grid_w * grid_h */
    size_t patch_floats; /* 3 * patch * patch */
    float *pixels;       /* [grid_h * grid_w, 3, patch, patch], owned */
} k3i_patches;

/* Decodes and prepares one picture. Errors: those of k3i_decode. */
k3_status k3i_image_prepare(const uint8_t *bytes, size_t n, const k3i_image_settings *s,
                            k3i_patches *ret, k3i_err *err);

/* The same from a decoded picture, whose pixels are converted in place. Errors: K3_E_NOMEM. */
k3_status k3i_image_from_picture(k3i_picture *pic, const k3i_image_settings *s, k3i_patches *ret,
                                 k3i_err *err);
void k3i_patches_done(k3i_patches *patches);

#define K3I_IMAGE_KEY_BYTES 32

/* SHA-256 over everything the rows of a picture depend on: its bytes, the settings, and `model`, a
 * string that names the vision weights. Keys the encoder cache and enters prefix-cache keys. */
void k3i_image_key(const uint8_t *bytes, size_t n, const k3i_image_settings *s, const char *model,
                   uint8_t ret[K3I_IMAGE_KEY_BYTES]);

/* The text between media_begin and media_content: "image 640x480". */
void k3i_image_label(const k3i_image_plan *plan, char *ret, size_t ret_bytes);

#endif
