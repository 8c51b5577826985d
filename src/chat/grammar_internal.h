/* grammar_internal.h: the compiled grammar and what its files share.
 *
 * A grammar is a graph of nodes. Each node describes one construct and is run by a thread that
 * stands somewhere inside it; a construct inside another is a call: the outer thread is kept in a
 * frame and goes on when the inner one has finished. So recursion of a schema is a stack of frames,
 * never an expansion. */
#ifndef K3I_GRAMMAR_INTERNAL_H
#define K3I_GRAMMAR_INTERNAL_H

#include "grammar.h"
#include "pattern_dfa.h"

/* The alphabet: bytes, then the structural tokens. */
enum { K3I_SYM_OPEN = 256, K3I_SYM_CLOSE, K3I_SYM_SEP, K3I_SYM_END_OF_MSG, K3I_SYM_END };

#define K3I_NO_MAX UINT32_MAX
#define K3I_NEVER UINT32_MAX /* cost of what cannot be finished */
#define K3I_COST_MAX (UINT32_MAX / 4)

__extension__ typedef __int128 k3i_i128;

typedef enum {
    K3I_G_ALT = 1,  /* one of several nodes */
    K3I_G_PROG,     /* a small program: the skeleton of the answer */
    K3I_G_FREE,     /* any bytes */
    K3I_G_RAW,      /* well-formed UTF-8 text of min..max characters */
    K3I_G_STRING,   /* JSON string of min..max characters */
    K3I_G_LITERALS, /* one of a sorted list of byte strings */
    K3I_G_NUMBER,   /* JSON number */
    K3I_G_OBJECT,   /* JSON object */
    K3I_G_ARRAY,    /* JSON array */
    K3I_G_ARGS,     /* argument tags of a tool call */
    K3I_G_CALLS,    /* call tags */
    K3I_G_PATTERN   /* JSON string or raw text that matches a pattern */
} k3i_gkind;

/* A key, a header or a literal: bytes of the pool, and what it leads to. */
typedef struct {
    uint32_t at, n;
    uint32_t node; /* value (OBJECT), body (ARGS), arguments (CALLS) */
    uint32_t
        prop; /* ARGS: several headers, one per type, belong to one property; OBJECT: own index */
    bool is_required;
} k3i_glit;

enum { K3I_OP_SYM, K3I_OP_TEXT, K3I_OP_NODE, K3I_OP_SPLIT, K3I_OP_JUMP, K3I_OP_END };

typedef struct {
    int32_t op;
    uint32_t a, b; /* SYM: symbol; TEXT: bytes [a, a + b) of the pool; NODE: id; SPLIT: both
                      targets; JUMP: a */
    uint32_t cost; /* fewest symbols from here to the end */
} k3i_gop;

/* Text of min..max characters that matches. */
typedef struct {
    k3i_regex re;
    bool is_raw; /* not a JSON string */
    uint32_t min, max;
    uint32_t n_level; /* counts of characters that are told apart */
    uint32_t *cost;   /* [n_level, states] fewest bytes to an end */
} k3i_gpattern;

typedef struct {
    k3i_gkind kind;
    bool is_loose; /* OBJECT, ARRAY: a single space after ',' and ':' is allowed */
    uint32_t cost; /* fewest symbols of a whole construct, K3I_NEVER if there is none */
    union {
        struct {
            uint32_t first, n;
        } alt; /* k3i_grammar.child */
        struct {
            uint32_t min, max;
        } text; /* RAW, STRING: characters */
        /* LITERALS, OBJECT, ARGS: k3i_grammar.lit, sorted. Undeclared members: node `rest` of
         * OBJECT (0: there are none); ARGS: literals ` type="T"` with the body of that type. */
        struct {
            uint32_t first, n, n_prop, rest, rest_first, n_rest;
        } keys;
        struct {
            uint32_t first, n;
            bool is_single;
        } calls;
        uint32_t pattern; /* k3i_grammar.pattern */
        struct {
            uint32_t item, min, max;
        } array;
        struct {
            k3i_i128 min, max;
            uint32_t n_frac;
            bool is_integer, is_bounded;
        } number; /* in 10^-n_frac */
    } u;
} k3i_gnode;

/* Compiles the pattern for the limits that are set in *p. K3_E_FORMAT if it is not supported. */
k3_status k3i_gpattern_init(k3i_gpattern *p, const char *pattern, size_t n, k3i_err *err);
void k3i_gpattern_done(k3i_gpattern *p);

/* Written by the compiler, read-only afterwards. Node 0 is unused. */
struct k3i_grammar {
    k3i_gnode *node;
    uint32_t n_node, cap_node;
    uint32_t *child;
    uint32_t n_child, cap_child;
    k3i_glit *lit;
    uint32_t n_lit, cap_lit;
    k3i_gop *op;
    uint32_t n_op, cap_op;
    k3i_gpattern *pattern;
    uint32_t n_pattern, cap_pattern;
    k3i_buf pool;
    uint32_t root; /* the only PROG */
    char *prefix;  /* what a partial message has already said in the response channel */
    size_t prefix_bytes;
};

#define K3I_N_TYPES 6

/* ---- numbers (number.c) --------------------------------------------------------------------- */

#define K3I_INT_DIGITS 18 /* of bounded numbers; 33 digits in all fit into 128 bits */
#define K3I_FRAC_DIGITS 15

/* value * 10^n_frac of a decimal text, rounded up or down and clamped to K3I_INT_DIGITS. */
k3i_i128 k3i_g_scale_decimal(const char *text, size_t n, uint32_t n_frac, bool round_up,
                             bool *ret_is_exact);

/* A bounded number begun: its sign, digits as an integer, and how many of them. */
typedef struct {
    bool is_negative, is_zero_led; /* begins with 0: no more integer digits */
    bool has_point;
    uint32_t n_int, n_frac;
    uint64_t digits_low, digits_high;
} k3i_decimal;

void k3i_g_decimal_push(k3i_decimal *d, unsigned digit);
/* Can digits be added so that the number is in range? Is it in range as it stands? */
bool k3i_g_decimal_is_feasible(const k3i_gnode *node, const k3i_decimal *d);
bool k3i_g_decimal_is_in_range(const k3i_gnode *node, const k3i_decimal *d);
/* The fewest characters that end it in range; K3I_NEVER if there are none. */
uint32_t k3i_g_decimal_cost(const k3i_gnode *node, const k3i_decimal *d);

/* ---- the compiler (nodes.c, schema.c, grammar.c) -------------------------------------------- */

/* Each returns the new id or 0 with *st set. */
uint32_t k3i_g_add_node(k3i_grammar *g, k3i_gnode node, k3_status *st, k3i_err *err);
void k3i_g_add_child(k3i_grammar *g, uint32_t child, k3_status *st, k3i_err *err);
void k3i_g_add_lit(k3i_grammar *g, const char *text, size_t n, k3i_glit lit, k3_status *st,
                   k3i_err *err);
/* The new pattern in the grammar, zeroed; NULL with *st set. */
k3i_gpattern *k3i_g_add_pattern(k3i_grammar *g, k3_status *st, k3i_err *err);
void k3i_g_add_op(k3i_grammar *g, int32_t op, uint32_t a, uint32_t b, k3_status *st, k3i_err *err);
/* Sorts literals [first, n_lit) by bytes; of equal ones the first added stays. */
void k3i_g_sort_lits(k3i_grammar *g, uint32_t first);
/* The literal of sorted [first, n_lit) with these bytes, or NULL. */
k3i_glit *k3i_g_find_lit(k3i_grammar *g, uint32_t first, const char *text, size_t n);
/* Sets the cost of every node, from the inside out until nothing changes. */
void k3i_g_find_costs(k3i_grammar *g);
/* Appends s escaped for an attribute value. */
k3_status k3i_g_attr_escape(const char *s, size_t n, k3i_buf *ret, k3i_err *err);

typedef struct k3i_schema_compiler k3i_schema_compiler;

/* A compiler adds nodes for schemas of one grammar. */
k3i_schema_compiler *k3i_schema_compiler_new(k3i_grammar *g, k3i_err *err);
void k3i_schema_compiler_free(k3i_schema_compiler *c);
/* The node of a JSON value of `schema`; NULL is any object. `where` names the schema in errors. */
uint32_t k3i_schema_json(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict, bool is_loose,
                         const char *where, k3_status *st);
/* The node of a tool call's arguments; NULL is a tool without parameters. */
uint32_t k3i_schema_args(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict,
                         const char *where, k3_status *st);

/* ---- threads (automaton.c) ------------------------------------------------------------------ */

/* One place in the grammar. Fields not used by a kind are zero, so that equal places are equal
 * bytes. */
typedef struct {
    uint32_t node, up; /* up: 1 + frame to go on with, 0 at the root */
    uint32_t phase;    /* of the node's kind */
    uint32_t n;        /* characters, items, or bytes matched of a literal */
    uint64_t x, y;     /* of the node's kind */
} k3i_thread;

typedef struct {
    k3i_thread thread;
    uint32_t cost; /* fewest symbols to the end after the inner construct */
} k3i_frame;

typedef struct {
    k3i_thread *t;
    size_t n, cap;
} k3i_threads;

/* Alternatives alive at once; more are dropped, which only narrows the answer. */
#define K3I_MAX_THREADS 128

/* What stepping needs; part of a matcher. */
typedef struct {
    const k3i_grammar *g;
    k3i_frame *frame;
    size_t n_frame, cap_frame;
    uint64_t *word; /* sets of seen keys of objects with more than 64; word 0 unused */
    size_t n_word, cap_word;
    k3i_threads eps; /* scratch */
    bool is_out_of_memory;
} k3i_machine;

/* Appends to `out`, from place `from` on a set, the threads that `t` becomes by `sym`. */
void k3i_g_step(k3i_machine *m, const k3i_thread *t, uint32_t sym, k3i_threads *out, size_t from);
/* Appends the threads at the start of the grammar. */
void k3i_g_start(k3i_machine *m, k3i_threads *out);
/* Fewest symbols to the end of the answer. */
uint32_t k3i_g_thread_cost(const k3i_machine *m, const k3i_thread *t);
/* The answer is complete. */
bool k3i_g_thread_is_end(const k3i_machine *m, const k3i_thread *t);

enum {
    K3I_TEXT_NONE,
    K3I_TEXT_FREE,
    K3I_TEXT_RAW,
    K3I_TEXT_JSON,
    K3I_TEXT_ATTRIBUTE,
    K3I_TEXT_PATTERN,
    K3I_TEXT_PATTERN_JSON /* k3i_g_pattern_tokens knows the tokens */
};
/* Is the thread in the middle of text, between characters? Then whole classes of tokens are known
 * to fit: all, well-formed text, text without JSON's specials. *ret_left is how many characters may
 * follow, *ret_missing how many must. */
int k3i_g_thread_text(const k3i_machine *m, const k3i_thread *t, uint32_t *ret_left,
                      uint32_t *ret_missing);

/* ---- vocabulary (vocab.c) ------------------------------------------------------------------- */

/* Tokens in byte order as a trie, nodes in preorder. */
typedef struct {
    uint8_t *byte;
    uint8_t *depth;  /* of the byte within its token, from 0 */
    int32_t *id;     /* token that ends here, or -1 */
    uint32_t *after; /* first node behind the subtree */
    uint32_t n;
} k3i_trie;

#define K3I_TEXT_CHARS 32 /* longest tokens, in characters, with a mask of their own */

typedef struct {
    int32_t id;
    uint32_t n_char;
    bool is_plain;
} k3i_long_token;

struct k3i_vocab {
    const k3i_tok *tok;
    size_t n_word;
    k3i_trie all;        /* every ordinary token */
    k3i_trie quoted;     /* tokens whose first JSON special character is a quote or a backslash */
    uint32_t *every;     /* [n_word] all ordinary tokens */
    uint32_t *ampersand; /* [n_word] tokens with '&' */
    uint32_t *cut;       /* [n_word] text tokens whose last character is unfinished */
    /* [k][n_word]: tokens of well-formed text of at most k characters; the last without limit. */
    uint32_t *raw[K3I_TEXT_CHARS + 2];
    uint32_t
        *json[K3I_TEXT_CHARS + 2]; /* the same without control characters, quotes, backslashes */
    k3i_long_token *long_token;    /* text tokens of more than K3I_TEXT_CHARS characters */
    size_t n_long;
};

/* Allows the tokens that stay inside the pattern of thread t and leave room to finish within `left`
 * more tokens; raises *max_cost to the largest cost met. */
void k3i_g_pattern_tokens(const k3i_machine *m, const k3i_thread *t, const k3i_trie *trie,
                          uint32_t left, uint32_t *mask, uint32_t *max_cost);

#endif
