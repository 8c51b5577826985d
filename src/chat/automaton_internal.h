/* automaton_internal.h: what the files of the automaton share: phases of a thread, keys, entering
 * and finishing of constructs. */
#ifndef K3I_AUTOMATON_INTERNAL_H
#define K3I_AUTOMATON_INTERNAL_H

#include "grammar_internal.h"

/* Phases of a thread by kind. Those of OBJECT, ARGS and CALLS in the order in which they are
 * passed. */
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

#define K3I_FREE_PROP UINT32_MAX /* a member that is not declared */

/* Parts of tags: OPEN argument key="..." type="..." SEP, CLOSE argument SEP, CLOSE call SEP. */
#define K3I_ARGUMENT_KEY "argument key=\""
#define K3I_ARGUMENT_WORD "argument"
#define K3I_CALL_WORD "call"

static inline const k3i_gnode *k3i_g_node_of(const k3i_machine *m, const k3i_thread *t)
{
    return &m->g->node[t->node];
}

/* ---- automaton.c: each appends to `out` ---- */

void k3i_g_put(k3i_machine *m, k3i_threads *out, k3i_thread t);
/* The construct below frame `up` is complete: the outer thread goes on. */
void k3i_g_finish(k3i_machine *m, uint32_t up, k3i_threads *out);
/* Keeps `t` for later and starts `inner`. */
void k3i_g_call(k3i_machine *m, k3i_thread t, uint32_t inner, k3i_threads *out);

/* ---- keys.c ---- */

/* A range [lo, hi) of sorted literals that agree on the bytes matched so far, packed into a word.
 */
static inline uint64_t k3i_g_range(uint32_t lo, uint32_t hi)
{
    return (uint64_t)hi << 32 | lo;
}

static inline uint32_t k3i_g_lo(uint64_t r)
{
    return (uint32_t)r;
}

static inline uint32_t k3i_g_hi(uint64_t r)
{
    return (uint32_t)(r >> 32);
}

static inline bool k3i_g_is_empty(uint64_t r)
{
    return k3i_g_lo(r) >= k3i_g_hi(r);
}

static inline uint64_t k3i_g_all_keys(const k3i_gnode *node)
{
    return k3i_g_range(node->u.keys.first, node->u.keys.first + node->u.keys.n);
}

/* The type attributes of undeclared arguments. */
static inline uint64_t k3i_g_free_types(const k3i_gnode *node)
{
    return k3i_g_range(node->u.keys.rest_first, node->u.keys.rest_first + node->u.keys.n_rest);
}

/* The literals of the range whose byte `pos` is `byte`. */
uint64_t k3i_g_narrow(const k3i_grammar *g, uint64_t r, uint32_t pos, uint32_t byte);
/* The first literal of the range has exactly n bytes: it is complete. */
bool k3i_g_is_complete(const k3i_grammar *g, uint64_t r, uint32_t n);

/* Sets of seen properties: bits of a word, or words of the machine when there are more than 64. */
bool k3i_g_is_seen(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop);
uint64_t k3i_g_with_seen(k3i_machine *m, const k3i_gnode *node, uint64_t set, uint32_t prop);
/* A member that may still come: not seen, and its value can end. */
bool k3i_g_is_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, const k3i_glit *l);
bool k3i_g_any_usable(const k3i_machine *m, const k3i_gnode *node, uint64_t set, uint64_t r);
/* May undeclared members come? Any member at all? Are all required ones seen? */
bool k3i_g_has_free(const k3i_machine *m, const k3i_gnode *node);
bool k3i_g_can_continue(const k3i_machine *m, const k3i_gnode *node, uint64_t set);
bool k3i_g_has_required(const k3i_machine *m, const k3i_gnode *node, uint64_t set);
/* One byte of a free key, see keys.c: true at the closing quote of a key that is not declared. */
bool k3i_g_free_key_byte(k3i_machine *m, const k3i_thread *t, uint32_t b, bool no_ampersand,
                         k3i_threads *out);

/* States inside a character: 0 between characters; 1..3 that many plain continuation bytes are
 * missing; the others also bound the next byte, to exclude overlong forms, surrogates and what is
 * beyond U+10FFFF. */
enum { K3I_UTF8_E0 = 4, K3I_UTF8_ED, K3I_UTF8_F0, K3I_UTF8_F4, K3I_UTF8_BAD = 255 };
uint32_t k3i_g_utf8_next(uint32_t state, uint32_t byte);
/* Bytes that the character still needs. */
uint32_t k3i_g_utf8_missing(uint64_t state);
/* One byte of text with a bounded number of characters; false if it does not fit. */
bool k3i_g_text_byte(const k3i_gnode *node, k3i_thread *t, uint32_t byte);

/* ---- step_json.c, step_tags.c, pattern.c: one symbol of a thread of the kind ---- */

void k3i_g_step_string(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_literals(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_bounded(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_number(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_object(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_array(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
void k3i_g_step_args(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out);
void k3i_g_step_calls(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out);
void k3i_g_step_pattern(k3i_machine *m, const k3i_thread *t, uint32_t b, k3i_threads *out);
bool k3i_g_pattern_can_finish(const k3i_machine *m, const k3i_thread *t);
uint32_t k3i_g_pattern_cost(const k3i_machine *m, const k3i_thread *t);
/* K3I_TEXT_ of a place in a pattern, for k3i_g_thread_text. */
int k3i_g_pattern_text(const k3i_machine *m, const k3i_thread *t);

/* A bounded number begun, unpacked from its thread. */
k3i_decimal k3i_g_decimal_of(const k3i_thread *t);
/* The node of the value of the object member whose key was read. */
uint32_t k3i_g_member_node(const k3i_machine *m, const k3i_thread *t);

#endif
