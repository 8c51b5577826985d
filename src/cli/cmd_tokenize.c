/* cmd_tokenize.c: standard input to ids, separated by spaces. Needs only the tokenizer files of the
 * folder. */
#include "args.h"
#include "ids.h"

#include <inttypes.h>

int k3i_cmd_tokenize(const k3i_args *args)
{
    k3i_err err;
    k3i_tok *tok = NULL;
    k3i_buf text = K3I_BUF(K3I_CLI_MAX_TEXT);
    k3i_ids ids = K3I_IDS(K3I_CLI_MAX_TEXT);
    k3_status st = k3i_tok_open(k3i_arg_text(args, "model"), &tok, &err);
    if (st == K3_OK)
        st = k3i_read_stream(stdin, "standard input", &text, &err);
    if (st == K3_OK)
        st = k3i_tok_encode(tok, text.data, text.n,
                            k3i_arg_given(args, "special") ? K3I_TOK_SPECIAL : K3I_TOK_PLAIN, &ids,
                            &err);
    for (size_t i = 0; i < ids.n && st == K3_OK; i++)
        printf("%s%" PRId32, i == 0 ? "" : " ", ids.id[i]);
    if (st == K3_OK)
        st = k3i_write_text(stdout, "\n", 1, &err);
    k3i_ids_done(&ids);
    k3i_buf_done(&text);
    k3i_tok_free(tok);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
