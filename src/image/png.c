/* png.c: libpng, without any of its colour management. Bit depths and colour keys become the modes
 * and samples of the table in vision 3.1. The library reports by longjmp, so what must survive
 * lives in `reader`. */
#include "formats.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

/* Text and profile chunks are compressed and unused: what they may unpack to. */
#define MAX_CHUNK_BYTES (8u << 20)

typedef struct {
    png_structp png;
    png_infop info;
    const uint8_t *bytes;
    size_t n, at;
    char text[256];
    k3_status status;
    k3i_picture pic;
    png_bytep *rows; /* [h] */
    uint8_t *raw;    /* 16-bit gray before it is converted, [h, w, 2] */
} reader;

static void on_error(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);
    if (r->text[0] == '\0')
        snprintf(r->text, sizeof r->text, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static png_voidp on_alloc(png_structp png, png_alloc_size_t bytes)
{
    (void)png;
    return k3i_alloc(bytes);
}

static void on_free(png_structp png, png_voidp p)
{
    (void)png;
    k3i_free(p);
}

static void on_read(png_structp png, png_bytep out, size_t n)
{
    reader *r = png_get_io_ptr(png);
    if (n > r->n - r->at)
        png_error(png, "the file is truncated");
    memcpy(out, r->bytes + r->at, n);
    r->at += n;
}

static k3i_pix mode_of(int color, int depth, bool gray16_clip)
{
    switch (color) {
    case PNG_COLOR_TYPE_PALETTE:
        return K3I_PIX_PALETTE;
    case PNG_COLOR_TYPE_GRAY:
        if (depth == 16 && gray16_clip)
            return K3I_PIX_WIDE;
        return depth == 1 ? K3I_PIX_BIT : K3I_PIX_GRAY;
    case PNG_COLOR_TYPE_RGB:
        return K3I_PIX_RGB;
    default:
        return K3I_PIX_RGBA;
    }
}

static void read_palette(reader *r)
{
    png_colorp colors;
    png_bytep alpha;
    int n_colors = 0, n_alpha = 0;
    png_get_PLTE(r->png, r->info, &colors, &n_colors);
    for (int i = 0; i < n_colors && i < 256; i++) {
        r->pic.palette[i][0] = colors[i].red;
        r->pic.palette[i][1] = colors[i].green;
        r->pic.palette[i][2] = colors[i].blue;
    }
    if (png_get_tRNS(r->png, r->info, &alpha, &n_alpha, NULL) != 0) {
        r->pic.palette_alpha = true;
        for (int i = 0; i < n_alpha && i < 256; i++)
            r->pic.palette[i][3] = alpha[i];
    }
}

/* Keys of gray pictures. At 1 bit the key counts as 0 or 255; at 2 and 4 bits the reference
 * compares the key as stored with samples scaled to 8 bits, and so do we. On RGB and 16-bit gray it
 * is ignored. */
static void read_key(reader *r, int depth)
{
    png_color_16p key;
    if (depth == 16 || png_get_tRNS(r->png, r->info, NULL, NULL, &key) == 0)
        return;
    r->pic.key = depth == 1 ? (key->gray & 1) * 255 : key->gray;
}

static void scale_gray(reader *r, int depth)
{
    unsigned factor = depth == 1 ? 255 : depth == 2 ? 85 : depth == 4 ? 17 : 1;
    size_t n = (size_t)r->pic.w * r->pic.h;
    for (size_t i = 0; factor != 1 && i < n; i++)
        r->pic.data[i] = (uint8_t)(r->pic.data[i] * factor);
}

static void widen_gray(reader *r)
{
    size_t n = (size_t)r->pic.w * r->pic.h;
    int32_t *out = (int32_t *)(void *)r->pic.data;
    for (size_t i = 0; i < n; i++)
        out[i] = r->raw[2 * i] << 8 | r->raw[2 * i + 1];
}

static void set_transforms(reader *r, int color, int depth, k3i_pix mode)
{
    if (depth == 16 && mode != K3I_PIX_WIDE)
        png_set_strip_16(r->png); /* the high byte */
    if (depth < 8)
        png_set_packing(r->png); /* one sample a byte, not scaled */
    if (color == PNG_COLOR_TYPE_GRAY_ALPHA)
        png_set_gray_to_rgb(r->png);
}

/* Runs under the caller's setjmp. */
static k3_status read_pixels(reader *r, const k3i_decode_options *opt, k3i_err *err)
{
    png_uint_32 w, h;
    int depth, color;
    png_read_info(r->png, r->info);
    png_get_IHDR(r->png, r->info, &w, &h, &depth, &color, NULL, NULL, NULL);
    k3_status st = k3i_check_size(w, h, opt, err);
    if (st != K3_OK)
        return st;
    k3i_pix mode = mode_of(color, depth, opt->gray16_clip);
    st = k3i_picture_new(mode, w, h, &r->pic, err);
    if (st != K3_OK)
        return st;
    if (mode == K3I_PIX_PALETTE)
        read_palette(r);
    else if (color == PNG_COLOR_TYPE_GRAY)
        read_key(r, depth);
    set_transforms(r, color, depth, mode);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);

    size_t row = mode == K3I_PIX_WIDE ? (size_t)w * 2 : w * k3i_pix_bytes(mode);
    K3_ASSERT(png_get_rowbytes(r->png, r->info) == row);
    uint8_t *to = r->pic.data;
    if (mode == K3I_PIX_WIDE)
        to = r->raw = k3i_alloc_array(row, h);
    r->rows = k3i_alloc_array(h, sizeof *r->rows);
    if (to == NULL || r->rows == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a picture of %u x %u pixels", w, h);
    for (size_t y = 0; y < h; y++)
        r->rows[y] = to + y * row;
    png_read_image(r->png, r->rows);
    if (mode == K3I_PIX_WIDE)
        widen_gray(r);
    else if (color == PNG_COLOR_TYPE_GRAY)
        scale_gray(r, depth);
    return K3_OK;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The eXIf chunk may stand before or behind the pixels, so the chunks are walked. */
static int orientation_of(const uint8_t *bytes, size_t n)
{
    for (size_t at = 8; n - at >= 12;) {
        uint32_t len = be32(bytes + at);
        if (len > n - at - 12)
            break;
        if (memcmp(bytes + at + 4, "eXIf", 4) == 0)
            return k3i_exif_orientation(bytes + at + 8, len);
        at += (size_t)len + 12;
    }
    return 1;
}

static k3_status read_guarded(reader *r, const k3i_decode_options *opt, k3i_err *err)
{
    r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, on_error, on_warning, NULL,
                                      on_alloc, on_free);
    r->info = r->png == NULL ? NULL : png_create_info_struct(r->png);
    if (r->info == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a decoder");
    if (setjmp(png_jmpbuf(r->png)) != 0)
        return k3i_fail(err, K3_E_FORMAT, "%s", r->text);
    png_set_read_fn(r->png, r, on_read);
    /* Our own limits come right behind the header, with an error that names them. */
    png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_chunk_malloc_max(r->png, MAX_CHUNK_BYTES);
    /* Only palette, transparency and pixels are read. An eXIf chunk that claims 2 GiB would get
     * them, with no more than a warning about the limit. */
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    return read_pixels(r, opt, err);
}

k3_status k3i_decode_png(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                         k3i_picture *ret, int *ret_orientation, k3i_err *err)
{
    reader *r = k3i_alloc_zero(sizeof *r);
    if (r == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a decoder");
    r->bytes = bytes;
    r->n = n;
    k3_status st = read_guarded(r, opt, err);
    if (r->png != NULL)
        png_destroy_read_struct(&r->png, &r->info, NULL);
    k3i_free(r->rows);
    k3i_free(r->raw);
    if (st == K3_OK) {
        *ret = r->pic;
        *ret_orientation = orientation_of(bytes, n);
    } else {
        k3i_picture_done(&r->pic);
    }
    k3i_free(r);
    return st;
}
