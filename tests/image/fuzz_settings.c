/* Any bytes as preprocessor_config.json. */
#include "settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k3i_image_settings s;
    k3i_err err;
    k3i_image_settings_parse((const char *)data, size, "fuzz", &s, &err);
    return 0;
}
