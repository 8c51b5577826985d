/* run.c: products with BF16 matrices, split over outputs or over rows.
 *
 * By outputs, each member takes its share of the outputs of every item of a k3i_linear call, so
 * that a small matrix beside a large one costs no second barrier; of large ones, piece by piece, so
 * that a member that is held up does not hold up the others. A gated product never writes its
 * two halves to memory: gate and up of the same outputs are computed by the same member, tile by
 * tile, and only their product is stored. */
#include "run.h"

#include <string.h>

/* Multiply-adds below which waking the team costs more than it saves: one row of a 256 x 256 matrix
 * takes about as long as two cores need to exchange a cache line twice. */
#define TEAM_WORK 65536

/* Weights that take two members ten times as long as a far cache line takes from one to the other,
 * and the least piece of them that a member takes at a time. */
enum { DEAL_BYTES = 1 << 20, PIECE_BYTES = 1 << 16 };

k3i_run k3i_run_as_member(const k3i_run *run, size_t i, size_t n)
{
    k3i_run own = *run;
    own.part = i;
    own.n_parts = n;
    own.weight_bytes = 0;
    return own;
}

bool k3i_run_by_rows(const k3i_run *run, size_t n_row)
{
    return run->rows_pay && run->n_members > 1 && n_row > 2 * run->n_members;
}

k3i_run k3i_run_alone(const k3i_run *member)
{
    k3i_run own = *member;
    own.scratch += member->part * member->scratch_bytes;
    own.n_members = 1;
    own.part = 0;
    own.n_parts = 1;
    own.weight_bytes = 0;
    return own;
}

void k3i_run_team(const k3i_run *run, k3i_team_fn fn, void *arg, size_t work)
{
    if (run->n_parts > 0) {
        fn(arg, run->part, run->n_parts);
    } else if (work < TEAM_WORK) {
        fn(arg, 0, 1);
    } else {
        k3i_team_run(run->team, fn, arg);
    }
}

void *k3i_act_at(const k3i_run *run, const void *acts, size_t i)
{
    return (void *)(uintptr_t)((const char *)acts + i * run->act_bytes);
}

void k3i_act_store(const k3i_run *run, void *dst, const float *src, size_t n)
{
    if (run->bf16) {
        run->op->to_bf16(dst, src, n);
    } else {
        memcpy(dst, src, n * sizeof *src);
    }
}

void k3i_act_load(const k3i_run *run, float *dst, const void *src, size_t n)
{
    if (run->bf16) {
        run->op->from_bf16(dst, src, n);
    } else {
        memcpy(dst, src, n * sizeof *dst);
    }
}

void k3i_split_outputs(const k3i_run *run, size_t n_out, size_t i, size_t n, size_t *ret_from,
                       size_t *ret_to)
{
    size_t begin, end;
    k3i_ranks_part(&run->ranks, n_out, K3I_GRAIN, run->ranks.rank, &begin, &end);
    k3i_team_split(end - begin, K3I_GRAIN, i, n, ret_from, ret_to);
    *ret_from += begin;
    *ret_to += begin;
}

typedef struct {
    const k3i_run *run;
    const k3i_item *items;
    size_t n_items, n_row;
    bool dealt; /* the grains of all items, one item after the other, are dealt out */
} job;

void k3i_gemm(const k3i_run *run, float *y, size_t y_stride, const void *x, size_t x_stride,
              const k3i_bf16 *w, size_t n_row, size_t n_out, size_t k)
{
    if (run->bf16) {
        run->op->gemm_bf16(y, y_stride, x, x_stride, w, n_row, n_out, k);
    } else {
        run->op->gemm_f32(y, y_stride, x, x_stride, w, n_row, n_out, k);
    }
}

static void plain_part(const job *j, const k3i_item *it, size_t from, size_t to)
{
    const k3i_run *run = j->run;
    size_t stride = it->y_stride != 0 ? it->y_stride : it->n_out;
    k3i_gemm(run, it->y + from, stride, it->x, it->k, it->w + from * it->k, j->n_row, to - from,
             it->k);
    if (!run->bf16 || it->kind == K3I_LINEAR_F32)
        return;
    for (size_t r = 0; r < j->n_row; r++)
        run->op->round_bf16(it->y + r * stride + from, to - from);
}

static void glu_tile(const k3i_run *run, const k3i_item *it, size_t row, size_t n_row, size_t from,
                     size_t n_out, float *gate, float *up)
{
    const void *x = k3i_act_at(run, it->x, row * it->k);
    k3i_gemm(run, gate, n_out, x, it->k, it->w + from * it->k, n_row, n_out, it->k);
    k3i_gemm(run, up, n_out, x, it->k, it->w_up + from * it->k, n_row, n_out, it->k);
    if (run->bf16) {
        run->op->round_bf16(gate, n_row * n_out);
        run->op->round_bf16(up, n_row * n_out);
    }
    if (it->beta > 0) {
        run->op->situ(gate, gate, up, n_row * n_out, it->beta, it->linear_beta, run->bf16);
    } else {
        run->op->silu_mul(gate, gate, up, n_row * n_out, run->bf16);
    }
    for (size_t r = 0; r < n_row; r++)
        k3i_act_store(run, k3i_act_at(run, it->h, (row + r) * it->n_out + from), gate + r * n_out,
                      n_out);
}

size_t k3i_tile_outputs(size_t n_row)
{
    size_t rows = n_row < K3I_TILE_ROWS ? n_row : K3I_TILE_ROWS;
    return K3I_TILE / rows / K3I_GRAIN * K3I_GRAIN;
}

static void glu_part(const job *j, const k3i_item *it, size_t from, size_t to, char *scratch)
{
    float *gate = (void *)scratch, *up = gate + K3I_TILE;
    size_t outs = k3i_tile_outputs(j->n_row);
    for (size_t o = from; o < to; o += outs) {
        size_t n_out = to - o < outs ? to - o : outs;
        for (size_t r = 0; r < j->n_row; r += K3I_TILE_ROWS) {
            size_t n_row = j->n_row - r < K3I_TILE_ROWS ? j->n_row - r : K3I_TILE_ROWS;
            glu_tile(j->run, it, r, n_row, o, n_out, gate, up);
        }
    }
}

static void item_part(const job *j, const k3i_item *it, size_t from, size_t to, size_t member)
{
    if (from == to)
        return;
    if (it->kind == K3I_GLU) {
        glu_part(j, it, from, to, j->run->scratch + member * j->run->scratch_bytes);
    } else {
        plain_part(j, it, from, to);
    }
}

/* Grains `from`..to-1 of what is dealt out. */
static void dealt_part(const job *j, size_t from, size_t to, size_t member)
{
    for (size_t k = 0, at = 0; k < j->n_items && at < to; k++) {
        size_t begin, end, n;
        k3i_split_outputs(j->run, j->items[k].n_out, 0, 1, &begin, &end);
        n = (end - begin + K3I_GRAIN - 1) / K3I_GRAIN;
        if (from < at + n) {
            size_t o = begin + (from > at ? from - at : 0) * K3I_GRAIN;
            item_part(j, &j->items[k], o, to < at + n ? begin + (to - at) * K3I_GRAIN : end,
                      member);
        }
        at += n;
    }
}

static void linear_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    size_t first, last, least = PIECE_BYTES / (2 * K3I_GRAIN * j->items[0].k) + 1;
    while (j->dealt && k3i_team_take(j->run->team, i, least, &first, &last))
        dealt_part(j, first, last, i);
    if (j->dealt)
        return;
    for (size_t k = 0; k < j->n_items; k++) {
        size_t from, to;
        k3i_split_outputs(j->run, j->items[k].n_out, i, n, &from, &to);
        item_part(j, &j->items[k], from, to, i);
    }
}

/* The rows of a member (k3i_run_as_member), all outputs. */
static void linear_rows(const job *all)
{
    const k3i_run *run = all->run;
    size_t from, to;
    k3i_team_split(all->n_row, 1, run->part, run->n_parts, &from, &to);
    if (from == to)
        return;
    job j = {.run = run, .n_row = to - from};
    for (size_t k = 0; k < all->n_items; k++) {
        k3i_item it = all->items[k];
        size_t stride = it.y_stride != 0 ? it.y_stride : it.n_out;
        it.x = k3i_act_at(run, it.x, from * it.k);
        if (it.kind == K3I_GLU) {
            it.h = k3i_act_at(run, it.h, from * it.n_out);
        } else {
            it.y += from * stride;
        }
        item_part(&j, &it, 0, it.n_out, run->part);
    }
}

/* Products that are gathered in one exchange: more than any sub-layer has side by side. */
enum { MAX_ITEMS = 8 };

static void gather_items(k3i_run *run, size_t n_row, const k3i_item *items, size_t n_items)
{
    k3i_shared m[MAX_ITEMS];
    K3_ASSERT(n_items <= MAX_ITEMS);
    for (size_t i = 0; i < n_items; i++) {
        const k3i_item *it = &items[i];
        size_t stride = it->y_stride != 0 ? it->y_stride : it->n_out;
        bool glu = it->kind == K3I_GLU;
        m[i] = (k3i_shared){.base = glu ? it->h : it->y,
                            .elem_bytes = glu ? run->act_bytes : sizeof(float),
                            .row_bytes = glu ? it->n_out * run->act_bytes : stride * sizeof(float),
                            .n_row = n_row,
                            .n_out = it->n_out};
    }
    k3i_ranks_gather(&run->ranks, m, n_items, K3I_GRAIN);
}

/* Deals the outputs out if weights are so large that a meeting is nothing beside them. */
static void deal(job *j, size_t weight_bytes)
{
    size_t n = 0;
    if (weight_bytes < DEAL_BYTES || j->run->n_members == 1)
        return;
    for (size_t k = 0; k < j->n_items; k++) {
        size_t begin, end;
        k3i_split_outputs(j->run, j->items[k].n_out, 0, 1, &begin, &end);
        n += (end - begin + K3I_GRAIN - 1) / K3I_GRAIN;
    }
    k3i_team_deal(j->run->team, n);
    j->dealt = true;
}

void k3i_linear(k3i_run *run, size_t n_row, const k3i_item *items, size_t n_items)
{
    job j = {.run = run, .items = items, .n_items = n_items, .n_row = n_row};
    size_t work = 0;
    if (n_row == 0)
        return;
    for (size_t i = 0; i < n_items; i++) {
        size_t size = items[i].n_out * items[i].k * (items[i].kind == K3I_GLU ? 2 : 1);
        work += size * n_row;
        run->weight_bytes += size * sizeof(k3i_bf16) / run->ranks.size;
    }
    if (run->n_parts > 0) {
        linear_rows(&j);
        return;
    }
    deal(&j, work / n_row * sizeof(k3i_bf16) / run->ranks.size);
    k3i_run_team(run, linear_member, &j, work);
    if (run->ranks.size > 1)
        gather_items(run, n_row, items, n_items);
}

size_t k3i_linear_scratch(void)
{
    return 2 * (size_t)K3I_TILE * sizeof(float);
}
