/* server.c: libmicrohttpd's side of a call.
 *
 * A connection with a complete POST is suspended while a worker reads it and while the engine
 * computes; `wake` resumes it. Lock order: the server's list, then a call's lock. MHD calls
 * answer(), stream() and completed() on its one thread only. */
#include "server.h"

#include "call.h"
#include "crowd.h"
#include "metrics.h"
#include "page.h"
#include "thread.h"
#include "watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* DROP_BYTES: how much of a refused body is read, so that the client gets to see the answer.
 * SPARE: connections beyond the limit that are open at a time, to be told so; those that ask
 * nothing within SPARE_SECONDS are closed. OTHER_FILES: descriptors that are no connections.
 * PATIENCE: a request arrives within so many idle timeouts, of which one may pass before it begins.
 */
enum {
    MAX_JOBS = 1024,
    HEADER_BYTES = 32768,
    CHUNK_BYTES = 16384,
    DROP_BYTES = 1 << 20,
    SPARE = 64,
    SPARE_SECONDS = 2,
    OTHER_FILES = 128,
    PATIENCE = 2
};

/* A connection with a request on it. */
typedef struct link_s link_t;
struct link_s {
    k3i_server *server;
    struct MHD_Connection *connection;
    k3i_api_call *call; /* NULL for plain GETs */
    uint64_t id;        /* for the watcher, 0 = not watched */
    int fd;
    k3i_fault fault; /* found before the body was complete */
    bool is_last;    /* where the next request begins is not certain: the connection ends */
    size_t counted;  /* body bytes in server->body_bytes */
    size_t dropped;
    link_t *prev, *next;
    /* Under the call's lock. */
    bool is_suspended, has_news, is_handled, is_gone;
};

struct k3i_server {
    k3i_api *api;
    struct MHD_Daemon *daemon;
    k3i_watch *watch;
    int32_t port;
    k3i_crowd crowd;
    pthread_mutex_t lock; /* guards links, jobs and the flags below */
    pthread_cond_t job_ready;
    link_t *links;
    uint64_t last_id;
    link_t *jobs[MAX_JOBS]; /* ring */
    size_t job_head, n_jobs;
    bool is_over;
    pthread_t *workers; /* [n_workers] */
    int32_t n_workers;
    atomic_size_t body_bytes;
    atomic_bool is_draining;
};

/* ---- waiting and waking ------------------------------------------------------------------------
 */

/* The call's wake: any thread, also after the connection has gone. */
static void wake_link(k3i_api_call *c)
{
    pthread_mutex_lock(&c->lock);
    link_t *l = c->server;
    if (l != NULL) {
        l->has_news = true;
        if (l->is_suspended) {
            l->is_suspended = false;
            MHD_resume_connection(l->connection);
        }
    }
    pthread_mutex_unlock(&c->lock);
}

/* Suspends and returns true, or returns false because something has happened meanwhile. MHD's
 * thread. */
static bool wait_for_news(link_t *l)
{
    pthread_mutex_lock(&l->call->lock);
    bool waits = !l->has_news;
    l->has_news = false;
    if (waits) {
        l->is_suspended = true;
        MHD_suspend_connection(l->connection);
    }
    pthread_mutex_unlock(&l->call->lock);
    return waits;
}

static void cancel_all(k3i_api_call *c)
{
    for (int32_t i = 0; i < c->n_choices; i++)
        k3i_request_cancel(c->choice[i].req);
}

/* The watcher's thread. */
static void on_tick(void *user)
{
    k3i_server *s = user;
    k3i_crowd_sweep(&s->crowd);
}

/* The watcher's thread. A worker that still reads the request finishes first, and sees is_gone. */
static void on_gone(void *user, uint64_t id)
{
    k3i_server *s = user;
    pthread_mutex_lock(&s->lock);
    link_t *l = s->links;
    while (l != NULL && l->id != id)
        l = l->next;
    if (l != NULL) {
        pthread_mutex_lock(&l->call->lock);
        l->is_gone = true;
        bool is_handled = l->is_handled;
        pthread_mutex_unlock(&l->call->lock);
        if (is_handled) {
            cancel_all(l->call);
            wake_link(l->call);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- workers -----------------------------------------------------------------------------------
 */

static void *work(void *arg)
{
    k3i_server *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->n_jobs == 0 && !s->is_over)
            pthread_cond_wait(&s->job_ready, &s->lock);
        if (s->n_jobs == 0) {
            pthread_mutex_unlock(&s->lock);
            return NULL;
        }
        link_t *l = s->jobs[s->job_head];
        s->job_head = (s->job_head + 1) % MAX_JOBS;
        s->n_jobs--;
        pthread_mutex_unlock(&s->lock);
        k3i_api_call *c = l->call;
        k3i_call_ref(c); /* once it is handled the connection may end at any time */
        k3i_call_handle(c);
        pthread_mutex_lock(&c->lock);
        l->is_handled = true;
        if (l->is_gone)
            cancel_all(c);
        pthread_mutex_unlock(&c->lock);
        wake_link(c);
        k3i_call_unref(c);
    }
}

static bool push_job(k3i_server *s, link_t *l)
{
    pthread_mutex_lock(&s->lock);
    bool ok = s->n_jobs < MAX_JOBS && !s->is_over;
    if (ok) {
        s->jobs[(s->job_head + s->n_jobs++) % MAX_JOBS] = l;
        pthread_cond_signal(&s->job_ready);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* ---- replies -----------------------------------------------------------------------------------
 */

static enum MHD_Result send_bytes(struct MHD_Connection *connection, int32_t status,
                                  const char *type, const void *bytes, size_t n)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY);
    if (r == NULL)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 429 || status == 503)
        MHD_add_response_header(r, "Retry-After", "1");
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)status, r);
    MHD_destroy_response(r);
    return result;
}

/* One answer, then the end of the connection. */
static enum MHD_Result send_last(struct MHD_Connection *connection, const k3i_fault *fault)
{
    k3i_buf body = K3I_BUF(8192);
    k3i_fault_body(fault, &body, NULL);
    struct MHD_Response *r = MHD_create_response_from_buffer(
        body.n, body.n > 0 ? body.data : (void *)(uintptr_t) "", MHD_RESPMEM_MUST_COPY);
    k3i_buf_done(&body);
    if (r == NULL)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", "application/json");
    if (fault->status == 503)
        MHD_add_response_header(r, "Retry-After", "1");
    MHD_add_response_header(r, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)fault->status, r);
    MHD_destroy_response(r);
    return result;
}

static enum MHD_Result send_too_many(struct MHD_Connection *connection)
{
    k3i_fault fault;
    k3i_fault_set(&fault, 503, NULL, "too many connections are open");
    return send_last(connection, &fault);
}

static enum MHD_Result send_fault(link_t *l, const k3i_fault *fault)
{
    k3i_buf body = K3I_BUF(8192);
    if (l->is_last)
        return send_last(l->connection, fault);
    if (fault->status == 401)
        k3i_buf_adds(&body, "{\"error\":\"Unauthorized\"}", NULL);
    else
        k3i_fault_body(fault, &body, NULL);
    enum MHD_Result result = send_bytes(l->connection, fault->status, "application/json",
                                        body.n > 0 ? body.data : "", body.n);
    k3i_buf_done(&body);
    return result;
}

static ssize_t stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    link_t *l = cls;
    (void)pos;
    do {
        size_t n = k3i_call_read(l->call, buf, max);
        if (n > 0)
            return (ssize_t)n;
        if (l->call->is_done)
            return MHD_CONTENT_READER_END_OF_STREAM;
    } while (!wait_for_news(l));
    return 0;
}

static enum MHD_Result send_stream(link_t *l)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CHUNK_BYTES, stream, l, NULL);
    if (r == NULL)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", l->call->content_type);
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no");
    enum MHD_Result result = MHD_queue_response(l->connection, 200, r);
    MHD_destroy_response(r);
    return result;
}

/* Sends what is ready, or waits. */
static enum MHD_Result continue_call(link_t *l)
{
    k3i_api_call *c = l->call;
    do {
        pthread_mutex_lock(&c->lock);
        bool is_handled = l->is_handled;
        pthread_mutex_unlock(&c->lock);
        int phase = is_handled ? atomic_load(&c->phase) : K3_CALL_NEW;
        if (phase == K3_CALL_WAITS && atomic_load(&c->n_open) == 0) {
            k3i_call_finish(c);
            phase = K3_CALL_READY;
        }
        if (phase == K3_CALL_READY)
            return send_bytes(l->connection, c->status, c->content_type,
                              c->out.n > 0 ? c->out.data : "", c->out.n);
        if (phase == K3_CALL_STREAMS)
            return send_stream(l);
    } while (!wait_for_news(l));
    return MHD_YES;
}

/* ---- small GET routes --------------------------------------------------------------------------
 */

static enum MHD_Result send_models(link_t *l)
{
    const k3i_api *api = l->server->api;
    k3i_buf body = K3I_BUF((size_t)1 << 20);
    k3i_json j = k3i_json_to(&body);
    k3i_json_raw(&j, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < api->config->n_names; i++) {
        k3i_json_raw(&j, i == 0 ? "{\"id\":" : ",{\"id\":");
        k3i_json_str(&j, api->config->names[i]);
        k3i_json_fmt(&j, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"vllm\",\"root\":",
                     (long long)api->created);
        k3i_json_str(&j, api->config->root);
        k3i_json_fmt(&j, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[]}",
                     (int)k3i_serve_info(api->serve)->max_model_len);
    }
    k3i_json_raw(&j, "]}");
    enum MHD_Result result = send_bytes(l->connection, 200, "application/json", body.data, body.n);
    k3i_buf_done(&body);
    return result;
}

static enum MHD_Result send_metrics(link_t *l)
{
    k3i_buf body = K3I_BUF((size_t)4 << 20);
    k3i_fault fault;
    k3i_err err;
    enum MHD_Result result;
    if (k3i_metrics_write(l->server->api, &body, &err) == K3_OK) {
        result = send_bytes(l->connection, 200, "text/plain; version=0.0.4; charset=utf-8",
                            body.data, body.n);
    } else {
        k3i_fault_from(&fault, &err, NULL);
        result = send_fault(l, &fault);
    }
    k3i_buf_done(&body);
    return result;
}

static enum MHD_Result send_health(link_t *l)
{
    bool ok = !k3i_serve_is_dead(l->server->api->serve);
    return send_bytes(l->connection, ok ? 200 : 503, "text/plain", "", 0);
}

static enum MHD_Result send_version(link_t *l)
{
    static const char BODY[] = "{\"version\":\"" K3_VERSION "\"}";
    return send_bytes(l->connection, 200, "application/json", BODY, sizeof BODY - 1);
}

static enum MHD_Result send_load(link_t *l)
{
    char body[64];
    int n = snprintf(body, sizeof body, "{\"server_load\":%d}", atomic_load(&l->server->api->load));
    return send_bytes(l->connection, 200, "application/json", body, (size_t)n);
}

static enum MHD_Result send_page(link_t *l)
{
    return send_bytes(l->connection, 200, "text/html; charset=utf-8", k3i_page, k3i_page_bytes);
}

static const struct {
    const char *path;
    bool also_post;
    enum MHD_Result (*fn)(link_t *l);
} GETS[] = {
    {"/", false, send_page},           {"/health", false, send_health},
    {"/ping", true, send_health},      {"/v1/models", false, send_models},
    {"/metrics", false, send_metrics}, {"/version", false, send_version},
    {"/load", false, send_load},
};

/* ---- requests ----------------------------------------------------------------------------------
 */

static const char *header(link_t *l, const char *name)
{
    return MHD_lookup_connection_value(l->connection, MHD_HEADER_KIND, name);
}

/* Equal in time that does not depend on where they differ. a [na]. */
static bool equal_secret(const char *a, size_t na, const char *b)
{
    size_t nb = strlen(b);
    unsigned diff = na != nb;
    for (size_t i = 0; i < na; i++)
        diff |= (unsigned char)a[i] ^ (unsigned char)b[nb == 0 ? 0 : i % nb];
    return diff == 0;
}

static bool is_authorised(link_t *l, const char *path)
{
    const k3i_api_config *config = l->server->api->config;
    if (config->n_api_keys == 0 || strncmp(path, "/v1", 3) != 0)
        return true;
    const char *value = header(l, "Authorization");
    if (value == NULL || strncasecmp(value, "Bearer ", 7) != 0)
        return false;
    /* Blanks at the end are not of the value, and libmicrohttpd leaves them there. */
    size_t n = strlen(value);
    while (n > 7 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        n--;
    bool ok = false;
    for (int32_t i = 0; i < config->n_api_keys; i++)
        ok |= equal_secret(value + 7, n - 7, config->api_keys[i]);
    return ok;
}

struct framing {
    const char *length;
    bool is_odd, is_encoded;
};

static enum MHD_Result see_framing(void *cls, enum MHD_ValueKind kind, const char *key,
                                   const char *value)
{
    struct framing *f = cls;
    (void)kind;
    if (strcasecmp(key, "Transfer-Encoding") == 0)
        f->is_encoded = true;
    if (strcasecmp(key, "Content-Length") != 0)
        return MHD_YES;
    f->is_odd = f->is_odd || (f->length != NULL && strcmp(f->length, value) != 0);
    f->length = value;
    return MHD_YES;
}

/* A length that is told twice may be read otherwise by a proxy in front, which then sees other
 * requests than we do: RFC 9112, 6.3. */
static bool check_framing(link_t *l)
{
    struct framing f = {0};
    MHD_get_connection_values(l->connection, MHD_HEADER_KIND, see_framing, &f);
    l->is_last = f.is_odd || (f.length != NULL && f.is_encoded);
    if (f.is_odd)
        return k3i_fault_set(&l->fault, 400, NULL, "Content-Length is given twice.");
    if (l->is_last)
        return k3i_fault_set(&l->fault, 400, NULL,
                             "Content-Length and Transfer-Encoding exclude each other.");
    return true;
}

/* Finds what is wrong with a POST before its body is read. */
static bool check_post(link_t *l, const char *path)
{
    const k3i_api_config *config = l->server->api->config;
    const char *type = header(l, "Content-Type"), *length = header(l, "Content-Length");
    if (!is_authorised(l, path))
        return k3i_fault_set(&l->fault, 401, NULL, "Unauthorized");
    if (length != NULL && strtoull(length, NULL, 10) > config->max_body_bytes)
        return k3i_fault_set(&l->fault, 413, NULL, "the body has %.20s bytes, the limit is %zu",
                             length, config->max_body_bytes);
    if (type == NULL || strncasecmp(type, "application/json", 16) != 0 ||
        (type[16] != 0 && type[16] != ';' && type[16] != ' '))
        return k3i_fault_set(&l->fault, 400, NULL, "Content-Type must be application/json.");
    if (atomic_load(&l->server->is_draining))
        return k3i_fault_set(&l->fault, 503, NULL, "the server is shutting down");
    return true;
}

static k3i_api_call *new_call(link_t *l, const char *path)
{
    k3i_api_call *c;
    if (k3i_call_new(l->server->api, &c, NULL) != K3_OK)
        return NULL;
    snprintf(c->path, sizeof c->path, "%s", path);
    const char *id = header(l, "X-Request-Id");
    snprintf(c->request_id, sizeof c->request_id, "%s", id == NULL ? "" : id);
    for (char *p = c->request_id; *p != 0; p++)
        *p = (*p >= 0x21 && *p < 0x7f) ? *p : '_';
    c->wake = wake_link;
    c->server = l;
    c->created = (int64_t)time(NULL);
    return c;
}

static enum MHD_Result begin(k3i_server *s, struct MHD_Connection *connection, const char *path,
                             const char *method, void **ret)
{
    link_t *l = k3i_alloc_zero(sizeof *l);
    if (l == NULL)
        return MHD_NO;
    l->server = s;
    l->connection = connection;
    l->fd = -1;
    if (check_framing(l) && strcmp(method, "POST") == 0 && k3i_call_has_route(path) &&
        check_post(l, path)) {
        l->call = new_call(l, path);
        if (l->call == NULL)
            k3i_fault_set(&l->fault, 503, NULL, "out of memory");
    }
    pthread_mutex_lock(&s->lock);
    l->next = s->links;
    if (s->links != NULL)
        s->links->prev = l;
    s->links = l;
    pthread_mutex_unlock(&s->lock);
    *ret = l;
    return MHD_YES;
}

static enum MHD_Result take_body(link_t *l, const char *data, size_t n)
{
    k3i_server *s = l->server;
    if (l->call == NULL || l->fault.status != 0) {
        /* An error is the answer; what still comes is dropped, up to a point. */
        l->dropped += n;
        return l->dropped > s->api->config->max_body_bytes + DROP_BYTES ? MHD_NO : MHD_YES;
    }
    l->counted += n;
    if (atomic_fetch_add(&s->body_bytes, n) + n > s->api->config->max_total_bytes)
        k3i_fault_set(&l->fault, 503, NULL, "too many bytes of requests are in flight");
    else if (l->call->body.n + n > l->call->body.max)
        k3i_fault_set(&l->fault, 413, NULL, "the body is larger than %zu bytes", l->call->body.max);
    else if (k3i_buf_add(&l->call->body, data, n, NULL) != K3_OK)
        k3i_fault_set(&l->fault, 503, NULL, "out of memory");
    return MHD_YES;
}

static enum MHD_Result answer_get(link_t *l, const char *path, const char *method)
{
    bool is_known = false, is_post = strcmp(method, "POST") == 0;
    for (size_t i = 0; i < sizeof GETS / sizeof *GETS; i++) {
        if (strcmp(path, GETS[i].path) != 0)
            continue;
        is_known = true;
        if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0 &&
            !(is_post && GETS[i].also_post))
            continue;
        if (!is_authorised(l, path)) {
            k3i_fault_set(&l->fault, 401, NULL, "Unauthorized");
            return send_fault(l, &l->fault);
        }
        return GETS[i].fn(l);
    }
    if (is_known || k3i_call_has_route(path))
        k3i_fault_set(&l->fault, 405, NULL, "Method Not Allowed");
    else
        k3i_fault_set(&l->fault, 404, NULL, "Not Found");
    if (l->fault.status == 404)
        l->fault.type = "Not Found";
    return send_fault(l, &l->fault);
}

static k3i_seat *seat_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

/* MHD: once for the head, then for pieces of the body, then with nothing left, again after
 * resuming. */
static enum MHD_Result answer(void *cls, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *n,
                              void **state)
{
    k3i_server *s = cls;
    (void)version;
    if (*state == NULL) {
        const k3i_seat *seat = seat_of(connection);
        if (seat != NULL && seat->is_excess)
            return send_too_many(connection);
        if (begin(s, connection, path, method, state) == MHD_NO)
            return MHD_NO;
        /* A body that is declared too large is not even read. */
        const link_t *l = *state;
        return l->fault.status == 413 ? send_fault(*state, &l->fault) : MHD_YES;
    }
    link_t *l = *state;
    if (*n > 0) {
        enum MHD_Result result = take_body(l, data, *n);
        *n = 0;
        return result;
    }
    if (l->id != 0)
        return continue_call(l);
    k3i_crowd_expect(&s->crowd, seat_of(connection), false);
    if (l->fault.status != 0)
        return send_fault(l, &l->fault);
    if (l->call == NULL)
        return answer_get(l, path, method);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    l->fd = info == NULL ? -1 : info->connect_fd;
    pthread_mutex_lock(&s->lock);
    l->id = ++s->last_id;
    pthread_mutex_unlock(&s->lock);
    if (l->fd >= 0)
        k3i_watch_add(s->watch, l->fd, l->id);
    if (!push_job(s, l)) {
        k3i_fault_set(&l->fault, 429, NULL, "too many requests are being read");
        return send_fault(l, &l->fault);
    }
    return continue_call(l);
}

static void completed(void *cls, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode code)
{
    k3i_server *s = cls;
    link_t *l = *state;
    (void)code;
    if (l == NULL)
        return;
    k3i_crowd_expect(&s->crowd, seat_of(connection), true);
    if (l->fd >= 0)
        k3i_watch_remove(s->watch, l->fd);
    pthread_mutex_lock(&s->lock);
    if (l->prev != NULL)
        l->prev->next = l->next;
    else
        s->links = l->next;
    if (l->next != NULL)
        l->next->prev = l->prev;
    pthread_mutex_unlock(&s->lock);
    atomic_fetch_sub(&s->body_bytes, l->counted);
    *state = NULL;
    if (l->call != NULL) {
        /* The engine may be about to wake: from here on it finds nobody. */
        pthread_mutex_lock(&l->call->lock);
        l->call->server = NULL;
        pthread_mutex_unlock(&l->call->lock);
        k3i_call_close(l->call);
    }
    k3i_free(l);
}

/* Each connection's context is its seat. */
static void connected(void *cls, struct MHD_Connection *connection, void **context,
                      enum MHD_ConnectionNotificationCode code)
{
    k3i_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        k3i_crowd_leave(&s->crowd, *context);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    k3i_seat *seat = info == NULL ? NULL : k3i_crowd_enter(&s->crowd, info->connect_fd);
    *context = seat;
    if (seat != NULL && seat->is_excess)
        MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                  (unsigned)SPARE_SECONDS);
}

/* ---- start and stop ----------------------------------------------------------------------------
 */

__attribute__((format(printf, 2, 0))) static void log_mhd(void *cls, const char *format,
                                                          va_list args)
{
    k3i_server *s = cls;
    char text[512];
    vsnprintf(text, sizeof text, format, args);
    for (size_t n = strlen(text); n > 0 && text[n - 1] == '\n'; n--)
        text[n - 1] = 0;
    if (s->api->config->log != NULL)
        s->api->config->log(s->api->config->log_user, 3, text);
}

static k3_status resolve(const char *host, int32_t port, struct sockaddr_storage *ret, k3i_err *err)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list;
    snprintf(service, sizeof service, "%d", (int)port);
    int e = getaddrinfo(host, service, &hints, &list);
    if (e != 0)
        return k3i_fail(err, K3_E_IO, "--host %s: %s", host, gai_strerror(e));
    memcpy(ret, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return K3_OK;
}

/* Without a descriptor a connection cannot even be refused. */
static int32_t max_connections(const k3i_api_config *config)
{
    struct rlimit files;
    int32_t max = config->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY ||
        files.rlim_cur >= (rlim_t)max + SPARE + OTHER_FILES)
        return max;
    max = (int32_t)files.rlim_cur - SPARE - OTHER_FILES;
    max = max > 16 ? max : 16;
    char text[96];
    snprintf(text, sizeof text, "%d open files are allowed here: %d connections at most",
             (int)files.rlim_cur, (int)max);
    if (config->log != NULL)
        config->log(config->log_user, 2, text);
    return max;
}

static k3_status start_workers(k3i_server *s, k3i_err *err)
{
    s->workers = k3i_alloc_array((size_t)s->api->config->n_workers, sizeof *s->workers);
    if (s->workers == NULL)
        return k3i_fail(err, K3_E_NOMEM, "server: out of memory");
    for (; s->n_workers < s->api->config->n_workers; s->n_workers++) {
        if (k3i_thread_start(&s->workers[s->n_workers], work, s) != 0)
            return k3i_fail(err, K3_E_NOMEM, "server: a worker thread could not be started");
    }
    return K3_OK;
}

static void free_server(k3i_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_over = true;
    pthread_cond_broadcast(&s->job_ready);
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < s->n_workers; i++)
        pthread_join(s->workers[i], NULL);
    k3i_watch_free(s->watch);
    if (s->daemon != NULL)
        MHD_stop_daemon(s->daemon);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->job_ready);
    k3i_crowd_done(&s->crowd);
    k3i_free(s->workers);
    k3i_free(s);
}

k3_status k3i_server_start(k3i_api *api, const char *host, int32_t port, k3i_server **ret,
                           k3i_err *err)
{
    struct sockaddr_storage address;
    k3_status status = resolve(host, port, &address, err);
    if (status != K3_OK)
        return status;
    k3i_server *s = k3i_alloc_zero(sizeof *s);
    if (s == NULL)
        return k3i_fail(err, K3_E_NOMEM, "server: out of memory");
    s->api = api;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->job_ready, NULL);
    k3i_crowd_init(&s->crowd, max_connections(api->config),
                   PATIENCE * INT64_C(1000000000) * api->config->idle_timeout_s);
    status = k3i_watch_new(on_gone, on_tick, s, &s->watch, err);
    if (status == K3_OK)
        status = start_workers(s, err);
    if (status != K3_OK) {
        free_server(s);
        return status;
    }
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (address.ss_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    errno = 0;
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)port, NULL, NULL, answer, s, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, s,
        MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address, MHD_OPTION_NOTIFY_COMPLETED, completed,
        s, MHD_OPTION_NOTIFY_CONNECTION, connected, s, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(s->crowd.max + SPARE), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)api->config->idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_LISTEN_BACKLOG_SIZE,
        1024u, MHD_OPTION_END);
    if (s->daemon == NULL) {
        const char *why = errno != 0 ? strerror(errno) : "the HTTP library does not start";
        free_server(s);
        return k3i_fail(err, K3_E_IO, "cannot listen on %s port %d: %s", host, port, why);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    s->port = info == NULL ? port : info->port;
    *ret = s;
    return K3_OK;
}

int32_t k3i_server_port(const k3i_server *s)
{
    return s->port;
}

static int32_t n_links(k3i_server *s)
{
    int32_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (link_t *l = s->links; l != NULL; l = l->next)
        n++;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void k3i_server_stop(k3i_server *s, int64_t drain_ns)
{
    enum { FLUSH_MS = 2000 }; /* for the last bytes to reach clients that read */
    MHD_socket listening = MHD_quiesce_daemon(s->daemon);
    if (listening != MHD_INVALID_SOCKET)
        shutdown(listening, SHUT_RDWR); /* or the kernel takes connections that nobody answers */
    atomic_store(&s->is_draining, true);
    k3i_serve_drain(s->api->serve, drain_ns);
    for (int32_t i = 0; i < FLUSH_MS / 10 && n_links(s) > 0; i++)
        usleep(10000);
    /* What is still there does not read. Suspended connections must be resumed before the end. */
    pthread_mutex_lock(&s->lock);
    for (link_t *l = s->links; l != NULL; l = l->next) {
        if (l->call != NULL)
            wake_link(l->call);
    }
    pthread_mutex_unlock(&s->lock);
    free_server(s);
    /* Not before: the daemon's thread may still be taking it out of its set. */
    if (listening != MHD_INVALID_SOCKET)
        close(listening);
}
