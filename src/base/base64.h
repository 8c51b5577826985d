/* base64.h: RFC 4648 section 4. Nothing but the alphabet is skipped or forgiven: no line ends, no
 * spaces, nothing behind the padding. */
#ifndef K3I_BASE64_H
#define K3I_BASE64_H

#include "buf.h"

/* Room for what n characters decode to. */
#define K3I_BASE64_ROOM(n) ((n) / 4 * 3 + 3)

typedef enum {
    K3I_BASE64_LENIENT,  /* padding may be missing, as in the URLs that clients write; unused bits
                            are not looked at */
    K3I_BASE64_CANONICAL /* one text for each sequence of bytes: padded, unused bits zero */
} k3i_base64_form;

/* ret has room for K3I_BASE64_ROOM(n) bytes and is undefined after an error, K3_E_FORMAT. */
k3_status k3i_base64_decode(const char *text, size_t n, k3i_base64_form form, uint8_t *ret,
                            size_t *ret_n, k3i_err *err);

/* Appends the canonical text of n bytes. Errors: those of k3i_buf_add. */
k3_status k3i_base64_add(k3i_buf *ret, const void *bytes, size_t n, k3i_err *err);

#endif
