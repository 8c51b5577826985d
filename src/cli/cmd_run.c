/* cmd_run.c: continues a prompt, greedily or sampled, and streams what comes. The text of a prompt
 * is ordinary text: no chat format, and names of special tokens in it stay text. Pictures stand
 * where the prompt has marks (in ids: placeholders), or before it. */
#include "args.h"
#include "config.h"
#include "ids.h"
#include "pictures.h"
#include "progress.h"
#include "scheduler.h"
#include "session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

typedef struct {
    const k3i_args *args;
    k3i_err *err;
    k3i_ids prompt;
    k3i_pictures pictures;
    k3i_tok *tok; /* NULL where no text goes in or out */
    k3_engine *engine;
    k3i_sched *sched;
    k3i_request *request;
    k3i_detok detok;
    k3i_buf text;     /* of one token */
    size_t n_shown;   /* tokens written */
    k3_status status; /* of writing them */
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
            return k3i_fail(err, K3_E_OPTION, "--%s has no effect without a --temperature above 0",
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
        if (st == K3_OK && r->pictures.n > 0)
            st = k3i_pictures_place_ids(&r->pictures, r->tok, &r->prompt, err);
        return st;
    }
    k3i_buf text = K3I_BUF(K3I_CLI_MAX_TEXT);
    const char *prompt = k3i_arg_text(args, "prompt");
    k3_status st = prompt != NULL ? k3i_buf_adds(&text, prompt, err)
                                  : read_prompt_file(k3i_arg_text(args, "prompt-file"), &text, err);
    if (st == K3_OK)
        st = k3i_pictures_place_text(&r->pictures, r->tok, text.data, text.n, &r->prompt, err);
    if (st == K3_OK && r->prompt.n == 0)
        st = k3i_fail(err, K3_E_OPTION, "the prompt is empty");
    k3i_buf_done(&text);
    return st;
}

/* One token to the output, as it comes. */
static k3_status show(run_state *r, int32_t token)
{
    if (k3i_arg_given(r->args, "output-ids")) {
        char text[16];
        int n = snprintf(text, sizeof text, "%s%" PRId32, r->n_shown == 0 ? "" : " ", token);
        return k3i_write_text(stdout, text, (size_t)n, r->err);
    }
    r->text.n = 0;
    k3_status st = k3i_detok_push(r->tok, &r->detok, token, true, &r->text, r->err);
    return st == K3_OK ? k3i_write_text(stdout, r->text.data, r->text.n, r->err) : st;
}

/* A token joined the output: on the engine's thread, which is ours. Nonzero ends the request. */
static int32_t take(void *user, int32_t token)
{
    run_state *r = user;
    k3i_progress_clear();
    if (token == k3i_sched_info(r->sched)->eos_token_id)
        return 1;
    r->status = show(r, token);
    r->n_shown++;
    return r->status != K3_OK;
}

static k3_status generate(run_state *r)
{
    k3_status st = k3i_sched_check(r->sched, r->request, r->err);
    if (st != K3_OK)
        return st;
    k3i_sched_add(r->sched, r->request);
    while (k3i_sched_step(r->sched)) {
        if (r->n_shown == 0)
            k3i_progress_bar("reading the prompt", (size_t)r->request->ctx, r->prompt.n);
    }
    k3i_progress_clear();
    if (r->status != K3_OK)
        return r->status;
    if (r->request->finish == K3_FINISH_ERROR) {
        *r->err = r->request->error;
        return r->err->code;
    }
    if (!k3i_arg_given(r->args, "output-ids")) {
        r->text.n = 0;
        st = k3i_detok_flush(&r->detok, &r->text, r->err);
        if (st == K3_OK)
            st = k3i_write_text(stdout, r->text.data, r->text.n, r->err);
    }
    return st == K3_OK ? k3i_write_text(stdout, "\n", 1, r->err) : st;
}

static k3_status make_request(run_state *r)
{
    const k3i_args *args = r->args;
    k3_status st = k3i_request_new(r->prompt.id, (int32_t)r->prompt.n, &r->request, r->err);
    if (st != K3_OK)
        return st;
    r->request->max_tokens = (int32_t)k3i_arg_int(args, "max-tokens");
    r->request->on_token = take;
    r->request->user = r;
    k3i_sampling *s = &r->request->sampling;
    s->temperature = (float)k3i_arg_real(args, "temperature");
    s->top_p = (float)k3i_arg_real(args, "top-p");
    s->top_k = (int32_t)k3i_arg_int(args, "top-k");
    s->seed = (uint64_t)k3i_arg_int(args, "seed");
    return k3i_pictures_give(&r->pictures, r->request, r->err);
}

/* Rows of a step: no more than the prompt or a verified block can fill, since workspace grows with
 * them. */
static int32_t chunk_rows(const run_state *r)
{
    size_t chunk = (size_t)k3i_arg_int(r->args, "chunk"), most = 1 + K3_MAX_WIDTH;
    most = r->prompt.n > most ? r->prompt.n : most;
    return (int32_t)(chunk < most ? chunk : most);
}

/* The engine would refuse as well, but by a number that nobody gave. */
static k3_status check_length(const k3i_args *args, size_t n_prompt, int64_t longest, k3i_err *err)
{
    k3i_config config;
    k3_status st = k3i_config_read(k3i_arg_text(args, "model"), &config, err);
    if (st != K3_OK)
        return st;
    size_t most = config.max_position_embeddings;
    k3i_config_done(&config);
    if (longest <= INT32_MAX && (size_t)longest <= most)
        return K3_OK;
    return k3i_fail(err, K3_E_OPTION,
                    "%zu tokens of prompt and --max-tokens %s are more than the %zu that the model "
                    "takes",
                    n_prompt, k3i_arg_text(args, "max-tokens"), most);
}

/* The server's scheduler with one request and no prefix cache: a command line and a server give one
 * answer because one code gives it. */
static k3_status make_scheduler(run_state *r)
{
    const k3i_args *args = r->args;
    k3i_spec_config spec = {0};
    int64_t longest = (int64_t)r->prompt.n + k3i_arg_int(args, "max-tokens");
    const char *json = k3i_arg_text(args, "speculative-config");
    k3_status st = check_length(args, r->prompt.n, longest, r->err);
    if (st == K3_OK && json != NULL)
        st = k3i_spec_config_parse(json, &spec, r->err);
    if (st == K3_OK)
        st = k3i_engine_open(args, (int32_t)longest, chunk_rows(r), &spec, &r->engine, r->err);
    k3_info info = {.size = sizeof info};
    if (st == K3_OK)
        st = k3_query(r->engine, &info);
    if (st == K3_OK) {
        int64_t pages = (longest + K3I_CLI_BLOCK_TOKENS - 1) / K3I_CLI_BLOCK_TOKENS;
        const k3i_sched_config config = {.engine = r->engine,
                                         .num_blocks = (int32_t)pages + 1,
                                         .block_tokens = K3I_CLI_BLOCK_TOKENS,
                                         .no_prefix_caching = true,
                                         .speculative_tokens = info.draft_tokens,
                                         .is_fixed_width = spec.is_fixed};
        st = k3i_sched_new(&config, &r->sched, r->err);
    }
    k3i_spec_config_done(&spec);
    return st;
}

static k3_status prepare(run_state *r)
{
    const k3i_args *args = r->args;
    k3_status st = check_options(args, r->err);
    if (st == K3_OK)
        st = k3i_pictures_load(args, &r->pictures, r->err);
    if (st == K3_OK &&
        (r->pictures.n > 0 || !k3i_arg_given(args, "ids") || !k3i_arg_given(args, "output-ids")))
        st = k3i_tok_open(k3i_arg_text(args, "model"), &r->tok, r->err);
    if (st == K3_OK)
        st = read_prompt(args, r, r->err);
    if (st == K3_OK)
        st = make_scheduler(r);
    return st == K3_OK ? make_request(r) : st;
}

int k3i_cmd_run(const k3i_args *args)
{
    k3i_err err = {0};
    run_state r = {
        .args = args, .err = &err, .prompt = K3I_IDS(K3I_CLI_MAX_IDS), .text = K3I_BUF(1 << 16)};
    k3_status st = prepare(&r);
    if (st == K3_OK)
        st = generate(&r);
    k3i_sched_free(r.sched);
    k3i_request_unref(r.request);
    k3_close(r.engine);
    k3i_tok_free(r.tok);
    k3i_pictures_done(&r.pictures);
    k3i_ids_done(&r.prompt);
    k3i_buf_done(&r.text);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
