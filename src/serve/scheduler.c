/* scheduler.c: the life of requests outside a step: lists, pages, pictures, preemption, the end. */
#include "scheduler_internal.h"

#include <string.h>

/* Encoding a picture stalls every stream for its duration, so one step encodes one at most. */
enum { IMAGES_PER_STEP = 1, SNAPSHOTS_PER_STEP = 32 };

static int32_t ceil_div(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* ---- construction ------------------------------------------------------------------------------
 */

#define NEW(field, n) ((s->field = k3i_alloc_zero((size_t)(n) * sizeof *s->field)) != NULL)

static bool new_batch(k3i_sched *s)
{
    int32_t seqs = s->info.max_num_seqs, rows = s->info.max_num_batched_tokens;
    int32_t wide = 1 + s->config.speculative_tokens, sb = s->layout.snapshot_blocks;
    s->cap_logit_rows = seqs * wide > 32 ? seqs * wide : 32; /* 32: chunks of prompt_logprobs */
    s->cap_snap = SNAPSHOTS_PER_STEP > 2 * seqs ? SNAPSHOTS_PER_STEP : 2 * seqs;
    s->cap_table = seqs * ceil_div(s->info.max_model_len + wide, s->config.block_tokens);
    if (s->cap_table > seqs * s->config.num_blocks)
        s->cap_table = seqs * s->config.num_blocks;
    size_t logits;
    if (!k3i_mul_size((size_t)s->cap_logit_rows, (size_t)s->info.vocab_size, &logits) ||
        !NEW(logits, logits) || !NEW(mask, s->info.vocab_size / 32 + 1))
        return false;
    return NEW(lanes, seqs) && NEW(token_ids, rows) && NEW(q_start, seqs + 1) &&
           NEW(ctx_len, seqs) && NEW(slot, seqs) && NEW(slot_op, seqs) &&
           NEW(restore_block, seqs * sb) && NEW(n_spec, seqs) && NEW(mla_off, seqs + 1) &&
           NEW(mla_table, s->cap_table) && NEW(logit_row, s->cap_logit_rows) &&
           NEW(media_token, rows) && NEW(media_row, rows) && NEW(media_count, rows) &&
           NEW(media_key, rows) && NEW(want, s->cap_snap) && NEW(snap_req, s->cap_snap) &&
           NEW(snap_pos, s->cap_snap) && NEW(snap_block, s->cap_snap * sb) &&
           NEW(req_status, seqs) && NEW(accepted, seqs) && NEW(draft_req, seqs) &&
           NEW(draft_last, seqs) && NEW(draft_ids, seqs * K3_MAX_WIDTH) && NEW(draft_width, seqs) &&
           NEW(draft_cap, seqs) && NEW(draft_temperature, seqs) && NEW(draft_seed, seqs) &&
           NEW(draft_policy, seqs) && NEW(running, seqs) && NEW(slot_used, seqs) &&
           NEW(lane_finish, seqs) && NEW(lane_error, seqs) && NEW(restore_of_slot, seqs * sb) &&
           NEW(restore_scratch, sb);
}

static k3_status new_prefix(k3i_sched *s, k3i_err *err)
{
    int32_t sb = s->layout.snapshot_blocks;
    int64_t budget = s->config.snapshot_bytes;
    if (budget == 0)
        budget = (int64_t)s->config.num_blocks / 2 * s->layout.page_bytes;
    int64_t most = sb > 0 ? budget / (sb * s->layout.page_bytes) : 1 << 16;
    int32_t max_snapshots = most > 1 << 16 ? 1 << 16 : (int32_t)most;
    if (max_snapshots == 0)
        return K3_OK; /* the budget holds no snapshot: nothing can be reused */
    int64_t interval = s->config.snapshot_interval;
    if (interval == 0 && s->info.latent_bytes_per_token > 0) {
        interval = s->info.state_bytes / s->info.latent_bytes_per_token;
        if (interval < s->info.max_num_batched_tokens)
            interval = s->info.max_num_batched_tokens;
    }
    interval = (interval + s->config.block_tokens - 1) / s->config.block_tokens;
    interval *= s->config.block_tokens;
    s->snapshot_interval = interval > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)interval;
    return k3i_prefix_new(&s->pool, s->config.block_tokens, sb, max_snapshots, &s->prefix, err);
}

k3_status k3i_sched_new(const k3i_sched_config *config, k3i_sched **ret, k3i_err *err)
{
    k3i_sched *s = k3i_alloc_zero(sizeof *s);
    if (s == NULL)
        return k3i_fail(err, K3_E_NOMEM, "scheduler: out of memory");
    s->config = *config;
    s->info.size = sizeof s->info;
    k3_status status = k3_query(config->engine, &s->info);
    k3_kv_config kv = {.size = sizeof kv,
                       .num_blocks = config->num_blocks,
                       .block_tokens = config->block_tokens,
                       .n_slots = s->info.max_num_seqs};
    s->layout.size = sizeof s->layout;
    if (status == K3_OK)
        status = k3_kv_init(config->engine, &kv, &s->layout);
    if (status != K3_OK) {
        k3i_fail(err, status, "%s", k3_last_error(config->engine));
        goto fail;
    }
    int32_t need = ceil_div(s->info.max_model_len, config->block_tokens) + 1;
    if (config->num_blocks < need) {
        status =
            k3i_fail(err, K3_E_ARG,
                     "a sequence of max_model_len %d needs %d blocks of %d tokens, the pool has %d",
                     s->info.max_model_len, need, config->block_tokens, config->num_blocks);
        goto fail;
    }
    if (s->info.max_num_batched_tokens < s->info.max_num_seqs) {
        status = k3i_fail(err, K3_E_ARG, "max_num_batched_tokens %d is below max_num_seqs %d",
                          s->info.max_num_batched_tokens, s->info.max_num_seqs);
        goto fail;
    }
    if (s->config.speculative_tokens > s->info.draft_tokens)
        s->config.speculative_tokens = s->info.draft_tokens;
    status = k3i_pool_init(&s->pool, config->num_blocks, err);
    if (status == K3_OK && !config->no_prefix_caching)
        status = new_prefix(s, err);
    if (status != K3_OK)
        goto fail;
    if (!new_batch(s)) {
        status = k3i_fail(err, K3_E_NOMEM, "scheduler: out of memory");
        goto fail;
    }
    k3i_policy_init(&s->policy, s->config.speculative_tokens, config->is_fixed_width);
    k3i_stats_init(&s->stats);
    *ret = s;
    return K3_OK;
fail:
    k3i_sched_free(s);
    return status;
}

void k3i_sched_free(k3i_sched *s)
{
    if (s == NULL)
        return;
    k3i_sched_end_all(s, K3_FINISH_ABORT, "the server is shutting down");
    k3i_prefix_free(s->prefix);
    k3i_pool_done(&s->pool);
    for (int32_t i = 0; i < s->n_images; i++)
        k3_free_image(s->config.engine, s->images[i].key);
    void *owned[] = {s->images,      s->lanes,        s->token_ids,       s->q_start,
                     s->ctx_len,     s->slot,         s->slot_op,         s->restore_block,
                     s->n_spec,      s->mla_off,      s->mla_table,       s->logit_row,
                     s->media_token, s->media_row,    s->media_count,     s->media_key,
                     s->want,        s->snap_req,     s->snap_pos,        s->snap_block,
                     s->req_status,  s->accepted,     s->draft_req,       s->draft_last,
                     s->draft_ids,   s->draft_width,  s->draft_cap,       s->draft_temperature,
                     s->draft_seed,  s->draft_policy, s->running,         s->slot_used,
                     s->logits,      s->mask,         s->restore_of_slot, s->restore_scratch,
                     s->lane_finish, s->lane_error};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        k3i_free(owned[i]);
    k3i_free(s);
}

const k3_info *k3i_sched_info(const k3i_sched *s)
{
    return &s->info;
}

const k3_kv_layout *k3i_sched_layout(const k3i_sched *s)
{
    return &s->layout;
}

const k3i_sched_config *k3i_sched_get_config(const k3i_sched *s)
{
    return &s->config;
}

/* ---- requests ----------------------------------------------------------------------------------
 */

k3_status k3i_sched_check(const k3i_sched *s, const k3i_request *r, k3i_err *err)
{
    const k3_info *info = &s->info;
    if (r->n_prompt < 1)
        return k3i_fail(err, K3_E_ARG, "the prompt is empty");
    if (r->n_prompt > info->max_model_len - (r->max_tokens > 0))
        return k3i_fail(err, K3_E_CONTEXT,
                        "the prompt has %d tokens, at most %d fit (max_model_len %d)", r->n_prompt,
                        info->max_model_len - (r->max_tokens > 0), info->max_model_len);
    for (int32_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || r->prompt[i] >= info->vocab_size)
            return k3i_fail(err, K3_E_ARG, "prompt token %d is %d, the vocabulary has %d", i,
                            r->prompt[i], info->vocab_size);
    }
    if (r->n_media > 0 && !info->has_vision)
        return k3i_fail(err, K3_E_UNSUPPORTED, "this model does not accept image input");
    int32_t at = 0;
    for (int32_t i = 0; i < r->n_media; i++) {
        const k3i_media *m = &r->media[i];
        if (m->at < at || m->rows < 1 || m->rows > r->n_prompt - m->at)
            return k3i_fail(err, K3_E_ARG, "picture %d: rows %d at %d do not fit the prompt", i,
                            m->rows, m->at);
        at = m->at + m->rows;
    }
    return K3_OK;
}

k3_status k3i_request_grow(k3i_request *r, int32_t n_tokens)
{
    if (n_tokens <= r->cap_tokens)
        return K3_OK;
    int32_t cap = n_tokens + n_tokens / 2 + 64;
    int32_t *tokens = k3i_realloc(r->tokens, (size_t)cap * sizeof *tokens);
    if (tokens == NULL)
        return K3_E_NOMEM;
    r->tokens = tokens;
    uint64_t *wide = k3i_realloc(r->wide, (size_t)cap * sizeof *wide);
    if (wide == NULL)
        return K3_E_NOMEM;
    if (r->wide == NULL) {
        memcpy(tokens, r->prompt, (size_t)r->n_prompt * sizeof *tokens);
        for (int32_t i = 0; i < r->n_prompt; i++)
            wide[i] = (uint64_t)(uint32_t)r->prompt[i];
        for (int32_t m = 0; m < r->n_media; m++) {
            for (int32_t i = 0; i < r->media[m].rows; i++)
                wide[r->media[m].at + i] = k3i_wide_media(r->media[m].key, i);
        }
    }
    r->wide = wide;
    r->cap_tokens = cap;
    return K3_OK;
}

void k3i_sched_insert_waiting(k3i_sched *s, k3i_request *r)
{
    k3i_request **link = &s->waiting;
    while (*link != NULL && (*link)->arrival < r->arrival)
        link = &(*link)->next;
    r->next = *link;
    *link = r;
    s->n_waiting++;
}

void k3i_sched_add(k3i_sched *s, k3i_request *r)
{
    k3i_request_ref(r);
    r->arrival = ++s->n_arrivals;
    k3i_sched_insert_waiting(s, r);
}

bool k3i_sched_is_idle(const k3i_sched *s)
{
    return s->n_running == 0 && s->n_waiting == 0;
}

/* Gives back everything a running request holds in the engine. */
static void release(k3i_sched *s, k3i_request *r)
{
    k3i_sched_drop_pages(s, r);
    r->n_draft = 0;
    k3i_sched_release_images(s, r, r->n_prompt);
    if (r->slot < 0)
        return;
    /* A slot that was not used yet, or was lost to a non-finite value, holds no state: no error. */
    k3_slot_release(s->config.engine, r->slot);
    s->slot_used[r->slot] = false;
    r->slot = -1;
    int32_t i = 0;
    while (s->running[i] != r)
        i++;
    s->n_running--;
    memmove(s->running + i, s->running + i + 1, (size_t)(s->n_running - i) * sizeof *s->running);
}

void k3i_sched_preempt(k3i_sched *s, k3i_request *r)
{
    release(s, r);
    r->ctx = 0;
    s->stats.preemptions++;
    k3i_sched_insert_waiting(s, r);
}

void k3i_sched_unlink_waiting(k3i_sched *s, k3i_request *r)
{
    for (k3i_request **link = &s->waiting; *link != NULL; link = &(*link)->next) {
        if (*link == r) {
            *link = r->next;
            s->n_waiting--;
            return;
        }
    }
}

/* What is counted once for all choices of a prompt. */
static void count_group(k3i_stats *st, k3i_request *leader, int32_t n_out)
{
    leader->n_ended++;
    if (n_out > leader->most_tokens)
        leader->most_tokens = n_out;
    if (leader->n_ended < leader->n_choices)
        return;
    k3i_histogram_add(&st->request_n, leader->n_ended);
    k3i_histogram_add(&st->request_most, leader->most_tokens);
}

static void count_finished(k3i_sched *s, k3i_request *r, k3i_finish finish)
{
    k3i_stats *st = &s->stats;
    double end = (double)r->end_ns * 1e-9, submit = (double)r->submit_ns * 1e-9;
    int32_t n_out = r->n_tokens - r->n_prompt;
    st->finished[finish]++;
    count_group(st, r->leader != NULL ? r->leader : r, n_out);
    k3i_histogram_add(&st->e2e, end - submit);
    k3i_histogram_add(&st->request_prompt, r->n_prompt);
    k3i_histogram_add(&st->request_generation, n_out);
    k3i_histogram_add(&st->request_max_tokens, r->max_tokens);
    if (r->start_ns == 0)
        return;
    double start = (double)r->start_ns * 1e-9;
    k3i_histogram_add(&st->inference, end - start);
    k3i_histogram_add(&st->request_computed, r->n_prompt - r->n_cached);
    if (r->first_ns == 0)
        return;
    double first = (double)r->first_ns * 1e-9;
    k3i_histogram_add(&st->prefill, first - start);
    k3i_histogram_add(&st->decode, end - first);
    if (n_out > 1)
        k3i_histogram_add(&st->tpot, (end - first) / (n_out - 1));
}

void k3i_sched_end(k3i_sched *s, k3i_request *r, k3i_finish finish, const k3i_err *error)
{
    if (r->slot >= 0)
        release(s, r);
    else
        k3i_sched_unlink_waiting(s, r);
    r->end_ns = k3i_now_ns();
    count_finished(s, r, finish);
    pthread_mutex_lock(&r->lock);
    if (error != NULL)
        r->error = *error;
    r->finish = finish;
    pthread_mutex_unlock(&r->lock);
    if (r->notify != NULL)
        r->notify(r->user);
    k3i_request_unref(r);
}

void k3i_sched_end_all(k3i_sched *s, k3i_finish finish, const char *why)
{
    k3i_err err;
    k3i_fail(&err, finish == K3_FINISH_ERROR ? K3_E_FATAL : K3_E_CANCELLED, "%s", why);
    while (s->n_running > 0)
        k3i_sched_end(s, s->running[s->n_running - 1], finish, &err);
    while (s->waiting != NULL)
        k3i_sched_end(s, s->waiting, finish, &err);
}

/* ---- pages and pictures ------------------------------------------------------------------------
 */

static int32_t take_page(k3i_sched *s)
{
    int32_t page = k3i_pool_take(&s->pool);
    while (page < 0 && s->prefix != NULL && k3i_prefix_evict(s->prefix))
        page = k3i_pool_take(&s->pool);
    return page;
}

bool k3i_sched_table_room(k3i_request *r, int32_t pages)
{
    if (pages <= r->cap_table)
        return true;
    int32_t cap = pages + 16;
    int32_t *grown = k3i_realloc(r->table, (size_t)cap * sizeof *grown);
    if (grown == NULL)
        return false;
    r->table = grown;
    r->cap_table = cap;
    return true;
}

bool k3i_sched_reserve(k3i_sched *s, k3i_request *r, int32_t tokens)
{
    int32_t need = ceil_div(tokens, s->config.block_tokens);
    if (!k3i_sched_table_room(r, need))
        return false;
    while (r->n_table < need) {
        int32_t page = take_page(s);
        if (page < 0)
            return false; /* the pages taken so far stay with the request, which needs them anyway
                           */
        r->table[r->n_table++] = page;
    }
    return true;
}

bool k3i_sched_snapshot_pages(k3i_sched *s, int32_t *ret)
{
    for (int32_t i = 0; i < s->layout.snapshot_blocks; i++) {
        ret[i] = take_page(s);
        if (ret[i] < 0) {
            while (i-- > 0)
                k3i_pool_unref(&s->pool, ret[i]);
            return false;
        }
    }
    return true;
}

static k3i_held_image *find_image(k3i_sched *s, uint64_t key)
{
    for (int32_t i = 0; i < s->n_images; i++) {
        if (s->images[i].key == key)
            return &s->images[i];
    }
    return NULL;
}

/* Frees the engine's least recently used picture that no running request needs. */
static bool evict_image(k3i_sched *s)
{
    k3i_held_image *old = NULL;
    for (int32_t i = 0; i < s->n_images; i++) {
        k3i_held_image *e = &s->images[i];
        if (e->n_users == 0 && (old == NULL || e->tick < old->tick))
            old = e;
    }
    if (old == NULL)
        return false;
    k3_free_image(s->config.engine, old->key);
    *old = s->images[--s->n_images];
    return true;
}

static k3_status encode(k3i_sched *s, const k3i_media *m, k3i_err *err)
{
    k3_image image = {.key = m->key,
                      .pixels = m->pixels,
                      .n_patches = m->grid_t * m->grid_h * m->grid_w,
                      .grid_t = m->grid_t,
                      .grid_h = m->grid_h,
                      .grid_w = m->grid_w};
    k3_status status;
    int64_t t0 = k3i_now_ns();
    do {
        status = k3_encode_image(s->config.engine, 1, &image);
    } while (status == K3_E_LIMIT && evict_image(s));
    s->stats.engine_ns += k3i_now_ns() - t0;
    if (status != K3_OK)
        return k3i_fail(err, status, "%s", k3_last_error(s->config.engine));
    return K3_OK;
}

static bool holds_images(const k3i_request *r)
{
    for (int32_t i = 0; i < r->n_media; i++) {
        if (r->media[i].is_encoded)
            return true;
    }
    return false;
}

/* Only prefills hold pictures, and those younger than r are not in the plan yet. */
static bool preempt_younger_holder(k3i_sched *s, const k3i_request *r)
{
    for (int32_t i = s->n_running - 1; i >= 0 && s->running[i] != r; i--) {
        if (holds_images(s->running[i])) {
            k3i_sched_preempt(s, s->running[i]);
            return true;
        }
    }
    return false;
}

static bool older_holder(const k3i_sched *s, const k3i_request *r)
{
    for (int32_t i = 0; s->running[i] != r; i++) {
        if (holds_images(s->running[i]))
            return true;
    }
    return false;
}

k3_status k3i_sched_need_image(k3i_sched *s, k3i_request *r, int32_t i, k3i_err *err)
{
    k3i_media *m = &r->media[i];
    if (m->is_encoded)
        return K3_OK;
    k3i_held_image *held = find_image(s, m->key);
    if (held == NULL && s->n_encoded >= IMAGES_PER_STEP)
        return K3_E_BUSY;
    s->stats.mm_queries++;
    if (held != NULL) {
        s->stats.mm_hits++;
    } else {
        if (s->n_images == s->cap_images) {
            int32_t cap = s->cap_images == 0 ? 16 : 2 * s->cap_images;
            k3i_held_image *grown = k3i_realloc(s->images, (size_t)cap * sizeof *grown);
            if (grown == NULL)
                return k3i_fail(err, K3_E_NOMEM, "picture table: out of memory");
            s->images = grown;
            s->cap_images = cap;
        }
        k3_status status = encode(s, m, err);
        while (status == K3_E_LIMIT && preempt_younger_holder(s, r))
            status = encode(s, m, err);
        if (status == K3_E_LIMIT && older_holder(s, r))
            return K3_E_BUSY; /* it will be done with its pictures */
        if (status != K3_OK)
            return status;
        s->n_encoded++;
        held = &s->images[s->n_images++];
        *held = (k3i_held_image){.key = m->key};
    }
    held->n_users++;
    held->tick = ++s->image_tick;
    m->is_encoded = true;
    return K3_OK;
}

void k3i_sched_release_images(k3i_sched *s, k3i_request *r, int32_t before)
{
    for (int32_t i = 0; i < r->n_media; i++) {
        k3i_media *m = &r->media[i];
        if (m->is_encoded && m->at + m->rows <= before) {
            find_image(s, m->key)->n_users--;
            m->is_encoded = false;
        }
    }
}

void k3i_sched_stats(k3i_sched *s, k3i_stats *ret)
{
    *ret = s->stats;
    k3_stats_t engine = {.size = sizeof engine};
    if (k3_stats(s->config.engine, &engine) == K3_OK)
        ret->threads_active = (int32_t)engine.threads_active;
    ret->running = s->n_running;
    ret->waiting = s->n_waiting;
    ret->pages = s->pool.n_blocks - 1;
    ret->pages_free = s->pool.n_free;
    ret->pages_evictable = s->pool.n_evictable;
    ret->snapshots = s->prefix == NULL ? 0 : k3i_prefix_n_snapshots(s->prefix);
    ret->plain_decisions = s->policy.n_plain;
    ret->draft_decisions = s->policy.n_drafting;
    k3i_policy_req fresh = {0};
    ret->spec_survival = k3i_policy_survival(&s->policy, &fresh);
}
