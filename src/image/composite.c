/* composite.c: from the mode of the file to RGB, after the resize; transparency over a chessboard
 * of the resized, unpadded picture. vision 3.4; the CMYK formula is in 3.1. Compiled without FP
 * contraction: a fused multiply-add changes bytes. */
#include "picture.h"

#include <string.h>

static void cmyk_to_rgb(uint8_t *rgb, const uint8_t *p)
{
    int white = 255 - p[3];
    for (int c = 0; c < 3; c++) {
        int v = white - k3i_muldiv255(p[c], (unsigned)white);
        rgb[c] = (uint8_t)(v < 0 ? 0 : v);
    }
}

/* One pixel of any mode as RGBA. */
static void to_rgba(uint8_t *rgba, const k3i_picture *pic, size_t i)
{
    const uint8_t *p = pic->data + i * k3i_pix_bytes(pic->mode);
    rgba[3] = 255;
    switch (pic->mode) {
    case K3I_PIX_PALETTE:
        memcpy(rgba, pic->palette[*p], 4);
        break;
    case K3I_PIX_RGB:
        memcpy(rgba, p, 3);
        break;
    case K3I_PIX_RGBA:
        memcpy(rgba, p, 4);
        break;
    case K3I_PIX_CMYK:
        cmyk_to_rgb(rgba, p);
        break;
    case K3I_PIX_WIDE: {
        int32_t v = ((const int32_t *)(const void *)pic->data)[i];
        memset(rgba, v < 0 ? 0 : v > 255 ? 255 : v, 3);
        break;
    }
    case K3I_PIX_BIT:
    case K3I_PIX_GRAY:
        memset(rgba, *p, 3);
        rgba[3] = pic->key == *p ? 0 : 255;
        break;
    }
}

static bool has_alpha(const k3i_picture *pic)
{
    switch (pic->mode) {
    case K3I_PIX_RGBA:
        return true;
    case K3I_PIX_PALETTE:
        return pic->palette_alpha;
    case K3I_PIX_BIT:
    case K3I_PIX_GRAY:
        return pic->key >= 0;
    default:
        return false;
    }
}

static uint8_t background_at(const k3i_background *bg, uint32_t x, uint32_t y)
{
    if (!bg->is_chessboard)
        return 0;
    bool is_odd = ((x / bg->square + y / bg->square) & 1) != 0;
    return is_odd == bg->white_first ? bg->gray : bg->white;
}

k3_status k3i_picture_to_rgb(k3i_picture *pic, const k3i_background *bg, k3i_err *err)
{
    if (pic->mode == K3I_PIX_RGB)
        return K3_OK;
    k3i_picture rgb;
    k3_status st = k3i_picture_new(K3I_PIX_RGB, pic->w, pic->h, &rgb, err);
    if (st != K3_OK)
        return st;
    bool blend = has_alpha(pic) && !bg->drop_alpha;
    uint8_t *out = rgb.data;
    for (uint32_t y = 0; y < pic->h; y++) {
        for (uint32_t x = 0; x < pic->w; x++, out += 3) {
            uint8_t px[4];
            to_rgba(px, pic, (size_t)y * pic->w + x);
            uint8_t under = blend ? background_at(bg, x, y) : 0;
            for (int c = 0; c < 3; c++)
                out[c] = blend ? k3i_composite(px[c], px[3], under) : px[c];
        }
    }
    k3i_picture_done(pic);
    *pic = rgb;
    return K3_OK;
}
