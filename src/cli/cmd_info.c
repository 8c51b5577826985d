/* cmd_info.c: what a checkpoint is, the bytes that a token moves, and the memory that serving it
 * takes. Reads headers and configuration; opens the engine for the plan, so that the numbers are
 * the engine's own. */
#include "args.h"
#include "bind.h"
#include "cost.h"
#include "report.h"
#include "session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

typedef struct {
    k3i_target target;
    k3i_draft_files draft; /* with --draft */
    k3i_cost cost;
    k3_info info;
    k3_kv_layout layout;
    k3_kv_config kv;
} facts;

static void add_config(k3i_table *t, const k3i_config *c)
{
    k3i_table_begin(t, "config", "Configuration");
    k3i_table_text(t, "format", "format", c->nested ? "kimi_k3 (nested)" : "kimi_linear (flat)");
    k3i_table_count(t, "vocab_size", "vocabulary", c->vocab_size);
    k3i_table_count(t, "hidden_size", "hidden size", c->hidden_size);
    k3i_table_count(t, "layers", "layers", c->n_layers);
    k3i_table_count(t, "kda_layers", "  of them KDA", c->n_kda_layers);
    k3i_table_count(t, "mla_layers", "  of them MLA", c->n_mla_layers);
    k3i_table_count(t, "moe_layers", "  of them with experts", c->n_moe_layers);
    k3i_table_count(t, "attn_res_block_size", "AttnRes block", c->attn_res_block_size);
    k3i_table_count(t, "kda_heads", "KDA heads", c->kda_heads);
    k3i_table_count(t, "kda_head_dim", "KDA head width", c->kda_head_dim);
    k3i_table_count(t, "mla_heads", "MLA heads", c->n_heads);
    k3i_table_count(t, "kv_lora_rank", "MLA latent", c->kv_lora_rank + c->qk_rope_head_dim);
    k3i_table_count(t, "experts", "experts per layer", c->n_experts);
    k3i_table_count(t, "experts_per_token", "experts per token", c->n_experts_per_token);
    k3i_table_count(t, "max_position_embeddings", "longest context", c->max_position_embeddings);
    k3i_table_flag(t, "vision", "vision tower", c->has_vision);
    k3i_table_end(t);
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static void add_tensors(k3i_table *t, const k3i_ckpt *ck)
{
    struct {
        const char *key, *title;
        uint64_t n, bytes;
    } part[] = {{"routed_experts", "routed experts", 0, 0},
                {"text", "other text tensors", 0, 0},
                {"vision", "vision tower", 0, 0},
                {"projector", "projector", 0, 0}};
    uint64_t parameters = 0;
    for (size_t i = 0; i < k3i_ckpt_count(ck); i++) {
        const k3i_tensor *x = k3i_ckpt_at(ck, i);
        size_t kind = starts_with(x->name, "vision_tower.")     ? 2
                      : starts_with(x->name, "mm_projector.")   ? 3
                      : strstr(x->name, "moe.experts.") != NULL ? 0
                                                                : 1;
        part[kind].n++;
        part[kind].bytes += x->bytes;
        /* Two weights in a packed byte; scales are no parameters. */
        if (x->dtype != K3I_DTYPE_U8)
            parameters += x->bytes / k3i_dtype_bytes(x->dtype);
        else if (strstr(x->name, "_packed") != NULL)
            parameters += 2 * x->bytes;
    }
    k3i_table_begin(t, "tensors", "Tensors");
    k3i_table_count(t, "files", "files", k3i_ckpt_n_files(ck));
    k3i_table_count(t, "count", "tensors", k3i_ckpt_count(ck));
    k3i_table_count(t, "parameters", "parameters", parameters);
    k3i_table_bytes(t, "bytes", "bytes", k3i_ckpt_bytes(ck));
    for (size_t i = 0; i < 4; i++) {
        char key[40], title[40];
        snprintf(key, sizeof key, "%s_bytes", part[i].key);
        snprintf(title, sizeof title, "  %s", part[i].title);
        if (part[i].n > 0)
            k3i_table_bytes(t, key, title, part[i].bytes);
    }
    k3i_table_end(t);
}

static void add_draft(k3i_table *t, const k3i_draft_files *d)
{
    const k3i_draft_config *c = &d->config;
    char taps[16 * K3I_MAX_TAPS] = "";
    for (size_t i = 0, n = 0; i < c->n_taps; i++)
        n += (size_t)snprintf(taps + n, sizeof taps - n, i == 0 ? "%zu" : " %zu", c->taps[i]);
    k3i_table_begin(t, "draft", "Draft");
    k3i_table_text(t, "attention", "attention", c->is_mla ? "mla" : "gqa");
    k3i_table_count(t, "layers", "layers", c->n_layers);
    k3i_table_text(t, "taps", "tapped layers", taps);
    k3i_table_text(t, "stream", "tapped stream",
                   c->stream == K3I_STREAM_PREFIX ? "prefix" : "attn_res");
    k3i_table_flag(t, "tap_norms", "norm on each tap", c->has_tap_norms);
    k3i_table_flag(t, "causal", "causal block", c->causal);
    if (c->block_size > 0) /* 0: the configuration does not say */
        k3i_table_count(t, "block_size", "trained width", c->block_size);
    k3i_table_count(t, "markov_rank", "Markov rank", c->markov_rank);
    k3i_table_flag(t, "confidence_head", "confidence head", c->has_confidence);
    k3i_table_count(t, "mask_token_id", "mask token", (uint64_t)c->mask_token_id);
    k3i_table_count(t, "tensors", "tensors", k3i_ckpt_count(d->ckpt));
    k3i_table_bytes(t, "bytes", "bytes", k3i_ckpt_bytes(d->ckpt));
    k3i_table_end(t);
}

static void add_cost(k3i_table *t, const k3i_cost *c)
{
    k3i_table_begin(t, "bytes_per_token", "Bytes per token (decode, one sequence)");
#define COST(field, text) k3i_table_bytes(t, #field, text, c->field);
    K3I_COST_WEIGHTS(COST)
#undef COST
    k3i_table_bytes(t, "weights", "weights together", c->weights);
    k3i_table_bytes(t, "state", "KDA state, read and written", c->state);
    k3i_table_bytes(t, "conv", "convolution history, likewise", c->conv);
    k3i_table_bytes(t, "latent_per_context_token", "MLA cache per token of context",
                    c->latent_per_token);
    k3i_table_end(t);
}

static void add_plan(k3i_table *t, const facts *f)
{
    k3i_table_begin(t, "plan", "Memory plan");
    k3i_table_count(t, "max_num_seqs", "sequences", (uint64_t)f->info.max_num_seqs);
    k3i_table_count(t, "max_model_len", "tokens of each", (uint64_t)f->info.max_model_len);
    k3i_table_count(t, "blocks", "pages", (uint64_t)f->kv.num_blocks);
    k3i_table_bytes(t, "weights_mapped", "weights, mapped", (uint64_t)f->info.weight_bytes);
    k3i_table_bytes(t, "latent_pool", "MLA pages", (uint64_t)f->layout.pool_bytes);
    k3i_table_bytes(t, "kda_slots", "KDA states", (uint64_t)f->layout.slot_bytes);
    k3i_table_bytes(t, "workspace", "workspace", (uint64_t)f->info.workspace_bytes);
    k3i_table_bytes(
        t, "beyond_weights", "together beyond the weights",
        (uint64_t)(f->layout.pool_bytes + f->layout.slot_bytes + f->info.workspace_bytes));
    k3i_table_text(t, "isa", "kernels", f->info.isa);
    k3i_table_end(t);
}

/* The engine's own sizes for the asked number and length of sequences. */
static k3_status make_plan(const k3i_args *args, facts *f, k3i_err *err)
{
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc);
    yyjson_mut_doc_set_root(doc, root);
    const char *isa = getenv("K3_ISA");
    yyjson_mut_obj_add_str(doc, root, "model", k3i_arg_text(args, "model"));
    yyjson_mut_obj_add_int(doc, root, "max_num_seqs", k3i_arg_int(args, "max-num-seqs"));
    if (k3i_arg_given(args, "draft"))
        yyjson_mut_obj_add_str(doc, root, "draft", k3i_arg_text(args, "draft"));
    if (k3i_arg_given(args, "max-model-len"))
        yyjson_mut_obj_add_int(doc, root, "max_model_len", k3i_arg_int(args, "max-model-len"));
    if (isa != NULL)
        yyjson_mut_obj_add_str(doc, root, "isa", isa);
    char *options = yyjson_mut_write(doc, YYJSON_WRITE_NOFLAG, NULL), text[K3I_ERR_TEXT];
    yyjson_mut_doc_free(doc);
    if (options == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory");
    k3_engine *engine = NULL;
    k3_status st = k3_open(options, NULL, NULL, &engine, text, sizeof text);
    free(options);
    if (st != K3_OK)
        return k3i_fail(err, st, "%s", text);
    f->info.size = sizeof f->info;
    f->layout.size = sizeof f->layout;
    st = k3_query(engine, &f->info);
    int64_t pages = (f->info.max_model_len + K3I_CLI_BLOCK_TOKENS - 1) / K3I_CLI_BLOCK_TOKENS;
    int64_t blocks = 1 + pages * f->info.max_num_seqs;
    if (st == K3_OK && blocks > INT32_MAX) {
        st = k3i_fail(err, K3_E_OPTION, "%" PRId64 " pages are more than an engine can have",
                      blocks);
    } else if (st == K3_OK) {
        f->kv = (k3_kv_config){.size = sizeof f->kv,
                               .num_blocks = (int32_t)blocks,
                               .block_tokens = K3I_CLI_BLOCK_TOKENS,
                               .n_slots = f->info.max_num_seqs};
        st = k3_kv_plan(engine, &f->kv, &f->layout);
        if (st != K3_OK)
            k3i_fail(err, st, "%s", k3_last_error(engine));
    }
    k3_close(engine);
    return st;
}

int k3i_cmd_info(const k3i_args *args)
{
    k3i_err err;
    facts f = {0};
    k3i_table table;
    k3_status st = k3i_target_open(k3i_arg_text(args, "model"), &f.target, &err);
    if (st == K3_OK && k3i_arg_given(args, "draft"))
        st = k3i_draft_open(k3i_arg_text(args, "draft"), &f.target.config, &f.draft, &err);
    if (st == K3_OK)
        st = make_plan(args, &f, &err);
    if (st == K3_OK) {
        f.cost = k3i_cost_of(&f.target.config);
        k3i_table_open(&table, k3i_arg_given(args, "json"));
        k3i_table_text(&table, "model", "Checkpoint", k3i_arg_text(args, "model"));
        add_config(&table, &f.target.config);
        add_tensors(&table, f.target.ckpt);
        if (k3i_arg_given(args, "draft"))
            add_draft(&table, &f.draft);
        add_cost(&table, &f.cost);
        add_plan(&table, &f);
        st = k3i_table_close(&table, &err);
    }
    k3i_draft_done(&f.draft);
    k3i_target_done(&f.target);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
