/* pattern.c: text that matches a pattern and a range of lengths.
 *
 * A place is a state of the pattern's automaton and a count of characters, which stops counting
 * where no bound depends on it. For every pair the fewest bytes to an end are known, so no
 * character is begun that leads into a dead end, not even by its first byte. In JSON the short
 * escapes stand for their characters; \u is left out, every character can be written without it. */
#include "automaton_internal.h"

#include <string.h>

/* Pairs of state and count, times classes of characters: bounds the time of filling the table. */
#define MAX_TABLE (4u << 20)

static const char escape_letter[] = "\"\\/bfnrt", escape_char[] = "\"\\/\b\f\n\r\t";

/* Bytes of a character of the class whose first member is c; K3I_NEVER if it cannot be written. */
static uint32_t encoded_bytes(uint32_t c, bool is_raw)
{
    if (c >= 0xD800 && c < 0xE000)
        return K3I_NEVER;
    if (!is_raw &&
        (c == '"' || c == '\\' || (c < 0x20 && c != 0 && strchr(escape_char, (int)c) != NULL)))
        return 2;
    if (!is_raw && c < 0x20)
        return K3I_NEVER;
    return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

static uint32_t next_count(const k3i_gpattern *p, uint32_t n)
{
    return p->max == K3I_NO_MAX && n >= p->min ? n : n + 1;
}

static uint32_t cost_at(const k3i_gpattern *p, uint32_t state, uint32_t n)
{
    return state == K3I_REGEX_DEAD || n >= p->n_level ? K3I_NEVER
                                                      : p->cost[(size_t)n * p->re.n_state + state];
}

static uint32_t add(uint32_t a, uint32_t b)
{
    return a == K3I_NEVER || b == K3I_NEVER ? K3I_NEVER : a + b;
}

/* One sweep over the states of a count; true if a cost fell. */
static bool improve(k3i_gpattern *p, uint32_t n)
{
    bool changed = false;
    for (uint32_t q = p->re.n_state; q-- > 0;) {
        uint32_t *cost = &p->cost[(size_t)n * p->re.n_state + q], best = K3I_NEVER;
        if (p->re.accepts[q] && n >= p->min)
            best = 0;
        for (uint32_t c = 0; c < p->re.n_class && best > 0; c++) {
            uint32_t next = p->re.next[(size_t)q * p->re.n_class + c];
            uint32_t via =
                add(encoded_bytes(p->re.first[c], p->is_raw), cost_at(p, next, next_count(p, n)));
            best = via < best ? via : best;
        }
        changed = changed || best != *cost;
        *cost = best;
    }
    return changed;
}

k3_status k3i_gpattern_init(k3i_gpattern *p, const char *pattern, size_t n, k3i_err *err)
{
    k3_status st = k3i_regex_compile(pattern, n, &p->re, err);
    if (st != K3_OK)
        return st;
    p->n_level = (p->max == K3I_NO_MAX ? p->min : p->max) + 1;
    size_t n_pair, work;
    if (p->n_level == 0 || !k3i_mul_size(p->n_level, p->re.n_state, &n_pair) ||
        !k3i_mul_size(n_pair, p->re.n_class, &work) || work > MAX_TABLE) {
        k3i_regex_done(&p->re);
        return k3i_fail(err, K3_E_FORMAT, "a pattern beside lengths of up to %u is not supported",
                        p->max == K3I_NO_MAX ? p->min : p->max);
    }
    p->cost = k3i_alloc_array(n_pair, sizeof *p->cost);
    if (p->cost == NULL) {
        k3i_regex_done(&p->re);
        return k3i_fail(err, K3_E_NOMEM, "out of memory (pattern)");
    }
    memset(p->cost, 0xFF, n_pair * sizeof *p->cost);
    for (uint32_t k = p->n_level; k-- > 0;) {
        /* A count that leads to itself needs sweeps until nothing changes. */
        while (improve(p, k) && next_count(p, k) == k) {
        }
    }
    return K3_OK;
}

void k3i_gpattern_done(k3i_gpattern *p)
{
    k3i_regex_done(&p->re);
    k3i_free(p->cost);
    p->cost = NULL;
}

/* ---- threads: n is the count, y the state, x the state of UTF-8 and above it the bits of the
 * character ---- */

static const k3i_gpattern *pattern_of(const k3i_machine *m, const k3i_thread *t)
{
    return &m->g->pattern[k3i_g_node_of(m, t)->u.pattern];
}

/* The fewest bytes after a character between lo and hi. */
static uint32_t cost_after(const k3i_gpattern *p, const k3i_thread *t, uint32_t lo, uint32_t hi)
{
    uint32_t best = K3I_NEVER, n = next_count(p, t->n);
    for (uint32_t c = k3i_regex_class(&p->re, lo); c < p->re.n_class && p->re.first[c] <= hi; c++) {
        if (encoded_bytes(p->re.first[c], true) == K3I_NEVER)
            continue;
        uint32_t cost = cost_at(p, p->re.next[(size_t)t->y * p->re.n_class + c], n);
        best = cost < best ? cost : best;
    }
    return best;
}

/* Takes a whole character; false if it leads nowhere. */
static bool take(const k3i_gpattern *p, k3i_thread *t, uint32_t c)
{
    uint32_t q = p->re.next[(size_t)t->y * p->re.n_class + k3i_regex_class(&p->re, c)];
    uint32_t n = next_count(p, t->n);
    if (cost_at(p, q, n) == K3I_NEVER)
        return false;
    t->y = q;
    t->n = n;
    t->x = 0;
    return true;
}

/* The characters that an unfinished one can become. */
static void partial_range(uint64_t x, uint32_t *lo, uint32_t *hi)
{
    uint32_t state = x & 0xFF, shift = 6 * k3i_g_utf8_missing(state);
    *lo = (uint32_t)(x >> 8) << shift;
    *hi = *lo | ((1u << shift) - 1);
    if (state == K3I_UTF8_E0)
        *lo = 0x800;
    else if (state == K3I_UTF8_ED)
        *hi = 0xD7FF;
    else if (state == K3I_UTF8_F0)
        *lo = 0x10000;
    else if (state == K3I_UTF8_F4)
        *hi = 0x10FFFF;
}

static bool take_byte(const k3i_gpattern *p, k3i_thread *t, uint32_t b)
{
    if (b < 0x80)
        return t->x == 0 && take(p, t, b);
    uint32_t state = k3i_g_utf8_next(t->x & 0xFF, b), lo, hi;
    if (state == K3I_UTF8_BAD)
        return false;
    uint32_t lead = b < 0xE0 ? b & 0x1F : b < 0xF0 ? b & 0x0F : b & 0x07;
    uint64_t bits = (t->x & 0xFF) == 0 ? lead : t->x >> 8 << 6 | (b & 0x3F);
    if (state == 0)
        return take(p, t, (uint32_t)bits);
    t->x = bits << 8 | state;
    partial_range(t->x, &lo, &hi);
    return cost_after(p, t, lo, hi) != K3I_NEVER;
}

/* The fewest bytes after an escape letter. */
static uint32_t escape_cost(const k3i_gpattern *p, const k3i_thread *t)
{
    uint32_t best = K3I_NEVER;
    for (size_t i = 0; escape_char[i] != '\0'; i++) {
        uint32_t cost = cost_after(p, t, (uint8_t)escape_char[i], (uint8_t)escape_char[i]);
        best = cost < best ? cost : best;
    }
    return best;
}

static bool is_end(const k3i_gpattern *p, const k3i_thread *t)
{
    return t->x == 0 && p->re.accepts[t->y] && t->n >= p->min;
}

/* Takes a byte that stays inside the text; false if there is no way on, or if it is the closing
 * quote. */
static bool stays_inside(const k3i_gpattern *p, k3i_thread *t, uint32_t b)
{
    if (p->is_raw)
        return take_byte(p, t, b);
    if (t->phase == STR_ESCAPE) {
        const char *l = b != 0 && b < 0x80 ? strchr(escape_letter, (int)b) : NULL;
        t->phase = STR_BODY;
        return l != NULL && take(p, t, (uint8_t)escape_char[l - escape_letter]);
    }
    if (b == '\\' && t->x == 0) {
        t->phase = STR_ESCAPE;
        return escape_cost(p, t) != K3I_NEVER;
    }
    return b >= 0x20 && b != '"' && take_byte(p, t, b);
}

void k3i_g_step_pattern(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out)
{
    const k3i_gpattern *p = pattern_of(m, t);
    k3i_thread next = *t;
    if (!p->is_raw && t->phase == STR_OPEN) {
        next.phase = STR_BODY;
        if (b == '"')
            k3i_g_put(m, out, next);
    } else if (!p->is_raw && t->phase == STR_BODY && b == '"' && t->x == 0) {
        if (is_end(p, t))
            k3i_g_finish(m, t->up, out);
    } else if (stays_inside(p, &next, b)) {
        k3i_g_put(m, out, next);
    }
}

int k3i_g_pattern_text(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gpattern *p = pattern_of(m, t);
    return p->is_raw              ? K3I_TEXT_PATTERN
           : t->phase != STR_OPEN ? K3I_TEXT_PATTERN_JSON
                                  : K3I_TEXT_NONE;
}

bool k3i_g_pattern_can_finish(const k3i_machine *m, const k3i_thread *t)
{
    const k3i_gpattern *p = pattern_of(m, t);
    return p->is_raw && is_end(p, t);
}

static uint32_t cost_from(const k3i_gpattern *p, const k3i_thread *t)
{
    uint32_t quotes = p->is_raw ? 0 : t->phase == STR_OPEN ? 2 : 1, lo, hi;
    if (t->phase == STR_ESCAPE)
        return add(escape_cost(p, t), 1 + quotes);
    if (t->x == 0)
        return add(cost_at(p, (uint32_t)t->y, t->n), quotes);
    partial_range(t->x, &lo, &hi);
    return add(cost_after(p, t, lo, hi), k3i_g_utf8_missing(t->x & 0xFF) + quotes);
}

uint32_t k3i_g_pattern_cost(const k3i_machine *m, const k3i_thread *t)
{
    return cost_from(pattern_of(m, t), t);
}

void k3i_g_pattern_tokens(const k3i_machine *m, const k3i_thread *t, const k3i_trie *trie,
                          uint32_t left, uint32_t *mask, uint32_t *max_cost)
{
    const k3i_gpattern *p = pattern_of(m, t);
    uint32_t above = k3i_g_thread_cost(m, t) - k3i_g_pattern_cost(m, t);
    k3i_thread at[K3I_TOK_MAX_BYTES + 1];
    at[0] = *t;
    for (uint32_t i = 0; i < trie->n;) {
        k3i_thread *next = &at[trie->depth[i] + 1];
        *next = at[trie->depth[i]];
        if (!stays_inside(p, next, trie->byte[i])) {
            i = trie->after[i];
            continue;
        }
        int32_t id = trie->id[i++];
        if (id < 0)
            continue;
        uint32_t cost = cost_from(p, next) + above;
        *max_cost = cost > *max_cost ? cost : *max_cost;
        if (cost <= left)
            mask[id / 32] |= 1u << (id % 32);
    }
}
