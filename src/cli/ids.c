/* ids.c: see ids.h. */
#include "ids.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

static bool is_separator(char c)
{
    return c == ',' || isspace((unsigned char)c) != 0;
}

k3_status k3i_ids_parse(const char *text, size_t n, k3i_ids *ret, k3i_err *err)
{
    for (size_t i = 0; i < n;) {
        if (is_separator(text[i])) {
            i++;
            continue;
        }
        int64_t id = 0;
        size_t from = i;
        for (; i < n && text[i] >= '0' && text[i] <= '9' && id <= INT32_MAX; i++)
            id = 10 * id + (text[i] - '0');
        if (i == from || id > INT32_MAX || (i < n && !is_separator(text[i])))
            return k3i_fail(err, K3_E_OPTION, "'%.*s' is not a token id",
                            (int)(n - from < 20 ? n - from : 20), text + from);
        k3_status st = k3i_ids_add(ret, (int32_t)id, err);
        if (st != K3_OK)
            return st;
    }
    return K3_OK;
}

k3_status k3i_read_stream(FILE *f, const char *name, k3i_buf *ret, k3i_err *err)
{
    char part[1 << 16];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) {
        k3_status st = k3i_buf_add(ret, part, n, err);
        if (st != K3_OK)
            return st;
    }
    if (ferror(f))
        return k3i_fail(err, K3_E_IO, "%s: cannot be read: %s", name, strerror(errno));
    return K3_OK;
}

k3_status k3i_write_text(FILE *f, const char *text, size_t n, k3i_err *err)
{
    /* An empty buffer has no address, and fwrite wants one. */
    if ((n > 0 && fwrite(text, 1, n, f) != n) || fflush(f) != 0)
        return k3i_fail(err, K3_E_IO, "the output cannot be written");
    return K3_OK;
}
