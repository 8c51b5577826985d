/* decode.c: ids to text. The bytes of the tokens are put together and read as UTF-8; each maximal
 * ill-formed subpart becomes one U+FFFD (the policy of WHATWG and of Python's "replace"). A
 * character is often several tokens, so the streaming form keeps an unfinished one back: at most
 * three bytes. */
#include "tok_internal.h"

static const uint8_t replacement[3] = {0xEF, 0xBF, 0xBD};

/* The second byte decides about overlong forms, surrogates and code points beyond U+10FFFF. */
size_t k3i_utf8_length(const uint8_t *p, size_t n)
{
    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xC2 || p[0] > 0xF4)
        return 0;
    if (n > 1) {
        uint8_t lo = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : 0x80;
        uint8_t hi = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : 0xBF;
        if (p[1] < lo || p[1] > hi)
            return 0;
    }
    size_t len = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    for (size_t i = 2; i < n && i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    }
    return len;
}

k3_status k3i_detok_bytes(k3i_detok *d, const uint8_t *bytes, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = K3_OK;
    for (size_t i = 0; i < n && st == K3_OK;) {
        d->tail[d->n] = bytes[i];
        size_t len = k3i_utf8_length(d->tail, d->n + 1u);
        if (len == 0) {
            st = k3i_buf_add(ret, replacement, sizeof replacement, err);
            /* A byte that does not continue the tail begins anew; one that begins nothing is gone.
             */
            if (d->n == 0)
                i++;
            d->n = 0;
            continue;
        }
        d->n++;
        i++;
        if (d->n == len) {
            st = k3i_buf_add(ret, d->tail, len, err);
            d->n = 0;
        }
    }
    return st;
}

k3_status k3i_detok_flush(k3i_detok *d, k3i_buf *ret, k3i_err *err)
{
    if (d->n == 0)
        return K3_OK;
    d->n = 0;
    return k3i_buf_add(ret, replacement, sizeof replacement, err);
}

k3_status k3i_detok_push(const k3i_tok *tok, k3i_detok *d, int32_t id, bool skip_specials,
                         k3i_buf *ret, k3i_err *err)
{
    size_t n;
    const uint8_t *bytes = k3i_tok_bytes(tok, id, &n);
    if (bytes == NULL)
        return k3i_fail(err, K3_E_ARG, "token id %d is not in 0..%d", id, tok->size - 1);
    if (skip_specials && k3i_tok_is_skipped(tok, id))
        return K3_OK;
    return k3i_detok_bytes(d, bytes, n, ret, err);
}

k3_status k3i_tok_decode(const k3i_tok *tok, const int32_t *ids, size_t n, bool skip_specials,
                         k3i_buf *ret, k3i_err *err)
{
    k3i_detok d = {0};
    for (size_t i = 0; i < n; i++) {
        k3_status st = k3i_detok_push(tok, &d, ids[i], skip_specials, ret, err);
        if (st != K3_OK)
            return st;
    }
    return k3i_detok_flush(&d, ret, err);
}
