/* gif.c: giflib, first frame only. As in Pillow the picture has a palette unless that is the gray
 * ramp; what the frame leaves of the canvas is the transparent index, or 0 without one. */
#include "formats.h"

#include <gif_lib.h>
#include <string.h>

#define GRAPHICS_CONTROL 0xf9

typedef struct {
    GifFileType *gif;
    const uint8_t *bytes;
    size_t n, at;
    int transparent; /* index, -1 for none */
} reader;

static int on_read(GifFileType *gif, GifByteType *out, int n)
{
    reader *r = gif->UserData;
    size_t left = r->n - r->at;
    size_t take = (size_t)n < left ? (size_t)n : left;
    memcpy(out, r->bytes + r->at, take);
    r->at += take;
    return (int)take;
}

static k3_status fail(const reader *r, k3i_err *err)
{
    int code = r->gif->Error;
    const char *text =
        code == D_GIF_ERR_READ_FAILED ? "the file is truncated" : GifErrorString(code);
    return k3i_fail(err, code == D_GIF_ERR_NOT_ENOUGH_MEM ? K3_E_NOMEM : K3_E_FORMAT, "%s",
                    text == NULL ? "the file is damaged" : text);
}

/* Reads one extension; a graphics control block names the transparent index. */
static bool read_extension(reader *r)
{
    int code;
    GifByteType *block; /* length byte, then the contents; NULL behind the last */
    if (DGifGetExtension(r->gif, &code, &block) == GIF_ERROR)
        return false;
    if (code == GRAPHICS_CONTROL && block != NULL && block[0] >= 4)
        r->transparent = (block[1] & 1) != 0 ? block[4] : -1;
    while (block != NULL) {
        if (DGifGetExtensionNext(r->gif, &block) == GIF_ERROR)
            return false;
    }
    return true;
}

/* Steps over extensions to the first frame and reads its description. */
static k3_status seek_frame(reader *r, k3i_err *err)
{
    for (;;) {
        GifRecordType type;
        if (DGifGetRecordType(r->gif, &type) == GIF_ERROR)
            return fail(r, err);
        if (type == TERMINATE_RECORD_TYPE)
            return k3i_fail(err, K3_E_FORMAT, "the file has no frame");
        if (type == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(r->gif) == GIF_ERROR ? fail(r, err) : K3_OK;
        if (type == EXTENSION_RECORD_TYPE && !read_extension(r))
            return fail(r, err);
    }
}

/* Copies the palette; a missing one or the gray ramp makes the picture gray. */
static void set_palette(k3i_picture *pic, const ColorMapObject *map, int transparent)
{
    bool is_gray = true;
    for (int i = 0; map != NULL && i < map->ColorCount && i < 256; i++) {
        const GifColorType *c = &map->Colors[i];
        is_gray = is_gray && c->Red == i && c->Green == i && c->Blue == i;
        pic->palette[i][0] = c->Red;
        pic->palette[i][1] = c->Green;
        pic->palette[i][2] = c->Blue;
    }
    if (is_gray) {
        pic->mode = K3I_PIX_GRAY;
        pic->key = transparent;
    } else if (transparent >= 0) {
        pic->palette[transparent][3] = 0;
        pic->palette_alpha = true;
    }
}

static k3_status read_rows(reader *r, k3i_picture *pic, k3i_err *err)
{
    const GifImageDesc *d = &r->gif->Image;
    static const int first[] = {0, 4, 2, 1};
    static const int step[] = {8, 8, 4, 2};
    for (int pass = 0; pass < (d->Interlace ? 4 : 1); pass++) {
        int y = d->Interlace ? first[pass] : 0;
        for (; y < d->Height; y += d->Interlace ? step[pass] : 1) {
            size_t at = (size_t)(d->Top + y) * pic->w + (size_t)d->Left;
            if (DGifGetLine(r->gif, pic->data + at, d->Width) == GIF_ERROR)
                return fail(r, err);
        }
    }
    return K3_OK;
}

static k3_status read_frame(reader *r, const k3i_decode_options *opt, k3i_picture *pic,
                            k3i_err *err)
{
    k3_status st = seek_frame(r, err);
    if (st != K3_OK)
        return st;
    const GifImageDesc *d = &r->gif->Image;
    if (d->Width <= 0 || d->Height <= 0)
        return k3i_fail(err, K3_E_FORMAT, "the first frame is empty (%d x %d)", d->Width,
                        d->Height);
    /* All four are 16-bit. A frame that sticks out widens the canvas. */
    int w = d->Left + d->Width > r->gif->SWidth ? d->Left + d->Width : r->gif->SWidth;
    int h = d->Top + d->Height > r->gif->SHeight ? d->Top + d->Height : r->gif->SHeight;
    st = k3i_check_size((uint64_t)w, (uint64_t)h, opt, err);
    if (st == K3_OK)
        st = k3i_picture_new(K3I_PIX_PALETTE, (uint32_t)w, (uint32_t)h, pic, err);
    if (st != K3_OK)
        return st;
    set_palette(pic, d->ColorMap != NULL ? d->ColorMap : r->gif->SColorMap, r->transparent);
    memset(pic->data, r->transparent >= 0 ? r->transparent : 0, (size_t)w * (size_t)h);
    return read_rows(r, pic, err);
}

k3_status k3i_decode_gif(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                         k3i_picture *ret, int *ret_orientation, k3i_err *err)
{
    reader r = {.bytes = bytes, .n = n, .transparent = -1};
    int code = 0;
    *ret_orientation = 1; /* the format has no EXIF */
    r.gif = DGifOpen(&r, on_read, &code);
    if (r.gif == NULL)
        return k3i_fail(err, code == D_GIF_ERR_NOT_ENOUGH_MEM ? K3_E_NOMEM : K3_E_FORMAT,
                        "the header is damaged or truncated");
    k3i_picture pic = {0};
    k3_status st = read_frame(&r, opt, &pic, err);
    DGifCloseFile(r.gif, &code);
    if (st == K3_OK)
        *ret = pic;
    else
        k3i_picture_done(&pic);
    return st;
}
