/* spec_config.h: the JSON of --speculative-config, as vLLM spells it:
 *
 *   {"method": "dspark", "model": DIR, "num_speculative_tokens": N}
 *
 * plus "adaptive": false, which verifies N drafts in every step instead of as many as pay off. Keys
 * that nothing here would honour are refused by name. */
#ifndef K3I_SPEC_CONFIG_H
#define K3I_SPEC_CONFIG_H

#include "alloc.h"

typedef struct {
    char *model;    /* folder of the draft; NULL: no speculation */
    int32_t tokens; /* most drafts per step; 0: the width the draft was trained with */
    bool is_fixed;  /* "adaptive": false */
} k3i_spec_config;

/* Errors: K3_E_OPTION naming the key. Free with k3i_spec_config_done. */
k3_status k3i_spec_config_parse(const char *json, k3i_spec_config *ret, k3i_err *err);
void k3i_spec_config_done(k3i_spec_config *c);

#endif
