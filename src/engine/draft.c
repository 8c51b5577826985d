/* draft.c: the draft's part of the engine: opening it beside the target, the taps of a step,
 * context rows, and k3_draft. A draft can only make answers come sooner: nothing here touches the
 * target's state.
 *
 * Context rows are written late. One row at a time reads all weights of their projections for this
 * one row, in every step, also while nothing is drafted; and a row depends on nothing but its taps.
 * So a committed row waits, with its taps, until
 *   - WAITING rows are there,
 *   - drafts are asked for, which read context rows,
 *   - a page is copied, or
 *   - a batch begins in which its sequence does not go on in the page that the row goes to: only
 *     then may anybody else write that page, since a batch's pages have one use each (batch.c).
 * Nobody else looks into pages: the pool is the engine's, hosts only name blocks. */
#include "engine.h"

#include <string.h>

/* Drafts per step where neither the caller nor the file says: the width the published drafts were
 * trained with (dspark.md 1.1). */
#define DEFAULT_WIDTH 7

/* Rows that wait for their context rows: so many read each weight once for all. 64 take 0.19 ms with
 * the bundled model and two threads, 32 0.11 ms; more would make the step that writes them longer
 * than it is worth. */
#define WAITING 64

k3_status k3i_draft_setup(k3_engine *e, k3i_err *err)
{
    k3i_options *o = &e->opt;
    if (o->draft == NULL) {
        if (o->aux_hidden_stream != NULL)
            return k3i_fail(err, K3_E_OPTION, "option 'aux_hidden_stream' needs a draft");
        return K3_OK;
    }
    k3_status st = k3i_draft_open(o->draft, &e->target.config, &e->draft.files, err);
    if (st != K3_OK)
        return st;
    k3i_draft_config *c = &e->draft.files.config;
    e->draft.is_open = true;
    if (o->aux_hidden_stream != NULL)
        c->stream =
            strcmp(o->aux_hidden_stream, "prefix") == 0 ? K3I_STREAM_PREFIX : K3I_STREAM_ATTN_RES;
    if (o->num_speculative_tokens == 0)
        o->num_speculative_tokens = c->block_size > 0 ? c->block_size : DEFAULT_WIDTH;
    return K3_OK;
}

size_t k3i_draft_scratch(const k3_engine *e)
{
    if (!e->draft.is_open)
        return 0;
    return k3i_dspark_scratch(&e->draft.files.config, e->opt.num_speculative_tokens);
}

k3_status k3i_draft_init(k3_engine *e, k3i_err *err)
{
    k3i_draft *d = &e->draft;
    if (!d->is_open)
        return K3_OK;
    const k3i_options *o = &e->opt;
    const k3i_draft_config *c = &d->files.config;
    k3_status st = k3i_dspark_init(&d->model, &d->files, &e->target.text, &e->run,
                                   e->target.config.n_mla_layers, o->num_speculative_tokens,
                                   o->max_model_len, err);
    if (st != K3_OK)
        return st;
    size_t width = c->n_taps * c->hidden_size * e->run.act_bytes;
    size_t rows = WAITING + o->max_num_batched_tokens;
    d->taps_bytes = rows * width;
    d->taps = (k3i_taps){.n = c->n_taps, .layer = c->taps, .stream = c->stream};
    d->tap_rows = k3i_alloc_array(rows, width);
    d->row = k3i_alloc_array(rows, sizeof *d->row);
    d->row_slot = k3i_alloc_array(rows, sizeof *d->row_slot);
    d->block = k3i_alloc_array(o->max_num_seqs, sizeof *d->block);
    if (d->tap_rows == NULL || d->row == NULL || d->row_slot == NULL || d->block == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the taps of %zu tokens",
                        o->max_num_batched_tokens);
    return K3_OK;
}

void k3i_draft_close(k3i_draft *d)
{
    k3i_dspark_done(&d->model);
    if (d->is_open)
        k3i_draft_done(&d->files);
    k3i_free(d->tap_rows);
    k3i_free(d->row);
    k3i_free(d->row_slot);
    k3i_free(d->block);
    *d = (k3i_draft){0};
}

size_t k3i_draft_layers(const k3_engine *e)
{
    return e->draft.is_open ? e->draft.files.config.n_layers : 0;
}

size_t k3i_draft_row_bytes(const k3_engine *e)
{
    return e->draft.is_open ? k3i_dspark_row_width(&e->draft.files.config) * e->run.act_bytes : 0;
}

/* ---- context rows ------------------------------------------------------------------------------
 */

static char *taps_of(const k3_engine *e, size_t row)
{
    const k3i_taps *t = &e->draft.taps;
    size_t width = t->n * e->draft.files.config.hidden_size;
    return k3i_act_at(&e->run, e->draft.tap_rows, row * width);
}

void k3i_draft_settle(k3_engine *e)
{
    k3i_draft *d = &e->draft;
    if (d->n_waiting > 0)
        k3i_dspark_context(&d->model, &e->run, &e->kv.pool, d->tap_rows, d->row, d->n_waiting);
    d->n_waiting = 0;
}

/* Does the sequence of waiting row i go on in this batch, in the same page? */
static bool goes_on(const k3_engine *e, const k3_batch *b, size_t i)
{
    const k3i_context_row *row = &e->draft.row[i];
    const k3i_slot *slot = &e->kv.slot[e->draft.row_slot[i]];
    if (slot->stamp != e->kv.epoch || b->slot_op[slot->req] != K3_SLOT_KEEP)
        return false;
    return b->mla_table[(size_t)b->mla_off[slot->req] + row->pos / e->kv.shape.block_tokens] ==
           row->block;
}

void k3i_draft_before(k3_engine *e, const k3_batch *b)
{
    k3i_draft *d = &e->draft;
    if (!d->is_open)
        return;
    for (size_t i = 0; i < d->n_waiting; i++) {
        if (!goes_on(e, b, i)) {
            k3i_draft_settle(e);
            break;
        }
    }
    d->taps.out = taps_of(e, d->n_waiting);
}

void k3i_draft_commit(k3_engine *e, const k3_commit_args *a)
{
    k3i_draft *d = &e->draft;
    if (!d->is_open)
        return;
    size_t first = d->n_waiting, width = (size_t)(taps_of(e, 1) - taps_of(e, 0));
    for (size_t r = 0; r < e->n_reqs; r++) {
        if (e->req[r].ended)
            continue;
        size_t n = (size_t)a->accepted[r], from = first + e->seq[r].from;
        if (from > d->n_waiting)
            memmove(taps_of(e, d->n_waiting), taps_of(e, from), n * width);
        for (size_t i = 0; i < n; i++) {
            size_t pos = e->req[r].ctx + i;
            d->row[d->n_waiting] = (k3i_context_row){
                .pos = pos, .block = e->seq[r].blocks[pos / e->kv.shape.block_tokens]};
            d->row_slot[d->n_waiting++] = e->req[r].slot;
        }
    }
    if (d->n_waiting >= WAITING)
        k3i_draft_settle(e);
}

/* ---- drafts ------------------------------------------------------------------------------------
 */

static k3_status check_args(k3_engine *e, const k3_draft_args *a)
{
    if (!e->draft.is_open)
        return k3i_fail(&e->err, K3_E_UNSUPPORTED, "this engine was opened without a draft");
    if (a == NULL || a->size != sizeof *a)
        return k3i_fail(&e->err, K3_E_ARG,
                        "k3_draft_args: its size field is not that of this library");
    if (e->pending || e->n_reqs == 0)
        return k3i_fail(&e->err, K3_E_STATE, "k3_draft must follow a committed batch");
    if (a->n_draft < 1 || (size_t)a->n_draft > e->opt.num_speculative_tokens)
        return k3i_fail(&e->err, K3_E_ARG, "n_draft is %d: 1..%zu are possible", a->n_draft,
                        e->opt.num_speculative_tokens);
    if (a->n_reqs < 1 || (size_t)a->n_reqs > e->n_reqs || a->pad_ != 0)
        return k3i_fail(&e->err, K3_E_ARG, "n_reqs is %d (the batch had %zu) or pad_ is not 0",
                        a->n_reqs, e->n_reqs);
    if (a->req == NULL || a->last_token == NULL || a->ids == NULL ||
        (a->temperature != NULL && a->seed == NULL))
        return k3i_fail(&e->err, K3_E_ARG, "req, last_token, ids or the seeds are NULL");
    if (a->confidence != NULL && !e->draft.files.config.has_confidence)
        return k3i_fail(&e->err, K3_E_UNSUPPORTED, "this draft has no confidence head");
    return K3_OK;
}

static k3_status check_request(k3_engine *e, const k3_draft_args *a, int32_t i)
{
    int32_t r = a->req[i], token = a->last_token[i];
    if (r < 0 || (size_t)r >= e->n_reqs || (i > 0 && r <= a->req[i - 1]))
        return k3i_fail(&e->err, K3_E_ARG,
                        "req[%d] is %d: ascending indices below %zu are possible", i, r, e->n_reqs);
    const k3i_pending *p = &e->req[r];
    if (p->ended || !e->kv.slot[p->slot].used)
        return k3i_fail(&e->err, K3_E_SLOT, "request %d has ended", r);
    if (e->kv.slot[p->slot].pos >= e->opt.max_model_len)
        return k3i_fail(&e->err, K3_E_CONTEXT, "request %d is at max_model_len (%zu)", r,
                        e->opt.max_model_len);
    if (token < 0 || (size_t)token >= e->target.config.vocab_size)
        return k3i_fail(&e->err, K3_E_ARG, "request %d: last_token is %d, the vocabulary %zu", r,
                        token, e->target.config.vocab_size);
    if (a->temperature != NULL && !(a->temperature[i] >= 0 && a->temperature[i] <= 1e6f))
        return k3i_fail(&e->err, K3_E_ARG, "request %d: its temperature is not in 0..1e6", r);
    return K3_OK;
}

k3_status k3_draft(k3_engine *e, const k3_draft_args *a)
{
    if (e == NULL)
        return K3_E_ARG;
    int64_t start = k3i_now_ns();
    k3_status st = k3i_ranks_check(e);
    if (st == K3_OK)
        st = check_args(e, a);
    for (int32_t i = 0; st == K3_OK && i < a->n_reqs; i++)
        st = check_request(e, a, i);
    if (st != K3_OK)
        return st;
    k3i_draft *d = &e->draft;
    k3i_draft_settle(e);
    for (int32_t i = 0; i < a->n_reqs; i++) {
        size_t r = (size_t)a->req[i];
        d->block[i] = (k3i_block_seq){.pos = e->kv.slot[e->req[r].slot].pos,
                                      .anchor = a->last_token[i],
                                      .blocks = e->seq[r].blocks};
        if (a->temperature != NULL) {
            d->block[i].temperature = a->temperature[i];
            d->block[i].seed = a->seed[i];
        }
    }
    const k3i_block block = {.n_seqs = (size_t)a->n_reqs,
                             .n_draft = (size_t)a->n_draft,
                             .seqs = d->block,
                             .ids = a->ids,
                             .confidence = a->confidence,
                             .logits = a->logits};
    k3i_dspark_block(&d->model, &e->run, &e->kv.pool, &block);
    e->stats.draft_ns += k3i_now_ns() - start;
    return k3i_ranks_check(e);
}
