/* render.c: a chat request becomes the segments of the K3 prompt.
 *
 *   prompt  = [tool-declare] [thinking-effort] *message [tool-choice note] [response-format note]
 * [generation] message = OPEN message attributes SEP body CLOSE message SEP END_OF_MSG
 *
 * There is nothing between elements, no BOS, and every attribute is four segments: " key", "=\"",
 * the escaped value, "\"". Body text is never escaped; it is harmless because it is tokenised
 * plainly. This is the format of the reference encoder since August 2026 ("r2"): reasoning of all
 * turns is kept, arguments keep the spelling of the source. */
#include "chat.h"

#include "json_text.h"

#include <stdio.h>
#include <string.h>

/* The list under construction. After the first failure every call does nothing, so that the code
 * below reads like the grammar; `st` is looked at once, at the end. */
typedef struct {
    k3i_chat_segs *out;
    k3_status st;
    k3i_err *err;
    size_t n_image;      /* pictures that the caller knows */
    uint32_t next_image; /* of the message being rendered */
} renderer;

/* ---- segments and tags ---------------------------------------------------------------------- */

static void add_segment(renderer *r, k3i_chat_seg seg)
{
    k3i_chat_segs *s = r->out;
    if (r->st != K3_OK)
        return;
    if (s->n_seg == s->cap_seg) {
        size_t cap = s->cap_seg == 0 ? 256 : 2 * s->cap_seg, bytes;
        k3i_chat_seg *p = k3i_mul_size(cap, sizeof *p, &bytes) ? k3i_realloc(s->seg, bytes) : NULL;
        if (p == NULL) {
            r->st = k3i_fail(r->err, K3_E_NOMEM, "out of memory (%zu prompt segments)", cap);
            return;
        }
        s->seg = p;
        s->cap_seg = cap;
    }
    s->seg[s->n_seg++] = seg;
}

static void marker(renderer *r, int32_t kind)
{
    add_segment(r, (k3i_chat_seg){.kind = kind});
}

/* Appends to the text without ending the segment. */
static void put(renderer *r, const char *text, size_t n)
{
    if (r->st == K3_OK)
        r->st = k3i_buf_add(&r->out->text, text, n, r->err);
}

/* One text segment of everything put since `from`; an empty one is dropped. */
static void end_text(renderer *r, size_t from)
{
    size_t n = r->out->text.n - from;
    if (n > 0)
        add_segment(r, (k3i_chat_seg){.kind = K3I_SEG_TEXT, .at = from, .n = n});
}

static void text_n(renderer *r, const char *text, size_t n)
{
    size_t from = r->out->text.n;
    put(r, text, n);
    end_text(r, from);
}

static void text(renderer *r, const char *s)
{
    text_n(r, s, strlen(s));
}

static void attribute(renderer *r, const char *key, const char *value, size_t n)
{
    size_t from = r->out->text.n;
    put(r, " ", 1);
    put(r, key, strlen(key));
    end_text(r, from);
    text(r, "=\"");
    from = r->out->text.n;
    for (size_t i = 0; i < n; i++) {
        if (value[i] == '&')
            put(r, "&amp;", 5);
        else if (value[i] == '"')
            put(r, "&quot;", 6);
        else
            put(r, value + i, 1);
    }
    end_text(r, from);
    text(r, "\"");
}

static void attribute_s(renderer *r, const char *key, const char *value)
{
    attribute(r, key, value, strlen(value));
}

/* A string of the request as text or as an attribute; nothing for other values, which the callers
 * refuse. */
static void text_val(renderer *r, yyjson_val *val)
{
    if (yyjson_is_str(val))
        text_n(r, yyjson_get_str(val), yyjson_get_len(val));
}

static void attribute_val(renderer *r, const char *key, yyjson_val *val)
{
    if (yyjson_is_str(val))
        attribute(r, key, yyjson_get_str(val), yyjson_get_len(val));
}

static void attribute_index(renderer *r, size_t index)
{
    char number[24];
    snprintf(number, sizeof number, "%zu", index);
    attribute_s(r, "index", number);
}

static void open_tag(renderer *r, const char *tag)
{
    marker(r, K3I_SEG_OPEN);
    text(r, tag);
}

static void open_plain(renderer *r, const char *tag)
{
    open_tag(r, tag);
    marker(r, K3I_SEG_SEP);
}

static void close_tag(renderer *r, const char *tag)
{
    marker(r, K3I_SEG_CLOSE);
    text(r, tag);
    marker(r, K3I_SEG_SEP);
}

static void end_message(renderer *r)
{
    close_tag(r, "message");
    marker(r, K3I_SEG_END_OF_MSG);
}

static void open_system_note(renderer *r, const char *type)
{
    open_tag(r, "message");
    attribute_s(r, "role", "system");
    attribute_s(r, "type", type);
    marker(r, K3I_SEG_SEP);
}

static void refuse(renderer *r, const char *what)
{
    if (r->st == K3_OK)
        r->st = k3i_fail(r->err, K3_E_FORMAT, "%s", what);
}

/* ---- fields of the request ------------------------------------------------------------------ */

static yyjson_val *get(yyjson_val *object, const char *key)
{
    yyjson_val *val = yyjson_obj_get(object, key);
    return yyjson_is_null(val) ? NULL : val;
}

static bool has_text(yyjson_val *val)
{
    return yyjson_is_str(val) && yyjson_get_len(val) > 0;
}

static bool is_image_part(yyjson_val *part)
{
    yyjson_val *type = get(part, "type");
    return yyjson_equals_str(type, "image_url") || yyjson_equals_str(type, "image");
}

static bool is_role(yyjson_val *message, const char *role)
{
    return yyjson_equals_str(get(message, "role"), role);
}

/* ---- content -------------------------------------------------------------------------------- */

static void content_part(renderer *r, yyjson_val *part)
{
    if (is_image_part(part)) {
        if (r->next_image >= r->n_image)
            refuse(r, "a picture of the request was not loaded");
        add_segment(r, (k3i_chat_seg){.kind = K3I_SEG_IMAGE, .image = r->next_image++});
        return;
    }
    yyjson_val *type = get(part, "type"), *body = get(part, "text");
    if (!yyjson_equals_str(type, "text")) {
        if (r->st == K3_OK)
            r->st = k3i_fail(r->err, K3_E_FORMAT,
                             "Unsupported chat content part type: '%.40s'. Supported types: text, "
                             "image_url, image.",
                             yyjson_is_str(type) ? yyjson_get_str(type) : "");
        return;
    }
    if (!yyjson_is_str(body))
        refuse(r, "a text part needs a string 'text'");
    text_val(r, body);
}

static void content(renderer *r, yyjson_val *message)
{
    yyjson_val *body = get(message, "content");
    if (body == NULL)
        return;
    if (yyjson_is_str(body)) {
        text_val(r, body);
        return;
    }
    if (!yyjson_is_arr(body))
        refuse(r, "content must be a string, null or an array of parts");
    yyjson_arr_iter it = yyjson_arr_iter_with(body);
    for (yyjson_val *part; r->st == K3_OK && (part = yyjson_arr_iter_next(&it)) != NULL;)
        content_part(r, part);
}

static uint32_t count_images(yyjson_val *message)
{
    uint32_t n = 0;
    yyjson_arr_iter it = yyjson_arr_iter_with(get(message, "content"));
    for (yyjson_val *part; (part = yyjson_arr_iter_next(&it)) != NULL;)
        n += is_image_part(part);
    return n;
}

/* ---- tool declarations and notes ------------------------------------------------------------ */

static void json_message(renderer *r, const char *type, const char *before, yyjson_val *json)
{
    open_system_note(r, type);
    size_t from = r->out->text.n;
    put(r, before, strlen(before));
    put(r, "```json\n", 8);
    if (r->st == K3_OK)
        r->st = k3i_json_print(json, K3I_JSON_SORTED, &r->out->text, r->err);
    put(r, "\n```", 4);
    end_text(r, from);
    end_message(r);
}

static void effort_message(renderer *r, int32_t effort)
{
    static const char *const name[] = {
        [K3I_EFFORT_LOW] = "low", [K3I_EFFORT_HIGH] = "high", [K3I_EFFORT_MAX] = "max"};
    static const char before[] = "`thinking_effort` guides on how much to think in your thinking "
                                 "channel (not including the response channel), "
                                 "supported values include `low`, `medium`, `high`, and `max`.\n"
                                 "Now the system is invoked with `thinking_effort=";
    open_system_note(r, "thinking-effort");
    size_t from = r->out->text.n;
    put(r, before, sizeof before - 1);
    put(r, name[effort], strlen(name[effort]));
    put(r, "`.", 2);
    end_text(r, from);
    end_message(r);
}

static void tool_choice_note(renderer *r, int32_t choice)
{
    if (choice == K3I_TOOLS_AUTO)
        return;
    open_system_note(r, "tool-choice");
    text(r, choice == K3I_TOOLS_NONE ? "The system is invoked with `tool_choice=none`.\n"
                                       "You MUST NOT call any tools in the next message."
                                     : "The system is invoked with `tool_choice=required`.\n"
                                       "You MUST call tools in the next message.");
    end_message(r);
}

#define RAW_JSON_RULE                                                                    \
    "Your response must be raw JSON data without markdown code blocks (```json) or any " \
    "additional "                                                                        \
    "formatting."

static void response_format_note(renderer *r, const k3i_chat_req *req)
{
    if (req->format == K3I_FORMAT_OBJECT) {
        open_system_note(r, "response-format");
        text(r, "The system is invoked with `response_format=json_object`.\n" RAW_JSON_RULE);
        end_message(r);
    } else if (req->format == K3I_FORMAT_SCHEMA) {
        yyjson_val *outer = get(req->response_format, "json_schema"),
                   *schema = get(outer, "schema");
        if (schema == NULL)
            schema = get(outer, "json_schema");
        json_message(r, "response-format",
                     "The system is invoked with `response_format=json_schema`.\n" RAW_JSON_RULE
                     "\nThe JSON data must match the following schema:\n",
                     schema != NULL ? schema : outer);
    }
}

/* ---- assistant messages --------------------------------------------------------------------- */

static void argument(renderer *r, const char *key, size_t key_bytes, const char *type,
                     const char *value, size_t n)
{
    open_tag(r, "argument");
    attribute(r, "key", key, key_bytes);
    attribute_s(r, "type", type);
    marker(r, K3I_SEG_SEP);
    text_n(r, value, n);
    close_tag(r, "argument");
}

/* Arguments that came as a JSON object, not as a string. */
static void object_arguments(renderer *r, yyjson_val *object)
{
    static const char first[] = {
        [YYJSON_TYPE_NULL] = 'n', [YYJSON_TYPE_BOOL] = 't', [YYJSON_TYPE_NUM] = '0',
        [YYJSON_TYPE_STR] = '"',  [YYJSON_TYPE_ARR] = '[',  [YYJSON_TYPE_OBJ] = '{',
        [YYJSON_TYPE_RAW] = '0'};
    k3i_buf printed = K3I_BUF(r->out->text.max);
    yyjson_obj_iter it = yyjson_obj_iter_with(object);
    for (yyjson_val *key; r->st == K3_OK && (key = yyjson_obj_iter_next(&it)) != NULL;) {
        yyjson_val *val = yyjson_obj_iter_get_val(key);
        printed.n = 0;
        if (yyjson_is_str(val))
            r->st = k3i_buf_add(&printed, yyjson_get_str(val), yyjson_get_len(val), r->err);
        else
            r->st = k3i_json_print(val, K3I_JSON_SPACED, &printed, r->err);
        argument(r, yyjson_get_str(key), yyjson_get_len(key),
                 k3i_json_type_name(first[yyjson_get_type(val)]), printed.data, printed.n);
    }
    k3i_buf_done(&printed);
}

/* One member of an argument string at *at: its key and value literals. */
typedef struct {
    size_t key, key_end, value, value_end;
} member;

static bool next_member(const char *s, size_t n, size_t *at, member *ret)
{
    ret->key = *at;
    if (*at >= n || s[*at] != '"' || (ret->key_end = k3i_json_skip(s, n, *at, true)) == 0)
        return false;
    size_t pos = k3i_json_skip_space(s, n, ret->key_end);
    if (pos >= n || s[pos] != ':')
        return false;
    ret->value = k3i_json_skip_space(s, n, pos + 1);
    ret->value_end = k3i_json_skip(s, n, ret->value, true);
    *at = k3i_json_skip_space(s, n, ret->value_end);
    return ret->value_end != 0;
}

/* Reads the object in s[0..n) one level deep: string values are decoded, others keep their source
 * text, duplicate keys are kept, text after the object is ignored. With r NULL only checks. */
static bool string_arguments(renderer *r, const char *s, size_t n)
{
    size_t at = k3i_json_skip_space(s, n, 0);
    if (at >= n || s[at] != '{')
        return false;
    at = k3i_json_skip_space(s, n, at + 1);
    if (at < n && s[at] == '}')
        return true;
    k3i_buf key = K3I_BUF(SIZE_MAX), value = K3I_BUF(SIZE_MAX);
    bool ok = false;
    for (member m; next_member(s, n, &at, &m); at = k3i_json_skip_space(s, n, at + 1)) {
        if (r != NULL && r->st == K3_OK) {
            key.n = value.n = 0;
            r->st = k3i_json_unescape(s, m.key, m.key_end, &key, r->err);
            if (r->st == K3_OK && s[m.value] == '"')
                r->st = k3i_json_unescape(s, m.value, m.value_end, &value, r->err);
            else if (r->st == K3_OK)
                r->st = k3i_buf_add(&value, s + m.value, m.value_end - m.value, r->err);
            argument(r, key.data, key.n, k3i_json_type_name(s[m.value]), value.data, value.n);
        }
        ok = at < n && s[at] == '}';
        if (ok || at >= n || s[at] != ',')
            break;
    }
    k3i_buf_done(&key);
    k3i_buf_done(&value);
    return ok;
}

static yyjson_val *call_function(yyjson_val *call)
{
    yyjson_val *function = get(call, "function");
    return function != NULL ? function : call;
}

static void call(renderer *r, yyjson_val *call_val, size_t index)
{
    yyjson_val *function = call_function(call_val), *name = get(function, "name");
    yyjson_val *arguments = get(function, "arguments");
    if (!has_text(name))
        refuse(r, "a tool call needs a function name");
    open_tag(r, "call");
    attribute_val(r, "tool", name);
    attribute_index(r, index);
    marker(r, K3I_SEG_SEP);
    if (yyjson_is_obj(arguments)) {
        object_arguments(r, arguments);
    } else if (has_text(arguments)) {
        const char *s = yyjson_get_str(arguments);
        size_t n = yyjson_get_len(arguments);
        if (string_arguments(NULL, s, n)) {
            string_arguments(r, s, n);
        } else {
            open_tag(r, "json");
            attribute_s(r, "type", "object");
            marker(r, K3I_SEG_SEP);
            text_n(r, s, n);
            close_tag(r, "json");
        }
    } else if (arguments != NULL && !yyjson_is_str(arguments)) {
        refuse(r, "the arguments of a tool call must be a string or an object");
    }
    close_tag(r, "call");
}

static void open_message(renderer *r, const char *role, yyjson_val *message)
{
    open_tag(r, "message");
    attribute_s(r, "role", role);
    yyjson_val *name = get(message, "name");
    if (name != NULL && !yyjson_is_str(name))
        refuse(r, "name must be a string");
    if (has_text(name))
        attribute_val(r, "name", name);
    marker(r, K3I_SEG_SEP);
}

static yyjson_val *reasoning_of(yyjson_val *message)
{
    yyjson_val *reasoning = get(message, "reasoning_content");
    if (reasoning == NULL || (yyjson_is_str(reasoning) && !has_text(reasoning)))
        reasoning = get(message, "reasoning");
    return reasoning;
}

static void reasoning(renderer *r, yyjson_val *message)
{
    yyjson_val *val = reasoning_of(message);
    if (val != NULL && !yyjson_is_str(val))
        refuse(r, "reasoning_content must be a string");
    text_val(r, val);
}

static void assistant_message(renderer *r, yyjson_val *message, bool is_thinking)
{
    open_message(r, "assistant", message);
    if (is_thinking) {
        open_plain(r, "think");
        reasoning(r, message);
        close_tag(r, "think");
    }
    open_plain(r, "response");
    content(r, message);
    close_tag(r, "response");
    yyjson_val *calls = get(message, "tool_calls");
    if (calls != NULL && !yyjson_is_arr(calls))
        refuse(r, "tool_calls must be an array");
    if (yyjson_arr_size(calls) > 0) {
        open_plain(r, "tools");
        yyjson_arr_iter it = yyjson_arr_iter_with(calls);
        for (yyjson_val *c; r->st == K3_OK && (c = yyjson_arr_iter_next(&it)) != NULL;)
            call(r, c, it.idx);
        close_tag(r, "tools");
    }
    end_message(r);
}

/* Whether content() would put or refuse anything: a list of empty texts is no content. */
static bool has_content(yyjson_val *body)
{
    if (!yyjson_is_arr(body))
        return body != NULL && (!yyjson_is_str(body) || has_text(body));
    yyjson_arr_iter it = yyjson_arr_iter_with(body);
    for (yyjson_val *part; (part = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_val *s = get(part, "text");
        if (!yyjson_equals_str(get(part, "type"), "text") || !yyjson_is_str(s) || has_text(s))
            return true;
    }
    return false;
}

/* The last message of a partial request: left open, after the notes. */
static void partial_message(renderer *r, const k3i_chat_req *req, yyjson_val *message)
{
    bool has_reasoning = req->is_thinking && has_text(reasoning_of(message));
    bool is_begun = has_content(get(message, "content"));
    open_message(r, "assistant", message);
    r->out->channel = K3I_CHANNEL_THINK;
    if (has_reasoning) {
        open_plain(r, "think");
        reasoning(r, message);
    }
    if (is_begun) {
        if (has_reasoning)
            close_tag(r, "think");
        open_plain(r, "response");
        content(r, message);
        r->out->channel = K3I_CHANNEL_RESPONSE;
    }
    if (!has_reasoning && !is_begun) {
        open_plain(r, req->is_thinking ? "think" : "response");
        r->out->channel = req->is_thinking ? K3I_CHANNEL_THINK : K3I_CHANNEL_RESPONSE;
        r->out->n_pending = 3;
    }
}

/* ---- tool results --------------------------------------------------------------------------- */

/* The place of a result's id among the calls of the latest assistant message; SIZE_MAX if absent.
 */
static size_t find_call(yyjson_val *calls, yyjson_val *result)
{
    yyjson_val *id = get(result, "tool_call_id");
    if (id == NULL)
        id = get(result, "id");
    if (!yyjson_is_str(id))
        return SIZE_MAX;
    yyjson_arr_iter it = yyjson_arr_iter_with(calls);
    for (yyjson_val *c; (c = yyjson_arr_iter_next(&it)) != NULL;) {
        if (yyjson_equals(get(c, "id"), id))
            return it.idx - 1;
    }
    return SIZE_MAX;
}

static void tool_message(renderer *r, yyjson_val *message, yyjson_val *name, size_t index)
{
    if (!has_text(name))
        refuse(r, "a tool message has no tool name and matches no call");
    open_tag(r, "message");
    attribute_s(r, "role", "tool");
    attribute_val(r, "tool", name);
    attribute_index(r, index);
    marker(r, K3I_SEG_SEP);
    content(r, message);
    end_message(r);
}

static yyjson_val *call_name(yyjson_val *calls, size_t at)
{
    return get(call_function(yyjson_arr_get(calls, at)), "name");
}

typedef struct {
    yyjson_val *message;
    size_t at; /* in the list of messages */
    uint32_t first_image;
    size_t call; /* place of its call, SIZE_MAX if unknown */
} tool_result;

/* A maximal run of tool messages. If every one answers a known call, they are put in the order of
 * the calls and named after them; otherwise all keep their order and names. */
static void tool_run(renderer *r, tool_result *run, size_t n, yyjson_val *calls, size_t *n_rendered)
{
    bool all_known = true;
    for (size_t i = 0; i < n; i++) {
        run[i].call = find_call(calls, run[i].message);
        all_known = all_known && run[i].call != SIZE_MAX;
    }
    for (size_t i = 1; all_known && i < n; i++) { /* stable; runs are short */
        tool_result x = run[i];
        size_t k = i;
        for (; k > 0 && run[k - 1].call > x.call; k--)
            run[k] = run[k - 1];
        run[k] = x;
    }
    for (size_t i = 0; i < n && r->st == K3_OK; i++) {
        yyjson_val *name = call_name(calls, run[i].call);
        if (!all_known) {
            name = get(run[i].message, "tool");
            if (!has_text(name))
                name = get(run[i].message, "name");
            if (!has_text(name))
                name = call_name(calls, *n_rendered);
        }
        r->next_image = run[i].first_image;
        tool_message(r, run[i].message, name, ++*n_rendered);
        if (r->st != K3_OK)
            k3i_err_prefix(r->err, "messages[%zu]", run[i].at);
    }
}

/* ---- the whole prompt ----------------------------------------------------------------------- */

static void system_message(renderer *r, yyjson_val *message)
{
    yyjson_val *tools = get(message, "tools"), *body = get(message, "content");
    if (tools != NULL && !yyjson_is_arr(tools))
        refuse(r, "tools must be an array");
    if (yyjson_arr_size(tools) == 0) {
        open_message(r, "system", message);
        content(r, message);
        end_message(r);
        return;
    }
    if (has_text(body) || (body != NULL && !yyjson_is_str(body) && yyjson_arr_size(body) > 0))
        refuse(r, "a system message that declares tools must have no content");
    json_message(r, "tool-declare",
                 "## New Tools Available\n"
                 "The system dynamically extends the toolset via lazy-loading.\n"
                 "You have access to all existing and extended tools.\n"
                 "Here are the specs for the extended tools.\n\n",
                 tools);
}

static void messages(renderer *r, const k3i_chat_req *req, size_t n)
{
    tool_result *run = k3i_alloc_array(n, sizeof *run);
    if (run == NULL) {
        r->st = k3i_fail(r->err, K3_E_NOMEM, "out of memory (%zu messages)", n);
        return;
    }
    yyjson_val *calls = NULL;
    size_t n_run = 0, n_rendered = 0, at = 0;
    uint32_t first_image = 0;
    yyjson_arr_iter it = yyjson_arr_iter_with(req->messages);
    for (yyjson_val *message;
         at < n && r->st == K3_OK && (message = yyjson_arr_iter_next(&it)) != NULL; at++) {
        bool is_tool = is_role(message, "tool");
        if (is_tool)
            run[n_run++] =
                (tool_result){.message = message, .at = at, .first_image = first_image};
        if (n_run > 0 && (!is_tool || at + 1 == n)) {
            tool_run(r, run, n_run, calls, &n_rendered);
            n_run = 0;
            if (r->st != K3_OK)
                break;
        }
        r->next_image = first_image;
        if (is_role(message, "user")) {
            open_message(r, "user", message);
            content(r, message);
            end_message(r);
        } else if (is_role(message, "system") || is_role(message, "developer")) {
            system_message(r, message);
        } else if (is_role(message, "assistant")) {
            assistant_message(r, message, req->is_thinking);
            calls = get(message, "tool_calls");
            n_rendered = 0;
        } else if (!is_tool) {
            refuse(r, "a message has an unknown role");
        }
        first_image += count_images(message);
        if (r->st != K3_OK)
            k3i_err_prefix(r->err, "messages[%zu]", at);
    }
    r->next_image = first_image;
    k3i_free(run);
}

k3_status k3i_chat_segments(const k3i_chat_req *req, size_t n_image, size_t max_bytes,
                            k3i_chat_segs *ret, k3i_err *err)
{
    k3i_chat_segs segs = {.text = K3I_BUF(max_bytes)};
    renderer r = {.out = &segs, .st = K3_OK, .err = err, .n_image = n_image};
    size_t n = yyjson_arr_size(req->messages);
    yyjson_val *last = req->is_partial ? yyjson_arr_get_last(req->messages) : NULL;
    if (yyjson_arr_size(req->tools) > 0)
        json_message(&r, "tool-declare",
                     "# Tools\nHere are the available tools, described in JSONSchema.\n\n",
                     req->tools);
    if (req->is_thinking && req->effort != K3I_EFFORT_NONE)
        effort_message(&r, req->effort);
    if (n > 0)
        messages(&r, req, last != NULL ? n - 1 : n);
    tool_choice_note(&r, req->tool_choice);
    response_format_note(&r, req);
    if (last != NULL) {
        partial_message(&r, req, last);
    } else if (req->add_generation_prompt) {
        open_tag(&r, "message");
        attribute_s(&r, "role", "assistant");
        marker(&r, K3I_SEG_SEP);
        open_plain(&r, req->is_thinking ? "think" : "response");
        segs.channel = req->is_thinking ? K3I_CHANNEL_THINK : K3I_CHANNEL_RESPONSE;
        segs.n_pending = 3;
    }
    if (r.st != K3_OK) {
        k3i_chat_segs_done(&segs);
        return r.st;
    }
    *ret = segs;
    return K3_OK;
}

void k3i_chat_segs_done(k3i_chat_segs *segs)
{
    k3i_buf_done(&segs->text);
    k3i_free(segs->seg);
    segs->seg = NULL;
    segs->n_seg = segs->cap_seg = 0;
}
