/* prefix.h: which prefixes can be continued without computing them again.
 *
 * Most layers are recurrent, so pages of latents alone are worth nothing: a prefix of length n is
 * usable only where a state snapshot of exactly position n was taken. The index is therefore a set
 * of snapshots, each hanging on a chain of full token blocks (shared between snapshots) plus a
 * partly filled last page. A block node lives as long as a snapshot needs it.
 *
 * Keys are 128-bit hashes chained over blocks; on a hit the tokens themselves are compared, so a
 * collision costs a miss, never a wrong answer. A "token" here is 64 bits wide: a text token is its
 * id, a picture row is a number that names picture and row (request.h), so equal placeholders of
 * different pictures never match. */
#ifndef K3I_PREFIX_H
#define K3I_PREFIX_H

#include "pool.h"

typedef struct k3i_prefix k3i_prefix;

/* Why a lookup reused nothing or not all. */
enum { K3_MISS_NONE, K3_MISS_TOKENS, K3_MISS_SNAPSHOT };

typedef struct {
    int32_t length; /* tokens that can be reused, 0 = none */
    int32_t known;  /* leading tokens that the index has seen in full blocks: >= length means that
                     * others  branch off later than any snapshot, so one at `known` would pay */
    int32_t snap;   /* handle of the snapshot, -1 = none */
    int32_t miss;   /* K3_MISS_* */
} k3i_hit;

/* At most max_snapshots at a time, each of snapshot_blocks pages. */
k3_status k3i_prefix_new(k3i_pool *pool, int32_t block_tokens, int32_t snapshot_blocks,
                         int32_t max_snapshots, k3i_prefix **ret, k3i_err *err);
/* Gives all pages back to the pool. */
void k3i_prefix_free(k3i_prefix *p);

/* Deepest snapshot at or before `max_length` of the sequence. `salt` (NULL = "") separates tenants.
 */
k3i_hit k3i_prefix_lookup(k3i_prefix *p, const char *salt, const uint64_t *tokens,
                          int32_t max_length);

/* Uses a hit: writes the floor(length / block_tokens) shared pages to `table`, each with a
 * reference for the caller, the page with the remaining tokens to *ret_tail (-1 = none; to be
 * copied, not written) and the snapshot's pages to snap_blocks. The snapshot cannot be dropped
 * until k3i_prefix_unpin. */
void k3i_prefix_pin(k3i_prefix *p, int32_t snap, int32_t *table, int32_t *ret_tail,
                    int32_t *snap_blocks);
void k3i_prefix_unpin(k3i_prefix *p, int32_t snap);

bool k3i_prefix_has(k3i_prefix *p, const char *salt, const uint64_t *tokens, int32_t length);

/* Adds a snapshot of `length` tokens: table has the pages of the sequence, snap_blocks the state.
 * The pages of snap_blocks become the index's (one reference each is taken over), those of the
 * table gain a reference. On failure (K3_E_NOMEM) the caller still owns snap_blocks. */
k3_status k3i_prefix_add(k3i_prefix *p, const char *salt, const uint64_t *tokens, int32_t length,
                         const int32_t *table, const int32_t *snap_blocks, k3i_err *err);

/* Drops the least recently used snapshot that is not pinned; false if there is none. */
bool k3i_prefix_evict(k3i_prefix *p);
int32_t k3i_prefix_n_snapshots(const k3i_prefix *p);

#endif
