/* host.c: options of the engine, size of the KV cache, start of the engine thread. */
#include "host.h"

#include "memory.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void log_engine(void *user, int32_t level, const char *text)
{
    (void)user;
    if (level <= 1)
        fprintf(stderr, "k3: %s\n", text);
}

static k3_status open_engine(const k3i_args *args, const k3i_host_config *config, k3i_host *h,
                             k3i_err *err)
{
    char why[512];
    int32_t max_len = (int32_t)k3i_arg_int(args, "max-model-len"); /* 0: not given */
    char *options = k3i_open_options(args, max_len, config->max_num_batched_tokens,
                                     config->max_num_seqs, &h->spec);
    if (options == NULL)
        return k3i_fail(err, K3_E_NOMEM, "out of memory");
    k3_status st = k3_open(options, log_engine, NULL, &h->engine, why, sizeof why);
    free(options);
    if (st != K3_OK)
        return k3i_fail(err, st, "%s", why);
    h->info.size = sizeof h->info;
    return k3_query(h->engine, &h->info);
}

/* What a person can do about a cache that is too small for one sequence. */
static const char *more_pages(const k3i_args *args, const k3i_host_config *config)
{
    if (config->num_blocks > 0)
        return " or raise --num-gpu-blocks-override";
    return strcmp(args->command, "serve") == 0 ? " or raise --kv-cache-memory-bytes" : "";
}

/* Pages for all slots at full length and twice as many snapshots as slots, within the limit. */
static k3_status size_pool(const k3i_args *args, const k3i_host_config *config, k3i_host *h,
                           k3i_err *err)
{
    k3_kv_config kv = {.size = sizeof kv,
                       .num_blocks = 2,
                       .block_tokens = config->block_tokens,
                       .n_slots = config->max_num_seqs};
    k3_kv_layout layout = {.size = sizeof layout};
    k3_status st = k3_kv_plan(h->engine, &kv, &layout);
    if (st != K3_OK)
        return k3i_fail(err, st, "%s", k3_last_error(h->engine));
    int64_t per_seq = (h->info.max_model_len + config->block_tokens - 1) / config->block_tokens;
    int64_t want = per_seq * config->max_num_seqs +
                   (int64_t)2 * config->max_num_seqs * layout.snapshot_blocks + 1;
    int64_t limit = config->kv_bytes;
    if (limit == 0)
        limit = k3i_free_memory("", h->info.weight_bytes) / 4;
    int64_t blocks = limit / layout.page_bytes;
    if (config->kv_bytes == 0 && want < blocks)
        blocks = want;
    if (config->num_blocks > 0)
        blocks = config->num_blocks;
    if (blocks < per_seq + 1)
        return k3i_fail(err, K3_E_OPTION,
                        "the KV cache has %lld pages of %d tokens, one sequence of %d tokens needs "
                        "%lld: lower --max-model-len%s",
                        (long long)blocks, (int)config->block_tokens, (int)h->info.max_model_len,
                        (long long)(per_seq + 1), more_pages(args, config));
    h->sched.num_blocks = blocks > INT32_MAX ? INT32_MAX : (int32_t)blocks;
    return K3_OK;
}

static k3_status read_image_settings(const char *model, k3i_host *h, k3i_err *err)
{
    char path[4096];
    struct stat st;
    k3i_image_settings_default(&h->image);
    snprintf(path, sizeof path, "%s/preprocessor_config.json", model);
    if (!h->info.has_vision || stat(path, &st) != 0)
        return K3_OK;
    return k3i_image_settings_read(model, &h->image, err);
}

k3_status k3i_host_open(const k3i_args *args, const k3i_host_config *config, k3i_host *h,
                        k3i_err *err)
{
    const char *spec = k3i_arg_text(args, "speculative-config");
    if (config->max_num_batched_tokens < config->max_num_seqs)
        return k3i_fail(err, K3_E_OPTION,
                        "--max-num-batched-tokens %d is below --max-num-seqs %d: each request of a "
                        "step needs a token",
                        (int)config->max_num_batched_tokens, (int)config->max_num_seqs);
    k3_status st = spec == NULL ? K3_OK : k3i_spec_config_parse(spec, &h->spec, err);
    if (st == K3_OK)
        st = k3i_tok_open(config->model, &h->tok, err);
    if (st == K3_OK)
        st = open_engine(args, config, h, err);
    if (st == K3_OK && k3i_tok_size(h->tok) > h->info.vocab_size)
        st = k3i_fail(err, K3_E_CONFIG, "the tokenizer has %d ids, the model a vocabulary of %d",
                      (int)k3i_tok_size(h->tok), (int)h->info.vocab_size);
    if (st == K3_OK)
        st = read_image_settings(config->model, h, err);
    h->sched = (k3i_sched_config){.engine = h->engine,
                                  .block_tokens = config->block_tokens,
                                  .no_prefix_caching = config->no_prefix_caching,
                                  .snapshot_bytes = config->snapshot_bytes,
                                  .is_fixed_width = h->spec.is_fixed};
    h->sched.speculative_tokens = h->spec.model != NULL ? h->info.draft_tokens : 0;
    if (st == K3_OK)
        st = size_pool(args, config, h, err);
    if (st == K3_OK)
        st = k3i_serve_new(&h->sched, config->max_waiting, &h->serve, err);
    return st;
}

void k3i_host_close(k3i_host *h)
{
    k3i_serve_free(h->serve);
    k3_close(h->engine);
    k3i_tok_free(h->tok);
    k3i_spec_config_done(&h->spec);
    *h = (k3i_host){0};
}
