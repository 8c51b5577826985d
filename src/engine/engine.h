/* engine.h: what is behind k3_engine. The calling thread alone touches it; the team works inside
 * calls.
 *
 * Four lifetimes: weights (mapped), sequences (pages and slots, kv.c), the step (workspace, planned
 * at open), and the pending transaction between k3_forward and k3_commit (a copy of what the batch
 * said). */
#ifndef K3I_ENGINE_H
#define K3I_ENGINE_H

#include "clock.h"
#include "dspark.h"
#include "elastic.h"
#include "text.h"
#include "vision.h"

typedef struct {
    char *model, *draft, *isa;
    int32_t *cpus;
    size_t n_cpus;
    bool bf16;
    size_t threads; /* 0: one per available core */
    bool fixed_threads;
    const char *split; /* NULL, "outputs" or "rows" */
    size_t max_num_seqs, max_num_batched_tokens, num_speculative_tokens;
    size_t max_model_len;          /* 0: min(config, 32768) */
    const char *aux_hidden_stream; /* NULL, "prefix" or "attn_res" */
    double latent_norm_eps;        /* 0: the model's */
    uint64_t image_cache_bytes;
    size_t tp_rank, tp_size;
} k3i_options;

k3_status k3i_options_parse(const char *json, k3i_options *ret, k3i_err *err);
void k3i_options_done(k3i_options *o);

/* A block's part in a snapshot: page `index` of a state after `pos` tokens; whatever else is
 * written to the page clears it. Pages are looked at one by one: a host that keeps snapshots by the
 * hash of their text may bring together pages of two snapshots of the same text, which are the same
 * bits. */
typedef struct {
    bool is_snapshot;
    size_t index, pos;
} k3i_block_info;

typedef struct {
    bool used;
    size_t pos;     /* committed tokens */
    uint32_t stamp; /* of the last batch that named it */
    int32_t req;    /* ... and its request there */
} k3i_slot;

typedef struct {
    size_t num_blocks, block_tokens, page_bytes, latent_bytes, snapshot_blocks, n_slots;
    size_t table_cap; /* blocks of a sequence of max_model_len */
} k3i_kv_shape;

typedef struct {
    k3i_kv_shape shape;
    k3i_pool pool;         /* base NULL before k3_kv_init */
    size_t *layer_offset;  /* [MLA layers, then draft layers] */
    k3i_block_info *block; /* [num_blocks] */
    uint64_t *mark;        /* [num_blocks] use in the current batch, batch.c */
    char *state, *records; /* [n_slots] */
    k3i_slot *slot;        /* [n_slots] */
    int32_t *table;        /* [max_num_seqs, table_cap] block tables of the last batch */
    uint32_t epoch;        /* of the last batch */
} k3i_kv;

void k3i_kv_done(k3i_kv *kv);
/* Do these pages hold all parts of a state after `pos` tokens? */
bool k3i_kv_has_snapshot(const k3i_kv *kv, const int32_t *blocks, size_t pos);
/* The pages hold nothing any more / are the whole snapshot of pos. */
void k3i_kv_forget(k3i_kv *kv, int32_t block);
void k3i_kv_register(k3i_kv *kv, const int32_t *blocks, size_t pos);

typedef struct {
    uint64_t key;
    size_t n_rows;
    float *rows; /* [n_rows, H] */
} k3i_image;

typedef struct {
    k3i_image *list; /* [n] in order of arrival */
    size_t n, cap;
    uint64_t bytes;
} k3i_images;

const k3i_image *k3i_images_find(const k3i_images *im, uint64_t key);
void k3i_images_done(k3i_images *im);

/* The draft, if one was opened. Committed rows wait here for their context rows, with their taps
 * (draft.c). */
typedef struct {
    bool is_open;
    k3i_draft_files files;
    k3i_dspark model;
    void *tap_rows; /* acts [taps_cap, n_taps H]: of the waiting rows, then of the batch */
    size_t taps_bytes;
    k3i_taps taps;        /* out: within tap_rows */
    k3i_context_row *row; /* [taps_cap], n_waiting of them in order of their commit */
    int32_t *row_slot;    /* [taps_cap] */
    size_t n_waiting;
    k3i_block_seq *block; /* [max_num_seqs] */
} k3i_draft;

/* What k3_commit must know of a request. */
typedef struct {
    int32_t slot;
    size_t n_rows, n_spec, ctx;
    size_t first_bad; /* first row with a value that is not finite; n_rows if none */
    bool ended;       /* ... and it was a final row: the request is over */
    size_t n_blocks;  /* of its copied table */
} k3i_pending;

struct k3_engine {
    k3i_err err;
    k3_log_fn log;
    void *log_user;
    k3i_options opt;
    k3i_target target;
    k3i_run run;
    k3i_elastic *elastic; /* NULL: all threads work always */
    k3i_text text;
    k3i_vision vision; /* if target.config.has_vision */
    k3i_kv kv;
    k3i_images images;
    k3i_draft draft;
    /* step arrays, [max_num_seqs] or [max_num_batched_tokens] */
    k3i_seq *seq;
    k3i_pending *req;
    k3i_accept *accept;
    size_t *accept_of; /* request -> index in accept */
    k3i_snap *snap;
    const float **media;
    unsigned char *row_bad;
    size_t n_reqs; /* of the last batch */
    bool pending;
    k3_stats_t stats;
    k3i_trace_fn trace; /* tests */
    void *trace_user;
};

/* Before the team works on a step of so many rows: how many members do. */
void k3i_threads_before(k3_engine *e, size_t n_rows);

/* K3_E_FATAL once an exchange between ranks has failed. */
k3_status k3i_ranks_check(k3_engine *e);

/* batch.c: checks everything a batch says without changing anything but marks. */
k3_status k3i_batch_check(k3_engine *e, const k3_batch *b, const float *logits, int64_t stride);
/* The same for a commit; marks the snapshot pages. */
k3_status k3i_commit_check(k3_engine *e, const k3_commit_args *a);

/* draft.c: opens the draft and settles the options that depend on it; its share of the team's
 * scratch; its workspace, once the team exists. Without a draft they do nothing. */
k3_status k3i_draft_setup(k3_engine *e, k3i_err *err);
size_t k3i_draft_scratch(const k3_engine *e);
k3_status k3i_draft_init(k3_engine *e, k3i_err *err);
void k3i_draft_close(k3i_draft *d);
size_t k3i_draft_layers(const k3_engine *e);    /* 0 without a draft */
size_t k3i_draft_row_bytes(const k3_engine *e); /* context row of one layer */
/* Before a checked batch is computed: rows may go on waiting if their sequences do, in the same
 * pages. Finds room for the batch's taps. */
void k3i_draft_before(k3_engine *e, const k3_batch *b);
/* The accepted rows of every request that goes on are to become context. */
void k3i_draft_commit(k3_engine *e, const k3_commit_args *a);
/* Writes the context rows of all that waited. */
void k3i_draft_settle(k3_engine *e);

void k3i_log(const k3_engine *e, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
