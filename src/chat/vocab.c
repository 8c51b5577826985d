/* vocab.c: the vocabulary arranged for masks. Walking all tokens at every step would be too slow,
 * but from a given place most are alike: either their first bytes are already impossible (the trie
 * cuts them off together), or they are plain text in the middle of a string, and then one prepared
 * mask holds them all. */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare_tokens(const void *a, const void *b, void *tok)
{
    size_t n, m;
    const uint8_t *x = k3i_tok_bytes(tok, *(const int32_t *)a, &n),
                  *y = k3i_tok_bytes(tok, *(const int32_t *)b, &m);
    int order = memcmp(x, y, n < m ? n : m);
    return order != 0 ? order : (n > m) - (n < m);
}

static void trie_free(k3i_trie *t)
{
    k3i_free(t->byte);
    k3i_free(t->depth);
    k3i_free(t->id);
    k3i_free(t->after);
}

/* Builds the trie of ids[0..n), which are in byte order: a token adds nodes for what it does not
 * share with the one before it. */
static k3_status trie_build(const k3i_tok *tok, const int32_t *ids, size_t n, k3i_trie *ret,
                            k3i_err *err)
{
    size_t n_node = 0, len_before = 0, len;
    const uint8_t *before = NULL;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t open[K3I_TOK_MAX_BYTES]; /* node at each depth of the token before */
        if (pass == 1) {
            ret->byte = k3i_alloc(n_node);
            ret->depth = k3i_alloc(n_node);
            ret->id = k3i_alloc_array(n_node, sizeof *ret->id);
            ret->after = k3i_alloc_array(n_node, sizeof *ret->after);
            if (ret->byte == NULL || ret->depth == NULL || ret->id == NULL || ret->after == NULL)
                return k3i_fail(err, K3_E_NOMEM, "out of memory (trie of %zu nodes)", n_node);
            ret->n = (uint32_t)n_node;
        }
        n_node = len_before = 0;
        for (size_t i = 0; i < n; i++) {
            const uint8_t *bytes = k3i_tok_bytes(tok, ids[i], &len);
            size_t shared = 0;
            while (shared < len && shared < len_before && bytes[shared] == before[shared])
                shared++;
            for (size_t d = shared; pass == 1 && d < len_before; d++)
                ret->after[open[d]] = (uint32_t)n_node;
            for (size_t d = shared; d < len; d++, n_node++) {
                if (pass == 0)
                    continue;
                open[d] = (uint32_t)n_node;
                ret->byte[n_node] = bytes[d];
                ret->depth[n_node] = (uint8_t)d;
                ret->id[n_node] = d + 1 == len ? ids[i] : -1;
            }
            before = bytes;
            len_before = len;
        }
        for (size_t d = 0; pass == 1 && d < len_before; d++)
            ret->after[open[d]] = (uint32_t)n_node;
    }
    return K3_OK;
}

/* How a token reads as text that begins between two characters. */
typedef struct {
    bool is_text;   /* well-formed, the last character may be unfinished */
    bool is_plain;  /* and has no control character, quote or backslash */
    bool is_quoted; /* plain text up to a quote or a backslash */
    bool has_ampersand;
    bool is_cut;     /* the last character is unfinished */
    uint32_t n_char; /* characters begun */
} token_class;

static token_class classify(const uint8_t *bytes, size_t n)
{
    token_class c = {.is_text = true, .is_plain = true};
    for (size_t i = 0; i < n;) {
        size_t rest = n - i, len = k3i_utf8_length(bytes + i, rest < 4 ? rest : 4);
        if (len == 0) {
            c.is_text = c.is_plain = false;
            break;
        }
        if (c.is_plain && (bytes[i] == '"' || bytes[i] == '\\'))
            c.is_quoted = true;
        c.is_plain = c.is_plain && bytes[i] >= 0x20 && bytes[i] != '"' && bytes[i] != '\\';
        c.has_ampersand = c.has_ampersand || bytes[i] == '&';
        c.n_char++;
        c.is_cut = len > rest;
        i += len;
    }
    return c;
}

static void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << (id % 32);
}

static k3_status alloc_masks(k3i_vocab *v, k3i_err *err)
{
    size_t bytes = v->n_word * sizeof(uint32_t);
    bool ok = (v->every = k3i_alloc_zero(bytes)) != NULL &&
              (v->ampersand = k3i_alloc_zero(bytes)) != NULL &&
              (v->cut = k3i_alloc_zero(bytes)) != NULL;
    for (size_t k = 0; k < K3I_TEXT_CHARS + 2 && ok; k++)
        ok = (v->raw[k] = k3i_alloc_zero(bytes)) != NULL &&
             (v->json[k] = k3i_alloc_zero(bytes)) != NULL;
    return ok ? K3_OK : k3i_fail(err, K3_E_NOMEM, "out of memory (token masks)");
}

/* Enters one token into the masks; those by length hold exactly their length so far. */
static void enter_token(k3i_vocab *v, int32_t id, const token_class *c)
{
    uint32_t k = c->n_char <= K3I_TEXT_CHARS ? c->n_char : K3I_TEXT_CHARS + 1;
    set_bit(v->every, id);
    if (c->has_ampersand)
        set_bit(v->ampersand, id);
    if (c->is_text && c->is_cut)
        set_bit(v->cut, id);
    if (c->is_text)
        set_bit(v->raw[k], id);
    if (c->is_plain)
        set_bit(v->json[k], id);
    if (c->is_text && k > K3I_TEXT_CHARS)
        v->long_token[v->n_long++] =
            (k3i_long_token){.id = id, .n_char = c->n_char, .is_plain = c->is_plain};
}

static k3_status build(k3i_vocab *v, int32_t *ids, size_t n, k3i_err *err)
{
    k3_status st = trie_build(v->tok, ids, n, &v->all, err);
    size_t n_quoted = 0, n_long = 0;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        k3i_tok_bytes(v->tok, ids[i], &len);
        n_long += len > K3I_TEXT_CHARS;
    }
    v->long_token = k3i_alloc_array(n_long, sizeof *v->long_token);
    if (st == K3_OK && v->long_token == NULL)
        st = k3i_fail(err, K3_E_NOMEM, "out of memory (long tokens)");
    for (size_t i = 0; i < n && st == K3_OK; i++) {
        size_t len;
        const uint8_t *bytes = k3i_tok_bytes(v->tok, ids[i], &len);
        token_class c = classify(bytes, len);
        enter_token(v, ids[i], &c);
        if (c.is_quoted)
            ids[n_quoted++] = ids[i];
    }
    for (size_t k = 1; k < K3I_TEXT_CHARS + 2; k++) {
        for (size_t w = 0; w < v->n_word; w++) {
            v->raw[k][w] |= v->raw[k - 1][w];
            v->json[k][w] |= v->json[k - 1][w];
        }
    }
    return st == K3_OK ? trie_build(v->tok, ids, n_quoted, &v->quoted, err) : st;
}

k3_status k3i_vocab_new(const k3i_tok *tok, k3i_vocab **ret, k3i_err *err)
{
    size_t n = 0;
    int32_t size = k3i_tok_size(tok);
    k3i_vocab *v = k3i_alloc_zero(sizeof *v);
    int32_t *ids = k3i_alloc_array((size_t)size, sizeof *ids);
    k3_status st =
        v != NULL && ids != NULL ? K3_OK : k3i_fail(err, K3_E_NOMEM, "out of memory (vocabulary)");
    if (st == K3_OK) {
        v->tok = tok;
        v->n_word = ((size_t)size + 31) / 32;
        for (int32_t id = 0; id < size; id++) {
            if (!k3i_tok_is_special(tok, id))
                ids[n++] = id;
        }
        /* The comparison only reads the tokenizer; qsort_r wants it without const. */
        qsort_r(ids, n, sizeof *ids, compare_tokens, (void *)(uintptr_t)tok);
        st = alloc_masks(v, err);
    }
    if (st == K3_OK)
        st = build(v, ids, n, err);
    k3i_free(ids);
    if (st != K3_OK)
        k3i_vocab_free(v);
    else
        *ret = v;
    return st;
}

void k3i_vocab_free(k3i_vocab *v)
{
    if (v == NULL)
        return;
    trie_free(&v->all);
    trie_free(&v->quoted);
    k3i_free(v->every);
    k3i_free(v->ampersand);
    k3i_free(v->cut);
    k3i_free(v->long_token);
    for (size_t k = 0; k < K3I_TEXT_CHARS + 2; k++) {
        k3i_free(v->raw[k]);
        k3i_free(v->json[k]);
    }
    k3i_free(v);
}

size_t k3i_vocab_mask_words(const k3i_vocab *vocab)
{
    return vocab->n_word;
}
