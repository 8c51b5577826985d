/* The output parser: the table of states, values, streaming, malformed output at every place. */
#include "published_tok.h"

#include "chat.h"
#include "json_text.h"
#include "answer.h"

/* Shorthand of the test texts: {+x} is OPEN x SEP, {-x} is CLOSE x SEP, {.} is end of message;
 * everything else, also a marker spelled out, is ordinary text. */
static void to_ids(const char *s, k3i_ids *ids)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    ids->n = 0;
    while (*s != '\0') {
        if (s[0] == '{' && (s[1] == '+' || s[1] == '-' || s[1] == '.')) {
            const char *end = strchr(s, '}');
            if (s[1] == '.') {
                assert_int_equal(k3i_ids_add(ids, special->end_of_msg, NULL), K3_OK);
            } else {
                assert_int_equal(
                    k3i_ids_add(ids, s[1] == '+' ? special->open : special->close, NULL), K3_OK);
                assert_int_equal(
                    k3i_tok_encode(tok, s + 2, (size_t)(end - s - 2), K3I_TOK_PLAIN, ids, NULL),
                    K3_OK);
                assert_int_equal(k3i_ids_add(ids, special->sep, NULL), K3_OK);
            }
            s = end + 1;
        } else {
            size_t n = 1;
            while (s[n] != '\0' &&
                   !(s[n] == '{' && (s[n + 1] == '+' || s[n + 1] == '-' || s[n + 1] == '.')))
                n++;
            assert_int_equal(k3i_tok_encode(tok, s, n, K3I_TOK_PLAIN, ids, NULL), K3_OK);
            s += n;
        }
    }
}

/* An answer plus what streaming must keep: whole characters, calls in order. */
typedef struct {
    k3i_answer answer;
    int n_event;
} collected;

static k3_status collect(void *user, const k3i_chat_event *event, k3i_err *err)
{
    collected *c = user;
    c->n_event++;
    for (size_t at = 0; at < event->n;) {
        size_t len = k3i_utf8_length((const uint8_t *)event->text + at, event->n - at);
        assert_true(len > 0 && len <= event->n - at);
        at += len;
    }
    assert_true(event->kind == K3I_EVENT_CALL_END || event->n > 0);
    if (event->kind == K3I_EVENT_CALL_BEGIN)
        assert_int_equal(event->call, c->answer.n_call);
    else if (event->kind >= K3I_EVENT_CALL_ARGS)
        assert_int_equal(event->call, c->answer.n_call - 1);
    return k3i_answer_event(&c->answer, event, err);
}

static collected parse_ids(const int32_t *ids, size_t n, k3i_parser_opts opts)
{
    collected c = {.answer = K3I_ANSWER};
    k3i_parser *p;
    k3i_err err;
    assert_int_equal(k3i_parser_new(tok, &opts, collect, &c, &p, &err), K3_OK);
    for (size_t i = 0; i < n; i++) {
        if (k3i_parser_push(p, ids[i], &err) != K3_OK)
            fail_msg("%s", err.text);
    }
    assert_int_equal(k3i_parser_finish(p, &err), K3_OK);
    size_t n_complete = 0;
    for (size_t i = 0; i < c.answer.n_call; i++)
        n_complete += c.answer.call[i].is_complete;
    assert_int_equal(k3i_parser_calls(p), n_complete);
    k3i_parser_free(p);
    return c;
}

/* "R:reasoning|C:content|name(arguments)|..." with ! after an incomplete call. */
static char *summary(const k3i_answer *a)
{
    static char text[1 << 16];
    int n = snprintf(text, sizeof text, "R:%.*s|C:%.*s", (int)a->reasoning.n,
                     a->reasoning.data ? a->reasoning.data : "", (int)a->content.n,
                     a->content.data ? a->content.data : "");
    for (size_t i = 0; i < a->n_call; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "|%.*s(%.*s)%s", (int)a->call[i].name.n,
                      a->call[i].name.data, (int)a->call[i].arguments.n,
                      a->call[i].arguments.data ? a->call[i].arguments.data : "",
                      a->call[i].is_complete ? "" : "!");
    return text;
}

enum { T = K3I_CHANNEL_THINK, R = K3I_CHANNEL_RESPONSE, I = K3I_CHANNEL_NONE };

static const struct {
    int32_t channel;
    const char *output, *want;
} cases[] = {
    /* well-formed */
    {T, "why{-think}{+response}42{-response}{-message}{.}", "R:why|C:42"},
    {R, "42{-response}{-message}{.}", "R:|C:42"},
    {T,
     "{-think}{+response}{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"city\" "
     "type=\"string\"}Pa\"ris\n"
     "{-argument}{+argument key=\"n\" type=\"number\"} 1.0 {-argument}{-call}{-tools}{-message}{.}",
     "R:|C:|f({\"city\": \"Pa\\\"ris\\n\", \"n\": 1.0})"},
    {R,
     "Two.{-response}{+tools}{+call tool=\"a\" index=\"1\"}{-call}{+call tool=\"b\" "
     "index=\"2\"}{+json type=\"object\"}{not json"
     "{-json}{-call}{-tools}{-message}{.}",
     "R:|C:Two.|a({})|b({not json)"},
    /* values: strings verbatim; others as they stand if valid JSON, else as strings */
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" type=\"string\"}  "
     "{-argument}"
     "{+argument key=\"b\" type=\"object\"}{\"z\":1e2,  \"y\":[true]}{-argument}{+argument "
     "key=\"c\" type=\"number\"}12a{-argument}"
     "{+argument key=\"d\" type=\"boolean\"}{-argument}{+argument key=\"e\" "
     "type=\"number\"}NaN{-argument}"
     "{+argument}x{-argument}{-call}{-tools}{.}",
     "R:|C:|f({\"a\": \"  \", \"b\": {\"z\":1e2,  \"y\":[true]}, \"c\": \"12a\", \"d\": \"\", "
     "\"e\": \"NaN\", \"\": \"x\"})"},
    {R,
     "{-response}{+tools}{+call tool=\"a&amp;b&quot;&amp;quot;\" index=\"1\"}{+argument "
     "key=\"k&quot;&lt;<\" type=\"null\"}null{-argument}"
     "{-call}{-tools}{.}",
     "R:|C:|a&b\"&quot;({\"k\\\"&lt;<\": null})"},
    /* a marker spelled out in ordinary tokens is data */
    {R,
     "say <|close|>response<|sep|> now{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument "
     "key=\"a\" type=\"string\"}"
     "<|close|>argument<|sep|>{-argument}{-call}{-tools}{-message}{.}",
     "R:|C:say <|close|>response<|sep|> now|f({\"a\": \"<|close|>argument<|sep|>\"})"},
    /* the table of states */
    {I, "plain text", "R:|C:plain text"},
    {I, "{+think}a{-think}{+response}b{-response}{.}", "R:a|C:b"},
    {T, "{+think}a{-think}{+response}{+response}b{-response}{.}", "R:a|C:b"},
    {T, "a{+response}b{-response}{.}", "R:a|C:b"},
    {T, "a{+tools}{+call tool=\"f\" index=\"1\"}{-call}{-tools}{.}", "R:a|C:|f({})"},
    {R, "a{+tools}\n{+call tool=\"f\" index=\"1\"}\n{-call}\n{-tools}\n{.}", "R:|C:a|f({})"},
    {R, "a{-response}\n noise {+response}b{-response}{.}", "R:|C:ab"},
    {R,
     "{-response}{+tools}{+call tool=\"\" index=\"1\"}{+argument key=\"a\" "
     "type=\"string\"}x{-argument}{-call}"
     "{+call tool=\"g\" index=\"2\"}{-call}{-tools}{.}",
     "R:|C:|g({})"},
    {R, "{-response}{+tools}{+call index=\"1\"}{+json type=\"object\"}x{-json}{-call}{-tools}{.}",
     "R:|C:"},
    /* missing closers are implied */
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" "
     "type=\"string\"}x{+argument key=\"b\" type=\"number\"}1"
     "{+call tool=\"g\" index=\"2\"}{+json type=\"object\"}{}{-tools}{-message}{.}",
     "R:|C:|f({\"a\": \"x\", \"b\": 1})|g({})"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" type=\"string\"}x{.}",
     "R:|C:|f({\"a\": \"x\"})"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" "
     "type=\"string\"}x{-call}{-message}tail",
     "R:|C:|f({\"a\": \"x\"})"},
    {R, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{-tools}noise{+response}b{-response}{.}",
     "R:|C:b|f({})"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"no type\"}1{-argument}"
     "{-call}{-tools}{.}",
     "R:|C:|f({\"no type\": \"1\"})"},
    {R, "a{-message}b{.}", "R:|C:a"},
    {R, "a{.}b", "R:|C:a"},
    /* of equal keys a whole reply keeps the last; a json block stays as it is */
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" "
     "type=\"string\"}x\", {{-argument}{+argument key=\"b\" type=\"number\"}1{-argument}{+argument "
     "key=\"a\" type=\"object\"}{\"a\": [2, \"}\"]}{-argument}{+argument "
     "key=\"&quot;a\"}{-argument}"
     "{-call}{+call tool=\"g\" index=\"2\"}{+json type=\"object\"}{\"k\": 1, \"k\": "
     "2}{-json}{-call}{-tools}{.}",
     "R:|C:|f({\"b\": 1, \"a\": {\"a\": [2, \"}\"]}, \"\\\"a\": \"\"})|g({\"k\": 1, \"k\": 2})"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" "
     "type=\"string\"}x{-argument}{+argument key=\"a\" type=\"number\"}1",
     "R:|C:|f({\"a\": \"x\", \"a\": )!"},
    /* arguments and a json block do not mix: the first kind counts */
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+json "
     "type=\"object\"}{\"a\":1}{-json}{+argument key=\"b\" type=\"number\"}1{-argument}"
     "{+json type=\"object\"}z{-json}{-call}{-tools}{.}",
     "R:|C:|f({\"a\":1})"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"b\" "
     "type=\"number\"}1{-argument}{+json type=\"object\"}{}{-json}{-call}{-tools}{.}",
     "R:|C:|f({\"b\": 1})"},
    /* unknown tags go, their body stays; blanks around names are allowed */
    {R, "a{+b c=\"d\"}e{-b}f{+ tools }{+call  tool=\"f\"  index=\"1\" }{-call}{-tools}{.}",
     "R:|C:aef|f({})"},
    /* cut off by the token limit */
    {T, "half a thou", "R:half a thou|C:"},
    {R, "half", "R:|C:half"},
    {R,
     "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{-call}{+call tool=\"g\" "
     "index=\"2\"}{+argument key=\"a\" type=\"string\"}x",
     "R:|C:|f({})|g({\"a\": \"x)!"},
    {R, "{-response}{+tools}{+call tool=\"g\" index=\"1\"}{+argument key=\"a\" type=\"number\"}12",
     "R:|C:|g({\"a\": )!"},
};

static void table(void **state)
{
    (void)state;
    k3i_ids ids = K3I_IDS(100000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        to_ids(cases[i].output, &ids);
        collected c = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = cases[i].channel});
        if (strcmp(summary(&c.answer), cases[i].want) != 0)
            fail_msg("%s\ngot  %s\nwant %s", cases[i].output, summary(&c.answer), cases[i].want);
        k3i_answer_done(&c.answer);
    }
    k3i_ids_done(&ids);
}

/* Headers without their SEP: the leading word dispatches, the rest is body. */
static void missing_sep(void **state)
{
    (void)state;
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    k3i_ids ids = K3I_IDS(10000);
    static const char long_text[] =
        "think and then a very long text that goes on without any separator, as a model does that "
        "forgot how to end a "
        "header; it must come out as content in the end and not be lost, whatever its length is, "
        "even if that is more "
        "than the two hundred and fifty-six bytes that a header may have at most.";
    static const struct {
        const char *before, *header, *after, *want;
    } sep_cases[] = {
        {"why", "think\n", "{+response}b{-response}{.}", "R:why|C:\nb"},
        {"why", "unknown\n", "{-think}{+response}b{-response}{.}", "R:why|C:b"},
        {"why", "think", "{.}", "R:why|C:"},
        {"why", long_text, "", NULL},
    };
    for (size_t i = 0; i < sizeof sep_cases / sizeof *sep_cases; i++) {
        k3i_ids part = K3I_IDS(10000);
        ids.n = 0;
        to_ids(sep_cases[i].before, &ids);
        assert_int_equal(k3i_ids_add(&ids, special->close, NULL), K3_OK);
        assert_int_equal(
            k3i_tok_encode(tok, sep_cases[i].header, strlen(sep_cases[i].header), 0, &ids, NULL),
            K3_OK);
        to_ids(sep_cases[i].after, &part);
        for (size_t k = 0; k < part.n; k++)
            assert_int_equal(k3i_ids_add(&ids, part.id[k], NULL), K3_OK);
        collected c = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = T});
        char want[1024];
        snprintf(want, sizeof want, "R:why|C:%s", long_text + strlen("think"));
        assert_string_equal(summary(&c.answer),
                            sep_cases[i].want != NULL ? sep_cases[i].want : want);
        k3i_answer_done(&c.answer);
        k3i_ids_done(&part);
    }
    k3i_ids_done(&ids);
}

static void options(void **state)
{
    (void)state;
    static const char output[] = "hi{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument "
                                 "key=\"a\" type=\"string\"}x{-argument}{-call}"
                                 "{+call tool=\"g\" index=\"2\"}{+json "
                                 "type=\"object\"}{}{-json}{-call}{-tools}{-message}{.}";
    k3i_ids ids = K3I_IDS(10000);
    to_ids(output, &ids);
    collected c = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = R, .discard_calls = true});
    assert_string_equal(summary(&c.answer), "R:|C:hi");
    k3i_answer_done(&c.answer);
    c = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = R, .single_call = true});
    assert_string_equal(summary(&c.answer), "R:|C:hi|f({\"a\": \"x\"})");
    k3i_answer_done(&c.answer);
    c = parse_ids(ids.id, ids.n - 20, (k3i_parser_opts){.channel = R});
    assert_string_equal(summary(&c.answer), "R:|C:hi|f({\"a\": \"x\"})|g()!");
    k3i_answer_done(&c.answer);
    /* Tool names of 256 characters fit into a header. */
    char name[257], text[400];
    memset(name, 'n', 256);
    name[256] = 0;
    snprintf(text, sizeof text,
             "{-response}{+tools}{+call tool=\"%s\" index=\"1\"}{-call}{-tools}{.}", name);
    to_ids(text, &ids);
    c = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = R});
    assert_int_equal(c.answer.n_call, 1);
    assert_int_equal(c.answer.call[0].name.n, 256);
    k3i_answer_done(&c.answer);
    k3i_ids_done(&ids);
}

/* Ids that are neither text nor structure vanish; a character that a marker cuts off becomes U+FFFD
 * before the marker; reasoning is counted in ids. */
static void odd_ids(void **state)
{
    (void)state;
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    k3i_ids ids = K3I_IDS(1000), part = K3I_IDS(1000);
    to_ids("\xF0\x9F\x99\x82", &part);
    assert_true(part.n > 1);
    to_ids("one two", &ids);
    size_t n_thought = ids.n + 1;
    assert_int_equal(k3i_ids_add(&ids, special->media_pad, NULL), K3_OK);
    assert_int_equal(k3i_ids_add(&ids, part.id[0], NULL), K3_OK);
    to_ids("{-think}{+response}b{-response}{.}", &part);
    for (size_t i = 0; i < part.n; i++)
        assert_int_equal(k3i_ids_add(&ids, part.id[i], NULL), K3_OK);
    collected c = {.answer = K3I_ANSWER};
    k3i_parser *p;
    assert_int_equal(k3i_parser_new(tok, &(k3i_parser_opts){.channel = T}, collect, &c, &p, NULL),
                     K3_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(k3i_parser_push(p, ids.id[i], NULL), K3_OK);
    assert_string_equal(summary(&c.answer), "R:one two\xEF\xBF\xBD|C:b");
    assert_int_equal(k3i_parser_reasoning_tokens(p), n_thought);
    assert_false(k3i_parser_is_reasoning(p));
    assert_true(k3i_parser_is_done(p));
    k3i_parser_free(p);
    k3i_answer_done(&c.answer);
    k3i_ids_done(&ids);
    k3i_ids_done(&part);
}

static bool is_prefix(const k3i_buf *a, const k3i_buf *b)
{
    return a->n <= b->n && (a->n == 0 || memcmp(a->data, b->data, a->n) == 0);
}

static bool has_marker(const k3i_buf *b)
{
    static const char *const words[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>",
                                        "key=",     "tool=",     "type="};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (b->n > 0 && memmem(b->data, b->n, words[i], strlen(words[i])) != NULL)
            return true;
    }
    return false;
}

#define MULTI                                                                         \
    "thought \xF0\x9F\x99\x82 end{-think}{+response}answer \xE6\xB1\x89\xE5\xAD\x97 " \
    "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB{-response}"                         \
    "{+tools}{+call tool=\"get_weather\" index=\"1\"}{+argument key=\"ci&quot;ty\" "  \
    "type=\"string\"}Pa\"r\\is \xF0\x9F\x99\x82\n{-argument}"                         \
    "{+argument key=\"days\" type=\"number\"}3{-argument}{+argument key=\"o\" "       \
    "type=\"object\"}{\"a\": [1, null]}{-argument}{-call}"                            \
    "{+call tool=\"g\" index=\"2\"}{-call}{-tools}{-message}{.}"

/* Cut at every place: what is out so far is a prefix of what comes out in the end. */
static void every_split(void **state)
{
    (void)state;
    k3i_ids ids = K3I_IDS(10000);
    to_ids(MULTI, &ids);
    collected whole = parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = T});
    assert_string_equal(summary(&whole.answer),
                        "R:thought \xF0\x9F\x99\x82 end|C:answer \xE6\xB1\x89\xE5\xAD\x97 "
                        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB|"
                        "get_weather({\"ci\\\"ty\": \"Pa\\\"r\\\\is \xF0\x9F\x99\x82\\n\", "
                        "\"days\": 3, \"o\": {\"a\": [1, null]}})|g({})");
    assert_true(whole.n_event > 20); /* strings stream */
    for (size_t n = 0; n < ids.n; n++) {
        /* finish() turns an unfinished character into U+FFFD, so stop without it. */
        collected c = {.answer = K3I_ANSWER};
        k3i_parser *p;
        assert_int_equal(
            k3i_parser_new(tok, &(k3i_parser_opts){.channel = T}, collect, &c, &p, NULL), K3_OK);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(k3i_parser_push(p, ids.id[i], NULL), K3_OK);
        assert_true(is_prefix(&c.answer.reasoning, &whole.answer.reasoning));
        assert_true(is_prefix(&c.answer.content, &whole.answer.content));
        assert_true(c.answer.n_call <= whole.answer.n_call);
        for (size_t i = 0; i < c.answer.n_call; i++)
            assert_true(is_prefix(&c.answer.call[i].arguments, &whole.answer.call[i].arguments));
        /* The end of the output adds nothing to a call but the mark of an unfinished character. */
        assert_int_equal(k3i_parser_finish(p, NULL), K3_OK);
        for (size_t i = 0; i < c.answer.n_call; i++) {
            k3i_call *call = &c.answer.call[i];
            k3i_buf *a = &call->arguments, *name = &whole.answer.call[i].name;
            if (a->n >= 3 && memcmp(a->data + a->n - 3, "\xEF\xBF\xBD", 3) == 0)
                a->n -= 3;
            assert_true(is_prefix(a, &whole.answer.call[i].arguments));
            assert_true(call->name.n == name->n && is_prefix(&call->name, name));
        }
        k3i_parser_free(p);
        k3i_answer_done(&c.answer);
    }
    k3i_answer_done(&whole.answer);
    k3i_ids_done(&ids);
}

static void check_sane(const collected *c, const char *what, size_t place)
{
    if (has_marker(&c->answer.content) || has_marker(&c->answer.reasoning))
        fail_msg("%s %zu: marker text leaked: %s", what, place, summary(&c->answer));
    for (size_t i = 0; i < c->answer.n_call; i++) {
        const k3i_buf *a = &c->answer.call[i].arguments;
        if (c->answer.call[i].is_complete && k3i_json_skip(a->data, a->n, 0, false) != a->n)
            fail_msg("%s %zu: arguments are not JSON: %.*s", what, place, (int)a->n, a->data);
    }
}

/* Every token removed, every token doubled, every pair of tokens swapped. */
static void every_marker_removed(void **state)
{
    (void)state;
    k3i_ids ids = K3I_IDS(10000);
    to_ids(MULTI, &ids);
    int32_t edited[1024];
    for (size_t at = 0; at < ids.n; at++) {
        memcpy(edited, ids.id, at * sizeof *edited);
        memcpy(edited + at, ids.id + at + 1, (ids.n - at - 1) * sizeof *edited);
        collected c = parse_ids(edited, ids.n - 1, (k3i_parser_opts){.channel = T});
        /* Without its OPEN or CLOSE a header's words are ordinary text; only markers' absence is
         * checked then. */
        bool is_opener = ids.id[at] == k3i_tok_special_ids(tok)->open ||
                         ids.id[at] == k3i_tok_special_ids(tok)->close;
        if (!is_opener)
            check_sane(&c, "removed", at);
        k3i_answer_done(&c.answer);
        memcpy(edited, ids.id, (at + 1) * sizeof *edited);
        memcpy(edited + at + 1, ids.id + at, (ids.n - at) * sizeof *edited);
        c = parse_ids(edited, ids.n + 1, (k3i_parser_opts){.channel = T});
        check_sane(&c, "doubled", at);
        k3i_answer_done(&c.answer);
    }
    k3i_ids_done(&ids);
}

/* What the rules make of a plain answer with tools when one of its 21 markers is missing. */
static void each_marker_missing(void **state)
{
    (void)state;
    static const char output[] = "w{-think}{+response} a{-response}{+tools}{+call tool=\"f\" "
                                 "index=\"1\"}{+argument key=\"k\" type=\"string\"}v{-argument}"
                                 "{-call}{-tools}{-message}{.}";
    static const char whole[] = "R:w|C: a|f({\"k\": \"v\"})";
    static const char *const want[] = {
        "R:wthink|C: a|f({\"k\": \"v\"})",    /* CLOSE think: its word is thought, OPEN ends it */
        whole,                                /* SEP: the next marker ends the header */
        "R:w|C:response a|f({\"k\": \"v\"})", /* OPEN response: text outside of channels is content
                                               */
        whole,
        "R:w|C: aresponse|f({\"k\": \"v\"})", /* CLOSE response: OPEN tools ends it */
        whole,
        "R:w|C: a", /* OPEN tools: what follows an answer is noise */
        whole,
        "R:w|C: a", /* OPEN call: text between calls is noise */
        whole,
        "R:w|C: a|f({})", /* OPEN argument: text between arguments is noise */
        whole,
        "R:w|C: a|f({\"k\": \"vargument\"})", /* CLOSE argument: CLOSE call ends it */
        whole,
        whole, /* CLOSE call: CLOSE tools ends it */
        whole,
        whole, /* CLOSE tools, CLOSE message: the end of the message ends all */
        whole,
        whole,
        whole,
        whole /* end of message: CLOSE message was enough */
    };
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    k3i_ids ids = K3I_IDS(1000);
    to_ids(output, &ids);
    size_t n = 0;
    for (size_t at = 0; at < ids.n; at++) {
        int32_t edited[200], id = ids.id[at];
        if (id != special->open && id != special->close && id != special->sep &&
            id != special->end_of_msg)
            continue;
        memcpy(edited, ids.id, at * sizeof *edited);
        memcpy(edited + at, ids.id + at + 1, (ids.n - at - 1) * sizeof *edited);
        collected c = parse_ids(edited, ids.n - 1, (k3i_parser_opts){.channel = T});
        assert_true(n < sizeof want / sizeof *want);
        if (strcmp(summary(&c.answer), want[n]) != 0)
            fail_msg("marker %zu\ngot  %s\nwant %s", n, summary(&c.answer), want[n]);
        n++;
        k3i_answer_done(&c.answer);
    }
    assert_int_equal(n, sizeof want / sizeof *want);
    k3i_ids_done(&ids);
}

/* An end of message at any place: everything open ends there, and what comes later is dropped. */
static void end_of_message_anywhere(void **state)
{
    (void)state;
    k3i_ids ids = K3I_IDS(10000);
    to_ids(MULTI, &ids);
    int32_t edited[1024];
    for (size_t at = 0; at < ids.n; at++) {
        memcpy(edited, ids.id, at * sizeof *edited);
        edited[at] = k3i_tok_special_ids(tok)->end_of_msg;
        memcpy(edited + at + 1, ids.id + at, (ids.n - at) * sizeof *edited);
        collected cut = parse_ids(edited, at + 1, (k3i_parser_opts){.channel = T});
        collected all = parse_ids(edited, ids.n + 1, (k3i_parser_opts){.channel = T});
        check_sane(&cut, "ended", at);
        for (size_t i = 0; i < cut.answer.n_call; i++)
            assert_true(cut.answer.call[i].is_complete);
        char *first = k3i_strdup(summary(&cut.answer));
        assert_string_equal(first, summary(&all.answer));
        k3i_free(first);
        k3i_answer_done(&cut.answer);
        k3i_answer_done(&all.answer);
    }
    k3i_ids_done(&ids);
}

/* Random mixtures of markers, tag words and text: no failure, whole characters, valid arguments. */
static void random_output(void **state)
{
    (void)state;
    static const char *const words[] = {"think",        "response",
                                        "tools",        "call",
                                        "argument",     "json",
                                        "message",      " tool=\"f\"",
                                        " key=\"k\"",   " type=\"number\"",
                                        " index=\"1\"", "12",
                                        "{\"a\":",      "\xF0\x9F\x99\x82",
                                        "text",         "\n"};
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    uint64_t seed = 42;
    print_message("seed %llu\n", (unsigned long long)seed);
    k3i_ids ids = K3I_IDS(10000);
    for (int round = 0; round < 20000; round++) {
        ids.n = 0;
        size_t n = test_rnd(&seed) % 60;
        while (ids.n < n) {
            uint64_t r = test_rnd(&seed);
            const int32_t marker[] = {special->open, special->close, special->sep, special->sep};
            if (r % 2 == 0)
                assert_int_equal(k3i_ids_add(&ids, marker[(r >> 8) % 4], NULL), K3_OK);
            else if (r % 64 == 1)
                assert_int_equal(k3i_ids_add(&ids, (int32_t)((r >> 8) % 163840), NULL), K3_OK);
            else
                assert_int_equal(k3i_tok_encode(tok, words[(r >> 8) % 16],
                                                strlen(words[(r >> 8) % 16]), 0, &ids, NULL),
                                 K3_OK);
        }
        collected c =
            parse_ids(ids.id, ids.n, (k3i_parser_opts){.channel = (int32_t)(test_rnd(&seed) % 3)});
        k3i_answer_done(&c.answer);
    }
    k3i_ids_done(&ids);
}

static void failing_memory(void **state)
{
    (void)state;
    k3i_ids ids = K3I_IDS(10000);
    to_ids(MULTI, &ids);
    for (uint64_t n = 1;; n++) {
        collected c = {.answer = K3I_ANSWER};
        k3i_parser *p = NULL;
        k3i_err err;
        k3i_alloc_fail_at(n);
        k3_status st = k3i_parser_new(tok, &(k3i_parser_opts){.channel = T}, collect, &c, &p, &err);
        for (size_t i = 0; i < ids.n && st == K3_OK; i++)
            st = k3i_parser_push(p, ids.id[i], &err);
        k3i_alloc_fail_at(0);
        k3i_parser_free(p); /* NULL if making it failed */
        k3i_answer_done(&c.answer);
        if (st == K3_OK) {
            assert_true(n > 8);
            break;
        }
        assert_int_equal(st, K3_E_NOMEM);
    }
    k3i_ids_done(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(missing_sep),
        cmocka_unit_test(options),
        cmocka_unit_test(odd_ids),
        cmocka_unit_test(every_split),
        cmocka_unit_test(every_marker_removed),
        cmocka_unit_test(each_marker_missing),
        cmocka_unit_test(end_of_message_anywhere),
        cmocka_unit_test(random_output),
        cmocka_unit_test(failing_memory),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
