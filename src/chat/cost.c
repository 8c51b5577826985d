/* cost.c: how many symbols a thread needs to the end of the answer, at least. The mask near the end
 * of the token budget allows only what keeps this within the budget, so it must fall by some symbol
 * at every place. Each formula follows the phases of its step function. A free key counts one
 * character that it may not need. */
#include "automaton_internal.h"

#include <string.h>

static uint32_t cost_above(const k3i_machine *m, uint32_t up)
{
    return up == 0 ? 0 : m->frame[up - 1].cost;
}

static uint32_t add(uint32_t a, uint32_t b)
{
    return a == K3I_NEVER || b == K3I_NEVER ? K3I_NEVER
           : a + b < K3I_COST_MAX           ? a + b
                                            : K3I_COST_MAX;
}

static uint32_t node_cost(const k3i_machine *m, uint32_t id)
{
    return m->g->node[id].cost;
}

/* Symbols of an object's member (key, colon, value) or of an argument tag. */
static uint32_t member_cost(const k3i_machine *m, const k3i_gnode *node, const k3i_glit *l)
{
    uint32_t tags = node->kind == K3I_G_OBJECT ? 1 : 4 + (uint32_t)sizeof K3I_ARGUMENT_WORD - 1;
    return add(l->n + tags, node_cost(m, l->node));
}

/* Symbols of an undeclared member of an object: a quoted key of one character, which is more than
 * needed where the empty key is not declared, a colon, the value. */
static uint32_t free_cost(const k3i_machine *m, const k3i_gnode *node)
{
    return node->u.keys.rest == 0 ? K3I_NEVER : add(4, node_cost(m, node->u.keys.rest));
}

/* The rest of an undeclared argument's type attribute, of which n bytes are there, SEP and the
 * body. */
static uint32_t free_type_cost(const k3i_machine *m, uint64_t types, uint32_t n)
{
    uint32_t best = K3I_NEVER;
    for (uint32_t i = k3i_g_lo(types); i < k3i_g_hi(types); i++) {
        uint32_t cost = add(m->g->lit[i].n - n + 1, node_cost(m, m->g->lit[i].node));
        best = cost < best ? cost : best;
    }
    return best;
}

/* All required members that are not seen and are not `but`, each with a separator of `comma`
 * symbols. An argument has one header per type, neighbours in the sorted list: the cheapest counts.
 */
static uint32_t required_cost(const k3i_machine *m, const k3i_gnode *node, uint64_t seen,
                              uint32_t but, uint32_t comma)
{
    uint32_t sum = 0, end = node->u.keys.first + node->u.keys.n;
    for (uint32_t i = node->u.keys.first, k; i < end; i = k) {
        const k3i_glit *l = &m->g->lit[i];
        uint32_t best = K3I_NEVER;
        for (k = i; k < end && m->g->lit[k].prop == l->prop; k++) {
            uint32_t cost = member_cost(m, node, &m->g->lit[k]);
            best = cost < best ? cost : best;
        }
        if (l->is_required && l->prop != but && !k3i_g_is_seen(m, node, seen, l->prop))
            sum = add(sum, add(best, comma));
    }
    return sum;
}

/* What is left of a member of which `matched` symbols are there. */
static uint32_t rest_of(const k3i_machine *m, const k3i_gnode *node, const k3i_glit *l,
                        uint32_t matched)
{
    uint32_t cost = member_cost(m, node, l);
    return cost == K3I_NEVER ? K3I_NEVER : cost - matched;
}

static uint32_t object_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    uint32_t required = required_cost(m, node, t->x, K3I_FREE_PROP, 1), best = K3I_NEVER, prop;
    switch (t->phase & 0xFF) {
    case OBJ_OPEN:
        return node->cost;
    case OBJ_FIRST:
        return required == 0 ? 1 : required; /* one comma less, one brace more */
    case OBJ_AFTER:
        return add(required, 1);
    case OBJ_COMMA:
    case OBJ_COMMA_SPACE:
        if (required != 0)
            return required;
        for (uint32_t i = k3i_g_lo(k3i_g_all_keys(node)); i < k3i_g_hi(k3i_g_all_keys(node)); i++) {
            uint32_t cost = k3i_g_is_usable(m, node, t->x, &m->g->lit[i])
                                ? member_cost(m, node, &m->g->lit[i])
                                : K3I_NEVER;
            best = cost < best ? cost : best;
        }
        prop = free_cost(m, node);
        return add(prop < best ? prop : best, 1);
    case OBJ_KEY:
        for (uint32_t i = k3i_g_lo(t->y); i < k3i_g_hi(t->y); i++) {
            const k3i_glit *l = &m->g->lit[i];
            if (!k3i_g_is_usable(m, node, t->x, l))
                continue;
            uint32_t cost =
                add(rest_of(m, node, l, t->n), required_cost(m, node, t->x, l->prop, 1));
            best = cost < best ? cost : best;
        }
        return add(best, 1);
    case OBJ_FREE_KEY: /* one more character, in case the key so far is a declared one */
        best = add(node_cost(m, node->u.keys.rest),
                   k3i_g_utf8_missing(t->phase >> 8) + (k3i_g_is_empty(t->y) ? 2 : 3));
        return add(best, add(required, 1));
    default: /* OBJ_COLON, OBJ_SPACE */
        prop = t->y == K3I_FREE_PROP ? K3I_FREE_PROP : m->g->lit[t->y].prop;
        best = add(node_cost(m, k3i_g_member_node(m, t)), 1);
        return add(best, add(required_cost(m, node, t->x, prop, 1), 1));
    }
}

static uint32_t array_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    uint32_t item = add(node_cost(m, node->u.array.item), 1),
             missing = node->u.array.min > t->n ? node->u.array.min - t->n : 0;
    uint64_t all = item == K3I_NEVER && missing > 0 ? K3I_NEVER : (uint64_t)missing * item;
    uint32_t items = all < K3I_COST_MAX ? (uint32_t)all
                     : all == K3I_NEVER ? K3I_NEVER
                                        : K3I_COST_MAX;
    switch (t->phase) {
    case ARR_OPEN:
        return node->cost;
    case ARR_EMPTY:
        return 1;
    case ARR_AFTER:
        return add(items, 1);
    default: /* ARR_SPACE: an item must come; a space and no comma before the first */
        return missing > 0 ? add(items, 1) : add(item, 1);
    }
}

static uint32_t args_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    const uint32_t close = 2 + (uint32_t)sizeof K3I_ARGUMENT_WORD - 1; /* CLOSE argument SEP */
    uint32_t best = K3I_NEVER;
    switch (t->phase & 0xFF) {
    case ARG_HEADER:
        for (uint32_t i = k3i_g_lo(t->y); i < k3i_g_hi(t->y); i++) {
            const k3i_glit *l = &m->g->lit[i];
            if (!k3i_g_is_usable(m, node, t->x, l))
                continue;
            uint32_t cost =
                add(rest_of(m, node, l, t->n + 1), required_cost(m, node, t->x, l->prop, 0));
            best = cost < best ? cost : best;
        }
        return best;
    case ARG_FREE: /* the rest of the opener, a character, the quote */
        best = add(free_type_cost(m, k3i_g_free_types(node), 0),
                   (uint32_t)(sizeof K3I_ARGUMENT_KEY - 1) - t->n + 2);
        break;
    case ARG_FREE_KEY: /* a character more in case the key so far is declared */
        best = add(free_type_cost(m, k3i_g_free_types(node), 0),
                   k3i_g_utf8_missing(t->phase >> 8) + (k3i_g_is_empty(t->y) ? 1 : 2));
        break;
    case ARG_FREE_TYPE:
        best = free_type_cost(m, t->y, t->n);
        break;
    case ARG_VALUE:
        best = 0;
        break;
    case ARG_CLOSE:
        return add((uint32_t)sizeof K3I_ARGUMENT_WORD - t->n,
                   required_cost(m, node, t->x, K3I_FREE_PROP, 0));
    default: /* ARG_IDLE */
        return required_cost(m, node, t->x, K3I_FREE_PROP, 0);
    }
    return add(add(best, close), required_cost(m, node, t->x, K3I_FREE_PROP, 0));
}

static uint32_t calls_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    const uint32_t close = 2 + (uint32_t)sizeof K3I_CALL_WORD - 1; /* CLOSE call SEP */
    uint32_t best = K3I_NEVER;
    switch (t->phase) {
    case CALL_IDLE:
        return t->x != 0 ? 0 : node->cost;
    case CALL_HEADER: /* the rest of the header, a digit, the quote, SEP, the arguments */
        for (uint32_t i = k3i_g_lo(t->y); i < k3i_g_hi(t->y); i++) {
            uint32_t cost = add(m->g->lit[i].n - t->n + 3, node_cost(m, m->g->lit[i].node));
            best = cost < best ? cost : best;
        }
        return add(best, close);
    case CALL_INDEX:
    case CALL_DIGITS:
    case CALL_SEP:
        best = t->phase == CALL_INDEX ? 3 : t->phase == CALL_DIGITS ? 2 : 1;
        return add(best + close, node_cost(m, m->g->lit[t->y].node));
    case CALL_BODY:
        return close;
    default:
        return (uint32_t)sizeof K3I_CALL_WORD - t->n;
    }
}

static uint32_t number_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    if (!node->u.number.is_bounded)
        return t->phase == NUM_ZERO || t->phase == NUM_INT || t->phase == NUM_FRAC ||
                       t->phase == NUM_EXP
                   ? 0
                   : 1;
    if (t->n == 0)
        return node->cost;
    k3i_decimal d = k3i_g_decimal_of(t);
    return k3i_g_decimal_cost(node, &d);
}

static uint32_t string_cost(const k3i_machine *m, const k3i_thread *t)
{
    static const uint8_t escape[] = {[STR_BODY] = 0, [STR_ESCAPE] = 1, [STR_U0] = 4, [STR_U1_D] = 3,
                                     [STR_U1] = 3,   [STR_U2] = 2,     [STR_U3] = 1};
    const k3i_gnode *node = k3i_g_node_of(m, t);
    if (t->phase == STR_OPEN)
        return node->cost;
    uint32_t missing = node->u.text.min > t->n ? node->u.text.min - t->n : 0;
    return add(missing, k3i_g_utf8_missing(t->x) + escape[t->phase] + 1);
}

uint32_t k3i_g_thread_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    uint32_t cost = 0;
    switch (node->kind) {
    case K3I_G_PROG:
        cost = m->g->op[t->phase].cost - t->n;
        break;
    case K3I_G_RAW:
        cost = add(node->u.text.min > t->n ? node->u.text.min - t->n : 0, k3i_g_utf8_missing(t->x));
        break;
    case K3I_G_STRING:
        cost = string_cost(m, t);
        break;
    case K3I_G_PATTERN:
        cost = k3i_g_pattern_cost(m, t);
        break;
    case K3I_G_LITERALS:
        cost = K3I_NEVER;
        for (uint32_t i = k3i_g_lo(t->y); i < k3i_g_hi(t->y); i++) {
            if (m->g->lit[i].n - t->n < cost)
                cost = m->g->lit[i].n - t->n;
        }
        break;
    case K3I_G_NUMBER:
        cost = number_cost(m, t);
        break;
    case K3I_G_OBJECT:
        cost = object_cost(m, t);
        break;
    case K3I_G_ARRAY:
        cost = array_cost(m, t);
        break;
    case K3I_G_ARGS:
        cost = args_cost(m, t);
        break;
    case K3I_G_CALLS:
        cost = calls_cost(m, t);
        break;
    default:
        break;
    }
    return add(cost, cost_above(m, t->up));
}
