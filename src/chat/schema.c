/* schema.c: JSON Schema becomes grammar nodes.
 *
 * A schema is first taken apart into leaves: $ref, anyOf, type lists and missing types all end in a
 * list of (one type, one set of keywords). Each leaf is a node, a schema is the choice among its
 * leaves. Children of objects and arrays are nodes of their own, filled in later from a queue, so
 * that a schema that refers to itself is a loop in the graph and nothing here recurses.
 *
 * Strict schemas (function.strict, json_schema.strict) are refused when they contain a keyword that
 * would change the answer and cannot be enforced; other schemas are enforced as far as possible. */
#include "grammar_internal.h"

#include "json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    L_STRING,
    L_NUMBER,
    L_INTEGER,
    L_BOOLEAN,
    L_NULL,
    L_OBJECT,
    L_ARRAY,
    L_ENUM,
    L_KINDS
} leaf_kind;

static const char *const type_name[L_ENUM] = {"string", "number", "integer", "boolean",
                                              "null",   "object", "array"};

typedef struct {
    leaf_kind kind;
    yyjson_val *schema; /* NULL: no keywords */
} leaf;

/* Where a schema stands. */
typedef struct {
    yyjson_val *root; /* $ref is relative to it */
    const char *where;
    bool is_strict, is_loose;
} context;

typedef struct {
    yyjson_val *schema;
    uint32_t node;
    context ctx;
} pending;

struct k3i_schema_compiler {
    k3i_grammar *g;
    k3_status st;
    k3i_err *err;
    uint32_t any[2]; /* any JSON value, compact or loose */
    uint32_t never;  /* no value at all */
    pending *item;   /* every schema met; those from `done` on are not filled in */
    size_t n_item, cap_item, done;
    uint32_t *slot; /* hash of (schema, is_loose) -> 1 + item */
    size_t n_slot;
    leaf *leaf; /* of the schema being taken apart */
    size_t n_leaf, cap_leaf;
    yyjson_val **todo; /* schemas to take apart, and after them those that were */
    size_t n_todo, cap_todo;
    yyjson_val **seen;
    size_t n_seen, cap_seen;
    k3i_buf text; /* scratch */
};

static yyjson_val *get(yyjson_val *object, const char *key)
{
    return yyjson_obj_get(object, key);
}

static void fail(k3i_schema_compiler *c, const context *ctx, const char *what, const char *name)
{
    if (c->st == K3_OK)
        c->st = k3i_fail(c->err, K3_E_FORMAT, "%s: %s '%.100s'", ctx->where, what, name);
}

static void *grow(k3i_schema_compiler *c, void *list, size_t n, size_t *cap, size_t size)
{
    if (c->st != K3_OK || n < *cap)
        return c->st == K3_OK ? list : NULL;
    size_t want = *cap == 0 ? 64 : 2 * *cap, bytes;
    void *p = k3i_mul_size(want, size, &bytes) ? k3i_realloc(list, bytes) : NULL;
    if (p == NULL)
        c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
    else
        *cap = want;
    return p;
}

static uint32_t add_node(k3i_schema_compiler *c, k3i_gnode node)
{
    return k3i_add_node(c->g, node, &c->st, c->err);
}

static void add_lit(k3i_schema_compiler *c, const char *text, size_t n, k3i_glit lit)
{
    k3i_add_lit(c->g, text, n, lit, &c->st, c->err);
}

/* ---- schemas met
 * ----------------------------------------------------------------------------------- */

/* The place of the schema in the hash, or the empty place for it. */
static uint32_t *find_slot(const k3i_schema_compiler *c, yyjson_val *schema, bool is_loose)
{
    size_t h = ((uintptr_t)schema >> 3 ^ (uintptr_t)is_loose << 40) * (size_t)0x9E3779B97F4A7C15u;
    for (h ^= h >> 32;; h++) {
        uint32_t *s = &c->slot[h & (c->n_slot - 1)];
        if (*s == 0)
            return s;
        const pending *p = &c->item[*s - 1];
        if (p->schema == schema && p->ctx.is_loose == is_loose)
            return s;
    }
}

static void grow_slots(k3i_schema_compiler *c)
{
    size_t n = c->n_slot == 0 ? 256 : 2 * c->n_slot;
    uint32_t *slot = k3i_alloc_zero(n * sizeof *slot);
    if (slot == NULL) {
        c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
        return;
    }
    k3i_free(c->slot);
    c->slot = slot;
    c->n_slot = n;
    for (size_t i = 0; i < c->n_item; i++)
        *find_slot(c, c->item[i].schema, c->item[i].ctx.is_loose) = (uint32_t)i + 1;
}

/* The node of a schema's JSON value; filled in later. */
static uint32_t value_node(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    if (schema == NULL || c->st != K3_OK)
        return c->any[ctx->is_loose];
    if (2 * (c->n_item + 1) > c->n_slot)
        grow_slots(c);
    if (c->st != K3_OK)
        return 0;
    uint32_t *slot = find_slot(c, schema, ctx->is_loose);
    if (*slot != 0)
        return c->item[*slot - 1].node;
    pending *p = grow(c, c->item, c->n_item, &c->cap_item, sizeof *p);
    if (p == NULL)
        return 0;
    c->item = p;
    uint32_t node = add_node(c, (k3i_gnode){.kind = K3I_G_ALT});
    p[c->n_item++] = (pending){.schema = schema, .node = node, .ctx = *ctx};
    *slot = (uint32_t)c->n_item;
    return node;
}

/* ---- keywords
 * -------------------------------------------------------------------------------------- */

/* Keywords that restrict a value and are not enforced here. Everything else that is unknown is a
 * comment. */
static const char *const unsupported[] = {
    "pattern",
    "multipleOf",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "prefixItems",
    "additionalItems",
    "minProperties",
    "maxProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
};

/* Keywords that restrict a value: none of them may stand beside $ref or anyOf. */
static const char *const restricting[] = {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
    "anyOf",
    "oneOf",
    "allOf",
};

static void check_keywords(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    if (!ctx->is_strict)
        return;
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (get(schema, unsupported[i]) != NULL)
            fail(c, ctx, "the schema keyword is not supported:", unsupported[i]);
    }
    if (yyjson_is_true(get(schema, "uniqueItems")))
        fail(c, ctx, "the schema keyword is not supported:", "uniqueItems");
    if (yyjson_is_arr(get(schema, "items")))
        fail(c, ctx, "an array of schemas is not supported in", "items");
}

/* `main` is the keyword that decides; others that restrict cannot be combined with it. */
static void check_alone(k3i_schema_compiler *c, yyjson_val *schema, const char *main,
                        const context *ctx)
{
    for (size_t i = 0; ctx->is_strict && i < sizeof restricting / sizeof *restricting; i++) {
        if (strcmp(restricting[i], main) == 0 || get(schema, restricting[i]) == NULL)
            continue;
        char both[64];
        snprintf(both, sizeof both, "%s' beside '%s", restricting[i], main);
        fail(c, ctx, "the schema keyword is not supported:", both);
    }
}

/* The schema that a $ref names, NULL if there is none: "#", "#/json/pointer", and the same after
 * the root's $id. Percent escapes are undone. */
static yyjson_val *resolve(k3i_schema_compiler *c, const char *ref, const context *ctx)
{
    yyjson_val *id = get(ctx->root, "$id");
    if (yyjson_is_str(id) && strncmp(ref, yyjson_get_str(id), yyjson_get_len(id)) == 0)
        ref += yyjson_get_len(id);
    if (*ref == '\0' || strcmp(ref, "#") == 0)
        return ctx->root;
    if (ref[0] != '#' || ref[1] != '/')
        return NULL;
    c->text.n = 0;
    for (ref++; *ref != '\0' && c->st == K3_OK; ref++) {
        char byte = *ref, hex[3] = {0};
        if (byte == '%' && ref[1] != '\0' && ref[2] != '\0' &&
            strspn(ref + 1, "0123456789abcdefABCDEF") >= 2) {
            memcpy(hex, ref + 1, 2);
            byte = (char)strtol(hex, NULL, 16);
            ref += 2;
        }
        c->st = k3i_buf_add(&c->text, &byte, 1, c->err);
    }
    return c->st == K3_OK ? yyjson_ptr_getn(ctx->root, c->text.data, c->text.n) : NULL;
}

/* A non-negative integer keyword into *ret, which keeps its value when the keyword is absent. */
static void read_limit(k3i_schema_compiler *c, yyjson_val *schema, const char *key, uint32_t *ret,
                       const context *ctx)
{
    yyjson_val *val = get(schema, key);
    if (val == NULL)
        return;
    double v = yyjson_get_num(val);
    if (!yyjson_is_num(val) || v < 0 || v != (double)(uint64_t)(v < 1e18 ? v : 0)) {
        if (!yyjson_is_num(val) || v < 1e18) {
            if (ctx->is_strict)
                fail(c, ctx, "not a non-negative integer:", key);
            return;
        }
    }
    *ret = v < K3I_COST_MAX ? (uint32_t)v : K3I_NO_MAX;
}

/* ---- taking a schema apart
 * ------------------------------------------------------------------------- */

static void add_leaf(k3i_schema_compiler *c, leaf_kind kind, yyjson_val *schema)
{
    leaf *p = grow(c, c->leaf, c->n_leaf, &c->cap_leaf, sizeof *p);
    if (p == NULL)
        return;
    c->leaf = p;
    p[c->n_leaf++] = (leaf){.kind = kind, .schema = schema};
}

static void add_any_leaves(k3i_schema_compiler *c)
{
    static const leaf_kind all[] = {L_STRING, L_NUMBER, L_BOOLEAN, L_NULL, L_OBJECT, L_ARRAY};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        add_leaf(c, all[i], NULL);
}

static void push_todo(k3i_schema_compiler *c, yyjson_val *schema)
{
    yyjson_val **p = grow(c, c->todo, c->n_todo, &c->cap_todo, sizeof *p);
    if (p == NULL)
        return;
    c->todo = p;
    p[c->n_todo++] = schema;
}

/* False if the schema was taken apart already in this round: it adds nothing new. */
static bool mark_seen(k3i_schema_compiler *c, yyjson_val *schema)
{
    for (size_t i = 0; i < c->n_seen; i++) {
        if (c->seen[i] == schema)
            return false;
    }
    yyjson_val **p = grow(c, c->seen, c->n_seen, &c->cap_seen, sizeof *p);
    if (p == NULL)
        return false;
    c->seen = p;
    p[c->n_seen++] = schema;
    return true;
}

static void add_type(k3i_schema_compiler *c, yyjson_val *type, yyjson_val *schema,
                     const context *ctx)
{
    for (leaf_kind k = 0; k < L_ENUM; k++) {
        if (yyjson_equals_str(type, type_name[k])) {
            add_leaf(c, k, schema);
            return;
        }
    }
    if (ctx->is_strict)
        fail(c, ctx, "unknown schema type", yyjson_is_str(type) ? yyjson_get_str(type) : "");
    else
        add_any_leaves(c);
}

/* Keywords tell the type where `type` is missing; with none of them any value fits. */
static void add_inferred(k3i_schema_compiler *c, yyjson_val *schema)
{
    static const struct {
        const char *key;
        leaf_kind kind;
    } hints[] = {{"properties", L_OBJECT},
                 {"required", L_OBJECT},
                 {"additionalProperties", L_OBJECT},
                 {"items", L_ARRAY},
                 {"minItems", L_ARRAY},
                 {"maxItems", L_ARRAY},
                 {"minLength", L_STRING},
                 {"maxLength", L_STRING},
                 {"minimum", L_NUMBER},
                 {"maximum", L_NUMBER},
                 {"exclusiveMinimum", L_NUMBER},
                 {"exclusiveMaximum", L_NUMBER}};
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (get(schema, hints[i].key) != NULL) {
            add_leaf(c, hints[i].kind, schema);
            return;
        }
    }
    add_any_leaves(c);
}

/* anyOf, oneOf or a single allOf: its members are taken apart next, in order. */
static bool push_members(k3i_schema_compiler *c, yyjson_val *schema, const char *key,
                         const context *ctx)
{
    yyjson_val *list = get(schema, key);
    size_t n = yyjson_arr_size(list);
    if (list == NULL)
        return false;
    check_alone(c, schema, key, ctx);
    if (n == 0 || (n > 1 && strcmp(key, "allOf") == 0)) {
        if (ctx->is_strict)
            fail(c, ctx, "the schema keyword is not supported in this form:", key);
        add_any_leaves(c);
        return true;
    }
    for (size_t i = n; i-- > 0;)
        push_todo(c, yyjson_arr_get(list, i));
    return true;
}

static void take_apart_one(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    if (yyjson_is_bool(schema)) {
        if (yyjson_get_bool(schema))
            add_any_leaves(c);
        return;
    }
    if (!yyjson_is_obj(schema)) {
        fail(c, ctx, "a schema must be an object,", "found another JSON type");
        return;
    }
    check_keywords(c, schema, ctx);
    yyjson_val *ref = get(schema, "$ref"), *type = get(schema, "type");
    if (ref != NULL) {
        yyjson_val *target = yyjson_is_str(ref) ? resolve(c, yyjson_get_str(ref), ctx) : NULL;
        check_alone(c, schema, "$ref", ctx);
        if (target != NULL)
            push_todo(c, target);
        else if (ctx->is_strict)
            fail(c, ctx, "$ref leads nowhere:", yyjson_is_str(ref) ? yyjson_get_str(ref) : "");
        else
            add_any_leaves(c);
        return;
    }
    if (push_members(c, schema, "anyOf", ctx) || push_members(c, schema, "oneOf", ctx) ||
        push_members(c, schema, "allOf", ctx))
        return;
    if (get(schema, "enum") != NULL || get(schema, "const") != NULL) {
        add_leaf(c, L_ENUM, schema);
    } else if (yyjson_is_arr(type)) {
        yyjson_arr_iter it = yyjson_arr_iter_with(type);
        for (yyjson_val *t; (t = yyjson_arr_iter_next(&it)) != NULL;)
            add_type(c, t, schema, ctx);
    } else if (type != NULL) {
        add_type(c, type, schema, ctx);
    } else {
        add_inferred(c, schema);
    }
    if (yyjson_is_true(get(schema, "nullable")))
        add_leaf(c, L_NULL, NULL);
}

/* Fills c->leaf with the alternatives of the schema. */
static void take_apart(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    c->n_leaf = c->n_todo = c->n_seen = 0;
    if (schema == NULL)
        add_any_leaves(c);
    else
        push_todo(c, schema);
    while (c->n_todo > 0 && c->st == K3_OK) {
        yyjson_val *next = c->todo[--c->n_todo];
        if (mark_seen(c, next))
            take_apart_one(c, next, ctx);
    }
}

/* ---- leaves to nodes
 * ------------------------------------------------------------------------------- */

static uint32_t literals_node(k3i_schema_compiler *c, uint32_t first)
{
    k3i_sort_lits(c->g, first);
    return add_node(c, (k3i_gnode){.kind = K3I_G_LITERALS,
                                   .u.keys = {.first = first, .n = c->g->n_lit - first}});
}

static uint32_t words_node(k3i_schema_compiler *c, const char *a, const char *b)
{
    uint32_t first = c->g->n_lit;
    add_lit(c, a, strlen(a), (k3i_glit){0});
    if (b != NULL)
        add_lit(c, b, strlen(b), (k3i_glit){0});
    return literals_node(c, first);
}

static uint32_t text_node(k3i_schema_compiler *c, yyjson_val *schema, k3i_gkind kind,
                          const context *ctx)
{
    k3i_gnode node = {.kind = kind, .u.text = {.min = 0, .max = K3I_NO_MAX}};
    read_limit(c, schema, "minLength", &node.u.text.min, ctx);
    read_limit(c, schema, "maxLength", &node.u.text.max, ctx);
    if (node.u.text.min > node.u.text.max)
        fail(c, ctx, "nothing satisfies", "minLength > maxLength");
    return add_node(c, node);
}

static void read_bound(k3i_schema_compiler *c, yyjson_val *schema, const char *key, bool is_min,
                       bool is_exclusive, k3i_gnode *node, const context *ctx)
{
    yyjson_val *val = get(schema, key);
    if (val == NULL || c->st != K3_OK)
        return;
    if (!yyjson_is_num(val) && !yyjson_is_raw(val)) {
        if (ctx->is_strict)
            fail(c, ctx, "not a number:", key);
        return;
    }
    bool is_exact;
    c->text.n = 0;
    c->st = k3i_json_print(val, K3I_JSON_SORTED, &c->text, c->err);
    if (c->st != K3_OK)
        return;
    k3i_i128 bound =
        k3i_scale_decimal(c->text.data, c->text.n, node->u.number.n_frac, is_min, &is_exact);
    if (is_exclusive && is_exact)
        bound += is_min ? 1 : -1;
    node->u.number.is_bounded = true;
    if (is_min && bound > node->u.number.min)
        node->u.number.min = bound;
    if (!is_min && bound < node->u.number.max)
        node->u.number.max = bound;
}

static uint32_t number_node(k3i_schema_compiler *c, yyjson_val *schema, bool is_integer,
                            const context *ctx)
{
    bool is_exact;
    uint32_t n_frac = is_integer ? 0 : K3I_FRAC_DIGITS;
    k3i_gnode node = {.kind = K3I_G_NUMBER,
                      .u.number = {.is_integer = is_integer, .n_frac = n_frac}};
    node.u.number.max = k3i_scale_decimal("1e18", 4, n_frac, false, &is_exact) - 1;
    node.u.number.min = -node.u.number.max;
    read_bound(c, schema, "minimum", true, false, &node, ctx);
    read_bound(c, schema, "maximum", false, false, &node, ctx);
    read_bound(c, schema, "exclusiveMinimum", true, true, &node, ctx);
    read_bound(c, schema, "exclusiveMaximum", false, true, &node, ctx);
    return add_node(c, node);
}

static uint32_t array_node(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    yyjson_val *items = get(schema, "items");
    k3i_gnode node = {
        .kind = K3I_G_ARRAY, .is_loose = ctx->is_loose, .u.array = {.min = 0, .max = K3I_NO_MAX}};
    read_limit(c, schema, "minItems", &node.u.array.min, ctx);
    read_limit(c, schema, "maxItems", &node.u.array.max, ctx);
    if (node.u.array.min > node.u.array.max)
        fail(c, ctx, "nothing satisfies", "minItems > maxItems");
    node.u.array.item = value_node(c, yyjson_is_arr(items) ? NULL : items, ctx);
    return add_node(c, node);
}

/* The node of undeclared members: 0 if there may be none. */
static uint32_t rest_node(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    yyjson_val *rest = get(schema, "additionalProperties");
    if (yyjson_is_bool(rest))
        return yyjson_get_bool(rest) ? c->any[ctx->is_loose] : 0;
    return value_node(c, rest, ctx);
}

/* "key" as it stands in JSON. */
static const k3i_buf *quoted(k3i_schema_compiler *c, const char *s, size_t n)
{
    c->text.n = 0;
    if (c->st == K3_OK)
        c->st = k3i_buf_add(&c->text, "\"", 1, c->err);
    if (c->st == K3_OK)
        c->st = k3i_json_escape(s, n, &c->text, c->err);
    if (c->st == K3_OK)
        c->st = k3i_buf_add(&c->text, "\"", 1, c->err);
    return &c->text;
}

static uint32_t object_node(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    uint32_t rest = rest_node(c, schema, ctx), first = c->g->n_lit;
    yyjson_obj_iter it = yyjson_obj_iter_with(get(schema, "properties"));
    for (yyjson_val *key; c->st == K3_OK && (key = yyjson_obj_iter_next(&it)) != NULL;) {
        uint32_t node = value_node(c, yyjson_obj_iter_get_val(key), ctx);
        const k3i_buf *text = quoted(c, yyjson_get_str(key), yyjson_get_len(key));
        add_lit(c, text->data, text->n, (k3i_glit){.node = node});
    }
    yyjson_val *required = get(schema, "required");
    for (int pass = 0; pass < 2 && c->st == K3_OK; pass++) {
        yyjson_arr_iter names = yyjson_arr_iter_with(required);
        for (yyjson_val *name; c->st == K3_OK && (name = yyjson_arr_iter_next(&names)) != NULL;) {
            if (!yyjson_is_str(name))
                continue;
            const k3i_buf *text = quoted(c, yyjson_get_str(name), yyjson_get_len(name));
            if (pass == 0) { /* undeclared ones; for declared ones the literal above stays */
                add_lit(c, text->data, text->n, (k3i_glit){.node = rest != 0 ? rest : c->never});
            } else {
                k3i_find_lit(c->g, first, text->data, text->n)->is_required = true;
            }
        }
        if (pass == 0 && c->st == K3_OK)
            k3i_sort_lits(c->g, first);
    }
    uint32_t n = c->g->n_lit - first;
    for (uint32_t i = 0; i < n && c->st == K3_OK; i++)
        c->g->lit[first + i].prop = i;
    return add_node(c, (k3i_gnode){.kind = K3I_G_OBJECT,
                                   .is_loose = ctx->is_loose,
                                   .u.keys = {.first = first, .n = n, .n_prop = n, .rest = rest}});
}

/* ---- enum
 * ------------------------------------------------------------------------------------------ */

static bool value_has_type(yyjson_val *val, yyjson_val *type)
{
    bool is_whole = yyjson_is_int(val) ||
                    (yyjson_is_real(val) &&
                     yyjson_get_real(val) == (double)(int64_t)(yyjson_get_real(val) < 9e18 &&
                                                                       yyjson_get_real(val) > -9e18
                                                                   ? yyjson_get_real(val)
                                                                   : 0.5));
    return (yyjson_is_str(val) && yyjson_equals_str(type, "string")) ||
           ((yyjson_is_num(val) || yyjson_is_raw(val)) && yyjson_equals_str(type, "number")) ||
           (is_whole && yyjson_equals_str(type, "integer")) ||
           (yyjson_is_bool(val) && yyjson_equals_str(type, "boolean")) ||
           (yyjson_is_null(val) && yyjson_equals_str(type, "null")) ||
           (yyjson_is_obj(val) && yyjson_equals_str(type, "object")) ||
           (yyjson_is_arr(val) && yyjson_equals_str(type, "array"));
}

/* Does a listed value keep the other keywords beside the list? */
static bool value_fits(k3i_schema_compiler *c, yyjson_val *val, yyjson_val *schema)
{
    yyjson_val *type = get(schema, "type"), *limit;
    bool fits = type == NULL || value_has_type(val, type);
    yyjson_arr_iter it = yyjson_arr_iter_with(type);
    for (yyjson_val *t; !fits && (t = yyjson_arr_iter_next(&it)) != NULL;)
        fits = value_has_type(val, t);
    if (yyjson_is_num(val)) {
        double v = yyjson_get_num(val);
        fits = fits && ((limit = get(schema, "minimum")) == NULL || v >= yyjson_get_num(limit));
        fits = fits && ((limit = get(schema, "maximum")) == NULL || v <= yyjson_get_num(limit));
        fits = fits &&
               ((limit = get(schema, "exclusiveMinimum")) == NULL || v > yyjson_get_num(limit));
        fits = fits &&
               ((limit = get(schema, "exclusiveMaximum")) == NULL || v < yyjson_get_num(limit));
    } else if (yyjson_is_str(val)) {
        double n = 0;
        for (size_t i = 0; i < yyjson_get_len(val); i++)
            n += (yyjson_get_str(val)[i] & 0xC0) != 0x80;
        fits = fits && ((limit = get(schema, "minLength")) == NULL || n >= yyjson_get_num(limit));
        fits = fits && ((limit = get(schema, "maxLength")) == NULL || n <= yyjson_get_num(limit));
    }
    (void)c;
    return fits;
}

static const char *value_type(yyjson_val *val)
{
    return yyjson_is_str(val)    ? "string"
           : yyjson_is_bool(val) ? "boolean"
           : yyjson_is_null(val) ? "null"
           : yyjson_is_obj(val)  ? "object"
           : yyjson_is_arr(val)  ? "array"
                                 : "number";
}

/* The listed values, of one type if `type` is given; strings raw if `is_raw`. 0 if there are none.
 */
static uint32_t enum_node(k3i_schema_compiler *c, yyjson_val *schema, const char *type, bool is_raw)
{
    yyjson_val *list = get(schema, "enum"), *only = get(schema, "const");
    uint32_t first = c->g->n_lit;
    size_t n = only != NULL ? 1 : yyjson_arr_size(list);
    yyjson_arr_iter it = yyjson_arr_iter_with(list);
    for (size_t i = 0; i < n && c->st == K3_OK; i++) {
        yyjson_val *val = only != NULL ? only : yyjson_arr_iter_next(&it);
        if (!value_fits(c, val, schema) || (type != NULL && strcmp(type, value_type(val)) != 0))
            continue;
        if (is_raw && yyjson_is_str(val)) {
            add_lit(c, yyjson_get_str(val), yyjson_get_len(val), (k3i_glit){0});
            continue;
        }
        c->text.n = 0;
        c->st = k3i_json_print(val, K3I_JSON_SORTED, &c->text, c->err);
        add_lit(c, c->text.data, c->text.n, (k3i_glit){0});
    }
    return c->g->n_lit == first ? 0 : literals_node(c, first);
}

static uint32_t leaf_node(k3i_schema_compiler *c, leaf l, const context *ctx)
{
    switch (l.kind) {
    case L_STRING:
        return text_node(c, l.schema, K3I_G_STRING, ctx);
    case L_NUMBER:
    case L_INTEGER:
        return number_node(c, l.schema, l.kind == L_INTEGER, ctx);
    case L_BOOLEAN:
        return words_node(c, "true", "false");
    case L_NULL:
        return words_node(c, "null", NULL);
    case L_OBJECT:
        return object_node(c, l.schema, ctx);
    case L_ARRAY:
        return array_node(c, l.schema, ctx);
    default:
        return enum_node(c, l.schema, NULL, false);
    }
}

/* Makes `node` the choice among the first n entries of c->leaf, whose kinds were replaced by nodes.
 */
static void set_alternatives(k3i_schema_compiler *c, uint32_t node, const uint32_t *alternative,
                             size_t n)
{
    uint32_t first = c->g->n_child;
    for (size_t i = 0; i < n; i++) {
        if (alternative[i] != 0)
            k3i_add_child(c->g, alternative[i], &c->st, c->err);
    }
    if (c->st == K3_OK) {
        c->g->node[node].u.alt.first = first;
        c->g->node[node].u.alt.n = c->g->n_child - first;
    }
}

static void fill(k3i_schema_compiler *c, uint32_t node, yyjson_val *schema, const context *ctx)
{
    take_apart(c, schema, ctx);
    uint32_t *alternative =
        c->st == K3_OK ? k3i_alloc_array(c->n_leaf + 1, sizeof *alternative) : NULL;
    if (alternative == NULL) {
        if (c->st == K3_OK)
            c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
        return;
    }
    for (size_t i = 0; i < c->n_leaf && c->st == K3_OK; i++)
        alternative[i] = leaf_node(c, c->leaf[i], ctx);
    set_alternatives(c, node, alternative, c->n_leaf);
    k3i_free(alternative);
}

static void drain(k3i_schema_compiler *c)
{
    while (c->done < c->n_item && c->st == K3_OK) {
        pending p = c->item[c->done++];
        fill(c, p.node, p.schema, &p.ctx);
    }
}

/* ---- arguments of a tool call
 * ---------------------------------------------------------------------- */

/* The body of an argument tag of type `tag` for the leaf; 0 if the leaf has no value of that type.
 */
static uint32_t body_node(k3i_schema_compiler *c, leaf l, const char *tag, const context *ctx)
{
    const char *own = l.kind == L_INTEGER ? "number" : l.kind < L_ENUM ? type_name[l.kind] : NULL;
    if (own == NULL)
        return enum_node(c, l.schema, tag, true);
    if (strcmp(own, tag) != 0)
        return 0;
    return l.kind == L_STRING ? text_node(c, l.schema, K3I_G_RAW, ctx) : leaf_node(c, l, ctx);
}

static const char *const tags[K3I_N_TYPES] = {"array",  "boolean", "null",
                                              "number", "object",  "string"};

typedef struct {
    const char *name;
    size_t n;
    yyjson_val *schema;
    uint32_t prop;
    bool is_required;
} argument_spec;

/* Adds the headers of one property to c->text.. as literals; their bodies were made before. */
static void add_headers(k3i_schema_compiler *c, const argument_spec *a,
                        const uint32_t body[K3I_N_TYPES])
{
    for (size_t i = 0; i < K3I_N_TYPES && c->st == K3_OK; i++) {
        if (body[i] == 0)
            continue;
        c->text.n = 0;
        c->st = k3i_buf_adds(&c->text, "argument key=\"", c->err);
        if (c->st == K3_OK)
            c->st = k3i_attr_escape(a->name, a->n, &c->text, c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_adds(&c->text, "\" type=\"", c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_adds(&c->text, tags[i], c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_add(&c->text, "\"", 1, c->err);
        add_lit(c, c->text.data, c->text.n,
                (k3i_glit){.node = body[i], .prop = a->prop, .is_required = a->is_required});
    }
}

/* The bodies of one property by type. */
static void make_bodies(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx,
                        uint32_t body[K3I_N_TYPES])
{
    take_apart(c, schema, ctx);
    uint32_t *node = c->st == K3_OK ? k3i_alloc_array(c->n_leaf + 1, sizeof *node) : NULL;
    if (node == NULL) {
        if (c->st == K3_OK)
            c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
        return;
    }
    for (size_t i = 0; i < K3I_N_TYPES && c->st == K3_OK; i++) {
        size_t n = 0;
        for (size_t k = 0; k < c->n_leaf && c->st == K3_OK; k++) {
            node[n] = body_node(c, c->leaf[k], tags[i], ctx);
            n += node[n] != 0;
        }
        body[i] = n == 0 ? 0 : n == 1 ? node[0] : add_node(c, (k3i_gnode){.kind = K3I_G_ALT});
        if (n > 1 && c->st == K3_OK)
            set_alternatives(c, body[i], node, n);
    }
    k3i_free(node);
}

static bool is_listed(yyjson_val *list, yyjson_val *name)
{
    yyjson_arr_iter it = yyjson_arr_iter_with(list);
    for (yyjson_val *v; (v = yyjson_arr_iter_next(&it)) != NULL;) {
        if (yyjson_is_str(v) && yyjson_equals_strn(v, yyjson_get_str(name), yyjson_get_len(name)))
            return true;
    }
    return false;
}

static uint32_t args_node(k3i_schema_compiler *c, yyjson_val *schema, const context *ctx)
{
    yyjson_val *properties = get(schema, "properties"), *required = get(schema, "required");
    yyjson_val *free_schema = get(schema, "additionalProperties");
    uint32_t n_prop = 0;
    size_t n_declared = yyjson_obj_size(properties), n = n_declared + yyjson_arr_size(required);
    argument_spec *arg = k3i_alloc_array(n + 1, sizeof *arg);
    uint32_t(*body)[K3I_N_TYPES] = k3i_alloc_zero((n + 1) * sizeof *body);
    if (arg == NULL || body == NULL)
        c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
    yyjson_obj_iter it = yyjson_obj_iter_with(properties);
    for (yyjson_val *key; c->st == K3_OK && (key = yyjson_obj_iter_next(&it)) != NULL; n_prop++)
        arg[n_prop] =
            (argument_spec){yyjson_get_str(key), yyjson_get_len(key), yyjson_obj_iter_get_val(key),
                            n_prop, is_listed(required, key)};
    yyjson_arr_iter names = yyjson_arr_iter_with(required);
    for (yyjson_val *name; c->st == K3_OK && (name = yyjson_arr_iter_next(&names)) != NULL;) {
        if (yyjson_is_str(name) &&
            yyjson_obj_getn(properties, yyjson_get_str(name), yyjson_get_len(name)) == NULL) {
            arg[n_prop] = (argument_spec){yyjson_get_str(name), yyjson_get_len(name), free_schema,
                                          n_prop, true};
            n_prop++;
        }
    }
    /* Bodies first: they add literals of their own, and the headers must lie together. */
    for (uint32_t i = 0; i < n_prop && c->st == K3_OK; i++)
        make_bodies(c, arg[i].schema, ctx, body[i]);
    if (c->st == K3_OK) /* those of undeclared arguments, behind the others */
        make_bodies(c, free_schema, ctx, body[n_prop]);
    uint32_t first = c->g->n_lit;
    for (uint32_t i = 0; i < n_prop && c->st == K3_OK; i++) {
        bool is_possible = false;
        for (size_t k = 0; k < K3I_N_TYPES; k++)
            is_possible = is_possible || body[i][k] != 0;
        if (!is_possible && arg[i].is_required)
            fail(c, ctx, "nothing satisfies the required argument", arg[i].name);
        add_headers(c, &arg[i], body[i]);
    }
    k3i_sort_lits(c->g, first);
    uint32_t n_header = c->g->n_lit - first, rest_first = c->g->n_lit;
    for (size_t i = 0; i < K3I_N_TYPES && c->st == K3_OK; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, " type=\"%s\"", tags[i]);
        if (body[n_prop][i] != 0)
            add_lit(c, text, (size_t)len, (k3i_glit){.node = body[n_prop][i]});
    }
    k3i_free(arg);
    k3i_free(body);
    return add_node(c, (k3i_gnode){.kind = K3I_G_ARGS,
                                   .u.keys = {.first = first,
                                              .n = n_header,
                                              .n_prop = n_prop,
                                              .rest_first = rest_first,
                                              .n_rest = c->g->n_lit - rest_first}});
}

uint32_t k3i_schema_args(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict,
                         const char *where, k3_status *st)
{
    context ctx = {.root = schema, .where = where, .is_strict = is_strict, .is_loose = true};
    uint32_t node = 0;
    if (schema == NULL) {
        node = args_node(c, NULL, &ctx);
    } else {
        take_apart(c, schema, &ctx);
        yyjson_val *object[2] = {NULL, NULL};
        size_t n_object = 0;
        for (size_t i = 0; i < c->n_leaf; i++) {
            if (c->leaf[i].kind == L_OBJECT && n_object++ == 0)
                object[0] = c->leaf[i].schema;
        }
        /* A choice among several argument lists is taken as its first one: still a valid call. */
        if (c->st == K3_OK && n_object == 0)
            fail(c, &ctx, "parameters must describe an", "object");
        node = args_node(c, object[0], &ctx);
    }
    drain(c);
    *st = c->st;
    return node;
}

uint32_t k3i_schema_json(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict, bool is_loose,
                         const char *where, k3_status *st)
{
    context ctx = {.root = schema, .where = where, .is_strict = is_strict, .is_loose = is_loose};
    uint32_t node = schema == NULL ? object_node(c, NULL, &ctx) : value_node(c, schema, &ctx);
    drain(c);
    *st = c->st;
    return node;
}

/* ---- the compiler
 * ---------------------------------------------------------------------------------- */

/* Any value, compact and loose. */
static void make_any(k3i_schema_compiler *c)
{
    c->never = add_node(c, (k3i_gnode){.kind = K3I_G_ALT});
    for (int is_loose = 0; is_loose < 2 && c->st == K3_OK; is_loose++) {
        context ctx = {.where = "any value", .is_loose = is_loose == 1};
        c->any[is_loose] = add_node(c, (k3i_gnode){.kind = K3I_G_ALT});
        fill(c, c->any[is_loose], NULL, &ctx);
    }
}

k3i_schema_compiler *k3i_schema_compiler_new(k3i_grammar *g, k3i_err *err)
{
    k3i_schema_compiler *c = k3i_alloc_zero(sizeof *c);
    if (c == NULL) {
        k3i_fail(err, K3_E_NOMEM, "out of memory (schema)");
        return NULL;
    }
    c->g = g;
    c->err = err;
    c->text = K3I_BUF(1u << 26);
    c->st = k3i_buf_reserve(&c->text, 64, err);
    make_any(c);
    if (c->st != K3_OK) {
        k3i_schema_compiler_free(c);
        return NULL;
    }
    return c;
}

void k3i_schema_compiler_free(k3i_schema_compiler *c)
{
    if (c == NULL)
        return;
    k3i_free(c->item);
    k3i_free(c->slot);
    k3i_free(c->leaf);
    k3i_free(c->todo);
    k3i_free(c->seen);
    k3i_buf_done(&c->text);
    k3i_free(c);
}
