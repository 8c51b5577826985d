/* config_read.h: what config.c (target) and draft_config.c share. */
#ifndef K3I_CONFIG_READ_H
#define K3I_CONFIG_READ_H

#include "config.h"
#include "json.h"

#define K3I_DIM_MAX ((size_t)INT32_MAX)         /* k3.h speaks of sizes in int32_t */
#define K3I_CONFIG_MAX_BYTES ((size_t)16 << 20) /* published: 7 kB; a long layer map fits */

/* Marks the fields of config_fields.def as read. */
void k3i_fields_skip_inert(k3i_fields *f);
/* dtype or torch_dtype: bfloat16 where given. */
void k3i_field_dtype(k3i_fields *f);

#endif
