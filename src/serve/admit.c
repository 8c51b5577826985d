/* admit.c: from the queue to a slot. First come, first served: a request that does not fit blocks
 * those behind it, so that none starves. Pages for everything that is known of the sequence are
 * taken at once; only generation can run out later. */
#include "scheduler_internal.h"

/* n > 1 choices of one request share a prompt: the others wait until the first has computed it. */
static bool waits_for_leader(const k3i_request *r)
{
    const k3i_request *l = r->leader;
    return l != NULL && l->finish == K3_FINISH_NONE && l->n_tokens == l->n_prompt;
}

static int32_t pages_for(const k3i_sched *s, int32_t tokens)
{
    return (tokens + s->config.block_tokens - 1) / s->config.block_tokens;
}

void k3i_sched_drop_pages(k3i_sched *s, k3i_request *r)
{
    if (r->hit_snap >= 0)
        k3i_prefix_unpin(s->prefix, r->hit_snap);
    r->hit_snap = -1;
    for (int32_t i = 0; i < r->n_table; i++)
        k3i_pool_unref(&s->pool, r->table[i]);
    r->n_table = 0;
}

/* Takes all pages, sharing those of the hit. False (and nothing taken) if the pool is too full. */
static bool take_pages(k3i_sched *s, k3i_request *r, const k3i_hit *hit, k3i_slot_plan *plan)
{
    int32_t total = pages_for(s, r->n_tokens), shared = hit->length / s->config.block_tokens;
    int32_t tail = -1, spare = 0;
    if (!k3i_sched_table_room(r, total))
        return false;
    if (hit->snap >= 0) {
        k3i_prefix_pin(s->prefix, hit->snap, r->table, &tail, plan->restore);
        r->hit_snap = hit->snap;
        r->n_table = shared;
        spare = s->layout.snapshot_blocks + 1; /* counted as evictable, but pinned now */
    }
    /* One page more for each running request, so that admission does not at once mean preemption.
     */
    int32_t available = s->pool.n_free + s->pool.n_evictable - spare - s->n_running;
    if (total - shared > available || !k3i_sched_reserve(s, r, r->n_tokens)) {
        k3i_sched_drop_pages(s, r);
        return false;
    }
    if (tail >= 0 && k3_kv_copy(s->config.engine, tail, r->table[shared]) != K3_OK) {
        k3i_sched_drop_pages(s, r);
        return false;
    }
    return true;
}

static void count_admission(k3i_sched *s, k3i_request *r, const k3i_hit *hit, bool is_looked_up)
{
    if (r->start_ns != 0)
        return; /* resumed after a preemption */
    r->start_ns = k3i_now_ns();
    k3i_histogram_add(&s->stats.queue, (double)(r->start_ns - r->submit_ns) * 1e-9);
    if (!is_looked_up)
        return;
    r->n_cached = hit->length;
    s->stats.cached_tokens += hit->length;
    s->stats.prefix_queries += r->n_prompt;
    s->stats.prefix_hits += hit->length;
    s->stats.lookups++;
    s->stats.miss_tokens += hit->miss == K3_MISS_TOKENS;
    s->stats.miss_snapshot += hit->miss == K3_MISS_SNAPSHOT;
}

static k3_status prepare(k3i_sched *s, k3i_request *r, k3i_err *err)
{
    if (k3i_request_grow(r, r->n_tokens + 1) != K3_OK)
        return k3i_fail(err, K3_E_NOMEM, "request of %d tokens: out of memory", r->n_tokens);
    if (r->sampler != NULL)
        return K3_OK;
    return k3i_sampler_new(&r->sampling, s->info.vocab_size, r->tokens, r->n_prompt, &r->sampler,
                           err);
}

static int32_t free_slot(const k3i_sched *s)
{
    int32_t slot = 0;
    while (s->slot_used[slot])
        slot++;
    return slot;
}

static void start(k3i_sched *s, k3i_request *r, const k3i_hit *hit, const k3i_slot_plan *plan)
{
    r->slot = free_slot(s);
    s->slot_used[r->slot] = true;
    r->slot_op = hit->snap >= 0 ? K3_SLOT_RESTORE : K3_SLOT_RESET;
    for (int32_t i = 0; i < s->layout.snapshot_blocks && hit->snap >= 0; i++)
        s->restore_of_slot[r->slot * s->layout.snapshot_blocks + i] = plan->restore[i];
    r->ctx = hit->length;
    r->branch = hit->known > hit->length ? hit->known : 0;
    int32_t i = s->n_running++;
    for (; i > 0 && s->running[i - 1]->arrival > r->arrival; i--)
        s->running[i] = s->running[i - 1];
    s->running[i] = r;
}

/* 1 = running now, 0 = no room, -1 = ended with an error. */
static int admit(k3i_sched *s, k3i_request *r)
{
    k3i_err err;
    if (prepare(s, r, &err) != K3_OK) {
        k3i_sched_end(s, r, K3_FINISH_ERROR, &err);
        return -1;
    }
    /* Logprobs of the prompt need every row, so nothing of it may be skipped. */
    bool may_reuse =
        s->prefix != NULL && !(r->prompt_logprobs >= 0 && r->n_prompt_lp < r->n_prompt);
    k3i_slot_plan plan = {.restore = s->restore_scratch};
    k3i_hit hit = {.snap = -1};
    if (may_reuse)
        hit = k3i_prefix_lookup(s->prefix, r->salt, r->wide, r->n_tokens - 1);
    if (!take_pages(s, r, &hit, &plan)) {
        /* Alone, a request always fits without what the hit pins. */
        if (s->n_running > 0 || hit.snap < 0)
            return 0;
        hit = (k3i_hit){.snap = -1};
        if (!take_pages(s, r, &hit, &plan))
            return 0;
    }
    count_admission(s, r, &hit, may_reuse);
    start(s, r, &hit, &plan);
    return 1;
}

void k3i_sched_admit(k3i_sched *s)
{
    k3i_request *r = s->waiting;
    while (r != NULL && s->n_running < s->info.max_num_seqs) {
        k3i_request *next = r->next;
        if (!waits_for_leader(r)) {
            k3i_sched_unlink_waiting(s, r);
            int got = admit(s, r);
            if (got == 0) {
                k3i_sched_insert_waiting(s, r);
                return;
            }
        }
        r = next;
    }
}
