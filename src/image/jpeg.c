/* jpeg.c: libjpeg-turbo with its defaults (slow integer IDCT, fancy upsampling), which are
 * Pillow's. The library reports by longjmp, so all that must survive lives in `reader`, outside the
 * frame that jumps. Data that the library would have to make up is refused. */
#include "formats.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

/* A progressive file of a few kilobytes can ask for any number of passes over a huge picture. */
#define MAX_SCANS 500

typedef struct {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    k3_status status; /* K3_OK until a failure other than the library's own */
    char text[JMSG_LENGTH_MAX];
    k3i_picture pic;
} reader;

static void on_error(j_common_ptr cinfo)
{
    reader *r = cinfo->client_data;
    if (r->text[0] == '\0')
        cinfo->err->format_message(cinfo, r->text);
    if (r->status == K3_OK)
        r->status = cinfo->err->msg_code == JERR_OUT_OF_MEMORY ? K3_E_NOMEM : K3_E_FORMAT;
    longjmp(r->jump, 1);
}

/* Warnings are level -1. Those that leave part of the picture invented are errors here. */
static void on_message(j_common_ptr cinfo, int level)
{
    if (level >= 0)
        return;
    switch (cinfo->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
        on_error(cinfo);
        break;
    default:
        break;
    }
}

static void on_output(j_common_ptr cinfo)
{
    (void)cinfo;
}

static void on_progress(j_common_ptr cinfo)
{
    reader *r = cinfo->client_data;
    if (r->cinfo.input_scan_number <= MAX_SCANS)
        return;
    snprintf(r->text, sizeof r->text, "the file has more than %d scans", MAX_SCANS);
    r->status = K3_E_LIMIT;
    longjmp(r->jump, 1);
}

static int orientation_of(const reader *r)
{
    for (jpeg_saved_marker_ptr m = r->cinfo.marker_list; m != NULL; m = m->next) {
        if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 &&
            memcmp(m->data, "Exif\0\0", 6) == 0)
            return k3i_exif_orientation(m->data, m->data_length);
    }
    return 1;
}

/* Runs under the caller's setjmp: leaves by longjmp when the library complains. */
static k3_status read_pixels(reader *r, const k3i_decode_options *opt, int *ret_orientation,
                             k3i_err *err)
{
    struct jpeg_decompress_struct *c = &r->cinfo;
    jpeg_read_header(c, TRUE);
    *ret_orientation = orientation_of(r); /* markers are gone once the pixels are read */
    k3_status st = k3i_check_size(c->image_width, c->image_height, opt, err);
    if (st != K3_OK)
        return st;
    if (c->num_components != 1 && c->num_components != 3 && c->num_components != 4)
        return k3i_fail(err, K3_E_UNSUPPORTED, "%d colour components", c->num_components);
    k3i_pix mode = c->num_components == 1   ? K3I_PIX_GRAY
                   : c->num_components == 3 ? K3I_PIX_RGB
                                            : K3I_PIX_CMYK;
    c->out_color_space = mode == K3I_PIX_GRAY  ? JCS_GRAYSCALE
                         : mode == K3I_PIX_RGB ? JCS_RGB
                                               : JCS_CMYK;
    jpeg_start_decompress(c);
    st = k3i_picture_new(mode, c->output_width, c->output_height, &r->pic, err);
    if (st != K3_OK)
        return st;
    size_t row = r->pic.w * k3i_pix_bytes(mode);
    while (c->output_scanline < c->output_height) {
        JSAMPROW line = r->pic.data + c->output_scanline * row;
        jpeg_read_scanlines(c, &line, 1);
    }
    jpeg_finish_decompress(c);
    /* Files store inverted ink; the reference inverts always, without asking the Adobe marker. */
    for (size_t i = 0; mode == K3I_PIX_CMYK && i < row * r->pic.h; i++)
        r->pic.data[i] = (uint8_t)(255 - r->pic.data[i]);
    return K3_OK;
}

k3_status k3i_decode_jpeg(const uint8_t *bytes, size_t n, const k3i_decode_options *opt,
                          k3i_picture *ret, int *ret_orientation, k3i_err *err)
{
    reader *r = k3i_alloc_zero(sizeof *r);
    if (r == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a decoder");
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    r->progress.progress_monitor = on_progress;
    k3_status st;
    if (setjmp(r->jump) == 0) {
        jpeg_create_decompress(&r->cinfo);
        r->cinfo.progress = &r->progress;
        jpeg_mem_src(&r->cinfo, bytes, (unsigned long)n);
        jpeg_save_markers(&r->cinfo, JPEG_APP0 + 1, 0xffff);
        st = read_pixels(r, opt, ret_orientation, err);
    } else {
        st = k3i_fail(err, r->status, "%s", r->text);
    }
    jpeg_destroy_decompress(&r->cinfo);
    if (st == K3_OK)
        *ret = r->pic;
    else
        k3i_picture_done(&r->pic);
    k3i_free(r);
    return st;
}
