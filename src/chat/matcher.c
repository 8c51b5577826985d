/* matcher.c: where a sequence stands in its grammar, and which tokens may come next.
 *
 * A place is a set of threads (automaton.c). Frames are never changed once made, so threads share
 * them; those that none needs any more are dropped now and then.
 *
 * A mask is made of three parts: prepared masks for threads in the middle of text, a walk over the
 * tokens that hold a quote or backslash for those in JSON text, and a walk over the whole trie for
 * the others, which cuts off subtrees at the first impossible byte. */
#include "grammar_internal.h"

#include <string.h>

typedef struct {
    k3i_thread t[K3I_MAX_THREADS];
    uint32_t n;
} place;

struct k3i_matcher {
    const k3i_vocab *vocab;
    k3i_machine m;
    place now;
    size_t n_live;    /* frames that were needed at the last clean-up */
    k3i_threads walk; /* sets of threads, one behind the other, by depth in the trie */
    uint32_t *memo;   /* [n_word] the last mask, valid for the place `memo_place` */
    place memo_place;
    uint32_t memo_cost; /* the largest cost behind a token of the memo */
    bool has_memo;
};

static k3_status no_memory(k3i_err *err)
{
    return k3i_fail(err, K3_E_NOMEM, "out of memory (grammar matcher)");
}

/* ---- moving --------------------------------------------------------------------------------- */

/* Replaces walk[from..n) by what follows on `sym`; returns false when nothing does. */
static bool step_set(k3i_matcher *m, size_t from, uint32_t sym)
{
    size_t end = m->walk.n;
    for (size_t i = from; i < end; i++) {
        k3i_thread t = m->walk.t[i];
        k3i_g_step(&m->m, &t, sym, &m->walk, end);
    }
    size_t n = m->walk.n - end;
    memmove(m->walk.t + from, m->walk.t + end, n * sizeof *m->walk.t);
    m->walk.n = from + n;
    return n > 0;
}

/* The symbol of a structural token, or K3I_SYM_END for other special ids. */
static uint32_t symbol_of(const k3i_tok *tok, int32_t id)
{
    const k3i_tok_ids *s = k3i_tok_special_ids(tok);
    return id == s->open         ? K3I_SYM_OPEN
           : id == s->close      ? K3I_SYM_CLOSE
           : id == s->sep        ? K3I_SYM_SEP
           : id == s->end_of_msg ? K3I_SYM_END_OF_MSG
                                 : K3I_SYM_END;
}

/* Puts threads at walk[0..n). */
static bool load_walk(k3i_matcher *m, const k3i_thread *t, size_t n)
{
    if (m->walk.cap < n) {
        k3i_thread *p = k3i_realloc(m->walk.t, 4096 * sizeof *p);
        if (p == NULL) {
            m->m.is_out_of_memory = true;
            return false;
        }
        m->walk.t = p;
        m->walk.cap = 4096;
    }
    if (n > 0)
        memcpy(m->walk.t, t, n * sizeof *t);
    m->walk.n = n;
    return true;
}

static bool step_token(k3i_matcher *m, int32_t id)
{
    const k3i_tok *tok = m->vocab->tok;
    if (!load_walk(m, m->now.t, m->now.n))
        return false;
    if (k3i_tok_is_special(tok, id)) {
        uint32_t sym = symbol_of(tok, id);
        return sym != K3I_SYM_END && step_set(m, 0, sym);
    }
    size_t n;
    const uint8_t *bytes = k3i_tok_bytes(tok, id, &n);
    bool ok = bytes != NULL;
    for (size_t i = 0; ok && i < n; i++)
        ok = step_set(m, 0, bytes[i]);
    return ok;
}

/* Drops frames that no thread leads to. A frame lies behind the one above it, so one sweep from
 * the back marks them all and one from the front moves them together. */
static void clean_frames(k3i_matcher *m)
{
    size_t n = m->m.n_frame, kept = 0;
    if (n < 4096 || n < 2 * m->n_live)
        return;
    uint32_t *moved = k3i_alloc_zero(n * sizeof *moved);
    if (moved == NULL)
        return; /* not needed, only thrifty */
    place *p = &m->now;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->t[i].up != 0)
            moved[p->t[i].up - 1] = 1;
    }
    for (size_t i = n; i-- > 0;) {
        if (moved[i] != 0 && m->m.frame[i].thread.up != 0)
            moved[m->m.frame[i].thread.up - 1] = 1;
    }
    for (size_t i = 0; i < n; i++) {
        if (moved[i] == 0)
            continue;
        k3i_frame f = m->m.frame[i];
        if (f.thread.up != 0)
            f.thread.up = moved[f.thread.up - 1];
        m->m.frame[kept++] = f;
        moved[i] = (uint32_t)kept;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->t[i].up != 0)
            p->t[i].up = moved[p->t[i].up - 1];
    }
    m->m.n_frame = m->n_live = kept;
    m->has_memo = false;
    k3i_free(moved);
}

/* Makes walk[0..n) the place. */
static void set_place(k3i_matcher *m)
{
    m->now.n = (uint32_t)m->walk.n;
    memcpy(m->now.t, m->walk.t, m->walk.n * sizeof *m->walk.t);
}

k3_status k3i_matcher_advance(k3i_matcher *m, int32_t id, k3i_err *err)
{
    size_t n_frame = m->m.n_frame, n_word = m->m.n_word;
    bool ok = step_token(m, id);
    if (m->m.is_out_of_memory || !ok) {
        bool is_memory = m->m.is_out_of_memory;
        m->m.is_out_of_memory = false;
        m->m.n_frame = n_frame;
        m->m.n_word = n_word;
        return is_memory ? no_memory(err)
                         : k3i_fail(err, K3_E_ARG, "token %d does not fit the grammar here", id);
    }
    set_place(m);
    clean_frames(m);
    return K3_OK;
}

static uint32_t set_cost(const k3i_matcher *m, const k3i_thread *t, size_t n)
{
    uint32_t best = K3I_NEVER;
    for (size_t i = 0; i < n; i++) {
        uint32_t cost = k3i_g_thread_cost(&m->m, &t[i]);
        best = cost < best ? cost : best;
    }
    return best;
}

size_t k3i_matcher_min_tokens(k3i_matcher *m)
{
    return set_cost(m, m->now.t, m->now.n);
}

bool k3i_matcher_is_done(const k3i_matcher *m)
{
    const place *p = &m->now;
    return p->n > 0 && k3i_g_thread_is_end(&m->m, &p->t[0]);
}

/* ---- masks ---------------------------------------------------------------------------------- */

static void set_bit(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << (id % 32);
}

/* A token leads to walk[from..n). Allows it if the answer can still end within `left` further
 * tokens. */
static void allow(k3i_matcher *m, size_t from, int32_t id, uint32_t left, uint32_t *mask,
                  uint32_t *max_cost)
{
    uint32_t cost = set_cost(m, m->walk.t + from, m->walk.n - from);
    if (cost > *max_cost)
        *max_cost = cost;
    if (cost <= left)
        set_bit(mask, id);
}

/* Walks the trie with the threads in walk[0..n). The set of a node lies behind that of its parent;
 * frames made below a node are dropped when the walk leaves it. */
static void walk_trie(k3i_matcher *m, const k3i_trie *trie, uint32_t left, uint32_t *mask,
                      uint32_t *max_cost)
{
    size_t begin[K3I_TOK_MAX_BYTES + 2], n_frame[K3I_TOK_MAX_BYTES + 1],
        n_word[K3I_TOK_MAX_BYTES + 1];
    begin[0] = 0;
    begin[1] = m->walk.n;
    n_frame[0] = m->m.n_frame;
    n_word[0] = m->m.n_word;
    for (uint32_t i = 0; i < trie->n && !m->m.is_out_of_memory;) {
        size_t d = trie->depth[i], end = begin[d + 1];
        m->walk.n = end;
        m->m.n_frame = n_frame[d];
        m->m.n_word = n_word[d];
        for (size_t k = begin[d]; k < end; k++) {
            k3i_thread t = m->walk.t[k];
            k3i_g_step(&m->m, &t, trie->byte[i], &m->walk, end);
        }
        if (m->walk.n == end) {
            i = trie->after[i];
            continue;
        }
        if (trie->id[i] >= 0)
            allow(m, end, trie->id[i], left, mask, max_cost);
        begin[d + 2] = m->walk.n;
        if (d + 1 <= K3I_TOK_MAX_BYTES - 1) {
            n_frame[d + 1] = m->m.n_frame;
            n_word[d + 1] = m->m.n_word;
        }
        i++;
    }
    m->m.n_frame = n_frame[0];
    m->m.n_word = n_word[0];
}

static void or_mask(uint32_t *mask, const uint32_t *with, const uint32_t *without,
                    const uint32_t *nor, size_t n_word)
{
    for (size_t i = 0; i < n_word; i++)
        mask[i] |= with[i] & ~(without != NULL ? without[i] : 0) & ~(nor != NULL ? nor[i] : 0);
}

/* Allows the text tokens of a thread in the middle of text, where at most `chars` characters may
 * follow; with `whole` only those that end with a character. */
static void allow_text(const k3i_vocab *v, int kind, uint32_t chars, bool whole, uint32_t *mask)
{
    if (kind == K3I_TEXT_FREE) {
        or_mask(mask, v->every, NULL, NULL, v->n_word);
        return;
    }
    uint32_t k = chars == K3I_NO_MAX       ? K3I_TEXT_CHARS + 1
                 : chars <= K3I_TEXT_CHARS ? chars
                                           : K3I_TEXT_CHARS;
    const uint32_t *with = kind == K3I_TEXT_RAW ? v->raw[k] : v->json[k];
    or_mask(mask, with, kind == K3I_TEXT_ATTRIBUTE ? v->ampersand : NULL, whole ? v->cut : NULL,
            v->n_word);
    for (size_t i = 0; k == K3I_TEXT_CHARS && i < v->n_long; i++) {
        const k3i_long_token *t = &v->long_token[i];
        if (t->n_char <= chars && (kind == K3I_TEXT_RAW || t->is_plain) &&
            !(whole && (v->cut[t->id / 32] >> (t->id % 32) & 1)))
            set_bit(mask, t->id);
    }
}

/* Structural tokens. */
static void allow_symbols(k3i_matcher *m, uint32_t left, uint32_t *mask, uint32_t *max_cost)
{
    const k3i_tok_ids *s = k3i_tok_special_ids(m->vocab->tok);
    const int32_t ids[] = {s->open, s->close, s->sep, s->end_of_msg};
    size_t n_frame = m->m.n_frame, n_word = m->m.n_word;
    for (uint32_t i = 0; i < 4; i++) {
        if (load_walk(m, m->now.t, m->now.n) && step_set(m, 0, K3I_SYM_OPEN + i))
            allow(m, 0, ids[i], left, mask, max_cost);
        m->m.n_frame = n_frame;
        m->m.n_word = n_word;
    }
}

/* Writes the mask for `left` further tokens after the next one; returns the largest cost met,
 * K3I_NEVER if a text token was held back. */
static uint32_t make_mask(k3i_matcher *m, uint32_t left, uint32_t *mask)
{
    const place *p = &m->now;
    k3i_thread full[K3I_MAX_THREADS], quoted[K3I_MAX_THREADS];
    size_t n_full = 0, n_quoted = 0;
    uint32_t max_cost = 0;
    memset(mask, 0, m->vocab->n_word * sizeof *mask);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t chars, missing, cost = k3i_g_thread_cost(&m->m, &p->t[i]);
        int kind = k3i_g_thread_text(&m->m, &p->t[i], &chars, &missing);
        if (kind == K3I_TEXT_NONE) {
            full[n_full++] = p->t[i];
            continue;
        }
        if (kind == K3I_TEXT_JSON || kind == K3I_TEXT_ATTRIBUTE || kind == K3I_TEXT_PATTERN_JSON)
            quoted[n_quoted++] = p->t[i];
        if (kind == K3I_TEXT_PATTERN || kind == K3I_TEXT_PATTERN_JSON) {
            k3i_g_pattern_tokens(&m->m, &p->t[i], &m->vocab->all, left, mask, &max_cost);
            continue;
        }
        /* Text does not raise the cost, except by an unfinished character (at most three bytes),
         * and lowers it only while characters are missing. */
        bool is_ample = cost <= left && left - cost >= 3;
        if (is_ample || cost <= left || (cost == left + 1 && missing > 0))
            allow_text(m->vocab, kind, chars, !is_ample, mask);
        uint32_t met = is_ample ? cost + 3 : K3I_NEVER;
        max_cost = met > max_cost ? met : max_cost;
    }
    allow_symbols(m, left, mask, &max_cost);
    if (n_quoted > 0 && load_walk(m, quoted, n_quoted))
        walk_trie(m, &m->vocab->quoted, left, mask, &max_cost);
    if (n_full > 0 && load_walk(m, full, n_full))
        walk_trie(m, &m->vocab->all, left, mask, &max_cost);
    return max_cost;
}

static bool is_zero(const uint32_t *mask, size_t n_word)
{
    for (size_t i = 0; i < n_word; i++) {
        if (mask[i] != 0)
            return false;
    }
    return true;
}

k3_status k3i_matcher_mask(k3i_matcher *m, size_t remaining, uint32_t *mask, k3i_err *err)
{
    const size_t n_word = m->vocab->n_word, bytes = n_word * sizeof *mask;
    const place *p = &m->now;
    uint32_t left = remaining == 0                 ? 0
                    : remaining - 1 < K3I_COST_MAX ? (uint32_t)(remaining - 1)
                                                   : K3I_COST_MAX;
    if (k3i_matcher_is_done(m)) {
        memset(mask, 0, bytes);
        set_bit(mask, k3i_tok_special_ids(m->vocab->tok)->end_of_msg);
        return K3_OK;
    }
    if (m->has_memo && m->memo_cost <= left && p->n == m->memo_place.n &&
        memcmp(p->t, m->memo_place.t, p->n * sizeof *p->t) == 0) {
        memcpy(mask, m->memo, bytes);
        return K3_OK;
    }
    /* Too late to finish in time: then at least every token brings the end nearer. */
    uint32_t cost = set_cost(m, p->t, p->n);
    if (cost > left)
        left = cost - 1;
    uint32_t max_cost = make_mask(m, left, mask);
    if (is_zero(mask, n_word))
        max_cost = make_mask(m, K3I_NEVER - 1, mask);
    if (m->m.is_out_of_memory) {
        m->m.is_out_of_memory = false;
        m->has_memo = false;
        return no_memory(err);
    }
    m->has_memo = max_cost <= left; /* then no token was held back */
    if (m->has_memo) {
        m->memo_place = *p;
        m->memo_cost = max_cost;
        memcpy(m->memo, mask, bytes);
    }
    return K3_OK;
}

/* ---- object --------------------------------------------------------------------------------- */

k3_status k3i_matcher_new(const k3i_vocab *vocab, const k3i_grammar *grammar, k3i_matcher **ret,
                          k3i_err *err)
{
    k3i_matcher *m = k3i_alloc_zero(sizeof *m);
    if (m == NULL)
        return no_memory(err);
    m->vocab = vocab;
    m->m.g = grammar;
    m->memo = k3i_alloc_array(vocab->n_word, sizeof *m->memo);
    bool ok = m->memo != NULL && load_walk(m, NULL, 0);
    bool fits = true;
    if (ok)
        k3i_g_start(&m->m, &m->walk);
    for (size_t i = 0; ok && fits && i < grammar->prefix_bytes; i++)
        fits = step_set(m, 0, (uint8_t)grammar->prefix[i]);
    if (!ok || m->m.is_out_of_memory || !fits) {
        bool is_memory = !ok || m->m.is_out_of_memory;
        k3i_matcher_free(m);
        return is_memory
                   ? no_memory(err)
                   : k3i_fail(
                         err, K3_E_FORMAT,
                         "the content of the partial message does not fit what the answer must be");
    }
    set_place(m);
    *ret = m;
    return K3_OK;
}

static void *copy_of(const void *p, size_t bytes)
{
    void *q = k3i_alloc(bytes);
    if (q != NULL && bytes > 0)
        memcpy(q, p, bytes);
    return q;
}

k3_status k3i_matcher_fork(const k3i_matcher *m, k3i_matcher **ret, k3i_err *err)
{
    k3i_matcher *f = copy_of(m, sizeof *m);
    if (f == NULL)
        return no_memory(err);
    f->has_memo = false;
    f->walk = f->m.eps = (k3i_threads){0};
    f->m.cap_frame = m->m.n_frame;
    f->m.cap_word = m->m.n_word;
    f->m.frame = copy_of(m->m.frame, m->m.n_frame * sizeof *m->m.frame);
    f->m.word = copy_of(m->m.word, m->m.n_word * sizeof *m->m.word);
    f->memo = k3i_alloc_array(m->vocab->n_word, sizeof *f->memo);
    if (f->m.frame == NULL || f->m.word == NULL || f->memo == NULL) {
        k3i_matcher_free(f);
        return no_memory(err);
    }
    *ret = f;
    return K3_OK;
}

void k3i_matcher_free(k3i_matcher *m)
{
    if (m == NULL)
        return;
    k3i_free(m->memo);
    k3i_free(m->walk.t);
    k3i_free(m->m.frame);
    k3i_free(m->m.word);
    k3i_free(m->m.eps.t);
    k3i_free(m);
}
