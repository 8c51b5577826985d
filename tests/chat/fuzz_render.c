/* Fuzzes the chat renderer: any bytes as a request. Whatever is accepted must render to well-formed
 * segments or be refused with an error. */
#include "chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    yyjson_doc *doc = yyjson_read((const char *)data, size, K3I_CHAT_READ_FLAGS);
    if (doc == NULL)
        return 0;
    k3i_chat_req req;
    k3i_chat_image *images = NULL;
    size_t n_image = 0;
    k3i_chat_segs segs;
    k3i_err err;
    if (k3i_chat_parse(yyjson_doc_get_root(doc), &req, &err) == K3_OK &&
        k3i_chat_images(&req, &images, &n_image, &err) == K3_OK &&
        k3i_chat_segments(&req, n_image, 1 << 20, &segs, &err) == K3_OK) {
        size_t at = 0;
        for (size_t i = 0; i < segs.n_seg; i++) {
            if (segs.seg[i].kind == K3I_SEG_TEXT) {
                if (segs.seg[i].at != at || segs.seg[i].n == 0)
                    abort();
                at += segs.seg[i].n;
            } else if (segs.seg[i].kind == K3I_SEG_IMAGE && segs.seg[i].image >= n_image) {
                abort();
            }
        }
        if (at != segs.text.n)
            abort();
        k3i_chat_segs_done(&segs);
    }
    k3i_free(images);
    yyjson_doc_free(doc);
    return 0;
}
