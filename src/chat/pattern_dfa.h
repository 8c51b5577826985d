/* pattern_dfa.h: regular expressions (JSON Schema's "pattern") as deterministic automata over
 * characters. */
#ifndef K3I_PATTERN_DFA_H
#define K3I_PATTERN_DFA_H

#include "alloc.h"

#define K3I_REGEX_DEAD UINT32_MAX

/* Character c belongs to the class i with first[i] <= c < first[i + 1]; surrogates belong to no
 * class that leads anywhere. State 0 is the start. */
typedef struct {
    uint32_t n_state, n_class;
    uint32_t *first;     /* [n_class], ascending from 0 */
    uint32_t *next;      /* [n_state, n_class] state or K3I_REGEX_DEAD */
    bool *accepts;       /* [n_state] */
    uint16_t ascii[128]; /* the class of an ASCII character */
} k3i_regex;

/* Compiles an expression in the common subset of ECMA-262 and Python: literals, '.', classes, \d \w
 * \s and their complements, groups, '|', '*', '+', '?', counts; '^' only at the beginning, '$' only
 * at the end, outside of groups and alternatives. Without them the match may begin and end
 * anywhere. \D and \W mean ASCII characters, which both dialects agree on. K3_E_FORMAT says what is
 * not supported; *ret is then untouched. */
k3_status k3i_regex_compile(const char *pattern, size_t n, k3i_regex *ret, k3i_err *err);
void k3i_regex_done(k3i_regex *re);

/* The class of a character. */
uint32_t k3i_regex_class(const k3i_regex *re, uint32_t c);

#endif
