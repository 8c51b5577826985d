/* bpe.c: byte-pair encoding of one piece.
 *
 * Start from single bytes; again and again join the adjacent pair whose concatenation has the
 * lowest rank, leftmost on a tie, until no concatenation is a token. There is no list of merges:
 * the rank is the priority. Short pieces use a plain array; long ones (a piece may be 25,000
 * characters) a linked list and a heap, with the same result in O(n log n). */
#include "tok_internal.h"

#include <string.h>

#define SHORT_PIECE 96 /* bytes; below, scanning an array beats the heap */
#define NO_RANK UINT32_MAX

static uint32_t rank_of(const k3i_tok *tok, const uint8_t *bytes, size_t n)
{
    return (uint32_t)k3i_tok_rank(tok, bytes, n); /* -1 becomes NO_RANK */
}

static k3_status bpe_short(const k3i_tok *tok, const uint8_t *piece, size_t n, k3i_ids *ret,
                           k3i_err *err)
{
    /* Part i is [start[i], start[i + 1]); pair[i] is the rank of parts i and i + 1 joined. */
    uint32_t start[SHORT_PIECE + 1], pair[SHORT_PIECE];
    size_t n_part = n;
    for (size_t i = 0; i <= n; i++)
        start[i] = (uint32_t)i;
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = rank_of(tok, piece + i, 2);
    while (n_part > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n_part; i++) {
            if (pair[i] < pair[best])
                best = i;
        }
        if (pair[best] == NO_RANK)
            break;
        memmove(start + best + 1, start + best + 2, (n_part - best - 1) * sizeof *start);
        memmove(pair + best, pair + best + 1, (n_part - best - 1) * sizeof *pair);
        n_part--;
        if (best + 1 < n_part)
            pair[best] = rank_of(tok, piece + start[best], start[best + 2] - start[best]);
        if (best > 0)
            pair[best - 1] =
                rank_of(tok, piece + start[best - 1], start[best + 1] - start[best - 1]);
    }
    for (size_t i = 0; i < n_part; i++) {
        int32_t id = k3i_tok_rank(tok, piece + start[i], start[i + 1] - start[i]);
        k3_status st = k3i_ids_add(ret, id, err);
        if (st != K3_OK)
            return st;
    }
    return K3_OK;
}

/* The list and the heap of one long piece. A part is named by its first byte. */
typedef struct {
    uint32_t *next, *prev; /* [n + 1]; part i is [i, next[i]) */
    uint32_t *pair; /* [n] rank of part i joined with the next one; NO_RANK if none or dead */
    uint64_t *heap; /* rank << 32 | part: the order of merging. Stale entries disagree with pair */
    size_t n_heap;
} long_piece;

static void heap_push(long_piece *p, uint32_t rank, uint32_t part)
{
    uint64_t key = (uint64_t)rank << 32 | part;
    size_t i = p->n_heap++;
    while (i > 0 && p->heap[(i - 1) / 2] > key) {
        p->heap[i] = p->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    p->heap[i] = key;
}

static uint64_t heap_pop(long_piece *p)
{
    uint64_t top = p->heap[0], key = p->heap[--p->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < p->n_heap; i = child) {
        if (child + 1 < p->n_heap && p->heap[child + 1] < p->heap[child])
            child++;
        if (p->heap[child] >= key)
            break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = key;
    return top;
}

static void set_pair(const k3i_tok *tok, long_piece *p, const uint8_t *piece, size_t n,
                     uint32_t part)
{
    uint32_t second = p->next[part];
    p->pair[part] = second >= n ? NO_RANK : rank_of(tok, piece + part, p->next[second] - part);
    if (p->pair[part] != NO_RANK)
        heap_push(p, p->pair[part], part);
}

static k3_status bpe_long(const k3i_tok *tok, k3i_bpe_scratch *scratch, const uint8_t *piece,
                          size_t n, k3i_ids *ret, k3i_err *err)
{
    if (n > UINT32_MAX / 64)
        return k3i_fail(err, K3_E_LIMIT, "a piece of %zu bytes is too long", n);
    if (n > scratch->cap) {
        /* Each merge pushes at most two entries: 3 n in all. */
        size_t bytes = (n + 1) * (3 * sizeof(uint32_t) + 3 * sizeof(uint64_t));
        k3i_free(scratch->mem);
        scratch->mem = k3i_alloc(bytes);
        scratch->cap = scratch->mem != NULL ? n : 0;
        if (scratch->mem == NULL)
            return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu bytes)", bytes);
    }
    long_piece p = {.heap = scratch->mem};
    p.next = (uint32_t *)(p.heap + 3 * (n + 1));
    p.prev = p.next + n + 1;
    p.pair = p.prev + n + 1;
    for (uint32_t i = 0; i <= n; i++) {
        p.next[i] = i + 1;
        p.prev[i] = i - 1;
    }
    for (uint32_t i = 0; i < n; i++)
        set_pair(tok, &p, piece, n, i);
    while (p.n_heap > 0) {
        uint64_t top = heap_pop(&p);
        uint32_t part = (uint32_t)top;
        if (p.pair[part] != (uint32_t)(top >> 32))
            continue;
        uint32_t gone = p.next[part];
        p.next[part] = p.next[gone];
        p.prev[p.next[gone]] = part;
        p.pair[gone] = NO_RANK;
        set_pair(tok, &p, piece, n, part);
        if (part > 0)
            set_pair(tok, &p, piece, n, p.prev[part]);
    }
    for (uint32_t i = 0; i < n; i = p.next[i]) {
        k3_status st = k3i_ids_add(ret, k3i_tok_rank(tok, piece + i, p.next[i] - i), err);
        if (st != K3_OK)
            return st;
    }
    return K3_OK;
}

k3_status k3i_bpe(const k3i_tok *tok, k3i_bpe_scratch *scratch, const uint8_t *piece, size_t n,
                  k3i_ids *ret, k3i_err *err)
{
    int32_t id = k3i_tok_rank(tok, piece, n);
    if (id >= 0)
        return k3i_ids_add(ret, id, err);
    return n <= SHORT_PIECE ? bpe_short(tok, piece, n, ret, err)
                            : bpe_long(tok, scratch, piece, n, ret, err);
}
