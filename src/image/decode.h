/* decode.h: from the bytes of a JPEG, PNG, WebP or GIF file to a picture. The format is told by its
 * first bytes, never by a name or a declared type. Only the first frame is read; colour profiles
 * are ignored as the reference ignores them (vision 3.1). */
#ifndef K3I_DECODE_H
#define K3I_DECODE_H

#include "picture.h"

typedef struct {
    size_t max_bytes;    /* of the file */
    uint64_t max_pixels; /* width times height, checked before memory is taken */
    uint32_t max_side;   /* pixels */
    bool apply_exif;     /* turn by the EXIF orientation */
    bool gray16_clip;    /* 16-bit gray as the reference has it: values above 255 become white */
} k3i_decode_options;

/* Errors: K3_E_FORMAT (not a picture, unknown format, damaged or truncated), K3_E_UNSUPPORTED (a
 * video, or a kind of picture that is not read), K3_E_LIMIT, K3_E_NOMEM. */
k3_status k3i_decode(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                     k3i_picture *ret, k3i_err *err);

/* Orientation (1..8) of an EXIF block, with or without its "Exif" heading; 1 if there is none. */
int k3i_exif_orientation(const uint8_t *exif, size_t n);

#endif
