/* session.c: see session.h. Pages are handed to the one sequence in order; nothing is shared. */
#include "session.h"

#include "alloc.h"
#include "progress.h"

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

char *k3i_open_options(const k3i_args *args, int32_t max_len, int32_t chunk, int32_t n_seqs,
                       const k3i_spec_config *spec)
{
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    const char *isa = k3i_arg_text(args, "isa");
    if (isa == NULL)
        isa = getenv("K3_ISA");
    bool ok =
        yyjson_mut_obj_add_str(doc, root, "model", k3i_arg_text(args, "model")) &&
        yyjson_mut_obj_add_str(doc, root, "mode", k3i_arg_text(args, "mode")) &&
        yyjson_mut_obj_add_int(doc, root, "threads", k3i_arg_int(args, "threads")) &&
        yyjson_mut_obj_add_int(doc, root, "max_num_seqs", n_seqs) &&
        yyjson_mut_obj_add_bool(doc, root, "fixed_threads", k3i_arg_given(args, "fixed-threads")) &&
        yyjson_mut_obj_add_int(doc, root, "max_num_batched_tokens", chunk);
    if (ok && max_len > 0)
        ok = yyjson_mut_obj_add_int(doc, root, "max_model_len", max_len);
    if (ok && isa != NULL)
        ok = yyjson_mut_obj_add_str(doc, root, "isa", isa);
    if (ok && spec != NULL && spec->model != NULL)
        ok = yyjson_mut_obj_add_str(doc, root, "draft", spec->model) &&
             yyjson_mut_obj_add_int(doc, root, "num_speculative_tokens", spec->tokens);
    char *text = ok ? yyjson_mut_write(doc, YYJSON_WRITE_NOFLAG, NULL) : NULL;
    yyjson_mut_doc_free(doc);
    return text;
}

/* The engine's sentence as an error of ours. */
static k3_status engine_fail(const k3i_session *s, k3_status st, k3i_err *err)
{
    return k3i_fail(err, st, "%s", k3_last_error(s->engine));
}

static k3_status init_kv(k3i_session *s, int32_t max_len, k3i_err *err)
{
    s->n_blocks = (max_len + K3I_CLI_BLOCK_TOKENS - 1) / K3I_CLI_BLOCK_TOKENS;
    s->table = k3i_alloc_array((size_t)s->n_blocks, sizeof *s->table);
    if (s->table == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for %d pages", (int)s->n_blocks);
    for (int32_t i = 0; i < s->n_blocks; i++)
        s->table[i] = i + 1;
    const k3_kv_config kv = {.size = sizeof kv,
                             .num_blocks = s->n_blocks + 1,
                             .block_tokens = K3I_CLI_BLOCK_TOKENS,
                             .n_slots = 1};
    k3_status st = k3_kv_init(s->engine, &kv, NULL);
    return st == K3_OK ? K3_OK : engine_fail(s, st, err);
}

/* What the engine tells (large pictures take a while) passes by as progress. */
static void show_log(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level == 2)
        k3i_progress_note(text, "");
}

k3_status k3i_engine_open(const k3i_args *args, int32_t max_len, int32_t chunk,
                          const k3i_spec_config *spec, k3_engine **ret, k3i_err *err)
{
    return k3i_engine_open_many(args, max_len, chunk, 1, spec, ret, err);
}

k3_status k3i_engine_open_many(const k3i_args *args, int32_t max_len, int32_t chunk, int32_t n_seqs,
                               const k3i_spec_config *spec, k3_engine **ret, k3i_err *err)
{
    char text[K3I_ERR_TEXT];
    char *options = k3i_open_options(args, max_len, chunk, n_seqs, spec);
    if (options == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory");
    k3i_progress_note("loading", k3i_arg_text(args, "model"));
    k3_status st = k3_open(options, show_log, NULL, ret, text, sizeof text);
    k3i_progress_clear();
    free(options);
    return st == K3_OK ? K3_OK : k3i_fail(err, st, "%s", text);
}

k3_status k3i_session_open(const k3i_args *args, int32_t max_len, int32_t chunk, k3i_session *ret,
                           k3i_err *err)
{
    k3i_session s = {0};
    k3_status st = k3i_engine_open(args, max_len, chunk, NULL, &s.engine, err);
    if (st != K3_OK)
        return st;
    s.info.size = sizeof s.info;
    st = k3_query(s.engine, &s.info);
    st = st == K3_OK ? init_kv(&s, max_len, err) : engine_fail(&s, st, err);
    if (st != K3_OK) {
        k3i_session_close(&s);
        return st;
    }
    *ret = s;
    return K3_OK;
}

void k3i_session_close(k3i_session *s)
{
    k3_close(s->engine);
    k3i_free(s->table);
    *s = (k3i_session){0};
}

k3_status k3i_session_restart(k3i_session *s, k3i_err *err)
{
    k3_status st = s->started ? k3_slot_release(s->engine, 0) : K3_OK;
    if (st != K3_OK)
        return engine_fail(s, st, err);
    s->started = false;
    s->n_ctx = 0;
    return K3_OK;
}

k3_status k3i_session_forward(k3i_session *s, const int32_t *ids, int32_t n, bool all_rows,
                              float *logits, k3i_err *err)
{
    const int32_t q_start[2] = {0, n}, slot = 0, no_spec = 0;
    const int32_t slot_op = s->started ? K3_SLOT_KEEP : K3_SLOT_RESET;
    const int32_t used = (s->n_ctx + n + K3I_CLI_BLOCK_TOKENS - 1) / K3I_CLI_BLOCK_TOKENS;
    const int32_t mla_off[2] = {0, used};
    int32_t last = n - 1;
    int32_t *rows = &last;
    k3_status req = K3_OK;
    if (used > s->n_blocks)
        return k3i_fail(err, K3_E_CONTEXT, "%d tokens do not fit", (int)(s->n_ctx + n));
    if (all_rows) {
        rows = k3i_alloc_array((size_t)n, sizeof *rows);
        if (rows == NULL)
            return k3i_fail(err, K3_E_NOMEM, "no memory");
        for (int32_t i = 0; i < n; i++)
            rows[i] = i;
    }
    const k3_batch batch = {
        .size = sizeof batch,
        .n_reqs = 1,
        .n_tokens = n,
        .n_logit_rows = logits == NULL ? 0
                        : all_rows     ? n
                                       : 1,
        .token_ids = ids,
        .q_start = q_start,
        .ctx_len = &s->n_ctx,
        .slot = &slot,
        .slot_op = &slot_op,
        .n_spec = &no_spec,
        .mla_off = mla_off,
        .mla_table = s->table,
        .logit_row = rows,
        .req_status = &req,
    };
    k3_status st = k3_forward(s->engine, &batch, logits, s->info.vocab_size);
    if (rows != &last)
        k3i_free(rows);
    if (st != K3_OK)
        return engine_fail(s, st, err);
    const k3_commit_args commit = {.size = sizeof commit, .n_reqs = 1, .accepted = &n};
    st = k3_commit(s->engine, &commit);
    if (st != K3_OK)
        return engine_fail(s, st, err);
    if (req != K3_OK) {
        s->started = false;
        s->n_ctx = 0;
        return k3i_fail(err, req, "the model computed a value that is not finite");
    }
    s->started = true;
    s->n_ctx += n;
    return K3_OK;
}
