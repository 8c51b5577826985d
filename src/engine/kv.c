/* kv.c: the memory of sequences: one pool of pages, slots of running KDA states, and which pages
 * hold which snapshot.
 *
 * The pool is reserved, not touched: a page costs memory when it is first written. A page is
 * latents or part of a snapshot, whichever was written last; each says which part of a state at which
 * position it holds, so that one that was reused, or never finished, cannot be restored.
 */
#include "engine.h"

#include <string.h>
#include <sys/mman.h>

static size_t align_up(size_t n)
{
    return (n + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN;
}

/* Sizes, or K3_E_ARG. */
static k3_status plan(const k3_engine *e, const k3_kv_config *c, k3i_kv_shape *ret,
                      size_t *ret_pool, size_t *ret_slots, k3i_err *err)
{
    const k3i_config *cfg = &e->target.config;
    const k3i_kda_layout *kda = &e->text.kda;
    if (c == NULL || c->size != sizeof *c)
        return k3i_fail(err, K3_E_ARG, "k3_kv_config: its size field is not that of this library");
    if (c->num_blocks < 2 || c->block_tokens < 1 || c->block_tokens > 65536 || c->n_slots < 1 ||
        c->page_bytes < 0)
        return k3i_fail(
            err, K3_E_ARG,
            "k3_kv_config: num_blocks %d (>= 2), block_tokens %d (1..65536), n_slots %d "
            "(>= 1), page_bytes %lld (>= 0)",
            c->num_blocks, c->block_tokens, c->n_slots, (long long)c->page_bytes);
    k3i_kv_shape s = {.num_blocks = (size_t)c->num_blocks,
                      .block_tokens = (size_t)c->block_tokens,
                      .n_slots = (size_t)c->n_slots};
    /* Each layer's part of a page starts aligned. */
    s.latent_bytes =
        cfg->n_mla_layers * align_up(s.block_tokens * k3i_latent_width(cfg) * e->run.act_bytes) +
        k3i_draft_layers(e) * align_up(s.block_tokens * k3i_draft_row_bytes(e));
    if (s.latent_bytes == 0)
        s.latent_bytes = K3I_ALIGN;
    if (c->page_bytes != 0 && (uint64_t)c->page_bytes < s.latent_bytes)
        return k3i_fail(err, K3_E_ARG, "k3_kv_config: page_bytes %lld, the latents take %zu",
                        (long long)c->page_bytes, s.latent_bytes);
    s.page_bytes = c->page_bytes != 0 ? align_up((size_t)c->page_bytes) : s.latent_bytes;
    s.snapshot_blocks = (kda->state_bytes + s.page_bytes - 1) / s.page_bytes;
    if (s.snapshot_blocks == 0)
        s.snapshot_blocks = 1;
    s.table_cap = (e->opt.max_model_len + s.block_tokens - 1) / s.block_tokens;
    if (!k3i_mul_size(s.num_blocks, s.page_bytes, ret_pool) ||
        !k3i_mul_size(s.n_slots, kda->state_bytes + kda->slot_record_bytes, ret_slots) ||
        *ret_pool > INT64_MAX || *ret_slots > INT64_MAX)
        return k3i_fail(err, K3_E_NOMEM,
                        "k3_kv_config: %d pages of %zu bytes and %d slots are too many",
                        c->num_blocks, s.page_bytes, c->n_slots);
    *ret = s;
    return K3_OK;
}

static k3_kv_layout layout_of(const k3i_kv_shape *s, size_t pool, size_t slots)
{
    return (k3_kv_layout){.size = sizeof(k3_kv_layout),
                          .snapshot_blocks = (int32_t)s->snapshot_blocks,
                          .page_bytes = (int64_t)s->page_bytes,
                          .pool_bytes = (int64_t)pool,
                          .slot_bytes = (int64_t)slots};
}

k3_status k3_kv_plan(k3_engine *e, const k3_kv_config *config, k3_kv_layout *ret)
{
    k3i_kv_shape shape;
    size_t pool, slots;
    if (e == NULL)
        return K3_E_ARG;
    if (ret == NULL || ret->size != sizeof *ret)
        return k3i_fail(&e->err, K3_E_ARG,
                        "k3_kv_layout: its size field is not that of this library");
    k3_status st = plan(e, config, &shape, &pool, &slots, &e->err);
    if (st == K3_OK)
        *ret = layout_of(&shape, pool, slots);
    return st;
}

static k3_status allocate(const k3_engine *e, k3i_kv *kv, size_t pool_bytes)
{
    const k3i_kv_shape *s = &kv->shape;
    const k3i_kda_layout *kda = &e->text.kda;
    size_t n_target = e->target.config.n_mla_layers, n_layers = n_target + k3i_draft_layers(e);
    kv->layer_offset = k3i_alloc_array(n_layers, sizeof *kv->layer_offset);
    kv->block = k3i_alloc_array(s->num_blocks, sizeof *kv->block);
    kv->mark = k3i_alloc_array(s->num_blocks, sizeof *kv->mark);
    kv->state = k3i_alloc_array(s->n_slots, kda->state_bytes);
    kv->records = k3i_alloc_array(s->n_slots, kda->slot_record_bytes);
    kv->slot = k3i_alloc_array(s->n_slots, sizeof *kv->slot);
    kv->table = k3i_alloc_array(e->opt.max_num_seqs * s->table_cap, sizeof *kv->table);
    if (kv->layer_offset == NULL || kv->block == NULL || kv->mark == NULL || kv->state == NULL ||
        kv->records == NULL || kv->slot == NULL || kv->table == NULL)
        return K3_E_NOMEM;
    void *pool = mmap(NULL, pool_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        return K3_E_NOMEM;
    (void)madvise(pool, pool_bytes, MADV_HUGEPAGE);
    memset(kv->block, 0, s->num_blocks * sizeof *kv->block);
    memset(kv->mark, 0, s->num_blocks * sizeof *kv->mark);
    memset(kv->slot, 0, s->n_slots * sizeof *kv->slot);
    size_t width = k3i_latent_width(&e->target.config) * e->run.act_bytes, at = 0;
    for (size_t i = 0; i < n_layers; i++) {
        kv->layer_offset[i] = at;
        at += align_up(s->block_tokens * (i < n_target ? width : k3i_draft_row_bytes(e)));
    }
    kv->pool = (k3i_pool){.base = pool,
                          .page_bytes = s->page_bytes,
                          .block_tokens = s->block_tokens,
                          .layer_offset = kv->layer_offset};
    return K3_OK;
}

k3_status k3_kv_init(k3_engine *e, const k3_kv_config *config, k3_kv_layout *ret)
{
    k3i_kv kv = {0};
    size_t pool, slots;
    if (e == NULL)
        return K3_E_ARG;
    if (ret != NULL && ret->size != sizeof *ret)
        return k3i_fail(&e->err, K3_E_ARG,
                        "k3_kv_layout: its size field is not that of this library");
    if (e->run.ranks.size > 1 && e->run.ranks.fn == NULL)
        return k3i_fail(&e->err, K3_E_STATE, "tp_size is %zu: k3_set_collective comes first",
                        e->run.ranks.size);
    k3_status st = plan(e, config, &kv.shape, &pool, &slots, &e->err);
    if (st != K3_OK)
        return st;
    if (allocate(e, &kv, pool) != K3_OK) {
        k3i_kv_done(&kv);
        return k3i_fail(&e->err, K3_E_NOMEM, "no memory for a pool of %zu and slots of %zu bytes",
                        pool, slots);
    }
    k3i_kv_done(&e->kv);
    e->kv = kv;
    e->pending = false;
    e->n_reqs = 0;
    e->draft.n_waiting = 0;
    if (ret != NULL)
        *ret = layout_of(&kv.shape, pool, slots);
    return K3_OK;
}

void k3i_kv_done(k3i_kv *kv)
{
    if (kv->pool.base != NULL)
        munmap(kv->pool.base, kv->shape.num_blocks * kv->shape.page_bytes);
    k3i_free(kv->layer_offset);
    k3i_free(kv->block);
    k3i_free(kv->mark);
    k3i_free(kv->state);
    k3i_free(kv->records);
    k3i_free(kv->slot);
    k3i_free(kv->table);
    *kv = (k3i_kv){0};
}

bool k3i_kv_has_snapshot(const k3i_kv *kv, const int32_t *blocks, size_t pos)
{
    for (size_t i = 0; i < kv->shape.snapshot_blocks; i++) {
        const k3i_block_info *b = &kv->block[blocks[i]];
        if (!b->is_snapshot || b->index != i || b->pos != pos)
            return false;
    }
    return true;
}

void k3i_kv_forget(k3i_kv *kv, int32_t block)
{
    kv->block[block].is_snapshot = false;
}

void k3i_kv_register(k3i_kv *kv, const int32_t *blocks, size_t pos)
{
    for (size_t i = 0; i < kv->shape.snapshot_blocks; i++)
        kv->block[blocks[i]] = (k3i_block_info){.is_snapshot = true, .index = i, .pos = pos};
}

k3_status k3_kv_copy(k3_engine *e, int32_t from, int32_t to)
{
    if (e == NULL)
        return K3_E_ARG;
    k3i_kv *kv = &e->kv;
    if (kv->pool.base == NULL || e->pending)
        return k3i_fail(&e->err, K3_E_STATE,
                        kv->pool.base == NULL ? "k3_kv_copy before k3_kv_init"
                                              : "k3_kv_copy before k3_commit");
    if (from < 1 || to < 1 || (size_t)from >= kv->shape.num_blocks ||
        (size_t)to >= kv->shape.num_blocks || from == to)
        return k3i_fail(&e->err, K3_E_BLOCK, "k3_kv_copy from block %d to %d: 1..%zu are possible",
                        from, to, kv->shape.num_blocks - 1);
    k3_status st = k3i_ranks_check(e);
    if (st != K3_OK)
        return st;
    k3i_draft_settle(e);
    memcpy(kv->pool.base + (size_t)to * kv->shape.page_bytes,
           kv->pool.base + (size_t)from * kv->shape.page_bytes, kv->shape.latent_bytes);
    k3i_kv_forget(kv, to);
    return k3i_ranks_check(e);
}

k3_status k3_slot_release(k3_engine *e, int32_t slot)
{
    if (e == NULL)
        return K3_E_ARG;
    if (e->pending)
        return k3i_fail(&e->err, K3_E_STATE, "k3_slot_release before k3_commit");
    if (slot < 0 || (size_t)slot >= e->kv.shape.n_slots)
        return k3i_fail(&e->err, K3_E_SLOT, "slot %d: there are %zu", slot, e->kv.shape.n_slots);
    e->kv.slot[slot].used = false;
    return K3_OK;
}

k3_status k3_reset(k3_engine *e)
{
    if (e == NULL)
        return K3_E_ARG;
    if (e->pending)
        return k3i_fail(&e->err, K3_E_STATE, "k3_reset before k3_commit");
    for (size_t i = 0; i < e->kv.shape.num_blocks; i++)
        e->kv.block[i].is_snapshot = false;
    k3i_images_done(&e->images);
    return K3_OK;
}
