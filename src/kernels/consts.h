/* consts.h: constants shared by the interface and the instruction-set files. */
#ifndef K3I_KERNEL_CONSTS_H
#define K3I_KERNEL_CONSTS_H

/* Keys a block of attn_segment holds: four 16-lane vectors. Part of the result: changing it changes
 * bits. */
#define K3I_ATTN_KEYS 64

#endif
