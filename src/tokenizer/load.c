/* load.c: opens a tokenizer. tiktoken.model holds one line a rank, base64 of the bytes and the
 * rank, dense from 0; tokenizer_config.json names the special ids. Everything that a damaged or
 * foreign file could say is checked here, because a wrong table decodes without any error and is
 * silently wrong. */
#include "tok_internal.h"

#include "base64.h"
#include "map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#define MODEL_MAX_BYTES (16u << 20) /* the genuine file has 2.8 MB */
#define CONFIG_MAX_BYTES (1u << 20)
#define MAX_RANKS (1 << 24)

static const struct {
    int32_t at;
    const char *name;
} special_names[] = {
#define SPECIAL(at, name) {at, name},
#include "special.def"
#undef SPECIAL
};
#define N_SPECIAL_NAMES (sizeof special_names / sizeof *special_names)

/* <osagent_mode> has an id and decodes to its name, but the reference engine reads the name in a
 * text as ordinary characters (vector gen/special_on_<osagent_mode> of golden.jsonl). */
#define UNREAD_SPECIAL 65

static const struct range {
    uint32_t first, last;
    uint8_t classes;
} class_ranges[] = {
#include "unicode_classes.inc"
};

/* ---- hash table from token bytes to rank ---------------------------------------------------- */

static uint64_t hash_bytes(const uint8_t *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u, w;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, p, n);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

/* The place of bytes[0..n), or the empty place where they belong. */
static k3i_tok_slot *find_slot(const k3i_tok *tok, const uint8_t *bytes, size_t n,
                               uint32_t *ret_tag)
{
    uint64_t h = hash_bytes(bytes, n);
    uint32_t tag = (uint32_t)(h >> 32), i = (uint32_t)h & tok->slot_mask;
    *ret_tag = tag;
    for (;; i = (i + 1) & tok->slot_mask) {
        k3i_tok_slot *s = &tok->slot[i];
        if (s->rank_plus_1 == 0)
            return s;
        uint32_t at = tok->offset[s->rank_plus_1 - 1];
        if (s->tag == tag && tok->offset[s->rank_plus_1] - at == n &&
            memcmp(tok->bytes + at, bytes, n) == 0)
            return s;
    }
}

int32_t k3i_tok_rank(const k3i_tok *tok, const uint8_t *bytes, size_t n)
{
    uint32_t tag;
    if (n > tok->max_bytes)
        return -1;
    return (int32_t)find_slot(tok, bytes, n, &tag)->rank_plus_1 - 1;
}

/* ---- tiktoken.model ------------------------------------------------------------------------- */

/* Appends one line's token; `line` has no LF. */
static k3_status parse_line(k3i_tok *tok, const char *line, size_t n, int32_t rank, k3i_err *err)
{
    const char *space = memchr(line, ' ', n);
    size_t n_b64 = space != NULL ? (size_t)(space - line) : 0;
    if (n_b64 == 0 || n_b64 > (K3I_TOK_MAX_BYTES + 2) / 3 * 4)
        return k3i_fail(err, K3_E_CHECKPOINT,
                        "tiktoken.model line %d: expected base64, a space, a rank", rank + 1);
    char want[16];
    int n_want = snprintf(want, sizeof want, "%d", rank);
    if (n - n_b64 - 1 != (size_t)n_want || memcmp(space + 1, want, (size_t)n_want) != 0)
        return k3i_fail(err, K3_E_CHECKPOINT, "tiktoken.model line %d: the rank is not %d",
                        rank + 1, rank);
    uint32_t at = tok->offset[rank];
    uint8_t bytes[K3I_BASE64_ROOM((K3I_TOK_MAX_BYTES + 2) / 3 * 4)];
    size_t len = 0;
    if (k3i_base64_decode(line, n_b64, K3I_BASE64_CANONICAL, bytes, &len, NULL) != K3_OK ||
        len == 0 || len > K3I_TOK_MAX_BYTES)
        return k3i_fail(err, K3_E_CHECKPOINT,
                        "tiktoken.model line %d: not canonical base64 of 1 to %d bytes", rank + 1,
                        K3I_TOK_MAX_BYTES);
    memcpy(tok->bytes + at, bytes, len);
    tok->offset[rank + 1] = at + (uint32_t)len;
    if (len > tok->max_bytes)
        tok->max_bytes = len;
    return K3_OK;
}

static k3_status index_ranks(k3i_tok *tok, k3i_err *err)
{
    uint32_t n_slot = 1024;
    while (n_slot < (uint32_t)tok->n_ranks * 2)
        n_slot *= 2;
    tok->slot = k3i_alloc_zero((size_t)n_slot * sizeof *tok->slot);
    if (tok->slot == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (%u token slots)", n_slot);
    tok->slot_mask = n_slot - 1;
    for (int32_t r = 0; r < tok->n_ranks; r++) {
        uint32_t tag;
        k3i_tok_slot *s =
            find_slot(tok, tok->bytes + tok->offset[r], tok->offset[r + 1] - tok->offset[r], &tag);
        if (s->rank_plus_1 != 0)
            return k3i_fail(err, K3_E_CHECKPOINT,
                            "tiktoken.model: ranks %u and %d are the same token",
                            s->rank_plus_1 - 1, r);
        *s = (k3i_tok_slot){.tag = tag, .rank_plus_1 = (uint32_t)r + 1};
    }
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        tok->byte_rank[b] = k3i_tok_rank(tok, &byte, 1);
        if (tok->byte_rank[b] < 0)
            return k3i_fail(err, K3_E_CHECKPOINT,
                            "tiktoken.model: no token for the single byte 0x%02x", b);
    }
    return K3_OK;
}

static k3_status parse_model(k3i_tok *tok, const uint8_t *text, size_t bytes, k3i_err *err)
{
    if (bytes == 0 || bytes > MODEL_MAX_BYTES)
        return k3i_fail(err, K3_E_CHECKPOINT, "tiktoken.model: %zu bytes, expected 1 to %u", bytes,
                        MODEL_MAX_BYTES);
    size_t n_line = 0;
    for (size_t i = 0; i < bytes; i++)
        n_line += text[i] == '\n';
    n_line += text[bytes - 1] != '\n';
    if (n_line > MAX_RANKS)
        return k3i_fail(err, K3_E_LIMIT, "tiktoken.model: %zu lines", n_line);
    tok->n_ranks = (int32_t)n_line;
    tok->size = tok->n_ranks + K3I_TOK_SPECIALS;
    /* base64 makes bytes longer, so the file's size bounds them; names are at most 32 bytes each.
     */
    tok->bytes = k3i_alloc(bytes + K3I_TOK_SPECIALS * 32);
    tok->offset = k3i_alloc_array((size_t)tok->size + 1, sizeof *tok->offset);
    if (tok->bytes == NULL || tok->offset == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (%d tokens)", tok->size);
    tok->offset[0] = 0;
    size_t at = 0;
    for (int32_t rank = 0; rank < tok->n_ranks; rank++) {
        const uint8_t *end = memchr(text + at, '\n', bytes - at);
        size_t n = end != NULL ? (size_t)(end - (text + at)) : bytes - at;
        k3_status st = parse_line(tok, (const char *)text + at, n, rank, err);
        if (st != K3_OK)
            return st;
        at += n + 1;
    }
    return index_ranks(tok, err);
}

/* ---- tokenizer_config.json ------------------------------------------------------------------ */

/* The name that the id at distance `at` must have. `buffer` is used for reserved names. */
static const char *special_name(const k3i_tok *tok, int32_t at, char buffer[32])
{
    for (size_t i = 0; i < N_SPECIAL_NAMES; i++) {
        if (special_names[i].at == at)
            return special_names[i].name;
    }
    snprintf(buffer, 32, "<|reserved_token_%d|>", tok->n_ranks + at);
    return buffer;
}

static k3_status parse_added(k3i_tok *tok, const char *key, yyjson_val *entry, bool *seen,
                             k3i_err *err)
{
    char *end;
    long id = strtol(key, &end, 10);
    if (*key < '0' || *key > '9' || *end != '\0' || id < tok->n_ranks || id >= tok->size)
        return k3i_fail(err, K3_E_CONFIG,
                        "tokenizer_config.json: added token id '%.20s' is not in %d..%d (the file "
                        "has %d ranks)",
                        key, tok->n_ranks, tok->size - 1, tok->n_ranks);
    int32_t at = (int32_t)id - tok->n_ranks;
    char buffer[32];
    const char *want = special_name(tok, at, buffer);
    yyjson_val *content = yyjson_obj_get(entry, "content"),
               *flag = yyjson_obj_get(entry, "special");
    if (!yyjson_is_str(content) || !yyjson_is_bool(flag))
        return k3i_fail(err, K3_E_CONFIG,
                        "tokenizer_config.json: token %ld needs 'content' and 'special'", id);
    if (!yyjson_equals_str(content, want))
        return k3i_fail(err, K3_E_CONFIG,
                        "tokenizer_config.json: token %ld is '%.60s', Kimi-K3 has '%s' there (the "
                        "table of another "
                        "model family?)",
                        id, yyjson_get_str(content), want);
    if (seen[at])
        return k3i_fail(err, K3_E_CONFIG, "tokenizer_config.json: token %ld appears twice", id);
    seen[at] = true;
    tok->skipped[at] = yyjson_get_bool(flag);
    return K3_OK;
}

/* Appends the special names to the token bytes and sorts their ids by name. */
static void store_names(k3i_tok *tok)
{
    for (int32_t at = 0; at < K3I_TOK_SPECIALS; at++) {
        char buffer[32];
        const char *name = special_name(tok, at, buffer);
        int32_t id = tok->n_ranks + at;
        size_t n = strlen(name);
        memcpy(tok->bytes + tok->offset[id], name, n);
        tok->offset[id + 1] = tok->offset[id] + (uint32_t)n;
        if (at == UNREAD_SPECIAL)
            continue;
        size_t i = tok->n_names++;
        for (; i > 0; i--) {
            int32_t other = tok->by_name[i - 1];
            size_t n_other = tok->offset[other + 1] - tok->offset[other];
            int order = memcmp(tok->bytes + tok->offset[other], name, n < n_other ? n : n_other);
            if (order < 0 || (order == 0 && n_other < n))
                break;
            tok->by_name[i] = other;
        }
        tok->by_name[i] = id;
    }
    int32_t r = tok->n_ranks;
    tok->ids = (k3i_tok_ids){.bos = r,
                             .eos = r + 1,
                             .end_of_msg = r + 2,
                             .open = r + 3,
                             .close = r + 4,
                             .sep = r + 5,
                             .eot = r + 9,
                             .media_begin = r + 18,
                             .media_content = r + 19,
                             .media_end = r + 20,
                             .media_pad = r + 21,
                             .unk = r + 254,
                             .pad = r + 255};
}

static void *json_malloc(void *ctx, size_t bytes)
{
    (void)ctx;
    return k3i_alloc(bytes);
}

static void *json_realloc(void *ctx, void *p, size_t old_bytes, size_t bytes)
{
    (void)ctx;
    (void)old_bytes;
    return k3i_realloc(p, bytes);
}

static void json_free(void *ctx, void *p)
{
    (void)ctx;
    k3i_free(p);
}

static k3_status parse_config(k3i_tok *tok, const char *text, size_t bytes, k3i_err *err)
{
    if (bytes > CONFIG_MAX_BYTES)
        return k3i_fail(err, K3_E_CONFIG, "tokenizer_config.json: %zu bytes, at most %u", bytes,
                        CONFIG_MAX_BYTES);
    const yyjson_alc alc = {json_malloc, json_realloc, json_free, NULL};
    yyjson_read_err problem;
    /* Without the in-situ flag the text is only read. */
    yyjson_doc *doc = yyjson_read_opts((char *)(uintptr_t)text, bytes, 0, &alc, &problem);
    if (doc == NULL && problem.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (tokenizer_config.json)");
    if (doc == NULL)
        return k3i_fail(err, K3_E_CONFIG, "tokenizer_config.json is not JSON: %s at byte %zu",
                        problem.msg, problem.pos);
    k3_status st = K3_OK;
    bool seen[K3I_TOK_SPECIALS] = {false};
    yyjson_val *added = yyjson_obj_get(yyjson_doc_get_root(doc), "added_tokens_decoder");
    if (!yyjson_is_obj(added))
        st = k3i_fail(err, K3_E_CONFIG, "tokenizer_config.json: no object 'added_tokens_decoder'");
    yyjson_obj_iter iter = yyjson_obj_iter_with(added);
    for (yyjson_val *key; st == K3_OK && (key = yyjson_obj_iter_next(&iter)) != NULL;)
        st = parse_added(tok, yyjson_get_str(key), yyjson_obj_iter_get_val(key), seen, err);
    for (size_t i = 0; i < N_SPECIAL_NAMES && st == K3_OK; i++) {
        if (!seen[special_names[i].at])
            st = k3i_fail(err, K3_E_CONFIG, "tokenizer_config.json: token %d ('%s') is missing",
                          tok->n_ranks + special_names[i].at, special_names[i].name);
    }
    yyjson_doc_free(doc);
    if (st == K3_OK)
        store_names(tok);
    return st;
}

/* ---- opening -------------------------------------------------------------------------------- */

k3_status k3i_tok_parse(const void *model, size_t model_bytes, const void *config,
                        size_t config_bytes, k3i_tok **ret, k3i_err *err)
{
    k3i_tok *tok = k3i_alloc_zero(sizeof *tok);
    if (tok == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (tokenizer)");
    k3_status st = parse_model(tok, model, model_bytes, err);
    if (st == K3_OK)
        st = parse_config(tok, config, config_bytes, err);
    if (st == K3_OK && (tok->classes = k3i_alloc_zero(K3I_CODE_POINTS)) == NULL)
        st = k3i_fail(err, K3_E_NOMEM, "out of memory (character classes)");
    if (st != K3_OK) {
        k3i_tok_free(tok);
        return st;
    }
    for (size_t i = 0; i < sizeof class_ranges / sizeof *class_ranges; i++) {
        const struct range *r = &class_ranges[i];
        memset(tok->classes + r->first, r->classes, r->last - r->first + 1);
    }
    *ret = tok;
    return K3_OK;
}

k3_status k3i_tok_open(const char *dir, k3i_tok **ret, k3i_err *err)
{
    static const char *const name[2] = {"tiktoken.model", "tokenizer_config.json"};
    static const size_t max_bytes[2] = {MODEL_MAX_BYTES, CONFIG_MAX_BYTES};
    char *text[2] = {NULL, NULL};
    size_t bytes[2];
    k3_status st = K3_OK;
    for (int i = 0; i < 2 && st == K3_OK; i++) {
        char path[K3I_PATH];
        st = k3i_read_in(dir, name[i], max_bytes[i], path, &text[i], &bytes[i], err);
    }
    if (st == K3_OK) {
        st = k3i_tok_parse(text[0], bytes[0], text[1], bytes[1], ret, err);
        if (st != K3_OK)
            k3i_err_prefix(err, "%s", dir);
    }
    k3i_free(text[0]);
    k3i_free(text[1]);
    return st;
}

void k3i_tok_free(k3i_tok *tok)
{
    if (tok == NULL)
        return;
    k3i_free(tok->bytes);
    k3i_free(tok->offset);
    k3i_free(tok->slot);
    k3i_free(tok->classes);
    k3i_free(tok);
}

/* ---- queries -------------------------------------------------------------------------------- */

int32_t k3i_tok_size(const k3i_tok *tok)
{
    return tok->size;
}

const k3i_tok_ids *k3i_tok_special_ids(const k3i_tok *tok)
{
    return &tok->ids;
}

bool k3i_tok_is_special(const k3i_tok *tok, int32_t id)
{
    return id >= tok->n_ranks && id < tok->size;
}

bool k3i_tok_is_skipped(const k3i_tok *tok, int32_t id)
{
    return k3i_tok_is_special(tok, id) && tok->skipped[id - tok->n_ranks];
}

const uint8_t *k3i_tok_bytes(const k3i_tok *tok, int32_t id, size_t *ret_bytes)
{
    if (id < 0 || id >= tok->size)
        return NULL;
    *ret_bytes = tok->offset[id + 1] - tok->offset[id];
    return tok->bytes + tok->offset[id];
}
