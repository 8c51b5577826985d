/* encode.c: text to ids: repair, cuts, special names, pieces, byte-pair encoding.
 *
 * The order of the cuts is part of the format: first every 400,000 characters, inside such a slice
 * where a run of white space or of other characters would exceed 25,000; each cut is encoded alone,
 * so no piece and no special name spans one. The bound also makes the time linear. */
#include "tok_internal.h"

#define SLICE_CHARS 400000
#define RUN_CHARS 25000

k3_status k3i_ids_add(k3i_ids *ids, int32_t id, k3i_err *err)
{
    if (ids->n == ids->cap) {
        if (ids->n >= ids->max)
            return k3i_fail(err, K3_E_LIMIT, "more than %zu tokens", ids->max);
        size_t cap = ids->cap < 32 ? 64 : ids->cap * 2;
        if (cap > ids->max)
            cap = ids->max;
        size_t bytes;
        int32_t *p = k3i_mul_size(cap, sizeof *p, &bytes) ? k3i_realloc(ids->id, bytes) : NULL;
        if (p == NULL)
            return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu tokens)", cap);
        ids->id = p;
        ids->cap = cap;
    }
    ids->id[ids->n++] = id;
    return K3_OK;
}

void k3i_ids_done(k3i_ids *ids)
{
    k3i_free(ids->id);
    *ids = (k3i_ids){.max = ids->max};
}

typedef struct {
    const k3i_tok *tok;
    k3i_bpe_scratch bpe;
    k3i_ids *ret;
    k3i_err *err;
} encoder;

static k3_status encode_plain(encoder *e, const uint8_t *text, size_t at, size_t end)
{
    while (at < end) {
        size_t stop = k3i_pretok_next(e->tok, text, at, end);
        k3_status st = k3i_bpe(e->tok, &e->bpe, text + at, stop - at, e->ret, e->err);
        if (st != K3_OK)
            return st;
        at = stop;
    }
    return K3_OK;
}

/* The first place in [lo, hi) of the sorted names whose byte `pos` is at least `byte`. */
static size_t first_name_from(const k3i_tok *tok, size_t lo, size_t hi, size_t pos, unsigned byte)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (tok->bytes[tok->offset[tok->by_name[mid]] + pos] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The special id whose name begins at text[0], or -1. The names are sorted and none is a prefix of
 * another, so each further byte narrows the range [lo, hi) until one name is complete. */
static int32_t special_at(const k3i_tok *tok, const uint8_t *text, size_t n, size_t *ret_bytes)
{
    size_t lo = 0, hi = tok->n_names;
    for (size_t pos = 0; lo < hi; pos++) {
        int32_t id = tok->by_name[lo];
        if (tok->offset[id + 1] - tok->offset[id] == pos) {
            *ret_bytes = pos;
            return id;
        }
        if (pos == n)
            return -1;
        lo = first_name_from(tok, lo, hi, pos, text[pos]);
        hi = first_name_from(tok, lo, hi, pos, text[pos] + 1u);
    }
    return -1;
}

static k3_status encode_special(encoder *e, const uint8_t *text, size_t at, size_t end)
{
    size_t from = at;
    k3_status st = K3_OK;
    while (at < end && st == K3_OK) {
        size_t len;
        int32_t id =
            text[at] == '<' || text[at] == '[' ? special_at(e->tok, text + at, end - at, &len) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        st = encode_plain(e, text, from, at);
        if (st == K3_OK)
            st = k3i_ids_add(e->ret, id, e->err);
        at += len;
        from = at;
    }
    return st != K3_OK ? st : encode_plain(e, text, from, end);
}

/* The end of the cut that begins at `at`. `slice` and `run` count characters already in the slice
 * and in its last run (of class *is_space). */
typedef struct {
    size_t slice, run;
    bool is_space;
} cut_state;

static size_t next_cut(const k3i_tok *tok, cut_state *c, const uint8_t *text, size_t at, size_t end)
{
    size_t from = at;
    while (at < end) {
        size_t len;
        bool is_space = tok->classes[k3i_utf8_at(text + at, &len)] & K3I_PY_SPACE;
        if (c->slice == SLICE_CHARS) {
            *c = (cut_state){0};
            if (at > from)
                return at;
        }
        bool same = c->run > 0 && is_space == c->is_space;
        if (same && c->run == RUN_CHARS) {
            c->run = 0;
            return at;
        }
        c->run = same ? c->run + 1 : 1;
        c->is_space = is_space;
        c->slice++;
        at += len;
    }
    return end;
}

static bool is_well_formed(const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len = text[i] < 0x80 ? 1 : k3i_utf8_length(text + i, n - i);
        if (len == 0 || len > n - i)
            return false;
        i += len;
    }
    return true;
}

k3_status k3i_tok_encode(const k3i_tok *tok, const char *text, size_t bytes, int mode, k3i_ids *ret,
                         k3i_err *err)
{
    const uint8_t *p = (const uint8_t *)text;
    k3i_buf repaired = K3I_BUF(SIZE_MAX);
    encoder e = {.tok = tok, .ret = ret, .err = err};
    k3_status st = K3_OK;
    if (!is_well_formed(p, bytes)) {
        k3i_detok d = {0};
        st = k3i_detok_bytes(&d, p, bytes, &repaired, err);
        if (st == K3_OK)
            st = k3i_detok_flush(&d, &repaired, err);
        p = (const uint8_t *)repaired.data;
        bytes = repaired.n;
    }
    cut_state cut = {0};
    for (size_t at = 0; at < bytes && st == K3_OK;) {
        size_t end = next_cut(tok, &cut, p, at, bytes);
        st =
            mode == K3I_TOK_SPECIAL ? encode_special(&e, p, at, end) : encode_plain(&e, p, at, end);
        at = end;
    }
    k3i_free(e.bpe.mem);
    k3i_buf_done(&repaired);
    return st;
}
