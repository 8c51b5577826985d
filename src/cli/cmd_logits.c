/* cmd_logits.c: the logits of every given id, for comparison with other engines. */
#include "args.h"
#include "ids.h"
#include "progress.h"
#include "session.h"

#include <errno.h>
#include <string.h>

/* float32 little-endian, as it lies in memory on the machines this runs on. */
static k3_status write_rows(FILE *f, const float *rows, size_t n, k3i_err *err)
{
    if (fwrite(rows, sizeof *rows, n, f) != n)
        return k3i_fail(err, K3_E_IO, "the output cannot be written: %s", strerror(errno));
    return K3_OK;
}

static k3_status write_logits(k3i_session *s, const k3i_ids *ids, int32_t chunk, FILE *f,
                              k3i_err *err)
{
    size_t vocab = (size_t)s->info.vocab_size;
    float *rows = k3i_alloc_array(vocab * (size_t)chunk, sizeof *rows);
    k3_status st = K3_OK;
    if (rows == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for %d rows of logits", (int)chunk);
    for (size_t at = 0; at < ids->n && st == K3_OK;) {
        size_t n = ids->n - at < (size_t)chunk ? ids->n - at : (size_t)chunk;
        st = k3i_session_forward(s, ids->id + at, (int32_t)n, true, rows, err);
        if (st == K3_OK)
            st = write_rows(f, rows, n * vocab, err);
        at += n;
        k3i_progress_bar("computing", at, ids->n);
    }
    k3i_progress_clear();
    k3i_free(rows);
    return st;
}

int k3i_cmd_logits(const k3i_args *args)
{
    k3i_err err;
    k3i_session s = {0};
    k3i_ids ids = K3I_IDS(K3I_CLI_MAX_IDS);
    const char *text = k3i_arg_text(args, "ids"), *path = k3i_arg_text(args, "output");
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *f = NULL;
    k3_status st = k3i_ids_parse(text, strlen(text), &ids, &err);
    if (st == K3_OK && ids.n == 0)
        st = k3i_fail(&err, K3_E_OPTION, "--ids names no token");
    int32_t chunk = (int32_t)k3i_arg_int(args, "chunk");
    chunk = ids.n < (size_t)chunk ? (int32_t)ids.n : chunk;
    if (st == K3_OK)
        st = k3i_session_open(args, (int32_t)ids.n, chunk, &s, &err);
    if (st == K3_OK) {
        f = to_stdout ? stdout : fopen(path, "wb");
        if (f == NULL)
            st = k3i_fail(&err, K3_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (st == K3_OK)
        st = write_logits(&s, &ids, chunk, f, &err);
    if (f != NULL && (to_stdout ? fflush(f) : fclose(f)) != 0 && st == K3_OK)
        st = k3i_fail(&err, K3_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    k3i_session_close(&s);
    k3i_ids_done(&ids);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
