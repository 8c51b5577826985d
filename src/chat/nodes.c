/* nodes.c: the store of a grammar under construction, and the costs of its nodes. */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES (1u << 20) /* of each list: a request of the largest size stays below */
#define MAX_PATTERNS 256       /* bounds the time of compiling them */

/* Room for one more entry; NULL with *st set if there is none. */
static void *room(void *list, uint32_t n, uint32_t *cap, size_t size, k3_status *st, k3i_err *err)
{
    if (*st != K3_OK)
        return NULL;
    if (n < *cap)
        return list;
    if (n >= MAX_ENTRIES) {
        *st = k3i_fail(err, K3_E_LIMIT, "a schema needs more than %u grammar entries", MAX_ENTRIES);
        return NULL;
    }
    uint32_t want = *cap == 0 ? 64 : 2 * *cap;
    void *p = k3i_realloc(list, want * size);
    if (p == NULL)
        *st = k3i_fail(err, K3_E_NOMEM, "out of memory (grammar)");
    else
        *cap = want;
    return p;
}

uint32_t k3i_g_add_node(k3i_grammar *g, k3i_gnode node, k3_status *st, k3i_err *err)
{
    k3i_gnode *p = room(g->node, g->n_node, &g->cap_node, sizeof *p, st, err);
    if (p == NULL)
        return 0;
    g->node = p;
    if (g->n_node == 0)
        p[g->n_node++] = (k3i_gnode){0}; /* node 0 means none */
    p[g->n_node] = node;
    return g->n_node++;
}

void k3i_g_add_child(k3i_grammar *g, uint32_t child, k3_status *st, k3i_err *err)
{
    uint32_t *p = room(g->child, g->n_child, &g->cap_child, sizeof *p, st, err);
    if (p == NULL)
        return;
    g->child = p;
    p[g->n_child++] = child;
}

void k3i_g_add_lit(k3i_grammar *g, const char *text, size_t n, k3i_glit lit, k3_status *st,
                   k3i_err *err)
{
    k3i_glit *p = room(g->lit, g->n_lit, &g->cap_lit, sizeof *p, st, err);
    if (p == NULL)
        return;
    g->lit = p;
    lit.at = (uint32_t)g->pool.n;
    lit.n = (uint32_t)n;
    *st = k3i_buf_add(&g->pool, text, n, err);
    if (*st == K3_OK)
        p[g->n_lit++] = lit;
}

k3i_gpattern *k3i_g_add_pattern(k3i_grammar *g, k3_status *st, k3i_err *err)
{
    if (*st == K3_OK && g->n_pattern == MAX_PATTERNS)
        *st = k3i_fail(err, K3_E_LIMIT, "a request has more than %d patterns", MAX_PATTERNS);
    k3i_gpattern *p = room(g->pattern, g->n_pattern, &g->cap_pattern, sizeof *p, st, err);
    if (p == NULL)
        return NULL;
    g->pattern = p;
    p[g->n_pattern] = (k3i_gpattern){0};
    return &p[g->n_pattern++];
}

void k3i_g_add_op(k3i_grammar *g, int32_t op, uint32_t a, uint32_t b, k3_status *st, k3i_err *err)
{
    k3i_gop *p = room(g->op, g->n_op, &g->cap_op, sizeof *p, st, err);
    if (p == NULL)
        return;
    g->op = p;
    p[g->n_op++] = (k3i_gop){.op = op, .a = a, .b = b, .cost = K3I_NEVER};
}

static int compare_bytes(const k3i_glit *x, const k3i_glit *y, const char *pool)
{
    int order = memcmp(pool + x->at, pool + y->at, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static int compare_lits(const void *a, const void *b, void *pool)
{
    const k3i_glit *x = a, *y = b;
    int order = compare_bytes(x, y, pool);
    return order != 0 ? order : (x->at > y->at) - (x->at < y->at);
}

void k3i_g_sort_lits(k3i_grammar *g, uint32_t first)
{
    uint32_t kept = first;
    if (g->n_lit == first)
        return;
    qsort_r(g->lit + first, g->n_lit - first, sizeof *g->lit, compare_lits, g->pool.data);
    for (uint32_t i = first; i < g->n_lit; i++) {
        if (kept == first || compare_bytes(&g->lit[kept - 1], &g->lit[i], g->pool.data) != 0)
            g->lit[kept++] = g->lit[i];
    }
    g->n_lit = kept;
}

k3i_glit *k3i_g_find_lit(k3i_grammar *g, uint32_t first, const char *text, size_t n)
{
    uint32_t lo = first, hi = g->n_lit;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        k3i_glit *l = &g->lit[mid];
        int order = memcmp(g->pool.data + l->at, text, l->n < n ? l->n : n);
        if (order == 0 && l->n == n)
            return l;
        if (order < 0 || (order == 0 && l->n < n))
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

k3_status k3i_g_attr_escape(const char *s, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = K3_OK;
    for (size_t i = 0; i < n && st == K3_OK; i++) {
        if (s[i] == '&')
            st = k3i_buf_add(ret, "&amp;", 5, err);
        else if (s[i] == '"')
            st = k3i_buf_add(ret, "&quot;", 6, err);
        else
            st = k3i_buf_add(ret, s + i, 1, err);
    }
    return st;
}

/* ---- costs ---------------------------------------------------------------------------------- */

/* The start of each kind costs what a thread in its first phase costs; a machine without frames
 * tells. The nodes below have their costs, or K3I_NEVER as long as none is known, so the result
 * only falls. */
static uint32_t start_cost(const k3i_machine *m, uint32_t id)
{
    const k3i_gnode *node = &m->g->node[id];
    const uint32_t all_lo = node->u.keys.first, all_hi = all_lo + node->u.keys.n;
    const uint64_t all = (uint64_t)all_hi << 32 | all_lo;
    k3i_thread t = {.node = id};
    uint32_t cost = K3I_NEVER;
    switch (node->kind) {
    case K3I_G_ALT:
        for (uint32_t i = 0; i < node->u.alt.n; i++) {
            uint32_t c = m->g->node[m->g->child[node->u.alt.first + i]].cost;
            cost = c < cost ? c : cost;
        }
        return cost;
    case K3I_G_STRING:
        return node->u.text.min < K3I_COST_MAX ? node->u.text.min + 2 : K3I_NEVER;
    case K3I_G_OBJECT: /* '{' and the first-member phase */
    case K3I_G_ARRAY:
        t.phase = node->kind == K3I_G_OBJECT ? 1 : 2;
        cost = k3i_g_thread_cost(m, &t);
        if (cost == K3I_NEVER)
            return cost;
        /* ARR_AFTER counts a comma before each item: one too many, which is the bracket. */
        return node->kind == K3I_G_ARRAY && node->u.array.min > 0 ? cost : cost + 1;
    case K3I_G_CALLS: /* OPEN and the header phase */
        t.phase = 1;
        t.y = all;
        cost = k3i_g_thread_cost(m, &t);
        return cost == K3I_NEVER ? cost : cost + 1;
    case K3I_G_NUMBER:
        if (node->u.number.is_bounded) {
            k3i_decimal plus = {0}, minus = {.is_negative = true};
            uint32_t with_sign = k3i_g_decimal_is_feasible(node, &minus)
                                     ? k3i_g_decimal_cost(node, &minus)
                                     : K3I_NEVER;
            cost = k3i_g_decimal_is_feasible(node, &plus) ? k3i_g_decimal_cost(node, &plus)
                                                          : K3I_NEVER;
            return with_sign < cost && with_sign + 1 < cost ? with_sign + 1 : cost;
        }
        return 1;
    case K3I_G_LITERALS:
        t.y = all;
        return k3i_g_thread_cost(m, &t);
    case K3I_G_RAW:
    case K3I_G_ARGS:
    case K3I_G_PATTERN:
        return k3i_g_thread_cost(m, &t);
    default:
        return 0;
    }
}

static uint32_t add_cost(uint32_t a, uint32_t b)
{
    return a == K3I_NEVER || b == K3I_NEVER ? K3I_NEVER
           : a + b < K3I_COST_MAX           ? a + b
                                            : K3I_COST_MAX;
}

static uint32_t op_cost(const k3i_grammar *g, uint32_t pc)
{
    const k3i_gop *op = &g->op[pc];
    switch (op->op) {
    case K3I_OP_END:
        return 0;
    case K3I_OP_SYM:
        return add_cost(1, g->op[pc + 1].cost);
    case K3I_OP_TEXT:
        return add_cost(op->b, g->op[pc + 1].cost);
    case K3I_OP_NODE:
        return add_cost(g->node[op->a].cost, g->op[pc + 1].cost);
    case K3I_OP_JUMP:
        return g->op[op->a].cost;
    default:
        return g->op[op->a].cost < g->op[op->b].cost ? g->op[op->a].cost : g->op[op->b].cost;
    }
}

void k3i_g_find_costs(k3i_grammar *g)
{
    k3i_machine m = {.g = g};
    bool changed = true;
    for (uint32_t id = 1; id < g->n_node; id++)
        g->node[id].cost = K3I_NEVER;
    while (changed) {
        changed = false;
        for (uint32_t id = g->n_node; id-- > 1;) {
            uint32_t cost = g->node[id].kind == K3I_G_PROG ? 0 : start_cost(&m, id);
            changed = changed || cost != g->node[id].cost;
            g->node[id].cost = cost;
        }
    }
    for (changed = true; changed;) {
        changed = false;
        for (uint32_t pc = g->n_op; pc-- > 0;) {
            uint32_t cost = op_cost(g, pc);
            changed = changed || cost != g->op[pc].cost;
            g->op[pc].cost = cost;
        }
    }
}
