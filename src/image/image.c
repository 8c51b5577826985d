/* image.c: the order of the steps, which is observable: decode, turn, size rule, resize in the mode
 * of the file, transparency, padding with black, normalisation, patches. */
#include "image.h"

#include <math.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

static double min2(double a, double b)
{
    return a < b ? a : b;
}

static uint32_t scaled_side(uint32_t side, double scale, double max_side)
{
    double v = trunc((double)side * scale);
    return (uint32_t)min2(v < 1.0 ? 1.0 : v, max_side);
}

static uint32_t pad_to(uint32_t side, uint32_t unit)
{
    return (side + unit - 1) / unit * unit;
}

/* vision 3.2, f64 in exactly this order: 100000 x 13 depends on it. */
void k3i_image_plan_size(const k3i_image_settings *s, uint32_t w, uint32_t h, k3i_image_plan *ret)
{
    double a = w / s->patch < 1 ? 1.0 : w / s->patch;
    double b = h / s->patch < 1 ? 1.0 : h / s->patch;
    double max_side = (double)s->side_limit * s->patch;
    double scale = min2(1.0, sqrt((double)s->patch_limit / (a * b)));
    scale = min2(scale, max_side / w);
    scale = min2(scale, max_side / h);
    uint32_t unit = s->patch * s->merge;
    k3i_image_plan p = {.w = w, .h = h};
    p.new_w = scaled_side(w, scale, max_side);
    p.new_h = scaled_side(h, scale, max_side);
    p.grid_w = pad_to(p.new_w, unit) / s->patch;
    p.grid_h = pad_to(p.new_h, unit) / s->patch;
    p.n_tokens = (p.grid_w / s->merge) * (p.grid_h / s->merge);
    *ret = p;
}

/* Normalised value of each sample. Not v * (2/255) - 1: that changes 111 of 256 entries. */
static void fill_levels(const k3i_image_settings *s, float level[3][256])
{
    for (int c = 0; c < 3; c++) {
        float inv = 1.0f / s->std[c];
        for (int v = 0; v < 256; v++) {
            float x = (float)(v / 255.0) - s->mean[c];
            level[c][v] = x * inv;
        }
    }
}

/* rgb [new_h, new_w, 3]; samples right of it and below are black. */
static void cut_patches(const uint8_t *rgb, const k3i_image_settings *s, const k3i_image_plan *p,
                        float *out)
{
    float level[3][256];
    fill_levels(s, level);
    for (uint32_t r = 0; r < p->grid_h; r++) {
        for (uint32_t q = 0; q < p->grid_w; q++) {
            for (uint32_t c = 0; c < 3; c++) {
                for (uint32_t y = r * s->patch; y < (r + 1) * s->patch; y++) {
                    const uint8_t *row = rgb + (size_t)y * p->new_w * 3 + c;
                    for (uint32_t x = q * s->patch; x < (q + 1) * s->patch; x++) {
                        bool inside = y < p->new_h && x < p->new_w;
                        *out++ = level[c][inside ? row[(size_t)x * 3] : 0];
                    }
                }
            }
        }
    }
}

k3_status k3i_image_from_picture(k3i_picture *pic, const k3i_image_settings *s, k3i_patches *ret,
                                 k3i_err *err)
{
    k3i_patches out = {.patch_floats = (size_t)3 * s->patch * s->patch};
    k3i_image_plan_size(s, pic->w, pic->h, &out.plan);
    k3_status st = K3_OK;
    if (s->fill_before_resize)
        st = k3i_picture_to_rgb(pic, &s->background, err);
    if (st == K3_OK)
        st = k3i_picture_resize(pic, out.plan.new_w, out.plan.new_h, err);
    if (st == K3_OK)
        st = k3i_picture_to_rgb(pic, &s->background, err);
    if (st != K3_OK)
        return st;
    out.n_patches = (size_t)out.plan.grid_w * out.plan.grid_h;
    size_t n;
    if (!k3i_mul_size(out.n_patches, out.patch_floats, &n) ||
        (out.pixels = k3i_alloc_array(n, sizeof(float))) == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for %zu patches", out.n_patches);
    cut_patches(pic->data, s, &out.plan, out.pixels);
    *ret = out;
    return K3_OK;
}

k3_status k3i_image_prepare(const uint8_t *bytes, size_t n, const k3i_image_settings *s,
                            k3i_patches *ret, k3i_err *err)
{
    k3i_picture pic;
    k3_status st = k3i_decode(bytes, n, &s->decode, &pic, err);
    if (st != K3_OK)
        return st;
    st = k3i_image_from_picture(&pic, s, ret, err);
    k3i_picture_done(&pic);
    return st;
}

void k3i_patches_done(k3i_patches *patches)
{
    if (patches == NULL)
        return;
    k3i_free(patches->pixels);
    patches->pixels = NULL;
}

void k3i_image_key(const uint8_t *bytes, size_t n, const k3i_image_settings *s, const char *model,
                   uint8_t ret[K3I_IMAGE_KEY_BYTES])
{
    /* A text with every setting that changes pixels; limits only decide about refusal. */
    char text[512];
    const k3i_background *bg = &s->background;
    int len = snprintf(text, sizeof text,
                       "k3 image 1\npatch %u %u limit %u %u mean %a %a %a std %a %a %a "
                       "fill %d %d %d %d %u %u %u exif %d gray16 %d model %zu\n",
                       s->patch, s->merge, s->patch_limit, s->side_limit, (double)s->mean[0],
                       (double)s->mean[1], (double)s->mean[2], (double)s->std[0], (double)s->std[1],
                       (double)s->std[2], s->fill_before_resize, bg->drop_alpha, bg->is_chessboard,
                       bg->white_first, bg->square, bg->white, bg->gray, s->decode.apply_exif,
                       s->decode.gray16_clip, strlen(model));
    K3_ASSERT(len > 0 && (size_t)len < sizeof text);
    uint8_t part[2][SHA256_DIGEST_LENGTH];
    SHA256(bytes, n, part[0]);
    SHA256((const uint8_t *)model, strlen(model), part[1]);
    uint8_t all[sizeof text + sizeof part];
    memcpy(all, part, sizeof part);
    memcpy(all + sizeof part, text, (size_t)len);
    SHA256(all, sizeof part + (size_t)len, ret);
}

void k3i_image_label(const k3i_image_plan *plan, char *ret, size_t ret_bytes)
{
    snprintf(ret, ret_bytes, "image %ux%u", plan->w, plan->h);
}
