/* host.h: an opened model with its scheduler: what serve and chat have in common. */
#ifndef K3I_CLI_HOST_H
#define K3I_CLI_HOST_H

#include "args.h"
#include "image.h"
#include "serve.h"
#include "spec_config.h"
#include "tokenizer.h"

typedef struct {
    k3_engine *engine;
    k3_info info;
    k3i_tok *tok;
    k3i_image_settings image;
    k3i_spec_config spec;
    k3i_serve *serve;
    k3i_sched_config sched;
} k3i_host;

typedef struct {
    const char *model; /* folder of the checkpoint */
    int32_t max_num_seqs, max_num_batched_tokens, block_tokens, max_waiting;
    int32_t num_blocks;     /* 0 = from kv_bytes */
    int64_t kv_bytes;       /* 0 = what the requests can need, at most a quarter of what is free */
    int64_t snapshot_bytes; /* 0 = half of the pool */
    bool no_prefix_caching;
} k3i_host_config;

/* Opens the model with --max-model-len, --speculative-config, --threads, --mode, --isa, and starts
 * the engine thread. Zero-initialise first; close also after errors. */
k3_status k3i_host_open(const k3i_args *args, const k3i_host_config *config, k3i_host *ret,
                        k3i_err *err);
void k3i_host_close(k3i_host *h);

#endif
