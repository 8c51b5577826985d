/* Preprocessing of arbitrary pictures under arbitrary settings: bytes 0..7 choose mode, size and
 * limits, all of them repeated are the pixels and the palette. */
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void choose_settings(const uint8_t *data, k3i_image_settings *s)
{
    k3i_image_settings_default(s);
    s->patch_limit = 1 + data[4];
    s->side_limit = 1 + data[5] % 32;
    s->patch = 1 + data[6] % 20;
    s->merge = 1 + data[6] / 64;
    s->fill_before_resize = (data[7] & 1) != 0;
    s->background.drop_alpha = (data[7] & 2) != 0;
    s->background.is_chessboard = (data[7] & 4) == 0;
    s->background.white_first = (data[7] & 8) != 0;
    s->background.square = 1 + data[7] / 16;
}

static k3_status make_picture(const uint8_t *data, size_t size, k3i_picture *pic)
{
    uint32_t w = 1 + (uint32_t)data[1] + ((data[0] & 8) != 0 ? 600u : 0u);
    uint32_t h = 1 + (uint32_t)data[2];
    k3_status st = k3i_picture_new((k3i_pix)(data[0] % 7), w, h, pic, NULL);
    if (st != K3_OK)
        return st;
    size_t n = (size_t)w * h * k3i_pix_bytes(pic->mode);
    for (size_t i = 0; i < n; i++)
        pic->data[i] = data[i % size];
    for (size_t i = 0; i < sizeof pic->palette; i++)
        pic->palette[i / 4][i % 4] = data[i * 7 % size];
    pic->key = data[3] == 255 ? -1 : data[3];
    pic->palette_alpha = (data[3] & 1) != 0;
    return K3_OK;
}

/* Whatever the picture: the patches are those of the plan, and samples are (v / 255 - 0.5) / 0.5.
 */
static void check_patches(const k3i_patches *p, const k3i_image_settings *s)
{
    if (p->n_patches != (size_t)p->plan.n_tokens * s->merge * s->merge ||
        p->plan.new_w > s->side_limit * s->patch || p->plan.new_h > s->side_limit * s->patch)
        __builtin_trap();
    for (size_t i = 0; i < p->n_patches * p->patch_floats; i++) {
        if (!(p->pixels[i] >= -1.0f && p->pixels[i] <= 1.0f))
            __builtin_trap();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8)
        return 0;
    k3i_image_settings s;
    choose_settings(data, &s);
    k3i_picture pic;
    if (make_picture(data, size, &pic) != K3_OK)
        return 0;
    k3i_patches p;
    if (k3i_picture_orient(&pic, data[3] % 10, NULL) == K3_OK &&
        k3i_image_from_picture(&pic, &s, &p, NULL) == K3_OK) {
        check_patches(&p, &s);
        k3i_patches_done(&p);
    }
    k3i_picture_done(&pic);
    return 0;
}
