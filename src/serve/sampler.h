/* sampler.h: from a row of logits to a token. A sample is a pure function of (row, parameters, the
 * tokens so far, mask, position): noise is keyed by the request's seed and the absolute position of
 * the token, so a seeded request gives the same text with speculation on, off or at any width. A
 * draft is accepted if and only if it equals the token sampled from its row; that is plain
 * sampling, merely computed ahead, hence lossless.
 *
 * Order of the operations, as in vLLM: mask, bad words, min_tokens, logit_bias, penalties; then for
 * temperature > 0: temperature, min_p, top_k, top_p, noise. Ties go to the lowest id. */
#ifndef K3I_SAMPLER_H
#define K3I_SAMPLER_H

#include "alloc.h"

typedef struct {
    int32_t token;
    float bias;
} k3i_logit_bias;

/* A sequence that must not be completed: ids[0..n). */
typedef struct {
    const int32_t *ids;
    int32_t n;
} k3i_bad_word;

/* Ranges are checked by the caller (the API gives the errors); arrays are the request's. */
typedef struct {
    float temperature;        /* 0 = greedy */
    float top_p;              /* (0, 1]; 1 = off */
    float min_p;              /* [0, 1]; 0 = off */
    int32_t top_k;            /* >= 1, or <= 0 = off */
    float presence_penalty;   /* subtracted once from every token of the output */
    float frequency_penalty;  /* times its count in the output */
    float repetition_penalty; /* > 0; divides positive, multiplies negative logits of prompt and
                                 output */
    uint64_t seed;
    int32_t min_tokens; /* until then the stop ids cannot be sampled */
    int32_t n_stop, n_bias, n_bad;
    const int32_t *stop; /* [n_stop] end-of-message and stop_token_ids */
    const k3i_logit_bias *bias;
    const k3i_bad_word *bad;
} k3i_sampling;

/* Temperature 1, everything off. */
k3i_sampling k3i_sampling_default(void);

/* Below this a temperature counts as 0 (vLLM's limit), since logits / t would overflow. */
#define K3I_MIN_TEMPERATURE 1e-5f

/* Token statistics and the output of one request. Owned by the request, used on one thread. */
typedef struct k3i_sampler k3i_sampler;

/* `params` and its arrays must outlive the sampler. The prompt is read once, for the repetition
 * penalty. Errors: K3_E_NOMEM; K3_E_ARG for an id outside the vocabulary. */
k3_status k3i_sampler_new(const k3i_sampling *params, int32_t vocab, const int32_t *prompt,
                          int32_t n_prompt, k3i_sampler **ret, k3i_err *err);
void k3i_sampler_free(k3i_sampler *s);

/* The token at absolute position `position` (prompt tokens count), given its row of logits, which
 * is overwritten. mask: bit t % 32 of word t / 32 set = token t is allowed; NULL = all. Does not
 * change the statistics. Errors: K3_E_NONFINITE (NaN or +infinity in the row), K3_E_LIMIT (nothing
 * allowed). */
k3_status k3i_sample(k3i_sampler *s, float *row, const uint32_t *mask, int32_t position,
                     int32_t *ret_token, k3i_err *err);

/* The token joins the output: K3_E_NOMEM leaves everything as it was. */
k3_status k3i_sampler_push(k3i_sampler *s, int32_t token, k3i_err *err);

/* One alternative of a logprobs answer. */
typedef struct {
    int32_t token;
    float logprob;
    int32_t rank; /* 1 = most probable */
} k3i_logprob;

/* Log-softmax of an unprocessed row: ret[0] is `token`, ret[1..n] the n most probable in order,
 * ties to the lowest id. n <= vocab. */
void k3i_logprobs(const float *row, int32_t vocab, int32_t token, int32_t n, k3i_logprob *ret);

#endif
