/* Any bytes as a picture file, through every step to the patches. */
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k3i_image_settings s;
    k3i_image_settings_default(&s);
    s.decode.max_pixels = 1 << 18; /* keeps an input below a few milliseconds */
    s.patch_limit = 64;
    for (int clip = 0; clip < 2; clip++) {
        s.decode.gray16_clip = clip != 0;
        k3i_patches p;
        k3i_err err;
        if (k3i_image_prepare(data, size, &s, &p, &err) == K3_OK)
            k3i_patches_done(&p);
    }
    return 0;
}
