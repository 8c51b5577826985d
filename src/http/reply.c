/* reply.c: the JSON of answers, whole and in chunks. */
#include "call.h"

#include <string.h>

/* Moonshot's name for the thoughts, which the vendor verifier reads, and vLLM's, which vLLM's own
 * clients read. */
static const char *const REASONING[2] = {"reasoning_content", "reasoning"};

/* ---- parts shared by all forms -----------------------------------------------------------------
 */

typedef struct {
    int64_t prompt, cached, completion, reasoning, accepted, rejected;
} usage;

static usage usage_of(const k3i_api_call *c)
{
    usage u = {0};
    for (int32_t i = 0; i < c->n_choices; i++) {
        const k3i_choice *ch = &c->choice[i];
        if (i % c->params.n == 0) {
            u.prompt += ch->req->n_prompt - (c->is_chat ? (int32_t)c->prompt.n_pending : 0);
            u.cached += ch->req->n_cached;
        }
        u.completion += k3i_choice_completion_tokens(ch);
        u.reasoning += (int64_t)k3i_unfold_reasoning_tokens(ch->unfold);
        u.accepted += ch->req->n_accepted;
        u.rejected += ch->req->n_drafted - ch->req->n_accepted;
    }
    /* The prompt is billed without the opener of the channel, and what is reused cannot be more. */
    u.cached = u.cached < u.prompt ? u.cached : u.prompt;
    return u;
}

static void write_usage(const k3i_api_call *c, k3i_json *j)
{
    usage u = usage_of(c);
    k3i_json_fmt(j, "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,",
                 (long long)u.prompt, (long long)u.completion,
                 (long long)(u.prompt + u.completion));
    k3i_json_fmt(j, "\"prompt_tokens_details\":{\"cached_tokens\":%lld},", (long long)u.cached);
    k3i_json_fmt(j,
                 "\"completion_tokens_details\":{\"reasoning_tokens\":%lld,"
                 "\"accepted_prediction_tokens\":%lld,\"rejected_prediction_tokens\":%lld},",
                 (long long)u.reasoning, (long long)u.accepted, (long long)u.rejected);
    k3i_json_fmt(j, "\"cached_tokens\":%lld}", (long long)u.cached);
}

static void write_head(const k3i_api_call *c, const char *object, k3i_json *j)
{
    k3i_json_raw(j, "{\"id\":");
    k3i_json_str(j, c->id);
    k3i_json_fmt(j, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                 (long long)c->created);
    k3i_json_str(j, c->model);
}

static void write_stop_reason(const k3i_choice *ch, k3i_json *j)
{
    int32_t token;
    const char *text = k3i_choice_stop_reason(ch, &token);
    k3i_json_raw(j, ",\"stop_reason\":");
    if (text != NULL)
        k3i_json_str(j, text);
    else if (token >= 0)
        k3i_json_fmt(j, "%d", (int)token);
    else
        k3i_json_raw(j, "null");
}

/* The text of one token, with U+FFFD for what is no character by itself. */
static void write_token_text(const k3i_api_call *c, int32_t id, k3i_json *j)
{
    if (c->params.tokens_as_ids) {
        k3i_json_fmt(j, "\"token_id:%d\"", (int)id);
        return;
    }
    k3i_buf text = K3I_BUF(4096);
    if (k3i_tok_decode(c->api->tok, &id, 1, false, &text, NULL) == K3_OK)
        k3i_json_strn(j, text.data, text.n);
    else
        k3i_json_raw(j, "\"\"");
    k3i_buf_done(&text);
}

static void write_token_bytes(const k3i_api_call *c, int32_t id, k3i_json *j)
{
    size_t n = 0;
    const uint8_t *bytes = k3i_tok_bytes(c->api->tok, id, &n);
    k3i_json_raw(j, "[");
    for (size_t i = 0; bytes != NULL && i < n; i++)
        k3i_json_fmt(j, i == 0 ? "%u" : ",%u", (unsigned)bytes[i]);
    k3i_json_raw(j, "]");
}

static void write_lp_entry(const k3i_api_call *c, const k3i_logprob *lp, k3i_json *j)
{
    k3i_json_raw(j, "{\"token\":");
    write_token_text(c, lp->token, j);
    k3i_json_raw(j, ",\"logprob\":");
    k3i_json_float(j, (double)lp->logprob);
    k3i_json_raw(j, ",\"bytes\":");
    write_token_bytes(c, lp->token, j);
}

/* {"content":[...]} of the tokens pumped, or null. */
static void write_chat_logprobs(const k3i_api_call *c, const k3i_choice *ch, k3i_json *j)
{
    if (c->params.logprobs < 0) {
        k3i_json_raw(j, "null");
        return;
    }
    k3i_json_raw(j, "{\"content\":[");
    for (size_t i = 0; i < ch->n_tokens; i++) {
        const k3i_logprob *lp = ch->tokens[i].lp;
        k3i_json_raw(j, i == 0 ? "" : ",");
        write_lp_entry(c, lp, j);
        k3i_json_raw(j, ",\"top_logprobs\":[");
        for (int32_t k = 1; k <= c->params.logprobs; k++) {
            k3i_json_raw(j, k == 1 ? "" : ",");
            write_lp_entry(c, lp + k, j);
            k3i_json_raw(j, "}");
        }
        k3i_json_raw(j, "]}");
    }
    k3i_json_raw(j, "]}");
}

static void write_token_ids(const k3i_api_call *c, const k3i_choice *ch, k3i_json *j)
{
    if (!c->params.return_token_ids)
        return;
    k3i_json_raw(j, ",\"token_ids\":[");
    for (size_t i = 0; i < ch->n_tokens; i++)
        k3i_json_fmt(j, i == 0 ? "%d" : ",%d", (int)ch->tokens[i].id);
    k3i_json_raw(j, "]");
}

static void write_prompt_ids(const k3i_api_call *c, const k3i_request *r, k3i_json *j)
{
    if (!c->params.return_token_ids)
        return;
    k3i_json_raw(j, ",\"prompt_token_ids\":[");
    for (int32_t i = 0; i < r->n_prompt; i++)
        k3i_json_fmt(j, i == 0 ? "%d" : ",%d", (int)r->prompt[i]);
    k3i_json_raw(j, "]");
}

/* prompt_logprobs as vLLM has them: null, then one object by token id for each position that was
 * computed: all of them, unless the request ended before. */
static void write_prompt_logprobs(const k3i_api_call *c, const k3i_request *r, k3i_json *j)
{
    if (r->prompt_logprobs < 0)
        return;
    k3i_json_raw(j, ",\"prompt_logprobs\":[null");
    for (int32_t i = 1; i < r->n_prompt_lp; i++) {
        const k3i_logprob *lp = r->prompt_lp + (size_t)i * (size_t)(1 + r->prompt_logprobs);
        k3i_json_raw(j, ",{");
        for (int32_t k = 0; k <= r->prompt_logprobs; k++) {
            if (k > 0 && lp[k].token == lp[0].token)
                continue; /* the prompt's own token stands first already */
            k3i_json_fmt(j, "%s\"%d\":{\"logprob\":", k == 0 ? "" : ",", (int)lp[k].token);
            k3i_json_float(j, (double)lp[k].logprob);
            k3i_json_fmt(j, ",\"rank\":%d,\"decoded_token\":", (int)lp[k].rank);
            write_token_text(c, lp[k].token, j);
            k3i_json_raw(j, "}");
        }
        k3i_json_raw(j, "}");
    }
    k3i_json_raw(j, "]");
}

/* ---- completions logprobs ----------------------------------------------------------------------
 */

/* One list entry of each kind; the prompt's tokens come before the output's where echoed. */
typedef struct {
    const k3i_logprob *lp; /* NULL: the first prompt token has none, nor has one not computed */
    int32_t id, n_alt;
} entry;

static entry entry_at(const k3i_api_call *c, const k3i_choice *ch, int32_t i)
{
    const k3i_request *r = ch->req;
    int32_t n_echo = c->params.echo ? r->n_prompt : 0;
    if (i >= n_echo) {
        const k3i_token_lp *t = &ch->tokens[i - n_echo];
        return (entry){t->lp, t->id, c->params.logprobs};
    }
    const k3i_logprob *lp = NULL;
    if (i > 0 && i < r->n_prompt_lp)
        lp = r->prompt_lp + (size_t)i * (size_t)(1 + r->prompt_logprobs);
    return (entry){lp, r->prompt[i], r->prompt_logprobs};
}

static void write_top(const k3i_api_call *c, const entry *e, k3i_json *j)
{
    if (e->lp == NULL) {
        k3i_json_raw(j, "null");
        return;
    }
    k3i_json_raw(j, "{");
    for (int32_t k = 0; k <= e->n_alt; k++) {
        if (k > 0 && e->lp[k].token == e->lp[0].token)
            continue;
        k3i_json_raw(j, k == 0 ? "" : ",");
        write_token_text(c, e->lp[k].token, j);
        k3i_json_raw(j, ":");
        k3i_json_float(j, (double)e->lp[k].logprob);
    }
    k3i_json_raw(j, "}");
}

static size_t count_chars(const k3i_buf *utf8)
{
    size_t n = 0;
    for (size_t i = 0; i < utf8->n; i++)
        n += ((unsigned char)utf8->data[i] & 0xC0) != 0x80;
    return n;
}

/* Where a token begins in the text, in characters as OpenAI counts; one that goes on with a
 * character, where that begins. `is_first`: of the output, which is decoded apart from the prompt.
 */
static void write_offset(const k3i_api_call *c, k3i_choice *ch, int32_t id, bool is_first,
                         k3i_json *j)
{
    k3i_buf text = K3I_BUF(4096);
    if (is_first && j->status == K3_OK)
        j->status = k3i_detok_flush(&ch->offset_detok, &text, &j->err);
    k3i_json_fmt(j, "%zu", ch->offset + count_chars(&text));
    if (j->status == K3_OK)
        j->status = k3i_detok_push(c->api->tok, &ch->offset_detok, id,
                                   c->params.skip_special_tokens, &text, &j->err);
    ch->offset += count_chars(&text);
    k3i_buf_done(&text);
}

static void write_completion_logprobs(const k3i_api_call *c, k3i_choice *ch, bool with_echo,
                                      k3i_json *j)
{
    if (c->params.logprobs < 0) {
        k3i_json_raw(j, "null");
        return;
    }
    int32_t n_echo = c->params.echo ? ch->req->n_prompt : 0;
    int32_t first = with_echo ? 0 : n_echo, n = n_echo + (int32_t)ch->n_tokens;
    static const char *const NAMES[] = {"text_offset", "token_logprobs", "tokens", "top_logprobs"};
    for (int32_t list = 0; list < 4; list++) {
        k3i_json_fmt(j, "%s\"%s\":[", list == 0 ? "{" : ",", NAMES[list]);
        for (int32_t i = first; i < n; i++) {
            entry e = entry_at(c, ch, i);
            k3i_json_raw(j, i == first ? "" : ",");
            if (list == 0) {
                write_offset(c, ch, e.id, with_echo && i == n_echo, j);
            } else if (list == 1 && e.lp == NULL) {
                k3i_json_raw(j, "null");
            } else if (list == 1) {
                k3i_json_float(j, (double)e.lp[0].logprob);
            } else if (list == 2) {
                write_token_text(c, e.id, j);
            } else {
                write_top(c, &e, j);
            }
        }
        k3i_json_raw(j, "]");
    }
    k3i_json_raw(j, "}");
}

/* ---- whole answers -----------------------------------------------------------------------------
 */

/* The delta that ends a call, NULL if the token limit cut it off. */
static const k3i_delta *end_of_call(const k3i_choice *ch, int32_t call)
{
    for (size_t i = 0; i < ch->n_delta; i++) {
        if (ch->delta[i].kind == K3I_EVENT_CALL_END && ch->delta[i].call == call)
            return &ch->delta[i];
    }
    return NULL;
}

/* All deltas of a kind (and call, unless negative). */
static void join(const k3i_choice *ch, int32_t kind, int32_t call, k3i_buf *ret, k3i_json *j)
{
    for (size_t i = 0; i < ch->n_delta; i++) {
        const k3i_delta *d = &ch->delta[i];
        if (d->kind == kind && (call < 0 || d->call == call) && j->status == K3_OK)
            j->status = k3i_buf_add(ret, ch->text.data + d->at, d->n, &j->err);
    }
}

/* All text of a kind, behind what is echoed, as one JSON string. */
static void write_joined(const k3i_choice *ch, int32_t kind, const k3i_buf *echo, k3i_json *j)
{
    k3i_buf text = K3I_BUF(2 * K3I_OUTPUT_MAX_BYTES);
    if (echo != NULL && echo->n > 0 && j->status == K3_OK)
        j->status = k3i_buf_add(&text, echo->data, echo->n, &j->err);
    join(ch, kind, -1, &text, j);
    k3i_json_strn(j, text.n > 0 ? text.data : "", text.n);
    k3i_buf_done(&text);
}

/* As far as they were written; of a complete call with the last of equal keys only. */
static void write_arguments(const k3i_choice *ch, int32_t call, k3i_json *j)
{
    k3i_buf text = K3I_BUF(K3I_OUTPUT_MAX_BYTES), last = K3I_BUF(K3I_OUTPUT_MAX_BYTES);
    const k3i_delta *end = end_of_call(ch, call);
    bool is_written = end == NULL || end->is_raw;
    join(ch, K3I_EVENT_CALL_ARGS, call, &text, j);
    if (!is_written && text.n > 0 && j->status == K3_OK)
        j->status = k3i_arguments_last(text.data, text.n, &last, &j->err);
    const k3i_buf *shown = is_written ? &text : &last;
    k3i_json_strn(j, shown->n > 0 ? shown->data : "", shown->n);
    k3i_buf_done(&text);
    k3i_buf_done(&last);
}

static bool has_kind(const k3i_choice *ch, int32_t kind)
{
    for (size_t i = 0; i < ch->n_delta; i++) {
        if (ch->delta[i].kind == kind && ch->delta[i].n > 0)
            return true;
    }
    return false;
}

/* Unlike a K2 id this one carries no meaning; unique over the server's life. */
static void write_call_id(const k3i_api_call *c, const k3i_choice *ch, int32_t call, k3i_json *j)
{
    static const char DIGITS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char id[25];
    uint64_t state = c->api->id_seed ^ (uint64_t)c->created << 20 ^
                     (uint64_t)ch->req->sampling.seed * 0x9E3779B97F4A7C15u;
    for (const char *p = c->id; *p != 0; p++)
        state = (state ^ (uint8_t)*p) * 0x100000001B3u;
    state += (uint64_t)(ch->index * 4096 + call + 1) * 0xD1342543DE82EF95u;
    for (int i = 0; i < 24; i++) {
        state = (state ^ (state >> 29)) * 0xBF58476D1CE4E5B9u + 0x632BE59BD9B4E019u;
        id[i] = DIGITS[(state >> 33) % 62];
    }
    id[24] = 0;
    k3i_json_fmt(j, "\"call_%s\"", id);
}

static void write_message(const k3i_api_call *c, const k3i_choice *ch, k3i_json *j)
{
    size_t n_calls = 0;
    for (size_t i = 0; i < ch->n_delta; i++)
        n_calls += ch->delta[i].kind == K3I_EVENT_CALL_BEGIN;
    k3i_json_raw(j, "{\"role\":\"assistant\",\"content\":");
    if (n_calls > 0 && !has_kind(ch, K3I_EVENT_CONTENT) && c->echo.n == 0)
        k3i_json_raw(j, "null");
    else
        write_joined(ch, K3I_EVENT_CONTENT, &c->echo, j);
    bool has_reasoning = c->chat.is_thinking || has_kind(ch, K3I_EVENT_REASONING);
    for (size_t i = 0; i < 2 && has_reasoning && c->params.include_reasoning; i++) {
        k3i_json_fmt(j, ",\"%s\":", REASONING[i]);
        write_joined(ch, K3I_EVENT_REASONING, NULL, j);
    }
    bool is_first = true;
    for (size_t i = 0; i < ch->n_delta && n_calls > 0; i++) {
        const k3i_delta *d = &ch->delta[i];
        if (d->kind != K3I_EVENT_CALL_BEGIN)
            continue;
        k3i_json_raw(j, is_first ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        is_first = false;
        write_call_id(c, ch, d->call, j);
        k3i_json_raw(j, ",\"type\":\"function\",\"function\":{\"name\":");
        k3i_json_strn(j, ch->text.data + d->at, d->n);
        k3i_json_raw(j, ",\"arguments\":");
        write_arguments(ch, d->call, j);
        k3i_json_raw(j, "}}");
    }
    k3i_json_raw(j, is_first ? "}" : "]}");
}

static void write_chat_choice(const k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    k3i_json_fmt(j, "{\"index\":%d,\"message\":", (int)ch->index);
    write_message(c, ch, j);
    k3i_json_raw(j, ",\"logprobs\":");
    write_chat_logprobs(c, ch, j);
    k3i_json_fmt(j, ",\"finish_reason\":\"%s\"", k3i_choice_reason(ch));
    write_stop_reason(ch, j);
    write_token_ids(c, ch, j);
    if (c->api->config->kimi_policy) {
        k3i_json_raw(j, ",\"usage\":");
        write_usage(c, j);
    }
    k3i_json_raw(j, "}");
}

static void write_echoed(const k3i_api_call *c, const k3i_choice *ch, k3i_buf *text, k3i_json *j)
{
    if (c->params.echo && j->status == K3_OK)
        j->status = k3i_tok_decode(c->api->tok, ch->req->prompt, (size_t)ch->req->n_prompt,
                                   c->params.skip_special_tokens, text, &j->err);
}

static void write_completion_choice(const k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    k3i_buf text = K3I_BUF(2 * K3I_OUTPUT_MAX_BYTES);
    write_echoed(c, ch, &text, j);
    for (size_t i = 0; i < ch->n_delta && j->status == K3_OK; i++)
        j->status = k3i_buf_add(&text, ch->text.data + ch->delta[i].at, ch->delta[i].n, &j->err);
    k3i_json_fmt(j, "{\"index\":%d,\"text\":", (int)ch->index);
    k3i_json_strn(j, text.n > 0 ? text.data : "", text.n);
    k3i_buf_done(&text);
    k3i_json_raw(j, ",\"logprobs\":");
    write_completion_logprobs(c, ch, true, j);
    k3i_json_fmt(j, ",\"finish_reason\":\"%s\"", k3i_choice_reason(ch));
    write_stop_reason(ch, j);
    write_token_ids(c, ch, j);
    write_prompt_ids(c, ch->req, j);
    if (c->params.prompt_logprobs >= 0)
        write_prompt_logprobs(c, ch->req, j);
    k3i_json_raw(j, "}");
}

void k3i_reply_whole(k3i_api_call *c, k3i_json *j)
{
    write_head(c, c->is_chat ? "chat.completion" : "text_completion", j);
    k3i_json_raw(j, ",\"choices\":[");
    for (int32_t i = 0; i < c->n_choices; i++) {
        k3i_json_raw(j, i == 0 ? "" : ",");
        if (c->is_chat)
            write_chat_choice(c, &c->choice[i], j);
        else
            write_completion_choice(c, &c->choice[i], j);
    }
    k3i_json_raw(j, "],\"usage\":");
    write_usage(c, j);
    if (c->is_chat) {
        if (c->params.prompt_logprobs >= 0)
            write_prompt_logprobs(c, c->choice[0].req, j);
        write_prompt_ids(c, c->choice[0].req, j);
    }
    k3i_json_raw(j, ",\"system_fingerprint\":null}");
}

/* ---- chunks ------------------------------------------------------------------------------------
 */

static void begin_chunk(const k3i_api_call *c, k3i_json *j)
{
    k3i_json_raw(j, "data: ");
    write_head(c, c->is_chat ? "chat.completion.chunk" : "text_completion", j);
    k3i_json_raw(j, ",\"choices\":[");
}

static void end_choices(const k3i_api_call *c, k3i_json *j)
{
    k3i_json_raw(j, "]");
    if (c->params.continuous_usage) {
        k3i_json_raw(j, ",\"usage\":");
        write_usage(c, j);
    } else if (c->params.include_usage) {
        k3i_json_raw(j, ",\"usage\":null");
    }
}

static void end_chunk(const k3i_api_call *c, k3i_json *j)
{
    end_choices(c, j);
    k3i_json_raw(j, "}\n\n");
}

/* Opens {"index":i,"delta":{ of a chunk with one choice. */
static void begin_delta(const k3i_api_call *c, const k3i_choice *ch, k3i_json *j)
{
    begin_chunk(c, j);
    k3i_json_fmt(j, "{\"index\":%d,\"delta\":{", (int)ch->index);
}

/* Closes the delta; the first one after a pump carries its logprobs. */
static void end_delta(const k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    k3i_json_raw(j, "},\"logprobs\":");
    if (ch->n_tokens > 0)
        write_chat_logprobs(c, ch, j);
    else
        k3i_json_raw(j, "null");
    k3i_json_raw(j, ",\"finish_reason\":null");
    if (ch->n_tokens > 0)
        write_token_ids(c, ch, j);
    ch->n_tokens = 0;
    k3i_json_raw(j, "}");
    end_chunk(c, j);
}

static void write_call_delta(const k3i_api_call *c, k3i_choice *ch, const k3i_delta *d, k3i_json *j)
{
    k3i_json_fmt(j, "\"tool_calls\":[{\"index\":%d,", (int)d->call);
    if (d->kind == K3I_EVENT_CALL_BEGIN) {
        k3i_json_raw(j, "\"id\":");
        write_call_id(c, ch, d->call, j);
        k3i_json_raw(j, ",\"type\":\"function\",\"function\":{\"name\":");
        k3i_json_strn(j, ch->text.data + d->at, d->n);
        k3i_json_raw(j, ",\"arguments\":\"\"}}]");
    } else {
        k3i_json_raw(j, "\"function\":{\"arguments\":");
        k3i_json_strn(j, ch->text.data + d->at, d->n);
        k3i_json_raw(j, "}}]");
    }
}

static void role_chunk(k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    begin_delta(c, ch, j);
    k3i_json_raw(j, "\"role\":\"assistant\",\"content\":");
    k3i_json_strn(j, c->echo.n > 0 ? c->echo.data : "", c->echo.n);
    k3i_json_raw(j, "},\"logprobs\":null,\"finish_reason\":null}");
    end_choices(c, j);
    write_prompt_ids(c, ch->req, j);
    k3i_json_raw(j, "}\n\n");
}

static void chat_chunks(k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    if (!ch->has_role)
        role_chunk(c, ch, j);
    ch->has_role = true;
    for (size_t i = 0; i < ch->n_delta; i++) {
        const k3i_delta *d = &ch->delta[i];
        bool is_text = d->kind == K3I_EVENT_REASONING || d->kind == K3I_EVENT_CONTENT;
        if (d->kind == K3I_EVENT_CALL_END || (is_text && d->n == 0) ||
            (d->kind == K3I_EVENT_REASONING && !c->params.include_reasoning))
            continue;
        begin_delta(c, ch, j);
        if (d->kind == K3I_EVENT_CONTENT) {
            k3i_json_raw(j, "\"content\":");
            k3i_json_strn(j, ch->text.data + d->at, d->n);
        } else if (is_text) {
            for (size_t k = 0; k < 2; k++) {
                k3i_json_fmt(j, k == 0 ? "\"%s\":" : ",\"%s\":", REASONING[k]);
                k3i_json_strn(j, ch->text.data + d->at, d->n);
            }
        } else {
            write_call_delta(c, ch, d, j);
        }
        end_delta(c, ch, j);
    }
    if (ch->n_tokens > 0) { /* markers have ids and logprobs, and no text */
        begin_delta(c, ch, j);
        end_delta(c, ch, j);
    }
}

static void completion_chunks(k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    bool echoes = c->params.echo && !ch->has_role;
    if (ch->n_delta == 0 && ch->n_tokens == 0 && !echoes)
        return;
    /* An echo with logprobs waits for them: they are the engine's until the first token is there.
     */
    if (echoes && c->params.logprobs >= 0 && ch->n_taken == 0 && ch->finish == K3_FINISH_NONE)
        return;
    k3i_buf text = K3I_BUF(2 * K3I_OUTPUT_MAX_BYTES);
    if (echoes)
        write_echoed(c, ch, &text, j);
    for (size_t i = 0; i < ch->n_delta && j->status == K3_OK; i++)
        j->status = k3i_buf_add(&text, ch->text.data + ch->delta[i].at, ch->delta[i].n, &j->err);
    begin_chunk(c, j);
    k3i_json_fmt(j, "{\"index\":%d,\"text\":", (int)ch->index);
    k3i_json_strn(j, text.n > 0 ? text.data : "", text.n);
    k3i_buf_done(&text);
    k3i_json_raw(j, ",\"logprobs\":");
    write_completion_logprobs(c, ch, echoes, j);
    k3i_json_raw(j, ",\"finish_reason\":null,\"stop_reason\":null");
    write_token_ids(c, ch, j);
    if (!ch->has_role)
        write_prompt_ids(c, ch->req, j);
    k3i_json_raw(j, "}");
    end_chunk(c, j);
    ch->has_role = true;
    ch->n_tokens = 0;
}

static void finish_chunk(k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    begin_chunk(c, j);
    k3i_json_fmt(j, "{\"index\":%d,%s,\"logprobs\":null,\"finish_reason\":\"%s\"", (int)ch->index,
                 c->is_chat ? "\"delta\":{}" : "\"text\":\"\"", k3i_choice_reason(ch));
    write_stop_reason(ch, j);
    if (c->api->config->kimi_policy) {
        k3i_json_raw(j, ",\"usage\":");
        write_usage(c, j);
    }
    k3i_json_raw(j, "}");
    end_chunk(c, j);
}

static void error_event(const k3i_err *error, k3i_json *j)
{
    k3i_fault f;
    k3i_fault_of_answer(&f, error);
    k3i_json_raw(j, "data: ");
    if (j->status == K3_OK)
        j->status = k3i_fault_body(&f, j->buf, &j->err);
    k3i_json_raw(j, "\n\n");
}

void k3i_reply_chunks(k3i_api_call *c, k3i_choice *ch, k3i_json *j)
{
    if (c->is_chat)
        chat_chunks(c, ch, j);
    else
        completion_chunks(c, ch, j);
    k3i_choice_clear(ch);
    if (ch->finish == K3_FINISH_NONE || ch->has_finish)
        return;
    ch->has_finish = true;
    if (ch->finish == K3_FINISH_ERROR)
        error_event(&ch->error, j);
    else
        finish_chunk(c, ch, j);
}

void k3i_reply_end(k3i_api_call *c, k3i_json *j)
{
    if (c->params.include_usage) {
        k3i_json_raw(j, "data: ");
        write_head(c, c->is_chat ? "chat.completion.chunk" : "text_completion", j);
        k3i_json_raw(j, ",\"choices\":[],\"usage\":");
        write_usage(c, j);
        k3i_json_raw(j, "}\n\n");
    }
    k3i_json_raw(j, "data: [DONE]\n\n");
}
