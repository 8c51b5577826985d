/* step.c: the transaction. k3_forward computes a checked batch and leaves it pending; k3_commit
 * moves every slot to exactly the accepted rows. Drafts that are not accepted leave no trace: they
 * ran on a copy of the state, and their latents are overwritten before anything may read them. */
#include "engine.h"

#include <string.h>

static void set_snapshot(k3_engine *e, k3i_snap *s, size_t seq, size_t pos, const int32_t *blocks)
{
    *s = (k3i_snap){
        .seq = seq,
        .pos = pos,
        .pages = {.pool = e->kv.pool.base, .page_bytes = e->kv.shape.page_bytes, .block = blocks}};
    for (size_t i = 0; i < e->kv.shape.snapshot_blocks; i++)
        k3i_kv_forget(&e->kv, blocks[i]);
}

/* Copies what the commit needs and puts the slot into its starting state. */
static void start_request(k3_engine *e, const k3_batch *b, size_t r)
{
    k3i_kv *kv = &e->kv;
    const k3i_kda_layout *kda = &e->text.kda;
    k3i_slot *slot = &kv->slot[b->slot[r]];
    int32_t *table = kv->table + r * kv->shape.table_cap;
    k3i_pending *p = &e->req[r];
    *p = (k3i_pending){.slot = b->slot[r],
                       .n_rows = (size_t)(b->q_start[r + 1] - b->q_start[r]),
                       .n_spec = (size_t)b->n_spec[r],
                       .ctx = (size_t)b->ctx_len[r],
                       .n_blocks = (size_t)(b->mla_off[r + 1] - b->mla_off[r])};
    memcpy(table, b->mla_table + b->mla_off[r], p->n_blocks * sizeof *table);
    for (size_t i = p->ctx / kv->shape.block_tokens; i < p->n_blocks; i++)
        k3i_kv_forget(kv, table[i]);
    e->seq[r] = (k3i_seq){.from = (size_t)b->q_start[r],
                          .n_rows = p->n_rows,
                          .n_spec = p->n_spec,
                          .ctx = p->ctx,
                          .state = kv->state + (size_t)b->slot[r] * kda->state_bytes,
                          .records = kv->records + (size_t)b->slot[r] * kda->slot_record_bytes,
                          .blocks = table};
    if (b->slot_op[r] == K3_SLOT_RESET) {
        memset(e->seq[r].state, 0, kda->state_bytes);
    } else if (b->slot_op[r] == K3_SLOT_RESTORE) {
        const k3i_snap_pages pages = {.pool = kv->pool.base,
                                      .page_bytes = kv->shape.page_bytes,
                                      .block = b->restore_block + r * kv->shape.snapshot_blocks};
        k3i_snap_read(&pages, 0, e->seq[r].state, kda->state_bytes);
        e->stats.restores++;
    }
    slot->used = true;
}

/* Where the request's values stop being finite. Of a final row: the request is over. */
static void finish_request(k3_engine *e, const k3_batch *b, size_t r)
{
    k3i_pending *p = &e->req[r];
    p->first_bad = 0;
    while (p->first_bad < p->n_rows && !e->row_bad[e->seq[r].from + p->first_bad])
        p->first_bad++;
    p->ended = p->first_bad < p->n_rows - p->n_spec;
    if (p->ended) {
        e->kv.slot[p->slot].used = false;
        e->stats.nonfinite++;
    }
    if (b->req_status != NULL)
        b->req_status[r] = p->ended ? K3_E_NONFINITE : K3_OK;
    e->stats.spec_rows += (int64_t)p->n_spec;
}

static void check_logits(k3_engine *e, const k3_batch *b, const float *logits, int64_t stride)
{
    for (int32_t i = 0; i < b->n_logit_rows; i++) {
        int finite;
        e->run.op->all_finite(&finite, logits + i * stride, e->target.config.vocab_size);
        if (!finite)
            e->row_bad[b->logit_row[i]] = 1;
    }
}

k3_status k3_forward(k3_engine *e, const k3_batch *b, float *logits, int64_t stride)
{
    if (e == NULL)
        return K3_E_ARG;
    int64_t start = k3i_now_ns();
    k3_status st = k3i_ranks_check(e);
    if (st == K3_OK)
        st = k3i_batch_check(e, b, logits, stride);
    if (st != K3_OK)
        return st;
    size_t n = (size_t)b->n_reqs, pages = e->kv.shape.snapshot_blocks;
    k3i_threads_before(e, (size_t)b->n_tokens);
    k3i_draft_before(e, b);
    for (size_t r = 0; r < n; r++)
        start_request(e, b, r);
    for (size_t s = 0; s < (size_t)b->n_snap; s++)
        set_snapshot(e, &e->snap[s], (size_t)b->snap_req[s], (size_t)b->snap_pos[s],
                     b->snap_block + s * pages);
    const k3i_step step = {.n_rows = (size_t)b->n_tokens,
                           .n_seqs = n,
                           .token = b->token_ids,
                           .media = b->n_media > 0 ? e->media : NULL,
                           .seqs = e->seq,
                           .snaps = e->snap,
                           .n_snaps = (size_t)b->n_snap,
                           .pool = &e->kv.pool,
                           .logit_row = b->logit_row,
                           .n_logits = (size_t)b->n_logit_rows,
                           .logits = logits,
                           .logits_stride = (size_t)stride,
                           .row_bad = e->row_bad,
                           .taps = e->draft.is_open ? &e->draft.taps : NULL,
                           .trace = e->trace,
                           .trace_user = e->trace_user};
    k3i_text_forward(&e->text, &e->run, &step);
    st = k3i_ranks_check(e);
    if (st != K3_OK)
        return st;
    check_logits(e, b, logits, stride);
    for (size_t r = 0; r < n; r++)
        finish_request(e, b, r);
    for (int32_t s = 0; s < b->n_snap; s++) {
        if (e->req[b->snap_req[s]].ended)
            continue;
        k3i_kv_register(&e->kv, b->snap_block + (size_t)s * pages, (size_t)b->snap_pos[s]);
        e->stats.snapshots++;
    }
    e->n_reqs = n;
    e->pending = true;
    e->stats.steps++;
    e->stats.rows += b->n_tokens;
    e->stats.forward_ns += k3i_now_ns() - start;
    return K3_OK;
}

/* Ends requests whose accepted rows are not finite; lists the others for the replay. */
static size_t list_accepted(k3_engine *e, const k3_commit_args *a, size_t *ret_index)
{
    size_t n = 0;
    for (size_t r = 0; r < e->n_reqs; r++) {
        k3i_pending *p = &e->req[r];
        ret_index[r] = SIZE_MAX;
        if (!p->ended && (size_t)a->accepted[r] > p->first_bad) {
            p->ended = true;
            e->kv.slot[p->slot].used = false;
            e->stats.nonfinite++;
        }
        if (a->req_status != NULL)
            a->req_status[r] = p->ended ? K3_E_NONFINITE : K3_OK;
        if (p->ended)
            continue;
        size_t n_accepted = (size_t)a->accepted[r] - (p->n_rows - p->n_spec);
        e->kv.slot[p->slot].pos = p->ctx + (size_t)a->accepted[r];
        e->stats.spec_accepted += (int64_t)n_accepted;
        ret_index[r] = n;
        e->accept[n++] = (k3i_accept){.seq = &e->seq[r], .n_accepted = n_accepted};
    }
    return n;
}

k3_status k3_commit(k3_engine *e, const k3_commit_args *a)
{
    if (e == NULL)
        return K3_E_ARG;
    int64_t start = k3i_now_ns();
    k3_status st = k3i_ranks_check(e);
    if (st == K3_OK)
        st = k3i_commit_check(e, a);
    if (st != K3_OK)
        return st;
    size_t pages = e->kv.shape.snapshot_blocks, n_snaps = 0;
    size_t n = list_accepted(e, a, e->accept_of);
    for (size_t s = 0; s < (size_t)a->n_snap; s++) {
        size_t index = e->accept_of[a->snap_req[s]];
        if (index != SIZE_MAX)
            set_snapshot(e, &e->snap[n_snaps++], index, (size_t)a->snap_pos[s],
                         a->snap_block + s * pages);
    }
    k3i_kda_commit(&e->text, &e->run, e->accept, n, e->snap, n_snaps);
    k3i_draft_commit(e, a);
    for (size_t s = 0; s < n_snaps; s++)
        k3i_kv_register(&e->kv, e->snap[s].pages.block, e->snap[s].pos);
    e->stats.snapshots += (int64_t)n_snaps;
    e->pending = false;
    e->stats.commit_ns += k3i_now_ns() - start;
    return k3i_ranks_check(e);
}
