/* draft.c: the draft's part of the engine: opening it beside the target, the taps of a step,
 * context rows at commit, and k3_draft. A draft can only make answers come sooner: nothing here
 * touches the target's state. */
#include "engine.h"

#include <string.h>

/* Drafts per step where neither the caller nor the file says: the width the published drafts were
 * trained with (dspark.md 1.1). */
#define DEFAULT_WIDTH 7

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
    d->taps_bytes = o->max_num_batched_tokens * width;
    d->taps = (k3i_taps){.n = c->n_taps,
                         .layer = c->taps,
                         .stream = c->stream,
                         .out = k3i_alloc_array(o->max_num_batched_tokens, width)};
    d->context = k3i_alloc_array(o->max_num_seqs, sizeof *d->context);
    d->block = k3i_alloc_array(o->max_num_seqs, sizeof *d->block);
    if (d->taps.out == NULL || d->context == NULL || d->block == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for the taps of %zu tokens",
                        o->max_num_batched_tokens);
    return K3_OK;
}

void k3i_draft_close(k3i_draft *d)
{
    k3i_dspark_done(&d->model);
    if (d->is_open)
        k3i_draft_done(&d->files);
    k3i_free(d->taps.out);
    k3i_free(d->context);
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

void k3i_draft_commit(k3_engine *e, const k3_commit_args *a)
{
    k3i_draft *d = &e->draft;
    size_t n = 0;
    if (!d->is_open)
        return;
    for (size_t r = 0; r < e->n_reqs; r++) {
        if (e->req[r].ended)
            continue;
        d->context[n++] = (k3i_context_seq){.from = e->seq[r].from,
                                            .n_rows = (size_t)a->accepted[r],
                                            .pos = e->req[r].ctx,
                                            .blocks = e->seq[r].blocks};
    }
    k3i_dspark_context(&d->model, &e->run, &e->kv.pool, d->taps.out, d->context, n);
}

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
