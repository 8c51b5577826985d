/* cmd_run.c: continues a prompt, greedily or sampled, and streams what comes. The text of a prompt
 * is ordinary text: no chat format, and names of special tokens in it stay text. */
#include "args.h"
#include "ids.h"
#include "sampler.h"
#include "session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

typedef struct {
    k3i_ids prompt;
    k3i_tok *tok; /* NULL where no text goes in or out */
    k3i_session session;
    k3i_sampler *sampler;
    float *logits; /* [vocab_size] */
    k3i_detok detok;
    k3i_buf text; /* of one token */
} run_state;

/* Exactly one source of the prompt; sampling options only where they have an effect. */
static k3_status check_options(const k3i_args *args, k3i_err *err)
{
    static const char *const sampling[] = {"top-p", "top-k", "seed"};
    int sources = k3i_arg_given(args, "prompt") + k3i_arg_given(args, "prompt-file") +
                  k3i_arg_given(args, "ids");
    if (sources != 1)
        return k3i_fail(err, K3_E_OPTION, "give exactly one of --prompt, --prompt-file and --ids");
    for (size_t i = 0; i < sizeof sampling / sizeof sampling[0]; i++) {
        if (k3i_arg_given(args, sampling[i]) && k3i_arg_real(args, "temperature") == 0.0)
            return k3i_fail(err, K3_E_OPTION, "--%s has no effect without --temperature",
                            sampling[i]);
    }
    return K3_OK;
}

static k3_status read_prompt_file(const char *path, k3i_buf *ret, k3i_err *err)
{
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (f == NULL)
        return k3i_fail(err, K3_E_IO, "%s: cannot be opened: %s", path, strerror(errno));
    k3_status st = k3i_read_stream(f, path, ret, err);
    if (!is_stdin)
        fclose(f);
    return st;
}

static k3_status read_prompt(const k3i_args *args, run_state *r, k3i_err *err)
{
    const char *ids = k3i_arg_text(args, "ids");
    if (ids != NULL) {
        k3_status st = k3i_ids_parse(ids, strlen(ids), &r->prompt, err);
        if (st == K3_OK && r->prompt.n == 0)
            st = k3i_fail(err, K3_E_OPTION, "--ids names no token");
        return st;
    }
    k3i_buf text = K3I_BUF(K3I_CLI_MAX_TEXT);
    const char *prompt = k3i_arg_text(args, "prompt");
    k3_status st = prompt != NULL ? k3i_buf_adds(&text, prompt, err)
                                  : read_prompt_file(k3i_arg_text(args, "prompt-file"), &text, err);
    if (st == K3_OK)
        st = k3i_tok_encode(r->tok, text.data, text.n, K3I_TOK_PLAIN, &r->prompt, err);
    if (st == K3_OK && r->prompt.n == 0)
        st = k3i_fail(err, K3_E_OPTION, "the prompt is empty");
    k3i_buf_done(&text);
    return st;
}

/* One token to the output, as it comes. */
static k3_status show(const k3i_args *args, run_state *r, int32_t token, bool first, k3i_err *err)
{
    if (k3i_arg_given(args, "output-ids")) {
        char text[16];
        int n = snprintf(text, sizeof text, "%s%" PRId32, first ? "" : " ", token);
        return k3i_write_text(stdout, text, (size_t)n, err);
    }
    r->text.n = 0;
    k3_status st = k3i_detok_push(r->tok, &r->detok, token, true, &r->text, err);
    return st == K3_OK ? k3i_write_text(stdout, r->text.data, r->text.n, err) : st;
}

static k3_status generate(const k3i_args *args, run_state *r, k3i_err *err)
{
    int64_t most = k3i_arg_int(args, "max-tokens");
    k3_status st = k3i_session_prefill(&r->session, r->prompt.id, r->prompt.n,
                                       (int32_t)k3i_arg_int(args, "chunk"), r->logits, err);
    for (int64_t i = 0; i < most && st == K3_OK; i++) {
        int32_t token;
        st = k3i_sample(r->sampler, r->logits, NULL, r->session.n_ctx, &token, err);
        if (st != K3_OK || token == r->session.info.eos_token_id)
            break;
        st = show(args, r, token, i == 0, err);
        if (st == K3_OK)
            st = k3i_sampler_push(r->sampler, token, err);
        if (st == K3_OK && i + 1 < most)
            st = k3i_session_forward(&r->session, &token, 1, false, r->logits, err);
    }
    if (st == K3_OK && !k3i_arg_given(args, "output-ids")) {
        r->text.n = 0;
        st = k3i_detok_flush(&r->detok, &r->text, err);
        if (st == K3_OK)
            st = k3i_write_text(stdout, r->text.data, r->text.n, err);
    }
    return st == K3_OK ? k3i_write_text(stdout, "\n", 1, err) : st;
}

static k3_status prepare(const k3i_args *args, run_state *r, k3i_sampling *sampling, k3i_err *err)
{
    k3_status st = check_options(args, err);
    if (st == K3_OK && !(k3i_arg_given(args, "ids") && k3i_arg_given(args, "output-ids")))
        st = k3i_tok_open(k3i_arg_text(args, "model"), &r->tok, err);
    if (st == K3_OK)
        st = read_prompt(args, r, err);
    if (st != K3_OK)
        return st;
    int64_t longest = (int64_t)r->prompt.n + k3i_arg_int(args, "max-tokens");
    if (longest > INT32_MAX)
        return k3i_fail(err, K3_E_OPTION, "prompt and --max-tokens are %" PRId64 " tokens",
                        longest);
    int32_t chunk = (int32_t)k3i_arg_int(args, "chunk");
    chunk = r->prompt.n < (size_t)chunk ? (int32_t)r->prompt.n : chunk;
    st = k3i_session_open(args, (int32_t)longest, chunk, &r->session, err);
    if (st != K3_OK)
        return st;
    sampling->temperature = (float)k3i_arg_real(args, "temperature");
    sampling->top_p = (float)k3i_arg_real(args, "top-p");
    sampling->top_k = (int32_t)k3i_arg_int(args, "top-k");
    sampling->seed = (uint64_t)k3i_arg_int(args, "seed");
    r->logits = k3i_alloc_array((size_t)r->session.info.vocab_size, sizeof *r->logits);
    if (r->logits == NULL)
        return k3i_fail(err, K3_E_NOMEM, "no memory for a row of logits");
    return k3i_sampler_new(sampling, r->session.info.vocab_size, r->prompt.id, (int32_t)r->prompt.n,
                           &r->sampler, err);
}

int k3i_cmd_run(const k3i_args *args)
{
    k3i_err err;
    k3i_sampling sampling = k3i_sampling_default();
    run_state r = {.prompt = K3I_IDS(K3I_CLI_MAX_IDS), .text = K3I_BUF(1 << 16)};
    k3_status st = prepare(args, &r, &sampling, &err);
    if (st == K3_OK)
        st = generate(args, &r, &err);
    k3i_sampler_free(r.sampler);
    k3i_free(r.logits);
    k3i_session_close(&r.session);
    k3i_tok_free(r.tok);
    k3i_ids_done(&r.prompt);
    k3i_buf_done(&r.text);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
