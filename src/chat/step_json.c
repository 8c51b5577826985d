/* step_json.c: threads inside JSON: strings, literals, numbers, objects, arrays. */
#include "automaton_internal.h"

#include <string.h>

/* Digits of an unbounded number, each of integer part and fraction; exponent digits. */
enum { MAX_DIGITS = 40, MAX_EXP_DIGITS = 2 };

void k3i_g_step_string(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = *t;
    bool is_hex = (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
    switch (t->phase) {
    case STR_OPEN:
        if (b != '"')
            return;
        next.phase = STR_BODY;
        break;
    case STR_BODY:
        if (t->x == 0 && b == '"') {
            if (t->n >= node->u.text.min)
                k3i_g_finish(m, t->up, out);
            return;
        }
        if (b < 0x20 || (b == '\\' && t->x != 0) || !k3i_g_text_byte(node, &next, b))
            return;
        if (b == '\\')
            next.phase = STR_ESCAPE;
        break;
    case STR_ESCAPE:
        if (b == 0 || strchr("\"\\/bfnrtu", (int)b) == NULL)
            return;
        next.phase = b == 'u' ? STR_U0 : STR_BODY;
        break;
    case STR_U0: /* surrogates are left out: D800..DFFF */
        if (!is_hex)
            return;
        next.phase = b == 'd' || b == 'D' ? STR_U1_D : STR_U1;
        break;
    case STR_U1_D:
        if (b < '0' || b > '7')
            return;
        next.phase = STR_U2;
        break;
    default:
        if (!is_hex)
            return;
        next.phase = t->phase == STR_U3 ? STR_BODY : t->phase + 1;
    }
    k3i_g_put(m, out, next);
}

void k3i_g_step_literals(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    k3i_thread next = *t;
    next.y = k3i_g_narrow(m->g, t->y, t->n, b);
    next.n++;
    if (!k3i_g_is_empty(next.y))
        k3i_g_put(m, out, next);
}

k3i_decimal k3i_g_decimal_of(const k3i_thread *t)
{
    return (k3i_decimal){.is_negative = t->n >> 31,
                         .is_zero_led = t->n >> 30 & 1,
                         .has_point = t->n >> 29 & 1,
                         .n_int = t->n & 0xFF,
                         .n_frac = t->n >> 8 & 0xFF,
                         .digits_low = t->x,
                         .digits_high = t->y};
}

void k3i_g_step_bounded(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_decimal d = k3i_g_decimal_of(t);
    if (b == '-' && t->n == 0)
        d.is_negative = true;
    else if (b == '.' && d.n_int > 0 && !d.has_point && node->u.number.n_frac > 0)
        d.has_point = true;
    else if (b >= '0' && b <= '9' && !(d.is_zero_led && !d.has_point))
        k3i_g_decimal_push(&d, b - '0');
    else
        return;
    if (!k3i_g_decimal_is_feasible(node, &d))
        return;
    k3i_thread next = *t;
    next.n = (uint32_t)d.is_negative << 31 | (uint32_t)d.is_zero_led << 30 |
             (uint32_t)d.has_point << 29 | d.n_frac << 8 | d.n_int;
    next.x = d.digits_low;
    next.y = d.digits_high;
    k3i_g_put(m, out, next);
}

void k3i_g_step_number(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    bool is_digit = b >= '0' && b <= '9', is_e = b == 'e' || b == 'E',
         is_integer = node->u.number.is_integer;
    k3i_thread next = *t;
    next.n = 1;
    switch (t->phase) {
    case NUM_START:
    case NUM_MINUS:
        if (b == '-' && t->phase == NUM_START) {
            next.phase = NUM_MINUS;
            next.n = 0;
        } else if (is_digit) {
            next.phase = b == '0' ? NUM_ZERO : NUM_INT;
        } else {
            return;
        }
        break;
    case NUM_ZERO:
    case NUM_INT:
        if (is_digit && t->phase == NUM_INT && t->n < MAX_DIGITS)
            next.n = t->n + 1;
        else if (b == '.' && !is_integer)
            next.phase = NUM_POINT;
        else if (is_e && !is_integer)
            next.phase = NUM_E;
        else
            return;
        break;
    case NUM_POINT:
    case NUM_FRAC:
        if (is_digit && (t->phase == NUM_POINT || t->n < MAX_DIGITS))
            next.n = t->phase == NUM_POINT ? 1 : t->n + 1;
        else if (!is_e || t->phase == NUM_POINT)
            return;
        next.phase = is_digit ? NUM_FRAC : NUM_E;
        break;
    default:
        if (t->phase == NUM_E && (b == '+' || b == '-'))
            next.phase = NUM_E_SIGN;
        else if (is_digit && (t->phase != NUM_EXP || t->n < MAX_EXP_DIGITS))
            next.phase = NUM_EXP;
        else
            return;
        if (t->phase == NUM_EXP)
            next.n = t->n + 1;
    }
    k3i_g_put(m, out, next);
}

/* After the quote of a key: declared ones that are not seen, and free ones. */
static void open_key(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = *t;
    next.y = k3i_g_all_keys(node);
    next.n = 1; /* the literals begin with the quote */
    next.phase = OBJ_KEY;
    if (k3i_g_any_usable(m, node, t->x, next.y))
        k3i_g_put(m, out, next);
    next.phase = OBJ_FREE_KEY;
    if (k3i_g_has_free(m, node))
        k3i_g_put(m, out, next);
}

/* The node of the value of member t->y (OBJ_COLON, OBJ_SPACE). */
uint32_t k3i_g_member_node(const k3i_machine *m, const k3i_thread *t)
{
    return t->y == K3I_FREE_PROP ? k3i_g_node_of(m, t)->u.keys.rest : m->g->lit[t->y].node;
}

static void object_value(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    uint32_t inner = k3i_g_member_node(m, t),
             prop = t->y == K3I_FREE_PROP ? K3I_FREE_PROP : m->g->lit[t->y].prop;
    uint64_t seen = k3i_g_with_seen(m, k3i_g_node_of(m, t), t->x, prop);
    k3i_g_call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = OBJ_AFTER, .x = seen}, inner,
               out);
}

void k3i_g_step_object(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .x = t->x};
    switch (t->phase & 0xFF) {
    case OBJ_OPEN:
        next.phase = OBJ_FIRST;
        if (b == '{')
            k3i_g_put(m, out, next);
        return;
    case OBJ_FIRST:
    case OBJ_AFTER:
        if (b == '}' && k3i_g_has_required(m, node, t->x))
            k3i_g_finish(m, t->up, out);
        else if (b == '"' && t->phase == OBJ_FIRST)
            open_key(m, &next, out);
        else if (b == ',' && t->phase == OBJ_AFTER && k3i_g_can_continue(m, node, t->x)) {
            next.phase = OBJ_COMMA;
            k3i_g_put(m, out, next);
        }
        return;
    case OBJ_COMMA:
    case OBJ_COMMA_SPACE:
        next.phase = OBJ_COMMA_SPACE;
        if (b == '"')
            open_key(m, &next, out);
        else if (b == ' ' && t->phase == OBJ_COMMA && node->is_loose)
            k3i_g_put(m, out, next);
        return;
    case OBJ_KEY:
        next.y = k3i_g_narrow(m->g, t->y, t->n, b);
        next.n = t->n + 1;
        next.phase = OBJ_KEY;
        if (!k3i_g_any_usable(m, node, t->x, next.y))
            return;
        if (k3i_g_is_complete(m->g, next.y, next.n)) {
            next = (k3i_thread){
                .node = t->node, .up = t->up, .phase = OBJ_COLON, .x = t->x, .y = k3i_g_lo(next.y)};
        }
        k3i_g_put(m, out, next);
        return;
    case OBJ_FREE_KEY:
        next.phase = OBJ_COLON;
        next.y = K3I_FREE_PROP;
        if (k3i_g_free_key_byte(m, t, b, false, out))
            k3i_g_put(m, out, next);
        return;
    case OBJ_COLON:
        if (b != ':')
            return;
        object_value(m, t, out);
        next.phase = OBJ_SPACE;
        next.y = t->y;
        if (node->is_loose)
            k3i_g_put(m, out, next);
        return;
    default: /* OBJ_SPACE */
        if (b == ' ')
            object_value(m, t, out);
    }
}

static void array_item(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .phase = ARR_AFTER, .n = t->n + 1};
    if (node->u.array.max == K3I_NO_MAX && next.n > node->u.array.min)
        next.n = node->u.array.min;
    k3i_g_call(m, next, node->u.array.item, out);
}

void k3i_g_step_array(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = k3i_g_node_of(m, t);
    bool may_add = t->n < node->u.array.max && m->g->node[node->u.array.item].cost < K3I_NEVER;
    k3i_thread next = *t;
    switch (t->phase) {
    case ARR_OPEN:
        next.phase = ARR_EMPTY;
        if (b == '[' && node->u.array.min == 0)
            k3i_g_put(m, out, next);
        if (b == '[' && may_add)
            array_item(m, t, out);
        return;
    case ARR_EMPTY:
        if (b == ']')
            k3i_g_finish(m, t->up, out);
        return;
    case ARR_AFTER:
        if (b == ']' && t->n >= node->u.array.min)
            k3i_g_finish(m, t->up, out);
        if (b != ',' || !may_add)
            return;
        array_item(m, t, out);
        next.phase = ARR_SPACE;
        if (node->is_loose)
            k3i_g_put(m, out, next);
        return;
    default:
        if (b == ' ')
            array_item(m, t, out);
    }
}
