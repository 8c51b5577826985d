/* sample.c: from a lane's rows of logits to tokens of its request, and the drafts for the next
 * step.
 *
 * Rows are visited in order and each token is sampled as in plain decoding; a draft is kept if it
 * is that token. So penalties, bad words and grammar masks of a row see exactly the tokens before
 * it, with no copy of their state, and a stop inside an accepted run ends the run right there. */
#include "scheduler_internal.h"

#include <string.h>

static k3_status grow_ready(k3i_request *r)
{
    if (r->n_ready < r->cap_ready)
        return K3_OK;
    int32_t cap = r->cap_ready == 0 ? 64 : 2 * r->cap_ready;
    int32_t *ready = k3i_realloc(r->ready, (size_t)cap * sizeof *ready);
    if (ready == NULL)
        return K3_E_NOMEM;
    r->ready = ready;
    if (r->logprobs >= 0) {
        size_t one = sizeof *r->lp * (size_t)(1 + r->logprobs);
        k3i_logprob *lp = k3i_realloc(r->lp, (size_t)cap * one);
        if (lp == NULL)
            return K3_E_NOMEM;
        r->lp = lp;
    }
    r->cap_ready = cap;
    return K3_OK;
}

/* The token joins tokens, statistics and what the client may read. */
static k3_status append(k3i_sched *s, k3i_request *r, int32_t token, const k3i_logprob *lp,
                        k3i_err *err)
{
    if (k3i_request_grow(r, r->n_tokens + 1) != K3_OK)
        return k3i_fail(err, K3_E_NOMEM, "request of %d tokens: out of memory", r->n_tokens);
    k3_status status = k3i_sampler_push(r->sampler, token, err);
    if (status != K3_OK)
        return status;
    r->tokens[r->n_tokens] = token;
    r->wide[r->n_tokens++] = (uint64_t)(uint32_t)token;
    pthread_mutex_lock(&r->lock);
    status = grow_ready(r);
    if (status == K3_OK) {
        if (lp != NULL) {
            size_t n = (size_t)(1 + r->logprobs);
            memcpy(r->lp + (size_t)r->n_ready * n, lp, n * sizeof *lp);
        }
        r->ready[r->n_ready++] = token;
    }
    pthread_mutex_unlock(&r->lock);
    if (status != K3_OK)
        return k3i_fail(err, status, "request of %d tokens: out of memory", r->n_tokens);
    s->stats.generation_tokens++;
    return K3_OK;
}

static void count_time(k3i_sched *s, k3i_request *r)
{
    int64_t now = k3i_now_ns();
    if (r->first_ns == 0) {
        r->first_ns = now;
        k3i_histogram_add(&s->stats.ttft, (double)(now - r->submit_ns) * 1e-9);
    } else {
        k3i_histogram_add(&s->stats.itl, (double)(now - r->last_ns) * 1e-9);
    }
    r->last_ns = now;
}

/* What the newest token means for the request. */
static k3i_finish verdict(k3i_sched *s, k3i_request *r, int32_t token)
{
    bool is_stop = false;
    for (int32_t i = 0; i < r->sampling.n_stop; i++)
        is_stop = is_stop || r->sampling.stop[i] == token;
    /* The observer sees every token, also the one that ends the output. */
    if (r->on_token != NULL && r->on_token(r->user, token) != 0)
        is_stop = true;
    if (is_stop)
        return K3_FINISH_STOP;
    if (r->n_tokens - r->n_prompt >= r->max_tokens || r->n_tokens >= s->info.max_model_len)
        return K3_FINISH_LENGTH;
    return K3_FINISH_NONE;
}

/* One token from one row. */
static k3_status decide(k3i_sched *s, k3i_request *r, float *row, int32_t *ret_token, k3i_err *err)
{
    k3i_logprob *lp = NULL;
    const uint32_t *mask = NULL;
    if (r->constraint.self != NULL) {
        bool is_active = false;
        k3_status status = r->constraint.mask(r->constraint.self, s->mask, &is_active, err);
        if (status != K3_OK)
            return status;
        mask = is_active ? s->mask : NULL;
    }
    float *work = row;
    if (r->logprobs >= 0) {
        /* Sampling overwrites the row, logprobs are those of the model: keep a copy of the row. */
        lp = k3i_alloc_array((size_t)(1 + r->logprobs), sizeof *lp);
        work = k3i_alloc_array((size_t)s->info.vocab_size, sizeof *work);
        if (lp == NULL || work == NULL) {
            k3i_free(lp);
            k3i_free(work);
            return k3i_fail(err, K3_E_NOMEM, "logprobs: out of memory");
        }
        memcpy(work, row, (size_t)s->info.vocab_size * sizeof *work);
    }
    k3_status status = k3i_sample(r->sampler, work, mask, r->n_tokens, ret_token, err);
    if (status == K3_OK && lp != NULL)
        k3i_logprobs(row, s->info.vocab_size, *ret_token, r->logprobs, lp);
    if (status == K3_OK)
        status = append(s, r, *ret_token, lp, err);
    if (status == K3_OK && r->constraint.self != NULL)
        status = r->constraint.accept(r->constraint.self, *ret_token, err);
    if (work != row)
        k3i_free(work);
    k3i_free(lp);
    return status;
}

static void count_drafts(k3i_sched *s, k3i_request *r, int32_t width, int32_t accepted)
{
    s->stats.spec_drafts++;
    s->stats.spec_draft_tokens += width;
    s->stats.spec_accepted_tokens += accepted;
    for (int32_t i = 0; i < accepted; i++)
        s->stats.spec_accepted_at[i]++;
    r->n_drafted += width;
    r->n_accepted += accepted;
    k3i_policy_saw_verdict(&s->policy, &r->policy, width, accepted);
}

/* Log-probabilities of prompt tokens from the rows before them. */
static k3_status prompt_logprobs(k3i_sched *s, k3i_lane *lane, k3i_err *err)
{
    k3i_request *r = lane->r;
    size_t n = (size_t)(1 + r->prompt_logprobs);
    if (r->prompt_lp == NULL) {
        r->prompt_lp = k3i_alloc_array((size_t)r->n_prompt * n, sizeof *r->prompt_lp);
        if (r->prompt_lp == NULL)
            return k3i_fail(err, K3_E_NOMEM, "prompt_logprobs: out of memory");
    }
    for (int32_t i = 0; i < lane->n_logits; i++) {
        int32_t next = r->ctx + lane->rows - lane->n_logits + i + 1;
        if (next >= r->n_prompt)
            break;
        k3i_logprobs(s->logits + (size_t)(lane->logit0 + i) * (size_t)s->info.vocab_size,
                     s->info.vocab_size, r->tokens[next], r->prompt_logprobs,
                     r->prompt_lp + (size_t)next * n);
        r->n_prompt_lp = next + 1;
    }
    return K3_OK;
}

void k3i_sched_sample(k3i_sched *s, k3i_lane *lane, k3i_finish *ret_finish, k3i_err *err)
{
    k3i_request *r = lane->r;
    lane->accepted = lane->rows - lane->n_spec;
    *ret_finish = K3_FINISH_NONE;
    if (r->prompt_logprobs >= 0 && r->n_prompt_lp < r->n_prompt && lane->n_logits > 0 &&
        prompt_logprobs(s, lane, err) != K3_OK) {
        *ret_finish = K3_FINISH_ERROR;
        return;
    }
    if (!lane->is_sampled)
        return;
    if (r->max_tokens == 0) {
        *ret_finish = K3_FINISH_LENGTH;
        return;
    }
    int32_t n_kept = 0, n_emitted = 0;
    float *row = s->logits + (size_t)(lane->logit0 + lane->n_logits - 1 - lane->n_spec) *
                                 (size_t)s->info.vocab_size;
    for (int32_t i = 0; i <= lane->n_spec; i++, row += s->info.vocab_size) {
        int32_t token;
        if (decide(s, r, row, &token, err) != K3_OK) {
            *ret_finish = K3_FINISH_ERROR;
            break;
        }
        n_emitted++;
        bool is_kept = i < lane->n_spec && token == r->draft[i];
        n_kept += is_kept;
        *ret_finish = verdict(s, r, token);
        if (*ret_finish != K3_FINISH_NONE || !is_kept)
            break;
    }
    /* The newest token is not computed yet; every one before it was a kept draft. */
    if (n_emitted > 1)
        lane->accepted += n_emitted - 1;
    if (lane->n_spec > 0)
        count_drafts(s, r, lane->n_spec, n_kept);
    count_time(s, r);
}

/* ---- drafts for the next step ------------------------------------------------------------------
 */

static int32_t draft_cap(const k3i_sched *s, const k3i_lane *lane)
{
    const k3i_request *r = lane->r;
    if (r->no_speculation)
        return 0;
    /* The step may emit one token more than it verifies. */
    int32_t cap = s->config.speculative_tokens;
    int32_t left = r->max_tokens - (r->n_tokens - r->n_prompt) - 1;
    int32_t room = s->info.max_model_len - r->n_tokens - 1;
    cap = cap < left ? cap : left;
    cap = cap < room ? cap : room;
    /* A draft pass takes no page, but verifying does: without one it would be for nothing. */
    int64_t pages = (int64_t)r->n_table + s->pool.n_free + s->pool.n_evictable;
    int64_t fit = pages * s->config.block_tokens - r->n_tokens;
    cap = cap < fit ? cap : (int32_t)fit;
    return cap > 0 ? cap : 0;
}

/* Keeps drafts up to the first that is no token. */
static void take_drafts(k3i_sched *s, k3i_request *r, const int32_t *ids, int32_t width)
{
    r->n_draft = 0;
    while (r->n_draft < width && ids[r->n_draft] >= 0 && ids[r->n_draft] < s->info.vocab_size) {
        r->draft[r->n_draft] = ids[r->n_draft];
        r->n_draft++;
    }
}

void k3i_sched_draft(k3i_sched *s)
{
    int32_t n = 0, n_req = 0;
    if (s->config.speculative_tokens == 0)
        return;
    /* All decoding requests count for the cost of the next step, also those that cannot draft. */
    for (int32_t i = 0; i < s->n_lanes; i++) {
        k3i_lane *lane = &s->lanes[i];
        if (lane->r == NULL || !lane->is_sampled)
            continue;
        s->draft_policy[n] = &lane->r->policy;
        s->draft_cap[n] = draft_cap(s, lane);
        s->draft_req[n++] = i;
    }
    if (n == 0)
        return;
    int32_t width = k3i_policy_choose(&s->policy, n, s->draft_policy, s->draft_cap, s->draft_width);
    if (width == 0)
        return;
    for (int32_t i = 0; i < n; i++) {
        if (s->draft_width[i] == 0)
            continue;
        const k3i_request *r = s->lanes[s->draft_req[i]].r;
        s->draft_req[n_req] = s->draft_req[i];
        s->draft_width[n_req] = s->draft_width[i];
        /* The draft draws with the noise that the sampler will use: the likeliest way to agree. */
        float t = r->sampling.temperature;
        s->draft_temperature[n_req] = t < K3I_MIN_TEMPERATURE ? 0.0f : t;
        s->draft_seed[n_req] = r->sampling.seed;
        s->draft_last[n_req++] = r->tokens[r->n_tokens - 1];
    }
    k3_draft_args args = {.size = sizeof args,
                          .n_reqs = n_req,
                          .n_draft = width,
                          .req = s->draft_req,
                          .last_token = s->draft_last,
                          .temperature = s->draft_temperature,
                          .seed = s->draft_seed,
                          .ids = s->draft_ids};
    int64_t t0 = k3i_now_ns();
    k3_status status = k3_draft(s->config.engine, &args);
    int64_t ns = k3i_now_ns() - t0;
    s->stats.engine_ns += ns;
    if (status != K3_OK)
        return; /* drafts are a help, never a need */
    k3i_policy_saw_draft(&s->policy, n_req, width, (double)ns);
    for (int32_t i = 0; i < n_req; i++)
        take_drafts(s, s->lanes[s->draft_req[i]].r, s->draft_ids + i * width, s->draft_width[i]);
}
