/* stopper.h: finds stop strings in a stream of text, holding back only what may be the beginning of
 * one. The result depends on the text alone, not on how it is cut into pieces. */
#ifndef K3I_STOPPER_H
#define K3I_STOPPER_H

#include "buf.h"

#define K3_MAX_STOP 5          /* entries: Moonshot's limit, vLLM allows 4 */
#define K3_MAX_STOP_BYTES 1024 /* of one entry */

typedef struct {
    const char *const *strings; /* [n] non-empty, the caller's */
    int32_t n;
    bool include; /* the matched string belongs to the output */
    int32_t hit;  /* index of the string found, -1 = none yet; afterwards all text is dropped */
    k3i_buf held; /* text that may begin a stop string */
} k3i_stopper;

void k3i_stopper_init(k3i_stopper *s, const char *const *strings, int32_t n, bool include);
/* Appends to ret what may be shown now. */
k3_status k3i_stopper_push(k3i_stopper *s, const char *text, size_t n, k3i_buf *ret, k3i_err *err);
/* The end: what is held is text after all. */
k3_status k3i_stopper_flush(k3i_stopper *s, k3i_buf *ret, k3i_err *err);
void k3i_stopper_done(k3i_stopper *s);

#endif
