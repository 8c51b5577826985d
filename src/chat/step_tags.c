/* step_tags.c: threads inside the call and argument tags of a tool call. */
#include "automaton_internal.h"

#include <string.h>

enum { MAX_INDEX_DIGITS = 3 }; /* of a call's index attribute */

/* Closing word of a tag: OPEN/CLOSE came before, SEP follows. */
static bool step_word(k3i_machine *m, const k3i_thread *t, uint32_t sym, const char *word,
                      uint32_t next_phase, k3i_threads *out)
{
    k3i_thread next = *t;
    size_t n = strlen(word);
    if (t->n == n && sym == K3I_SYM_SEP) {
        next.phase = next_phase;
        next.n = 0;
        k3i_g_put(m, out, next);
        return true;
    }
    if (t->n < n && sym == (uint8_t)word[t->n]) {
        next.n++;
        k3i_g_put(m, out, next);
    }
    return false;
}

static void argument_body(k3i_machine *m, const k3i_thread *t, uint32_t prop, uint32_t body,
                          k3i_threads *out)
{
    uint64_t seen = k3i_g_with_seen(m, k3i_g_node_of(m, t), t->x, prop);
    k3i_g_call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = ARG_VALUE, .x = seen}, body,
               out);
}

void k3i_g_step_args(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .x = t->x};
    switch (t->phase & 0xFF) {
    case ARG_IDLE:
        if (sym != K3I_SYM_OPEN)
            return;
        next.phase = ARG_HEADER;
        next.y = k3i_g_all_keys(node);
        if (k3i_g_any_usable(m, node, t->x, next.y))
            k3i_g_put(m, out, next);
        next.phase = ARG_FREE;
        next.y = 0;
        if (k3i_g_has_free(m, node))
            k3i_g_put(m, out, next);
        return;
    case ARG_HEADER:
        if (sym == K3I_SYM_SEP && k3i_g_is_complete(m->g, t->y, t->n)) {
            const k3i_glit *l = &m->g->lit[k3i_g_lo(t->y)];
            if (k3i_g_is_usable(m, node, t->x, l))
                argument_body(m, t, l->prop, l->node, out);
            return;
        }
        next = *t;
        next.y = sym < 256 ? k3i_g_narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (k3i_g_any_usable(m, node, t->x, next.y))
            k3i_g_put(m, out, next);
        return;
    case ARG_FREE:
        if (sym != (uint8_t)K3I_ARGUMENT_KEY[t->n])
            return;
        next = *t;
        if (++next.n == sizeof K3I_ARGUMENT_KEY - 1) {
            next.phase = ARG_FREE_KEY;
            next.y = k3i_g_all_keys(node);
        }
        k3i_g_put(m, out, next);
        return;
    case ARG_FREE_KEY:
        next.phase = ARG_FREE_TYPE;
        next.y = k3i_g_free_types(node);
        if (sym < 256 && k3i_g_free_key_byte(m, t, sym, true, out))
            k3i_g_put(m, out, next);
        return;
    case ARG_FREE_TYPE:
        if (sym == K3I_SYM_SEP && k3i_g_is_complete(m->g, t->y, t->n)) {
            argument_body(m, t, K3I_FREE_PROP, m->g->lit[k3i_g_lo(t->y)].node, out);
            return;
        } /* a body that cannot end starts no thread; its siblings of the range go on */
        next = *t;
        next.y = sym < 256 ? k3i_g_narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (!k3i_g_is_empty(next.y))
            k3i_g_put(m, out, next);
        return;
    case ARG_VALUE:
        next.phase = ARG_CLOSE;
        if (sym == K3I_SYM_CLOSE)
            k3i_g_put(m, out, next);
        return;
    default: /* ARG_CLOSE */
        step_word(m, t, sym, K3I_ARGUMENT_WORD, ARG_IDLE, out);
    }
}

static uint64_t all_calls(const k3i_gnode *node)
{
    return k3i_g_range(node->u.calls.first, node->u.calls.first + node->u.calls.n);
}

void k3i_g_step_calls(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = *t;
    switch (t->phase) {
    case CALL_IDLE: /* x: a call is complete */
        next.phase = CALL_HEADER;
        next.y = all_calls(node);
        if (sym == K3I_SYM_OPEN && (t->x == 0 || !node->u.calls.is_single))
            k3i_g_put(m, out, next);
        return;
    case CALL_HEADER:
        next.y = sym < 256 ? k3i_g_narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (k3i_g_is_empty(next.y))
            return;
        if (k3i_g_is_complete(m->g, next.y, next.n)) {
            next.phase = CALL_INDEX;
            next.y = k3i_g_lo(next.y);
            next.n = 0;
        }
        k3i_g_put(m, out, next);
        return;
    case CALL_INDEX:
    case CALL_DIGITS:
        if (sym == '"' && t->phase == CALL_DIGITS) {
            next.phase = CALL_SEP;
            next.n = 0;
        } else if (sym >= (t->phase == CALL_INDEX ? '1' : '0') && sym <= '9' &&
                   t->n < MAX_INDEX_DIGITS) {
            next.phase = CALL_DIGITS;
            next.n++;
        } else {
            return;
        }
        k3i_g_put(m, out, next);
        return;
    case CALL_SEP:
        if (sym == K3I_SYM_SEP)
            k3i_g_call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = CALL_BODY, .x = 1},
                       m->g->lit[t->y].node, out);
        return;
    case CALL_BODY:
        next.phase = CALL_CLOSE;
        if (sym == K3I_SYM_CLOSE)
            k3i_g_put(m, out, next);
        return;
    default: /* CALL_CLOSE */
        step_word(m, t, sym, K3I_CALL_WORD, CALL_IDLE, out);
    }
}
