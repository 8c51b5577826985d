/* fetch.c: libcurl with everything off that is not needed: two protocols, no proxies from the
 * environment, no credentials, redirects followed by hand so that each target is checked. */
#include "fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

bool k3i_fetch_init(void)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

/* ---- addresses ---------------------------------------------------------------------------------
 */

typedef struct {
    uint32_t net;
    int32_t bits;
} range4;

/* IANA special-purpose registry: everything that is not globally reachable unicast. */
static const range4 CLOSED4[] = {
    {0x00000000, 8},  /* this network */
    {0x0a000000, 8},  /* private */
    {0x64400000, 10}, /* shared */
    {0x7f000000, 8},  /* loopback */
    {0xa9fe0000, 16}, /* link-local, cloud metadata */
    {0xac100000, 12}, /* private */
    {0xc0000000, 24}, /* protocol assignments */
    {0xc0000200, 24}, /* documentation */
    {0xc0586300, 24}, /* 6to4 relay */
    {0xc0a80000, 16}, /* private */
    {0xc6120000, 15}, /* benchmarks */
    {0xc6336400, 24}, /* documentation */
    {0xcb007100, 24}, /* documentation */
    {0xe0000000, 4},  /* multicast */
    {0xf0000000, 4},  /* reserved, broadcast */
};

static bool is_public4(uint32_t address)
{
    for (size_t i = 0; i < sizeof CLOSED4 / sizeof *CLOSED4; i++) {
        if ((address ^ CLOSED4[i].net) >> (32 - CLOSED4[i].bits) == 0)
            return false;
    }
    return true;
}

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool is_public6(const uint8_t a[16])
{
    static const uint8_t MAPPED[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    static const uint8_t NAT64[12] = {0, 0x64, 0xff, 0x9b};
    if (memcmp(a, MAPPED, 12) == 0 || memcmp(a, NAT64, 12) == 0)
        return is_public4(word(a + 12));
    if (a[0] == 0x20 && a[1] == 0x02) /* 6to4 wraps an IPv4 address */
        return is_public4(word(a + 2));
    if (a[0] == 0x20 && a[1] == 0x01 && (a[2] < 0x02 || (a[2] == 0x0d && a[3] == 0xb8)))
        return false;             /* protocol assignments with Teredo, documentation */
    return (a[0] & 0xe0) == 0x20; /* 2000::/3 is all of global unicast */
}

bool k3i_is_public_address(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        return is_public4(ntohl(in.sin_addr.s_addr));
    }
    if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address, sizeof in6);
        return is_public6(in6.sin6_addr.s6_addr);
    }
    return false;
}

bool k3i_is_allowed_host(const k3i_media_config *config, const char *host)
{
    for (int32_t i = 0; i < config->n_allowed_domains; i++) {
        const char *d = config->allowed_domains[i];
        if (strcmp(d, "*") == 0 || strcasecmp(d, host) == 0)
            return true;
    }
    return false;
}

/* ---- one transfer ------------------------------------------------------------------------------
 */

typedef struct {
    const k3i_media_config *config;
    k3i_buf body;
    bool is_refused; /* an address that is not public */
    bool is_too_big;
} transfer;

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    transfer *t = user;
    (void)purpose;
    if (!t->config->allow_private && !k3i_is_public_address(&address->addr)) {
        t->is_refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t take_body(char *data, size_t size, size_t n, void *user)
{
    transfer *t = user;
    k3_status status = k3i_buf_add(&t->body, data, size * n, NULL);
    t->is_too_big = status == K3_E_LIMIT;
    return status == K3_OK ? size * n : 0;
}

static bool check_url(const k3i_media_config *config, const char *url, const char *where,
                      k3i_fault *fault)
{
    CURLU *u = curl_url();
    char *host = NULL, *scheme = NULL, *user = NULL;
    bool ok = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    if (!ok)
        k3i_fault_set(fault, 422, "image_url", "%s: the URL is malformed.", where);
    else if (curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK)
        ok = k3i_fault_set(fault, 400, "image_url", "%s: the URL must not carry credentials.",
                           where);
    else if (!k3i_is_allowed_host(config, host))
        ok = k3i_fault_set(fault, 400, "image_url",
                           "%s: The URL must be from one of the allowed domains; '%.100s' is not "
                           "(--allowed-media-domains).",
                           where, host);
    curl_free(host);
    curl_free(scheme);
    curl_free(user);
    curl_url_cleanup(u);
    return ok;
}

static void set_options(CURL *c, transfer *t, const char *url)
{
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)t->config->timeout_s);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "k3");
    curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)t->config->max_bytes);
}

static bool judge(const transfer *t, CURLcode code, long http, const char *where, k3i_fault *fault)
{
    if (t->is_refused)
        return k3i_fault_set(fault, 400, "image_url",
                             "%s: could not fetch image: the host's address is not public.", where);
    if (t->is_too_big || code == CURLE_FILESIZE_EXCEEDED)
        return k3i_fault_set(fault, 400, "image_url", "%s: the image is larger than %zu bytes.",
                             where, t->config->max_bytes);
    if (code != CURLE_OK)
        return k3i_fault_set(fault, 400, "image_url", "%s: could not fetch image: %s", where,
                             curl_easy_strerror(code));
    if (http >= 400 && http < 500 && http != 408 && http != 429)
        return k3i_fault_set(fault, 422, "image_url",
                             "%s: Failed to fetch media from URL: HTTP %ld error", where, http);
    if (http != 200)
        return k3i_fault_set(fault, 400, "image_url", "%s: could not fetch image: HTTP %ld", where,
                             http);
    return true;
}

bool k3i_fetch(const k3i_media_config *config, const char *url, size_t url_bytes, const char *where,
               uint8_t **ret, size_t *ret_n, k3i_fault *fault)
{
    if (config->n_allowed_domains == 0)
        return k3i_fault_set(fault, 400, "image_url",
                             "%s: unsupported URL scheme: this server takes data: URLs only "
                             "(--allowed-media-domains enables http).",
                             where);
    char *at = k3i_alloc(url_bytes + 1);
    CURL *c = curl_easy_init();
    transfer t = {.config = config};
    t.body = K3I_BUF(config->max_bytes);
    bool ok = at != NULL && c != NULL;
    if (!ok)
        k3i_fault_set(fault, 503, NULL, "out of memory");
    if (ok) {
        memcpy(at, url, url_bytes);
        at[url_bytes] = 0;
    }
    for (int32_t hops = 0; ok; hops++) {
        ok = check_url(config, at, where, fault);
        if (!ok)
            break;
        t.body.n = 0;
        set_options(c, &t, at);
        CURLcode code = curl_easy_perform(c);
        long http = 0;
        char *next = NULL;
        curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &http);
        curl_easy_getinfo(c, CURLINFO_REDIRECT_URL, &next);
        if (code != CURLE_OK || http < 300 || http >= 400 || next == NULL) {
            ok = judge(&t, code, http, where, fault);
            break;
        }
        if (hops == config->max_redirects) {
            ok = k3i_fault_set(fault, 400, "image_url",
                               "%s: could not fetch image: redirected more "
                               "than %d times",
                               where, config->max_redirects);
            break;
        }
        char *copy = k3i_strdup(next);
        k3i_free(at);
        at = copy;
        ok = at != NULL || k3i_fault_set(fault, 503, NULL, "out of memory");
    }
    k3i_free(at);
    curl_easy_cleanup(c);
    if (!ok) {
        k3i_buf_done(&t.body);
        return false;
    }
    *ret = (uint8_t *)t.body.data;
    *ret_n = t.body.n;
    return true;
}
