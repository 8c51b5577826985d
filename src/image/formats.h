/* formats.h: one decoder a format, called by decode.c only. Each sets ret and *ret_orientation on
 * success; the errors are those of k3i_decode. */
#ifndef K3I_FORMATS_H
#define K3I_FORMATS_H

#include "decode.h"

typedef k3_status k3i_decode_fn(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                                k3i_picture *ret, int *ret_orientation, k3i_err *err);

k3i_decode_fn k3i_decode_jpeg, k3i_decode_png, k3i_decode_webp, k3i_decode_gif;

/* The limits on a size that a header states. Errors: K3_E_FORMAT (empty), K3_E_LIMIT. */
k3_status k3i_check_size(uint64_t w, uint64_t h, const k3i_decode_options *opt, k3i_err *err);

#endif
