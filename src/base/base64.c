/* base64.c: see base64.h. Four characters carry 24 bits, the first of them the highest; a text that
 * ends early fills the last one with zero bits. */
#include "base64.h"

static int32_t sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

k3_status k3i_base64_decode(const char *text, size_t n, k3i_base64_form form, uint8_t *ret,
                            size_t *ret_n, k3i_err *err)
{
    size_t padding = 0, out = 0;
    while (padding < 2 && n > 0 && text[n - 1] == '=') {
        n--;
        padding++;
    }
    bool is_padded = padding > 0 || form == K3I_BASE64_CANONICAL;
    if (n % 4 == 1 || (is_padded && (n + padding) % 4 != 0))
        return k3i_fail(err, K3_E_FORMAT, "base64 of impossible length %zu", n + padding);
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t v = sextet(text[i]);
        if (v < 0)
            return k3i_fail(err, K3_E_FORMAT, "byte 0x%02x at %zu is not base64",
                            (unsigned)(uint8_t)text[i], i);
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 != 0)
            ret[out++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    uint32_t unused = n % 4 == 2 ? bits & 15 : n % 4 == 3 ? bits & 3 : 0;
    if (form == K3I_BASE64_CANONICAL && unused != 0)
        return k3i_fail(err, K3_E_FORMAT, "base64 with bits set behind the last byte");
    *ret_n = out;
    return K3_OK;
}

k3_status k3i_base64_add(k3i_buf *ret, const void *bytes, size_t n, k3i_err *err)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;
    k3_status st = n / 3 < SIZE_MAX / 8 ? k3i_buf_reserve(ret, (n + 2) / 3 * 4, err)
                                        : k3i_fail(err, K3_E_LIMIT, "%zu bytes for base64", n);
    for (size_t i = 0; i < n && st == K3_OK; i += 3) {
        uint32_t bits = (uint32_t)p[i] << 16;
        bits |= i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0;
        bits |= i + 2 < n ? (uint32_t)p[i + 2] : 0;
        char quad[4] = {DIGITS[bits >> 18], DIGITS[bits >> 12 & 63],
                        i + 1 < n ? DIGITS[bits >> 6 & 63] : '=',
                        i + 2 < n ? DIGITS[bits & 63] : '='};
        st = k3i_buf_add(ret, quad, 4, err);
    }
    return st;
}
