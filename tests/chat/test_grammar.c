/* Constrained decoding: random walks through the masks give valid answers, well-formed answers are
 * accepted, wrong ones are not, masks are exact, rolling back and forking change nothing. */
#include "test.h"

#include "grammar.h"
#include "answer.h"
#include "schema_check.h"

static k3i_tok *tok;
static k3i_vocab *vocab;
static uint32_t *mask, *mask2;

static int set_up(void **state)
{
    (void)state;
    k3i_err err;
    if (k3i_tok_open(K3_TEST_DATA "/tokenizer", &tok, &err) != K3_OK ||
        k3i_vocab_new(tok, &vocab, &err) != K3_OK)
        fail_msg("%s", err.text);
    mask = calloc(k3i_vocab_mask_words(vocab), sizeof *mask);
    mask2 = calloc(k3i_vocab_mask_words(vocab), sizeof *mask2);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(mask);
    free(mask2);
    k3i_vocab_free(vocab);
    k3i_tok_free(tok);
    return 0;
}

static bool allows(const uint32_t *m, int32_t id)
{
    return m[id / 32] >> (id % 32) & 1;
}

/* ---- building
 * -------------------------------------------------------------------------------------- */

/* A request with its grammar and a matcher. */
typedef struct {
    yyjson_doc *doc;
    k3i_chat_req req;
    int32_t channel;
    k3i_grammar *grammar;
    k3i_matcher *matcher;
} constraint;

static constraint constrain(const char *request, size_t n)
{
    constraint c = {.doc = yyjson_read(request, n, K3I_CHAT_READ_FLAGS)};
    k3i_err err;
    assert_non_null(c.doc);
    if (k3i_chat_parse(yyjson_doc_get_root(c.doc), &c.req, &err) != K3_OK)
        fail_msg("%s", err.text);
    c.channel = c.req.is_thinking ? K3I_CHANNEL_THINK : K3I_CHANNEL_RESPONSE;
    if (k3i_grammar_new(&c.req, c.channel, &c.grammar, &err) != K3_OK ||
        (c.grammar != NULL && k3i_matcher_new(vocab, c.grammar, &c.matcher, &err) != K3_OK))
        fail_msg("%.300s: %s", request, err.text);
    return c;
}

static void release(constraint *c)
{
    k3i_matcher_free(c->matcher);
    k3i_grammar_free(c->grammar);
    yyjson_doc_free(c->doc);
}

/* Thinking off: the answer begins in the response channel. */
#define REQUEST(fields)                                                                          \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":\"disabled\"}" \
    "," fields "}"
#define SCHEMA(schema)                                                                       \
    REQUEST("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"," \
            "\"strict\":true,\"schema\":" schema "}}")
#define FORCED(parameters)                                                                    \
    REQUEST("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true," \
            "\"parameters\":" parameters "}}],\"tool_choice\":\"required\"")

/* ---- random walks
 * ---------------------------------------------------------------------------------- */

/* A random allowed token: a bit of the first word that has one, from a random word on; one time in
 * four from the beginning, where the single bytes are. */
static int32_t pick(const uint32_t *m, uint64_t *seed)
{
    size_t words = k3i_vocab_mask_words(vocab),
           from = test_rnd(seed) % 4 == 0 ? 0 : test_rnd(seed) % words;
    for (size_t i = 0; i < words; i++) {
        size_t w = (from + i) % words;
        if (m[w] == 0)
            continue;
        for (uint32_t b = (uint32_t)(test_rnd(seed) % 32);; b++) {
            if (m[w] >> (b % 32) & 1)
                return (int32_t)(w * 32 + b % 32);
        }
    }
    fail_msg("the mask is empty");
    return -1;
}

/* Generates an answer of at most `budget` tokens from a fresh matcher. */
static k3i_answer walk(constraint *c, size_t budget, uint64_t *seed)
{
    k3i_answer answer = K3I_ANSWER;
    k3i_parser *parser;
    k3i_matcher *m;
    assert_int_equal(k3i_matcher_fork(c->matcher, &m, NULL), K3_OK);
    assert_int_equal(k3i_parser_new(tok, &(k3i_parser_opts){.channel = c->channel},
                                    k3i_answer_event, &answer, &parser, NULL),
                     K3_OK);
    size_t left = budget;
    for (; left > 0 && !k3i_matcher_is_done(m); left--) {
        k3i_err err;
        assert_int_equal(k3i_matcher_mask(m, left, mask, NULL), K3_OK);
        int32_t id = pick(mask, seed);
        if (k3i_matcher_advance(m, id, &err) != K3_OK)
            fail_msg("masked token refused: %s", err.text);
        assert_int_equal(k3i_parser_push(parser, id, NULL), K3_OK);
    }
    if (!k3i_matcher_is_done(m))
        fail_msg("not finished within %zu tokens, %zu needed", budget, k3i_matcher_min_tokens(m));
    k3i_parser_free(parser);
    k3i_matcher_free(m);
    return answer;
}

static void expect_valid(const char *id, yyjson_val *schema, const char *text, size_t n)
{
    yyjson_doc *doc = yyjson_read(text, n, 0);
    if (doc == NULL)
        fail_msg("%s: not JSON: %.*s", id, (int)n, text);
    if (!schema_valid(schema, schema, yyjson_doc_get_root(doc)))
        fail_msg("%s: not valid: %.*s", id, (int)n, text);
    yyjson_doc_free(doc);
}

/* The 204 schemas that the vendor verifier sends, as forced strict tool calls. */
static void vendor_schemas(void **state)
{
    (void)state;
    FILE *f = fopen(K3_TEST_DATA "/kvv/tool_schemas.jsonl", "rb");
    assert_non_null(f);
    char *line = NULL, *request = malloc(1 << 20);
    size_t cap = 0;
    int n_case = 0;
    uint64_t seed = 2026;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0;) {
        yyjson_doc *doc = yyjson_read(line, (size_t)len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc),
                   *schema = yyjson_obj_get(root, "tool_parameters");
        if (!yyjson_is_null(schema)) {
            char *text = yyjson_val_write(schema, 0, NULL);
            int n = snprintf(request, 1 << 20, FORCED("%s"), text);
            constraint c = constrain(request, (size_t)n);
            for (int round = 0; round < 4; round++) {
                k3i_answer a = walk(&c, round % 2 == 0 ? 250 : 400, &seed);
                assert_true(a.n_call >= 1);
                for (size_t i = 0; i < a.n_call; i++) {
                    assert_true(a.call[i].is_complete);
                    expect_valid(yyjson_get_str(yyjson_obj_get(root, "id")), schema,
                                 a.call[i].arguments.data, a.call[i].arguments.n);
                }
                k3i_answer_done(&a);
            }
            release(&c);
            free(text);
            n_case++;
        }
        yyjson_doc_free(doc);
    }
    assert_int_equal(n_case, 204);
    free(line);
    free(request);
    fclose(f);
}

static void response_formats(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"\xC3\xA9t\xC3\xA9\":{\"type\":\"integer\","
        "\"minimum\":-12,\"maximum\":7},"
        "\"\xE5\x90\x8D\xE5\x89\x8D\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}},"
        "\"required\":[\"\xE5\x90\x8D\xE5\x89\x8D\"],\"additionalProperties\":false}",
        "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":0.25,\"maximum\":0.3},"
        "\"minItems\":2,\"maxItems\":4}",
        "{\"enum\":[\"a\",\"ab\",\"\\\"q\\\"\",1,12,null,{\"k\":[1,2]}]}",
        "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":40},{\"type\":\"null\"},{\"type\":"
        "\"object\",\"additionalProperties\":{\"type\":\"boolean\"}}]}",
        "{\"type\":\"object\",\"properties\":{\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":"
        "\"null\"}]},\"v\":{\"type\":\"integer\"}},\"required\":[\"next\",\"v\"],"
        "\"additionalProperties\":false}",
        "{\"type\":\"integer\",\"minimum\":1000000,\"maximum\":1000001}",
        "{\"type\":\"integer\",\"minimum\":-10.5,\"maximum\":-9.5}",
        "{\"type\":\"number\",\"minimum\":-0.001,\"maximum\":-0.0009}",
        "{\"type\":\"string\",\"minLength\":50}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
        "\"additionalProperties\":{\"type\":\"string\"}}",
        "{\"type\":\"string\",\"pattern\":\"^[a-f]{2}-[^x]*$\",\"minLength\":5,\"maxLength\":9}",
        "{\"type\":\"object\",\"properties\":{\"d\":{\"type\":\"string\",\"pattern\":\"^20[0-9]{2}/"
        "(0[1-9]|1[0-2])$\"}},"
        "\"required\":[\"d\"],\"additionalProperties\":{\"type\":\"string\",\"pattern\":\"q\"}}",
        "{}",
    };
    uint64_t seed = 11;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        char request[2048];
        int n = snprintf(request, sizeof request, SCHEMA("%s"), schemas[i]);
        constraint c = constrain(request, (size_t)n);
        yyjson_doc *schema = yyjson_read(schemas[i], strlen(schemas[i]), 0);
        for (int round = 0; round < 12; round++) {
            k3i_answer a = walk(&c, 120 + (size_t)round, &seed);
            expect_valid(schemas[i], yyjson_doc_get_root(schema), a.content.data, a.content.n);
            assert_null(memchr(a.content.data, '\n', a.content.n));
            assert_int_equal(a.n_call, 0);
            k3i_answer_done(&a);
        }
        yyjson_doc_free(schema);
        release(&c);
    }
    /* json_object and non-strict schemas: any object. */
    static const char *const any[] = {
        REQUEST("\"response_format\":{\"type\":\"json_object\"}"),
        REQUEST("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
                "\"strict\":false,\"schema\":{\"type\":\"array\"}}}"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":"
         "\"json_object\"}}"),
    };
    for (size_t i = 0; i < 3; i++) {
        constraint c = constrain(any[i], strlen(any[i]));
        for (int round = 0; round < 20; round++) {
            k3i_answer a = walk(&c, 100, &seed);
            yyjson_doc *doc = yyjson_read(a.content.data, a.content.n, 0);
            assert_true(yyjson_is_obj(yyjson_doc_get_root(doc)));
            yyjson_doc_free(doc);
            k3i_answer_done(&a);
        }
        release(&c);
    }
}

/* ---- accepting and refusing
 * ------------------------------------------------------------------------ */

/* {+x} OPEN x SEP, {-x} CLOSE x SEP, {.} end of message, as in test_output.c. */
static void to_ids(const char *s, k3i_ids *ids)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    ids->n = 0;
    while (*s != '\0') {
        size_t n = strcspn(s, "{");
        while (s[n] == '{' && (s[n + 1] == '\0' || strchr("+-.", s[n + 1]) == NULL))
            n += 1 + strcspn(s + n + 1, "{");
        assert_int_equal(k3i_tok_encode(tok, s, n, K3I_TOK_PLAIN, ids, NULL), K3_OK);
        s += n;
        if (*s == '\0')
            return;
        const char *end = strchr(s, '}');
        if (end == NULL) { /* a header without its SEP */
            assert_int_equal(k3i_ids_add(ids, s[1] == '+' ? special->open : special->close, NULL),
                             K3_OK);
            assert_int_equal(k3i_tok_encode(tok, s + 2, strlen(s + 2), K3I_TOK_PLAIN, ids, NULL),
                             K3_OK);
            return;
        }
        if (s[1] == '.') {
            assert_int_equal(k3i_ids_add(ids, special->end_of_msg, NULL), K3_OK);
        } else {
            assert_int_equal(k3i_ids_add(ids, s[1] == '+' ? special->open : special->close, NULL),
                             K3_OK);
            assert_int_equal(
                k3i_tok_encode(tok, s + 2, (size_t)(end - s - 2), K3I_TOK_PLAIN, ids, NULL), K3_OK);
            assert_int_equal(k3i_ids_add(ids, special->sep, NULL), K3_OK);
        }
        s = end + 1;
    }
}

/* Whether the token may come next, and what is needed behind it then; m stays where it is. */
static bool tries(const k3i_matcher *m, int32_t id, size_t *ret_need)
{
    k3i_matcher *fork;
    assert_int_equal(k3i_matcher_fork(m, &fork, NULL), K3_OK);
    bool ok = k3i_matcher_advance(fork, id, NULL) == K3_OK;
    if (ok && ret_need != NULL)
        *ret_need = k3i_matcher_min_tokens(fork);
    k3i_matcher_free(fork);
    return ok;
}

/* Number of tokens accepted; every accepted one must have been in the mask, the refused one not. */
static size_t accepted(constraint *c, const k3i_ids *ids)
{
    k3i_matcher *m;
    size_t n = 0;
    assert_int_equal(k3i_matcher_fork(c->matcher, &m, NULL), K3_OK);
    for (; n < ids->n; n++) {
        assert_int_equal(k3i_matcher_mask(m, SIZE_MAX, mask, NULL), K3_OK);
        bool in_mask = allows(mask, ids->id[n]);
        bool ok = k3i_matcher_advance(m, ids->id[n], NULL) == K3_OK;
        if (in_mask != ok)
            fail_msg("token %zu: mask says %d, advance says %d", n, in_mask, ok);
        if (!ok)
            break;
    }
    k3i_matcher_free(m);
    return n;
}

#define PARAMS                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":9},"         \
    "\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},"                                \
    "\"unit\":{\"enum\":[\"C\",\"F\"]},\"opt\":{\"type\":[\"object\",\"null\"],\"properties\":{"   \
    "\"x\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}}},\"additionalProperties\":false}}" \
    ","                                                                                            \
    "\"required\":[\"city\",\"days\"],\"additionalProperties\":false}"
#define HEAD "I will.{-response}{+tools}{+call tool=\"f\" index=\"1\"}"
#define TAIL "{-call}{-tools}{-message}{.}"
#define ARG(k, t, v) "{+argument key=\"" k "\" type=\"" t "\"}" v "{-argument}"

static void calls_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        HEAD ARG("city", "string", "Paris") ARG("days", "number", "3") TAIL,
        HEAD ARG("days", "number", "14") ARG("city", "string", "") TAIL,
        HEAD ARG("unit", "string", "F") ARG("days", "number", "1") ARG("city", "string", "<|open|>")
            TAIL,
        HEAD ARG("opt", "object", "{\"x\": [1, 2.5e3,-0]}")
            ARG("city", "string", "\"\n\xE6\xB1\x89") ARG("days", "number", "9") TAIL,
        HEAD ARG("opt", "null", "null") ARG("city", "string", "a")
            ARG("days", "number", "9") "{-call}{-tools}{.}",
        HEAD ARG("city", "string", "a")
            ARG("days", "number", "9") "{-call}{+call tool=\"f\" index=\"2\"}" ARG(
                "city", "string", "b") ARG("days", "number", "2") TAIL,
    };
    static const struct {
        const char *output, *last; /* `last` may not follow */
    } bad[] = {
        {HEAD, "{-call}"}, /* required missing */
        {HEAD ARG("city", "string", "x"), "{-call}"},
        {HEAD ARG("city", "string", "x"), "{+argument key=\"city\""},    /* twice */
        {HEAD "{+argument key=\"city\" type=\"string\"}123456789", "0"}, /* maxLength */
        {HEAD "{+argument key=\"days\" type=\"number\"}1", "5"},         /* 15 > 14 */
        {HEAD "{+argument key=\"days\" type=\"number\"}3", ".5"},
        {HEAD "{+argument key=\"days\" type=\"number\"}", "0"},
        {HEAD "{+argument key=\"days\" type=\"", "string"},
        {HEAD "{+argument key=\"", "other"}, /* undeclared */
        {HEAD "{+argument key=\"unit\" type=\"string\"}", "K"},
        {HEAD "{+argument key=\"opt\" type=\"object\"}{", "\"y\""},
        {"{-response}{+tools}", "{+call tool=\"g\""},
        {"{-response}{+tools}", "{-tools}"}, /* a call is forced */
        {"text", "{.}"},
        {"{-response}", "{.}"},
        {"", "{+tools}"},
    };
    k3i_ids ids = K3I_IDS(10000);
    constraint c = constrain(FORCED(PARAMS), strlen(FORCED(PARAMS)));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        to_ids(good[i], &ids);
        size_t n = accepted(&c, &ids);
        if (n != ids.n)
            fail_msg("case %zu: %s: stopped at token %zu of %zu", i, good[i], n, ids.n);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[1024];
        to_ids(bad[i].output, &ids);
        if (accepted(&c, &ids) != ids.n)
            fail_msg("case %zu: %s refused", i, bad[i].output);
        snprintf(text, sizeof text, "%s%s", bad[i].output, bad[i].last);
        to_ids(text, &ids);
        if (accepted(&c, &ids) == ids.n)
            fail_msg("case %zu: %s was accepted", i, text);
    }
    k3i_ids_done(&ids);
    release(&c);
}

static bool accepts(const char *request, const char *output)
{
    k3i_ids ids = K3I_IDS(10000);
    constraint c = constrain(request, strlen(request));
    to_ids(output, &ids);
    bool ok = accepted(&c, &ids) == ids.n;
    k3i_ids_done(&ids);
    release(&c);
    return ok;
}

#define TOOLS(strict)                                                                   \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":" strict \
    "}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":" PARAMS "}}]"

static void modes(void **state)
{
    (void)state;
    static const char free_text[] = REQUEST(TOOLS("false")), no_tools[] = REQUEST("\"n\":1");
    constraint c = constrain(free_text, strlen(free_text));
    assert_null(c.grammar); /* auto without strict tools: nothing to enforce */
    release(&c);
    c = constrain(no_tools, strlen(no_tools));
    assert_null(c.grammar);
    release(&c);

    static const char strict[] = REQUEST(TOOLS("true"));
    assert_true(accepts(strict, "free text{-response}{-message}{.}"));
    assert_true(accepts(strict, "free text{-response}{.}"));
    assert_true(accepts(strict, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" ARG(
                                    "any", "string", "x") ARG("n", "number", "1e5") TAIL));
    assert_false(accepts(strict, "{-response}{+tools}{-tools}"));
    assert_false(accepts(strict, "{-response}{+tools}{+call tool=\"g\" index=\"1\"}{-call}"));

    static const char named[] = REQUEST(
        TOOLS("true") ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}");
    assert_false(accepts(named, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}"));
    assert_true(accepts(named, "{-response}{+tools}{+call tool=\"g\" index=\"1\"}"));

    static const char single[] =
        REQUEST(TOOLS("true") ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false");
    assert_true(accepts(single, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" TAIL));
    assert_false(accepts(
        single,
        "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{-call}{+call tool=\"f\" index=\"2\"}"));

    /* Thinking is free, but its channel must be closed first. */
    static const char thinking[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\"," TOOLS(
            "true") "}";
    assert_true(accepts(thinking,
                        "any {thought} \x80\n{-think}{+response}{-response}{+tools}{+call "
                        "tool=\"f\" index=\"12\"}" TAIL));
    assert_false(accepts(thinking, "thought{+tools}"));
    assert_false(accepts(thinking, "thought{.}"));
    assert_false(accepts(thinking, "thought{-think}{-response}"));

    /* With tools at auto the JSON answer may be replaced or followed by calls. */
    static const char both[] =
        REQUEST(TOOLS("true") ",\"response_format\":{\"type\":\"json_object\"}");
    assert_true(accepts(both, "{\"a\":[1,true]}{-response}{-message}{.}"));
    assert_true(accepts(both, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" TAIL));
    assert_true(accepts(both, "{}{-response}{+tools}{+call tool=\"f\" index=\"1\"}" TAIL));
    assert_false(accepts(both, "{-response}{-message}"));
    assert_false(accepts(both, "text"));
    assert_false(accepts(both, "{ "));

    /* A partial answer goes on where it stands. */
    static const char partial[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
        "\"{\\\"a\\\":\",\"partial\":true}],"
        "\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"json_object\"}}";
    assert_true(accepts(partial, "1}{-response}{-message}{.}"));
    assert_false(accepts(partial, "}"));
}

static void refused_schemas(void **state)
{
    (void)state;
    static const struct {
        const char *request, *word;
    } cases[] = {
        {SCHEMA("{\"type\":\"number\",\"multipleOf\":3}"), "multipleOf"},
        {SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}"), "'not'"},
        {SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"object\",\"patternProperties\":{}}}"),
         "patternProperties"},
        {SCHEMA("{\"type\":\"array\",\"uniqueItems\":true}"), "uniqueItems"},
        {SCHEMA("{\"allOf\":[{\"type\":\"string\"},{\"maxLength\":3}]}"), "allOf"},
        {SCHEMA("{\"type\":\"string\",\"anyOf\":[{\"type\":\"string\"}]}"), "anyOf"},
        {SCHEMA("{\"$ref\":\"#/$defs/none\"}"), "$ref"},
        {SCHEMA("{\"type\":\"strin\"}"), "strin"},
        {SCHEMA("{\"type\":\"string\",\"minLength\":4,\"maxLength\":3}"), "maxLength"},
        {SCHEMA("{\"type\":\"integer\",\"minimum\":4,\"maximum\":3}"), "no finite answer"},
        {SCHEMA("{\"enum\":[]}"), "no finite answer"},
        {SCHEMA("{\"$ref\":\"#\"}"), "no finite answer"},
        {SCHEMA(
             "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}"),
         "no finite answer"},
        {SCHEMA("{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}"),
         "no finite answer"},
        {FORCED("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"if\":{}}}}"),
         "tool 'f'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        yyjson_doc *doc =
            yyjson_read(cases[i].request, strlen(cases[i].request), K3I_CHAT_READ_FLAGS);
        k3i_chat_req req;
        k3i_grammar *g = NULL;
        k3i_err err = {0};
        assert_int_equal(k3i_chat_parse(yyjson_doc_get_root(doc), &req, &err), K3_OK);
        if (k3i_grammar_new(&req, K3I_CHANNEL_RESPONSE, &g, &err) != K3_E_FORMAT ||
            strstr(err.text, cases[i].word) == NULL)
            fail_msg("%s: '%s'", cases[i].request, err.text);
        yyjson_doc_free(doc);
    }
    /* Sizes that only a hostile schema has. */
    char *big = malloc(1 << 17);
    int n = sprintf(big, "%s",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{"
                    "\"type\":\"json_schema\","
                    "\"json_schema\":{\"name\":\"n\",\"schema\":{\"anyOf\":[{}");
    for (int i = 0; i < 4000; i++)
        n += sprintf(big + n, ",{}");
    n += sprintf(big + n, "]}}}}");
    yyjson_doc *doc = yyjson_read(big, (size_t)n, K3I_CHAT_READ_FLAGS);
    k3i_chat_req req;
    k3i_grammar *g = NULL;
    k3i_err err = {0};
    assert_int_equal(k3i_chat_parse(yyjson_doc_get_root(doc), &req, &err), K3_OK);
    assert_int_equal(k3i_grammar_new(&req, K3I_CHANNEL_RESPONSE, &g, &err), K3_E_LIMIT);
    assert_non_null(strstr(err.text, "anyOf"));
    yyjson_doc_free(doc);
    free(big);
    /* The same keywords without strict: enforced as far as possible. */
    static const char lenient[] =
        REQUEST("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                "\"type\":\"object\","
                "\"properties\":{\"a\":{\"type\":\"number\",\"multipleOf\":3}},\"required\":[\"a\"]"
                "}}}],\"tool_choice\":\"required\"");
    assert_true(accepts(
        lenient, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" ARG("a", "number", "4") TAIL));
    assert_false(accepts(
        lenient,
        "{-response}{+tools}{+call tool=\"f\" index=\"1\"}{+argument key=\"a\" type=\"string\"}"));
}

/* ---- masks
 * ----------------------------------------------------------------------------------------- */

/* At places of every kind the mask is compared with trying each token of a sample: all specials,
 * every short token, every 37th of the others. */
static void mask_is_exact(void **state)
{
    (void)state;
    static const struct {
        const char *request, *output;
    } places[] = {
        {FORCED(PARAMS), ""},
        {FORCED(PARAMS), "some text"},
        {FORCED(PARAMS), HEAD},
        {FORCED(PARAMS), HEAD "{+argument key=\"city\" type=\"string\"}1234567"},
        {FORCED(PARAMS), HEAD "{+argument key=\"days\" type=\"number\"}"},
        {FORCED(PARAMS), HEAD "{+argument key=\"days\" type=\"number\"}1"},
        {FORCED(PARAMS), HEAD "{+argument key=\"unit\" type=\"string\"}"},
        {FORCED(PARAMS), HEAD "{+argument key=\"opt\" type=\"object\"}{\"x\":"},
        {FORCED(PARAMS), HEAD ARG("city", "string", "x")},
        {FORCED("{\"type\":\"object\",\"properties\":{\"any\":{}}}"), HEAD},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"), "{\"k"},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"), "{\"k\":\"some \\\\"},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"),
         "{\"k\":[\"string \xF0\x9F\x99\x82"},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"), "{\"k\":[-1"},
        {SCHEMA("{\"type\":\"string\",\"minLength\":3,\"maxLength\":5}"), "\"a"},
        {SCHEMA("{\"type\":\"object\",\"properties\":{\"aa\":{\"type\":\"null\"},\"ab\":{\"type\":"
                "\"null\"}}}"),
         "{\"a"},
        {SCHEMA("{\"type\":\"string\"}"), "\"x\"{-response}"},
    };
    k3i_ids ids = K3I_IDS(1000);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        constraint c = constrain(places[i].request, strlen(places[i].request));
        to_ids(places[i].output, &ids);
        for (size_t k = 0; k < ids.n; k++) {
            if (k3i_matcher_advance(c.matcher, ids.id[k], NULL) != K3_OK)
                fail_msg("place %zu: token %zu refused", i, k);
        }
        assert_int_equal(k3i_matcher_mask(c.matcher, SIZE_MAX, mask, NULL), K3_OK);
        for (int32_t id = 0; id < k3i_tok_size(tok); id++) {
            size_t n;
            k3i_tok_bytes(tok, id, &n);
            if (n > 2 && id % 37 != 0 && !k3i_tok_is_special(tok, id) && n < 60)
                continue;
            bool ok = tries(c.matcher, id, NULL);
            if (ok != allows(mask, id))
                fail_msg("place %zu: token %d: mask %d, advance %d", i, id, allows(mask, id), ok);
        }
        release(&c);
    }
    k3i_ids_done(&ids);
}

/* Near the end of the budget every allowed token leaves enough of it. */
static void budget_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *request, *output;
    } places[] = {
        {FORCED(PARAMS), "some text"},
        {FORCED(PARAMS), HEAD},
        {FORCED(PARAMS), HEAD "{+argument key=\"city\" type=\"string\"}12"},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"), "{\"k\":\"some"},
        {REQUEST("\"response_format\":{\"type\":\"json_object\"}"), "{\"k"},
        {SCHEMA("{\"type\":\"string\",\"minLength\":4}"), "\"a"},
        {SCHEMA("{\"type\":\"string\",\"pattern\":\"^[^b]{3,}$\"}"), "\"a"},
    };
    k3i_ids ids = K3I_IDS(1000);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        constraint c = constrain(places[i].request, strlen(places[i].request));
        to_ids(places[i].output, &ids);
        for (size_t k = 0; k < ids.n; k++)
            assert_int_equal(k3i_matcher_advance(c.matcher, ids.id[k], NULL), K3_OK);
        size_t need = k3i_matcher_min_tokens(c.matcher);
        for (size_t remaining = need; remaining < need + 6; remaining++) {
            assert_int_equal(k3i_matcher_mask(c.matcher, remaining, mask, NULL), K3_OK);
            for (int32_t id = 0; id < k3i_tok_size(tok); id++) {
                if (!allows(mask, id))
                    continue;
                size_t rest;
                assert_true(tries(c.matcher, id, &rest));
                if (rest > remaining - 1)
                    fail_msg("place %zu: token %d needs %zu of %zu tokens", i, id, rest,
                             remaining - 1);
            }
        }
        release(&c);
    }
    k3i_ids_done(&ids);
    /* Where a short alternative would miss the least length it is not begun. */
    static const char request[] =
        SCHEMA("{\"type\":\"string\",\"pattern\":\"^(ab|cde)$\",\"minLength\":3}");
    assert_true(accepts(request, "\"cde\"{-response}{-message}{.}"));
    assert_false(accepts(request, "\"a"));
}

/* At every step of a walk: a fork sees the same mask and goes its own way, over several tokens; a
 * mask with the smallest budget allows something that finishes. */
static void forks(void **state)
{
    (void)state;
    static const char *const requests[] = {
        FORCED(PARAMS),
        SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"object\",\"additionalProperties\":{"
               "\"type\":\"string\"}}}"),
        REQUEST("\"response_format\":{\"type\":\"json_object\"}")};
    uint64_t seed = 5;
    size_t bytes = k3i_vocab_mask_words(vocab) * sizeof *mask;
    for (size_t r = 0; r < 3; r++) {
        constraint c = constrain(requests[r], strlen(requests[r]));
        k3i_matcher *m = c.matcher, *fork;
        for (int step = 0; step < 150 && !k3i_matcher_is_done(m); step++) {
            size_t need = k3i_matcher_min_tokens(m);
            assert_int_equal(k3i_matcher_mask(m, 10000, mask, NULL), K3_OK);
            int32_t next = pick(mask, &seed);
            assert_int_equal(k3i_matcher_fork(m, &fork, NULL), K3_OK);
            assert_int_equal(k3i_matcher_mask(fork, 10000, mask2, NULL), K3_OK);
            assert_memory_equal(mask, mask2, bytes);
            size_t n_more = test_rnd(&seed) % 9;
            for (size_t n = 0; n < n_more && !k3i_matcher_is_done(fork); n++) {
                assert_int_equal(k3i_matcher_mask(fork, 10000, mask2, NULL), K3_OK);
                assert_int_equal(k3i_matcher_advance(fork, pick(mask2, &seed), NULL), K3_OK);
            }
            k3i_matcher_free(fork);
            assert_int_equal(k3i_matcher_min_tokens(m), need);
            assert_int_equal(k3i_matcher_mask(m, 10000, mask2, NULL), K3_OK);
            assert_memory_equal(mask, mask2, bytes);
            /* The tightest budget still has a way to the end: each token taken under it lowers the
             * need. */
            size_t rest;
            assert_int_equal(k3i_matcher_mask(m, need, mask2, NULL), K3_OK);
            assert_true(tries(m, pick(mask2, &seed), &rest));
            assert_true(rest < need);
            assert_int_equal(k3i_matcher_advance(m, next, NULL), K3_OK);
        }
        release(&c);
    }
}

/* Many members (more than the 64 of one word), deep nesting, long arrays: frames are cleaned up
 * meanwhile. */
static void large_answers(void **state)
{
    (void)state;
    char *request = malloc(1 << 16);
    int n = sprintf(request, "%s",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":"
                    "\"disabled\"},\"response_format\":{\"type\":\"json_schema\","
                    "\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":{\"type\":"
                    "\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < 100; i++)
        n += sprintf(request + n, "%s\"p%d\":{\"type\":\"integer\"}", i == 0 ? "" : ",", i);
    n += sprintf(request + n, "},\"required\":[\"p99\",\"p3\"]}}}}");
    constraint c = constrain(request, (size_t)n);
    uint64_t seed = 3;
    for (int round = 0; round < 5; round++) {
        k3i_answer a = walk(&c, 900, &seed);
        yyjson_doc *doc = yyjson_read(a.content.data, a.content.n, 0);
        yyjson_val *root = yyjson_doc_get_root(doc);
        assert_non_null(yyjson_obj_get(root, "p99"));
        assert_non_null(yyjson_obj_get(root, "p3"));
        yyjson_obj_iter it = yyjson_obj_iter_with(root);
        for (yyjson_val *key; (key = yyjson_obj_iter_next(&it)) != NULL;)
            assert_ptr_equal(yyjson_obj_get(root, yyjson_get_str(key)),
                             yyjson_obj_iter_get_val(key)); /* none twice */
        yyjson_doc_free(doc);
        k3i_answer_done(&a);
    }
    release(&c);
    free(request);

    static const char nested[] = SCHEMA("{\"type\":\"array\"}");
    c = constrain(nested, strlen(nested));
    k3i_ids open = K3I_IDS(10), close = K3I_IDS(10), item = K3I_IDS(10);
    assert_int_equal(k3i_tok_encode(tok, "[", 1, 0, &open, NULL), K3_OK);
    assert_int_equal(k3i_tok_encode(tok, "]", 1, 0, &close, NULL), K3_OK);
    assert_int_equal(k3i_tok_encode(tok, ",", 1, 0, &item, NULL), K3_OK);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
        assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_OK);
        assert_int_equal(k3i_matcher_advance(c.matcher, item.id[0], NULL), K3_OK);
    }
    assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
    for (int i = 0; i < 3001; i++)
        assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_OK);
    assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_E_ARG);
    release(&c);

    /* The clean-up comes on the way down, with 400 lists closed before it; what is opened behind it
     * takes the room of the frames that were moved. */
    c = constrain(nested, strlen(nested));
    for (int i = 0; i < 3000; i++)
        assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
    for (int i = 0; i < 400; i++) {
        assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
        assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_OK);
        assert_int_equal(k3i_matcher_advance(c.matcher, item.id[0], NULL), K3_OK);
    }
    for (int i = 0; i < 2500; i++)
        assert_int_equal(k3i_matcher_advance(c.matcher, open.id[0], NULL), K3_OK);
    for (int i = 0; i < 5500; i++)
        assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_OK);
    assert_int_equal(k3i_matcher_advance(c.matcher, close.id[0], NULL), K3_E_ARG);
    k3i_ids_done(&open);
    k3i_ids_done(&close);
    k3i_ids_done(&item);
    release(&c);
}

/* A choice among 400 constants: every one of them can be said. */
static void many_constants(void **state)
{
    (void)state;
    char *request = malloc(1 << 16);
    int n = sprintf(request, "%s",
                    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":{\"type\":"
                    "\"disabled\"},\"tool_choice\":\"required\","
                    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":"
                    "true,\"parameters\":{\"type\":\"object\","
                    "\"properties\":{\"a\":{\"anyOf\":[");
    for (int i = 0; i < 400; i++)
        n += sprintf(request + n, "%s{\"const\":\"c%d\"}", i == 0 ? "" : ",", i);
    sprintf(request + n, "]}},\"required\":[\"a\"]}}}]}");
    for (int i = 0; i < 400; i += 57) {
        char output[256];
        snprintf(output, sizeof output,
                 "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" ARG("a", "string", "c%d") TAIL,
                 i);
        assert_true(accepts(request, output));
    }
    assert_false(accepts(
        request, "{-response}{+tools}{+call tool=\"f\" index=\"1\"}" ARG("a", "string", "c400")));
    free(request);
}

static void failing_memory(void **state)
{
    (void)state;
    static const char request[] = FORCED(PARAMS);
    yyjson_doc *doc = yyjson_read(request, strlen(request), K3I_CHAT_READ_FLAGS);
    k3i_ids ids = K3I_IDS(1000);
    to_ids(HEAD ARG("opt", "object", "{\"x\": [1, 2]}") ARG("city", "string", "x"), &ids);
    for (uint64_t n = 1;; n++) {
        k3i_chat_req req;
        k3i_grammar *g = NULL;
        k3i_matcher *m = NULL;
        k3i_err err = {0};
        assert_int_equal(k3i_chat_parse(yyjson_doc_get_root(doc), &req, &err), K3_OK);
        k3i_alloc_fail_at(n);
        k3_status st = k3i_grammar_new(&req, K3I_CHANNEL_RESPONSE, &g, &err);
        if (st == K3_OK)
            st = k3i_matcher_new(vocab, g, &m, &err);
        for (size_t i = 0; i < ids.n && st == K3_OK; i++) {
            st = k3i_matcher_mask(m, 1000, mask, &err);
            if (st == K3_OK)
                st = k3i_matcher_advance(m, ids.id[i], &err);
        }
        k3i_alloc_fail_at(0);
        k3i_matcher_free(m);
        k3i_grammar_free(g);
        if (st == K3_OK) {
            assert_true(n > 20);
            break;
        }
        assert_int_equal(st, K3_E_NOMEM);
    }
    k3i_ids_done(&ids);
    yyjson_doc_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vendor_schemas),  cmocka_unit_test(response_formats),
        cmocka_unit_test(calls_accepted),  cmocka_unit_test(modes),
        cmocka_unit_test(refused_schemas), cmocka_unit_test(mask_is_exact),
        cmocka_unit_test(forks),           cmocka_unit_test(large_answers),
        cmocka_unit_test(failing_memory),  cmocka_unit_test(many_constants),
        cmocka_unit_test(budget_is_kept),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
