/* cmd_chat.c: a conversation in the terminal. Every question is one API call without a network: the
 * same reading, rendering, parsing and scheduling as in the server, so an answer here is an answer
 * there. Earlier turns are found in the prefix cache; only what is new is computed. */
#include "args.h"
#include "base64.h"
#include "call.h"
#include "host.h"
#include "line_input.h"
#include "map.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MAX_IMAGE = 32 << 20, POLL_MS = 50 };

typedef struct {
    const k3i_args *args;
    k3i_host host;
    k3i_api_config config;
    k3i_api api;
    k3i_vocab *vocab;
    const char *name;
    const char *think;   /* off, low, high, max */
    yyjson_mut_doc *doc; /* the conversation */
    yyjson_mut_val *messages;
    k3i_buf image;        /* data URL for the next question, n 0 = none */
    bool is_terminal;     /* standard output is one: colours, thoughts are shown */
    pthread_mutex_t lock; /* guards has_news */
    pthread_cond_t news;
    bool has_news;
} chat_state;

/* Ctrl-C stops the answer. */
static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    is_interrupted = 1;
}

/* ---- pictures ----------------------------------------------------------------------------------
 */

static k3_status load_image(chat_state *s, const char *path, k3i_err *err)
{
    char *bytes;
    size_t n;
    k3_status st = k3i_read_file(path, MAX_IMAGE, &bytes, &n, err);
    if (st != K3_OK)
        return st;
    s->image.n = 0;
    st = k3i_buf_adds(&s->image, "data:image;base64,", err);
    if (st == K3_OK)
        st = k3i_base64_add(&s->image, bytes, n, err);
    if (st != K3_OK)
        s->image.n = 0;
    k3i_free(bytes);
    return st;
}

/* ---- the conversation --------------------------------------------------------------------------
 */

static bool add_message(chat_state *s, const char *role, const char *text, size_t n,
                        const char *reasoning, size_t n_reasoning)
{
    yyjson_mut_val *m = yyjson_mut_obj(s->doc);
    bool ok = yyjson_mut_obj_add_str(s->doc, m, "role", role);
    if (s->image.n > 0) {
        yyjson_mut_val *parts = yyjson_mut_obj_add_arr(s->doc, m, "content");
        yyjson_mut_val *picture = yyjson_mut_arr_add_obj(s->doc, parts);
        yyjson_mut_val *words = yyjson_mut_arr_add_obj(s->doc, parts);
        ok = ok && yyjson_mut_obj_add_str(s->doc, picture, "type", "image_url") &&
             yyjson_mut_obj_add_strncpy(s->doc, picture, "image_url", s->image.data, s->image.n) &&
             yyjson_mut_obj_add_str(s->doc, words, "type", "text") &&
             yyjson_mut_obj_add_strncpy(s->doc, words, "text", text, n);
        s->image.n = 0;
    } else {
        ok = ok && yyjson_mut_obj_add_strncpy(s->doc, m, "content", text, n);
    }
    if (reasoning != NULL)
        ok = ok &&
             yyjson_mut_obj_add_strncpy(s->doc, m, "reasoning_content", reasoning, n_reasoning);
    return ok && yyjson_mut_arr_append(s->messages, m);
}

static bool reset(chat_state *s)
{
    yyjson_mut_doc_free(s->doc);
    s->doc = yyjson_mut_doc_new(NULL);
    s->messages = yyjson_mut_arr(s->doc);
    s->image.n = 0;
    const char *system = k3i_arg_text(s->args, "system");
    return s->messages != NULL &&
           (system == NULL || add_message(s, "system", system, strlen(system), NULL, 0));
}

/* The body of the API request; free() it. */
static char *request_body(chat_state *s, size_t *ret_n)
{
    const k3i_args *a = s->args;
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *thinking;
    yyjson_mut_doc_set_root(doc, root);
    bool ok =
        yyjson_mut_obj_add_val(doc, root, "messages", yyjson_mut_val_mut_copy(doc, s->messages)) &&
        yyjson_mut_obj_add_bool(doc, root, "stream", true) &&
        yyjson_mut_obj_add_real(doc, root, "temperature", k3i_arg_real(a, "temperature")) &&
        yyjson_mut_obj_add_real(doc, root, "top_p", k3i_arg_real(a, "top-p"));
    if (ok && k3i_arg_given(a, "max-tokens"))
        ok = yyjson_mut_obj_add_int(doc, root, "max_tokens", k3i_arg_int(a, "max-tokens"));
    if (ok && k3i_arg_given(a, "seed"))
        ok = yyjson_mut_obj_add_int(doc, root, "seed", k3i_arg_int(a, "seed"));
    thinking = yyjson_mut_obj_add_obj(doc, root, "thinking");
    bool off = strcmp(s->think, "off") == 0;
    ok = ok && yyjson_mut_obj_add_str(doc, thinking, "type", off ? "disabled" : "enabled");
    if (ok && !off)
        ok = yyjson_mut_obj_add_str(doc, thinking, "effort", s->think);
    char *text = ok ? yyjson_mut_write(doc, YYJSON_WRITE_NOFLAG, ret_n) : NULL;
    yyjson_mut_doc_free(doc);
    return text;
}

/* ---- one answer --------------------------------------------------------------------------------
 */

static void wake(k3i_api_call *c)
{
    chat_state *s = c->server;
    pthread_mutex_lock(&s->lock);
    s->has_news = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

/* Returns after news, or after a moment, so that an interrupt is seen. */
static void wait_for_news(chat_state *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->lock);
    if (!s->has_news)
        pthread_cond_timedwait(&s->news, &s->lock, &until);
    s->has_news = false;
    pthread_mutex_unlock(&s->lock);
}

typedef struct {
    k3i_buf content, reasoning;
    bool is_dim; /* thoughts are being printed */
} printed;

static k3_status show(chat_state *s, k3i_choice *ch, bool quiet, printed *p, k3i_err *err)
{
    k3_status st = K3_OK;
    for (size_t i = 0; i < ch->n_delta && st == K3_OK; i++) {
        const k3i_delta *d = &ch->delta[i];
        const char *text = ch->text.data + d->at;
        if (d->kind != K3I_EVENT_REASONING && d->kind != K3I_EVENT_CONTENT)
            continue;
        bool is_thought = d->kind == K3I_EVENT_REASONING;
        st = k3i_buf_add(is_thought ? &p->reasoning : &p->content, text, d->n, err);
        if (is_thought && (!s->is_terminal || quiet))
            continue;
        if (is_thought != p->is_dim)
            fputs(is_thought ? "\033[2m" : "\033[0m\n\n", stdout);
        p->is_dim = is_thought;
        fwrite(text, 1, d->n, stdout);
    }
    fflush(stdout);
    k3i_choice_clear(ch);
    return st;
}

/* The message of an error reply. */
static k3_status read_fault(const k3i_api_call *c, k3i_err *err)
{
    yyjson_doc *doc = yyjson_read(c->out.data, c->out.n, 0);
    yyjson_val *e = yyjson_obj_get(yyjson_doc_get_root(doc), "error");
    const char *text = yyjson_get_str(yyjson_obj_get(e, "message"));
    k3i_fail(err, K3_E_ARG, "%s", text == NULL ? "the request was refused" : text);
    yyjson_doc_free(doc);
    return K3_E_ARG;
}

static k3_status run_call(chat_state *s, k3i_api_call *c, bool quiet, printed *p, k3i_err *err)
{
    k3i_call_handle(c);
    if (atomic_load(&c->phase) == K3_CALL_READY)
        return read_fault(c, err);
    k3i_choice *ch = &c->choice[0];
    k3_status st = K3_OK;
    while (st == K3_OK && ch->finish == K3_FINISH_NONE) {
        wait_for_news(s);
        if (is_interrupted)
            k3i_request_cancel(ch->req);
        st = k3i_choice_pump(ch, err);
        if (st == K3_OK)
            st = show(s, ch, quiet, p, err);
    }
    if (p->is_dim)
        fputs("\033[0m", stdout);
    putchar('\n');
    fflush(stdout);
    if (st == K3_OK && ch->finish == K3_FINISH_ERROR) {
        *err = ch->error;
        st = err->code;
    }
    return st;
}

/* Asks, prints the answer as it comes, and keeps both in the conversation. */
static k3_status ask(chat_state *s, const char *text, bool quiet, k3i_err *err)
{
    k3i_api_call *c = NULL;
    printed p = {.content = K3I_BUF(K3I_OUTPUT_MAX_BYTES),
                 .reasoning = K3I_BUF(K3I_OUTPUT_MAX_BYTES)};
    size_t n = 0;
    char *body = add_message(s, "user", text, strlen(text), NULL, 0) ? request_body(s, &n) : NULL;
    k3_status st =
        body == NULL ? k3i_fail(err, K3_E_NOMEM, "out of memory") : k3i_call_new(&s->api, &c, err);
    is_interrupted = 0;
    if (st == K3_OK) {
        snprintf(c->path, sizeof c->path, "/v1/chat/completions");
        c->wake = wake;
        c->server = s;
        st = k3i_buf_add(&c->body, body, n, err);
        if (st == K3_OK)
            st = run_call(s, c, quiet, &p, err);
        k3i_call_close(c);
    }
    if (st == K3_OK && !add_message(s, "assistant", p.content.n > 0 ? p.content.data : "",
                                    p.content.n, p.reasoning.data, p.reasoning.n))
        st = k3i_fail(err, K3_E_NOMEM, "out of memory");
    if (st != K3_OK) /* the question did not happen */
        yyjson_mut_arr_remove_last(s->messages);
    free(body);
    k3i_buf_done(&p.content);
    k3i_buf_done(&p.reasoning);
    return st;
}

/* ---- commands of the session -------------------------------------------------------------------
 */

static void set_think(chat_state *s, const char *level)
{
    static const char *const LEVELS[] = {"off", "low", "high", "max"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(level, LEVELS[i]) == 0) {
            s->think = LEVELS[i];
            printf("thinking: %s\n", level);
            return;
        }
    }
    printf("/think takes off, low, high or max\n");
}

/* False = leave. */
static bool command(chat_state *s, char *line)
{
    char *word = line + 1, *rest = word + strcspn(word, " \t");
    k3i_err err;
    if (*rest != 0)
        *rest++ = 0;
    rest += strspn(rest, " \t");
    if (strcmp(word, "quit") == 0 || strcmp(word, "exit") == 0)
        return false;
    if (strcmp(word, "think") == 0) {
        set_think(s, rest);
    } else if (strcmp(word, "reset") == 0) {
        if (!reset(s))
            printf("out of memory\n");
        else
            printf("a new conversation\n");
    } else if (strcmp(word, "image") == 0) {
        if (*rest == 0)
            printf("/image takes the name of a file\n");
        else if (load_image(s, rest, &err) != K3_OK)
            printf("%s\n", err.text);
        else
            printf("the next question carries %s\n", rest);
    } else {
        printf("/image FILE    attach a picture to the next question\n"
               "/think LEVEL   off, low, high, max\n"
               "/reset         a new conversation\n"
               "/quit          leave (or Ctrl-D); Ctrl-C stops an answer\n");
    }
    return true;
}

static k3_status converse(chat_state *s, k3i_err *err)
{
    k3i_line_input *in;
    k3_status st = k3i_line_input_new("\n> ", &in, err);
    if (st != K3_OK)
        return st;
    if (s->is_terminal)
        printf("%s. /help lists commands.\n", s->name);
    for (char *line; (line = k3i_line_input_next(in)) != NULL;) {
        if (line[strspn(line, " \t")] == 0)
            continue;
        if (line[0] == '/') {
            if (!command(s, line))
                break;
        } else if (ask(s, line, false, err) != K3_OK) {
            printf("%s\n", err->text);
        }
        fflush(stdout);
    }
    k3i_line_input_free(in);
    return K3_OK;
}

/* ---- start -------------------------------------------------------------------------------------
 */

static k3_status open_all(chat_state *s, k3i_err *err)
{
    const k3i_args *a = s->args;
    k3i_host_config host = {.model = k3i_arg_text(a, "model"),
                            .max_num_seqs = 1,
                            .max_num_batched_tokens = 512,
                            .block_tokens = 16,
                            .max_waiting = 1};
    if (k3i_arg_given(a, "image") && !k3i_arg_given(a, "once"))
        return k3i_fail(err, K3_E_OPTION,
                        "--image goes with --once; in a session it is /image FILE");
    k3_status st = k3i_host_open(a, &host, &s->host, err);
    if (st == K3_OK)
        st = k3i_vocab_new(s->host.tok, &s->vocab, err);
    if (st != K3_OK)
        return st;
    s->name = host.model;
    s->config = (k3i_api_config){.names = &s->name,
                                 .n_names = 1,
                                 .root = host.model,
                                 .max_body_bytes = (size_t)1 << 30,
                                 .media = {.max_bytes = MAX_IMAGE, .max_images = 1000}};
    s->api.config = &s->config;
    s->api.serve = s->host.serve;
    s->api.tok = s->host.tok;
    s->api.vocab = s->vocab;
    if (getrandom(&s->api.id_seed, sizeof s->api.id_seed, 0) != sizeof s->api.id_seed)
        return k3i_fail(err, K3_E_IO, "the system gives no random bytes");
    st = k3i_media_store_new(&s->config.media, &s->host.image, host.model, &s->api.media, err);
    if (st == K3_OK && !reset(s))
        st = k3i_fail(err, K3_E_NOMEM, "out of memory");
    return st;
}

int k3i_cmd_chat(const k3i_args *args)
{
    k3i_err err;
    chat_state s = {.args = args, .think = k3i_arg_text(args, "think")};
    s.image = K3I_BUF((size_t)MAX_IMAGE * 2);
    s.is_terminal = isatty(STDOUT_FILENO) == 1;
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.news, NULL);
    struct sigaction act = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &act, NULL);
    k3_status st = open_all(&s, &err);
    const char *once = k3i_arg_text(args, "once"), *image = NULL;
    if (st == K3_OK && once != NULL) {
        image = k3i_arg_text(args, "image");
        if (image != NULL)
            st = load_image(&s, image, &err);
        if (st == K3_OK)
            st = ask(&s, once, true, &err);
    } else if (st == K3_OK) {
        st = converse(&s, &err);
    }
    k3i_serve_free(s.host.serve);
    s.host.serve = NULL;
    k3i_vocab_free(s.vocab);
    k3i_host_close(&s.host);
    k3i_media_store_free(s.api.media);
    yyjson_mut_doc_free(s.doc);
    k3i_buf_done(&s.image);
    return st == K3_OK ? K3I_EXIT_OK : k3i_report(args, &err);
}
