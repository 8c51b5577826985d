/* automaton.c: threads that walk the grammar, one symbol at a time.
 *
 * A thread consumes a symbol and moves on, or finishes its construct: then the thread kept in the
 * frame above goes on. Some constructs (numbers, raw text, literals, repeated tags) do not say
 * themselves where they end; such a thread both stays and, for the same symbol, lets the outer
 * thread have a try.
 *
 * Two properties hold everywhere and are what the mask relies on: every thread can still reach the
 * end, and k3i_thread_cost is the number of symbols that the shortest way there takes, so some
 * symbol always lowers it. (Two exceptions of at most a few symbols, both on the safe side, are
 * noted below.) */
#include "grammar_internal.h"

#include <string.h>

/* Phases. Those of OBJECT, ARGS and CALLS in the order in which they are passed. */
enum { STR_OPEN, STR_BODY, STR_ESCAPE, STR_U0, STR_U1_D, STR_U1, STR_U2, STR_U3 };
enum { NUM_START, NUM_MINUS, NUM_ZERO, NUM_INT, NUM_POINT, NUM_FRAC, NUM_E, NUM_E_SIGN, NUM_EXP };
enum {
    OBJ_OPEN,
    OBJ_FIRST,
    OBJ_KEY,
    OBJ_FREE_KEY,
    OBJ_COLON,
    OBJ_SPACE,
    OBJ_AFTER,
    OBJ_COMMA,
    OBJ_COMMA_SPACE
};
enum { ARR_OPEN, ARR_EMPTY, ARR_AFTER, ARR_SPACE };
enum { ARG_IDLE, ARG_HEADER, ARG_FREE, ARG_FREE_KEY, ARG_FREE_TYPE, ARG_VALUE, ARG_CLOSE, ARG_END };
enum { CALL_IDLE, CALL_HEADER, CALL_INDEX, CALL_DIGITS, CALL_SEP, CALL_BODY, CALL_CLOSE, CALL_END };

/* Digits of an unbounded number, each of integer part and fraction; exponent digits; digits of a
 * call's index. */
enum { MAX_DIGITS = 40, MAX_EXP_DIGITS = 2, MAX_INDEX_DIGITS = 3 };

#define FREE_PROP UINT32_MAX /* a member that is not declared */

static const char argument_key[] = "argument key=\"";
static const char argument_word[] = "argument";
static const char call_word[] = "call";

static const k3i_gnode *node_of(const k3i_machine *m, const k3i_thread *t)
{
    return &m->g->node[t->node];
}

/* ---- thread lists
 * ---------------------------------------------------------------------------------- */

static void put(k3i_machine *m, k3i_threads *list, k3i_thread t)
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

static uint32_t cost_above(const k3i_machine *m, uint32_t up)
{
    return up == 0 ? 0 : m->frame[up - 1].cost;
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
    m->frame[m->n_frame] = (k3i_frame){.thread = t, .cost = k3i_thread_cost(m, &t)};
    return (uint32_t)++m->n_frame;
}

/* ---- keys
 * ------------------------------------------------------------------------------------------ */

/* A range [lo, hi) of sorted literals that agree on the bytes matched so far, packed into a word.
 */
static uint64_t range(uint32_t lo, uint32_t hi)
{
    return (uint64_t)hi << 32 | lo;
}

static uint32_t lo_of(uint64_t r)
{
    return (uint32_t)r;
}

static uint32_t hi_of(uint64_t r)
{
    return (uint32_t)(r >> 32);
}

static uint32_t first_from(const k3i_grammar *g, uint32_t lo, uint32_t hi, uint32_t pos,
                           uint32_t byte)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const k3i_glit *l = &g->lit[mid];
        if (l->n <= pos || (uint8_t)g->pool.data[l->at + pos] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The literals of the range whose byte `pos` is `byte`. */
static uint64_t narrow(const k3i_grammar *g, uint64_t r, uint32_t pos, uint32_t byte)
{
    uint32_t lo = first_from(g, lo_of(r), hi_of(r), pos, byte);
    return range(lo, first_from(g, lo, hi_of(r), pos, byte + 1));
}

static bool is_empty(uint64_t r)
{
    return lo_of(r) >= hi_of(r);
}

/* The first literal of the range has exactly n bytes: it is complete. */
static bool is_complete(const k3i_grammar *g, uint64_t r, uint32_t n)
{
    return !is_empty(r) && g->lit[lo_of(r)].n == n;
}

/* Sets of seen properties: bits of a word, or words of the machine when there are more than 64. */
static bool is_seen(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop)
{
    if (node->u.keys.n_prop <= 64)
        return set >> prop & 1;
    return set != 0 && (m->word[set + prop / 64] >> prop % 64 & 1);
}

static uint64_t with_seen(k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop)
{
    if (prop == FREE_PROP)
        return set;
    if (node->u.keys.n_prop <= 64)
        return set | (uint64_t)1 << prop;
    size_t n = (node->u.keys.n_prop + 63) / 64, at = m->n_word == 0 ? 1 : m->n_word;
    if (at + n > m->cap_word) {
        size_t cap = 2 * m->cap_word + at + n;
        uint64_t *p = k3i_realloc(m->word, cap * sizeof *p);
        if (p == NULL) {
            m->is_out_of_memory = true;
            return set;
        }
        m->word = p;
        m->cap_word = cap;
    }
    if (set == 0)
        memset(m->word + at, 0, n * sizeof *m->word);
    else
        memmove(m->word + at, m->word + set, n * sizeof *m->word);
    m->word[at + prop / 64] |= (uint64_t)1 << prop % 64;
    m->n_word = at + n;
    return at;
}

static bool is_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, const k3i_glit *l)
{
    return m->g->node[l->node].cost < K3I_NEVER && !is_seen(m, node, set, l->prop);
}

/* Can a declared property of the range still come? */
static bool any_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint64_t r)
{
    for (uint32_t i = lo_of(r); i < hi_of(r); i++) {
        if (is_usable(m, node, set, &m->g->lit[i]))
            return true;
    }
    return false;
}

static uint64_t all_keys(const k3i_gnode *node)
{
    return range(node->u.keys.first, node->u.keys.first + node->u.keys.n);
}

/* The type attributes of undeclared arguments. */
static uint64_t free_types(const k3i_gnode *node)
{
    return range(node->u.keys.rest_first, node->u.keys.rest_first + node->u.keys.n_rest);
}

static bool has_free(const k3i_machine *m, const k3i_gnode *node)
{
    if (node->kind == K3I_G_OBJECT)
        return node->u.keys.rest != 0 && m->g->node[node->u.keys.rest].cost < K3I_NEVER;
    for (uint32_t i = lo_of(free_types(node)); i < hi_of(free_types(node)); i++) {
        if (m->g->node[m->g->lit[i].node].cost < K3I_NEVER)
            return true;
    }
    return false;
}

static bool can_continue(const k3i_machine *m, const k3i_gnode *node, uint64_t set)
{
    return has_free(m, node) || any_usable(m, node, set, all_keys(node));
}

static bool has_required(const k3i_machine *m, const k3i_gnode *node, uint64_t set)
{
    for (uint32_t i = node->u.keys.first; i < node->u.keys.first + node->u.keys.n; i++) {
        if (m->g->lit[i].is_required && !is_seen(m, node, set, m->g->lit[i].prop))
            return false;
    }
    return true;
}

/* ---- UTF-8
 * ----------------------------------------------------------------------------------------- */

/* States inside a character: 0 between characters; 1..3 that many plain continuation bytes are
 * missing; the others also bound the next byte, to exclude overlong forms, surrogates and what is
 * beyond U+10FFFF. */
enum { UTF8_E0 = 4, UTF8_ED, UTF8_F0, UTF8_F4, UTF8_BAD = 255 };

static uint32_t utf8_next(uint32_t state, uint32_t b)
{
    switch (state) {
    case 0:
        if (b < 0x80)
            return 0;
        if (b < 0xC2 || b > 0xF4)
            return UTF8_BAD;
        if (b < 0xE0)
            return 1;
        if (b < 0xF0)
            return b == 0xE0 ? UTF8_E0 : b == 0xED ? UTF8_ED : 2;
        return b == 0xF0 ? UTF8_F0 : b == 0xF4 ? UTF8_F4 : 3;
    case UTF8_E0:
        return b >= 0xA0 && b <= 0xBF ? 1 : UTF8_BAD;
    case UTF8_ED:
        return b >= 0x80 && b <= 0x9F ? 1 : UTF8_BAD;
    case UTF8_F0:
        return b >= 0x90 && b <= 0xBF ? 2 : UTF8_BAD;
    case UTF8_F4:
        return b >= 0x80 && b <= 0x8F ? 2 : UTF8_BAD;
    default:
        return b >= 0x80 && b <= 0xBF ? state - 1 : UTF8_BAD;
    }
}

static uint32_t utf8_missing(uint64_t state)
{
    static const uint8_t missing[] = {0, 1, 2, 3, 2, 2, 3, 3};
    return missing[state];
}

/* Counts characters only as far as a bound needs it, so that long text stays in one place. */
static uint32_t count_char(const k3i_gnode *node, uint32_t n)
{
    if (node->u.text.max == K3I_NO_MAX && n >= node->u.text.min)
        return n;
    return n + 1;
}

/* One byte of text with a bounded number of characters; false if it does not fit. */
static bool text_byte(const k3i_gnode *node, k3i_thread *t, uint32_t b)
{
    if (t->x == 0) {
        if (t->n >= node->u.text.max)
            return false;
        t->n = count_char(node, t->n);
    }
    t->x = utf8_next((uint32_t)t->x, b);
    return t->x != UTF8_BAD;
}

/* ---- entering and finishing
 * ------------------------------------------------------------------------ */

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
            t.y = all_keys(c);
        if (c->cost < K3I_NEVER)
            put(m, out, t);
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
            put(m, out, (k3i_thread){.node = node, .up = up, .phase = pc});
        }
    }
}

/* The construct below frame `up` is complete: the outer thread goes on. */
static void finish(k3i_machine *m, uint32_t up, k3i_threads *out)
{
    k3i_thread t = m->frame[up - 1].thread;
    if (m->g->node[t.node].kind == K3I_G_PROG)
        go(m, t.node, t.up, t.phase, out);
    else
        put(m, out, t);
}

/* Keeps `t` and starts `inner`. */
static void call(k3i_machine *m, k3i_thread t, uint32_t inner, k3i_threads *out)
{
    uint32_t frame = push_frame(m, t);
    if (frame != 0)
        enter(m, inner, frame, out);
}

void k3i_start(k3i_machine *m, k3i_threads *out)
{
    size_t from = out->n;
    go(m, m->g->root, 0, 0, out);
    make_set(out, from);
}

/* ---- one symbol, by kind
 * --------------------------------------------------------------------------- */

static void step_prog(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gop *op = &m->g->op[t->phase];
    if (op->op == K3I_OP_SYM && op->a == sym) {
        go(m, t->node, t->up, t->phase + 1, out);
    } else if (op->op == K3I_OP_TEXT && sym == (uint8_t)m->g->pool.data[op->a + t->n]) {
        k3i_thread next = *t;
        if (++next.n < op->b)
            put(m, out, next);
        else
            go(m, t->node, t->up, t->phase + 1, out);
    }
}

static void step_string(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
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
                finish(m, t->up, out);
            return;
        }
        if (b < 0x20 || (b == '\\' && t->x != 0) || !text_byte(node, &next, b))
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
    put(m, out, next);
}

static void step_literals(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    k3i_thread next = *t;
    next.y = narrow(m->g, t->y, t->n, b);
    next.n++;
    if (!is_empty(next.y))
        put(m, out, next);
}

static k3i_decimal decimal_of(const k3i_thread *t)
{
    return (k3i_decimal){.is_negative = t->n >> 31,
                         .is_zero_led = t->n >> 30 & 1,
                         .has_point = t->n >> 29 & 1,
                         .n_int = t->n & 0xFF,
                         .n_frac = t->n >> 8 & 0xFF,
                         .digits_low = t->x,
                         .digits_high = t->y};
}

static void step_bounded(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_decimal d = decimal_of(t);
    if (b == '-' && t->n == 0)
        d.is_negative = true;
    else if (b == '.' && d.n_int > 0 && !d.has_point && node->u.number.n_frac > 0)
        d.has_point = true;
    else if (b >= '0' && b <= '9' && !(d.is_zero_led && !d.has_point))
        k3i_decimal_push(&d, b - '0');
    else
        return;
    if (!k3i_decimal_is_feasible(node, &d))
        return;
    k3i_thread next = *t;
    next.n = (uint32_t)d.is_negative << 31 | (uint32_t)d.is_zero_led << 30 |
             (uint32_t)d.has_point << 29 | d.n_frac << 8 | d.n_int;
    next.x = d.digits_low;
    next.y = d.digits_high;
    put(m, out, next);
}

static void step_number(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
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
    put(m, out, next);
}

/* After the quote of a key: declared ones that are not seen, and free ones. */
static void open_key(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_thread next = *t;
    next.y = all_keys(node);
    next.n = 1; /* the literals begin with the quote */
    next.phase = OBJ_KEY;
    if (any_usable(m, node, t->x, next.y))
        put(m, out, next);
    next.phase = OBJ_FREE_KEY;
    if (has_free(m, node))
        put(m, out, next);
}

/* Byte of a free key: `pos` bytes of it may agree with the declared literals of t->y. `limit` are
 * the bytes that may not appear. At a closing quote returns true if the key is none of the declared
 * ones. Keys carry no escapes, so equal keys have equal bytes. The UTF-8 state lies in the phase,
 * above its low byte. */
static bool free_key_byte(k3i_machine *m, const k3i_thread *t, uint32_t b, bool no_ampersand,
                          k3i_threads *out)
{
    uint32_t state = t->phase >> 8;
    if (b == '"' && state == 0)
        return is_empty(narrow(m->g, t->y, t->n, b));
    state = utf8_next(state, b);
    if (b < 0x20 || b == '"' || b == '\\' || (b == '&' && no_ampersand) || state == UTF8_BAD)
        return false;
    k3i_thread next = *t;
    next.y = is_empty(t->y) ? 0 : narrow(m->g, t->y, t->n, b);
    if (is_empty(next.y))
        next.y = next.n = 0;
    else
        next.n++;
    next.phase = (t->phase & 0xFF) | state << 8;
    put(m, out, next);
    return false;
}

/* The node of the value of member t->y (OBJ_COLON, OBJ_SPACE). */
static uint32_t member_node(const k3i_machine *m, const k3i_thread *t)
{
    return t->y == FREE_PROP ? node_of(m, t)->u.keys.rest : m->g->lit[t->y].node;
}

static void object_value(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    uint32_t inner = member_node(m, t), prop = t->y == FREE_PROP ? FREE_PROP : m->g->lit[t->y].prop;
    uint64_t seen = with_seen(m, node_of(m, t), t->x, prop);
    call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = OBJ_AFTER, .x = seen}, inner, out);
}

static void step_object(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .x = t->x};
    switch (t->phase & 0xFF) {
    case OBJ_OPEN:
        next.phase = OBJ_FIRST;
        if (b == '{')
            put(m, out, next);
        return;
    case OBJ_FIRST:
    case OBJ_AFTER:
        if (b == '}' && has_required(m, node, t->x))
            finish(m, t->up, out);
        else if (b == '"' && t->phase == OBJ_FIRST)
            open_key(m, &next, out);
        else if (b == ',' && t->phase == OBJ_AFTER && can_continue(m, node, t->x)) {
            next.phase = OBJ_COMMA;
            put(m, out, next);
        }
        return;
    case OBJ_COMMA:
    case OBJ_COMMA_SPACE:
        next.phase = OBJ_COMMA_SPACE;
        if (b == '"')
            open_key(m, &next, out);
        else if (b == ' ' && t->phase == OBJ_COMMA && node->is_loose)
            put(m, out, next);
        return;
    case OBJ_KEY:
        next.y = narrow(m->g, t->y, t->n, b);
        next.n = t->n + 1;
        next.phase = OBJ_KEY;
        if (!any_usable(m, node, t->x, next.y))
            return;
        if (is_complete(m->g, next.y, next.n)) {
            next = (k3i_thread){
                .node = t->node, .up = t->up, .phase = OBJ_COLON, .x = t->x, .y = lo_of(next.y)};
        }
        put(m, out, next);
        return;
    case OBJ_FREE_KEY:
        next.phase = OBJ_COLON;
        next.y = FREE_PROP;
        if (free_key_byte(m, t, b, false, out))
            put(m, out, next);
        return;
    case OBJ_COLON:
        if (b != ':')
            return;
        object_value(m, t, out);
        next.phase = OBJ_SPACE;
        next.y = t->y;
        if (node->is_loose)
            put(m, out, next);
        return;
    default: /* OBJ_SPACE */
        if (b == ' ')
            object_value(m, t, out);
    }
}

static void array_item(k3i_machine *m, const k3i_thread *t, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .phase = ARR_AFTER, .n = t->n + 1};
    if (node->u.array.max == K3I_NO_MAX && next.n > node->u.array.min)
        next.n = node->u.array.min;
    call(m, next, node->u.array.item, out);
}

static void step_array(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    bool may_add = t->n < node->u.array.max && m->g->node[node->u.array.item].cost < K3I_NEVER;
    k3i_thread next = *t;
    switch (t->phase) {
    case ARR_OPEN:
        next.phase = ARR_EMPTY;
        if (b == '[' && node->u.array.min == 0)
            put(m, out, next);
        if (b == '[' && may_add)
            array_item(m, t, out);
        return;
    case ARR_EMPTY:
        if (b == ']')
            finish(m, t->up, out);
        return;
    case ARR_AFTER:
        if (b == ']' && t->n >= node->u.array.min)
            finish(m, t->up, out);
        if (b != ',' || !may_add)
            return;
        array_item(m, t, out);
        next.phase = ARR_SPACE;
        if (node->is_loose)
            put(m, out, next);
        return;
    default:
        if (b == ' ')
            array_item(m, t, out);
    }
}

/* Closing word of a tag: OPEN/CLOSE came before, SEP follows. */
static bool step_word(k3i_machine *m, const k3i_thread *t, uint32_t sym, const char *word,
                      uint32_t next_phase, k3i_threads *out)
{
    k3i_thread next = *t;
    size_t n = strlen(word);
    if (t->n == n && sym == K3I_SYM_SEP) {
        next.phase = next_phase;
        next.n = 0;
        put(m, out, next);
        return true;
    }
    if (t->n < n && sym == (uint8_t)word[t->n]) {
        next.n++;
        put(m, out, next);
    }
    return false;
}

static void argument_body(k3i_machine *m, const k3i_thread *t, uint32_t prop, uint32_t body,
                          k3i_threads *out)
{
    uint64_t seen = with_seen(m, node_of(m, t), t->x, prop);
    call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = ARG_VALUE, .x = seen}, body, out);
}

static void step_args(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_thread next = {.node = t->node, .up = t->up, .x = t->x};
    switch (t->phase & 0xFF) {
    case ARG_IDLE:
        if (sym != K3I_SYM_OPEN)
            return;
        next.phase = ARG_HEADER;
        next.y = all_keys(node);
        if (any_usable(m, node, t->x, next.y))
            put(m, out, next);
        next.phase = ARG_FREE;
        next.y = 0;
        if (has_free(m, node))
            put(m, out, next);
        return;
    case ARG_HEADER:
        if (sym == K3I_SYM_SEP && is_complete(m->g, t->y, t->n)) {
            const k3i_glit *l = &m->g->lit[lo_of(t->y)];
            if (is_usable(m, node, t->x, l))
                argument_body(m, t, l->prop, l->node, out);
            return;
        }
        next = *t;
        next.y = sym < 256 ? narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (any_usable(m, node, t->x, next.y))
            put(m, out, next);
        return;
    case ARG_FREE:
        if (sym != (uint8_t)argument_key[t->n])
            return;
        next = *t;
        if (++next.n == sizeof argument_key - 1) {
            next.phase = ARG_FREE_KEY;
            next.y = all_keys(node);
        }
        put(m, out, next);
        return;
    case ARG_FREE_KEY:
        next.phase = ARG_FREE_TYPE;
        next.y = free_types(node);
        if (sym < 256 && free_key_byte(m, t, sym, true, out))
            put(m, out, next);
        return;
    case ARG_FREE_TYPE:
        if (sym == K3I_SYM_SEP && is_complete(m->g, t->y, t->n)) {
            argument_body(m, t, FREE_PROP, m->g->lit[lo_of(t->y)].node, out);
            return;
        } /* a body that cannot end starts no thread; its siblings of the range go on */
        next = *t;
        next.y = sym < 256 ? narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (!is_empty(next.y))
            put(m, out, next);
        return;
    case ARG_VALUE:
        next.phase = ARG_CLOSE;
        if (sym == K3I_SYM_CLOSE)
            put(m, out, next);
        return;
    default: /* ARG_CLOSE */
        step_word(m, t, sym, argument_word, ARG_IDLE, out);
    }
}

static uint64_t all_calls(const k3i_gnode *node)
{
    return range(node->u.calls.first, node->u.calls.first + node->u.calls.n);
}

static void step_calls(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_thread next = *t;
    switch (t->phase) {
    case CALL_IDLE: /* x: a call is complete */
        next.phase = CALL_HEADER;
        next.y = all_calls(node);
        if (sym == K3I_SYM_OPEN && (t->x == 0 || !node->u.calls.is_single))
            put(m, out, next);
        return;
    case CALL_HEADER:
        next.y = sym < 256 ? narrow(m->g, t->y, t->n, sym) : 0;
        next.n++;
        if (is_empty(next.y))
            return;
        if (is_complete(m->g, next.y, next.n)) {
            next.phase = CALL_INDEX;
            next.y = lo_of(next.y);
            next.n = 0;
        }
        put(m, out, next);
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
        put(m, out, next);
        return;
    case CALL_SEP:
        if (sym == K3I_SYM_SEP)
            call(m, (k3i_thread){.node = t->node, .up = t->up, .phase = CALL_BODY, .x = 1},
                 m->g->lit[t->y].node, out);
        return;
    case CALL_BODY:
        next.phase = CALL_CLOSE;
        if (sym == K3I_SYM_CLOSE)
            put(m, out, next);
        return;
    default: /* CALL_CLOSE */
        step_word(m, t, sym, call_word, CALL_IDLE, out);
    }
}

/* May the thread's construct end where it stands? */
static bool can_finish(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = node_of(m, t);
    k3i_decimal d;
    switch (node->kind) {
    case K3I_G_FREE:
        return true;
    case K3I_G_RAW:
        return t->x == 0 && t->n >= node->u.text.min;
    case K3I_G_LITERALS:
        return is_complete(m->g, t->y, t->n);
    case K3I_G_NUMBER:
        if (!node->u.number.is_bounded)
            return t->phase == NUM_ZERO || t->phase == NUM_INT || t->phase == NUM_FRAC ||
                   t->phase == NUM_EXP;
        d = decimal_of(t);
        return k3i_decimal_is_in_range(node, &d);
    case K3I_G_ARGS:
        return t->phase == ARG_IDLE && has_required(m, node, t->x);
    case K3I_G_CALLS:
        return t->phase == CALL_IDLE && t->x != 0;
    default:
        return false;
    }
}

static void consume(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out)
{
    k3i_thread next = *t;
    const k3i_gnode *node = node_of(m, t);
    if (node->kind == K3I_G_PROG)
        step_prog(m, t, sym, out);
    else if (node->kind == K3I_G_ARGS)
        step_args(m, t, sym, out);
    else if (node->kind == K3I_G_CALLS)
        step_calls(m, t, sym, out);
    else if (sym >= 256)
        return;
    else if (node->kind == K3I_G_FREE)
        put(m, out, next);
    else if (node->kind == K3I_G_RAW && text_byte(node, &next, sym))
        put(m, out, next);
    else if (node->kind == K3I_G_STRING)
        step_string(m, t, sym, out);
    else if (node->kind == K3I_G_LITERALS)
        step_literals(m, t, sym, out);
    else if (node->kind == K3I_G_NUMBER && node->u.number.is_bounded)
        step_bounded(m, t, sym, out);
    else if (node->kind == K3I_G_NUMBER)
        step_number(m, t, sym, out);
    else if (node->kind == K3I_G_OBJECT)
        step_object(m, t, sym, out);
    else if (node->kind == K3I_G_ARRAY)
        step_array(m, t, sym, out);
}

void k3i_step(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out, size_t from)
{
    k3i_thread at = *t; /* `t` may lie in `out`, which can move */
    m->eps.n = 0;
    for (;;) {
        consume(m, &at, sym, out);
        if (at.up != 0 && can_finish(m, &at))
            finish(m, at.up, &m->eps);
        if (m->eps.n == 0)
            break;
        at = m->eps.t[--m->eps.n];
    }
    if (out->n > from + 1)
        make_set(out, from);
}

bool k3i_thread_is_end(const k3i_machine *m, const k3i_thread *t)
{
    return t->node == m->g->root && m->g->op[t->phase].op == K3I_OP_END;
}

/* ---- costs
 * ----------------------------------------------------------------------------------------- */

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
    uint32_t tags = node->kind == K3I_G_OBJECT ? 1 : 4 + (uint32_t)sizeof argument_word - 1;
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
    for (uint32_t i = lo_of(types); i < hi_of(types); i++) {
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
        if (l->is_required && l->prop != but && !is_seen(m, node, seen, l->prop))
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
    const k3i_gnode *node = node_of(m, t);
    uint32_t required = required_cost(m, node, t->x, FREE_PROP, 1), best = K3I_NEVER, prop;
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
        for (uint32_t i = lo_of(all_keys(node)); i < hi_of(all_keys(node)); i++) {
            uint32_t cost = is_usable(m, node, t->x, &m->g->lit[i])
                                ? member_cost(m, node, &m->g->lit[i])
                                : K3I_NEVER;
            best = cost < best ? cost : best;
        }
        prop = free_cost(m, node);
        return add(prop < best ? prop : best, 1);
    case OBJ_KEY:
        for (uint32_t i = lo_of(t->y); i < hi_of(t->y); i++) {
            const k3i_glit *l = &m->g->lit[i];
            if (!is_usable(m, node, t->x, l))
                continue;
            uint32_t cost =
                add(rest_of(m, node, l, t->n), required_cost(m, node, t->x, l->prop, 1));
            best = cost < best ? cost : best;
        }
        return add(best, 1);
    case OBJ_FREE_KEY: /* one more character, in case the key so far is a declared one */
        best = add(node_cost(m, node->u.keys.rest),
                   utf8_missing(t->phase >> 8) + (is_empty(t->y) ? 2 : 3));
        return add(best, add(required, 1));
    default: /* OBJ_COLON, OBJ_SPACE */
        prop = t->y == FREE_PROP ? FREE_PROP : m->g->lit[t->y].prop;
        best = add(node_cost(m, member_node(m, t)), 1);
        return add(best, add(required_cost(m, node, t->x, prop, 1), 1));
    }
}

static uint32_t array_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = node_of(m, t);
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
    const k3i_gnode *node = node_of(m, t);
    const uint32_t close = 2 + (uint32_t)sizeof argument_word - 1; /* CLOSE argument SEP */
    uint32_t best = K3I_NEVER;
    switch (t->phase & 0xFF) {
    case ARG_HEADER:
        for (uint32_t i = lo_of(t->y); i < hi_of(t->y); i++) {
            const k3i_glit *l = &m->g->lit[i];
            if (!is_usable(m, node, t->x, l))
                continue;
            uint32_t cost =
                add(rest_of(m, node, l, t->n + 1), required_cost(m, node, t->x, l->prop, 0));
            best = cost < best ? cost : best;
        }
        return best;
    case ARG_FREE: /* the rest of the opener, a character, the quote */
        best = add(free_type_cost(m, free_types(node), 0),
                   (uint32_t)(sizeof argument_key - 1) - t->n + 2);
        break;
    case ARG_FREE_KEY: /* a character more in case the key so far is declared */
        best = add(free_type_cost(m, free_types(node), 0),
                   utf8_missing(t->phase >> 8) + (is_empty(t->y) ? 1 : 2));
        break;
    case ARG_FREE_TYPE:
        best = free_type_cost(m, t->y, t->n);
        break;
    case ARG_VALUE:
        best = 0;
        break;
    case ARG_CLOSE:
        return add((uint32_t)sizeof argument_word - t->n,
                   required_cost(m, node, t->x, FREE_PROP, 0));
    default: /* ARG_IDLE */
        return required_cost(m, node, t->x, FREE_PROP, 0);
    }
    return add(add(best, close), required_cost(m, node, t->x, FREE_PROP, 0));
}

static uint32_t calls_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = node_of(m, t);
    const uint32_t close = 2 + (uint32_t)sizeof call_word - 1; /* CLOSE call SEP */
    uint32_t best = K3I_NEVER;
    switch (t->phase) {
    case CALL_IDLE:
        return t->x != 0 ? 0 : node->cost;
    case CALL_HEADER: /* the rest of the header, a digit, the quote, SEP, the arguments */
        for (uint32_t i = lo_of(t->y); i < hi_of(t->y); i++) {
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
        return (uint32_t)sizeof call_word - t->n;
    }
}

static uint32_t number_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = node_of(m, t);
    if (!node->u.number.is_bounded)
        return t->phase == NUM_ZERO || t->phase == NUM_INT || t->phase == NUM_FRAC ||
                       t->phase == NUM_EXP
                   ? 0
                   : 1;
    if (t->n == 0)
        return node->cost;
    k3i_decimal d = decimal_of(t);
    return k3i_decimal_cost(node, &d);
}

static uint32_t string_cost(const k3i_machine *m, const k3i_thread *t)
{
    static const uint8_t escape[] = {[STR_BODY] = 0, [STR_ESCAPE] = 1, [STR_U0] = 4, [STR_U1_D] = 3,
                                     [STR_U1] = 3,   [STR_U2] = 2,     [STR_U3] = 1};
    const k3i_gnode *node = node_of(m, t);
    if (t->phase == STR_OPEN)
        return node->cost;
    uint32_t missing = node->u.text.min > t->n ? node->u.text.min - t->n : 0;
    return add(missing, utf8_missing(t->x) + escape[t->phase] + 1);
}

uint32_t k3i_thread_cost(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gnode *node = node_of(m, t);
    uint32_t cost = 0;
    switch (node->kind) {
    case K3I_G_PROG:
        cost = m->g->op[t->phase].cost - t->n;
        break;
    case K3I_G_RAW:
        cost = add(node->u.text.min > t->n ? node->u.text.min - t->n : 0, utf8_missing(t->x));
        break;
    case K3I_G_STRING:
        cost = string_cost(m, t);
        break;
    case K3I_G_LITERALS:
        cost = K3I_NEVER;
        for (uint32_t i = lo_of(t->y); i < hi_of(t->y); i++) {
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

int k3i_thread_text(const k3i_machine *m, const k3i_thread *t, uint32_t *ret_left,
                    uint32_t *ret_missing)
{
    const k3i_gnode *node = node_of(m, t);
    *ret_left = K3I_NO_MAX;
    *ret_missing = 0;
    switch (node->kind) {
    case K3I_G_FREE:
        return K3I_TEXT_FREE;
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
