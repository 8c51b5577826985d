/* step.c: one transaction of the engine: plan lanes, write the batch, forward, sample, commit,
 * draft. */
#include "scheduler_internal.h"

#include <string.h>

/* While prompts wait to be computed, drafts leave them at least this part of the token budget. */
enum { PREFILL_SHARE = 4, MIN_CHUNK = 16 };

static int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* ---- before the plan ---------------------------------------------------------------------------
 */

static bool is_over(const k3i_request *r, int64_t now)
{
    return atomic_load(&r->is_cancelled) || (r->deadline_ns != 0 && now >= r->deadline_ns);
}

static void end_cancelled(k3i_sched *s)
{
    int64_t now = k3i_now_ns();
    k3i_err err;
    k3i_fail(&err, K3_E_CANCELLED, "the request was cancelled or ran out of time");
    for (int32_t i = s->n_running - 1; i >= 0; i--) {
        if (is_over(s->running[i], now))
            k3i_sched_end(s, s->running[i], K3_FINISH_ABORT, &err);
    }
    for (k3i_request *r = s->waiting, *next; r != NULL; r = next) {
        next = r->next;
        if (is_over(r, now))
            k3i_sched_end(s, r, K3_FINISH_ABORT, &err);
    }
}

/* ---- plan --------------------------------------------------------------------------------------
 */

static bool is_decode(const k3i_request *r)
{
    return r->n_tokens - r->ctx == 1 && r->n_tokens > r->n_prompt;
}

static void add_lane(k3i_sched *s, k3i_request *r, int32_t rows, int32_t n_spec)
{
    s->lanes[s->n_lanes++] = (k3i_lane){.r = r, .rows = rows, .n_spec = n_spec};
}

/* One row for each decoding request, plus drafts within `spec_budget`. Preempts where pages are
 * out. */
static void plan_decodes(k3i_sched *s, int32_t spec_budget)
{
    for (int32_t i = 0; i < s->n_running; i++) {
        k3i_request *r = s->running[i];
        if (!is_decode(r))
            continue;
        int32_t n_spec = min32(r->n_draft, spec_budget);
        if (n_spec > 0 && !k3i_sched_reserve(s, r, r->ctx + 1 + n_spec))
            n_spec = 0;
        while (!k3i_sched_reserve(s, r, r->ctx + 1)) {
            k3i_request *youngest = s->running[s->n_running - 1];
            k3i_sched_preempt(s, youngest);
            if (youngest == r)
                break;
        }
        if (r->slot < 0)
            break; /* r was the youngest: it is gone, and nobody is behind it */
        spec_budget -= n_spec;
        add_lane(s, r, 1 + n_spec, n_spec);
    }
}

/* Pictures that the rows touch must be encoded. Returns how many rows can run, -1 if r has ended.
 */
static int32_t rows_with_images(k3i_sched *s, k3i_request *r, int32_t rows)
{
    for (int32_t i = 0; i < r->n_media && rows > 0; i++) {
        const k3i_media *m = &r->media[i];
        if (m->at >= r->ctx + rows || m->at + m->rows <= r->ctx)
            continue;
        k3i_err err;
        k3_status status = k3i_sched_need_image(s, r, i, &err);
        if (status == K3_E_BUSY)
            return max32(m->at - r->ctx, 0);
        if (status != K3_OK) {
            k3i_sched_end(s, r, K3_FINISH_ERROR, &err);
            return -1;
        }
    }
    return rows;
}

/* An equal share of the budget for each prompt, what is left over for the oldest. */
static void plan_prefills(k3i_sched *s, int32_t budget, int32_t logit_budget)
{
    int32_t n = 0, spare = budget;
    for (int32_t i = 0; i < s->n_running; i++)
        n += !is_decode(s->running[i]);
    if (n == 0)
        return;
    int32_t share = max32(budget / n, MIN_CHUNK);
    for (int32_t i = 0; i < s->n_running; i++) {
        if (!is_decode(s->running[i]))
            spare -= min32(share, s->running[i]->n_tokens - s->running[i]->ctx);
    }
    for (int32_t i = 0; i < s->n_running && budget > 0; i++) {
        k3i_request *r = s->running[i];
        if (is_decode(r))
            continue;
        int32_t left = r->n_tokens - r->ctx, rows = min32(left, share);
        int32_t more = min32(left - rows, max32(spare, 0));
        rows = min32(rows + more, budget);
        spare -= more;
        bool all_logits = r->prompt_logprobs >= 0 && r->n_prompt_lp < r->n_prompt;
        rows = min32(rows, all_logits ? logit_budget : rows);
        if (logit_budget < 1 && rows == left)
            rows--; /* the last row needs logits */
        rows = rows_with_images(s, r, rows);
        if (rows < 0)
            i--; /* ended: the list has moved up */
        if (rows <= 0)
            continue;
        budget -= rows;
        logit_budget -= all_logits ? rows : rows == left;
        add_lane(s, r, rows, 0);
    }
}

static void plan(k3i_sched *s)
{
    s->n_lanes = 0;
    s->n_encoded = 0;
    int32_t n_decode = 0, budget = s->info.max_num_batched_tokens;
    for (int32_t i = 0; i < s->n_running; i++)
        n_decode += is_decode(s->running[i]);
    int32_t reserve = n_decode < s->n_running ? budget / PREFILL_SHARE : 0;
    plan_decodes(s, max32(budget - n_decode - reserve, 0));
    int32_t logits = s->cap_logit_rows;
    for (int32_t i = 0; i < s->n_lanes; i++) {
        budget -= s->lanes[i].rows;
        logits -= s->lanes[i].rows;
    }
    plan_prefills(s, budget, logits);
}

/* ---- the batch ---------------------------------------------------------------------------------
 */

static void write_media(k3i_sched *s, const k3i_lane *lane)
{
    const k3i_request *r = lane->r;
    int32_t from = r->ctx, to = r->ctx + lane->rows - lane->n_spec;
    for (int32_t i = 0; i < r->n_media; i++) {
        const k3i_media *m = &r->media[i];
        int32_t a = max32(from, m->at), b = min32(to, m->at + m->rows);
        if (a >= b)
            continue;
        s->media_token[s->n_media] = lane->first + (a - from);
        s->media_key[s->n_media] = m->key;
        s->media_row[s->n_media] = a - m->at;
        s->media_count[s->n_media++] = b - a;
    }
}

static void write_logit_rows(k3i_sched *s, k3i_lane *lane)
{
    const k3i_request *r = lane->r;
    lane->is_sampled = r->ctx + lane->rows - lane->n_spec == r->n_tokens;
    lane->n_logits = lane->is_sampled ? 1 + lane->n_spec : 0;
    if (r->prompt_logprobs >= 0 && r->n_prompt_lp < r->n_prompt)
        lane->n_logits = lane->rows;
    lane->logit0 = s->n_logit_rows;
    for (int32_t i = lane->rows - lane->n_logits; i < lane->rows; i++)
        s->logit_row[s->n_logit_rows++] = lane->first + i;
}

static void write_lane(k3i_sched *s, int32_t index)
{
    k3i_lane *lane = &s->lanes[index];
    k3i_request *r = lane->r;
    int32_t final_rows = lane->rows - lane->n_spec, sb = s->layout.snapshot_blocks;
    lane->first = s->n_rows;
    memcpy(s->token_ids + s->n_rows, r->tokens + r->ctx, (size_t)final_rows * sizeof *r->tokens);
    memcpy(s->token_ids + s->n_rows + final_rows, r->draft,
           (size_t)lane->n_spec * sizeof *r->draft);
    s->n_rows += lane->rows;
    s->q_start[index + 1] = s->n_rows;
    s->ctx_len[index] = r->ctx;
    s->slot[index] = r->slot;
    s->slot_op[index] = r->slot_op;
    s->n_spec[index] = lane->n_spec;
    memcpy(s->restore_block + index * sb, s->restore_of_slot + r->slot * sb,
           (size_t)sb * sizeof *s->restore_block);
    memcpy(s->mla_table + s->mla_off[index], r->table, (size_t)r->n_table * sizeof *r->table);
    s->mla_off[index + 1] = s->mla_off[index] + r->n_table;
    write_media(s, lane);
    write_logit_rows(s, lane);
}

/* Asks for a snapshot of this lane at pos, unless there is one or no page is left for it. */
static bool want_snapshot(k3i_sched *s, int32_t lane, int32_t pos)
{
    const k3i_request *r = s->lanes[lane].r;
    for (int32_t i = 0; i < s->n_snap; i++) {
        if (s->want[i].lane == lane && s->want[i].pos == pos)
            return true;
    }
    if (s->n_snap == s->cap_snap || k3i_prefix_has(s->prefix, r->salt, r->wide, pos))
        return false;
    int32_t *pages = s->snap_block + s->n_snap * s->layout.snapshot_blocks;
    if (!k3i_sched_snapshot_pages(s, pages))
        return false;
    s->want[s->n_snap] = (k3i_want){lane, pos};
    s->snap_req[s->n_snap] = lane;
    s->snap_pos[s->n_snap++] = pos;
    return true;
}

/* Worth keeping: the end of the prompt (all but the token that must be computed for logits), where
 * others were seen to branch off, and every interval on the way. */
static void want_prompt_snapshots(k3i_sched *s, int32_t index)
{
    const k3i_lane *lane = &s->lanes[index];
    const k3i_request *r = lane->r;
    int32_t from = r->ctx, to = min32(r->ctx + lane->rows, r->n_prompt - 1);
    if (s->prefix == NULL || lane->n_spec > 0 || from >= to)
        return;
    int32_t step = s->snapshot_interval;
    for (int32_t pos = step > 0 ? (from / step + 1) * step : to + 1; pos <= to; pos += step)
        want_snapshot(s, index, pos);
    if (r->branch > from && r->branch <= to)
        want_snapshot(s, index, r->branch);
    if (to == r->n_prompt - 1)
        want_snapshot(s, index, to);
}

static void write_batch(k3i_sched *s)
{
    s->n_rows = s->n_logit_rows = s->n_media = s->n_snap = 0;
    s->q_start[0] = s->mla_off[0] = 0;
    for (int32_t i = 0; i < s->n_lanes; i++)
        write_lane(s, i);
    for (int32_t i = 0; i < s->n_lanes; i++)
        want_prompt_snapshots(s, i);
}

/* ---- run ---------------------------------------------------------------------------------------
 */

static k3_status forward(k3i_sched *s)
{
    k3_batch batch = {.size = sizeof batch,
                      .n_reqs = s->n_lanes,
                      .n_tokens = s->n_rows,
                      .n_logit_rows = s->n_logit_rows,
                      .n_media = s->n_media,
                      .n_snap = s->n_snap,
                      .token_ids = s->token_ids,
                      .q_start = s->q_start,
                      .ctx_len = s->ctx_len,
                      .slot = s->slot,
                      .slot_op = s->slot_op,
                      .restore_block = s->restore_block,
                      .n_spec = s->n_spec,
                      .mla_off = s->mla_off,
                      .mla_table = s->mla_table,
                      .logit_row = s->logit_row,
                      .media_token = s->media_token,
                      .media_key = s->media_key,
                      .media_row = s->media_row,
                      .media_count = s->media_count,
                      .snap_req = s->snap_req,
                      .snap_pos = s->snap_pos,
                      .snap_block = s->snap_block,
                      .req_status = s->req_status};
    int64_t t0 = k3i_now_ns();
    k3_status status = k3_forward(s->config.engine, &batch, s->logits, s->info.vocab_size);
    s->stats.engine_ns += k3i_now_ns() - t0;
    return status;
}

static void drop_wants(k3i_sched *s, int32_t from)
{
    for (int32_t i = from * s->layout.snapshot_blocks; i < s->n_snap * s->layout.snapshot_blocks;
         i++)
        k3i_pool_unref(&s->pool, s->snap_block[i]);
    s->n_snap = from;
}

/* The engine refused the batch: nothing has changed there, but these requests cannot go on. */
static void fail_lanes(k3i_sched *s, k3_status status)
{
    k3i_err err;
    k3i_fail(&err, status, "%s", k3_last_error(s->config.engine));
    drop_wants(s, 0);
    if (status <= K3_E_FATAL) {
        s->stats.is_dead = 1;
        k3i_sched_end_all(s, K3_FINISH_ERROR, err.text);
        return;
    }
    for (int32_t i = 0; i < s->n_lanes; i++)
        k3i_sched_end(s, s->lanes[i].r, K3_FINISH_ERROR, &err);
}

static void sample(k3i_sched *s, k3i_finish *finish, k3i_err *errors)
{
    for (int32_t i = 0; i < s->n_lanes; i++) {
        k3i_lane *lane = &s->lanes[i];
        k3i_request *r = lane->r;
        if (r->hit_snap >= 0) { /* restored now */
            k3i_prefix_unpin(s->prefix, r->hit_snap);
            r->hit_snap = -1;
        }
        r->slot_op = K3_SLOT_KEEP;
        if (s->req_status[i] != K3_OK) {
            lane->accepted = lane->rows;
            finish[i] = K3_FINISH_ERROR;
            k3i_fail(&errors[i], s->req_status[i], "a computed value is not finite");
        } else {
            k3i_sched_sample(s, lane, &finish[i], &errors[i]);
        }
        r->n_draft = 0;
        s->accepted[i] = lane->accepted;
    }
}

/* A finished conversation keeps its exact end state: a follow-up computes only what is new. */
static void want_end_snapshots(k3i_sched *s, const k3i_finish *finish)
{
    if (s->prefix == NULL)
        return;
    for (int32_t i = 0; i < s->n_lanes; i++) {
        const k3i_lane *lane = &s->lanes[i];
        if (finish[i] == K3_FINISH_STOP || finish[i] == K3_FINISH_LENGTH)
            want_snapshot(s, i, lane->r->ctx + lane->accepted);
    }
}

static void keep_snapshots(k3i_sched *s, const k3i_finish *finish)
{
    int32_t sb = s->layout.snapshot_blocks;
    for (int32_t i = 0; i < s->n_snap; i++) {
        const k3i_lane *lane = &s->lanes[s->want[i].lane];
        const k3i_request *r = lane->r;
        int32_t *pages = s->snap_block + i * sb;
        if (finish[s->want[i].lane] == K3_FINISH_ERROR ||
            k3i_prefix_add(s->prefix, r->salt, r->wide, s->want[i].pos, r->table, pages, NULL) !=
                K3_OK) {
            for (int32_t b = 0; b < sb; b++)
                k3i_pool_unref(&s->pool, pages[b]);
        }
    }
    s->n_snap = 0;
}

static k3_status commit(k3i_sched *s, int32_t n_before)
{
    k3_commit_args args = {.size = sizeof args,
                           .n_reqs = s->n_lanes,
                           .n_snap = s->n_snap - n_before,
                           .accepted = s->accepted,
                           .snap_req = s->snap_req + n_before,
                           .snap_pos = s->snap_pos + n_before,
                           .snap_block = s->snap_block + n_before * s->layout.snapshot_blocks,
                           .req_status = s->req_status};
    int64_t t0 = k3i_now_ns();
    k3_status status = k3_commit(s->config.engine, &args);
    s->stats.engine_ns += k3i_now_ns() - t0;
    return status;
}

/* A draft that was accepted but is not finite ends its request here, like any other token. */
static void end_nonfinite(k3i_sched *s, k3i_finish *finish, k3i_err *errors)
{
    for (int32_t i = 0; i < s->n_lanes; i++) {
        if (s->req_status[i] != K3_OK && finish[i] != K3_FINISH_ERROR) {
            finish[i] = K3_FINISH_ERROR;
            k3i_fail(&errors[i], s->req_status[i], "a computed value is not finite");
        }
    }
}

static void notify(k3i_request *r)
{
    if (r->notify != NULL)
        r->notify(r->user);
}

/* Everything after the engine's commit, lane by lane. Ended lanes lose their request. */
static void conclude(k3i_sched *s, const k3i_finish *finish, const k3i_err *errors)
{
    for (int32_t i = 0; i < s->n_lanes; i++) {
        k3i_lane *lane = &s->lanes[i];
        k3i_request *r = lane->r;
        int32_t in_prompt =
            min32(r->n_prompt, r->ctx + lane->accepted) - min32(r->n_prompt, r->ctx);
        s->stats.prompt_tokens += in_prompt;
        r->ctx += lane->accepted;
        k3i_sched_release_images(s, r, r->ctx);
        if (finish[i] == K3_FINISH_NONE) {
            if (lane->is_sampled)
                notify(r);
            continue;
        }
        k3i_sched_end(s, r, finish[i], finish[i] == K3_FINISH_ERROR ? &errors[i] : NULL);
        lane->r = NULL;
    }
}

void k3i_sched_begin(k3i_sched *s)
{
    end_cancelled(s);
    if (s->stats.is_dead)
        k3i_sched_end_all(s, K3_FINISH_ERROR, "the engine has failed");
    k3i_sched_admit(s);
}

bool k3i_sched_step(k3i_sched *s)
{
    k3i_sched_begin(s);
    plan(s);
    if (s->n_lanes == 0)
        return false;
    bool is_pure_decode = true;
    for (int32_t i = 0; i < s->n_lanes; i++)
        is_pure_decode = is_pure_decode && is_decode(s->lanes[i].r);
    write_batch(s);
    int64_t t0 = k3i_now_ns();
    k3_status status = forward(s);
    if (status != K3_OK) {
        fail_lanes(s, status);
        return true;
    }
    int32_t n_before = s->n_snap;
    sample(s, s->lane_finish, s->lane_error);
    want_end_snapshots(s, s->lane_finish);
    status = commit(s, n_before);
    if (status != K3_OK) {
        fail_lanes(s, K3_E_FATAL); /* the slots' positions are unknown now */
        return true;
    }
    end_nonfinite(s, s->lane_finish, s->lane_error);
    if (is_pure_decode)
        k3i_policy_saw_step(&s->policy, s->n_rows, (double)(k3i_now_ns() - t0));
    s->stats.steps++;
    k3i_histogram_add(&s->stats.iteration_tokens, s->n_rows);
    keep_snapshots(s, s->lane_finish);
    conclude(s, s->lane_finish, s->lane_error);
    k3i_sched_draft(s);
    return true;
}
