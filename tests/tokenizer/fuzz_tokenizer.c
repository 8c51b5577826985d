/* Fuzzes the two tokenizer files and the text paths. The first byte chooses: the rest is
 * tiktoken.model, tokenizer_config.json, or text that must survive encode and decode. */
#include "tokenizer.h"

#include "small_vocab.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_text(const k3i_tok *tok, const char *text, size_t n, int mode)
{
    k3i_ids ids = K3I_IDS(SIZE_MAX);
    k3i_buf once = K3I_BUF(SIZE_MAX), twice = K3I_BUF(SIZE_MAX);
    if (k3i_tok_encode(tok, text, n, mode, &ids, NULL) == K3_OK &&
        k3i_tok_decode(tok, ids.id, ids.n, false, &once, NULL) == K3_OK) {
        /* What came back is well-formed, so a second round trip changes nothing. */
        ids.n = 0;
        if (k3i_tok_encode(tok, once.data, once.n, mode, &ids, NULL) != K3_OK ||
            k3i_tok_decode(tok, ids.id, ids.n, false, &twice, NULL) != K3_OK || once.n != twice.n ||
            (once.n > 0 && memcmp(once.data, twice.data, once.n) != 0))
            abort();
    }
    k3i_ids_done(&ids);
    k3i_buf_done(&once);
    k3i_buf_done(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static k3i_tok *small; /* made once: the text paths should get the time */
    char model[8192], config[4096];
    size_t config_bytes, model_bytes = small_vocabulary(model, config, &config_bytes);
    if (size == 0)
        return 0;
    const char *rest = (const char *)data + 1;
    k3i_tok *tok = NULL;
    k3i_err err;
    if (data[0] % 4 == 0)
        k3i_tok_parse(rest, size - 1, config, config_bytes, &tok, &err);
    else if (data[0] % 4 == 1)
        k3i_tok_parse(model, model_bytes, rest, size - 1, &tok, &err);
    else if (small == NULL)
        k3i_tok_parse(model, model_bytes, config, config_bytes, &small, &err);
    const k3i_tok *use = tok != NULL ? tok : small;
    if (use != NULL)
        fuzz_text(use, rest, size - 1, data[0] % 4 == 2 ? K3I_TOK_PLAIN : K3I_TOK_SPECIAL);
    k3i_tok_free(tok);
    return 0;
}
