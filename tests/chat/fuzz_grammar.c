/* Fuzzes the schema compiler and the matcher with a small vocabulary. The input is a JSON schema, a
 * NUL, and bytes that choose tokens: every allowed token must be accepted, the mask is never empty,
 * and a walk under a budget that was enough at its start ends in time. */
#include "grammar.h"

#include "../tokenizer/small_vocab.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_WORDS 64

static void walk(const k3i_vocab *vocab, const k3i_grammar *grammar, const uint8_t *choice,
                 size_t n)
{
    k3i_matcher *m;
    uint32_t mask[MAX_WORDS];
    if (k3i_vocab_mask_words(vocab) > MAX_WORDS ||
        k3i_matcher_new(vocab, grammar, &m, NULL) != K3_OK)
        return;
    size_t left = k3i_matcher_min_tokens(m) + n;
    if (left > 3000)
        n = left = 0;
    for (size_t i = 0; left > 0 && !k3i_matcher_is_done(m); i++, left--) {
        if (k3i_matcher_mask(m, left, mask, NULL) != K3_OK)
            break;
        uint32_t start = i < n ? choice[i] : 0, id = UINT32_MAX;
        for (uint32_t k = 0; k < 32 * MAX_WORDS && id == UINT32_MAX; k++) {
            uint32_t at = (start * 3 + k) % (uint32_t)(32 * k3i_vocab_mask_words(vocab));
            if (mask[at / 32] >> (at % 32) & 1)
                id = at;
        }
        k3i_matcher *fork = NULL;
        if (id == UINT32_MAX ||
            (i % 7 == 3 && k3i_matcher_fork(m, &fork, NULL) == K3_OK &&
             k3i_matcher_advance(fork, (int32_t)id, NULL) != K3_OK) ||
            k3i_matcher_advance(m, (int32_t)id, NULL) != K3_OK)
            abort();
        k3i_matcher_free(fork);
        if (left == 1 && !k3i_matcher_is_done(m))
            abort();
    }
    k3i_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static k3i_tok *tok; /* made once */
    static k3i_vocab *vocab;
    static const char before[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tool_"
                                 "choice\":\"required\",\"tools\":[{\"type\":"
                                 "\"function\",\"function\":{\"name\":\"f\",\"strict\":";
    if (tok == NULL) {
        char model[8192], config[4096];
        size_t config_bytes, model_bytes = small_vocabulary(model, config, &config_bytes);
        if (k3i_tok_parse(model, model_bytes, config, config_bytes, &tok, NULL) != K3_OK ||
            k3i_vocab_new(tok, &vocab, NULL) != K3_OK)
            abort();
    }
    const uint8_t *nul = memchr(data, 0, size);
    size_t n_schema = nul != NULL ? (size_t)(nul - data) : size;
    k3i_buf request = K3I_BUF(1 << 20);
    k3i_err err;
    bool ok = k3i_buf_adds(&request, before, &err) == K3_OK &&
              k3i_buf_adds(&request, size % 2 == 0 ? "true" : "false", &err) == K3_OK &&
              k3i_buf_adds(&request, ",\"parameters\":", &err) == K3_OK &&
              k3i_buf_add(&request, data, n_schema, &err) == K3_OK &&
              k3i_buf_adds(&request, "}}]}", &err) == K3_OK;
    yyjson_doc *doc = ok ? yyjson_read(request.data, request.n, K3I_CHAT_READ_FLAGS) : NULL;
    k3i_chat_req req;
    k3i_grammar *grammar = NULL;
    if (doc != NULL && k3i_chat_parse(yyjson_doc_get_root(doc), &req, &err) == K3_OK &&
        k3i_grammar_new(&req, K3I_CHANNEL_RESPONSE, &grammar, &err) == K3_OK && grammar != NULL)
        walk(vocab, grammar, nul != NULL ? nul + 1 : data, nul != NULL ? size - n_schema - 1 : 0);
    k3i_grammar_free(grammar);
    yyjson_doc_free(doc);
    k3i_buf_done(&request);
    return 0;
}
