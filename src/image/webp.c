/* webp.c: libwebp through its animation decoder, as Pillow has it: the first frame on its canvas. A
 * file without the alpha flag is RGB. */
#include "formats.h"

#include <string.h>

#include <webp/demux.h>

/* Canvas, alpha flag and orientation, without decoding. */
static k3_status read_header(const WebPData *data, const k3i_decode_options *opt, bool *ret_alpha,
                             int *ret_orientation, k3i_err *err)
{
    WebPDemuxer *demux = WebPDemux(data); /* NULL unless the file is complete */
    if (demux == NULL)
        return k3i_fail(err, K3_E_FORMAT, "the file is damaged or truncated");
    *ret_orientation = 1;
    uint32_t flags = WebPDemuxGetI(demux, WEBP_FF_FORMAT_FLAGS);
    k3_status st = k3i_check_size(WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH),
                                  WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT), opt, err);
    WebPChunkIterator chunk;
    if (st == K3_OK && WebPDemuxGetChunk(demux, "EXIF", 1, &chunk) != 0) {
        *ret_orientation = k3i_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
        WebPDemuxReleaseChunkIterator(&chunk);
    }
    WebPDemuxDelete(demux);
    *ret_alpha = (flags & ALPHA_FLAG) != 0;
    return st;
}

k3_status k3i_decode_webp(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                          k3i_picture *ret, int *ret_orientation, k3i_err *err)
{
    WebPData data = {bytes, n};
    bool alpha = false;
    k3_status st = read_header(&data, opt, &alpha, ret_orientation, err);
    if (st != K3_OK)
        return st;
    WebPAnimDecoderOptions options;
    if (!WebPAnimDecoderOptionsInit(&options))
        return k3i_fail(err, K3_E_UNSUPPORTED, "libwebp has another version than its headers");
    options.color_mode = MODE_RGBA;
    WebPAnimDecoder *dec = WebPAnimDecoderNew(&data, &options);
    if (dec == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a decoder");
    WebPAnimInfo info;
    uint8_t *rgba; /* owned by the decoder */
    int time;
    k3i_picture pic;
    if (!WebPAnimDecoderGetInfo(dec, &info) || !WebPAnimDecoderGetNext(dec, &rgba, &time)) {
        st = k3i_fail(err, K3_E_FORMAT, "the first frame cannot be decoded");
        goto out;
    }
    st = k3i_picture_new(alpha ? K3I_PIX_RGBA : K3I_PIX_RGB, info.canvas_width, info.canvas_height,
                         &pic, err);
    if (st != K3_OK)
        goto out;
    size_t px = k3i_pix_bytes(pic.mode);
    for (size_t i = 0; i < (size_t)pic.w * pic.h; i++)
        memcpy(pic.data + i * px, rgba + i * 4, px);
    *ret = pic;
out:
    WebPAnimDecoderDelete(dec);
    return st;
}
