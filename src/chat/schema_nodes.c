/* schema_nodes.c: the leaves of a schema become grammar nodes: text, numbers, lists of values,
 * objects, arrays. */
#include "schema_internal.h"

#include "json_text.h"

#include <string.h>

static yyjson_val *get(yyjson_val *object, const char *key)
{
    return yyjson_obj_get(object, key);
}

/* ---- leaves to nodes ------------------------------------------------------------------------ */

static uint32_t literals_node(k3i_schema_compiler *c, uint32_t first)
{
    k3i_g_sort_lits(c->g, first);
    return k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_LITERALS,
                                          .u.keys = {.first = first, .n = c->g->n_lit - first}});
}

static uint32_t words_node(k3i_schema_compiler *c, const char *a, const char *b)
{
    uint32_t first = c->g->n_lit;
    k3i_schema_lit(c, a, strlen(a), (k3i_glit){0});
    if (b != NULL)
        k3i_schema_lit(c, b, strlen(b), (k3i_glit){0});
    return literals_node(c, first);
}

static uint32_t pattern_node(k3i_schema_compiler *c, yyjson_val *pattern, const k3i_gnode *text,
                             const k3i_schema_context *ctx)
{
    k3i_gpattern p = {
        .is_raw = text->kind == K3I_G_RAW, .min = text->u.text.min, .max = text->u.text.max};
    k3i_err err = {0};
    k3_status st = k3i_gpattern_init(&p, yyjson_get_str(pattern), yyjson_get_len(pattern), &err);
    if (st == K3_E_FORMAT && !ctx->is_strict)
        return k3i_schema_node(c, *text);
    if (st != K3_OK) {
        c->st = k3i_fail(c->err, st, "%s: %.300s", ctx->where, err.text);
        return 0;
    }
    k3i_gpattern *slot = k3i_g_add_pattern(c->g, &c->st, c->err);
    if (slot == NULL) {
        k3i_gpattern_done(&p);
        return 0;
    }
    *slot = p;
    return k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_PATTERN, .u.pattern = c->g->n_pattern - 1});
}

uint32_t k3i_schema_text_node(k3i_schema_compiler *c, yyjson_val *schema, k3i_gkind kind,
                              const k3i_schema_context *ctx)
{
    k3i_gnode node = {.kind = kind, .u.text = {.min = 0, .max = K3I_NO_MAX}};
    yyjson_val *pattern = get(schema, "pattern");
    k3i_schema_read_limit(c, schema, "minLength", &node.u.text.min, ctx);
    k3i_schema_read_limit(c, schema, "maxLength", &node.u.text.max, ctx);
    if (node.u.text.min > node.u.text.max)
        k3i_schema_fail(c, ctx, "nothing satisfies", "minLength > maxLength");
    if (c->st == K3_OK && yyjson_is_str(pattern))
        return pattern_node(c, pattern, &node, ctx);
    return k3i_schema_node(c, node);
}

static void read_bound(k3i_schema_compiler *c, yyjson_val *schema, const char *key, bool is_min,
                       bool is_exclusive, k3i_gnode *node, const k3i_schema_context *ctx)
{
    yyjson_val *val = get(schema, key);
    if (val == NULL || c->st != K3_OK)
        return;
    if (!yyjson_is_num(val) && !yyjson_is_raw(val)) {
        if (ctx->is_strict)
            k3i_schema_fail(c, ctx, "not a number:", key);
        return;
    }
    bool is_exact;
    c->text.n = 0;
    c->st = k3i_json_print(val, K3I_JSON_SORTED, &c->text, c->err);
    if (c->st != K3_OK)
        return;
    k3i_i128 bound =
        k3i_g_scale_decimal(c->text.data, c->text.n, node->u.number.n_frac, is_min, &is_exact);
    if (is_exclusive && is_exact)
        bound += is_min ? 1 : -1;
    node->u.number.is_bounded = true;
    if (is_min && bound > node->u.number.min)
        node->u.number.min = bound;
    if (!is_min && bound < node->u.number.max)
        node->u.number.max = bound;
}

static uint32_t number_node(k3i_schema_compiler *c, yyjson_val *schema, bool is_integer,
                            const k3i_schema_context *ctx)
{
    bool is_exact;
    uint32_t n_frac = is_integer ? 0 : K3I_FRAC_DIGITS;
    k3i_gnode node = {.kind = K3I_G_NUMBER,
                      .u.number = {.is_integer = is_integer, .n_frac = n_frac}};
    node.u.number.max = k3i_g_scale_decimal("1e18", 4, n_frac, false, &is_exact) - 1;
    node.u.number.min = -node.u.number.max;
    read_bound(c, schema, "minimum", true, false, &node, ctx);
    read_bound(c, schema, "maximum", false, false, &node, ctx);
    read_bound(c, schema, "exclusiveMinimum", true, true, &node, ctx);
    read_bound(c, schema, "exclusiveMaximum", false, true, &node, ctx);
    return k3i_schema_node(c, node);
}

static uint32_t array_node(k3i_schema_compiler *c, yyjson_val *schema,
                           const k3i_schema_context *ctx)
{
    yyjson_val *items = get(schema, "items");
    k3i_gnode node = {
        .kind = K3I_G_ARRAY, .is_loose = ctx->is_loose, .u.array = {.min = 0, .max = K3I_NO_MAX}};
    k3i_schema_read_limit(c, schema, "minItems", &node.u.array.min, ctx);
    k3i_schema_read_limit(c, schema, "maxItems", &node.u.array.max, ctx);
    if (node.u.array.min > node.u.array.max)
        k3i_schema_fail(c, ctx, "nothing satisfies", "minItems > maxItems");
    node.u.array.item = k3i_schema_value_node(c, yyjson_is_arr(items) ? NULL : items, ctx);
    return k3i_schema_node(c, node);
}

/* The node of undeclared members: 0 if there may be none. */
static uint32_t rest_node(k3i_schema_compiler *c, yyjson_val *schema, const k3i_schema_context *ctx)
{
    yyjson_val *rest = get(schema, "additionalProperties");
    if (yyjson_is_bool(rest))
        return yyjson_get_bool(rest) ? c->any[ctx->is_loose] : 0;
    return k3i_schema_value_node(c, rest, ctx);
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

static uint32_t object_node(k3i_schema_compiler *c, yyjson_val *schema,
                            const k3i_schema_context *ctx)
{
    uint32_t rest = rest_node(c, schema, ctx), first = c->g->n_lit;
    yyjson_obj_iter it = yyjson_obj_iter_with(get(schema, "properties"));
    for (yyjson_val *key; c->st == K3_OK && (key = yyjson_obj_iter_next(&it)) != NULL;) {
        uint32_t node = k3i_schema_value_node(c, yyjson_obj_iter_get_val(key), ctx);
        const k3i_buf *text = quoted(c, yyjson_get_str(key), yyjson_get_len(key));
        k3i_schema_lit(c, text->data, text->n, (k3i_glit){.node = node});
    }
    yyjson_val *required = get(schema, "required");
    for (int pass = 0; pass < 2 && c->st == K3_OK; pass++) {
        yyjson_arr_iter names = yyjson_arr_iter_with(required);
        for (yyjson_val *name; c->st == K3_OK && (name = yyjson_arr_iter_next(&names)) != NULL;) {
            if (!yyjson_is_str(name))
                continue;
            const k3i_buf *text = quoted(c, yyjson_get_str(name), yyjson_get_len(name));
            if (pass == 0) { /* undeclared ones; for declared ones the literal above stays */
                k3i_schema_lit(c, text->data, text->n,
                               (k3i_glit){.node = rest != 0 ? rest : c->never});
            } else {
                k3i_g_find_lit(c->g, first, text->data, text->n)->is_required = true;
            }
        }
        if (pass == 0 && c->st == K3_OK)
            k3i_g_sort_lits(c->g, first);
    }
    uint32_t n = c->g->n_lit - first;
    for (uint32_t i = 0; i < n && c->st == K3_OK; i++)
        c->g->lit[first + i].prop = i;
    return k3i_schema_node(
        c, (k3i_gnode){.kind = K3I_G_OBJECT,
                       .is_loose = ctx->is_loose,
                       .u.keys = {.first = first, .n = n, .n_prop = n, .rest = rest}});
}

/* ---- enum ----------------------------------------------------------------------------------- */

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
static bool value_fits(yyjson_val *val, yyjson_val *schema)
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

static void add_values(k3i_schema_compiler *c, yyjson_val *schema, const char *type, bool is_raw)
{
    yyjson_val *list = get(schema, "enum"), *only = get(schema, "const");
    size_t n = only != NULL ? 1 : yyjson_arr_size(list);
    yyjson_arr_iter it = yyjson_arr_iter_with(list);
    for (size_t i = 0; i < n && c->st == K3_OK; i++) {
        yyjson_val *val = only != NULL ? only : yyjson_arr_iter_next(&it);
        if (!value_fits(val, schema) || (type != NULL && strcmp(type, value_type(val)) != 0))
            continue;
        if (is_raw && yyjson_is_str(val)) {
            k3i_schema_lit(c, yyjson_get_str(val), yyjson_get_len(val), (k3i_glit){0});
            continue;
        }
        c->text.n = 0;
        c->st = k3i_json_print(val, K3I_JSON_SORTED, &c->text, c->err);
        k3i_schema_lit(c, c->text.data, c->text.n, (k3i_glit){0});
    }
}

/* All lists together: a choice among hundreds of constants is one node, not hundreds of threads. */
uint32_t k3i_schema_enum_node(k3i_schema_compiler *c, const char *type, bool is_raw)
{
    uint32_t first = c->g->n_lit;
    for (size_t i = 0; i < c->n_leaf; i++) {
        if (c->leaf[i].kind == L_ENUM)
            add_values(c, c->leaf[i].schema, type, is_raw);
    }
    return c->g->n_lit == first ? 0 : literals_node(c, first);
}

uint32_t k3i_schema_leaf_node(k3i_schema_compiler *c, k3i_leaf l, const k3i_schema_context *ctx)
{
    switch (l.kind) {
    case L_STRING:
        return k3i_schema_text_node(c, l.schema, K3I_G_STRING, ctx);
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
    default: /* see k3i_schema_enum_node */
        return 0;
    }
}

/* Makes `node` the choice among the first n entries of c->leaf, whose kinds were replaced by nodes.
 */
void k3i_schema_set_alternatives(k3i_schema_compiler *c, uint32_t node, const uint32_t *alternative,
                                 size_t n)
{
    uint32_t first = c->g->n_child;
    for (size_t i = 0; i < n; i++) {
        if (alternative[i] != 0)
            k3i_g_add_child(c->g, alternative[i], &c->st, c->err);
    }
    if (c->st == K3_OK) {
        c->g->node[node].u.alt.first = first;
        c->g->node[node].u.alt.n = c->g->n_child - first;
    }
}

void k3i_schema_fill_choice(k3i_schema_compiler *c, uint32_t node, yyjson_val *schema,
                            const k3i_schema_context *ctx)
{
    k3i_schema_take_apart(c, schema, ctx);
    uint32_t *alternative =
        c->st == K3_OK ? k3i_alloc_array(c->n_leaf + 1, sizeof *alternative) : NULL;
    if (alternative == NULL) {
        if (c->st == K3_OK)
            c->st = k3i_fail(c->err, K3_E_NOMEM, "out of memory (schema)");
        return;
    }
    for (size_t i = 0; i < c->n_leaf && c->st == K3_OK; i++)
        alternative[i] = k3i_schema_leaf_node(c, c->leaf[i], ctx);
    alternative[c->n_leaf] = k3i_schema_enum_node(c, NULL, false);
    k3i_schema_set_alternatives(c, node, alternative, c->n_leaf + 1);
    k3i_free(alternative);
}

void k3i_schema_drain(k3i_schema_compiler *c)
{
    while (c->done < c->n_item && c->st == K3_OK) {
        k3i_schema_item p = c->item[c->done++];
        k3i_schema_fill_choice(c, p.node, p.schema, &p.ctx);
    }
}

uint32_t k3i_schema_json(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict, bool is_loose,
                         const char *where, k3_status *st)
{
    k3i_schema_context ctx = {
        .root = schema, .where = where, .is_strict = is_strict, .is_loose = is_loose};
    uint32_t node =
        schema == NULL ? object_node(c, NULL, &ctx) : k3i_schema_value_node(c, schema, &ctx);
    k3i_schema_drain(c);
    *st = c->st;
    return node;
}
