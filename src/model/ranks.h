/* ranks.h: tensor parallelism. Every rank holds the whole sequence state and computes its share of
 * the output rows of every matrix; after each product the shares are gathered, in rank order. So
 * each rank reads only its part of the weights, and because no sum is split, the bits are those of
 * one rank.
 *
 * The host moves the bytes (k3_all_gather_fn): vLLM's gloo, MPI, shared memory. */
#ifndef K3I_RANKS_H
#define K3I_RANKS_H

#include "alloc.h"

typedef struct {
    size_t rank, size; /* size >= 1 */
    k3_all_gather_fn fn;
    void *user;
    char *buffer; /* [size, part] */
    size_t buffer_bytes;
    bool failed; /* a gather failed: results are worthless, the engine must be closed */
} k3i_ranks;

/* A matrix whose columns the ranks computed by parts: n_row rows of n_out elements. */
typedef struct {
    void *base;
    size_t elem_bytes, row_bytes; /* of an element; from row to row */
    size_t n_row, n_out;
} k3i_shared;

/* The outputs of a rank: boundaries are multiples of `grain`. */
void k3i_ranks_part(const k3i_ranks *r, size_t n_out, size_t grain, size_t rank, size_t *ret_from,
                    size_t *ret_to);

/* Completes the matrices on every rank, in one exchange. Does nothing for one rank, or after a
 * failure. */
void k3i_ranks_gather(k3i_ranks *r, const k3i_shared *m, size_t n, size_t grain);

void k3i_ranks_done(k3i_ranks *r);

#endif
