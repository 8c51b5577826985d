/* run.h: how the model computes: kernel table, thread team, compute mode, and the products with
 * checkpoint matrices that every layer is made of.
 *
 * Activations are f32 arrays [rows, width]. What feeds a matrix product is an *act*: in bf16 mode
 * the values packed to bf16 (they are exact, having been rounded by the op before), in f32 mode
 * plain f32. Work is split over outputs or over rows, never inside a sum, so no result depends on
 * the number of threads or on the split. */
#ifndef K3I_RUN_H
#define K3I_RUN_H

#include "bf16.h"
#include "kernels.h"
#include "ranks.h"
#include "team.h"

typedef struct {
    const k3i_ops *op;
    k3i_team *team;
    size_t n_members;
    int bf16;              /* 1: the release's rounding points; 0: f32 mode */
    size_t act_bytes;      /* of one act element: 2 or 4 */
    char *scratch;         /* [n_members, scratch_bytes], 64-byte aligned */
    size_t scratch_bytes;  /* of one member */
    k3i_ranks ranks;       /* of this process: 0 of 1 unless the host said otherwise */
    bool rows_pay;         /* steps of several rows are split by rows (k3i_run_as_member) */
    size_t part, n_parts;  /* of a member's copy: its share of the rows; n_parts is 0 elsewhere */
    uint64_t weight_bytes; /* matrix bytes streamed so far (member 0 writes) */
} k3i_run;

/* A copy of `run` for member i of n, who is inside a team step and takes its rows through several
 * stages alone: with it, k3i_run_team calls fn(arg, i, n) and k3i_linear computes rows
 * k3i_team_split(n_row, 1, i, n), all outputs. Nobody waits for anybody. Splitting by outputs reads
 * each weight once but meets after every product; splitting by rows reads weights once a member,
 * which is cheaper where they come from a cache that all members share. */
k3i_run k3i_run_as_member(const k3i_run *run, size_t i, size_t n);

/* Whether n_row rows should be split so. A member with one or two rows would read weights at the pace
 * of the shared cache, all of them, where the half of each product takes half the time. */
bool k3i_run_by_rows(const k3i_run *run, size_t n_row);

/* A run for a member that has set its rows apart as a batch of their own: a team of one, on the
 * member's scratch. */
k3i_run k3i_run_alone(const k3i_run *member);

/* Runs fn on the team; `work`, about the number of multiply-adds, decides whether that is worth
 * waking anybody: small jobs run on the caller as member 0 of 1. */
void k3i_run_team(const k3i_run *run, k3i_team_fn fn, void *arg, size_t work);

/* The outputs that member i of n computes: its part of this rank's part of n_out, by K3I_GRAIN. */
void k3i_split_outputs(const k3i_run *run, size_t n_out, size_t i, size_t n, size_t *ret_from,
                       size_t *ret_to);

/* Address of element i of an act array. */
void *k3i_act_at(const k3i_run *run, const void *acts, size_t i);
/* f32 -> act and back, n elements. */
void k3i_act_store(const k3i_run *run, void *dst, const float *src, size_t n);
void k3i_act_load(const k3i_run *run, float *dst, const void *src, size_t n);

/* y = x w^T of acts on the caller alone, not rounded; strides as in kernels.def. */
void k3i_gemm(const k3i_run *run, float *y, size_t y_stride, const void *x, size_t x_stride,
              const k3i_bf16 *w, size_t n_row, size_t n_out, size_t k);

typedef enum {
    K3I_LINEAR,     /* y = x w^T, rounded in bf16 mode */
    K3I_LINEAR_F32, /* the same, never rounded: router and logits */
    K3I_GLU         /* h = situ(x w^T, x w_up^T), an act; beta 0: silu instead of situ */
} k3i_item_kind;

/* One matrix product of a step; several that need nothing of each other share one team run. */
typedef struct {
    k3i_item_kind kind;
    const void *x;        /* acts [n_row, k] */
    const k3i_bf16 *w;    /* [n_out, k] in the checkpoint's bytes */
    const k3i_bf16 *w_up; /* K3I_GLU */
    size_t n_out, k;
    float *y;        /* [n_row, y_stride] */
    void *h;         /* K3I_GLU: acts [n_row, n_out] */
    size_t y_stride; /* elements; 0 stands for n_out */
    float beta, linear_beta;
} k3i_item;

void k3i_linear(k3i_run *run, size_t n_row, const k3i_item *items, size_t n_items);

/* Bytes of scratch one member needs for k3i_linear. */
size_t k3i_linear_scratch(void);

/* Outputs that are handed out together: a cache line of f32, so that no two members write the same
 * one. */
enum { K3I_GRAIN = 16 };

/* Rows and elements of a tile that is still needed after its product: two of them stay in L2. */
enum { K3I_TILE_ROWS = 128, K3I_TILE = K3I_TILE_ROWS * 6 * K3I_GRAIN };

/* Outputs of such a tile for n_row rows: the fewer rows, the more, so that one row is one call. */
size_t k3i_tile_outputs(size_t n_row);

#endif
