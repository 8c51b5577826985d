/* automaton.c: threads that walk the grammar, one symbol at a time.
 *
 * A thread consumes a symbol and moves on, or finishes its construct: then the thread kept in the
 * frame above goes on. Some constructs (numbers, raw text, literals, repeated tags) do not say
 * themselves where they end; such a thread both stays and, for the same symbol, lets the outer
 * thread have a try.
 *
 * Two properties hold everywhere and are what the mask relies on: every thread can still reach the
 * end, and k3i_g_thread_cost is the number of symbols that the shortest way there takes, so some
 * symbol always lowers it. (Two exceptions of at most a few symbols, both on the safe side, are
 * noted below.) */
#include "automaton_internal.h"

#include <string.h>

/* ---- thread lists --------------------------------------------------------------------------- */

void k3i_g_put(k3i_machine *m, k3i_threads *list, k3i_thread t)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 256 : 2 * list->cap;
        k3i_thread *p = k3i_realloc(list->t, cap * sizeof *p);
        if (p == NULL) {
            m->is_out_of_memory = true;
            return;
        }
        list->t = p;
        list->cap = cap;
    }
    list->t[list->n++] = t;
}

/* Drops what is equal to an earlier thread or beyond the limit, in [from, n). */
static void make_set(k3i_threads *list, size_t from)
{
    size_t kept = from;
    for (size_t i = from; i < list->n && kept - from < K3I_MAX_THREADS; i++) {
        size_t k = from;
        while (k < kept && memcmp(&list->t[k], &list->t[i], sizeof(k3i_thread)) != 0)
            k++;
        if (k == kept)
            list->t[kept++] = list->t[i];
    }
    list->n = kept;
}

/* Keeps `t`, as it will go on after an inner construct. Returns its `up`, 0 when memory is out. */
static uint32_t push_frame(k3i_machine *m, k3i_thread t)
{
    if (m->n_frame == m->cap_frame) {
        size_t cap = m->cap_frame == 0 ? 256 : 2 * m->cap_frame;
        k3i_frame *p = cap < UINT32_MAX ? k3i_realloc(m->frame, cap * sizeof *p) : NULL;
        if (p == NULL) {
            m->is_out_of_memory = true;
            return 0;
        }
        m->frame = p;
        m->cap_frame = cap;
    }
    m->frame[m->n_frame] = (k3i_frame){.thread = t, .cost = k3i_g_thread_cost(m, &t)};
    return (uint32_t)++m->n_frame;
}

/* ---- entering and finishing ----------------------------------------------------------------- */

/* Starts a construct that is no PROG. */
static void enter(k3i_machine *m, uint32_t id, uint32_t up, k3i_threads *out)
{
    const k3i_gnode *node = &m->g->node[id];
    uint32_t n = node->kind == K3I_G_ALT ? node->u.alt.n : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t child = node->kind == K3I_G_ALT ? m->g->child[node->u.alt.first + i] : id;
        const k3i_gnode *c = &m->g->node[child];
        k3i_thread t = {.node = child, .up = up};
        if (c->kind == K3I_G_LITERALS)
            t.y = k3i_g_all_keys(c);
        if (c->cost < K3I_NEVER)
            k3i_g_put(m, out, t);
    }
}

/* Goes on in the program at `pc`: follows splits and jumps, starts nodes. */
static void go(k3i_machine *m, uint32_t node, uint32_t up, uint32_t pc, k3i_threads *out)
{
    uint32_t todo[16], n_todo = 0;
    todo[n_todo++] = pc;
    while (n_todo > 0) {
        pc = todo[--n_todo];
        const k3i_gop *op = &m->g->op[pc];
        switch (op->op) {
        case K3I_OP_SPLIT:
            todo[n_todo++] = op->b;
            todo[n_todo++] = op->a;
            break;
        case K3I_OP_JUMP:
            todo[n_todo++] = op->a;
            break;
        case K3I_OP_NODE: {
            uint32_t frame = push_frame(m, (k3i_thread){.node = node, .up = up, .phase = pc + 1});
            if (frame != 0)
                enter(m, op->a, frame, out);
            break;
        }
        default:
            k3i_g_put(m, out, (k3i_thread){.node = node, .up = up, .phase = pc});
        }
    }
}

/* The construct below frame `up` is complete: the outer thread goes on. */
void k3i_g_finish(k3i_machine *m, uint32_t up, k3i_threads *out)
{
    k3i_thread t = m->frame[up - 1].thread;
    if (m->g->node[t.node].kind == K3I_G_PROG)
        go(m, t.node, t.up, t.phase, out);
    else
        k3i_g_put(m, out, t);
}

/* Keeps `t` and starts `inner`. */
void k3i_g_call(k3i_machine *m, k3i_thread t, uint32_t inner, k3i_threads *out)
{
    uint32_t frame = push_frame(m, t);
    if (frame != 0)
        enter(m, inner, frame, out);
}

void k3i_g_start(k3i_machine *m, k3i_threads *out)
{
    size_t from = out->n;
    go(m, m->g->root, 0, 0, out);
    make_set(out, from);
}

/* ---- one symbol, by kind -------------------------------------------------------------------- */

static void step_prog(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gop *op = &m->g->op[t->phase];
    if (op->op == K3I_OP_SYM && op->a == sym) {
        go(m, t->node, t->up, t->phase + 1, out);
    } else if (op->op == K3I_OP_TEXT && sym == (uint8_t)m->g->pool.data[op->a + t->n]) {
        k3i_thread next = *t;
        if (++next.n < op->b)
            k3i_g_put(m, out, next);
        else
            go(m, t->node, t->up, t->phase + 1, out);
    }
}

/* May the thread's construct end where it stands? */
static bool can_finish(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_decimal d;
    switch (node->kind) {
    case K3I_G_FREE:
        return true;
    case K3I_G_RAW:
        return t->x == 0 && t->n >= node->u.text.min;
    case K3I_G_LITERALS:
        return k3i_g_is_complete(m->g, t->y, t->n);
    case K3I_G_NUMBER:
        if (!node->u.number.is_bounded)
            return t->phase == NUM_ZERO || t->phase == NUM_INT || t->phase == NUM_FRAC ||
                   t->phase == NUM_EXP;
        d = k3i_g_decimal_of(t);
        return k3i_g_decimal_is_in_range(node, &d);
    case K3I_G_PATTERN:
        return k3i_g_pattern_can_finish(m, t);
    case K3I_G_ARGS:
        return t->phase == ARG_IDLE && k3i_g_has_required(m, node, t->x);
    case K3I_G_CALLS:
        return t->phase == CALL_IDLE && t->x != 0;
    default:
        return false;
    }
}

static void consume(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    k3i_thread next = *t;
    const k3i_gnode *node = k3i_g_node_of(m, t);
    if (node->kind == K3I_G_PROG)
        step_prog(m, t, sym, out);
    else if (node->kind == K3I_G_ARGS)
        k3i_g_step_args(m, t, sym, out);
    else if (node->kind == K3I_G_CALLS)
        k3i_g_step_calls(m, t, sym, out);
    else if (sym >= 256)
        return;
    else if (node->kind == K3I_G_FREE)
        k3i_g_put(m, out, next);
    else if (node->kind == K3I_G_RAW && k3i_g_text_byte(node, &next, sym))
        k3i_g_put(m, out, next);
    else if (node->kind == K3I_G_PATTERN)
        k3i_g_step_pattern(m, t, sym, out);
    else if (node->kind == K3I_G_STRING)
        k3i_g_step_string(m, t, sym, out);
    else if (node->kind == K3I_G_LITERALS)
        k3i_g_step_literals(m, t, sym, out);
    else if (node->kind == K3I_G_NUMBER && node->u.number.is_bounded)
        k3i_g_step_bounded(m, t, sym, out);
    else if (node->kind == K3I_G_NUMBER)
        k3i_g_step_number(m, t, sym, out);
    else if (node->kind == K3I_G_OBJECT)
        k3i_g_step_object(m, t, sym, out);
    else if (node->kind == K3I_G_ARRAY)
        k3i_g_step_array(m, t, sym, out);
}

void k3i_g_step(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out, size_t from)
{
    k3i_thread at = *t; /* `t` may lie in `out`, which can move */
    m->eps.n = 0;
    for (;;) {
        consume(m, &at, sym, out);
        if (at.up != 0 && can_finish(m, &at))
            k3i_g_finish(m, at.up, &m->eps);
        if (m->eps.n == 0)
            break;
        at = m->eps.t[--m->eps.n];
    }
    if (out->n > from + 1)
        make_set(out, from);
}

bool k3i_g_thread_is_end(const k3i_machine *m, const k3i_thread *t)
{
    return t->node == m->g->root && m->g->op[t->phase].op == K3I_OP_END;
}

int k3i_g_thread_text(const k3i_machine *m, const k3i_thread *t, uint32_t *ret_left,
                      uint32_t *ret_missing)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    *ret_left = K3I_NO_MAX;
    *ret_missing = 0;
    switch (node->kind) {
    case K3I_G_FREE:
        return K3I_TEXT_FREE;
    case K3I_G_PATTERN:
        return k3i_g_pattern_text(m, t);
    case K3I_G_RAW:
    case K3I_G_STRING:
        if (t->x != 0 || (node->kind == K3I_G_STRING && t->phase != STR_BODY))
            return K3I_TEXT_NONE;
        if (node->u.text.max != K3I_NO_MAX)
            *ret_left = node->u.text.max - t->n;
        if (node->u.text.min > t->n)
            *ret_missing = node->u.text.min - t->n;
        return node->kind == K3I_G_RAW ? K3I_TEXT_RAW : K3I_TEXT_JSON;
    case K3I_G_OBJECT:
        return t->phase == OBJ_FREE_KEY ? K3I_TEXT_JSON : K3I_TEXT_NONE;
    case K3I_G_ARGS:
        return t->phase == ARG_FREE_KEY ? K3I_TEXT_ATTRIBUTE : K3I_TEXT_NONE;
    default:
        return K3I_TEXT_NONE;
    }
}
