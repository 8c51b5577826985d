/* picture.h: a decoded picture, kept in the mode of its file until after the resize, because the
 * reference resizes in that mode: palette indices and 1-bit gray by nearest neighbour, the rest by
 * bicubic (vision 3.1, 3.3). */
#ifndef K3I_PICTURE_H
#define K3I_PICTURE_H

#include "alloc.h"

typedef enum {
    K3I_PIX_BIT,     /* 1 byte: 0 or 255, from 1-bit gray */
    K3I_PIX_PALETTE, /* 1 byte: an index into `palette` */
    K3I_PIX_GRAY,    /* 1 byte */
    K3I_PIX_WIDE,    /* int32_t: 16-bit gray under the switch gray16_clip */
    K3I_PIX_RGB,     /* 3 bytes */
    K3I_PIX_RGBA,    /* 4 bytes, colours not multiplied by alpha */
    K3I_PIX_CMYK     /* 4 bytes, already inverted: 0 is no ink */
} k3i_pix;

typedef struct {
    k3i_pix mode;
    uint32_t w, h;           /* pixels, both >= 1 */
    uint8_t *data;           /* [h, w, k3i_pix_bytes(mode)], owned */
    int32_t key;             /* BIT and GRAY: the transparent sample, -1 for none */
    bool palette_alpha;      /* PALETTE: some entry has its own alpha */
    uint8_t palette[256][4]; /* RGBA; entries that the file lacks are opaque black */
} k3i_picture;

size_t k3i_pix_bytes(k3i_pix mode);

/* Allocates w x h pixels, contents undefined. Errors: K3_E_FORMAT for an empty picture, K3_E_NOMEM.
 */
k3_status k3i_picture_new(k3i_pix mode, uint32_t w, uint32_t h, k3i_picture *ret, k3i_err *err);
void k3i_picture_done(k3i_picture *pic);

/* Turns the pixels as the EXIF orientation asks (2..8; other values change nothing); w and h are
 * exchanged for 5..8. Errors: K3_E_NOMEM, the picture is unchanged then. */
k3_status k3i_picture_orient(k3i_picture *pic, int orientation, k3i_err *err);

/* Bicubic as Pillow does it, bit for bit (nearest for BIT and PALETTE); the same size is no change.
 * Errors: K3_E_NOMEM, the picture is unusable then but may be freed. */
k3_status k3i_picture_resize(k3i_picture *pic, uint32_t w, uint32_t h, k3i_err *err);

/* What shows through transparent pixels. */
typedef struct {
    bool drop_alpha;    /* no background: colours as they are under any alpha */
    bool is_chessboard; /* false: black */
    bool white_first;   /* the top-left square is the white one */
    uint32_t square;    /* pixels, >= 1 */
    uint8_t white, gray;
} k3i_background;

/* Converts to RGB; pictures with alpha or a colour key are composited over the background (vision
 * 3.4). Errors: K3_E_NOMEM. */
k3_status k3i_picture_to_rgb(k3i_picture *pic, const k3i_background *bg, k3i_err *err);

/* One sample `c` of coverage `a` over `bg`: f32, each operation rounded once, cut to 8 bits. */
static inline uint8_t k3i_composite(uint8_t c, uint8_t a, uint8_t bg)
{
    float alpha = (float)a / 255.0f;
    return (uint8_t)(alpha * (float)c + (1.0f - alpha) * (float)bg);
}

/* a * b / 255 in integers as Pillow rounds it. */
static inline uint8_t k3i_muldiv255(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

#endif
