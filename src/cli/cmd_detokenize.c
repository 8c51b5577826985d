/* cmd_detokenize.c: ids on standard input, separated by spaces or commas, to exactly their text. */
#include "args.h"
#include "ids.h"

int k3i_cmd_detokenize(const k3i_args *args)
{
    k3i_err err;
    k3i_tok *tok = NULL;
    k3i_buf in = K3I_BUF(K3I_CLI_MAX_TEXT), out = K3I_BUF(K3I_CLI_MAX_TEXT);
    k3i_ids ids = K3I_IDS(K3I_CLI_MAX_TEXT);
    k3_status st = k3i_tok_open(k3i_arg_text(args, "model"), &tok, &err);
    if (st == K3_OK)
        st = k3i_read_stream(stdin, "standard input", &in, &err);
    if (st == K3_OK)
        st = k3i_ids_parse(in.data, in.n, &ids, &err);
    if (st == K3_OK)
        st = k3i_tok_decode(tok, ids.id, ids.n, false, &out, &err);
    if (st == K3_OK)
        st = k3i_write_text(stdout, out.data, out.n, &err);
    k3i_ids_done(&ids);
    k3i_buf_done(&in);
    k3i_buf_done(&out);
    k3i_tok_free(tok);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
