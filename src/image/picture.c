/* picture.c: owns the pixels: allocation and EXIF orientation. Sizes come from foreign headers, so
 * products are checked; the callers have applied their limits before. */
#include "picture.h"

#include <string.h>

size_t k3i_pix_bytes(k3i_pix mode)
{
    switch (mode) {
    case K3I_PIX_RGB:
        return 3;
    case K3I_PIX_WIDE:
    case K3I_PIX_RGBA:
    case K3I_PIX_CMYK:
        return 4;
    default:
        return 1;
    }
}

k3_status k3i_picture_new(k3i_pix mode, uint32_t w, uint32_t h, k3i_picture *ret, k3i_err *err)
{
    size_t bytes;
    if (w == 0 || h == 0)
        return k3i_fail(err, K3_E_FORMAT, "the picture is empty (%u x %u)", w, h);
    if (!k3i_mul_size(w, h, &bytes) || !k3i_mul_size(bytes, k3i_pix_bytes(mode), &bytes))
        return k3i_fail(err, K3_E_NOMEM, "a picture of %u x %u pixels does not fit memory", w, h);
    uint8_t *data = k3i_alloc(bytes);
    if (data == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a picture of %u x %u pixels", w, h);
    *ret = (k3i_picture){.mode = mode, .w = w, .h = h, .data = data, .key = -1};
    for (size_t i = 0; i < 256; i++)
        ret->palette[i][3] = 255;
    return K3_OK;
}

void k3i_picture_done(k3i_picture *pic)
{
    if (pic == NULL)
        return;
    k3i_free(pic->data);
    pic->data = NULL;
}

k3_status k3i_picture_orient(k3i_picture *pic, int orientation, k3i_err *err)
{
    if (orientation < 2 || orientation > 8)
        return K3_OK;
    /* Pixel (x, y) of the turned picture comes from (x, y), exchanged first for 5..8, then mirrored:
     *                              2      3      4      5      6      7      8   */
    static const bool flip_x[] = {true, true, false, false, false, true, true};
    static const bool flip_y[] = {false, true, true, false, true, true, false};
    bool swap = orientation >= 5;
    bool fx = flip_x[orientation - 2];
    bool fy = flip_y[orientation - 2];
    uint32_t w = swap ? pic->h : pic->w;
    uint32_t h = swap ? pic->w : pic->h;
    size_t px = k3i_pix_bytes(pic->mode);
    uint8_t *data = k3i_alloc((size_t)w * h * px); /* as large as the picture that exists */
    if (data == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory to turn a picture of %u x %u pixels", w, h);
    for (uint32_t y = 0; y < h; y++) {
        for (uint32_t x = 0; x < w; x++) {
            uint32_t sx = swap ? y : x;
            uint32_t sy = swap ? x : y;
            sx = fx ? pic->w - 1 - sx : sx;
            sy = fy ? pic->h - 1 - sy : sy;
            memcpy(data + ((size_t)y * w + x) * px, pic->data + ((size_t)sy * pic->w + sx) * px, px);
        }
    }
    k3i_free(pic->data);
    pic->data = data;
    pic->w = w;
    pic->h = h;
    return K3_OK;
}
