/* grammar.c: what a request demands of its answer, as a grammar.
 *
 *   answer = [thinking CLOSE think SEP OPEN response SEP] body END_OF_MSG
 *   body   = text CLOSE response SEP OPEN tools SEP calls CLOSE tools SEP [message end]    a call
 * is forced / text CLOSE response SEP [OPEN tools ...] [message end] strict tools / JSON CLOSE
 * response SEP [OPEN tools ...] message end                            response_format
 *
 * The channel that the prompt opened can always be closed: a grammar that only allowed the tools
 * channel would make the model write its call inside the thinking. OPEN, CLOSE and END_OF_MSG are
 * excluded from text as tokens, not as spelled-out markers. */
#include "grammar_internal.h"

#include <stdio.h>
#include <string.h>

#define LEAD_CHARS 256 /* text before a forced call */

typedef struct {
    k3i_grammar *g;
    const k3i_chat_req *req;
    k3i_schema_compiler *schemas;
    k3_status st;
    k3i_err *err;
} builder;

static yyjson_val *get(yyjson_val *object, const char *key)
{
    yyjson_val *val = yyjson_obj_get(object, key);
    return yyjson_is_null(val) ? NULL : val;
}

/* ---- the program ---------------------------------------------------------------------------- */

static uint32_t here(const builder *b)
{
    return b->g->n_op;
}

static void op(builder *b, int32_t code, uint32_t a, uint32_t c)
{
    k3i_g_add_op(b->g, code, a, c, &b->st, b->err);
}

static void symbol(builder *b, uint32_t sym)
{
    op(b, K3I_OP_SYM, sym, 0);
}

static void tag(builder *b, uint32_t sym, const char *name)
{
    symbol(b, sym);
    uint32_t at = (uint32_t)b->g->pool.n;
    if (b->st == K3_OK)
        b->st = k3i_buf_adds(&b->g->pool, name, b->err);
    op(b, K3I_OP_TEXT, at, (uint32_t)strlen(name));
    symbol(b, K3I_SYM_SEP);
}

/* A split to the next op and to a place that patch() sets. */
static uint32_t fork_to_later(builder *b)
{
    op(b, K3I_OP_SPLIT, here(b) + 1, 0);
    return here(b) - 1;
}

static void patch(builder *b, uint32_t at)
{
    if (b->st != K3_OK)
        return;
    if (b->g->op[at].op == K3I_OP_JUMP)
        b->g->op[at].a = here(b);
    else
        b->g->op[at].b = here(b);
}

static uint32_t node(builder *b, k3i_gnode n)
{
    return k3i_g_add_node(b->g, n, &b->st, b->err);
}

/* ---- tools ---------------------------------------------------------------------------------- */

static bool is_strict(yyjson_val *function)
{
    return yyjson_is_true(get(function, "strict"));
}

/* Calls `fn` for the function object of every tool, global and dynamic. */
static void each_tool(builder *b, void (*fn)(builder *, yyjson_val *))
{
    yyjson_arr_iter it = yyjson_arr_iter_with(b->req->tools);
    for (yyjson_val *tool; (tool = yyjson_arr_iter_next(&it)) != NULL;)
        fn(b, get(tool, "function"));
    it = yyjson_arr_iter_with(b->req->messages);
    for (yyjson_val *message; (message = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_arr_iter own = yyjson_arr_iter_with(get(message, "tools"));
        for (yyjson_val *tool; (tool = yyjson_arr_iter_next(&own)) != NULL;)
            fn(b, get(tool, "function"));
    }
}

/* Compiles one tool; its header goes to the list of literals at the end, see calls_node. */
typedef struct {
    builder b;
    uint32_t *args;
    yyjson_val **function;
    size_t n, cap;
} tool_list;

static void add_tool(builder *b, yyjson_val *function)
{
    tool_list *list = (tool_list *)b; /* b is its first member */
    yyjson_val *name = get(function, "name");
    if (b->st != K3_OK || !yyjson_is_str(name) ||
        (b->req->tool_choice == K3I_TOOLS_NAMED && !yyjson_equals_str(name, b->req->tool_name)))
        return;
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 16 : 2 * list->cap;
        uint32_t *args = k3i_realloc(list->args, cap * sizeof *args);
        list->args = args != NULL ? args : list->args;
        yyjson_val **functions =
            args != NULL ? k3i_realloc(list->function, cap * sizeof(yyjson_val *)) : NULL;
        if (functions == NULL) {
            b->st = k3i_fail(b->err, K3_E_NOMEM, "out of memory (tools)");
            return;
        }
        list->function = functions;
        list->cap = cap;
    }
    char where[160];
    snprintf(where, sizeof where, "the parameters of tool '%.100s'", yyjson_get_str(name));
    list->function[list->n] = function;
    list->args[list->n++] = k3i_schema_args(b->schemas, get(function, "parameters"),
                                            is_strict(function), where, &b->st);
}

/* The node of one or more call tags. */
static uint32_t calls_node(builder *b)
{
    tool_list list = {.b = *b};
    each_tool(&list.b, add_tool);
    b->st = list.b.st;
    uint32_t first = b->g->n_lit;
    k3i_buf text = K3I_BUF(4096);
    for (size_t i = 0; i < list.n && b->st == K3_OK; i++) {
        yyjson_val *name = get(list.function[i], "name");
        text.n = 0;
        b->st = k3i_buf_adds(&text, "call tool=\"", b->err);
        if (b->st == K3_OK)
            b->st = k3i_g_attr_escape(yyjson_get_str(name), yyjson_get_len(name), &text, b->err);
        if (b->st == K3_OK)
            b->st = k3i_buf_adds(&text, "\" index=\"", b->err);
        if (b->st == K3_OK)
            k3i_g_add_lit(b->g, text.data, text.n, (k3i_glit){.node = list.args[i]}, &b->st,
                          b->err);
    }
    k3i_buf_done(&text);
    k3i_free(list.args);
    k3i_free(list.function);
    if (b->st != K3_OK)
        return 0;
    k3i_g_sort_lits(b->g, first);
    return node(b, (k3i_gnode){.kind = K3I_G_CALLS,
                               .u.calls = {.first = first,
                                           .n = b->g->n_lit - first,
                                           .is_single = !b->req->parallel_tool_calls}});
}

static void note_strict(builder *b, yyjson_val *function)
{
    if (is_strict(function))
        b->st = K3_E_STATE; /* a flag of any_strict */
}

static bool any_strict(const builder *b)
{
    builder probe = {.req = b->req};
    each_tool(&probe, note_strict);
    return probe.st != K3_OK;
}

/* ---- bodies --------------------------------------------------------------------------------- */

static void tools_channel(builder *b, uint32_t calls)
{
    tag(b, K3I_SYM_OPEN, "tools");
    op(b, K3I_OP_NODE, calls, 0);
    tag(b, K3I_SYM_CLOSE, "tools");
}

/* [CLOSE message SEP] */
static void message_end(builder *b, bool is_optional)
{
    uint32_t skip = is_optional ? fork_to_later(b) : 0;
    tag(b, K3I_SYM_CLOSE, "message");
    if (is_optional)
        patch(b, skip);
}

static void forced_call(builder *b)
{
    uint32_t calls = calls_node(b);
    /* What a partial message has said already is not counted. */
    uint32_t lead =
        node(b, (k3i_gnode){.kind = K3I_G_RAW,
                            .u.text = {.max = b->req->is_partial ? K3I_NO_MAX : LEAD_CHARS}});
    op(b, K3I_OP_NODE, lead, 0);
    tag(b, K3I_SYM_CLOSE, "response");
    tools_channel(b, calls);
    message_end(b, true);
}

static void strict_tools(builder *b)
{
    uint32_t calls = calls_node(b), text = node(b, (k3i_gnode){.kind = K3I_G_FREE});
    op(b, K3I_OP_NODE, text, 0);
    tag(b, K3I_SYM_CLOSE, "response");
    uint32_t skip = fork_to_later(b);
    tools_channel(b, calls);
    patch(b, skip);
    message_end(b, true);
}

static void json_body(builder *b)
{
    yyjson_val *outer = get(b->req->response_format, "json_schema"), *strict = get(outer, "strict");
    bool use_schema = b->req->format == K3I_FORMAT_SCHEMA && !yyjson_is_false(strict);
    bool with_tools = b->req->has_tools && b->req->tool_choice == K3I_TOOLS_AUTO;
    uint32_t calls = with_tools ? calls_node(b) : 0;
    uint32_t json = b->st != K3_OK
                        ? 0
                        : k3i_schema_json(b->schemas, use_schema ? get(outer, "schema") : NULL,
                                          yyjson_is_true(strict), false,
                                          "response_format.json_schema.schema", &b->st);
    if (with_tools) { /* either no text and then calls, or the JSON text and then perhaps calls */
        uint32_t only_json = fork_to_later(b);
        tag(b, K3I_SYM_CLOSE, "response");
        tools_channel(b, calls);
        op(b, K3I_OP_JUMP, 0, 0);
        uint32_t join = here(b) - 1;
        patch(b, only_json);
        op(b, K3I_OP_NODE, json, 0);
        tag(b, K3I_SYM_CLOSE, "response");
        uint32_t skip = fork_to_later(b);
        tools_channel(b, calls);
        patch(b, skip);
        patch(b, join);
    } else {
        op(b, K3I_OP_NODE, json, 0);
        tag(b, K3I_SYM_CLOSE, "response");
    }
    message_end(b, false);
}

/* ---- grammars ------------------------------------------------------------------------------- */

/* The text that a partial message has put into the response channel: the grammar goes on behind it.
 */
static void keep_prefix(builder *b)
{
    yyjson_val *content = get(yyjson_arr_get_last(b->req->messages), "content");
    k3i_buf text = K3I_BUF(1u << 26);
    if (yyjson_is_str(content))
        b->st = k3i_buf_add(&text, yyjson_get_str(content), yyjson_get_len(content), b->err);
    yyjson_arr_iter it = yyjson_arr_iter_with(content);
    for (yyjson_val *part; b->st == K3_OK && (part = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_val *s = get(part, "text");
        if (yyjson_is_str(s))
            b->st = k3i_buf_add(&text, yyjson_get_str(s), yyjson_get_len(s), b->err);
    }
    b->g->prefix = text.data;
    b->g->prefix_bytes = text.n;
}

static void build(builder *b, int32_t channel)
{
    k3i_grammar *g = b->g;
    g->root = node(b, (k3i_gnode){.kind = K3I_G_PROG});
    if (channel == K3I_CHANNEL_THINK) {
        uint32_t thinking = node(b, (k3i_gnode){.kind = K3I_G_FREE});
        op(b, K3I_OP_NODE, thinking, 0);
        tag(b, K3I_SYM_CLOSE, "think");
        tag(b, K3I_SYM_OPEN, "response");
    } else if (b->req->is_partial && b->st == K3_OK) {
        keep_prefix(b);
    }
    if (b->req->tool_choice == K3I_TOOLS_REQUIRED || b->req->tool_choice == K3I_TOOLS_NAMED)
        forced_call(b);
    else if (b->req->format != K3I_FORMAT_TEXT)
        json_body(b);
    else
        strict_tools(b);
    symbol(b, K3I_SYM_END_OF_MSG);
    op(b, K3I_OP_END, 0, 0);
}

k3_status k3i_grammar_new(const k3i_chat_req *req, int32_t channel, k3i_grammar **ret, k3i_err *err)
{
    builder b = {.req = req, .st = K3_OK, .err = err};
    bool is_forced = req->tool_choice == K3I_TOOLS_REQUIRED || req->tool_choice == K3I_TOOLS_NAMED;
    bool may_call = req->tool_choice == K3I_TOOLS_AUTO && req->has_tools && any_strict(&b);
    if (!is_forced && !may_call && req->format == K3I_FORMAT_TEXT) {
        *ret = NULL;
        return K3_OK;
    }
    if (channel != K3I_CHANNEL_THINK && channel != K3I_CHANNEL_RESPONSE)
        return k3i_fail(err, K3_E_FORMAT,
                        "tool_choice, strict tools and response_format need a generation prompt");
    k3i_grammar *g = k3i_alloc_zero(sizeof *g);
    if (g == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (grammar)");
    g->pool = K3I_BUF(1u << 28);
    b.g = g;
    b.st = k3i_buf_reserve(&g->pool, 64, err);
    if (b.st == K3_OK && (b.schemas = k3i_schema_compiler_new(g, err)) == NULL)
        b.st = err != NULL ? err->code : K3_E_NOMEM;
    if (b.st == K3_OK)
        build(&b, channel);
    if (b.st == K3_OK) {
        k3i_g_find_costs(g);
        if (g->op[0].cost >= K3I_COST_MAX)
            b.st = k3i_fail(err, K3_E_FORMAT, "no finite answer satisfies the schema");
    }
    k3i_schema_compiler_free(b.schemas);
    if (b.st != K3_OK)
        k3i_grammar_free(g);
    else
        *ret = g;
    return b.st;
}

void k3i_grammar_free(k3i_grammar *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 0; i < g->n_pattern; i++)
        k3i_gpattern_done(&g->pattern[i]);
    k3i_free(g->pattern);
    k3i_free(g->node);
    k3i_free(g->child);
    k3i_free(g->lit);
    k3i_free(g->op);
    k3i_free(g->prefix);
    k3i_buf_done(&g->pool);
    k3i_free(g);
}
