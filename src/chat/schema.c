/* schema.c: JSON Schema becomes grammar nodes.
 *
 * A schema is first taken apart into leaves: $ref, anyOf, type lists and missing types all end in a
 * list of (one type, one set of keywords). Each leaf is a node, a schema is the choice among its
 * leaves. Children of objects and arrays are nodes of their own, filled in later from a queue, so
 * that a schema that refers to itself is a loop in the graph and nothing here recurses.
 *
 * Strict schemas (function.strict, json_schema.strict) are refused when they contain a keyword that
 * would change the answer and cannot be enforced; other schemas are enforced as far as possible. */
#include "schema_internal.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

const char *const k3i_leaf_type[L_ENUM] = {"string", "number", "integer", "boolean",
                                           "null",   "object", "array"};

static yyjson_val *get(yyjson_val *object, const char *key)
{
    return yyjson_obj_get(object, key);
}

void k3i_schema_fail(k3i_schema_compiler *c, const k3i_schema_context *ctx, const char *what,
                     const char *name)
{
    if (c->st == K3_OK)
        c->st = k3i_fail(c->err, K3_E_FORMAT, "%s: %s '%.100s'", ctx->where, what, name);
}

void k3i_schema_check_size(k3i_schema_compiler *c, yyjson_val *schema, const char *key, size_t max,
                           const k3i_schema_context *ctx)
{
    yyjson_val *list = get(schema, key);
    size_t n = yyjson_is_obj(list) ? yyjson_obj_size(list) : yyjson_arr_size(list);
    if (n > max && c->st == K3_OK)
        c->st = k3i_fail(c->err, K3_E_LIMIT, "%s: %zu entries in '%s', at most %zu", ctx->where, n,
                         key, max);
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

/* ---- schemas met ---------------------------------------------------------------------------- */

/* The place of the schema in the hash, or the empty place for it. */
static uint32_t *find_slot(const k3i_schema_compiler *c, yyjson_val *schema, bool is_loose)
{
    size_t h = ((uintptr_t)schema >> 3 ^ (uintptr_t)is_loose << 40) * (size_t)0x9E3779B97F4A7C15u;
    for (h ^= h >> 32;; h++) {
        uint32_t *s = &c->slot[h & (c->n_slot - 1)];
        if (*s == 0)
            return s;
        const k3i_schema_item *p = &c->item[*s - 1];
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
uint32_t k3i_schema_value_node(k3i_schema_compiler *c, yyjson_val *schema,
                               const k3i_schema_context *ctx)
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
    k3i_schema_item *p = grow(c, c->item, c->n_item, &c->cap_item, sizeof *p);
    if (p == NULL)
        return 0;
    c->item = p;
    uint32_t node = k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_ALT});
    p[c->n_item++] = (k3i_schema_item){.schema = schema, .node = node, .ctx = *ctx};
    *slot = (uint32_t)c->n_item;
    return node;
}

/* ---- keywords ------------------------------------------------------------------------------- */

/* Keywords that restrict a value and are not enforced here. Everything else that is unknown is a
 * comment. */
static const char *const unsupported[] = {
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
    "pattern",
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

static void check_keywords(k3i_schema_compiler *c, yyjson_val *schema,
                           const k3i_schema_context *ctx)
{
    if (!ctx->is_strict)
        return;
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        if (get(schema, unsupported[i]) != NULL)
            k3i_schema_fail(c, ctx, "the schema keyword is not supported:", unsupported[i]);
    }
    if (yyjson_is_true(get(schema, "uniqueItems")))
        k3i_schema_fail(c, ctx, "the schema keyword is not supported:", "uniqueItems");
    if (yyjson_is_arr(get(schema, "items")))
        k3i_schema_fail(c, ctx, "an array of schemas is not supported in", "items");
}

/* `main` is the keyword that decides; others that restrict cannot be combined with it. */
static void check_alone(k3i_schema_compiler *c, yyjson_val *schema, const char *main,
                        const k3i_schema_context *ctx)
{
    for (size_t i = 0; ctx->is_strict && i < sizeof restricting / sizeof *restricting; i++) {
        if (strcmp(restricting[i], main) == 0 || get(schema, restricting[i]) == NULL)
            continue;
        char both[64];
        snprintf(both, sizeof both, "%s' beside '%s", restricting[i], main);
        k3i_schema_fail(c, ctx, "the schema keyword is not supported:", both);
    }
}

/* The schema that a $ref names, NULL if there is none: "#", "#/json/pointer", and the same after
 * the root's $id. Percent escapes are undone. */
static yyjson_val *resolve(k3i_schema_compiler *c, const char *ref, const k3i_schema_context *ctx)
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
void k3i_schema_read_limit(k3i_schema_compiler *c, yyjson_val *schema, const char *key,
                           uint32_t *ret, const k3i_schema_context *ctx)
{
    yyjson_val *val = get(schema, key);
    if (val == NULL)
        return;
    double v = yyjson_get_num(val);
    if (!yyjson_is_num(val) || v < 0 || v != (double)(uint64_t)(v < 1e18 ? v : 0)) {
        if (!yyjson_is_num(val) || v < 1e18) {
            if (ctx->is_strict)
                k3i_schema_fail(c, ctx, "not a non-negative integer:", key);
            return;
        }
    }
    *ret = v < K3I_COST_MAX ? (uint32_t)v : K3I_NO_MAX;
}

/* ---- taking a schema apart ------------------------------------------------------------------ */

static void add_leaf(k3i_schema_compiler *c, k3i_leaf_kind kind, yyjson_val *schema)
{
    k3i_leaf *p = grow(c, c->leaf, c->n_leaf, &c->cap_leaf, sizeof *p);
    if (p == NULL)
        return;
    c->leaf = p;
    p[c->n_leaf++] = (k3i_leaf){.kind = kind, .schema = schema};
}

static void add_any_leaves(k3i_schema_compiler *c)
{
    static const k3i_leaf_kind all[] = {L_STRING, L_NUMBER, L_BOOLEAN, L_NULL, L_OBJECT, L_ARRAY};
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
                     const k3i_schema_context *ctx)
{
    for (k3i_leaf_kind k = 0; k < L_ENUM; k++) {
        if (yyjson_equals_str(type, k3i_leaf_type[k])) {
            add_leaf(c, k, schema);
            return;
        }
    }
    if (ctx->is_strict)
        k3i_schema_fail(c, ctx, "unknown schema type",
                        yyjson_is_str(type) ? yyjson_get_str(type) : "");
    else
        add_any_leaves(c);
}

/* Keywords tell the type where `type` is missing; with none of them any value fits. */
static void add_inferred(k3i_schema_compiler *c, yyjson_val *schema)
{
    static const struct {
        const char *key;
        k3i_leaf_kind kind;
    } hints[] = {{"properties", L_OBJECT},
                 {"required", L_OBJECT},
                 {"additionalProperties", L_OBJECT},
                 {"items", L_ARRAY},
                 {"minItems", L_ARRAY},
                 {"maxItems", L_ARRAY},
                 {"minLength", L_STRING},
                 {"pattern", L_STRING},
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
                         const k3i_schema_context *ctx)
{
    yyjson_val *list = get(schema, key);
    size_t n = yyjson_arr_size(list);
    if (list == NULL)
        return false;
    check_alone(c, schema, key, ctx);
    if (n == 0 || (n > 1 && strcmp(key, "allOf") == 0)) {
        if (ctx->is_strict)
            k3i_schema_fail(c, ctx, "the schema keyword is not supported in this form:", key);
        add_any_leaves(c);
        return true;
    }
    for (size_t i = n; i-- > 0;)
        push_todo(c, yyjson_arr_get(list, i));
    return true;
}

static void take_apart_one(k3i_schema_compiler *c, yyjson_val *schema,
                           const k3i_schema_context *ctx)
{
    if (yyjson_is_bool(schema)) {
        if (yyjson_get_bool(schema))
            add_any_leaves(c);
        return;
    }
    if (!yyjson_is_obj(schema)) {
        k3i_schema_fail(c, ctx, "a schema must be an object,", "found another JSON type");
        return;
    }
    check_keywords(c, schema, ctx);
    k3i_schema_check_size(c, schema, "properties", K3I_MAX_MEMBERS, ctx);
    k3i_schema_check_size(c, schema, "required", K3I_MAX_MEMBERS, ctx);
    k3i_schema_check_size(c, schema, "enum", K3I_MAX_VALUES, ctx);
    k3i_schema_check_size(c, schema, "anyOf", K3I_MAX_ALTERNATIVES, ctx);
    k3i_schema_check_size(c, schema, "oneOf", K3I_MAX_ALTERNATIVES, ctx);
    if (c->n_seen > K3I_MAX_ALTERNATIVES)
        k3i_schema_fail(c, ctx, "too many alternatives in", "anyOf");
    if (c->st != K3_OK)
        return;
    yyjson_val *ref = get(schema, "$ref"), *type = get(schema, "type");
    if (ref != NULL) {
        yyjson_val *target = yyjson_is_str(ref) ? resolve(c, yyjson_get_str(ref), ctx) : NULL;
        check_alone(c, schema, "$ref", ctx);
        if (target != NULL)
            push_todo(c, target);
        else if (ctx->is_strict)
            k3i_schema_fail(c, ctx,
                            "$ref leads nowhere:", yyjson_is_str(ref) ? yyjson_get_str(ref) : "");
        else
            add_any_leaves(c);
        return;
    }
    if (push_members(c, schema, "anyOf", ctx) || push_members(c, schema, "oneOf", ctx) ||
        push_members(c, schema, "allOf", ctx))
        return;
    if (get(schema, "enum") != NULL || get(schema, "const") != NULL) {
        if (ctx->is_strict && get(schema, "pattern") != NULL)
            k3i_schema_fail(c, ctx,
                            "the schema keyword is not supported:", "pattern' beside 'enum");
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
void k3i_schema_take_apart(k3i_schema_compiler *c, yyjson_val *schema,
                           const k3i_schema_context *ctx)
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

/* ---- the compiler --------------------------------------------------------------------------- */

/* Any value, compact and loose. */
static void make_any(k3i_schema_compiler *c)
{
    c->never = k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_ALT});
    for (int is_loose = 0; is_loose < 2 && c->st == K3_OK; is_loose++) {
        k3i_schema_context ctx = {.where = "any value", .is_loose = is_loose == 1};
        c->any[is_loose] = k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_ALT});
        k3i_schema_fill_choice(c, c->any[is_loose], NULL, &ctx);
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
