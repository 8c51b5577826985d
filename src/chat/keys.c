/* keys.c: declared and free keys of objects and arguments, and the characters of text. */
#include "automaton_internal.h"

#include <string.h>

/* ---- keys ----------------------------------------------------------------------------------- */

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
uint64_t k3i_g_narrow(const k3i_grammar *g, uint64_t r, uint32_t pos, uint32_t byte)
{
    uint32_t lo = first_from(g, k3i_g_lo(r), k3i_g_hi(r), pos, byte);
    return k3i_g_range(lo, first_from(g, lo, k3i_g_hi(r), pos, byte + 1));
}

/* The first literal of the range has exactly n bytes: it is complete. */
bool k3i_g_is_complete(const k3i_grammar *g, uint64_t r, uint32_t n)
{
    return !k3i_g_is_empty(r) && g->lit[k3i_g_lo(r)].n == n;
}

/* Sets of seen properties: bits of a word, or words of the machine when there are more than 64. */
bool k3i_g_is_seen(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop)
{
    if (node->u.keys.n_prop <= 64)
        return set >> prop & 1;
    return set != 0 && (m->word[set + prop / 64] >> prop % 64 & 1);
}

uint64_t k3i_g_with_seen(k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop)
{
    if (prop == K3I_FREE_PROP)
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

bool k3i_g_is_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, const k3i_glit *l)
{
    return m->g->node[l->node].cost < K3I_NEVER && !k3i_g_is_seen(m, node, set, l->prop);
}

/* Can a declared property of the range still come? */
bool k3i_g_any_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint64_t r)
{
    for (uint32_t i = k3i_g_lo(r); i < k3i_g_hi(r); i++) {
        if (k3i_g_is_usable(m, node, set, &m->g->lit[i]))
            return true;
    }
    return false;
}

bool k3i_g_has_free(const k3i_machine *m, const k3i_gnode *node)
{
    if (node->kind == K3I_G_OBJECT)
        return node->u.keys.rest != 0 && m->g->node[node->u.keys.rest].cost < K3I_NEVER;
    for (uint32_t i = k3i_g_lo(k3i_g_free_types(node)); i < k3i_g_hi(k3i_g_free_types(node)); i++) {
        if (m->g->node[m->g->lit[i].node].cost < K3I_NEVER)
            return true;
    }
    return false;
}

bool k3i_g_can_continue(const k3i_machine *m, const k3i_gnode *node, uint64_t set)
{
    return k3i_g_has_free(m, node) || k3i_g_any_usable(m, node, set, k3i_g_all_keys(node));
}

bool k3i_g_has_required(const k3i_machine *m, const k3i_gnode *node, uint64_t set)
{
    for (uint32_t i = node->u.keys.first; i < node->u.keys.first + node->u.keys.n; i++) {
        if (m->g->lit[i].is_required && !k3i_g_is_seen(m, node, set, m->g->lit[i].prop))
            return false;
    }
    return true;
}

/* ---- UTF-8 ---------------------------------------------------------------------------------- */

/* States inside a character: 0 between characters; 1..3 that many plain continuation bytes are
 * missing; the others also bound the next byte, to exclude overlong forms, surrogates and what is
 * beyond U+10FFFF. */
uint32_t k3i_g_utf8_next(uint32_t state, uint32_t b)
{
    switch (state) {
    case 0:
        if (b < 0x80)
            return 0;
        if (b < 0xC2 || b > 0xF4)
            return K3I_UTF8_BAD;
        if (b < 0xE0)
            return 1;
        if (b < 0xF0)
            return b == 0xE0 ? K3I_UTF8_E0 : b == 0xED ? K3I_UTF8_ED : 2;
        return b == 0xF0 ? K3I_UTF8_F0 : b == 0xF4 ? K3I_UTF8_F4 : 3;
    case K3I_UTF8_E0:
        return b >= 0xA0 && b <= 0xBF ? 1 : K3I_UTF8_BAD;
    case K3I_UTF8_ED:
        return b >= 0x80 && b <= 0x9F ? 1 : K3I_UTF8_BAD;
    case K3I_UTF8_F0:
        return b >= 0x90 && b <= 0xBF ? 2 : K3I_UTF8_BAD;
    case K3I_UTF8_F4:
        return b >= 0x80 && b <= 0x8F ? 2 : K3I_UTF8_BAD;
    default:
        return b >= 0x80 && b <= 0xBF ? state - 1 : K3I_UTF8_BAD;
    }
}

uint32_t k3i_g_utf8_missing(uint64_t state)
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
bool k3i_g_text_byte(const k3i_gnode *node, k3i_thread *t, uint32_t b)
{
    if (t->x == 0) {
        if (t->n >= node->u.text.max)
            return false;
        t->n = count_char(node, t->n);
    }
    t->x = k3i_g_utf8_next((uint32_t)t->x, b);
    return t->x != K3I_UTF8_BAD;
}

/* Byte of a free key: `pos` bytes of it may agree with the declared literals of t->y. `limit` are
 * the bytes that may not appear. At a closing quote returns true if the key is none of the declared
 * ones. Keys carry no escapes, so equal keys have equal bytes. The UTF-8 state lies in the phase,
 * above its low byte. */
bool k3i_g_free_key_byte(k3i_machine *m, const k3i_thread *t, uint32_t b, bool no_ampersand,
                         k3i_threads *out)
{
    uint32_t state = t->phase >> 8;
    if (b == '"' && state == 0)
        return k3i_g_is_empty(k3i_g_narrow(m->g, t->y, t->n, b));
    state = k3i_g_utf8_next(state, b);
    if (b < 0x20 || b == '"' || b == '\\' || (b == '&' && no_ampersand) || state == K3I_UTF8_BAD)
        return false;
    k3i_thread next = *t;
    next.y = k3i_g_is_empty(t->y) ? 0 : k3i_g_narrow(m->g, t->y, t->n, b);
    if (k3i_g_is_empty(next.y))
        next.y = next.n = 0;
    else
        next.n++;
    next.phase = (t->phase & 0xFF) | state << 8;
    k3i_g_put(m, out, next);
    return false;
}
