/* batch.c: everything a batch or a commit says is checked here, before anything is changed, so that
 * the steps behind it cannot fail. The only thing written is kv.mark: what each block is to this
 * batch. It stays valid until the next batch, because a commit names blocks that must fit the batch
 * before it. */
#include "engine.h"

/* A block's mark: epoch of the batch << 32 | use << 16 | request. */
enum { USE_WRITTEN = 1, USE_READ = 2, USE_RESTORED = 3, USE_SNAPSHOT = 4, USE_COMMIT = 5 };

static uint64_t mark_of(const k3_engine *e, uint64_t use, int32_t req)
{
    return (uint64_t)e->kv.epoch << 32 | use << 16 | (uint64_t)(uint32_t)req;
}

/* The use of a block in this batch, 0 if it has none. */
static uint64_t use_of(const k3_engine *e, int32_t block)
{
    uint64_t m = e->kv.mark[block];
    return m >> 32 == e->kv.epoch ? m >> 16 & 0xffff : 0;
}

static k3_status check_id(k3_engine *e, int32_t block, const char *what, int32_t index)
{
    if (block >= 1 && (size_t)block < e->kv.shape.num_blocks)
        return K3_OK;
    return k3i_fail(&e->err, K3_E_BLOCK, "%s %d names block %d: 1..%zu are possible", what, index,
                    block, e->kv.shape.num_blocks - 1);
}

static k3_status used_twice(k3_engine *e, int32_t block, const char *what, int32_t index)
{
    return k3i_fail(&e->err, K3_E_BLOCK, "%s %d names block %d, which this batch uses already",
                    what, index, block);
}

static k3_status check_arrays(k3_engine *e, const k3_batch *b, const float *logits, int64_t stride)
{
    const k3i_options *o = &e->opt;
    if (b->n_reqs < 1 || (size_t)b->n_reqs > o->max_num_seqs)
        return k3i_fail(&e->err, K3_E_ARG, "n_reqs is %d: 1..%zu are possible", b->n_reqs,
                        o->max_num_seqs);
    if (b->n_tokens < 1 || (size_t)b->n_tokens > o->max_num_batched_tokens)
        return k3i_fail(&e->err, K3_E_ARG, "n_tokens is %d: 1..%zu are possible", b->n_tokens,
                        o->max_num_batched_tokens);
    if (b->n_logit_rows < 0 || b->n_logit_rows > b->n_tokens || b->n_media < 0 ||
        b->n_media > b->n_tokens || b->n_snap < 0 || b->n_snap > b->n_tokens)
        return k3i_fail(&e->err, K3_E_ARG,
                        "n_logit_rows %d, n_media %d, n_snap %d: each is 0..n_tokens (%d)",
                        b->n_logit_rows, b->n_media, b->n_snap, b->n_tokens);
    if (b->token_ids == NULL || b->q_start == NULL || b->ctx_len == NULL || b->slot == NULL ||
        b->slot_op == NULL || b->n_spec == NULL || b->mla_off == NULL || b->mla_table == NULL)
        return k3i_fail(&e->err, K3_E_ARG, "an array that every batch needs is NULL");
    if (b->n_logit_rows > 0 && (b->logit_row == NULL || logits == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "n_logit_rows is %d, but logit_row or logits is NULL",
                        b->n_logit_rows);
    if (b->n_logit_rows > 0 && (stride < 0 || (uint64_t)stride < e->target.config.vocab_size))
        return k3i_fail(&e->err, K3_E_ARG, "the stride of the logits is %lld, the vocabulary %zu",
                        (long long)stride, e->target.config.vocab_size);
    if (b->n_media > 0 && (b->media_token == NULL || b->media_key == NULL || b->media_row == NULL ||
                           b->media_count == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "n_media is %d, but an array of media is NULL",
                        b->n_media);
    if (b->n_snap > 0 && (b->snap_req == NULL || b->snap_pos == NULL || b->snap_block == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "n_snap is %d, but an array of snapshots is NULL",
                        b->n_snap);
    return K3_OK;
}

/* Rows, lengths and tables of request r, whose predecessors are correct. */
static k3_status check_request(k3_engine *e, const k3_batch *b, int32_t r)
{
    if (b->q_start[r + 1] > b->n_tokens || b->q_start[r + 1] <= b->q_start[r])
        return k3i_fail(&e->err, K3_E_ARG, "request %d: q_start %d..%d of %d tokens", r,
                        b->q_start[r], b->q_start[r + 1], b->n_tokens);
    int32_t rows = b->q_start[r + 1] - b->q_start[r];
    if (b->ctx_len[r] < 0)
        return k3i_fail(&e->err, K3_E_ARG, "request %d: ctx_len is %d", r, b->ctx_len[r]);
    size_t len = (size_t)b->ctx_len[r] + (size_t)rows;
    if (len > e->opt.max_model_len)
        return k3i_fail(&e->err, K3_E_CONTEXT,
                        "request %d: %d tokens after %d, max_model_len is %zu", r, rows,
                        b->ctx_len[r], e->opt.max_model_len);
    if (b->n_spec[r] < 0 || b->n_spec[r] >= rows ||
        (size_t)b->n_spec[r] > e->opt.num_speculative_tokens)
        return k3i_fail(&e->err, K3_E_ARG, "request %d: n_spec is %d with %d rows, at most %zu", r,
                        b->n_spec[r], rows, e->opt.num_speculative_tokens);
    size_t needed = (len + e->kv.shape.block_tokens - 1) / e->kv.shape.block_tokens;
    if (b->mla_off[r] < 0 || b->mla_off[r + 1] < b->mla_off[r])
        return k3i_fail(&e->err, K3_E_ARG, "request %d: mla_off %d..%d", r, b->mla_off[r],
                        b->mla_off[r + 1]);
    size_t given = (size_t)(b->mla_off[r + 1] - b->mla_off[r]);
    if (given < needed || given > e->kv.shape.table_cap)
        return k3i_fail(&e->err, K3_E_BLOCK, "request %d: %zu blocks, %zu..%zu are needed", r,
                        given, needed, e->kv.shape.table_cap);
    return K3_OK;
}

static k3_status check_slot(k3_engine *e, const k3_batch *b, int32_t r)
{
    k3i_kv *kv = &e->kv;
    int32_t slot = b->slot[r];
    if (slot < 0 || (size_t)slot >= kv->shape.n_slots)
        return k3i_fail(&e->err, K3_E_SLOT, "request %d: slot %d, there are %zu", r, slot,
                        kv->shape.n_slots);
    if (kv->slot[slot].stamp == kv->epoch)
        return k3i_fail(&e->err, K3_E_SLOT, "request %d: slot %d is used twice", r, slot);
    kv->slot[slot].stamp = kv->epoch;
    kv->slot[slot].req = r;
    switch (b->slot_op[r]) {
    case K3_SLOT_KEEP:
        if (!kv->slot[slot].used)
            return k3i_fail(&e->err, K3_E_SLOT, "request %d: slot %d holds no state", r, slot);
        if (kv->slot[slot].pos != (size_t)b->ctx_len[r])
            return k3i_fail(&e->err, K3_E_SLOT, "request %d: slot %d is at %zu, ctx_len is %d", r,
                            slot, kv->slot[slot].pos, b->ctx_len[r]);
        return K3_OK;
    case K3_SLOT_RESET:
        if (b->ctx_len[r] != 0)
            return k3i_fail(&e->err, K3_E_SLOT, "request %d: a slot is reset at ctx_len %d", r,
                            b->ctx_len[r]);
        return K3_OK;
    case K3_SLOT_RESTORE:
        if (b->restore_block == NULL)
            return k3i_fail(&e->err, K3_E_ARG, "request %d: restore_block is NULL", r);
        return K3_OK;
    default:
        return k3i_fail(&e->err, K3_E_ARG, "request %d: slot_op is %d", r, b->slot_op[r]);
    }
}

/* Blocks from the one that holds position ctx_len belong to the request alone. */
static k3_status mark_written(k3_engine *e, const k3_batch *b, int32_t r)
{
    int32_t first = b->ctx_len[r] / (int32_t)e->kv.shape.block_tokens;
    for (int32_t i = b->mla_off[r]; i < b->mla_off[r + 1]; i++) {
        int32_t block = b->mla_table[i];
        k3_status st = check_id(e, block, "request", r);
        if (st != K3_OK)
            return st;
        if (i - b->mla_off[r] < first)
            continue;
        if (use_of(e, block) != 0)
            return used_twice(e, block, "request", r);
        e->kv.mark[block] = mark_of(e, USE_WRITTEN, r);
    }
    return K3_OK;
}

/* Blocks of the context may be shared by requests, but not written by any. */
static k3_status mark_read(k3_engine *e, const k3_batch *b, int32_t r)
{
    int32_t first = b->ctx_len[r] / (int32_t)e->kv.shape.block_tokens;
    for (int32_t i = 0; i < first; i++) {
        int32_t block = b->mla_table[b->mla_off[r] + i];
        if (use_of(e, block) == USE_WRITTEN || e->kv.mark[block] == mark_of(e, USE_READ, r))
            return used_twice(e, block, "request", r);
        e->kv.mark[block] = mark_of(e, USE_READ, r);
    }
    return K3_OK;
}

static k3_status mark_restored(k3_engine *e, const k3_batch *b, int32_t r)
{
    size_t n = e->kv.shape.snapshot_blocks;
    const int32_t *blocks = b->restore_block + (size_t)r * n;
    for (size_t i = 0; i < n; i++) {
        k3_status st = check_id(e, blocks[i], "restore of request", r);
        if (st != K3_OK)
            return st;
        uint64_t use = use_of(e, blocks[i]);
        if (use == USE_WRITTEN || use == USE_READ)
            return used_twice(e, blocks[i], "restore of request", r);
        e->kv.mark[blocks[i]] = mark_of(e, USE_RESTORED, r);
    }
    if (!k3i_kv_has_snapshot(&e->kv, blocks, (size_t)b->ctx_len[r]))
        return k3i_fail(&e->err, K3_E_BLOCK,
                        "request %d: block %d... holds no snapshot of position %d", r, blocks[0],
                        b->ctx_len[r]);
    return K3_OK;
}

/* Pages of snapshot s. In the batch (use SNAPSHOT) nothing else may touch them; at commit (use
 * COMMIT) the restores are done and the batch's snapshots may be given up, but its tables are still
 * in use. */
static k3_status mark_snapshot(k3_engine *e, const int32_t *blocks, int32_t s, uint64_t use)
{
    for (size_t i = 0; i < e->kv.shape.snapshot_blocks; i++) {
        k3_status st = check_id(e, blocks[i], "snapshot", s);
        uint64_t before = st == K3_OK ? use_of(e, blocks[i]) : 0;
        if (use == USE_COMMIT && (before == USE_RESTORED || before == USE_SNAPSHOT))
            before = 0;
        if (before != 0)
            st = used_twice(e, blocks[i], "snapshot", s);
        if (st != K3_OK) {
            while (i-- > 0)
                e->kv.mark[blocks[i]] = 0;
            return st;
        }
        e->kv.mark[blocks[i]] = mark_of(e, use, s & 0xffff);
    }
    return K3_OK;
}

static k3_status check_snapshots(k3_engine *e, const k3_batch *b)
{
    for (int32_t s = 0; s < b->n_snap; s++) {
        int32_t r = b->snap_req[s], pos = b->snap_pos[s];
        if (r < 0 || r >= b->n_reqs)
            return k3i_fail(&e->err, K3_E_ARG, "snapshot %d: request %d of %d", s, r, b->n_reqs);
        int32_t last = b->ctx_len[r] + b->q_start[r + 1] - b->q_start[r] - b->n_spec[r];
        if (pos <= b->ctx_len[r] || pos > last)
            return k3i_fail(&e->err, K3_E_ARG,
                            "snapshot %d: position %d, request %d has final rows to %d..%d", s, pos,
                            r, b->ctx_len[r] + 1, last);
        k3_status st = mark_snapshot(e, b->snap_block + (size_t)s * e->kv.shape.snapshot_blocks, s,
                                     USE_SNAPSHOT);
        if (st != K3_OK)
            return st;
    }
    return K3_OK;
}

/* Fills e->media: the row that replaces each token's embedding, or NULL. */
static k3_status check_media(k3_engine *e, const k3_batch *b)
{
    for (int32_t t = 0; t < b->n_tokens; t++)
        e->media[t] = NULL;
    for (int32_t i = 0; i < b->n_media; i++) {
        int32_t first = b->media_token[i], row = b->media_row[i], n = b->media_count[i];
        const k3i_image *im = k3i_images_find(&e->images, b->media_key[i]);
        if (im == NULL)
            return k3i_fail(&e->err, K3_E_ARG, "media run %d: image %llu is not encoded", i,
                            (unsigned long long)b->media_key[i]);
        if (n < 1 || first < 0 || first > b->n_tokens - n || row < 0 || (size_t)n > im->n_rows ||
            (size_t)row > im->n_rows - (size_t)n)
            return k3i_fail(&e->err, K3_E_ARG,
                            "media run %d: rows %d.. (%d) of %zu at tokens %d.. of %d", i, row, n,
                            im->n_rows, first, b->n_tokens);
        for (int32_t k = 0; k < n; k++) {
            if (e->media[first + k] != NULL)
                return k3i_fail(&e->err, K3_E_ARG, "media run %d: token %d has a row already", i,
                                first + k);
            e->media[first + k] = im->rows + (size_t)(row + k) * e->target.config.hidden_size;
        }
    }
    return K3_OK;
}

static k3_status check_rows(k3_engine *e, const k3_batch *b)
{
    for (int32_t t = 0; t < b->n_tokens; t++) {
        int32_t id = b->token_ids[t];
        if (e->media[t] == NULL && (id < 0 || (size_t)id >= e->target.config.vocab_size))
            return k3i_fail(&e->err, K3_E_ARG, "token %d has id %d, the vocabulary %zu", t, id,
                            e->target.config.vocab_size);
    }
    for (int32_t i = 0; i < b->n_logit_rows; i++) {
        int32_t row = b->logit_row[i];
        if (row < 0 || row >= b->n_tokens || (i > 0 && row <= b->logit_row[i - 1]))
            return k3i_fail(&e->err, K3_E_ARG, "logit_row %d is %d: ascending, 0..%d", i, row,
                            b->n_tokens - 1);
    }
    return K3_OK;
}

/* Marks of old batches must never look like those of a new one. */
static void next_epoch(k3i_kv *kv)
{
    if (++kv->epoch != 0)
        return;
    for (size_t i = 0; i < kv->shape.num_blocks; i++)
        kv->mark[i] = 0;
    for (size_t i = 0; i < kv->shape.n_slots; i++)
        kv->slot[i].stamp = 0;
    kv->epoch = 1;
}

k3_status k3i_batch_check(k3_engine *e, const k3_batch *b, const float *logits, int64_t stride)
{
    if (b == NULL || b->size != sizeof *b)
        return k3i_fail(&e->err, K3_E_ARG, "k3_batch: its size field is not that of this library");
    if (e->kv.pool.base == NULL || e->pending)
        return k3i_fail(&e->err, K3_E_STATE,
                        e->pending ? "k3_forward before k3_commit"
                                   : "k3_forward before k3_kv_init");
    k3_status st = check_arrays(e, b, logits, stride);
    if (st != K3_OK)
        return st;
    if (b->q_start[0] != 0)
        return k3i_fail(&e->err, K3_E_ARG, "q_start begins with %d", b->q_start[0]);
    next_epoch(&e->kv);
    for (int32_t r = 0; st == K3_OK && r < b->n_reqs; r++) {
        st = check_request(e, b, r);
        if (st == K3_OK)
            st = check_slot(e, b, r);
    }
    if (st == K3_OK && b->q_start[b->n_reqs] != b->n_tokens)
        st = k3i_fail(&e->err, K3_E_ARG, "q_start ends with %d, n_tokens is %d",
                      b->q_start[b->n_reqs], b->n_tokens);
    for (int32_t r = 0; st == K3_OK && r < b->n_reqs; r++)
        st = mark_written(e, b, r);
    for (int32_t r = 0; st == K3_OK && r < b->n_reqs; r++)
        st = mark_read(e, b, r);
    for (int32_t r = 0; st == K3_OK && r < b->n_reqs; r++) {
        if (b->slot_op[r] == K3_SLOT_RESTORE)
            st = mark_restored(e, b, r);
    }
    if (st == K3_OK)
        st = check_snapshots(e, b);
    if (st == K3_OK)
        st = check_media(e, b);
    return st == K3_OK ? check_rows(e, b) : st;
}

static k3_status check_accepted(k3_engine *e, const k3_commit_args *a)
{
    for (int32_t r = 0; r < a->n_reqs; r++) {
        const k3i_pending *p = &e->req[r];
        if (p->ended)
            continue;
        if (a->accepted[r] < 0 || (size_t)a->accepted[r] > p->n_rows ||
            (size_t)a->accepted[r] < p->n_rows - p->n_spec)
            return k3i_fail(&e->err, K3_E_ARG, "request %d: accepted is %d: %zu..%zu are possible",
                            r, a->accepted[r], p->n_rows - p->n_spec, p->n_rows);
    }
    return K3_OK;
}

static k3_status check_commit_snapshot(k3_engine *e, const k3_commit_args *a, int32_t s)
{
    int32_t r = a->snap_req[s];
    if (r < 0 || r >= a->n_reqs)
        return k3i_fail(&e->err, K3_E_ARG, "snapshot %d: request %d of %d", s, r, a->n_reqs);
    const k3i_pending *p = &e->req[r];
    size_t first = p->ctx + p->n_rows - p->n_spec, last = p->ctx + (size_t)a->accepted[r];
    if (!p->ended &&
        (a->snap_pos[s] < 0 || (size_t)a->snap_pos[s] < first || (size_t)a->snap_pos[s] > last))
        return k3i_fail(&e->err, K3_E_ARG, "snapshot %d: position %d, request %d commits %zu..%zu",
                        s, a->snap_pos[s], r, first, last);
    return mark_snapshot(e, a->snap_block + (size_t)s * e->kv.shape.snapshot_blocks, s, USE_COMMIT);
}

k3_status k3i_commit_check(k3_engine *e, const k3_commit_args *a)
{
    size_t n = e->kv.shape.snapshot_blocks;
    if (a == NULL || a->size != sizeof *a)
        return k3i_fail(&e->err, K3_E_ARG,
                        "k3_commit_args: its size field is not that of this library");
    if (!e->pending)
        return k3i_fail(&e->err, K3_E_STATE, "k3_commit without a batch");
    if (a->n_reqs < 0 || (size_t)a->n_reqs != e->n_reqs || a->accepted == NULL)
        return k3i_fail(&e->err, K3_E_ARG, "n_reqs is %d, the batch had %zu, or accepted is NULL",
                        a->n_reqs, e->n_reqs);
    if (a->pad_ != 0 || a->n_snap < 0 || (size_t)a->n_snap > e->opt.max_num_batched_tokens ||
        (a->n_snap > 0 && (a->snap_req == NULL || a->snap_pos == NULL || a->snap_block == NULL)))
        return k3i_fail(&e->err, K3_E_ARG, "n_snap is %d with arrays missing, or pad_ is not 0",
                        a->n_snap);
    k3_status st = check_accepted(e, a);
    for (int32_t s = 0; st == K3_OK && s < a->n_snap; s++) {
        st = check_commit_snapshot(e, a, s);
        for (size_t i = 0; st != K3_OK && i < (size_t)s * n; i++)
            e->kv.mark[a->snap_block[i]] = 0; /* the call can be made again */
    }
    return st;
}
