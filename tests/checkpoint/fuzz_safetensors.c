/* Any bytes as a safetensors file: refused with a text, or tensors that lie within the bytes. */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k3i_ckpt *ck;
    k3i_err err;
    if (k3i_ckpt_from_memory("fuzz.safetensors", data, size, &ck, &err) != K3_OK)
        return 0;
    size_t total = 0;
    for (size_t i = 0; i < k3i_ckpt_count(ck); i++) {
        const k3i_tensor *t = k3i_ckpt_at(ck, i);
        if (t->data < data || t->bytes > size || t->data + t->bytes > data + size ||
            k3i_ckpt_find(ck, t->name) != t)
            abort();
        total += t->bytes;
    }
    if (total != k3i_ckpt_bytes(ck))
        abort();
    k3i_ckpt_free(ck);
    return 0;
}
