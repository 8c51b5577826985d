/* Resize from any size to any size, up and down, in every mode, then to RGB over any background.
 * Bytes 0..9 choose mode and sizes, the rest repeated are the pixels. A picture of one colour must
 * stay one: weights of a pixel that do not sum to one, or a row read beside the picture, show
 * there. */
#include "picture.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* 1..2048, small ones as often as large ones; keeps an input below some milliseconds. */
static uint32_t side(uint8_t kind, uint8_t v)
{
    return 1 + (uint32_t)v * (1u << kind % 4) % 2048;
}

static void check_flat(const k3i_picture *pic, const uint8_t *colour)
{
    size_t px = k3i_pix_bytes(pic->mode);
    for (size_t i = 0; i < (size_t)pic->w * pic->h; i++) {
        if (memcmp(pic->data + i * px, colour, px) != 0)
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 14)
        return 0;
    k3i_picture pic;
    uint32_t w = side(data[1], data[2]), h = side(data[1] >> 4, data[3]);
    uint32_t new_w = side(data[4], data[5]), new_h = side(data[4] >> 4, data[6]);
    if (w * h > 1 << 15 || new_w * new_h > 1 << 15 || w * new_h > 1 << 17 || new_w * h > 1 << 17 ||
        k3i_picture_new((k3i_pix)(data[0] % 7), w, h, &pic, NULL) != K3_OK)
        return 0;
    bool is_flat = (data[0] & 128) != 0;
    const uint8_t *pixels = data + 10;
    size_t px = k3i_pix_bytes(pic.mode);
    size_t n_pixels = is_flat ? px : size - 10;
    for (size_t i = 0; i < (size_t)w * h * px; i++)
        pic.data[i] = pixels[i % n_pixels];
    pic.key = data[7] == 255 ? -1 : data[7];
    pic.palette_alpha = (data[7] & 1) != 0;
    memset(pic.palette[data[7]], data[8], 4);

    k3i_err err;
    if (k3i_picture_resize(&pic, new_w, new_h, &err) == K3_OK) {
        if (pic.w != new_w || pic.h != new_h)
            __builtin_trap();
        /* Transparent colours are lost in the multiplication by alpha, and 32-bit sums are rounded
         * in f64. */
        if (is_flat && pic.mode != K3I_PIX_RGBA && pic.mode != K3I_PIX_WIDE)
            check_flat(&pic, pixels);
        k3i_background bg = {.drop_alpha = (data[9] & 1) != 0,
                             .is_chessboard = (data[9] & 2) != 0,
                             .white_first = (data[9] & 4) != 0,
                             .square = 1 + data[9] / 8,
                             .white = 255,
                             .gray = data[8]};
        if (k3i_picture_to_rgb(&pic, &bg, &err) == K3_OK && pic.mode != K3I_PIX_RGB)
            __builtin_trap();
    }
    k3i_picture_done(&pic);
    return 0;
}
