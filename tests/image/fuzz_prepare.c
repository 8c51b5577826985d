/* Preprocessing of arbitrary pictures under arbitrary settings: bytes 0..7 choose mode, size and limits,
 * all of them repeated are the pixels. */
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8)
        return 0;
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.patch_limit = 1 + data[4];
    s.side_limit = 1 + data[5] % 32;
    s.patch = 1 + data[6] % 20;
    s.merge = 1 + data[6] / 64;
    s.fill_before_resize = (data[7] & 1) != 0;
    s.background.drop_alpha = (data[7] & 2) != 0;
    s.background.square = 1 + data[7] / 16;
    k3i_picture pic;
    uint32_t w = 1 + (uint32_t)data[1] + ((data[0] & 8) != 0 ? 600u : 0u);
    uint32_t h = 1 + (uint32_t)data[2];
    if (k3i_picture_new((k3i_pix)(data[0] % 7), w, h, &pic, NULL) != K3_OK)
        return 0;
    size_t n = (size_t)w * h * k3i_pix_bytes(pic.mode);
    for (size_t i = 0; i < n; i++)
        pic.data[i] = data[i % size];
    pic.key = data[3];
    pic.palette_alpha = (data[3] & 1) != 0;
    k3i_patches p;
    if (k3i_picture_orient(&pic, data[3] % 10, NULL) == K3_OK &&
        k3i_image_from_picture(&pic, &s, &p, NULL) == K3_OK)
        k3i_patches_done(&p);
    k3i_picture_done(&pic);
    return 0;
}
