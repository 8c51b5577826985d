/* schema_args.c: the parameters of a tool become argument tags. A property has one header for every
 * type that it may have; strings stand raw in their tag, other values are JSON. */
#include "schema_internal.h"

#include <stdio.h>
#include <string.h>

static yyjson_val *get(yyjson_val *object, const char *key)
{
    return yyjson_obj_get(object, key);
}

/* The body of an argument tag of type `tag` for the leaf; 0 if it has no value of that type. */
static uint32_t body_node(k3i_schema_compiler *c, k3i_leaf l, const char *tag,
                          const k3i_schema_context *ctx)
{
    if (l.kind == L_ENUM ||
        strcmp(l.kind == L_INTEGER ? "number" : k3i_leaf_type[l.kind], tag) != 0)
        return 0;
    return l.kind == L_STRING ? k3i_schema_text_node(c, l.schema, K3I_G_RAW, ctx)
                              : k3i_schema_leaf_node(c, l, ctx);
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
            c->st = k3i_g_attr_escape(a->name, a->n, &c->text, c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_adds(&c->text, "\" type=\"", c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_adds(&c->text, tags[i], c->err);
        if (c->st == K3_OK)
            c->st = k3i_buf_add(&c->text, "\"", 1, c->err);
        k3i_schema_lit(c, c->text.data, c->text.n,
                       (k3i_glit){.node = body[i], .prop = a->prop, .is_required = a->is_required});
    }
}

/* The bodies of one property by type. */
static void make_bodies(k3i_schema_compiler *c, yyjson_val *schema, const k3i_schema_context *ctx,
                        uint32_t body[K3I_N_TYPES])
{
    k3i_schema_take_apart(c, schema, ctx);
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
        node[n] = c->st == K3_OK ? k3i_schema_enum_node(c, tags[i], true) : 0;
        n += node[n] != 0;
        body[i] = n == 0   ? 0
                  : n == 1 ? node[0]
                           : k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_ALT});
        if (n > 1 && c->st == K3_OK)
            k3i_schema_set_alternatives(c, body[i], node, n);
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

static uint32_t args_node(k3i_schema_compiler *c, yyjson_val *schema, const k3i_schema_context *ctx)
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
            k3i_schema_fail(c, ctx, "nothing satisfies the required argument", arg[i].name);
        add_headers(c, &arg[i], body[i]);
    }
    k3i_g_sort_lits(c->g, first);
    uint32_t n_header = c->g->n_lit - first, rest_first = c->g->n_lit;
    for (size_t i = 0; i < K3I_N_TYPES && c->st == K3_OK; i++) {
        char text[32];
        int len = snprintf(text, sizeof text, " type=\"%s\"", tags[i]);
        if (body[n_prop][i] != 0)
            k3i_schema_lit(c, text, (size_t)len, (k3i_glit){.node = body[n_prop][i]});
    }
    k3i_free(arg);
    k3i_free(body);
    return k3i_schema_node(c, (k3i_gnode){.kind = K3I_G_ARGS,
                                          .u.keys = {.first = first,
                                                     .n = n_header,
                                                     .n_prop = n_prop,
                                                     .rest_first = rest_first,
                                                     .n_rest = c->g->n_lit - rest_first}});
}

uint32_t k3i_schema_args(k3i_schema_compiler *c, yyjson_val *schema, bool is_strict,
                         const char *where, k3_status *st)
{
    k3i_schema_context ctx = {
        .root = schema, .where = where, .is_strict = is_strict, .is_loose = true};
    uint32_t node = 0;
    if (schema == NULL) {
        node = args_node(c, NULL, &ctx);
    } else {
        k3i_schema_take_apart(c, schema, &ctx);
        yyjson_val *object[2] = {NULL, NULL};
        size_t n_object = 0;
        for (size_t i = 0; i < c->n_leaf; i++) {
            if (c->leaf[i].kind == L_OBJECT && n_object++ == 0)
                object[0] = c->leaf[i].schema;
        }
        /* A choice among several argument lists is taken as its first one: still a valid call. */
        if (c->st == K3_OK && n_object == 0)
            k3i_schema_fail(c, &ctx, "parameters must describe an", "object");
        node = args_node(c, object[0], &ctx);
    }
    k3i_schema_drain(c);
    *st = c->st;
    return node;
}
