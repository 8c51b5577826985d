/* settings.h: how pictures become patches: preprocessor_config.json of the checkpoint, plus what
 * the host may change. vision 1.3. */
#ifndef K3I_SETTINGS_H
#define K3I_SETTINGS_H

#include "decode.h"

typedef struct {
    uint32_t patch;       /* pixels a side */
    uint32_t merge;       /* patches a side that become one token */
    uint32_t patch_limit; /* patches of a picture, before padding */
    uint32_t side_limit;  /* patches on one side */
    float mean[3], std[3];
    bool fill_before_resize;
    k3i_background background;
    k3i_decode_options decode;
} k3i_image_settings;

/* The values of the release, with the limits of the reference: 32 MiB, 178,956,970 pixels. */
void k3i_image_settings_default(k3i_image_settings *ret);

/* Reads dir/preprocessor_config.json over the defaults. Errors: K3_E_IO, K3_E_CONFIG naming the
 * key. */
k3_status k3i_image_settings_read(const char *dir, k3i_image_settings *ret, k3i_err *err);

/* The same from text of n bytes; `name` is used in messages. */
k3_status k3i_image_settings_parse(const char *text, size_t n, const char *name,
                                   k3i_image_settings *ret, k3i_err *err);

#endif
