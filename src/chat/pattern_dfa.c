/* pattern_dfa.c: pattern -> postfix -> NFA (Thompson) -> DFA (subsets). Nothing recurses: groups
 * are a stack in the parser, counted repetition copies a slice of the postfix form. Characters are
 * cut into classes at every border that the pattern's sets have, so the DFA's alphabet is small. */
#include "pattern_dfa.h"

#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_ITEMS = 8192,
    MAX_RANGES = 4096,
    MAX_GROUPS = 64,
    MAX_STATES = 1024,
    MAX_CLASSES = 512,
    MAX_COUNT = 1000
};

/* Steps of making the automaton: bounds the time that a hostile pattern can take. */
#define MAX_WORK (4u << 20)

#define LAST_CHAR 0x10FFFFu

typedef enum { SET, EMPTY, CAT, OR, STAR, PLUS, OPT } item_kind;

typedef struct {
    item_kind kind;
    uint32_t first, n; /* SET: ranges */
} item;

typedef struct {
    uint32_t first, last;
} char_range;

/* An NFA state: on a character of set `item` go to out, or (item < 0) to out and out2 for free. */
typedef struct {
    int32_t item;
    int32_t out, out2; /* -1: none */
} nfa_state;

/* An open group: where its operands begin. Concatenation and alternatives are counted, and emitted
 * when closed. */
typedef struct {
    uint32_t n_term;   /* operands of the current branch, joined into one */
    uint32_t n_branch; /* finished branches */
} group;

typedef struct {
    const uint8_t *s;
    size_t n, at;
    item post[MAX_ITEMS];
    uint32_t n_post;
    char_range range[MAX_RANGES];
    uint32_t n_range;
    group stack[MAX_GROUPS];
    uint32_t depth, base; /* the open group, and the one that no ')' of the pattern closes */
    k3_status st;
    k3i_err *err;
} parser;

static void fail(parser *p, const char *what)
{
    if (p->st == K3_OK)
        p->st = k3i_fail(p->err, K3_E_FORMAT, "the pattern '%.*s' is not supported: %s",
                         p->n < 200 ? (int)p->n : 200, (const char *)p->s, what);
}

/* ---- characters and sets -------------------------------------------------------------------- */

static uint32_t next_char(parser *p)
{
    const uint8_t *s = p->s + p->at;
    size_t len = k3i_utf8_length(s, p->n - p->at);
    if (len == 0 || len > p->n - p->at) {
        fail(p, "it is not UTF-8");
        p->at = p->n;
        return 0;
    }
    uint32_t c = len == 1 ? s[0] : s[0] & (0xFFu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        c = c << 6 | (s[i] & 0x3Fu);
    p->at += len;
    return c;
}

static void add_range(parser *p, uint32_t first, uint32_t last)
{
    if (p->n_range == MAX_RANGES)
        fail(p, "too many character ranges");
    else
        p->range[p->n_range++] = (char_range){first, last};
}

static int compare_ranges(const void *a, const void *b)
{
    const char_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Replaces the ranges from `from` on by all other characters. */
static void negate(parser *p, uint32_t from)
{
    char_range *copy = k3i_alloc_array(p->n_range - from + 1, sizeof *copy);
    uint32_t n = p->n_range - from, next = 0;
    if (copy == NULL) {
        p->st = k3i_fail(p->err, K3_E_NOMEM, "out of memory (pattern)");
        return;
    }
    if (n > 0)
        memcpy(copy, p->range + from, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, compare_ranges);
    p->n_range = from;
    for (uint32_t i = 0; i < n; i++) {
        if (copy[i].first > next)
            add_range(p, next, copy[i].first - 1);
        next = copy[i].last + 1 > next ? copy[i].last + 1 : next;
    }
    if (next <= LAST_CHAR)
        add_range(p, next, LAST_CHAR);
    k3i_free(copy);
}

/* The set of \d, \w, \s and their complements; false for other letters. */
static bool add_class_escape(parser *p, uint32_t c)
{
    static const char_range digit[] = {{'0', '9'}},
                            word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                            not_digit[] = {{0, '0' - 1}, {'9' + 1, 0x7F}},
                            not_word[] = {{0, '0' - 1},
                                          {'9' + 1, 'A' - 1},
                                          {'Z' + 1, '_' - 1},
                                          {'_' + 1, 'a' - 1},
                                          {'z' + 1, 0x7F}},
                            space[] = {{9, 13}, {' ', ' '}},
                            not_space[] = {{0, 8},           {14, 0x1B},       {'!', 0x84},
                                           {0x86, 0x9F},     {0xA1, 0x167F},   {0x1681, 0x1FFF},
                                           {0x200B, 0x2027}, {0x202A, 0x202E}, {0x2030, 0x205E},
                                           {0x2060, 0x2FFF}, {0x3001, 0xFEFE}, {0xFF00, LAST_CHAR}};
    static const struct {
        char letter;
        const char_range *range;
        uint32_t n;
    } sets[] = {{'d', digit, 1},    {'D', not_digit, 2}, {'w', word, 4},
                {'W', not_word, 5}, {'s', space, 2},     {'S', not_space, 12}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (c != (uint32_t)sets[i].letter)
            continue;
        for (uint32_t k = 0; k < sets[i].n; k++)
            add_range(p, sets[i].range[k].first, sets[i].range[k].last);
        return true;
    }
    return false;
}

static uint32_t hex_escape(parser *p, int digits)
{
    uint32_t c = 0;
    for (; digits > 0; digits--) {
        uint8_t b = p->at < p->n ? p->s[p->at++] : 0;
        uint32_t v = 99;
        if (b >= '0' && b <= '9')
            v = b - (uint32_t)'0';
        else if ((b | 0x20) >= 'a' && (b | 0x20) <= 'f')
            v = (b | 0x20u) - 'a' + 10;
        if (v == 99)
            fail(p, "a hexadecimal escape is incomplete");
        c = c << 4 | (v & 15);
    }
    return c;
}

/* The character behind a backslash. */
static uint32_t escaped_char(parser *p)
{
    if (p->at < p->n)
        return next_char(p);
    fail(p, "a backslash at the end");
    return '\\';
}

/* The character of an escape that is no class; `c` follows the backslash. */
static uint32_t char_escape(parser *p, uint32_t c)
{
    static const char letter[] = "tnrfv0", code[] = "\t\n\r\f\v";
    const char *l = c != 0 && c < 0x80 ? strchr(letter, (int)c) : NULL;
    if (l != NULL)
        return (uint8_t)code[l - letter];
    if (c == 'x' || c == 'u')
        return hex_escape(p, c == 'x' ? 2 : 4);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
        fail(p, "an escape that is neither a class nor a character");
    return c;
}

/* [...], after the bracket. */
static void parse_set(parser *p)
{
    uint32_t from = p->n_range;
    bool is_negated = p->at < p->n && p->s[p->at] == '^';
    p->at += is_negated;
    for (;;) {
        if (p->at >= p->n) {
            fail(p, "a character set is not closed");
            break;
        }
        uint32_t c = next_char(p), last;
        if (c == ']')
            break;
        if (c == '\\') {
            c = escaped_char(p);
            if (add_class_escape(p, c))
                continue;
            c = c == 'b' ? '\b' : char_escape(p, c);
        }
        last = c;
        if (p->n - p->at >= 2 && p->s[p->at] == '-' && p->s[p->at + 1] != ']') {
            p->at++;
            last = next_char(p);
            if (last == '\\')
                last = char_escape(p, escaped_char(p));
        }
        if (last < c)
            fail(p, "a range of a character set is reversed");
        add_range(p, c, last);
        if (p->st != K3_OK)
            break;
    }
    if (is_negated && p->st == K3_OK)
        negate(p, from);
}

/* ---- pattern to postfix --------------------------------------------------------------------- */

static void emit(parser *p, item it)
{
    if (p->n_post == MAX_ITEMS)
        fail(p, "it is too long");
    else
        p->post[p->n_post++] = it;
}

static void emit_op(parser *p, item_kind kind)
{
    emit(p, (item){.kind = kind});
}

/* An operand was emitted: join it to the branch. It is joined lazily, before the next operand,
 * because a repetition sign binds more tightly. */
static void begin_operand(parser *p)
{
    group *g = &p->stack[p->depth];
    if (g->n_term == 2) {
        emit_op(p, CAT);
        g->n_term = 1;
    }
    g->n_term++;
}

/* Ends the current branch: exactly one operand is left of it. */
static void end_branch(parser *p)
{
    group *g = &p->stack[p->depth];
    if (g->n_term == 0)
        emit_op(p, EMPTY);
    else if (g->n_term == 2)
        emit_op(p, CAT);
    g->n_term = 0;
    if (g->n_branch++ > 0)
        emit_op(p, OR);
}

/* Where the last operand begins in the postfix list. */
static uint32_t operand_start(const parser *p)
{
    uint32_t need = 1, i = p->n_post;
    while (need > 0 && i > 0) {
        item_kind k = p->post[--i].kind;
        need += k == CAT || k == OR ? 1 : 0;
        need -= k == SET || k == EMPTY ? 1 : 0;
    }
    return i;
}

static void copy_operand(parser *p, uint32_t from, uint32_t n)
{
    for (uint32_t i = 0; i < n && p->st == K3_OK; i++)
        emit(p, p->post[from + i]);
}

/* {min,max} of the last operand, max < 0: none. x{2,4} becomes x x (x (x)?)? written as x x x? x?.
 */
static void repeat(parser *p, long min, long max)
{
    uint32_t from = operand_start(p), n = p->n_post - from;
    if (max == 0 || (max >= 0 && max < min) || min > MAX_COUNT || max > MAX_COUNT) {
        fail(p, "a repetition count");
        return;
    }
    if (min == 0)
        emit_op(p, max < 0 ? STAR : OPT);
    else if (min == 1 && max < 0)
        emit_op(p, PLUS);
    for (long i = 1; i < (max < 0 ? min : max) && p->st == K3_OK; i++) {
        copy_operand(p, from, n);
        if (max < 0 && i + 1 == min)
            emit_op(p, PLUS);
        else if (i >= min)
            emit_op(p, OPT);
        emit_op(p, CAT);
    }
}

/* The number at p->at, or -1. */
static long read_count(parser *p)
{
    long v = -1;
    for (; p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9'; p->at++)
        v = v > MAX_COUNT ? v : (v < 0 ? 0 : v) * 10 + (p->s[p->at] - '0');
    return v;
}

static void parse_count(parser *p)
{
    long min = read_count(p), max = min;
    if (min >= 0 && p->at < p->n && p->s[p->at] == ',') {
        p->at++;
        max = read_count(p);
    }
    if (min < 0 || p->at >= p->n || p->s[p->at] != '}')
        fail(p, "a '{' that is no repetition count");
    p->at++;
    repeat(p, min, max);
}

static void parse_repetition(parser *p, uint32_t c)
{
    if (p->stack[p->depth].n_term == 0) {
        fail(p, "a repetition of nothing");
        return;
    }
    if (c == '{')
        parse_count(p);
    else
        emit_op(p, c == '*' ? STAR : c == '+' ? PLUS : OPT);
    /* Lazy forms describe the same strings. */
    if (p->at < p->n && p->s[p->at] == '?')
        p->at++;
    else if (p->at < p->n && (p->s[p->at] == '+' || p->s[p->at] == '*'))
        fail(p, "a repetition of a repetition");
}

static void open_group(parser *p)
{
    if (p->n - p->at >= 2 && p->s[p->at] == '?') {
        if (p->s[p->at + 1] != ':')
            fail(p, "a group that begins with '(?'");
        p->at += 2;
    }
    begin_operand(p);
    if (p->depth + 1 == MAX_GROUPS)
        fail(p, "too many groups inside each other");
    else
        p->stack[++p->depth] = (group){0};
}

static void parse_one(parser *p)
{
    uint32_t c = next_char(p), from = p->n_range;
    if (c == '(') {
        open_group(p);
        return;
    }
    if (c == ')') {
        end_branch(p);
        if (p->depth == p->base)
            fail(p, "a ')' without '('");
        else
            p->depth--;
        return;
    }
    if (c == '|') {
        end_branch(p);
        return;
    }
    if (c == '*' || c == '+' || c == '?' || c == '{') {
        parse_repetition(p, c);
        return;
    }
    if (c == '^' || c == '$') {
        fail(p, "an anchor that is not at its end");
        return;
    }
    begin_operand(p);
    if (c == '[') {
        parse_set(p);
    } else if (c == '.') {
        add_range(p, '\n', '\n');
        add_range(p, '\r', '\r');
        add_range(p, 0x2028, 0x2029);
        negate(p, from);
    } else {
        if (c == '\\') {
            c = escaped_char(p);
            if (!add_class_escape(p, c)) {
                c = char_escape(p, c);
                add_range(p, c, c);
            }
        } else {
            add_range(p, c, c);
        }
    }
    emit(p, (item){.kind = SET, .first = from, .n = p->n_range - from});
}

/* Any text. */
static void emit_any(parser *p)
{
    begin_operand(p);
    emit(p, (item){.kind = SET, .first = p->n_range, .n = 1});
    add_range(p, 0, LAST_CHAR);
    emit_op(p, STAR);
}

static bool has_top_level_bar(const parser *p)
{
    int depth = 0;
    bool in_set = false;
    for (size_t i = 0; i < p->n; i++) {
        uint8_t c = p->s[i];
        if (c == '\\')
            i++;
        else if (in_set)
            in_set = c != ']';
        else if (c == '[')
            in_set = true;
        else if (c == '(' || c == ')')
            depth += c == '(' ? 1 : -1;
        else if (c == '|' && depth == 0)
            return true;
    }
    return false;
}

/* An even number of backslashes stands before the last character. */
static bool ends_in_anchor(const parser *p)
{
    size_t n = 0;
    while (p->n >= 2 + n && p->s[p->n - 2 - n] == '\\')
        n++;
    return p->n > 0 && p->s[p->n - 1] == '$' && n % 2 == 0;
}

static void parse(parser *p)
{
    bool begins = p->n > 0 && p->s[0] == '^', ends = ends_in_anchor(p);
    if ((begins || ends) && has_top_level_bar(p))
        fail(p, "an anchor beside alternatives that are in no group");
    p->at = begins;
    size_t whole = p->n;
    p->n -= ends && p->n > p->at;
    if (!begins)
        emit_any(p);
    bool grouped = !begins || !ends;
    if (grouped) { /* so that alternatives stay inside */
        begin_operand(p);
        p->stack[++p->depth] = (group){0};
        p->base = 1;
    }
    while (p->at < p->n && p->st == K3_OK)
        parse_one(p);
    if (grouped && p->st == K3_OK) {
        end_branch(p);
        if (p->depth != 1)
            fail(p, "a '(' that is not closed");
        p->depth = p->base = 0;
    }
    p->n = whole;
    if (!ends && p->st == K3_OK)
        emit_any(p);
    if (p->st == K3_OK && p->depth != 0)
        fail(p, "a '(' that is not closed");
    if (p->st == K3_OK)
        end_branch(p);
}

/* ---- postfix to NFA ------------------------------------------------------------------------- */

typedef struct {
    int32_t start, end; /* `end` has no way out yet */
} fragment;

typedef struct {
    nfa_state *state;
    int32_t n;
} nfa;

static int32_t new_state(nfa *a, int32_t it, int32_t out, int32_t out2)
{
    a->state[a->n] = (nfa_state){.item = it, .out = out, .out2 = out2};
    return a->n++;
}

/* Two states an item are enough. `stack` has room for one fragment an item. Returns the whole
 * expression. */
static fragment build_nfa(const parser *p, nfa *a, fragment *stack)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_post; i++) {
        fragment x = n > 0 ? stack[n - 1] : (fragment){0}, y = {0};
        switch (p->post[i].kind) {
        case SET:
        case EMPTY:
            y.end = new_state(a, -1, -1, -1);
            y.start = new_state(a, p->post[i].kind == SET ? (int32_t)i : -1, y.end, -1);
            stack[n++] = y;
            break;
        case CAT:
            y = stack[n - 2];
            a->state[y.end].out = x.start;
            stack[--n - 1] = (fragment){y.start, x.end};
            break;
        case OR:
            y = stack[n - 2];
            a->state[x.end].out = y.end;
            stack[--n - 1] = (fragment){new_state(a, -1, y.start, x.start), y.end};
            break;
        default: { /* repetition: a loop state before, an end state behind */
            int32_t end = new_state(a, -1, -1, -1);
            int32_t loop = new_state(a, -1, x.start, end);
            a->state[x.end].out = p->post[i].kind == OPT ? end : loop;
            stack[n - 1] = (fragment){p->post[i].kind == PLUS ? x.start : loop, end};
        }
        }
    }
    return stack[0];
}

/* ---- NFA to DFA ----------------------------------------------------------------------------- */

typedef struct {
    const parser *p;
    const nfa *a;
    k3i_regex *re;
    size_t n_word; /* of a set of NFA states */
    uint64_t *set; /* [n_state][n_word] of DFA states found so far */
    int32_t *todo; /* [nfa states] scratch */
    int32_t end;
} subsets;

/* Adds a state and all that it reaches for free. */
static void add_closure(const subsets *s, uint64_t *set, int32_t state)
{
    uint32_t n = 0;
    s->todo[n++] = state;
    while (n > 0) {
        int32_t q = s->todo[--n];
        if (q < 0 || (set[q / 64] >> (q % 64) & 1))
            continue;
        set[q / 64] |= (uint64_t)1 << (q % 64);
        if (s->a->state[q].item < 0) {
            s->todo[n++] = s->a->state[q].out2;
            s->todo[n++] = s->a->state[q].out;
        }
    }
}

static bool set_has(const parser *p, const item *it, uint32_t c)
{
    for (uint32_t i = 0; i < it->n; i++) {
        if (p->range[it->first + i].first <= c && c <= p->range[it->first + i].last)
            return true;
    }
    return false;
}

/* The DFA state of `set`, a new one if need be; K3I_REGEX_DEAD for the empty set. */
static uint32_t find_state(subsets *s, const uint64_t *set, bool *ret_full)
{
    bool is_empty = true;
    for (size_t w = 0; w < s->n_word; w++)
        is_empty = is_empty && set[w] == 0;
    if (is_empty)
        return K3I_REGEX_DEAD;
    for (uint32_t q = 0; q < s->re->n_state; q++) {
        if (memcmp(s->set + q * s->n_word, set, s->n_word * sizeof *set) == 0)
            return q;
    }
    *ret_full = s->re->n_state == MAX_STATES;
    if (*ret_full)
        return K3I_REGEX_DEAD;
    memcpy(s->set + s->re->n_state * s->n_word, set, s->n_word * sizeof *set);
    s->re->accepts[s->re->n_state] = set[s->end / 64] >> (s->end % 64) & 1;
    return s->re->n_state++;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Cuts the characters into classes: at the borders of all sets, where UTF-8 gets longer, and around
 * what JSON writes with a backslash, so that all characters of a class are alike for the reader of
 * the automaton too. */
static void make_classes(parser *p, k3i_regex *re)
{
    static const uint32_t fixed[] = {0,        8,    9,     10,      11,     12,      13,
                                     14,       0x20, '"',   '"' + 1, '/',    '/' + 1, '\\',
                                     '\\' + 1, 0x80, 0x800, 0xD800,  0xE000, 0x10000};
    uint32_t n = 0, border[sizeof fixed / sizeof *fixed + 2 * MAX_RANGES], kept = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        border[n++] = fixed[i];
    for (uint32_t i = 0; i < p->n_range; i++) {
        border[n++] = p->range[i].first;
        border[n++] = p->range[i].last + 1;
    }
    qsort(border, n, sizeof *border, compare_u32);
    for (uint32_t i = 0; i < n; i++) {
        if (border[i] > LAST_CHAR || (kept > 0 && re->first[kept - 1] == border[i]))
            continue;
        if (kept == MAX_CLASSES) {
            fail(p, "too many different characters");
            return;
        }
        re->first[kept++] = border[i];
    }
    re->n_class = kept;
    for (uint32_t c = 0, k = 0; c < 128; c++) {
        k += k + 1 < kept && re->first[k + 1] <= c;
        re->ascii[c] = (uint16_t)k;
    }
}

static void build_dfa(parser *p, subsets *s, int32_t start)
{
    k3i_regex *re = s->re;
    uint64_t *set = s->set + (size_t)MAX_STATES * s->n_word; /* scratch behind the states */
    bool is_full = false;
    uint32_t work = 0;
    memset(set, 0, s->n_word * sizeof *set);
    add_closure(s, set, start);
    find_state(s, set, &is_full);
    for (uint32_t q = 0; q < re->n_state && !is_full && work < MAX_WORK; q++) {
        for (uint32_t c = 0; c < re->n_class && !is_full && work < MAX_WORK; c++) {
            memset(set, 0, s->n_word * sizeof *set);
            work += (uint32_t)s->a->n;
            for (int32_t k = 0; k < s->a->n && re->first[c] != 0xD800; k++) {
                const nfa_state *from = &s->a->state[k];
                if (from->item >= 0 && (s->set[q * s->n_word + (size_t)k / 64] >> (k % 64) & 1) &&
                    set_has(p, &p->post[from->item], re->first[c]))
                    add_closure(s, set, from->out);
            }
            re->next[(size_t)q * MAX_CLASSES + c] = find_state(s, set, &is_full);
        }
    }
    if (is_full || work >= MAX_WORK)
        fail(p, "it needs too many states");
    /* From the fixed stride to rows of n_class. */
    for (uint32_t q = 0; q < re->n_state; q++)
        memmove(re->next + (size_t)q * re->n_class, re->next + (size_t)q * MAX_CLASSES,
                re->n_class * sizeof *re->next);
}

static k3_status compile(parser *p, k3i_regex *re)
{
    subsets s = {.p = p, .re = re};
    nfa a = {.state = k3i_alloc_array(2 * (size_t)p->n_post + 2, sizeof *a.state)};
    fragment *stack = k3i_alloc_array((size_t)p->n_post + 1, sizeof *stack), whole = {0};
    re->first = k3i_alloc_array(MAX_CLASSES, sizeof *re->first);
    re->next = k3i_alloc_array((size_t)MAX_STATES * MAX_CLASSES, sizeof *re->next);
    re->accepts = k3i_alloc(MAX_STATES);
    bool ok = a.state != NULL && stack != NULL && re->first != NULL && re->next != NULL &&
              re->accepts != NULL;
    if (ok) {
        whole = build_nfa(p, &a, stack);
        s.a = &a;
        s.end = whole.end;
        s.n_word = ((size_t)a.n + 63) / 64;
        s.set = k3i_alloc_array(((size_t)MAX_STATES + 1) * s.n_word, sizeof *s.set);
        s.todo = k3i_alloc_array(4 * (size_t)a.n + 4, sizeof *s.todo);
        ok = s.set != NULL && s.todo != NULL;
    }
    if (!ok) {
        p->st = k3i_fail(p->err, K3_E_NOMEM, "out of memory (pattern)");
    } else {
        make_classes(p, re);
        if (p->st == K3_OK)
            build_dfa(p, &s, whole.start);
    }
    if (p->st ==
        K3_OK) { /* the working size is two megabytes, most automata need a few kilobytes */
        uint32_t *next = k3i_alloc_array((size_t)re->n_state * re->n_class, sizeof *next);
        if (next != NULL) {
            memcpy(next, re->next, (size_t)re->n_state * re->n_class * sizeof *next);
            k3i_free(re->next);
            re->next = next;
        } else {
            p->st = k3i_fail(p->err, K3_E_NOMEM, "out of memory (pattern)");
        }
    }
    k3i_free(a.state);
    k3i_free(stack);
    k3i_free(s.set);
    k3i_free(s.todo);
    return p->st;
}

k3_status k3i_regex_compile(const char *pattern, size_t n, k3i_regex *ret, k3i_err *err)
{
    k3i_regex re = {0};
    parser *p = k3i_alloc_zero(sizeof *p);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (pattern)");
    p->s = (const uint8_t *)pattern;
    p->n = n;
    p->err = err;
    parse(p);
    k3_status st = p->st == K3_OK ? compile(p, &re) : p->st;
    k3i_free(p);
    if (st != K3_OK)
        k3i_regex_done(&re);
    else
        *ret = re;
    return st;
}

void k3i_regex_done(k3i_regex *re)
{
    k3i_free(re->first);
    k3i_free(re->next);
    k3i_free(re->accepts);
    *re = (k3i_regex){0};
}

uint32_t k3i_regex_class(const k3i_regex *re, uint32_t c)
{
    uint32_t lo = 0, hi = re->n_class;
    if (c < 128)
        return re->ascii[c];
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (re->first[mid] <= c)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
