/* output.c: the streaming parser of K3 answers.
 *
 * Two layers. The lexer is in body mode, where the bytes of ordinary tokens belong to the current
 * state, or in header mode between OPEN or CLOSE and SEP, where they are collected; SEP dispatches
 * the header. The state machine below it is a table in words: see open_tag and close_tag. Where a
 * well-formed answer would need a closing tag that is missing, the next tag implies it. */
#include "output.h"

#include "chat.h"
#include "json_text.h"

#include <string.h>

/* A header that grows longer is no header. Those of calls and arguments carry names of up to 256
 * characters (chat.h), up to six bytes each when escaped. */
#define HEADER_MAX 256
#define HEADER_MAX_WITH_NAME 2048

typedef enum { IDLE, THINK, RESPONSE, EPILOGUE, TOOLS, CALL, ARG, JSON, DONE } parser_state;
typedef enum { BODY, OPENING, CLOSING } lexer_mode;
typedef enum { T_THINK, T_RESPONSE, T_TOOLS, T_CALL, T_ARGUMENT, T_JSON, T_MESSAGE, T_UNKNOWN } tag;

static const char *const tag_name[T_UNKNOWN] = {"think",    "response", "tools",  "call",
                                                "argument", "json",     "message"};

struct k3i_parser {
    const k3i_tok *tok;
    k3i_parser_opts opts;
    k3i_chat_event_fn fn;
    void *user;
    parser_state state;
    lexer_mode mode;
    k3i_buf header;     /* bytes since OPEN or CLOSE */
    k3i_detok detok;    /* unfinished character of the current body */
    k3i_buf text;       /* scratch: whole characters of one token */
    k3i_buf value;      /* value of an argument whose type is not string */
    k3i_buf escaped;    /* scratch: JSON text to send */
    size_t n_reasoning; /* ids inside THINK */
    int32_t n_call;     /* calls begun and not dropped */
    size_t n_complete;
    bool drop_call;  /* the current call is read but not reported */
    bool is_string;  /* ARG: the value is a string, sent as it comes */
    bool drop_value; /* ARG, JSON: not reported: a json block and arguments do not mix */
    bool has_arguments, has_json; /* of the current call */
};

/* ---- events --------------------------------------------------------------------------------- */

static k3_status emit(k3i_parser *p, int32_t kind, const char *text, size_t n, k3i_err *err)
{
    k3i_chat_event event = {.kind = kind, .call = p->n_call - 1, .text = text, .n = n};
    return p->fn(p->user, &event, err);
}

static k3_status emit_args(k3i_parser *p, const char *text, size_t n, k3i_err *err)
{
    return p->drop_call || p->drop_value || n == 0 ? K3_OK
                                                   : emit(p, K3I_EVENT_CALL_ARGS, text, n, err);
}

static k3_status emit_escaped(k3i_parser *p, const char *text, size_t n, k3i_err *err)
{
    p->escaped.n = 0;
    k3_status st = k3i_json_escape(text, n, &p->escaped, err);
    return st == K3_OK ? emit_args(p, p->escaped.data, p->escaped.n, err) : st;
}

/* Whole characters of the current state's body. */
static k3_status body_text(k3i_parser *p, const char *text, size_t n, k3i_err *err)
{
    if (n == 0)
        return K3_OK;
    switch (p->state) {
    case THINK:
        return emit(p, K3I_EVENT_REASONING, text, n, err);
    case IDLE:
    case RESPONSE:
        return emit(p, K3I_EVENT_CONTENT, text, n, err);
    case ARG:
        return p->is_string ? emit_escaped(p, text, n, err) : k3i_buf_add(&p->value, text, n, err);
    case JSON:
        return emit_args(p, text, n, err);
    default:
        return K3_OK; /* noise between channels and tags */
    }
}

static k3_status body_bytes(k3i_parser *p, const uint8_t *bytes, size_t n, k3i_err *err)
{
    p->text.n = 0;
    k3_status st = k3i_detok_bytes(&p->detok, bytes, n, &p->text, err);
    return st == K3_OK ? body_text(p, p->text.data, p->text.n, err) : st;
}

/* A tag or the end of the output: an unfinished character ends here. */
static k3_status flush_character(k3i_parser *p, k3i_err *err)
{
    p->text.n = 0;
    k3_status st = k3i_detok_flush(&p->detok, &p->text, err);
    return st == K3_OK ? body_text(p, p->text.data, p->text.n, err) : st;
}

/* ---- headers -------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The tag that the header names; *at is moved past the name. */
static tag read_tag(const char *s, size_t n, size_t *at)
{
    while (*at < n && is_space(s[*at]))
        ++*at;
    size_t from = *at;
    while (*at < n && is_word(s[*at]))
        ++*at;
    for (tag t = 0; t < T_UNKNOWN; t++) {
        if (strlen(tag_name[t]) == *at - from && memcmp(s + from, tag_name[t], *at - from) == 0)
            return t;
    }
    return T_UNKNOWN;
}

typedef struct {
    const char *key, *value;
    size_t n_key, n_value;
} attribute;

/* The next key="value" at *at; false, with *at unmoved, if there is none. */
static bool read_attribute(const char *s, size_t n, size_t *at, attribute *ret)
{
    size_t i = *at;
    while (i < n && is_space(s[i]))
        i++;
    ret->key = s + i;
    while (i < n && is_word(s[i]))
        i++;
    ret->n_key = (size_t)(s + i - ret->key);
    if (ret->n_key == 0 || n - i < 2 || s[i] != '=' || s[i + 1] != '"')
        return false;
    ret->value = s + i + 2;
    const char *quote = memchr(ret->value, '"', n - i - 2);
    if (quote == NULL)
        return false;
    ret->n_value = (size_t)(quote - ret->value);
    *at = (size_t)(quote + 1 - s);
    return true;
}

static bool is_key(const attribute *a, const char *key)
{
    return strlen(key) == a->n_key && memcmp(a->key, key, a->n_key) == 0;
}

/* Undoes the escaping of attribute values: &quot; first, then &amp;. */
static k3_status unescape(const char *s, size_t n, k3i_buf *ret, k3i_err *err)
{
    k3_status st = K3_OK;
    for (size_t i = 0; i < n && st == K3_OK;) {
        if (n - i >= 6 && memcmp(s + i, "&quot;", 6) == 0) {
            st = k3i_buf_add(ret, "\"", 1, err);
            i += 6;
        } else if (n - i >= 5 && memcmp(s + i, "&amp;", 5) == 0) {
            st = k3i_buf_add(ret, "&", 1, err);
            i += 5;
        } else {
            st = k3i_buf_add(ret, s + i++, 1, err);
        }
    }
    return st;
}

/* Appends the unescaped value of attribute `key` of the header, read from `at` on, as well-formed
 * UTF-8. */
static k3_status header_value(k3i_parser *p, size_t at, const char *key, k3i_buf *ret, k3i_err *err)
{
    attribute a;
    while (read_attribute(p->header.data, p->header.n, &at, &a)) {
        if (!is_key(&a, key))
            continue;
        p->text.n = 0;
        k3i_detok d = {0};
        k3_status st = unescape(a.value, a.n_value, &p->text, err);
        if (st == K3_OK)
            st = k3i_detok_bytes(&d, (const uint8_t *)p->text.data, p->text.n, ret, err);
        return st == K3_OK ? k3i_detok_flush(&d, ret, err) : st;
    }
    return K3_OK;
}

/* ---- calls and arguments -------------------------------------------------------------------- */

static k3_status begin_call(k3i_parser *p, size_t at, k3i_err *err)
{
    p->value.n = 0;
    k3_status st = header_value(p, at, "tool", &p->value, err);
    if (st != K3_OK)
        return st;
    p->state = CALL;
    p->has_arguments = p->has_json = p->drop_value = false;
    p->drop_call =
        p->value.n == 0 || p->opts.discard_calls || (p->opts.single_call && p->n_call > 0);
    if (p->drop_call)
        return K3_OK;
    p->n_call++;
    return emit(p, K3I_EVENT_CALL_BEGIN, p->value.data, p->value.n, err);
}

/* Closes the current call: its arguments become a whole object. */
static k3_status end_call(k3i_parser *p, k3i_err *err)
{
    p->state = TOOLS;
    p->drop_value = false;
    if (p->drop_call)
        return K3_OK;
    k3_status st = K3_OK;
    if (!p->has_json)
        st = p->has_arguments ? emit_args(p, "}", 1, err) : emit_args(p, "{}", 2, err);
    p->n_complete++;
    k3i_chat_event event = {
        .kind = K3I_EVENT_CALL_END, .call = p->n_call - 1, .is_raw = p->has_json, .text = ""};
    return st == K3_OK ? p->fn(p->user, &event, err) : st;
}

static k3_status begin_argument(k3i_parser *p, size_t at, k3i_err *err)
{
    p->state = ARG;
    p->drop_value = p->has_json;
    p->value.n = 0;
    k3_status st = header_value(p, at, "type", &p->value, err);
    if (st != K3_OK)
        return st;
    p->is_string = p->value.n == 0 || (p->value.n == 6 && memcmp(p->value.data, "string", 6) == 0);
    p->value.n = 0;
    st = header_value(p, at, "key", &p->value, err);
    if (st == K3_OK)
        st = p->has_arguments ? emit_args(p, ", \"", 3, err) : emit_args(p, "{\"", 2, err);
    if (st == K3_OK)
        st = emit_escaped(p, p->value.data, p->value.n, err);
    p->value.n = 0;
    if (st == K3_OK)
        st = p->is_string ? emit_args(p, "\": \"", 4, err) : emit_args(p, "\": ", 3, err);
    p->has_arguments = p->has_arguments || !p->drop_value;
    return st;
}

/* The value of a non-string argument: its trimmed text if that is JSON, else the text as a string.
 */
static k3_status send_value(k3i_parser *p, k3i_err *err)
{
    const char *s = p->value.data;
    size_t n = p->value.n, from = k3i_json_skip_space(s, n, 0);
    size_t end = from < n ? k3i_json_skip(s, n, from, false) : 0;
    if (end != 0 && k3i_json_skip_space(s, n, end) == n)
        return emit_args(p, s + from, end - from, err);
    k3_status st = emit_args(p, "\"", 1, err);
    if (st == K3_OK)
        st = emit_escaped(p, s, n, err);
    return st == K3_OK ? emit_args(p, "\"", 1, err) : st;
}

/* Ends an open argument or json block; other states are left alone. */
static k3_status end_value(k3i_parser *p, k3i_err *err)
{
    k3_status st = K3_OK;
    if (p->state == ARG)
        st = p->is_string ? emit_args(p, "\"", 1, err) : send_value(p, err);
    if (p->state == ARG || p->state == JSON)
        p->state = CALL;
    p->drop_value = false;
    return st;
}

/* Ends an open value and an open call. */
static k3_status end_open_call(k3i_parser *p, k3i_err *err)
{
    k3_status st = end_value(p, err);
    return st == K3_OK && p->state == CALL ? end_call(p, err) : st;
}

/* ---- the state machine ---------------------------------------------------------------------- */

static k3_status open_tag(k3i_parser *p, tag t, size_t at, k3i_err *err)
{
    bool in_call = p->state == CALL || p->state == ARG || p->state == JSON;
    bool in_channel =
        p->state == IDLE || p->state == THINK || p->state == RESPONSE || p->state == EPILOGUE;
    k3_status st = K3_OK;
    switch (t) {
    case T_THINK:
        if (p->state == IDLE)
            p->state = THINK;
        return K3_OK;
    case T_RESPONSE:
        if (in_channel)
            p->state = RESPONSE;
        return K3_OK;
    case T_TOOLS:
        if (in_channel)
            p->state = TOOLS;
        return K3_OK;
    case T_CALL:
        if (in_call)
            st = end_open_call(p, err);
        return st == K3_OK && p->state == TOOLS ? begin_call(p, at, err) : st;
    case T_ARGUMENT:
        if (in_call)
            st = end_value(p, err);
        return st == K3_OK && p->state == CALL ? begin_argument(p, at, err) : st;
    case T_JSON:
        if (p->state != CALL)
            return K3_OK;
        p->state = JSON;
        p->drop_value = p->has_arguments || p->has_json;
        p->has_json = p->has_json || !p->has_arguments;
        return K3_OK;
    default:
        return K3_OK;
    }
}

static k3_status close_tag(k3i_parser *p, tag t, k3i_err *err)
{
    k3_status st = K3_OK;
    switch (t) {
    case T_THINK:
        if (p->state == THINK)
            p->state = IDLE;
        return K3_OK;
    case T_RESPONSE:
        if (p->state == RESPONSE)
            p->state = EPILOGUE;
        return K3_OK;
    case T_TOOLS:
        st = end_open_call(p, err);
        if (p->state == TOOLS)
            p->state = EPILOGUE;
        return st;
    case T_CALL:
        return end_open_call(p, err);
    case T_ARGUMENT:
        return p->state == ARG ? end_value(p, err) : K3_OK;
    case T_JSON:
        return p->state == JSON ? end_value(p, err) : K3_OK;
    case T_MESSAGE:
        st = end_open_call(p, err);
        p->state = DONE;
        return st;
    default:
        return K3_OK;
    }
}

/* Ends header mode. `has_sep`: by SEP, so the whole header counts. Otherwise its leading word does,
 * if it is a tag, with the attributes that follow it; the rest is body. */
static k3_status end_header(k3i_parser *p, bool has_sep, k3i_err *err)
{
    lexer_mode mode = p->mode;
    size_t at = 0;
    p->mode = BODY;
    tag t = read_tag(p->header.data, p->header.n, &at);
    if (t == T_UNKNOWN || (has_sep && at < p->header.n && !is_space(p->header.data[at])))
        return K3_OK;
    k3_status st = mode == OPENING ? open_tag(p, t, at, err) : close_tag(p, t, err);
    if (has_sep || st != K3_OK)
        return st;
    attribute a;
    while (mode == OPENING && read_attribute(p->header.data, p->header.n, &at, &a)) {
    }
    return body_bytes(p, (const uint8_t *)p->header.data + at, p->header.n - at, err);
}

/* Whether the header, as far as it is there, opens a call or an argument. */
static bool has_name(const k3i_parser *p)
{
    size_t at = 0;
    tag t = read_tag(p->header.data, p->header.n, &at);
    return p->mode == OPENING && (t == T_CALL || t == T_ARGUMENT);
}

static k3_status push_marker(k3i_parser *p, int32_t id, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(p->tok);
    k3_status st = p->mode != BODY ? end_header(p, id == special->sep, err) : K3_OK;
    if (st != K3_OK || id == special->sep || p->state == DONE)
        return st;
    st = flush_character(p, err);
    if (st != K3_OK)
        return st;
    if (id == special->end_of_msg)
        return close_tag(p, T_MESSAGE, err);
    p->mode = id == special->open ? OPENING : CLOSING;
    p->header.n = 0;
    return K3_OK;
}

k3_status k3i_parser_push(k3i_parser *p, int32_t id, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(p->tok);
    size_t n;
    const uint8_t *bytes = k3i_tok_bytes(p->tok, id, &n);
    if (bytes == NULL)
        return k3i_fail(err, K3_E_ARG, "token id %d is not in 0..%d", id, k3i_tok_size(p->tok) - 1);
    if (p->state == DONE)
        return K3_OK;
    if (id == special->open || id == special->close || id == special->sep ||
        id == special->end_of_msg)
        return push_marker(p, id, err);
    if (k3i_tok_is_special(p->tok, id))
        return K3_OK; /* no other special id is legitimate output */
    if (p->mode == BODY) {
        p->n_reasoning += p->state == THINK;
        return body_bytes(p, bytes, n, err);
    }
    k3_status st = k3i_buf_add(&p->header, bytes, n, err);
    return st == K3_OK && p->header.n > (has_name(p) ? HEADER_MAX_WITH_NAME : HEADER_MAX)
               ? end_header(p, false, err)
               : st;
}

k3_status k3i_parser_finish(k3i_parser *p, k3i_err *err)
{
    k3_status st = K3_OK;
    if (p->state == DONE)
        return K3_OK;
    /* Half the header of a call or an argument tells no name, or half of one: no call begins with
     * it. */
    if (p->mode != BODY && !has_name(p))
        st = end_header(p, false, err);
    if (st == K3_OK)
        st = flush_character(p, err);
    p->state = DONE;
    return st;
}

/* ---- object --------------------------------------------------------------------------------- */

k3_status k3i_parser_new(const k3i_tok *tok, const k3i_parser_opts *opts, k3i_chat_event_fn fn,
                         void *user, k3i_parser **ret, k3i_err *err)
{
    k3i_parser *p = k3i_alloc_zero(sizeof *p);
    if (p == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory (output parser)");
    p->tok = tok;
    p->opts = *opts;
    p->fn = fn;
    p->user = user;
    p->state = opts->channel == K3I_CHANNEL_THINK      ? THINK
               : opts->channel == K3I_CHANNEL_RESPONSE ? RESPONSE
                                                       : IDLE;
    p->header = p->text = p->value = p->escaped = K3I_BUF(K3I_OUTPUT_MAX_BYTES);
    /* So that `data` of these two is never NULL. */
    k3_status st = k3i_buf_reserve(&p->header, HEADER_MAX, err);
    if (st == K3_OK)
        st = k3i_buf_reserve(&p->value, HEADER_MAX, err);
    if (st != K3_OK)
        k3i_parser_free(p);
    else
        *ret = p;
    return st;
}

void k3i_parser_free(k3i_parser *p)
{
    if (p == NULL)
        return;
    k3i_buf_done(&p->header);
    k3i_buf_done(&p->text);
    k3i_buf_done(&p->value);
    k3i_buf_done(&p->escaped);
    k3i_free(p);
}

bool k3i_parser_is_done(const k3i_parser *p)
{
    return p->state == DONE;
}

bool k3i_parser_is_reasoning(const k3i_parser *p)
{
    return p->state == THINK;
}

size_t k3i_parser_reasoning_tokens(const k3i_parser *p)
{
    return p->n_reasoning;
}

size_t k3i_parser_calls(const k3i_parser *p)
{
    return p->n_complete;
}
