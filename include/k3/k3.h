/* k3.h: the whole public interface of libk3, inference of Kimi-K3 in C.
 *
 * The model of use. An engine is a loaded checkpoint plus KV memory. A host (a server, a command, vLLM)
 * owns all policy: which sequences run, which blocks hold what, how tokens are sampled. It drives the
 * engine through one transaction per step:
 *
 *   k3_open -> k3_kv_init -> { k3_forward -> (host samples) -> k3_commit -> [k3_draft] }* -> k3_close
 *              k3_encode_image at any time before the rows that use it
 *
 * The answer of a request does not depend on the schedule: its logits are bitwise the same for any
 * batch neighbours, chunking, thread count, block placement, snapshots and speculation.
 *
 * Conventions. Functions that can fail return a k3_status: 0 or a negative code of status.def; after a
 * failure outputs are untouched and k3_last_error() has a sentence naming the cause. Integers are
 * fixed-width; counts, ids and positions are int32_t. Arrays are owned by the caller, C-contiguous,
 * and not kept after return (except log and collective callbacks). Structs begin with their size, set
 * by the caller to sizeof. One thread at a time may call into one engine, with 256 KiB of stack left;
 * several engines may exist in a process. Nothing is printed, the environment is not read, and no input
 * ends the process. */
#ifndef K3_K3_H
#define K3_K3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define K3_API __attribute__((visibility("default")))
#else
#define K3_API
#endif

#define K3_ABI_VERSION 1

typedef int32_t k3_status;

enum {
#define STATUS(name, value, text) name = (value),
#include "status.def"
#undef STATUS
    K3_STATUS_END_ = 1
};

typedef struct k3_engine k3_engine;

/* Called for messages of the given level (0 error, 1 warning, 2 info, 3 debug); text ends with NUL. */
typedef void (*k3_log_fn)(void *user, int32_t level, const char *text);

/* K3_ABI_VERSION of the library: hosts refuse a different one. */
K3_API int32_t k3_abi_version(void);

/* The text of status.def for a code, or "unknown status". Static storage. */
K3_API const char *k3_status_text(k3_status status);

/* ---- open and close ---------------------------------------------------------------------------- */

/* Opens a checkpoint. `options` is a JSON object; unknown keys are refused by name:
 *
 *   "model"                  string, required: directory with config.json and *.safetensors
 *   "draft"                  string or null: directory of a DSpark draft
 *   "mode"                   "bf16" (default: the release's rounding points) or "f32"
 *   "threads"                integer >= 0; 0 (default) = one per available core
 *   "split"                  "outputs" or "rows": what the threads share of a step of several tokens;
 *                            absent = rows if the weights fit the shared cache. Never changes a result
 *   "fixed_threads"          boolean: true = all threads share every step; false (default) = fewer do
 *                            while other programs keep them waiting for processors, which is faster.
 *                            Never changes a result
 *   "cpus"                   array of CPU numbers to pin the threads to (then all share every step);
 *                            absent = not pinned
 *   "isa"                    "ref", "avx2", "avx512-plain" or "avx512": at most this; absent = best available
 *   "max_num_seqs"           integer (default 8): requests in one batch, 1..4096
 *   "max_num_batched_tokens" integer (default 512): tokens in one batch
 *   "max_model_len"          integer (default: min(config, 32768)): longest sequence, tokens
 *   "num_speculative_tokens" integer 0..16 (default 0): most drafts per request and step
 *   "aux_hidden_stream"      "prefix" or "attn_res": overrides the stream that the draft taps
 *   "latent_norm_eps"        number: epsilon of q_a/kv_a layernorm (default 1e-6)
 *   "image_cache_bytes"      integer: byte budget of encoded images (default 256 MiB)
 *   "tp_rank", "tp_size"     integers: tensor-parallel rank of this process (default 0 of 1)
 *
 * Maps the weights read-only, checks every tensor, computes nothing. `log` may be NULL. When it fails,
 * `*ret` is untouched and a sentence is written to err[0..err_bytes). Free with k3_close. */
K3_API k3_status k3_open(const char *options, k3_log_fn log, void *log_user, k3_engine **ret, char *err,
                         size_t err_bytes);

/* Frees everything, also after errors; NULL is allowed. */
K3_API void k3_close(k3_engine *engine);

/* The sentence of the last failed call on this engine; valid until the next call. Never NULL. */
K3_API const char *k3_last_error(const k3_engine *engine);

/* What was opened. Sizes in bytes, for this rank. */
typedef struct {
    uint32_t size;                 /* sizeof(k3_info), set by the caller */
    int32_t vocab_size;
    int32_t hidden_size;
    int32_t num_layers;
    int32_t num_kda_layers;
    int32_t num_mla_layers;
    int32_t num_experts;           /* routed, per layer */
    int32_t num_experts_per_token;
    int32_t bos_token_id;
    int32_t eos_token_id;          /* config value: the end-of-message token */
    int32_t pad_token_id;
    int32_t media_token_id;        /* media placeholder, -1 if the model has none */
    int32_t max_model_len;
    int32_t max_num_seqs;
    int32_t max_num_batched_tokens;
    int32_t has_vision;            /* 1 if k3_encode_image works */
    int32_t image_patch_size;      /* pixels, 0 without vision */
    int32_t image_merge_size;      /* patches per side merged into one row, 0 without vision */
    int32_t draft_layers;          /* 0 without a draft */
    int32_t draft_tokens;          /* most drafts k3_draft gives per request, 0 without a draft */
    int32_t draft_mask_id;         /* -1 without a draft */
    int32_t threads;
    int32_t tp_rank;
    int32_t tp_size;
    int64_t weight_bytes;          /* mapped tensors: target, vision, draft */
    int64_t latent_bytes_per_token; /* KV of all target and draft MLA layers, one token */
    int64_t state_bytes;           /* one whole KDA state: all layers, recurrent and convolution */
    int64_t record_bytes;          /* speculative records of one slot at num_speculative_tokens */
    int64_t workspace_bytes;       /* step memory at max_num_batched_tokens */
    char isa[16];                  /* kernels in use */
    char mode[8];
} k3_info;

K3_API k3_status k3_query(const k3_engine *engine, k3_info *ret);

/* ---- KV memory --------------------------------------------------------------------------------- */

/* One pool of num_blocks pages. A page holds the latents of block_tokens tokens for all MLA layers,
 * target and draft; snapshots of KDA state live in snapshot_blocks pages each. Block 0 is reserved
 * (never read or written). Running KDA states live in n_slots slots beside the pool. */
typedef struct {
    uint32_t size;                 /* sizeof(k3_kv_config) */
    int32_t num_blocks;            /* >= 2 */
    int32_t block_tokens;          /* 1..65536 */
    int32_t n_slots;               /* >= 1 */
    int64_t page_bytes;            /* 0 = as small as the latents allow; larger values are kept */
} k3_kv_config;

typedef struct {
    uint32_t size;                 /* sizeof(k3_kv_layout) */
    int32_t snapshot_blocks;       /* pages that one snapshot takes = ceil(state_bytes / page_bytes) */
    int64_t page_bytes;
    int64_t pool_bytes;            /* reserved; touched lazily */
    int64_t slot_bytes;            /* all slots, with their speculative records */
} k3_kv_layout;

/* The layout that k3_kv_init would make, without making it. */
K3_API k3_status k3_kv_plan(k3_engine *engine, const k3_kv_config *config, k3_kv_layout *ret);

/* Allocates pool and slots; a second call replaces them (all sequences and snapshots are gone).
 * K3_E_NOMEM if the memory cannot be had. `ret` may be NULL. */
K3_API k3_status k3_kv_init(k3_engine *engine, const k3_kv_config *config, k3_kv_layout *ret);

/* ---- one step ---------------------------------------------------------------------------------- */

enum { K3_SLOT_KEEP = 0, K3_SLOT_RESET = 1, K3_SLOT_RESTORE = 2 };

/* A ragged batch: n_reqs sequences, request r owning tokens q_start[r] .. q_start[r+1]-1, whose
 * positions are ctx_len[r] + 0, 1, ... The last n_spec[r] of them are drafts that may be rejected. */
typedef struct {
    uint32_t size;                 /* sizeof(k3_batch) */
    int32_t n_reqs;                /* 1..max_num_seqs */
    int32_t n_tokens;              /* 1..max_num_batched_tokens */
    int32_t n_logit_rows;
    int32_t n_media;               /* media runs */
    int32_t n_snap;                /* snapshots inside final rows; later ones are asked of k3_commit */
    const int32_t *token_ids;      /* [n_tokens]; ids of media rows are ignored */
    const int32_t *q_start;        /* [n_reqs + 1], ascending from 0 to n_tokens, each request >= 1 row */
    const int32_t *ctx_len;        /* [n_reqs] committed tokens before this step */
    const int32_t *slot;           /* [n_reqs] KDA slot, distinct */
    const int32_t *slot_op;        /* [n_reqs] K3_SLOT_*; RESET requires ctx_len 0 */
    const int32_t *restore_block;  /* [n_reqs * snapshot_blocks], read where slot_op is RESTORE; may be
                                    * NULL if there is none. Page i holds part i of a snapshot at ctx_len;
                                    * the parts may be of several snapshots of the same text */
    const int32_t *n_spec;         /* [n_reqs] drafts at the tail, 0..min(rows - 1, num_speculative_tokens) */
    const int32_t *mla_off;        /* [n_reqs + 1] into mla_table */
    const int32_t *mla_table;      /* block ids; request r needs ceil((ctx_len + rows) / block_tokens) */
    const int32_t *logit_row;      /* [n_logit_rows] token indices, ascending, distinct */
    const int32_t *media_token;    /* [n_media] first token index of a run of media rows */
    const uint64_t *media_key;     /* [n_media] key of the encoded image */
    const int32_t *media_row;      /* [n_media] first row of the image */
    const int32_t *media_count;    /* [n_media] rows */
    const int32_t *snap_req;       /* [n_snap] request index */
    const int32_t *snap_pos;       /* [n_snap] ctx_len < pos <= ctx_len + rows - n_spec */
    const int32_t *snap_block;     /* [n_snap * snapshot_blocks] pages that receive the state at pos */
    k3_status *req_status;         /* [n_reqs] out: K3_OK or K3_E_NONFINITE; may be NULL */
} k3_batch;

/* Computes the batch. logits: float32 [n_logit_rows, stride], row i belongs to logit_row[i], its first
 * vocab_size entries are written. On success a transaction is pending, which k3_commit must close. A request
 * with a non-finite final row gets K3_E_NONFINITE in req_status: its logits are not meaningful, its slot is
 * released, the others are unharmed. On any other error nothing has changed. */
K3_API k3_status k3_forward(k3_engine *engine, const k3_batch *batch, float *logits, int64_t stride);

/* Closes the transaction: of request r the first accepted[r] rows of the batch stay. */
typedef struct {
    uint32_t size;                 /* sizeof(k3_commit_args) */
    int32_t n_reqs;                /* as in the batch */
    int32_t n_snap;
    int32_t pad_;                  /* 0 */
    const int32_t *accepted;       /* [n_reqs] rows - n_spec <= accepted <= rows */
    const int32_t *snap_req;       /* [n_snap] request index in the batch */
    const int32_t *snap_pos;       /* [n_snap] ctx_len + rows - n_spec <= pos <= ctx_len + accepted */
    const int32_t *snap_block;     /* [n_snap * snapshot_blocks] pages that receive the state */
    k3_status *req_status;         /* [n_reqs] out: K3_OK or K3_E_NONFINITE; may be NULL */
} k3_commit_args;

/* Advances every slot to exactly the accepted rows (bitwise as if the rejected had never run) and
 * takes the snapshots asked for. The draft's rows in the pages are written here or later, before anything
 * reads them. Must follow every successful forward; rows of a request that ended in it are ignored. A draft that is not
 * finite ends its request only if it is accepted: then here, with K3_E_NONFINITE in req_status and its slot released. */
K3_API k3_status k3_commit(k3_engine *engine, const k3_commit_args *args);

/* ---- drafting ---------------------------------------------------------------------------------- */

typedef struct {
    uint32_t size;                 /* sizeof(k3_draft_args) */
    int32_t n_reqs;
    int32_t n_draft;               /* tokens per request, 1..num_speculative_tokens */
    int32_t pad_;                  /* 0 */
    const int32_t *req;            /* [n_reqs] request indices of the last committed batch, ascending */
    const int32_t *last_token;     /* [n_reqs] the newest token, not yet computed by the target */
    const float *temperature;      /* [n_reqs] or NULL: 0 = greedy proposals */
    const uint64_t *seed;          /* [n_reqs] where temperature is given */
    int32_t *ids;                  /* out [n_reqs, n_draft] */
    float *confidence;             /* out [n_reqs, n_draft] or NULL; only with a confidence head */
    float *logits;                 /* out [n_reqs, n_draft, vocab_size] scaled by 1/temperature, or NULL */
} k3_draft_args;

/* Proposes tokens that may follow. Changes no sequence state and needs no blocks beyond those of the
 * last batch. A proposal with a temperature uses the noise of the seed at its position in the stream of
 * the target's own draws, so that a host that samples with the same noise accepts it more often. */
K3_API k3_status k3_draft(k3_engine *engine, const k3_draft_args *args);

/* ---- images ------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t key;                  /* chosen by the host, names the rows in k3_batch */
    const float *pixels;           /* [n_patches, 3 * patch * patch] normalised, in patch order */
    int32_t n_patches;             /* grid_t * grid_h * grid_w */
    int32_t grid_t, grid_h, grid_w; /* patches; h and w multiples of the merge size; t is 1 */
} k3_image;

/* Encodes images into rows of the text model and keeps them under their keys within the byte budget
 * (an image that is needed by a later batch must not be freed before; eviction is by k3_free_image
 * only). A key that is present already is not computed again. K3_E_LIMIT if the budget is exceeded. */
K3_API k3_status k3_encode_image(k3_engine *engine, int32_t n_images, const k3_image *images);

/* Rows of an encoded image: *ret_rows rows of hidden_size floats; rows may be NULL to ask for the count,
 * else it has room for `cap` rows. */
K3_API k3_status k3_image_rows(k3_engine *engine, uint64_t key, float *rows, int32_t cap, int32_t *ret_rows);

/* Frees an image; an unknown key is no error. */
K3_API void k3_free_image(k3_engine *engine, uint64_t key);

/* ---- text -------------------------------------------------------------------------------------- */

/* The tokenizer and the chat format of a checkpoint, for hosts that bring their own server. Needs no
 * engine. Immutable after opening: any number of threads may use one. */
typedef struct k3_text k3_text;

/* Reads tiktoken.model and tokenizer_config.json of a directory; on failure `*ret` is untouched and err
 * has a sentence (so in all calls here). Free with k3_text_close. */
K3_API k3_status k3_text_open(const char *dir, k3_text **ret, char *err, size_t err_bytes);
K3_API void k3_text_close(k3_text *text); /* NULL is allowed */

/* Tokens of UTF-8 text. `specials` 1: names of special tokens in the text become their ids, 0: they are
 * ordinary text. *ret_n is the number of ids; the first min(cap, *ret_n) are written. */
K3_API k3_status k3_text_encode(const k3_text *text, const char *utf8, size_t n_bytes, int32_t specials,
                                int32_t *ids, int32_t cap, int32_t *ret_n, char *err, size_t err_bytes);

/* The prompt of a chat request: the JSON object that /v1/chat/completions takes (messages, tools,
 * tool_choice, response_format, thinking, ...). Each picture part becomes a single media token, which
 * the host replaces by the picture's whole block. Ids as in k3_text_encode. K3_E_FORMAT names the field
 * that is wrong. */
K3_API k3_status k3_text_chat(const k3_text *text, const char *json, size_t n_bytes, int32_t *ids,
                              int32_t cap, int32_t *ret_n, char *err, size_t err_bytes);

/* ---- slots, snapshots, counters ---------------------------------------------------------------- */

/* Copies page `from` to page `to` (latents of all layers, target and draft): a sequence that continues a
 * shared, partly filled page writes into a copy of it. Not while a transaction is pending. K3_E_BLOCK. */
K3_API k3_status k3_kv_copy(k3_engine *engine, int32_t from, int32_t to);

/* Ends a sequence: the slot is free for a RESET or RESTORE. */
K3_API k3_status k3_slot_release(k3_engine *engine, int32_t slot);

/* Forgets all snapshots and images (running sequences stay). */
K3_API k3_status k3_reset(k3_engine *engine);

typedef struct {
    uint32_t size;                 /* sizeof(k3_stats_t) */
    int32_t slots_used;
    int64_t steps;                 /* k3_forward calls that succeeded */
    int64_t rows;                  /* tokens computed */
    int64_t spec_rows;             /* of those, drafts verified */
    int64_t spec_accepted;         /* of those, committed */
    int64_t snapshots;             /* taken */
    int64_t restores;
    int64_t nonfinite;             /* requests ended by a non-finite value */
    int64_t images;                /* encoded */
    int64_t image_bytes;           /* held now */
    int64_t forward_ns, commit_ns, draft_ns, image_ns;
    int64_t weight_bytes_read;     /* weights streamed by k3_forward, each matrix once per step */
    int64_t threads_active;        /* threads that share a step now: fewer than k3_info.threads while
                                    * other programs want the processors */
} k3_stats_t;

K3_API k3_status k3_stats(const k3_engine *engine, k3_stats_t *ret);

/* ---- tensor parallelism ------------------------------------------------------------------------ */

/* All ranks' parts of a buffer are gathered in rank order: part r of `bytes` bytes at buffer + r * bytes.
 * Returns 0, anything else ends the step with K3_E_FATAL. */
typedef int32_t (*k3_all_gather_fn)(void *user, void *buffer, size_t bytes);

/* Required before k3_kv_init if tp_size > 1; kept until close. */
K3_API k3_status k3_set_collective(k3_engine *engine, k3_all_gather_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
