/* schema_internal.h: the schema compiler's state and what its three files share. */
#ifndef K3I_SCHEMA_INTERNAL_H
#define K3I_SCHEMA_INTERNAL_H

#include "grammar_internal.h"

/* Limits far above what schemas need (MFJS allows 500 alternatives, 3,000 keys, 1,000 values): they
 * bound the time that a hostile schema can take. */
#define K3I_MAX_ALTERNATIVES 2048
#define K3I_MAX_MEMBERS 4096
#define K3I_MAX_VALUES 16384

/* A leaf of a schema: one type with its keywords, or a list of values. */
typedef enum {
    L_STRING,
    L_NUMBER,
    L_INTEGER,
    L_BOOLEAN,
    L_NULL,
    L_OBJECT,
    L_ARRAY,
    L_ENUM
} k3i_leaf_kind;

typedef struct {
    k3i_leaf_kind kind;
    yyjson_val *schema; /* NULL: no keywords */
} k3i_leaf;

/* Where a schema stands. */
typedef struct {
    yyjson_val *root; /* $ref is relative to it */
    const char *where;
    bool is_strict, is_loose;
} k3i_schema_context;

typedef struct {
    yyjson_val *schema;
    uint32_t node;
    k3i_schema_context ctx;
} k3i_schema_item;

struct k3i_schema_compiler {
    k3i_grammar *g;
    k3_status st;
    k3i_err *err;
    uint32_t any[2];       /* any JSON value, compact or loose */
    uint32_t never;        /* no value at all */
    k3i_schema_item *item; /* every schema met; those from `done` on are not filled in */
    size_t n_item, cap_item, done;
    uint32_t *slot; /* hash of (schema, is_loose) -> 1 + item */
    size_t n_slot;
    k3i_leaf *leaf; /* of the schema being taken apart */
    size_t n_leaf, cap_leaf;
    yyjson_val **todo; /* schemas to take apart, and after them those that were */
    size_t n_todo, cap_todo;
    yyjson_val **seen;
    size_t n_seen, cap_seen;
    k3i_buf text; /* scratch */
};

/* The name of a leaf's type in schemas; not for L_ENUM. */
extern const char *const k3i_leaf_type[L_ENUM];

static inline uint32_t k3i_schema_node(k3i_schema_compiler *c, k3i_gnode node)
{
    return k3i_g_add_node(c->g, node, &c->st, c->err);
}

static inline void k3i_schema_lit(k3i_schema_compiler *c, const char *text, size_t n, k3i_glit lit)
{
    k3i_g_add_lit(c->g, text, n, lit, &c->st, c->err);
}

/* ---- schema.c ---- */

/* Records the first error: "WHERE: WHAT 'NAME'". */
void k3i_schema_fail(k3i_schema_compiler *c, const k3i_schema_context *ctx, const char *what,
                     const char *name);
/* Records K3_E_LIMIT if the schema lists more than `max` entries under `key`. */
void k3i_schema_check_size(k3i_schema_compiler *c, yyjson_val *schema, const char *key, size_t max,
                           const k3i_schema_context *ctx);
/* The node of a schema's JSON value (NULL: any), filled in by k3i_schema_drain. */
uint32_t k3i_schema_value_node(k3i_schema_compiler *c, yyjson_val *schema,
                               const k3i_schema_context *ctx);
/* A non-negative integer keyword into *ret, which keeps its value when the keyword is absent. */
void k3i_schema_read_limit(k3i_schema_compiler *c, yyjson_val *schema, const char *key,
                           uint32_t *ret, const k3i_schema_context *ctx);
/* Fills c->leaf with the alternatives of the schema (NULL: any value). */
void k3i_schema_take_apart(k3i_schema_compiler *c, yyjson_val *schema,
                           const k3i_schema_context *ctx);

/* ---- schema_nodes.c ---- */

/* The JSON node of a leaf; 0 for L_ENUM, see below. */
uint32_t k3i_schema_leaf_node(k3i_schema_compiler *c, k3i_leaf l, const k3i_schema_context *ctx);
/* Text of the kind STRING or RAW, with its limits and pattern. */
uint32_t k3i_schema_text_node(k3i_schema_compiler *c, yyjson_val *schema, k3i_gkind kind,
                              const k3i_schema_context *ctx);
/* The values of all L_ENUM leaves, of one type if `type` is given, strings as raw text if `is_raw`;
 * 0 if there are none. */
uint32_t k3i_schema_enum_node(k3i_schema_compiler *c, const char *type, bool is_raw);
/* Makes the ALT `node` the choice among alternative[0..n), zeros left out. */
void k3i_schema_set_alternatives(k3i_schema_compiler *c, uint32_t node, const uint32_t *alternative,
                                 size_t n);
/* Makes the ALT `node` the choice among the leaves of the schema. */
void k3i_schema_fill_choice(k3i_schema_compiler *c, uint32_t node, yyjson_val *schema,
                            const k3i_schema_context *ctx);
/* Fills in every node that k3i_schema_value_node has promised. */
void k3i_schema_drain(k3i_schema_compiler *c);

#endif
