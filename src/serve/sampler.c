/* sampler.c: owns the statistics of one request (counts, output) and its scratch list of
 * candidates.
 *
 * The one idea: work on a shrinking list of candidate ids rather than on sorted copies of the row.
 * min_p and the noise bound remove most of the vocabulary with one comparison each; top_k and top_p
 * are cut by quickselect. All sums run in an order that depends on the row alone. Formulas: vLLM's
 * sampler; Gumbel-max for the draw.
 */
#include "sampler.h"

#include "philox.h"

#include <math.h>
#include <string.h>

struct k3i_sampler {
    const k3i_sampling *params;
    int32_t vocab;
    int32_t n_output, cap_output, n_seen;
    int32_t *output;    /* [cap_output] */
    int32_t *count;     /* [vocab] occurrences in the output; NULL if no penalty needs them */
    uint8_t *in_prompt; /* [vocab]; NULL without repetition penalty */
    int32_t *seen;      /* [vocab] distinct ids of prompt (repetition penalty) and output */
    double *weight;     /* [vocab] scratch: probabilities up to a factor */
    int32_t *cand;      /* [vocab] scratch of one call */
};

k3i_sampling k3i_sampling_default(void)
{
    return (k3i_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

static bool has_penalty(const k3i_sampling *p)
{
    return p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f ||
           p->repetition_penalty != 1.0f;
}

static bool is_id(int32_t id, int32_t vocab)
{
    return id >= 0 && id < vocab;
}

static k3_status check_ids(const k3i_sampling *p, int32_t vocab, k3i_err *err)
{
    for (int32_t i = 0; i < p->n_stop; i++) {
        if (!is_id(p->stop[i], vocab))
            return k3i_fail(err, K3_E_ARG, "stop_token_ids: %d is not in the vocabulary of %d",
                            p->stop[i], vocab);
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (!is_id(p->bias[i].token, vocab))
            return k3i_fail(err, K3_E_ARG, "logit_bias: %d is not in the vocabulary of %d",
                            p->bias[i].token, vocab);
    }
    for (int32_t i = 0; i < p->n_bad; i++) {
        for (int32_t j = 0; j < p->bad[i].n; j++) {
            if (!is_id(p->bad[i].ids[j], vocab))
                return k3i_fail(err, K3_E_ARG, "bad_words: %d is not in the vocabulary of %d",
                                p->bad[i].ids[j], vocab);
        }
    }
    return K3_OK;
}

static k3_status new_statistics(k3i_sampler *s, const int32_t *prompt, int32_t n_prompt)
{
    size_t v = (size_t)s->vocab;
    s->count = k3i_alloc_zero(v * sizeof *s->count);
    s->seen = k3i_alloc_array(v, sizeof *s->seen);
    if (s->count == NULL || s->seen == NULL)
        return K3_E_NOMEM;
    if (s->params->repetition_penalty == 1.0f)
        return K3_OK;
    s->in_prompt = k3i_alloc_zero(v);
    if (s->in_prompt == NULL)
        return K3_E_NOMEM;
    for (int32_t i = 0; i < n_prompt; i++) {
        int32_t id = prompt[i];
        if (is_id(id, s->vocab) && !s->in_prompt[id]) {
            s->in_prompt[id] = 1;
            s->seen[s->n_seen++] = id;
        }
    }
    return K3_OK;
}

k3_status k3i_sampler_new(const k3i_sampling *params, int32_t vocab, const int32_t *prompt,
                          int32_t n_prompt, k3i_sampler **ret, k3i_err *err)
{
    if (check_ids(params, vocab, err) != K3_OK)
        return K3_E_ARG;
    k3i_sampler *s = k3i_alloc_zero(sizeof *s);
    if (s == NULL)
        return k3i_fail(err, K3_E_NOMEM, "sampler: out of memory");
    s->params = params;
    s->vocab = vocab;
    s->cand = k3i_alloc_array((size_t)vocab, sizeof *s->cand);
    s->weight = k3i_alloc_array((size_t)vocab, sizeof *s->weight);
    if (s->cand == NULL || s->weight == NULL ||
        (has_penalty(params) && new_statistics(s, prompt, n_prompt) != K3_OK)) {
        k3i_sampler_free(s);
        return k3i_fail(err, K3_E_NOMEM, "sampler: out of memory (vocabulary %d)", vocab);
    }
    *ret = s;
    return K3_OK;
}

void k3i_sampler_free(k3i_sampler *s)
{
    if (s == NULL)
        return;
    k3i_free(s->output);
    k3i_free(s->count);
    k3i_free(s->in_prompt);
    k3i_free(s->seen);
    k3i_free(s->cand);
    k3i_free(s->weight);
    k3i_free(s);
}

k3_status k3i_sampler_push(k3i_sampler *s, int32_t token, k3i_err *err)
{
    if (!is_id(token, s->vocab))
        return k3i_fail(err, K3_E_ARG, "token %d is not in the vocabulary of %d", token, s->vocab);
    if (s->n_output == s->cap_output) {
        int32_t cap = s->cap_output == 0 ? 256 : 2 * s->cap_output;
        int32_t *grown = k3i_realloc(s->output, (size_t)cap * sizeof *grown);
        if (grown == NULL)
            return k3i_fail(err, K3_E_NOMEM, "sampler: out of memory (%d tokens)", cap);
        s->output = grown;
        s->cap_output = cap;
    }
    s->output[s->n_output++] = token;
    if (s->count != NULL && s->count[token]++ == 0 &&
        (s->in_prompt == NULL || !s->in_prompt[token])) {
        s->seen[s->n_seen++] = token;
    }
    return K3_OK;
}

/* ---- the row before temperature ----------------------------------------------------------------
 */

static int32_t argmax(const float *row, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t t = 1; t < vocab; t++) {
        if (row[t] > row[best])
            best = t;
    }
    return best;
}

static k3_status check_finite(const float *row, int32_t vocab, k3i_err *err)
{
    for (int32_t t = 0; t < vocab; t++) {
        /* Minus infinity is a legitimate "never"; NaN fails both comparisons. */
        if (!(row[t] <= 3.4028235e38f))
            return k3i_fail(err, K3_E_NONFINITE, "logit of token %d is not finite", t);
    }
    return K3_OK;
}

static void apply_mask(float *row, const uint32_t *mask, int32_t vocab)
{
    for (int32_t t = 0; t < vocab; t++) {
        if ((mask[t / 32] >> (t % 32) & 1u) == 0)
            row[t] = -INFINITY;
    }
}

static void apply_bad_words(const k3i_sampler *s, float *row)
{
    for (int32_t i = 0; i < s->params->n_bad; i++) {
        const k3i_bad_word *w = &s->params->bad[i];
        int32_t before = w->n - 1;
        if (before < 0 || before > s->n_output)
            continue;
        const int32_t *tail = s->output + (s->n_output - before);
        if (before == 0 || memcmp(tail, w->ids, (size_t)before * sizeof *tail) == 0)
            row[w->ids[before]] = -INFINITY;
    }
}

static void apply_penalties(const k3i_sampler *s, float *row)
{
    const k3i_sampling *p = s->params;
    for (int32_t i = 0; i < s->n_seen; i++) {
        int32_t t = s->seen[i];
        float x = row[t];
        if (p->repetition_penalty != 1.0f)
            x = x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (s->count[t] > 0)
            x -= p->presence_penalty + p->frequency_penalty * (float)s->count[t];
        row[t] = x;
    }
}

/* Everything that also decides greedy requests; *ret_best is the most probable token. */
static k3_status process(const k3i_sampler *s, float *row, const uint32_t *mask, int32_t *ret_best,
                         k3i_err *err)
{
    const k3i_sampling *p = s->params;
    if (check_finite(row, s->vocab, err) != K3_OK)
        return K3_E_NONFINITE;
    if (mask != NULL)
        apply_mask(row, mask, s->vocab);
    apply_bad_words(s, row);
    if (s->n_output < p->min_tokens) {
        for (int32_t i = 0; i < p->n_stop; i++)
            row[p->stop[i]] = -INFINITY;
    }
    for (int32_t i = 0; i < p->n_bias; i++)
        row[p->bias[i].token] += p->bias[i].bias;
    if (s->count != NULL)
        apply_penalties(s, row);
    *ret_best = argmax(row, s->vocab);
    if (row[*ret_best] == -INFINITY)
        return k3i_fail(err, K3_E_LIMIT, "no token is allowed here (mask, bad_words, logit_bias)");
    return K3_OK;
}

/* ---- candidates --------------------------------------------------------------------------------
 */

/* Larger logit first, then lower id: a total order, so that cuts are well defined. */
static bool before(const float *row, int32_t a, int32_t b)
{
    return row[a] > row[b] || (row[a] == row[b] && a < b);
}

/* The middle one of three ids. */
static int32_t median(const float *row, int32_t a, int32_t b, int32_t c)
{
    if (before(row, a, b) != before(row, a, c))
        return a;
    return before(row, b, a) != before(row, b, c) ? b : c;
}

/* Moves the ids before the pivot to the front of cand[0..n), the pivot behind them; returns its
 * place. */
static int32_t partition(const float *row, int32_t *cand, int32_t n)
{
    int32_t pivot = median(row, cand[0], cand[n / 2], cand[n - 1]), at = 0, place = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = cand[i];
        if (id == pivot) {
            place = i;
        } else if (before(row, id, pivot)) {
            cand[i] = cand[at];
            place = place == at ? i : place;
            cand[at++] = id;
        }
    }
    cand[place] = cand[at];
    cand[at] = pivot;
    return at;
}

/* Moves the best ids to the front: at most `count`, and no more than needed for `mass` of the sum
 * of weights. Returns their number, at least 1. Quickselect: linear in n, whatever is kept. */
static int32_t keep_best(const float *row, const double *weight, int32_t *cand, int32_t n,
                         int32_t count, double mass)
{
    int32_t kept = 0; /* cand[0..kept) stay for sure */
    double sum = 0.0;
    while (n > kept) {
        int32_t i = kept + partition(row, cand + kept, n - kept);
        double left = sum;
        for (int32_t k = kept; k < i; k++)
            left += weight[cand[k]];
        if (i > 0 && (i >= count || left >= mass)) {
            n = i; /* the cut is before the pivot */
        } else {
            kept = i + 1;
            sum = left + weight[cand[i]];
            if (kept >= count || sum >= mass)
                return kept;
        }
    }
    return n;
}

/* top_k, then top_p of what top_k left; `row` is scaled so that its maximum is 0. */
static int32_t cut_top(k3i_sampler *s, const float *row, int32_t n)
{
    const k3i_sampling *p = s->params;
    if (p->top_k > 0 && p->top_k < n)
        n = keep_best(row, s->weight, s->cand, n, p->top_k, INFINITY);
    if (p->top_p >= 1.0f)
        return n;
    /* Of a peaked distribution a few ids carry all the mass that is asked for: look among them
     * only. */
    const float NEAR = -6.0f;
    double sum = 0.0, near = 0.0;
    int32_t n_near = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = s->cand[i];
        sum += s->weight[id];
        if (row[id] < NEAR)
            continue;
        near += s->weight[id];
        s->cand[i] = s->cand[n_near];
        s->cand[n_near++] = id;
    }
    double mass = (double)p->top_p * sum;
    if (near >= mass)
        n = n_near;
    return keep_best(row, s->weight, s->cand, n, n, mass);
}

/* Scales the row to (x - max) / temperature and leaves the ids that min_p, top_k and top_p allow in
 * s->cand; returns their number. `best` is the most probable id. */
static int32_t candidates(k3i_sampler *s, float *row, int32_t best)
{
    const k3i_sampling *p = s->params;
    /* Subtracting first keeps the quotient finite for any temperature. */
    float top = row[best], floor_p = p->min_p > 0.0f ? logf(p->min_p) : -INFINITY;
    /* 30 nats below the best a whole vocabulary weighs 2e-8: nothing that top_p could keep or miss.
     */
    if (p->top_p < 1.0f && floor_p < -30.0f)
        floor_p = -30.0f;
    bool is_cut = p->top_k > 0 || p->top_p < 1.0f;
    int32_t n = 0;
    for (int32_t t = 0; t < s->vocab; t++) {
        float x = (row[t] - top) / p->temperature;
        row[t] = x;
        if (x == -INFINITY || x < floor_p)
            continue;
        s->cand[n++] = t;
        if (is_cut)
            s->weight[t] = exp((double)x);
    }
    return is_cut ? cut_top(s, row, n) : n;
}

k3_status k3i_sample(k3i_sampler *s, float *row, const uint32_t *mask, int32_t position,
                     int32_t *ret_token, k3i_err *err)
{
    int32_t best;
    k3_status status = process(s, row, mask, &best, err);
    if (status != K3_OK)
        return status;
    if (s->params->temperature < K3I_MIN_TEMPERATURE) {
        *ret_token = best;
        return K3_OK;
    }
    int32_t n = candidates(s, row, best);
    k3i_gumbel noise;
    k3i_gumbel_init(&noise, s->params->seed, position, K3_STREAM_TARGET);
    double best_score = k3i_gumbel_at(&noise, best); /* its scaled logit is 0, the largest */
    uint32_t floor_word = k3i_gumbel_floor(best_score);
    for (int32_t i = 0; i < n; i++) {
        int32_t t = s->cand[i];
        double x = (double)row[t];
        /* Most ids end here: no noise, or not this noise, can lift them above the best. */
        if (x + K3I_GUMBEL_MAX < best_score || k3i_gumbel_word(&noise, t) < floor_word)
            continue;
        double score = x + k3i_gumbel_at(&noise, t);
        if (score > best_score || (score == best_score && t < best)) {
            best_score = score;
            best = t;
            floor_word = k3i_gumbel_floor(best_score);
        }
    }
    *ret_token = best;
    return K3_OK;
}

/* ---- logprobs ----------------------------------------------------------------------------------
 */

static int32_t rank_of(const float *row, int32_t vocab, int32_t token)
{
    int32_t rank = 1;
    for (int32_t t = 0; t < vocab; t++)
        rank += t != token && before(row, t, token);
    return rank;
}

void k3i_logprobs(const float *row, int32_t vocab, int32_t token, int32_t n, k3i_logprob *ret)
{
    double top = (double)row[argmax(row, vocab)], sum = 0.0;
    for (int32_t t = 0; t < vocab; t++)
        sum += exp((double)row[t] - top);
    double log_sum = log(sum) + top;
    ret[0] = (k3i_logprob){.token = token,
                           .logprob = (float)((double)row[token] - log_sum),
                           .rank = rank_of(row, vocab, token)};
    /* n is small (20 by default): insertion into a sorted list. */
    int32_t held = 0;
    for (int32_t t = 0; t < vocab && n > 0; t++) {
        if (held == n && !before(row, t, ret[held].token))
            continue;
        int32_t i = held < n ? ++held : n;
        for (; i > 1 && before(row, t, ret[i - 1].token); i--)
            ret[i].token = ret[i - 1].token;
        ret[i].token = t;
    }
    for (int32_t i = 1; i <= held; i++) {
        ret[i].logprob = (float)((double)row[ret[i].token] - log_sum);
        ret[i].rank = i;
    }
}
