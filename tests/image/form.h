/* form.h: the synthetic picture of the preprocessing vectors, sample (37x + 91y + 53c + xy) mod
 * 256. */
#ifndef FORM_H
#define FORM_H

#include "test.h"

#include "image.h"

#include <zlib.h>

static inline k3i_picture form(k3i_pix mode, uint32_t w, uint32_t h)
{
    k3i_picture pic;
    assert_int_equal(k3i_picture_new(mode, w, h, &pic, NULL), K3_OK);
    uint32_t ch = (uint32_t)k3i_pix_bytes(mode);
    uint8_t *p = pic.data;
    for (uint32_t y = 0; y < h; y++) {
        for (uint32_t x = 0; x < w; x++) {
            for (uint32_t c = 0; c < ch; c++)
                *p++ = (uint8_t)(37 * x + 91 * y + 53 * c + x * y);
        }
    }
    return pic;
}

static inline uint32_t crc_of(const void *data, size_t n)
{
    return (uint32_t)crc32(0, data, (uInt)n);
}

static inline uint32_t picture_crc(const k3i_picture *pic)
{
    return crc_of(pic->data, (size_t)pic->w * pic->h * k3i_pix_bytes(pic->mode));
}

#endif
