/* Any bytes as the configuration of a target and as that of a draft for a fixed small target. */
#include "config.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k3i_config cfg;
    k3i_draft_config draft;
    k3i_err err;
    if (k3i_config_parse("fuzz", (const char *)data, size, &cfg, &err) == K3_OK) {
        size_t kda = 0;
        for (size_t i = 0; i < cfg.n_layers; i++)
            kda += cfg.is_kda[i];
        if (kda != cfg.n_kda_layers || kda + cfg.n_mla_layers != cfg.n_layers)
            abort();
        k3i_config_done(&cfg);
    }
    k3i_config target = {.vocab_size = 163840, .hidden_size = 7168, .n_layers = 93};
    if (k3i_draft_config_parse("fuzz", (const char *)data, size, &target, &draft, &err) == K3_OK &&
        (draft.n_taps == 0 || draft.taps[draft.n_taps - 1] >= target.n_layers))
        abort();
    return 0;
}
