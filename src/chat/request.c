/* request.c: reads the chat fields of an OpenAI request and refuses what the format cannot express.
 *
 * Three places can set thinking and its effort. In ascending precedence: the top-level
 * reasoning_effort, chat_template_kwargs, the thinking object. A null field counts as absent
 * everywhere. */
#include "chat.h"

#include <string.h>

static yyjson_val *get(yyjson_val *object, const char *key)
{
    yyjson_val *val = yyjson_obj_get(object, key);
    return yyjson_is_null(val) ? NULL : val;
}

k3i_chat_req k3i_chat_req_default(yyjson_val *messages)
{
    return (k3i_chat_req){.messages = messages,
                          .effort = K3I_EFFORT_MAX,
                          .is_thinking = true,
                          .parallel_tool_calls = true,
                          .add_generation_prompt = true};
}

static k3_status read_bool(yyjson_val *object, const char *key, bool *ret, k3i_err *err)
{
    yyjson_val *val = get(object, key);
    if (val == NULL)
        return K3_OK;
    if (!yyjson_is_bool(val))
        return k3i_fail(err, K3_E_FORMAT, "%s must be true or false", key);
    *ret = yyjson_get_bool(val);
    return K3_OK;
}

/* ---- thinking ------------------------------------------------------------------------------- */

/* `may_disable`: "none" turns thinking off. */
static k3_status read_effort(yyjson_val *object, const char *key, bool may_disable,
                             k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *val = get(object, key);
    if (val == NULL)
        return K3_OK;
    if (yyjson_equals_str(val, "low"))
        req->effort = K3I_EFFORT_LOW;
    else if (yyjson_equals_str(val, "high"))
        req->effort = K3I_EFFORT_HIGH;
    else if (yyjson_equals_str(val, "max"))
        req->effort = K3I_EFFORT_MAX;
    else if (may_disable && yyjson_equals_str(val, "none"))
        req->is_thinking = false;
    else
        return k3i_fail(err, K3_E_FORMAT,
                        "Kimi K3 supports thinking_effort values: low, high, max (in '%s')", key);
    return K3_OK;
}

static k3_status read_reasoning_effort(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    return read_effort(root, "reasoning_effort", true, req, err);
}

static k3_status read_template_kwargs(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *kwargs = get(root, "chat_template_kwargs");
    k3_status st = K3_OK;
    if (kwargs != NULL && !yyjson_is_obj(kwargs))
        return k3i_fail(err, K3_E_FORMAT, "chat_template_kwargs must be an object");
    if (st == K3_OK)
        st = read_effort(kwargs, "reasoning_effort", true, req, err);
    if (st == K3_OK)
        st = read_effort(kwargs, "thinking_effort", false, req, err);
    if (st == K3_OK)
        st = read_bool(kwargs, "enable_thinking", &req->is_thinking, err);
    if (st == K3_OK)
        st = read_bool(kwargs, "thinking", &req->is_thinking, err);
    if (st != K3_OK)
        k3i_err_prefix(err, "chat_template_kwargs");
    return st;
}

static k3_status read_thinking(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *thinking = get(root, "thinking");
    if (thinking == NULL)
        return K3_OK;
    if (!yyjson_is_obj(thinking))
        return k3i_fail(err, K3_E_FORMAT, "thinking must be an object");
    yyjson_val *type = get(thinking, "type"), *keep = get(thinking, "keep");
    if (type != NULL && !yyjson_equals_str(type, "enabled") && !yyjson_equals_str(type, "disabled"))
        return k3i_fail(err, K3_E_FORMAT, "thinking.type must be 'enabled' or 'disabled'");
    req->is_thinking = type == NULL || yyjson_equals_str(type, "enabled");
    if (req->is_thinking && keep != NULL && !yyjson_equals_str(keep, "all"))
        return k3i_fail(err, K3_E_FORMAT, "thinking.keep must be 'all'");
    return read_effort(thinking, "effort", false, req, err);
}

/* ---- tools ---------------------------------------------------------------------------------- */

static bool is_tool_name(yyjson_val *name)
{
    const char *s = yyjson_get_str(name);
    size_t n = yyjson_get_len(name);
    if (s == NULL || n == 0 || n > 256)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!is_letter && (i == 0 || !((c >= '0' && c <= '9') || c == '-')))
            return false;
    }
    return true;
}

/* Names met so far: an open-addressed set that points into the document. */
typedef struct {
    const char **slot;
    size_t mask, n;
} name_set;

/* False if the name is there already. The set is never full: see read_tools. */
static bool add_name(name_set *set, const char *name)
{
    size_t h = 14695981039346656037u;
    for (const char *p = name; *p != '\0'; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    for (h ^= h >> 32;; h++) {
        const char **slot = &set->slot[h & set->mask];
        if (*slot == NULL) {
            *slot = name;
            return true;
        }
        if (strcmp(*slot, name) == 0)
            return false;
    }
}

static k3_status check_tools(yyjson_val *tools, name_set *names, const char *where, k3i_err *err)
{
    yyjson_arr_iter it = yyjson_arr_iter_with(tools);
    for (yyjson_val *tool; (tool = yyjson_arr_iter_next(&it)) != NULL;) {
        size_t i = it.idx - 1;
        yyjson_val *function = get(tool, "function"), *name = get(function, "name");
        yyjson_val *parameters = get(function, "parameters");
        if (!yyjson_is_obj(tool))
            return k3i_fail(err, K3_E_FORMAT, "%s[%zu] must be an object", where, i);
        if (!yyjson_equals_str(get(tool, "type"), "function"))
            return k3i_fail(err, K3_E_FORMAT, "%s[%zu].type must be 'function'", where, i);
        if (!yyjson_is_obj(function))
            return k3i_fail(err, K3_E_FORMAT, "%s[%zu].function must be an object", where, i);
        if (!is_tool_name(name))
            return k3i_fail(err, K3_E_FORMAT,
                            "%s[%zu].function.name must be 1 to 256 letters, digits, '_' or '-', "
                            "not beginning with a "
                            "digit or '-'",
                            where, i);
        if (parameters != NULL && !yyjson_is_obj(parameters))
            return k3i_fail(err, K3_E_FORMAT, "%s[%zu].function.parameters must be an object",
                            where, i);
        bool strict;
        k3_status st = read_bool(function, "strict", &strict, err);
        if (st != K3_OK)
            return st;
        if (!add_name(names, yyjson_get_str(name)))
            return k3i_fail(err, K3_E_FORMAT, "%s[%zu]: the tool name '%.64s' is used twice", where,
                            i, yyjson_get_str(name));
    }
    return K3_OK;
}

static k3_status read_tools(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *tools = get(root, "tools");
    if (tools != NULL && !yyjson_is_arr(tools))
        return k3i_fail(err, K3_E_FORMAT, "tools must be an array");
    size_t n = yyjson_arr_size(tools);
    req->tools = n > 0 ? tools : NULL;
    yyjson_arr_iter it = yyjson_arr_iter_with(req->messages);
    for (yyjson_val *message; (message = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_val *own = get(message, "tools");
        if (own != NULL && !yyjson_is_arr(own))
            return k3i_fail(err, K3_E_FORMAT, "messages[%zu].tools must be an array", it.idx - 1);
        n += yyjson_arr_size(own);
    }
    req->has_tools = n > 0;
    name_set names = {.mask = 15};
    while (names.mask + 1 < 2 * n)
        names.mask = 2 * names.mask + 1;
    names.slot = k3i_alloc_zero((names.mask + 1) * sizeof *names.slot);
    if (names.slot == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (%zu tools)", n);
    k3_status st = check_tools(req->tools, &names, "tools", err);
    it = yyjson_arr_iter_with(req->messages);
    for (yyjson_val *message; st == K3_OK && (message = yyjson_arr_iter_next(&it)) != NULL;) {
        st = check_tools(get(message, "tools"), &names, "tools", err);
        if (st != K3_OK)
            k3i_err_prefix(err, "messages[%zu]", it.idx - 1);
    }
    k3i_free(names.slot);
    return st;
}

static bool declares(yyjson_val *tools, const char *name)
{
    yyjson_arr_iter it = yyjson_arr_iter_with(tools);
    for (yyjson_val *tool; (tool = yyjson_arr_iter_next(&it)) != NULL;) {
        if (yyjson_equals_str(get(get(tool, "function"), "name"), name))
            return true;
    }
    return false;
}

static bool is_declared(const k3i_chat_req *req, const char *name)
{
    yyjson_arr_iter it = yyjson_arr_iter_with(req->messages);
    if (declares(req->tools, name))
        return true;
    for (yyjson_val *message; (message = yyjson_arr_iter_next(&it)) != NULL;) {
        if (declares(get(message, "tools"), name))
            return true;
    }
    return false;
}

static k3_status read_tool_choice(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *choice = get(root, "tool_choice");
    if (choice == NULL || yyjson_equals_str(choice, "auto"))
        return K3_OK;
    if (yyjson_equals_str(choice, "none")) {
        req->tool_choice = req->has_tools ? K3I_TOOLS_NONE : K3I_TOOLS_AUTO;
        return K3_OK;
    }
    bool is_required = yyjson_equals_str(choice, "required");
    if (!is_required && !yyjson_is_obj(choice))
        return k3i_fail(err, K3_E_FORMAT,
                        "tool_choice must be 'auto', 'none', 'required' or a named function");
    if (!req->has_tools)
        return k3i_fail(err, K3_E_FORMAT, "tool_choice needs at least one tool");
    req->tool_choice = K3I_TOOLS_REQUIRED;
    if (is_required)
        return K3_OK;
    yyjson_val *name = get(get(choice, "function"), "name");
    if (!yyjson_equals_str(get(choice, "type"), "function") || !yyjson_is_str(name) ||
        strlen(yyjson_get_str(name)) != yyjson_get_len(name))
        return k3i_fail(err, K3_E_FORMAT,
                        "tool_choice must have type 'function' and function.name");
    req->tool_choice = K3I_TOOLS_NAMED;
    req->tool_name = yyjson_get_str(name);
    if (!is_declared(req, req->tool_name))
        return k3i_fail(err, K3_E_FORMAT,
                        "tool_choice names the tool '%.64s', which is not declared",
                        req->tool_name);
    return K3_OK;
}

static k3_status read_parallel(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    return read_bool(root, "parallel_tool_calls", &req->parallel_tool_calls, err);
}

/* ---- response format ------------------------------------------------------------------------ */

static k3_status read_response_format(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    yyjson_val *format = get(root, "response_format");
    if (format == NULL)
        return K3_OK;
    yyjson_val *type = get(format, "type"), *schema = get(format, "json_schema");
    req->response_format = format;
    if (yyjson_equals_str(type, "text"))
        return K3_OK;
    req->format = K3I_FORMAT_OBJECT;
    if (yyjson_equals_str(type, "json_object"))
        return K3_OK;
    req->format = K3I_FORMAT_SCHEMA;
    if (!yyjson_equals_str(type, "json_schema"))
        return k3i_fail(err, K3_E_FORMAT,
                        "response_format.type must be 'text', 'json_object' or 'json_schema'");
    if (schema == NULL)
        return k3i_fail(err, K3_E_FORMAT,
                        "When response_format type is 'json_schema', the 'json_schema' field must "
                        "be provided.");
    if (!yyjson_is_obj(schema) || !yyjson_is_str(get(schema, "name")) ||
        yyjson_get_len(get(schema, "name")) == 0)
        return k3i_fail(err, K3_E_FORMAT,
                        "response_format.json_schema.name must be a non-empty string");
    if (!yyjson_is_obj(get(schema, "schema")))
        return k3i_fail(err, K3_E_FORMAT, "response_format.json_schema.schema must be an object");
    bool strict;
    k3_status st = read_bool(schema, "strict", &strict, err);
    if (st != K3_OK)
        k3i_err_prefix(err, "response_format.json_schema");
    return st;
}

/* ---- messages ------------------------------------------------------------------------------- */

static k3_status check_calls(yyjson_val *calls, k3i_err *err)
{
    if (calls != NULL && !yyjson_is_arr(calls))
        return k3i_fail(err, K3_E_FORMAT, "tool_calls must be an array");
    yyjson_arr_iter it = yyjson_arr_iter_with(calls);
    for (yyjson_val *call; (call = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_val *type = get(call, "type");
        if (!yyjson_is_obj(call))
            return k3i_fail(err, K3_E_FORMAT, "assistant tool_calls entries must be objects.");
        if (type != NULL && !yyjson_equals_str(type, "function"))
            return k3i_fail(err, K3_E_FORMAT,
                            "assistant tool_calls entries must have type 'function'.");
    }
    return K3_OK;
}

static k3_status check_message(yyjson_val *message, bool is_last, k3i_chat_req *req, k3i_err *err)
{
    if (!yyjson_is_obj(message))
        return k3i_fail(err, K3_E_FORMAT, "must be an object");
    yyjson_val *role = get(message, "role"), *calls = get(message, "tool_calls");
    bool is_assistant = yyjson_equals_str(role, "assistant"),
         is_tool = yyjson_equals_str(role, "tool");
    bool is_system = yyjson_equals_str(role, "system") || yyjson_equals_str(role, "developer");
    if (!is_assistant && !is_tool && !is_system && !yyjson_equals_str(role, "user"))
        return k3i_fail(err, K3_E_FORMAT,
                        "role must be system, developer, user, assistant or tool");
    if (get(message, "tools") != NULL && !is_system)
        return k3i_fail(err, K3_E_FORMAT, "only system messages may declare tools");
    if (is_tool && !yyjson_is_str(get(message, "tool_call_id")))
        return k3i_fail(err, K3_E_FORMAT, "a tool message needs a tool_call_id");
    bool is_partial = false;
    k3_status st = is_assistant ? check_calls(calls, err) : K3_OK;
    if (st == K3_OK)
        st = read_bool(message, "partial", &is_partial, err);
    if (st == K3_OK && is_partial && (!is_last || !is_assistant))
        st = k3i_fail(err, K3_E_FORMAT,
                      "only the last message may be partial, and it must be the assistant's");
    req->is_partial |= is_partial;
    return st;
}

static k3_status read_messages(yyjson_val *root, k3i_chat_req *req, k3i_err *err)
{
    if (!yyjson_is_arr(req->messages) || yyjson_arr_size(req->messages) == 0)
        return k3i_fail(err, K3_E_FORMAT, "messages must be a non-empty array");
    bool is_continued = false;
    k3_status st = read_bool(root, "add_generation_prompt", &req->add_generation_prompt, err);
    if (st == K3_OK)
        st = read_bool(root, "continue_final_message", &is_continued, err);
    if (st == K3_OK && is_continued && req->add_generation_prompt)
        st = k3i_fail(
            err, K3_E_FORMAT,
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    yyjson_arr_iter it = yyjson_arr_iter_with(req->messages);
    for (yyjson_val *message; st == K3_OK && (message = yyjson_arr_iter_next(&it)) != NULL;) {
        bool is_last = !yyjson_arr_iter_has_next(&it);
        st = check_message(message, is_last, req, err);
        if (st == K3_OK && is_last && is_continued &&
            !yyjson_equals_str(get(message, "role"), "assistant"))
            st = k3i_fail(err, K3_E_FORMAT,
                          "continue_final_message needs an assistant message at the end");
        if (st != K3_OK)
            k3i_err_prefix(err, "messages[%zu]", it.idx - 1);
    }
    req->is_partial |= is_continued;
    if (st == K3_OK && req->is_partial &&
        get(yyjson_arr_get_last(req->messages), "tool_calls") != NULL)
        st = k3i_fail(err, K3_E_FORMAT, "a partial message may not have tool_calls");
    return st;
}

/* In this order: later readers of thinking win, tool_choice needs the tools. */
static const struct {
    const char *field;
    k3_status (*read)(yyjson_val *root, k3i_chat_req *req, k3i_err *err);
} READERS[] = {
    {"messages", read_messages},
    {"reasoning_effort", read_reasoning_effort},
    {"chat_template_kwargs", read_template_kwargs},
    {"thinking", read_thinking},
    {"tools", read_tools},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls", read_parallel},
    {"response_format", read_response_format},
};

k3_status k3i_chat_parse_named(yyjson_val *root, k3i_chat_req *ret, const char **ret_field,
                               k3i_err *err)
{
    *ret_field = NULL;
    if (!yyjson_is_obj(root))
        return k3i_fail(err, K3_E_FORMAT, "the request must be a JSON object");
    k3i_chat_req req = k3i_chat_req_default(get(root, "messages"));
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
        k3_status st = READERS[i].read(root, &req, err);
        if (st != K3_OK) {
            *ret_field = READERS[i].field;
            return st;
        }
    }
    *ret = req;
    return K3_OK;
}

k3_status k3i_chat_parse(yyjson_val *root, k3i_chat_req *ret, k3i_err *err)
{
    const char *field;
    return k3i_chat_parse_named(root, ret, &field, err);
}
