/* grammar.h: constrained decoding. What a request demands of its answer (a forced tool call, strict
 * tools, a JSON schema) becomes a grammar; a matcher walks it byte by byte and says which tokens
 * may come next.
 *
 *   k3i_vocab    the vocabulary as a byte trie; one per tokenizer, shared by all threads
 *   k3i_grammar  one per request, immutable, shared by the request's matchers
 *   k3i_matcher  one per sequence: where in the grammar it stands; one thread at a time
 *
 * The grammar begins at the first generated token, in whichever channel the prompt left open.
 * Thinking is free text up to its closing marker. Speculation takes the rows of a step in order:
 * mask, sample, advance; where a draft was another token the rows behind it are not looked at, so
 * that nothing has to be taken back. */
#ifndef K3I_GRAMMAR_H
#define K3I_GRAMMAR_H

#include "chat.h"

typedef struct k3i_vocab k3i_vocab;
typedef struct k3i_grammar k3i_grammar;
typedef struct k3i_matcher k3i_matcher;

/* `tok` must outlive the result. */
k3_status k3i_vocab_new(const k3i_tok *tok, k3i_vocab **ret, k3i_err *err);
void k3i_vocab_free(k3i_vocab *vocab);

/* Sets *ret to NULL when the request leaves its answer free. `channel` is what the prompt left open
 * (k3i_chat_prompt). K3_E_FORMAT names a schema keyword that cannot be enforced where the request
 * is strict, or a schema that nothing satisfies. The request's document is not needed afterwards.
 */
k3_status k3i_grammar_new(const k3i_chat_req *req, int32_t channel, k3i_grammar **ret,
                          k3i_err *err);
void k3i_grammar_free(k3i_grammar *grammar);

/* `vocab` and `grammar` must outlive the matcher. */
k3_status k3i_matcher_new(const k3i_vocab *vocab, const k3i_grammar *grammar, k3i_matcher **ret,
                          k3i_err *err);
/* An independent matcher in the same place: for tests, which try every token. */
k3_status k3i_matcher_fork(const k3i_matcher *m, k3i_matcher **ret, k3i_err *err);
void k3i_matcher_free(k3i_matcher *m);

/* Words of a mask: bit (id % 32) of word id / 32. */
size_t k3i_vocab_mask_words(const k3i_vocab *vocab);

/* Writes which tokens may come next. `remaining` is the number of tokens that may still be
 * generated, this one included (SIZE_MAX: no limit): near the end only tokens are allowed that let
 * the answer finish in time. At least one bit is set; after the end it is the end-of-message id.
 * Only K3_E_NOMEM. */
k3_status k3i_matcher_mask(k3i_matcher *m, size_t remaining, uint32_t *mask, k3i_err *err);

/* Goes over one token. K3_E_ARG if the grammar does not allow it here; the matcher is unchanged
 * then. */
k3_status k3i_matcher_advance(k3i_matcher *m, int32_t id, k3i_err *err);

/* The end-of-message token has been taken. */
bool k3i_matcher_is_done(const k3i_matcher *m);
/* Tokens that suffice to finish from here: what tests hold the masks to. */
size_t k3i_matcher_min_tokens(k3i_matcher *m);

#endif
