/* Fuzzes the output parser. Input bytes become tokens of a small vocabulary: 0x01..0x04 are OPEN,
 * CLOSE, SEP and end of message, 0x05 another special id, the rest single bytes. Events must be
 * whole characters and complete calls without a json block must have valid arguments. The first
 * byte sets the options. */
#include "chat.h"
#include "json_text.h"
#include "answer.h"

#include "../tokenizer/small_vocab.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static k3_status check_event(void *user, const k3i_chat_event *event, k3i_err *err)
{
    for (size_t at = 0; at < event->n;) {
        size_t len = k3i_utf8_length((const uint8_t *)event->text + at, event->n - at);
        if (len == 0 || len > event->n - at)
            abort();
        at += len;
    }
    return k3i_answer_event(user, event, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static k3i_tok *tok; /* made once */
    if (tok == NULL) {
        char model[8192], config[4096];
        size_t config_bytes, model_bytes = small_vocabulary(model, config, &config_bytes);
        if (k3i_tok_parse(model, model_bytes, config, config_bytes, &tok, NULL) != K3_OK)
            abort();
    }
    if (size == 0)
        return 0;
    const k3i_tok_ids *special = k3i_tok_special_ids(tok);
    const int32_t marker[] = {special->open, special->close, special->sep, special->end_of_msg,
                              special->media_pad};
    k3i_parser_opts opts = {
        .channel = data[0] % 3, .discard_calls = data[0] & 4, .single_call = data[0] & 8};
    k3i_answer answer = K3I_ANSWER;
    k3i_parser *p;
    if (k3i_parser_new(tok, &opts, check_event, &answer, &p, NULL) != K3_OK)
        return 0;
    for (size_t i = 1; i < size; i++) {
        int32_t id = data[i] >= 1 && data[i] <= 5 ? marker[data[i] - 1] : 255 - data[i];
        if (k3i_parser_push(p, id, NULL) != K3_OK)
            abort();
    }
    if (k3i_parser_finish(p, NULL) != K3_OK || !k3i_parser_is_done(p))
        abort();
    for (size_t i = 0; i < answer.n_call; i++) {
        const k3i_buf *a = &answer.call[i].arguments;
        if (answer.call[i].name.n == 0)
            abort();
        if (answer.call[i].is_complete && a->n > 2 && memcmp(a->data, "{\"", 2) == 0 &&
            memmem(data, size, "json", 4) == NULL && k3i_json_skip(a->data, a->n, 0, false) != a->n)
            abort();
    }
    k3i_parser_free(p);
    k3i_answer_done(&answer);
    return 0;
}
