/* Any bytes as a file of one format, through every step to the patches. FUZZ_DECODE names the
 * decoder, which is called whatever the first bytes are; so each format has its own corpus and its
 * own coverage to follow. */
#include "formats.h"
#include "image.h"

#include <string.h>

#include <zlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Every changed byte of a PNG file spoils a checksum, and nothing behind it would be reached: they
 * are set anew here. fuzz_image_decode keeps wrong ones. */
static void repair_png(uint8_t *p, size_t n)
{
    for (size_t at = 8; at <= n && n - at >= 12;) {
        uint32_t len = be32(p + at);
        if (len > n - at - 12)
            return;
        uint8_t *end = p + at + 8 + len;
        uLong crc = crc32(0, p + at + 4, len + 4);
        for (int i = 0; i < 4; i++)
            end[i] = (uint8_t)(crc >> (24 - 8 * i));
        at += (size_t)len + 12;
    }
}

static void decode(const uint8_t *data, size_t size, const k3i_image_settings *s)
{
    k3i_picture pic;
    int orientation = 0;
    k3i_err err;
    if (FUZZ_DECODE(data, size, &s->decode, &pic, &orientation, &err) != K3_OK)
        return;
    k3i_patches p;
    if (orientation < 1 || orientation > 8)
        __builtin_trap();
    if (k3i_picture_orient(&pic, orientation, &err) == K3_OK &&
        k3i_image_from_picture(&pic, s, &p, &err) == K3_OK)
        k3i_patches_done(&p);
    k3i_picture_done(&pic);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.decode.max_pixels =
        1 << 14; /* keeps an input below a millisecond; pictures of the corpus have 99 */
    s.patch_limit = 16;
    uint8_t *copy = k3i_alloc(size + 1);
    if (copy == NULL)
        return 0;
    if (size > 0)
        memcpy(copy, data, size);
    bool is_png = size >= 8 && memcmp(copy, "\x89PNG\r\n\x1a\n", 8) == 0;
    if (is_png)
        repair_png(copy, size);
    for (int clip = 0; clip < (is_png ? 2 : 1); clip++) {
        s.decode.gray16_clip = clip != 0;
        decode(copy, size, &s);
    }
    k3i_free(copy);
    return 0;
}
