/* The JSON of k3_open: anything may come from a host; it is understood or refused with a sentence.
 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    k3i_options o;
    k3i_err err = {0};
    if (k3i_options_parse(text, &o, &err) == K3_OK) {
        k3i_options_done(&o);
    } else if (err.text[0] == 0) {
        abort(); /* refused without a word */
    }
    free(text);
    return 0;
}
