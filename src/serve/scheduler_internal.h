/* scheduler_internal.h: the scheduler's state, shared by scheduler.c (life of requests) and step.c
 * (one transaction). */
#ifndef K3I_SCHEDULER_INTERNAL_H
#define K3I_SCHEDULER_INTERNAL_H

#include "prefix.h"
#include "scheduler.h"

/* One request in the batch of this step. */
typedef struct {
    k3i_request *r;
    int32_t first; /* its first row in the batch */
    int32_t rows, n_spec;
    int32_t logit0;   /* its first row of logits */
    int32_t n_logits; /* they belong to its last n_logits rows */
    bool is_sampled;  /* the last row reaches the newest token */
    int32_t accepted;
} k3i_lane;

/* A snapshot asked for in this step. */
typedef struct {
    int32_t lane, pos;
} k3i_want;

/* Where the pages of the snapshot to restore are written at admission. */
typedef struct {
    int32_t *restore; /* [snapshot_blocks] */
} k3i_slot_plan;

/* A picture whose rows the engine holds. */
typedef struct {
    uint64_t key;
    int32_t n_users;
    uint64_t tick;
} k3i_held_image;

struct k3i_sched {
    k3i_sched_config config;
    k3_info info;
    k3_kv_layout layout;
    k3i_pool pool;
    k3i_prefix *prefix; /* NULL without prefix caching */
    int32_t snapshot_interval;
    k3i_policy policy;
    k3i_stats stats;
    uint64_t n_arrivals;
    int32_t n_running, n_waiting;
    k3i_request **running;    /* [max_num_seqs] ascending by arrival */
    k3i_request *waiting;     /* ascending by arrival */
    bool *slot_used;          /* [max_num_seqs] */
    int32_t *restore_of_slot; /* [max_num_seqs, snapshot_blocks] */
    int32_t *restore_scratch; /* [snapshot_blocks] */
    k3i_held_image *images;
    int32_t n_images, cap_images;
    uint64_t image_tick;
    int32_t n_encoded; /* in this step */

    /* The batch; arrays as in k3_batch. */
    int32_t n_lanes, n_rows, n_logit_rows, cap_logit_rows, n_media, n_snap, cap_snap, cap_table;
    k3i_lane *lanes;
    int32_t *token_ids, *q_start, *ctx_len, *slot, *slot_op, *restore_block, *n_spec;
    int32_t *mla_off, *mla_table, *logit_row;
    int32_t *media_token, *media_row, *media_count;
    uint64_t *media_key;
    k3i_want *want; /* [cap_snap] */
    int32_t *snap_req, *snap_pos, *snap_block;
    k3_status *req_status;
    k3i_finish *lane_finish; /* [max_num_seqs] */
    k3i_err *lane_error;     /* [max_num_seqs] */
    int32_t *accepted;
    float *logits;  /* [cap_logit_rows, vocab] */
    uint32_t *mask; /* [ceil(vocab / 32)] */
    int32_t *draft_req, *draft_last, *draft_ids, *draft_width, *draft_cap;
    float *draft_temperature;
    uint64_t *draft_seed;
    k3i_policy_req **draft_policy;
};

/* scheduler.c */
void k3i_sched_end(k3i_sched *s, k3i_request *r, k3i_finish finish, const k3i_err *error);
void k3i_sched_preempt(k3i_sched *s, k3i_request *r);
/* Makes table reach `tokens` tokens; evicts, but does not preempt. False if pages are out. */
bool k3i_sched_reserve(k3i_sched *s, k3i_request *r, int32_t tokens);
bool k3i_sched_table_room(k3i_request *r, int32_t pages);
void k3i_sched_insert_waiting(k3i_sched *s, k3i_request *r);
void k3i_sched_unlink_waiting(k3i_sched *s, k3i_request *r);
bool k3i_sched_snapshot_pages(k3i_sched *s, int32_t *ret);
/* Encodes picture i of r if the engine does not hold it. K3_E_BUSY: not in this step. */
k3_status k3i_sched_need_image(k3i_sched *s, k3i_request *r, int32_t i, k3i_err *err);
void k3i_sched_release_images(k3i_sched *s, k3i_request *r, int32_t before);

/* admit.c */
void k3i_sched_admit(k3i_sched *s);
/* Gives back the pages of r and the snapshot that it began from. */
void k3i_sched_drop_pages(k3i_sched *s, k3i_request *r);

/* step.c plans and runs; sample.c decides. */
void k3i_sched_sample(k3i_sched *s, k3i_lane *lane, k3i_finish *ret_finish, k3i_err *err);
void k3i_sched_draft(k3i_sched *s);
k3_status k3i_request_grow(k3i_request *r, int32_t n_tokens);

#endif
