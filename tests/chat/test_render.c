/* The chat renderer against Moonshot's token counts and vectors of other implementations. */
#include "golden.h"
#include "published_tok.h"

#include "chat.h"
#include "image.h"

static yyjson_val *get(yyjson_val *o, const char *key)
{
    yyjson_val *v = yyjson_obj_get(o, key);
    return yyjson_is_null(v) ? NULL : v;
}

static int32_t effort_of(yyjson_val *v)
{
    return yyjson_equals_str(v, "low")    ? K3I_EFFORT_LOW
           : yyjson_equals_str(v, "high") ? K3I_EFFORT_HIGH
           : v == NULL                    ? K3I_EFFORT_NONE
                                          : K3I_EFFORT_MAX;
}

static void set_format(k3i_chat_req *req, yyjson_val *format)
{
    req->response_format = format;
    yyjson_val *type = get(format, "type");
    req->format = yyjson_equals_str(type, "json_object")   ? K3I_FORMAT_OBJECT
                  : yyjson_equals_str(type, "json_schema") ? K3I_FORMAT_SCHEMA
                                                           : K3I_FORMAT_TEXT;
}

static void set_choice(k3i_chat_req *req, yyjson_val *choice)
{
    req->tool_choice = yyjson_equals_str(choice, "required") ? K3I_TOOLS_REQUIRED
                       : yyjson_equals_str(choice, "none")   ? K3I_TOOLS_NONE
                                                             : K3I_TOOLS_AUTO;
}

/* The request of a `render` vector, whose options are those of the reference encoder. */
static k3i_chat_req req_of(yyjson_val *root)
{
    yyjson_val *opts = get(root, "opts");
    k3i_chat_req req = k3i_chat_req_default(get(root, "messages"));
    req.tools = get(root, "tools");
    req.is_thinking = yyjson_get_bool(get(opts, "thinking"));
    req.effort = effort_of(get(opts, "thinking_effort"));
    req.add_generation_prompt = yyjson_get_bool(get(opts, "add_generation_prompt"));
    set_choice(&req, get(opts, "tool_choice"));
    set_format(&req, get(opts, "response_format"));
    return req;
}

/* The segments joined; a picture of size w x h as its block, or as a bare pad when w is 0. */
static char *joined(const k3i_chat_segs *segs, unsigned w, unsigned h, unsigned n_pad)
{
    static const char *const marker[] = {[K3I_SEG_OPEN] = "<|open|>",
                                         [K3I_SEG_CLOSE] = "<|close|>",
                                         [K3I_SEG_SEP] = "<|sep|>",
                                         [K3I_SEG_END_OF_MSG] = "<|end_of_msg|>"};
    char *text = calloc(segs->text.n + segs->n_seg * 16 + 4096, 1), *p = text;
    for (size_t i = 0; i < segs->n_seg; i++) {
        const k3i_chat_seg *s = &segs->seg[i];
        if (s->kind == K3I_SEG_TEXT) {
            memcpy(p, segs->text.data + s->at, s->n);
            p += s->n;
        } else if (s->kind == K3I_SEG_IMAGE && w > 0) {
            p += sprintf(p, "<|media_begin|>image %ux%u<|media_content|>", w, h);
            for (unsigned k = 0; k < n_pad; k++)
                p += sprintf(p, "<|media_pad|>");
            p += sprintf(p, "<|media_end|>");
        } else {
            p += sprintf(p, "%s", s->kind == K3I_SEG_IMAGE ? "<|media_pad|>" : marker[s->kind]);
        }
    }
    return text;
}

typedef struct {
    int n_render, n_text, n_segments, n_prompt, n_partial, n_image, n_digest;
} counts;

static void expect_text(const char *id, const k3i_chat_segs *segs, unsigned w, unsigned h,
                        unsigned pads, yyjson_val *want)
{
    char *text = joined(segs, w, h, pads);
    if (strcmp(text, yyjson_get_str(want)) != 0)
        fail_msg("%s:\ngot  %s\nwant %s", id, text, yyjson_get_str(want));
    free(text);
}

static void check_render(counts *c, const char *id, yyjson_val *root)
{
    k3i_chat_req req = req_of(root);
    k3i_err err;
    k3i_chat_segs segs;
    k3i_chat_prompt prompt;
    k3i_chat_image image = {.width = 56, .height = 28, .n_pad = 2};
    if (k3i_chat_segments(&req, 1, SIZE_MAX, &segs, &err) != K3_OK ||
        k3i_chat_render(tok, &req, &image, 1, SIZE_MAX, &prompt, &err) != K3_OK)
        fail_msg("%s: %s", id, err.text);
    expect_text(id, &segs, 56, 28, 2, get(root, "text"));
    golden_expect_ids(id, prompt.ids.id, prompt.ids.n, get(root, "ids"));
    assert_int_equal(prompt.n_pending, req.add_generation_prompt ? 3 : 0);
    for (size_t i = 0; i < prompt.n_slot; i++) {
        assert_int_equal(prompt.slot[i].n, 2);
        assert_int_equal(prompt.ids.id[prompt.slot[i].at], k3i_tok_special_ids(tok)->media_pad);
        assert_int_equal(prompt.ids.id[prompt.slot[i].at + 1], k3i_tok_special_ids(tok)->media_pad);
    }
    k3i_chat_segs_done(&segs);
    k3i_chat_prompt_done(&prompt);
    c->n_render++;
}

/* vLLM's input objects: the API fields, except that thinking comes as template_kwargs and developer
 * messages carry tools. */
static void check_render_text(counts *c, const char *id, yyjson_val *root)
{
    yyjson_val *input = get(root, "input"), *kwargs = get(input, "template_kwargs");
    k3i_chat_req req = k3i_chat_req_default(get(input, "messages"));
    req.tools = get(input, "tools");
    req.is_thinking = yyjson_get_bool(get(kwargs, "thinking"));
    if (get(kwargs, "thinking_effort") != NULL)
        req.effort = effort_of(get(kwargs, "thinking_effort"));
    set_choice(&req, get(input, "tool_choice"));
    set_format(&req, get(input, "response_format"));
    k3i_chat_segs segs;
    k3i_err err;
    if (k3i_chat_segments(&req, 1, SIZE_MAX, &segs, &err) != K3_OK)
        fail_msg("%s: %s", id, err.text);
    expect_text(id, &segs, 0, 0, 0, get(root, "text"));
    k3i_chat_segs_done(&segs);
    c->n_text++;
}

/* The vectors' segments are typed texts; the same list must come out of the tokeniser per segment.
 */
static void check_segments(counts *c, const char *id, yyjson_val *root)
{
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    yyjson_arr_iter it = yyjson_arr_iter_with(get(root, "segments"));
    for (yyjson_val *s; (s = yyjson_arr_iter_next(&it)) != NULL;) {
        yyjson_val *text = yyjson_arr_get(s, 0);
        int mode = yyjson_get_bool(yyjson_arr_get(s, 1)) ? K3I_TOK_SPECIAL : K3I_TOK_PLAIN;
        assert_int_equal(
            k3i_tok_encode(tok, yyjson_get_str(text), yyjson_get_len(text), mode, &ids, NULL),
            K3_OK);
    }
    golden_expect_ids(id, ids.id, ids.n, get(root, "ids"));
    k3i_ids_done(&ids);
    c->n_segments++;
}

/* Moonshot's requests through the request reader, against its published counts. */
static void check_prompt_tokens(counts *c, const char *id, yyjson_val *root)
{
    k3i_chat_req req;
    k3i_chat_prompt prompt;
    k3i_err err;
    if (k3i_chat_parse(get(root, "request"), &req, &err) != K3_OK ||
        k3i_chat_render(tok, &req, NULL, 0, SIZE_MAX, &prompt, &err) != K3_OK)
        fail_msg("%s: %s", id, err.text);
    uint64_t got = prompt.ids.n - prompt.n_pending,
             want = yyjson_get_uint(get(root, "expected_prompt_tokens"));
    if (got != want)
        fail_msg("%s: %lu prompt tokens, Moonshot counts %lu", id, (unsigned long)got,
                 (unsigned long)want);
    if (req.is_partial)
        c->n_partial++;
    else
        c->n_prompt++;
    k3i_chat_prompt_done(&prompt);
}

static void check_digest(counts *c, yyjson_val *root)
{
    size_t n = yyjson_get_uint(get(root, "count"));
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *messages = yyjson_mut_arr(doc), *m = yyjson_mut_arr_add_obj(doc, messages);
    char *text = malloc(n);
    memset(text, *yyjson_get_str(get(root, "user_content_repeat")), n);
    yyjson_mut_obj_add_str(doc, m, "role", "user");
    yyjson_mut_obj_add_strn(doc, m, "content", text, n);
    yyjson_mut_doc_set_root(doc, messages);
    yyjson_doc *fixed = yyjson_mut_doc_imut_copy(doc, NULL);
    k3i_chat_req req = k3i_chat_req_default(yyjson_doc_get_root(fixed));
    k3i_chat_prompt prompt;
    assert_int_equal(k3i_chat_render(tok, &req, NULL, 0, SIZE_MAX, &prompt, NULL), K3_OK);
    assert_int_equal(prompt.ids.n, yyjson_get_uint(get(root, "n_ids")));
    k3i_chat_prompt_done(&prompt);
    yyjson_doc_free(fixed);
    yyjson_mut_doc_free(doc);
    free(text);
    c->n_digest++;
}

static void check_vector(void *ctx, const char *kind, const char *id, yyjson_val *root)
{
    counts *c = ctx;
    if (strcmp(kind, "render") == 0)
        check_render(c, id, root);
    else if (strcmp(kind, "render_text") == 0)
        check_render_text(c, id, root);
    else if (strcmp(kind, "segments") == 0)
        check_segments(c, id, root);
    else if (strcmp(kind, "prompt_tokens") == 0)
        check_prompt_tokens(c, id, root);
    else if (strcmp(kind, "render_digest") == 0)
        check_digest(c, root);
    else if (strcmp(kind, "image_tokens") == 0) {
        unsigned w = (unsigned)yyjson_get_uint(get(root, "width")),
                 h = (unsigned)yyjson_get_uint(get(root, "height"));
        k3i_image_settings settings;
        k3i_image_plan plan;
        k3i_image_settings_default(&settings);
        k3i_image_plan_size(&settings, w, h, &plan);
        assert_int_equal(plan.n_tokens, yyjson_get_uint(get(root, "n_media_pad")));
        c->n_image++;
    }
}

static void golden_vectors(void **state)
{
    (void)state;
    counts c = {0};
    golden_each(check_vector, &c);
    assert_int_equal(c.n_render, 49);
    assert_int_equal(c.n_text, 5);
    assert_int_equal(c.n_segments, 7);
    assert_int_equal(c.n_prompt, 44);
    assert_int_equal(c.n_partial, 8);
    assert_int_equal(c.n_image, 5);
    assert_int_equal(c.n_digest, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_vectors)};
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
