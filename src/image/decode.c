/* decode.c: tells the format by magic bytes, applies the limits and the EXIF orientation. */
#include "decode.h"

#include "formats.h"

#include <string.h>

typedef struct {
    const char *name;
    size_t at, n; /* the magic bytes and where they stand */
    const char *magic;
    k3i_decode_fn *decode; /* NULL: known, but not read */
} format;

static const format formats[] = {
    {"JPEG", 0, 3, "\xff\xd8\xff", k3i_decode_jpeg},
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", k3i_decode_png},
    {"WebP", 8, 4, "WEBP", k3i_decode_webp},
    {"GIF", 0, 6, "GIF87a", k3i_decode_gif},
    {"GIF", 0, 6, "GIF89a", k3i_decode_gif},
    {"a BMP picture", 0, 2, "BM", NULL},
    {"a TIFF picture", 0, 4, "II*\0", NULL},
    {"a TIFF picture", 0, 4, "MM\0*", NULL},
    {"an AVIF picture", 4, 8, "ftypavif", NULL},
    {"a HEIC picture", 4, 8, "ftypheic", NULL},
    {"a HEIC picture", 4, 8, "ftypmif1", NULL},
    {"a PDF document", 0, 5, "%PDF-", NULL},
};

static const format videos[] = {
    {"MP4", 4, 4, "ftyp", NULL},
    {"Matroska or WebM", 0, 4, "\x1a\x45\xdf\xa3", NULL},
    {"AVI", 8, 4, "AVI ", NULL},
    {"MPEG", 0, 4, "\0\0\1\xba", NULL},
};

static const format *find(const format *list, size_t n_list, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n_list; i++) {
        const format *f = &list[i];
        if (n >= f->at + f->n && memcmp(bytes + f->at, f->magic, f->n) == 0)
            return f;
    }
    return NULL;
}

k3_status k3i_check_size(uint64_t w, uint64_t h, const k3i_decode_options *opt, k3i_err *err)
{
    if (w == 0 || h == 0)
        return k3i_fail(err, K3_E_FORMAT, "the picture is empty (%llu x %llu)",
                        (unsigned long long)w, (unsigned long long)h);
    if (w > opt->max_side || h > opt->max_side)
        return k3i_fail(err, K3_E_LIMIT,
                        "the picture is %llu x %llu, the limit is %u pixels a side",
                        (unsigned long long)w, (unsigned long long)h, opt->max_side);
    if (w * h > opt->max_pixels)
        return k3i_fail(err, K3_E_LIMIT, "the picture has %llu x %llu pixels, the limit is %llu",
                        (unsigned long long)w, (unsigned long long)h,
                        (unsigned long long)opt->max_pixels);
    return K3_OK;
}

k3_status k3i_decode(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                     k3i_picture *ret, k3i_err *err)
{
    if (n == 0)
        return k3i_fail(err, K3_E_FORMAT, "the picture file is empty");
    if (n > opt->max_bytes)
        return k3i_fail(err, K3_E_LIMIT, "the picture file has %zu bytes, the limit is %zu", n,
                        opt->max_bytes);
    const format *f = find(formats, sizeof formats / sizeof *formats, bytes, n);
    if (f == NULL && (f = find(videos, sizeof videos / sizeof *videos, bytes, n)) != NULL)
        return k3i_fail(
            err, K3_E_UNSUPPORTED,
            "this is a video (%s): video is not supported, because the prompt format of "
            "Kimi-K3 for it is not published; send frames as pictures",
            f->name);
    if (f == NULL)
        return k3i_fail(err, K3_E_FORMAT,
                        "the bytes are no picture that is known (JPEG, PNG, WebP or GIF)");
    if (f->decode == NULL)
        return k3i_fail(err, K3_E_UNSUPPORTED, "this is %s; JPEG, PNG, WebP and GIF are read",
                        f->name);
    k3i_picture pic;
    int orientation = 1;
    k3_status st = f->decode(bytes, n, opt, &pic, &orientation, err);
    if (st != K3_OK) {
        k3i_err_prefix(err, "%s", f->name);
        return st;
    }
    if (opt->apply_exif)
        st = k3i_picture_orient(&pic, orientation, err);
    if (st != K3_OK) {
        k3i_picture_done(&pic);
        return st;
    }
    *ret = pic;
    return K3_OK;
}
