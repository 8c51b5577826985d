/* tok_internal.h: the tokenizer object and what its files share. */
#ifndef K3I_TOK_INTERNAL_H
#define K3I_TOK_INTERNAL_H

#include "tokenizer.h"

#define K3I_CODE_POINTS 0x110000u

/* Classes of a code point: one byte of k3i_tok.classes. Script=Han; general categories L and N;
 * White_Space; UP = (Lu|Lt|Lm|Lo|M) without Han; LO = (Ll|Lm|Lo|M) without Han; Python's isspace.
 */
enum { K3I_HAN = 1, K3I_L = 2, K3I_N = 4, K3I_WS = 8, K3I_UP = 16, K3I_LO = 32, K3I_PY_SPACE = 64 };

/* One place of the hash table from token bytes to rank. `rank_plus_1` 0 means empty. */
typedef struct {
    uint32_t tag;
    uint32_t rank_plus_1;
} k3i_tok_slot;

/* Written while opening, read-only afterwards. */
struct k3i_tok {
    int32_t n_ranks, size; /* size = n_ranks + K3I_TOK_SPECIALS */
    size_t max_bytes;      /* longest rank */
    uint8_t *bytes;        /* token bytes of all ids, one after the other */
    uint32_t *offset;      /* [size + 1] into bytes */
    k3i_tok_slot *slot;    /* [slot_mask + 1], a power of two */
    uint32_t slot_mask;
    int32_t byte_rank[256]; /* rank of each single byte; not in byte order */
    uint8_t *classes;       /* [K3I_CODE_POINTS] */
    int32_t
        by_name[K3I_TOK_SPECIALS]; /* [n_names] special ids that are read in text, sorted by name */
    size_t n_names;
    bool skipped[K3I_TOK_SPECIALS]; /* dropped by skip_special_tokens */
    k3i_tok_ids ids;
};

/* The rank of bytes[0..n), or -1. */
int32_t k3i_tok_rank(const k3i_tok *tok, const uint8_t *bytes, size_t n);

/* The code point at p and its length; p is well-formed UTF-8. */
static inline uint32_t k3i_utf8_at(const uint8_t *p, size_t *len)
{
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xE0) {
        *len = 2;
        return (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3Fu);
    }
    if (p[0] < 0xF0) {
        *len = 3;
        return (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3Fu);
    }
    *len = 4;
    return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
           (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3Fu);
}

/* The end of the piece that begins at `at`; [at, end) is a non-empty segment of well-formed UTF-8.
 */
size_t k3i_pretok_next(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end);

/* Scratch of BPE on long pieces; zero-initialised, reused from piece to piece. */
typedef struct {
    void *mem;
    size_t cap; /* pieces of at most this many bytes fit */
} k3i_bpe_scratch;

/* Appends the ids of one piece. */
k3_status k3i_bpe(const k3i_tok *tok, k3i_bpe_scratch *scratch, const uint8_t *piece, size_t n,
                  k3i_ids *ret, k3i_err *err);

#endif
