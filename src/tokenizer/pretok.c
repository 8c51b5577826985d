/* pretok.c: cuts text into the pieces that byte-pair encoding works on.
 *
 * The rule is a regular expression of eight alternatives, leftmost first, with ordinary
 * backtracking:
 *
 *   1  [\p{Han}]+                                    4  \p{N}{1,3}
 *   2  [^\r\n\p{L}\p{N}]? UP* LO+ (?i:'s|'t|...)?    5  [ ]?[^\s\p{L}\p{N}]+[\r\n]*
 *   3  [^\r\n\p{L}\p{N}]? UP+ LO* (?i:'s|'t|...)?    6  \s*[\r\n]+    7  \s+(?!\S)    8  \s+
 *
 * with UP = upper-case, title-case, modifier and other letters and marks without Han, and LO the
 * same with lower case. It is written out by hand, because regex libraries carry other Unicode
 * tables and other meanings of \p{Han} and \s. The classes come from a table generated from
 * Unicode 16.0. Every character is visited a bounded number of times: a run that alternative 2
 * scans in vain is taken as one piece by alternative 3, or ends at the place up to which characters
 * are given back. */
#include "tok_internal.h"

/* The class byte of the character at `at`, or 0 at the end. */
static inline uint8_t class_at(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end,
                               size_t *len)
{
    if (at >= end) {
        *len = 0;
        return 0;
    }
    return tok->classes[k3i_utf8_at(text + at, len)];
}

static size_t run_of(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end,
                     uint8_t classes)
{
    size_t len;
    while (class_at(tok, text, at, end, &len) & classes)
        at += len;
    return at;
}

/* Alternative 2 from `start`: UP* LO+. Returns its end, or 0 if it fails; *ret_up is the end of the
 * UP run, which is where alternative 3 would end in that case. */
static size_t letters_from(const k3i_tok *tok, const uint8_t *text, size_t start, size_t end,
                           size_t *ret_up)
{
    size_t at = start, len, last_lo = 0;
    uint8_t c;
    while ((c = class_at(tok, text, at, end, &len)) & K3I_UP) {
        at += len;
        if (c & K3I_LO)
            last_lo = at;
    }
    *ret_up = at;
    size_t lo_end = run_of(tok, text, at, end, K3I_LO);
    return lo_end > at ? lo_end : last_lo;
}

/* The end of the contraction tail at `at`, or `at` itself. U+017F folds to s. */
static size_t contraction(const uint8_t *text, size_t at, size_t end)
{
    if (at + 1 >= end || text[at] != '\'')
        return at;
    uint8_t a = text[at + 1] | 0x20, b = at + 2 < end ? (uint8_t)(text[at + 2] | 0x20) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    if (at + 2 < end && text[at + 1] == 0xC5 && text[at + 2] == 0xBF)
        return at + 3;
    return at;
}

/* Alternatives 2 and 3; 0 if neither matches. `c` and `len` describe the character at `at`. */
static size_t letters(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end, uint8_t c,
                      size_t len)
{
    bool may_prefix = !(c & (K3I_L | K3I_N)) && text[at] != '\r' && text[at] != '\n';
    size_t start[2], n_start = 0, up_end[2] = {0}, stop = 0;
    if (may_prefix)
        start[n_start++] = at + len;
    if (c & (K3I_UP | K3I_LO))
        start[n_start++] = at;
    for (size_t i = 0; i < n_start && stop == 0; i++)
        stop = letters_from(tok, text, start[i], end, &up_end[i]);
    for (size_t i = 0; i < n_start && stop == 0; i++)
        stop = up_end[i] > start[i] ? up_end[i] : 0;
    return stop == 0 ? 0 : contraction(text, stop, end);
}

/* Alternatives 6 to 8; the character at `at` is white space. */
static size_t white_space(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end)
{
    size_t pos = at, last = at, len, after_newline = 0;
    while (class_at(tok, text, pos, end, &len) & K3I_WS) {
        last = pos;
        pos += len;
        if (text[last] == '\r' || text[last] == '\n')
            after_newline = pos;
    }
    if (after_newline != 0)
        return after_newline;
    /* The last space goes with the word that follows it. */
    return pos == end || last == at ? pos : last;
}

size_t k3i_pretok_next(const k3i_tok *tok, const uint8_t *text, size_t at, size_t end)
{
    size_t len;
    uint8_t c = class_at(tok, text, at, end, &len);
    if (c & K3I_HAN)
        return run_of(tok, text, at, end, K3I_HAN);
    size_t stop = letters(tok, text, at, end, c, len);
    if (stop != 0)
        return stop;
    if (c & K3I_N) {
        stop = at;
        for (int i = 0; i < 3 && class_at(tok, text, stop, end, &len) & K3I_N; i++)
            stop += len;
        return stop;
    }
    size_t start = text[at] == ' ' ? at + 1 : at;
    stop = start;
    while (stop < end && !(class_at(tok, text, stop, end, &len) & (K3I_WS | K3I_L | K3I_N)))
        stop += len;
    if (stop > start) {
        while (stop < end && (text[stop] == '\r' || text[stop] == '\n'))
            stop++;
        return stop;
    }
    return white_space(tok, text, at, end);
}
