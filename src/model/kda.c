/* kda.c: Kimi Delta Attention, text-model 4.5, one token at a time.
 *
 * Prefill, decode, verification and replay are the same recurrence, so chunking and speculation
 * cannot change a bit. A member of the team owns a head of a sequence for all its rows of the
 * batch, and the head's state stays in its cache. Rows that are final advance the state in place;
 * rows that may be rejected run on a copy and leave k, decay and the f32 correction e behind
 * (text-model 5.3), from which k3i_kda_commit repeats the very updates. */
#include "parts.h"

#include <math.h>
#include <string.h>

static size_t align_up(size_t n)
{
    return (n + K3I_ALIGN - 1) / K3I_ALIGN * K3I_ALIGN;
}

void k3i_kda_layout_init(k3i_kda_layout *lay, const k3i_config *cfg, size_t act_bytes,
                         size_t max_spec)
{
    size_t d = cfg->kda_head_dim, n_hist = cfg->conv_taps - 1;
    *lay = (k3i_kda_layout){.n_layers = cfg->n_kda_layers,
                            .n_heads = cfg->kda_heads,
                            .d = d,
                            .n_hist = n_hist,
                            .max_spec = max_spec,
                            .S_bytes = d * d * sizeof(float),
                            .hist_bytes = 3 * n_hist * d * act_bytes};
    lay->head_bytes = align_up(lay->S_bytes + lay->hist_bytes);
    lay->record_bytes = align_up(3 * d * sizeof(float) + 3 * d * act_bytes);
    lay->state_bytes = lay->n_layers * lay->n_heads * lay->head_bytes;
    lay->slot_record_bytes = lay->n_layers * lay->n_heads * max_spec * lay->record_bytes;
}

void k3i_kda_ws_take(k3i_kda_ws *ws, k3i_bump *b, const k3i_config *cfg, size_t T, size_t act)
{
    size_t n = cfg->kda_heads, d = cfg->kda_head_dim;
    ws->q = k3i_bump_take(b, T * n * d, sizeof(float));
    ws->k = k3i_bump_take(b, T * n * d, sizeof(float));
    ws->v = k3i_bump_take(b, T * n * d, sizeof(float));
    ws->f = k3i_bump_take(b, T * n * d, sizeof(float));
    ws->gate = k3i_bump_take(b, T * n * d, sizeof(float));
    ws->beta = k3i_bump_take(b, T * n, sizeof(float));
    ws->fa = k3i_bump_take(b, T * d, sizeof(float));
    ws->fa_act = k3i_bump_take(b, T * d, act);
    ws->o = k3i_bump_take(b, T * n * d, act);
}

/* One head's working set: where the rows of its convolutions are, a state, the history, and the
 * rows of a chunk. */
size_t k3i_kda_scratch(const k3i_config *cfg)
{
    size_t d = cfg->kda_head_dim;
    size_t n_hist = cfg->conv_taps - 1;
    return align_up(3 * (n_hist + K3I_KDA_TOKENS) * sizeof(float *)) +
           (d * d + (3 * n_hist + 1 + 6 * K3I_KDA_TOKENS) * d) * sizeof(float);
}

void k3i_snap_write(const k3i_snap_pages *s, size_t offset, const void *src, size_t bytes)
{
    const char *from = src;
    while (bytes > 0) {
        size_t page = offset / s->page_bytes, in = offset % s->page_bytes;
        size_t n = s->page_bytes - in < bytes ? s->page_bytes - in : bytes;
        memcpy(s->pool + (size_t)s->block[page] * s->page_bytes + in, from, n);
        from += n;
        offset += n;
        bytes -= n;
    }
}

void k3i_snap_read(const k3i_snap_pages *s, size_t offset, void *dst, size_t bytes)
{
    char *to = dst;
    while (bytes > 0) {
        size_t page = offset / s->page_bytes, in = offset % s->page_bytes;
        size_t n = s->page_bytes - in < bytes ? s->page_bytes - in : bytes;
        memcpy(to, s->pool + (size_t)s->block[page] * s->page_bytes + in, n);
        to += n;
        offset += n;
        bytes -= n;
    }
}

typedef struct {
    const k3i_text *m;
    const k3i_run *run;
    const k3i_step *step;
    const k3i_kda_weights *w;
    const k3i_layer_extra *extra;
} job;

/* What one head of one sequence works on. */
typedef struct {
    const job *j;
    const k3i_seq *seq;
    size_t head;
    const float *raw[3]; /* q, k, v of the sequence's first row, this head */
    size_t stride;       /* n d */
    char *state;         /* head state in the slot */
    char *record;        /* first row record */
    const float **rows;  /* [3, n_hist + rows of a chunk]; this and what follows is scratch */
    float *S_spec, *hist, *y;
    float *q, *k, *v, *decay, *e, *o; /* [K3I_KDA_TOKENS, d] */
} head_work;

static const k3i_kda_layout *layout(const head_work *h)
{
    return &h->j->m->kda;
}

/* Raw row `t` of stream x (0 q, 1 k, 2 v): t >= 0 is of this batch, earlier ones are the history.
 */
static const float *raw_row(const head_work *h, size_t x, ptrdiff_t t)
{
    const k3i_kda_layout *lay = layout(h);
    if (t >= 0)
        return h->raw[x] + (size_t)t * h->stride;
    return h->hist + (x * lay->n_hist + (size_t)(t + (ptrdiff_t)lay->n_hist)) * lay->d;
}

/* The slot's history becomes that after row t; the old one lives on in h->hist. */
static void store_history(const head_work *h, ptrdiff_t t)
{
    const k3i_kda_layout *lay = layout(h);
    const k3i_run *run = h->j->run;
    char *to = h->state + lay->S_bytes;
    size_t n_old = (size_t)(t + 1) < lay->n_hist ? lay->n_hist - (size_t)(t + 1) : 0;
    ptrdiff_t first = t + 1 - (ptrdiff_t)lay->n_hist;
    for (size_t x = 0; x < 3; x++) {
        void *rows = k3i_act_at(run, to, x * lay->n_hist * lay->d);
        if (n_old > 0) /* side by side */
            k3i_act_store(run, rows, raw_row(h, x, first), n_old * lay->d);
        for (size_t i = n_old; i < lay->n_hist; i++)
            k3i_act_store(run, k3i_act_at(run, rows, i * lay->d),
                          raw_row(h, x, first + (ptrdiff_t)i), lay->d);
    }
}

static void take_snapshots(const head_work *h, size_t seq_index, size_t pos)
{
    const k3i_step *step = h->j->step;
    const k3i_kda_layout *lay = layout(h);
    size_t offset = (h->j->extra->kind_index * lay->n_heads + h->head) * lay->head_bytes;
    for (size_t i = 0; i < step->n_snaps; i++) {
        const k3i_snap *s = &step->snaps[i];
        if (s->seq != seq_index || s->pos != pos)
            continue;
        store_history(h, (ptrdiff_t)(pos - h->seq->ctx) - 1);
        k3i_snap_write(&s->pages, offset, h->state, lay->head_bytes);
    }
}

/* Record number `spec` from row t, which is row i of the chunk in scratch. */
static void record_row(const head_work *h, size_t t, size_t spec, size_t i)
{
    const k3i_kda_layout *lay = layout(h);
    const k3i_run *run = h->j->run;
    size_t d = lay->d;
    float *f = (void *)(h->record + spec * lay->record_bytes);
    memcpy(f, h->k + i * d, d * sizeof(float));
    memcpy(f + d, h->decay + i * d, d * sizeof(float));
    memcpy(f + 2 * d, h->e + i * d, d * sizeof(float));
    for (size_t x = 0; x < 3; x++)
        k3i_act_store(run, k3i_act_at(run, f + 3 * d, x * d), raw_row(h, x, (ptrdiff_t)t), d);
}

/* Convolution, normalisation, gate and recurrence of n <= K3I_KDA_TOKENS rows from t on state S. */
static void head_chunk(const head_work *h, size_t t, size_t n, float *S)
{
    const job *j = h->j;
    const k3i_ops *op = j->run->op;
    const k3i_config *cfg = j->m->cfg;
    const k3i_kda_ws *ws = &j->m->ws->kda;
    size_t d = cfg->kda_head_dim, head = h->head, row = h->seq->from + t;
    size_t at = row * h->stride + head * d, n_hist = cfg->conv_taps - 1, span = n_hist + n;
    for (size_t x = 0; x < 3; x++) {
        for (size_t i = 0; i < span; i++)
            h->rows[x * span + i] = raw_row(h, x, (ptrdiff_t)(t + i) - (ptrdiff_t)n_hist);
    }
    op->kda_in(h->q, h->k, h->v, h->decay, h->rows, j->extra->conv + head * 3 * cfg->conv_taps * d,
               ws->f + at, h->stride, j->w->dt_bias + head * d, j->extra->exp_a[head],
               cfg->gate_lower_bound, n, cfg->conv_taps, d, j->run->bf16);
    op->kda_step(S, h->o, h->e, h->q, h->k, h->v, h->decay, d,
                 ws->beta + row * cfg->kda_heads + head, cfg->kda_heads, n, d, d);
    for (size_t i = 0; i < n; i++, at += h->stride) {
        op->kda_out(h->y, h->o + i * d, ws->gate + at, j->w->o_norm, d, cfg->rms_norm_eps,
                    j->run->bf16);
        k3i_act_store(j->run, k3i_act_at(j->run, ws->o, at), h->y, d);
    }
}

/* Rows from `t` that can run before the next snapshot, the last final row, or the end of the
 * scratch. */
static size_t chunk_rows(const head_work *h, size_t seq_index, size_t t, size_t end)
{
    const k3i_step *step = h->j->step;
    size_t n = end - t < K3I_KDA_TOKENS ? end - t : K3I_KDA_TOKENS;
    for (size_t i = 0; i < step->n_snaps; i++) {
        size_t pos = step->snaps[i].pos;
        if (step->snaps[i].seq == seq_index && pos > h->seq->ctx + t && pos < h->seq->ctx + t + n)
            n = pos - h->seq->ctx - t;
    }
    return n;
}

static void head_rows(const head_work *h, size_t seq_index)
{
    const k3i_kda_layout *lay = layout(h);
    const k3i_seq *seq = h->seq;
    size_t n_final = seq->n_rows - seq->n_spec, n;
    float *S = (void *)h->state;
    k3i_act_load(h->j->run, h->hist, h->state + lay->S_bytes, 3 * lay->n_hist * lay->d);
    for (size_t t = 0; t < n_final; t += n) {
        n = chunk_rows(h, seq_index, t, n_final);
        head_chunk(h, t, n, S);
        take_snapshots(h, seq_index, seq->ctx + t + n);
    }
    if (n_final > 0)
        store_history(h, (ptrdiff_t)n_final - 1);
    if (seq->n_spec == 0)
        return;
    memcpy(h->S_spec, S, lay->S_bytes);
    for (size_t t = n_final; t < seq->n_rows; t += n) {
        n = seq->n_rows - t < K3I_KDA_TOKENS ? seq->n_rows - t : K3I_KDA_TOKENS;
        head_chunk(h, t, n, h->S_spec);
        for (size_t i = 0; i < n; i++)
            record_row(h, t + i, t + i - n_final, i);
    }
}

static void take_scratch(head_work *h, char *scratch)
{
    const k3i_kda_layout *lay = layout(h);
    size_t d = lay->d, rows = K3I_KDA_TOKENS * d;
    h->rows = (void *)scratch;
    h->S_spec = (void *)(scratch + align_up(3 * (lay->n_hist + K3I_KDA_TOKENS) * sizeof(float *)));
    h->hist = h->S_spec + d * d;
    h->y = h->hist + 3 * lay->n_hist * d;
    h->q = h->y + d;
    h->k = h->q + rows;
    h->v = h->k + rows;
    h->decay = h->v + rows;
    h->e = h->decay + rows;
    h->o = h->e + rows;
}

static head_work head_of(const job *j, size_t head, const k3i_seq *seq, char *scratch)
{
    const k3i_kda_layout *lay = &j->m->kda;
    const k3i_kda_ws *ws = &j->m->ws->kda;
    size_t C = lay->n_heads * lay->d, at = seq->from * C + head * lay->d;
    size_t index = j->extra->kind_index * lay->n_heads + head;
    head_work h = {.j = j,
                   .seq = seq,
                   .head = head,
                   .raw = {ws->q + at, ws->k + at, ws->v + at},
                   .stride = C,
                   .state = seq->state + index * lay->head_bytes,
                   .record = seq->records + index * lay->max_spec * lay->record_bytes};
    take_scratch(&h, scratch);
    return h;
}

/* Asks for a state while another head is computed: the recurrence alone is too short to hide the
 * way from memory. */
static void ask_state(const head_work *h)
{
    for (size_t i = 0; i < layout(h)->head_bytes; i += K3I_ALIGN)
        __builtin_prefetch(h->state + i, 1, 2);
}

/* Heads of sequences are dealt out by rows: a task belongs to the member in whose share of all
 * (head, row) pairs it begins; to a member that works alone, if its rows are. */
static void heads_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    size_t from, to, pairs_of_head = j->run->n_parts > 0 ? 0 : j->step->n_rows;
    char *scratch = j->run->scratch + i * j->run->scratch_bytes;
    k3i_team_split(pairs_of_head > 0 ? j->m->kda.n_heads * pairs_of_head : j->step->n_rows, 1, i, n,
                   &from, &to);
    head_work now = {0};
    for (size_t head = 0; head < j->m->kda.n_heads; head++) {
        for (size_t s = 0; s < j->step->n_seqs; s++) {
            const k3i_seq *seq = &j->step->seqs[s];
            size_t start = head * pairs_of_head + seq->from;
            if (start < from || start >= to)
                continue;
            head_work next = head_of(j, head, seq, scratch);
            ask_state(&next);
            if (now.seq != NULL)
                head_rows(&now, (size_t)(now.seq - j->step->seqs));
            now = next;
        }
    }
    if (now.seq != NULL)
        head_rows(&now, (size_t)(now.seq - j->step->seqs));
}

/* Packs the input of the decay's second product and takes beta's sigmoid. */
static void between_member(void *arg, size_t i, size_t n)
{
    const job *j = arg;
    const k3i_kda_ws *ws = &j->m->ws->kda;
    size_t d = j->m->cfg->kda_head_dim, heads = j->m->cfg->kda_heads, from, to;
    k3i_team_split(j->step->n_rows, 1, i, n, &from, &to);
    float *beta = ws->beta + from * heads;
    j->run->op->sigmoid(beta, beta, (to - from) * heads, 0);
    k3i_act_store(j->run, k3i_act_at(j->run, ws->fa_act, from * d), ws->fa + from * d,
                  (to - from) * d);
}

void k3i_kda_in(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    const k3i_kda_weights *w = &m->w->layers[layer].kda;
    k3i_kda_ws *ws = &m->ws->kda;
    size_t T = step->n_rows, H = cfg->hidden_size, n = cfg->kda_heads, d = cfg->kda_head_dim;
    const void *x = m->ws->x;
    const k3i_item in[] = {
        {.x = x, .w = w->q_proj, .n_out = n * d, .k = H, .y = ws->q},
        {.x = x, .w = w->k_proj, .n_out = n * d, .k = H, .y = ws->k},
        {.x = x, .w = w->v_proj, .n_out = n * d, .k = H, .y = ws->v},
        {.x = x, .w = w->g_proj, .n_out = n * d, .k = H, .y = ws->gate},
        {.x = x, .w = w->f_a_proj, .n_out = d, .k = H, .y = ws->fa},
        {.x = x, .w = w->b_proj, .n_out = n, .k = H, .y = ws->beta},
    };
    k3i_linear(run, T, in, sizeof in / sizeof in[0]);
    job j = {.m = m, .run = run, .step = step};
    k3i_run_team(run, between_member, &j, T * d);
    const k3i_item decay = {.x = ws->fa_act, .w = w->f_b_proj, .n_out = n * d, .k = d, .y = ws->f};
    k3i_linear(run, T, &decay, 1);
}

void k3i_kda_mix(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    size_t d = m->cfg->kda_head_dim;
    job j = {
        .m = m, .run = run, .step = step, .w = &m->w->layers[layer].kda, .extra = &m->extra[layer]};
    k3i_run_team(run, heads_member, &j, step->n_rows * m->cfg->kda_heads * d * d * 4);
}

void k3i_kda_out(k3i_text *m, k3i_run *run, const k3i_step *step, size_t layer)
{
    const k3i_config *cfg = m->cfg;
    const k3i_item out = {.x = m->ws->kda.o,
                          .w = m->w->layers[layer].kda.o_proj,
                          .n_out = cfg->hidden_size,
                          .k = cfg->kda_heads * cfg->kda_head_dim,
                          .y = m->ws->a};
    k3i_linear(run, step->n_rows, &out, 1);
}

/* ---- commit ------------------------------------------------------------------------------------
 */

typedef struct {
    const k3i_text *m;
    const k3i_run *run;
    const k3i_accept *a;
    size_t n;
    const k3i_snap *snaps;
    size_t n_snaps;
} commit_job;

/* The history after `rows` accepted rows, from the old one (a copy) and the records' raw rows. */
static void commit_history(const commit_job *j, char *state, const char *record, const char *old,
                           size_t rows)
{
    const k3i_kda_layout *lay = &j->m->kda;
    size_t row_bytes = lay->d * j->run->act_bytes;
    char *to = state + lay->S_bytes;
    for (size_t x = 0; rows > 0 && x < 3; x++) {
        for (size_t i = 0; i < lay->n_hist; i++) {
            const char *from;
            if (rows + i < lay->n_hist) {
                from = old + (x * lay->n_hist + rows + i) * row_bytes;
            } else {
                size_t row = rows + i - lay->n_hist;
                from =
                    record + row * lay->record_bytes + 3 * lay->d * sizeof(float) + x * row_bytes;
            }
            memcpy(to + (x * lay->n_hist + i) * row_bytes, from, row_bytes);
        }
    }
}

/* Head `index` (layer * heads + head) of accepted sequence s. old: scratch for a history. */
static void commit_head(const commit_job *j, size_t s, size_t index, char *old)
{
    const k3i_kda_layout *lay = &j->m->kda;
    const k3i_accept *a = &j->a[s];
    size_t d = lay->d, first = a->seq->ctx + a->seq->n_rows - a->seq->n_spec;
    char *state = a->seq->state + index * lay->head_bytes;
    const char *record = a->seq->records + index * lay->max_spec * lay->record_bytes;
    if (a->n_accepted > 0)
        memcpy(old, state + lay->S_bytes, lay->hist_bytes);
    for (size_t rows = 0, next;; rows = next) {
        next = a->n_accepted;
        for (size_t i = 0; i < j->n_snaps; i++) {
            size_t at = j->snaps[i].pos - first; /* wraps for earlier ones */
            if (j->snaps[i].seq != s)
                continue;
            if (at > rows && at < next)
                next = at;
            if (at != rows)
                continue;
            commit_history(j, state, record, old, rows);
            k3i_snap_write(&j->snaps[i].pages, index * lay->head_bytes, state, lay->head_bytes);
        }
        if (rows == a->n_accepted)
            break;
        const float *f = (const void *)(record + rows * lay->record_bytes);
        j->run->op->kda_replay((void *)state, f, f + d, f + 2 * d,
                               lay->record_bytes / sizeof(float), next - rows, d, d);
    }
    commit_history(j, state, record, old, a->n_accepted);
}

static void commit_member(void *arg, size_t i, size_t n)
{
    const commit_job *j = arg;
    const k3i_kda_layout *lay = &j->m->kda;
    size_t from, to;
    k3i_team_split(lay->n_layers * lay->n_heads, 1, i, n, &from, &to);
    for (size_t index = from; index < to; index++) {
        for (size_t s = 0; s < j->n; s++)
            commit_head(j, s, index, j->run->scratch + i * j->run->scratch_bytes);
    }
}

void k3i_kda_commit(k3i_text *m, k3i_run *run, const k3i_accept *a, size_t n, const k3i_snap *snaps,
                    size_t n_snaps)
{
    commit_job j = {.m = m, .run = run, .a = a, .n = n, .snaps = snaps, .n_snaps = n_snaps};
    size_t work = 0;
    for (size_t i = 0; i < n; i++)
        work += a[i].n_accepted * m->kda.state_bytes / sizeof(float);
    if (work > 0 || n_snaps > 0)
        k3i_run_team(run, commit_member, &j, work + n_snaps * m->kda.state_bytes);
}
