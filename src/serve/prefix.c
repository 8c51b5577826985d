/* prefix.c: owns block nodes and snapshots, in two arrays with free lists and one bucket array. A
 * node is found by (parent, tokens of the block); the root of a salt is a node without tokens. Each
 * snapshot belongs to the node of its last full block and is on that node's list and on the
 * use-ordered list. Used on the engine thread only. */
#include "prefix.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

typedef struct {
    XXH128_hash_t key;
    uint64_t *tokens; /* [block_tokens]; a root's: its salt as bytes, NUL-terminated */
    int32_t parent;   /* -1 for a root */
    int32_t block;    /* -1 for a root */
    int32_t next;     /* in its bucket, or in the free list */
    int32_t n_users;  /* children and snapshots */
    int32_t snap;     /* first snapshot that hangs here, -1 */
} node;

typedef struct {
    uint64_t *tail;  /* [length % block_tokens], NULL if that is 0 */
    int32_t *blocks; /* [snapshot_blocks] */
    int32_t length;
    int32_t node;
    int32_t tail_block; /* -1 if there is no tail */
    int32_t next;       /* on its node's list, or in the free list */
    int32_t older, newer;
    int32_t n_pins;
} snapshot;

struct k3i_prefix {
    k3i_pool *pool;
    int32_t block_tokens, snapshot_blocks, max_snapshots;
    node *nodes;
    int32_t n_nodes, cap_nodes, free_node;
    snapshot *snaps; /* [max_snapshots] */
    int32_t free_snap, live_snaps;
    int32_t oldest, newest;
    int32_t *buckets; /* [n_buckets] power of two */
    uint32_t n_buckets;
};

k3_status k3i_prefix_new(k3i_pool *pool, int32_t block_tokens, int32_t snapshot_blocks,
                         int32_t max_snapshots, k3i_prefix **ret, k3i_err *err)
{
    k3i_prefix *p = k3i_alloc_zero(sizeof *p);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "prefix index: out of memory");
    p->pool = pool;
    p->block_tokens = block_tokens;
    p->snapshot_blocks = snapshot_blocks;
    p->max_snapshots = max_snapshots;
    p->free_node = p->free_snap = p->oldest = p->newest = -1;
    p->n_buckets = 64;
    while (p->n_buckets < (uint32_t)pool->n_blocks && p->n_buckets < (1u << 22))
        p->n_buckets *= 2;
    p->buckets = k3i_alloc_array(p->n_buckets, sizeof *p->buckets);
    p->snaps = k3i_alloc_zero((size_t)max_snapshots * sizeof *p->snaps);
    if (p->buckets == NULL || p->snaps == NULL) {
        k3i_free(p->buckets);
        k3i_free(p->snaps);
        k3i_free(p);
        return k3i_fail(err, K3_E_NOMEM, "prefix index: out of memory");
    }
    memset(p->buckets, 0xff, p->n_buckets * sizeof *p->buckets);
    for (int32_t i = max_snapshots - 1; i >= 0; i--) {
        p->snaps[i].next = p->free_snap;
        p->free_snap = i;
    }
    *ret = p;
    return K3_OK;
}

/* ---- nodes -------------------------------------------------------------------------------------
 */

static XXH128_hash_t chain_key(const XXH128_hash_t *parent, const void *bytes, size_t n)
{
    return XXH3_128bits_withSeed(bytes, n, parent == NULL ? 0 : parent->low64 ^ parent->high64);
}

/* `bytes` of a root are its salt with the NUL, of a block its tokens. */
static int32_t find_node(const k3i_prefix *p, int32_t parent, const void *bytes, size_t n,
                         XXH128_hash_t *ret_key)
{
    *ret_key = chain_key(parent < 0 ? NULL : &p->nodes[parent].key, bytes, n);
    int32_t i = p->buckets[ret_key->low64 & (p->n_buckets - 1)];
    for (; i >= 0; i = p->nodes[i].next) {
        const node *nd = &p->nodes[i];
        if (!XXH128_isEqual(nd->key, *ret_key) || nd->parent != parent)
            continue;
        /* The comparison makes a hash collision harmless. */
        if (parent < 0 ? strcmp((const char *)nd->tokens, bytes) == 0
                       : memcmp(nd->tokens, bytes, n) == 0)
            return i;
    }
    return -1;
}

static int32_t new_node(k3i_prefix *p, int32_t parent, const void *bytes, size_t n,
                        XXH128_hash_t key, int32_t block)
{
    if (p->free_node < 0 && p->n_nodes == p->cap_nodes) {
        int32_t cap = p->cap_nodes == 0 ? 64 : 2 * p->cap_nodes;
        node *grown = k3i_realloc(p->nodes, (size_t)cap * sizeof *grown);
        if (grown == NULL)
            return -1;
        p->nodes = grown;
        p->cap_nodes = cap;
    }
    uint64_t *copy = k3i_alloc(n);
    if (copy == NULL)
        return -1;
    memcpy(copy, bytes, n);
    int32_t i = p->free_node;
    if (i >= 0)
        p->free_node = p->nodes[i].next;
    else
        i = p->n_nodes++;
    int32_t *bucket = &p->buckets[key.low64 & (p->n_buckets - 1)];
    p->nodes[i] = (node){
        .key = key, .tokens = copy, .parent = parent, .block = block, .next = *bucket, .snap = -1};
    *bucket = i;
    if (block >= 0)
        k3i_pool_index_ref(p->pool, block);
    if (parent >= 0)
        p->nodes[parent].n_users++;
    return i;
}

/* Frees the node and then its ancestors while nothing hangs on them. */
static void drop_unused(k3i_prefix *p, int32_t i)
{
    while (i >= 0 && p->nodes[i].n_users == 0) {
        node *nd = &p->nodes[i];
        int32_t *link = &p->buckets[nd->key.low64 & (p->n_buckets - 1)];
        while (*link != i)
            link = &p->nodes[*link].next;
        *link = nd->next;
        if (nd->block >= 0)
            k3i_pool_index_unref(p->pool, nd->block);
        k3i_free(nd->tokens);
        int32_t parent = nd->parent;
        nd->next = p->free_node;
        p->free_node = i;
        if (parent >= 0)
            p->nodes[parent].n_users--;
        i = parent;
    }
}

/* ---- snapshots ---------------------------------------------------------------------------------
 */

static void unlink_use(k3i_prefix *p, snapshot *s)
{
    if (s->older >= 0)
        p->snaps[s->older].newer = s->newer;
    else
        p->oldest = s->newer;
    if (s->newer >= 0)
        p->snaps[s->newer].older = s->older;
    else
        p->newest = s->older;
}

static void link_newest(k3i_prefix *p, int32_t i)
{
    snapshot *s = &p->snaps[i];
    s->older = p->newest;
    s->newer = -1;
    if (p->newest >= 0)
        p->snaps[p->newest].newer = i;
    else
        p->oldest = i;
    p->newest = i;
}

static void drop_snapshot(k3i_prefix *p, int32_t i)
{
    snapshot *s = &p->snaps[i];
    int32_t *link = &p->nodes[s->node].snap;
    while (*link != i)
        link = &p->snaps[*link].next;
    *link = s->next;
    unlink_use(p, s);
    for (int32_t b = 0; b < p->snapshot_blocks; b++)
        k3i_pool_index_unref(p->pool, s->blocks[b]);
    if (s->tail_block >= 0)
        k3i_pool_index_unref(p->pool, s->tail_block);
    k3i_free(s->tail);
    k3i_free(s->blocks);
    p->nodes[s->node].n_users--;
    drop_unused(p, s->node);
    s->next = p->free_snap;
    p->free_snap = i;
    p->live_snaps--;
}

void k3i_prefix_free(k3i_prefix *p)
{
    if (p == NULL)
        return;
    while (p->oldest >= 0)
        drop_snapshot(p, p->oldest);
    k3i_free(p->nodes);
    k3i_free(p->snaps);
    k3i_free(p->buckets);
    k3i_free(p);
}

bool k3i_prefix_evict(k3i_prefix *p)
{
    int32_t i = p->oldest;
    while (i >= 0 && p->snaps[i].n_pins > 0)
        i = p->snaps[i].newer;
    if (i < 0)
        return false;
    drop_snapshot(p, i);
    return true;
}

int32_t k3i_prefix_n_snapshots(const k3i_prefix *p)
{
    return p->live_snaps;
}

/* ---- lookup and insertion ----------------------------------------------------------------------
 */

static size_t block_bytes(const k3i_prefix *p)
{
    return (size_t)p->block_tokens * sizeof(uint64_t);
}

static int32_t find_root(const k3i_prefix *p, const char *salt, XXH128_hash_t *ret_key)
{
    return find_node(p, -1, salt, strlen(salt) + 1, ret_key);
}

/* The longest snapshot on this node that matches and ends at or before max_length. */
static int32_t best_on_node(const k3i_prefix *p, int32_t nd, const uint64_t *tokens, int32_t start,
                            int32_t max_length)
{
    int32_t best = -1;
    for (int32_t i = p->nodes[nd].snap; i >= 0; i = p->snaps[i].next) {
        const snapshot *s = &p->snaps[i];
        if (s->length > max_length || (best >= 0 && s->length <= p->snaps[best].length))
            continue;
        size_t tail = (size_t)(s->length - start) * sizeof *tokens;
        if (tail == 0 || memcmp(s->tail, tokens + start, tail) == 0)
            best = i;
    }
    return best;
}

k3i_hit k3i_prefix_lookup(k3i_prefix *p, const char *salt, const uint64_t *tokens,
                          int32_t max_length)
{
    k3i_hit hit = {.snap = -1, .miss = K3_MISS_TOKENS};
    XXH128_hash_t key;
    int32_t nd = find_root(p, salt == NULL ? "" : salt, &key);
    for (int32_t at = 0; nd >= 0; at += p->block_tokens) {
        int32_t s = best_on_node(p, nd, tokens, at, max_length);
        if (s >= 0) {
            hit.snap = s;
            hit.length = p->snaps[s].length;
        }
        hit.known = at;
        if (at > max_length - p->block_tokens)
            break;
        nd = find_node(p, nd, tokens + at, block_bytes(p), &key);
    }
    if (hit.known > hit.length)
        hit.miss = K3_MISS_SNAPSHOT;
    else if (hit.length >= max_length)
        hit.miss = K3_MISS_NONE;
    return hit;
}

void k3i_prefix_pin(k3i_prefix *p, int32_t snap, int32_t *table, int32_t *ret_tail,
                    int32_t *snap_blocks)
{
    snapshot *s = &p->snaps[snap];
    s->n_pins++;
    unlink_use(p, s);
    link_newest(p, snap);
    int32_t nd = s->node;
    for (int32_t i = s->length / p->block_tokens - 1; i >= 0; i--) {
        table[i] = p->nodes[nd].block;
        k3i_pool_ref(p->pool, table[i]);
        nd = p->nodes[nd].parent;
    }
    *ret_tail = s->tail_block;
    memcpy(snap_blocks, s->blocks, (size_t)p->snapshot_blocks * sizeof *snap_blocks);
}

void k3i_prefix_unpin(k3i_prefix *p, int32_t snap)
{
    K3_ASSERT(p->snaps[snap].n_pins > 0);
    p->snaps[snap].n_pins--;
}

bool k3i_prefix_has(k3i_prefix *p, const char *salt, const uint64_t *tokens, int32_t length)
{
    return k3i_prefix_lookup(p, salt, tokens, length).length == length;
}

/* The node of the last full block of `length` tokens, made where missing; -1 if memory is out. */
static int32_t reach_node(k3i_prefix *p, const char *salt, const uint64_t *tokens, int32_t length,
                          const int32_t *table)
{
    XXH128_hash_t key;
    int32_t nd = find_root(p, salt, &key);
    if (nd < 0)
        nd = new_node(p, -1, salt, strlen(salt) + 1, key, -1);
    for (int32_t i = 0; nd >= 0 && i < length / p->block_tokens; i++) {
        const uint64_t *block = tokens + (size_t)i * (size_t)p->block_tokens;
        int32_t next = find_node(p, nd, block, block_bytes(p), &key);
        if (next < 0)
            next = new_node(p, nd, block, block_bytes(p), key, table[i]);
        if (next < 0)
            drop_unused(p, nd);
        nd = next;
    }
    return nd;
}

k3_status k3i_prefix_add(k3i_prefix *p, const char *salt, const uint64_t *tokens, int32_t length,
                         const int32_t *table, const int32_t *snap_blocks, k3i_err *err)
{
    if (p->free_snap < 0 && !k3i_prefix_evict(p))
        return k3i_fail(err, K3_E_NOMEM, "prefix index: all snapshots are in use");
    int32_t n_full = length / p->block_tokens, n_tail = length % p->block_tokens;
    uint64_t *tail = NULL;
    int32_t *blocks = k3i_alloc_array((size_t)p->snapshot_blocks, sizeof *blocks);
    if (n_tail > 0)
        tail = k3i_alloc_array((size_t)n_tail, sizeof *tail);
    int32_t nd = -1;
    if (blocks != NULL && (n_tail == 0 || tail != NULL))
        nd = reach_node(p, salt == NULL ? "" : salt, tokens, length, table);
    if (nd < 0) {
        k3i_free(blocks);
        k3i_free(tail);
        return k3i_fail(err, K3_E_NOMEM, "prefix index: out of memory");
    }
    if (n_tail > 0)
        memcpy(tail, tokens + (length - n_tail), (size_t)n_tail * sizeof *tail);
    memcpy(blocks, snap_blocks, (size_t)p->snapshot_blocks * sizeof *blocks);
    int32_t i = p->free_snap;
    p->free_snap = p->snaps[i].next;
    p->snaps[i] = (snapshot){.tail = tail,
                             .blocks = blocks,
                             .length = length,
                             .node = nd,
                             .tail_block = n_tail > 0 ? table[n_full] : -1,
                             .next = p->nodes[nd].snap};
    p->nodes[nd].snap = i;
    p->nodes[nd].n_users++;
    link_newest(p, i);
    p->live_snaps++;
    for (int32_t b = 0; b < p->snapshot_blocks; b++) {
        k3i_pool_index_ref(p->pool, blocks[b]);
        k3i_pool_unref(p->pool, blocks[b]);
    }
    if (n_tail > 0)
        k3i_pool_index_ref(p->pool, p->snaps[i].tail_block);
    return K3_OK;
}
