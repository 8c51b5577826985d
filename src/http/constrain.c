/* constrain.c: what a chat request's next token may be: the grammar of forced tools or a response
 * format, and the end of thinking where the request gave it a budget. Runs on the engine thread,
 * token by token, so speculation needs nothing of its own here. */
#include "call.h"

#include <string.h>

typedef struct {
    const k3i_request *req;
    k3i_matcher *matcher; /* NULL: no grammar */
    /* The budget; parser is NULL without one. */
    k3i_parser *parser;
    size_t budget, n_words;
    k3i_ids closing; /* CLOSE think SEP */
    size_t at;       /* the next of them that is forced */
} constraint;

static k3_status ignore_event(void *user, const k3i_chat_event *e, k3i_err *err)
{
    (void)user, (void)e, (void)err;
    return K3_OK;
}

/* Markers and headers are not counted, so this never becomes true inside one. */
static bool must_close(const constraint *k)
{
    return k->parser != NULL && k3i_parser_is_reasoning(k->parser) &&
           k3i_parser_reasoning_tokens(k->parser) >= k->budget;
}

static k3_status mask(void *self, uint32_t *words, bool *ret_is_active, k3i_err *err)
{
    constraint *k = self;
    *ret_is_active = true;
    if (must_close(k)) {
        uint32_t id = (uint32_t)k->closing.id[k->at];
        memset(words, 0, k->n_words * sizeof *words);
        words[id / 32] = (uint32_t)1 << id % 32;
        return K3_OK;
    }
    *ret_is_active = k->matcher != NULL;
    if (k->matcher == NULL)
        return K3_OK;
    int32_t left = k->req->max_tokens - (k->req->n_tokens - k->req->n_prompt);
    return k3i_matcher_mask(k->matcher, (size_t)(left > 1 ? left : 1), words, err);
}

static k3_status accept_token(void *self, int32_t token, k3i_err *err)
{
    constraint *k = self;
    k3_status status = K3_OK;
    if (k->matcher != NULL && !k3i_matcher_is_done(k->matcher))
        status = k3i_matcher_advance(k->matcher, token, err);
    if (status != K3_OK || k->parser == NULL)
        return status;
    if (must_close(k)) /* from the start again if the model should open the channel once more */
        k->at = (k->at + 1) % k->closing.n;
    return k3i_parser_push(k->parser, token, err);
}

static void free_constraint(void *self)
{
    constraint *k = self;
    k3i_matcher_free(k->matcher);
    k3i_parser_free(k->parser);
    k3i_ids_done(&k->closing);
    k3i_free(k);
}

static k3_status set_budget(k3i_api_call *c, constraint *k, k3i_err *err)
{
    const k3i_tok_ids *special = k3i_tok_special_ids(c->api->tok);
    k->budget = (size_t)c->params.thinking_budget;
    k->n_words = k3i_vocab_mask_words(c->api->vocab);
    k->closing = K3I_IDS(16);
    k3_status st = k3i_ids_add(&k->closing, special->close, err);
    if (st == K3_OK)
        st = k3i_tok_encode(c->api->tok, "think", 5, K3I_TOK_PLAIN, &k->closing, err);
    if (st == K3_OK)
        st = k3i_ids_add(&k->closing, special->sep, err);
    if (st == K3_OK)
        st = k3i_parser_new(c->api->tok, &c->unfold.parser, ignore_event, NULL, &k->parser, err);
    return st;
}

bool k3i_call_constrain(k3i_api_call *c, k3i_request *r, k3i_fault *fault)
{
    if (c->grammar == NULL && c->params.thinking_budget < 0)
        return true;
    k3i_err err;
    constraint *k = k3i_alloc_zero(sizeof *k);
    if (k == NULL)
        return k3i_fault_set(fault, 503, NULL, "out of memory");
    k->req = r;
    r->constraint = (k3i_constraint){k, mask, accept_token, free_constraint};
    k3_status st = K3_OK;
    if (c->grammar != NULL)
        st = k3i_matcher_new(c->api->vocab, c->grammar, &k->matcher, &err);
    if (st == K3_OK && c->params.thinking_budget >= 0)
        st = set_budget(c, k, &err);
    return st == K3_OK || k3i_fault_from(fault, &err, "messages"); /* a partial one does not fit */
}
