/* fake_engine.c: see fake_engine.h. Plain C library allocation: it stands for another library. */
#include "fake_engine.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 1024, MAX_IMAGES = 64 };

typedef struct {
    uint64_t h;
    int32_t pos;
    bool is_used, is_spoilt;
} slot_state;

typedef struct {
    uint64_t h;
    int32_t pos, part; /* pos -1: no snapshot here */
} snap_cell;

struct k3_engine {
    fake_config c;
    int32_t n_blocks, block_tokens, n_slots;
    uint64_t *latent, *context; /* [n_blocks, block_tokens]: target latents, draft context */
    snap_cell *snap;            /* [n_blocks] */
    slot_state *slots;
    uint64_t images[MAX_IMAGES];
    int32_t n_images;
    /* The pending or last transaction. */
    bool is_pending;
    int32_t n_reqs, rows[MAX_ROWS], n_spec[MAX_ROWS], ctx[MAX_ROWS], slot[MAX_ROWS],
        start[MAX_ROWS];
    int32_t *table[MAX_ROWS], n_table[MAX_ROWS];
    k3_status status[MAX_ROWS];
    uint64_t states[MAX_ROWS]; /* after each row */
    bool spoilt[MAX_ROWS];     /* some value before or in the row is not finite */
    int64_t n_rows;
    char violation[256];
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15u + b + 0x2545F4914F6CDD1Du;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static k3_status broken(k3_engine *e, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static k3_status broken(k3_engine *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (e->violation[0] == 0)
        vsnprintf(e->violation, sizeof e->violation, format, args);
    va_end(args);
    return K3_E_ARG;
}

static void spend(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        nanosleep(&t, NULL);
}

k3_engine *fake_new(const fake_config *config)
{
    k3_engine *e = calloc(1, sizeof *e);
    e->c = *config;
    return e;
}

static void free_pool(k3_engine *e)
{
    free(e->latent);
    free(e->context);
    free(e->snap);
    free(e->slots);
}

void fake_free(k3_engine *e)
{
    free_pool(e);
    for (int32_t i = 0; i < MAX_ROWS; i++)
        free(e->table[i]);
    free(e);
}

const char *fake_violation(const k3_engine *e)
{
    return e->violation;
}

int64_t fake_rows(const k3_engine *e)
{
    return e->n_rows;
}

const char *k3_last_error(const k3_engine *e)
{
    return e->violation[0] != 0 ? e->violation : "limit";
}

k3_status k3_query(const k3_engine *e, k3_info *ret)
{
    uint32_t size = ret->size;
    memset(ret, 0, sizeof *ret);
    ret->size = size;
    ret->vocab_size = e->c.vocab;
    ret->max_model_len = e->c.max_model_len;
    ret->max_num_seqs = e->c.max_num_seqs;
    ret->max_num_batched_tokens = e->c.max_num_batched_tokens;
    ret->has_vision = 1;
    ret->draft_tokens = e->c.draft_tokens;
    ret->latent_bytes_per_token = 1;
    ret->state_bytes = 64;
    ret->media_token_id = 5;
    return K3_OK;
}

k3_status k3_stats(const k3_engine *e, k3_stats_t *ret)
{
    (void)e;
    *ret = (k3_stats_t){.size = ret->size, .threads_active = 1};
    return K3_OK;
}

k3_status k3_kv_init(k3_engine *e, const k3_kv_config *config, k3_kv_layout *ret)
{
    free_pool(e);
    e->n_blocks = config->num_blocks;
    e->block_tokens = config->block_tokens;
    e->n_slots = config->n_slots;
    size_t n = (size_t)e->n_blocks * (size_t)e->block_tokens;
    e->latent = malloc(n * sizeof *e->latent);
    e->context = malloc(n * sizeof *e->context);
    for (size_t i = 0; i < n; i++)
        e->latent[i] = e->context[i] = mix(i, 99); /* garbage */
    e->snap = calloc((size_t)e->n_blocks, sizeof *e->snap);
    for (int32_t i = 0; i < e->n_blocks; i++)
        e->snap[i].pos = -1;
    e->slots = calloc((size_t)e->n_slots, sizeof *e->slots);
    ret->snapshot_blocks = e->c.snapshot_blocks;
    ret->page_bytes = 64;
    return K3_OK;
}

static bool is_block(const k3_engine *e, int32_t b)
{
    return b >= 1 && b < e->n_blocks;
}

/* ---- forward -----------------------------------------------------------------------------------
 */

static uint64_t *cell(const k3_engine *e, uint64_t *array, int32_t r, int32_t pos)
{
    int32_t block = e->table[r][pos / e->block_tokens];
    return &array[(size_t)block * (size_t)e->block_tokens + (size_t)(pos % e->block_tokens)];
}

static uint64_t read_pages(const k3_engine *e, uint64_t *array, int32_t r, int32_t n)
{
    uint64_t h = 17;
    for (int32_t i = 0; i < n; i++)
        h = mix(h, *cell(e, array, r, i));
    return h;
}

/* Logits in [-4, 4), token 0 (the stop token of the tests) somewhat rarer. */
static void fill_row(const k3_engine *e, uint64_t z, float *row)
{
    for (int32_t t = 0; t < e->c.vocab; t++)
        row[t] = (float)(mix(z, (uint64_t)t) >> 40) * 0x1p-21f - 4.0f - (t == 0 ? 0.6f : 0.0f);
}

static k3_status take_state(k3_engine *e, const k3_batch *b, int32_t r, slot_state *ret)
{
    int32_t ctx = b->ctx_len[r], slot = b->slot[r], sb = e->c.snapshot_blocks;
    if (slot < 0 || slot >= e->n_slots)
        return broken(e, "slot %d", slot);
    slot_state *s = &e->slots[slot];
    if (b->slot_op[r] == K3_SLOT_KEEP && (!s->is_used || s->pos != ctx))
        return broken(e, "slot %d is at %d, batch says %d", slot, s->pos, ctx);
    if (b->slot_op[r] != K3_SLOT_KEEP && s->is_used)
        return broken(e, "slot %d is in use", slot);
    *ret = *s;
    if (b->slot_op[r] == K3_SLOT_RESET) {
        if (ctx != 0)
            return broken(e, "reset at %d", ctx);
        *ret = (slot_state){.h = 1, .is_used = true};
    } else if (b->slot_op[r] == K3_SLOT_RESTORE) {
        for (int32_t i = 0; i < sb; i++) {
            int32_t block = b->restore_block[r * sb + i];
            if (!is_block(e, block) || e->snap[block].pos != ctx || e->snap[block].part != i)
                return broken(e, "no snapshot of %d in block %d", ctx, block);
            *ret = (slot_state){.h = e->snap[block].h, .pos = ctx, .is_used = true};
        }
    }
    return K3_OK;
}

static k3_status put_snapshot(k3_engine *e, const int32_t *blocks, uint64_t h, int32_t pos)
{
    for (int32_t i = 0; i < e->c.snapshot_blocks; i++) {
        if (!is_block(e, blocks[i]))
            return broken(e, "snapshot block %d", blocks[i]);
        e->snap[blocks[i]] = (snap_cell){h, pos, i};
        for (int32_t t = 0; t < e->block_tokens; t++)
            e->latent[blocks[i] * e->block_tokens + t] = mix(h, 3);
    }
    return K3_OK;
}

static bool media_value(k3_engine *e, const k3_batch *b, int32_t row, uint64_t *ret)
{
    for (int32_t i = 0; i < b->n_media; i++) {
        int32_t at = row - b->media_token[i];
        if (at < 0 || at >= b->media_count[i])
            continue;
        for (int32_t k = 0; k < e->n_images; k++) {
            if (e->images[k] == b->media_key[i]) {
                *ret = mix(b->media_key[i], (uint64_t)(b->media_row[i] + at));
                return true;
            }
        }
        broken(e, "picture %d is not encoded", (int)b->media_key[i]);
    }
    return false;
}

static k3_status check_request(k3_engine *e, const k3_batch *b, int32_t r)
{
    int32_t rows = b->q_start[r + 1] - b->q_start[r];
    int32_t need = (b->ctx_len[r] + rows + e->block_tokens - 1) / e->block_tokens;
    int32_t n = b->mla_off[r + 1] - b->mla_off[r];
    if (rows < 1 || b->n_spec[r] < 0 || b->n_spec[r] > rows - 1 || b->n_spec[r] > e->c.draft_tokens)
        return broken(e, "request %d: %d rows, %d drafts", r, rows, b->n_spec[r]);
    if (n < need || b->ctx_len[r] + rows > e->c.max_model_len)
        return broken(e, "request %d: %d pages for %d tokens", r, n, b->ctx_len[r] + rows);
    free(e->table[r]);
    e->table[r] = malloc((size_t)(n + 1) * sizeof(int32_t));
    e->n_table[r] = n;
    memcpy(e->table[r], b->mla_table + b->mla_off[r], (size_t)n * sizeof(int32_t));
    for (int32_t i = 0; i < n; i++) {
        if (!is_block(e, e->table[r][i]))
            return broken(e, "request %d: block %d", r, e->table[r][i]);
    }
    for (int32_t q = 0; q < r; q++) {
        if (b->slot[q] == b->slot[r])
            return broken(e, "slot %d twice", b->slot[r]);
    }
    return K3_OK;
}

static void run_request(k3_engine *e, const k3_batch *b, int32_t r, slot_state s, float *logits,
                        int64_t stride)
{
    int32_t from = b->q_start[r], rows = b->q_start[r + 1] - from;
    e->status[r] = K3_OK;
    for (int32_t i = 0; i < rows; i++) {
        int32_t pos = b->ctx_len[r] + i, id = b->token_ids[from + i];
        uint64_t value = (uint64_t)(uint32_t)id;
        bool is_media = media_value(e, b, from + i, &value);
        if (!is_media && (id < 0 || id >= e->c.vocab))
            broken(e, "token %d", id);
        /* A draft may be rejected, so it only spoils its own and the later rows until then. */
        if (!is_media && id == e->c.poison && i < rows - b->n_spec[r])
            e->status[r] = K3_E_NONFINITE;
        if (!is_media && id == e->c.poison)
            s.is_spoilt = true;
        int32_t block = e->table[r][pos / e->block_tokens];
        e->snap[block].pos = -1; /* a page is latents or snapshot, not both */
        *cell(e, e->latent, r, pos) = mix(s.h, value);
        s.h = mix(mix(s.h, value), 5);
        s.pos = pos + 1;
        e->states[from + i] = s.h;
        e->spoilt[from + i] = s.is_spoilt;
        if (i == rows - b->n_spec[r] - 1)
            e->slots[b->slot[r]] = s;
        for (int32_t l = 0; l < b->n_logit_rows; l++) {
            if (b->logit_row[l] != from + i)
                continue;
            fill_row(e, mix(s.h, read_pages(e, e->latent, r, pos + 1)), logits + l * stride);
            if (s.is_spoilt)
                logits[l * stride] = (float)NAN;
        }
        for (int32_t k = 0; k < b->n_snap && i < rows - b->n_spec[r]; k++) {
            if (b->snap_req[k] == r && b->snap_pos[k] == pos + 1)
                put_snapshot(e, b->snap_block + k * e->c.snapshot_blocks, s.h, pos + 1);
        }
    }
    if (e->status[r] != K3_OK)
        e->slots[b->slot[r]].is_used = false;
    if (b->req_status != NULL)
        b->req_status[r] = e->status[r];
}

k3_status k3_forward(k3_engine *e, const k3_batch *b, float *logits, int64_t stride)
{
    if (e->is_pending)
        return broken(e, "forward before commit");
    if (b->n_reqs < 1 || b->n_reqs > e->c.max_num_seqs ||
        b->n_tokens > e->c.max_num_batched_tokens || b->q_start[b->n_reqs] != b->n_tokens)
        return broken(e, "%d requests, %d tokens", b->n_reqs, b->n_tokens);
    for (int32_t i = 1; i < b->n_logit_rows; i++) {
        if (b->logit_row[i] <= b->logit_row[i - 1])
            return broken(e, "logit rows do not ascend");
    }
    for (int32_t k = 0; k < b->n_snap; k++) {
        int32_t r = b->snap_req[k], rows = b->q_start[r + 1] - b->q_start[r];
        if (b->snap_pos[k] <= b->ctx_len[r] || b->snap_pos[k] > b->ctx_len[r] + rows - b->n_spec[r])
            return broken(e, "snapshot at %d of request %d", b->snap_pos[k], r);
    }
    e->n_reqs = b->n_reqs;
    for (int32_t r = 0; r < b->n_reqs; r++) {
        slot_state s = {0};
        if (check_request(e, b, r) != K3_OK || take_state(e, b, r, &s) != K3_OK)
            return K3_E_ARG;
        e->rows[r] = b->q_start[r + 1] - b->q_start[r];
        e->start[r] = b->q_start[r];
        e->n_spec[r] = b->n_spec[r];
        e->ctx[r] = b->ctx_len[r];
        e->slot[r] = b->slot[r];
        run_request(e, b, r, s, logits, stride);
    }
    e->is_pending = true;
    e->n_rows += b->n_tokens;
    spend(e->c.step_ns + e->c.row_ns * b->n_tokens);
    return K3_OK;
}

k3_status k3_commit(k3_engine *e, const k3_commit_args *a)
{
    if (!e->is_pending || a->n_reqs != e->n_reqs)
        return broken(e, "commit of %d requests", a->n_reqs);
    e->is_pending = false;
    for (int32_t r = 0; r < e->n_reqs; r++) {
        int32_t acc = a->accepted[r];
        a->req_status[r] = e->status[r];
        if (e->status[r] != K3_OK)
            continue;
        if (acc < e->rows[r] - e->n_spec[r] || acc > e->rows[r])
            return broken(e, "accepted %d of %d rows, %d drafts", acc, e->rows[r], e->n_spec[r]);
        if (e->spoilt[e->start[r] + acc - 1])
            e->status[r] = K3_E_NONFINITE;
        if (e->status[r] != K3_OK) {
            a->req_status[r] = e->status[r];
            e->slots[e->slot[r]].is_used = false;
            continue;
        }
        for (int32_t i = 0; i < acc; i++)
            *cell(e, e->context, r, e->ctx[r] + i) = mix(e->states[e->start[r] + i], 8);
        for (int32_t k = 0; k < a->n_snap; k++) {
            if (a->snap_req[k] != r)
                continue;
            int32_t pos = a->snap_pos[k];
            if (pos < e->ctx[r] + e->rows[r] - e->n_spec[r] || pos > e->ctx[r] + acc)
                return broken(e, "commit snapshot at %d", pos);
            put_snapshot(e, a->snap_block + k * e->c.snapshot_blocks,
                         e->states[e->start[r] + pos - e->ctx[r] - 1], pos);
        }
        e->slots[e->slot[r]].h = e->states[e->start[r] + acc - 1];
        e->slots[e->slot[r]].pos = e->ctx[r] + acc;
    }
    return K3_OK;
}

/* ---- drafts ------------------------------------------------------------------------------------
 */

/* The greedy continuation, from slot and pages: right as long as both are. */
static void continue_greedily(k3_engine *e, int32_t r, int32_t last, int32_t n, int32_t *ids)
{
    const slot_state *s = &e->slots[e->slot[r]];
    uint64_t h = s->h, pages = read_pages(e, e->latent, r, s->pos);
    float row[512];
    int32_t token = last;
    for (int32_t i = 0; i < n; i++) {
        uint64_t value = (uint64_t)(uint32_t)token;
        pages = mix(pages, mix(h, value));
        h = mix(mix(h, value), 5);
        fill_row(e, mix(h, pages), row);
        token = 0;
        for (int32_t t = 1; t < e->c.vocab; t++)
            token = row[t] > row[token] ? t : token;
        ids[i] = token;
    }
}

k3_status k3_draft(k3_engine *e, const k3_draft_args *a)
{
    if (e->is_pending || a->n_draft < 1 || a->n_draft > e->c.draft_tokens)
        return broken(e, "draft of %d tokens", a->n_draft);
    for (int32_t i = 0; i < a->n_reqs; i++) {
        int32_t r = a->req[i], *ids = a->ids + i * a->n_draft;
        if (r < 0 || r >= e->n_reqs)
            return broken(e, "draft for request %d", r);
        if (!e->slots[e->slot[r]].is_used)
            return broken(e, "draft for request %d, which has ended", r);
        continue_greedily(e, r, a->last_token[i], a->n_draft, ids);
        uint64_t noise = read_pages(e, e->context, r, e->slots[e->slot[r]].pos);
        for (int32_t j = 0; j < a->n_draft; j++) {
            noise = mix(noise, 4);
            bool spoil = e->c.draft_mode == DRAFT_RANDOM || e->c.draft_mode == DRAFT_HOSTILE ||
                         (e->c.draft_mode == DRAFT_MIXED && noise % 4 == 0);
            if (spoil)
                ids[j] = (int32_t)(noise % (uint64_t)e->c.vocab);
            if (e->c.draft_mode == DRAFT_HOSTILE && noise % 3 == 0)
                ids[j] = noise % 2 ? -1 : e->c.vocab + 5;
        }
    }
    spend(e->c.draft_ns);
    return K3_OK;
}

/* ---- the rest ----------------------------------------------------------------------------------
 */

k3_status k3_encode_image(k3_engine *e, int32_t n, const k3_image *images)
{
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < e->n_images; k++) {
            if (e->images[k] == images[i].key)
                return K3_OK;
        }
        if (e->n_images >= e->c.image_budget)
            return K3_E_LIMIT;
        e->images[e->n_images++] = images[i].key;
    }
    return K3_OK;
}

void k3_free_image(k3_engine *e, uint64_t key)
{
    for (int32_t k = 0; k < e->n_images; k++) {
        if (e->images[k] == key)
            e->images[k--] = e->images[--e->n_images];
    }
}

k3_status k3_kv_copy(k3_engine *e, int32_t from, int32_t to)
{
    if (e->is_pending || !is_block(e, from) || !is_block(e, to))
        return broken(e, "copy of block %d to %d", from, to);
    size_t n = (size_t)e->block_tokens;
    memcpy(e->latent + (size_t)to * n, e->latent + (size_t)from * n, n * sizeof *e->latent);
    memcpy(e->context + (size_t)to * n, e->context + (size_t)from * n, n * sizeof *e->context);
    e->snap[to].pos = -1;
    return K3_OK;
}

k3_status k3_slot_release(k3_engine *e, int32_t slot)
{
    if (slot < 0 || slot >= e->n_slots || !e->slots[slot].is_used)
        return K3_E_SLOT;
    e->slots[slot].is_used = false;
    return K3_OK;
}
