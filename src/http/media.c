/* media.c: data URLs, and the table that gives each distinct picture a key.
 *
 * The key names the rows of a picture in the engine and in prefix-cache tokens. It is a counter,
 * given out per SHA-256 of bytes, settings and model: unlike a shortened hash it cannot collide. */
#include "media.h"

#include "base64.h"
#include "fetch.h"

#include <pthread.h>
#include <string.h>
#include <strings.h>

enum { MAX_KEYS = 65536 }; /* 3 MiB; the oldest is forgotten, at the price of a cache miss */

typedef struct {
    uint8_t digest[K3I_IMAGE_KEY_BYTES];
    uint64_t key;
} known;

struct k3i_media_store {
    const k3i_media_config *config;
    const k3i_image_settings *settings;
    const char *model;
    pthread_mutex_t lock; /* guards the rest */
    known *known;         /* [n_known] ring */
    size_t n_known, next;
    uint64_t last_key;
};

k3_status k3i_media_store_new(const k3i_media_config *config, const k3i_image_settings *settings,
                              const char *model, k3i_media_store **ret, k3i_err *err)
{
    k3i_media_store *s = k3i_alloc_zero(sizeof *s);
    if (s != NULL)
        s->known = k3i_alloc_array(MAX_KEYS, sizeof *s->known);
    if (s == NULL || s->known == NULL) {
        k3i_free(s);
        return k3i_fail(err, K3_E_NOMEM, "picture keys: out of memory");
    }
    s->config = config;
    s->settings = settings;
    s->model = model;
    pthread_mutex_init(&s->lock, NULL);
    *ret = s;
    return K3_OK;
}

void k3i_media_store_free(k3i_media_store *s)
{
    if (s == NULL)
        return;
    pthread_mutex_destroy(&s->lock);
    k3i_free(s->known);
    k3i_free(s);
}

static uint64_t key_of(k3i_media_store *s, const uint8_t digest[K3I_IMAGE_KEY_BYTES])
{
    pthread_mutex_lock(&s->lock);
    uint64_t key = 0;
    for (size_t i = 0; i < s->n_known && key == 0; i++) {
        if (memcmp(s->known[i].digest, digest, K3I_IMAGE_KEY_BYTES) == 0)
            key = s->known[i].key;
    }
    if (key == 0) {
        known *k = &s->known[s->next];
        s->next = (s->next + 1) % MAX_KEYS;
        s->n_known += s->n_known < MAX_KEYS;
        key = ++s->last_key;
        memcpy(k->digest, digest, K3I_IMAGE_KEY_BYTES);
        k->key = key;
    }
    pthread_mutex_unlock(&s->lock);
    return key;
}

/* ---- URLs --------------------------------------------------------------------------------------
 */

static bool has_scheme(const char *url, size_t n, const char *scheme)
{
    size_t len = strlen(scheme);
    return n >= len && strncasecmp(url, scheme, len) == 0;
}

static bool load_data(const char *url, size_t n, const char *where, uint8_t **ret, size_t *ret_n,
                      k3i_fault *fault)
{
    const char *comma = memchr(url, ',', n);
    if (comma == NULL)
        return k3i_fault_set(fault, 400, "image_url",
                             "%s: Invalid data URL: missing ',' separator.", where);
    size_t head = (size_t)(comma - url);
    if (head < 7 || strncasecmp(comma - 7, ";base64", 7) != 0)
        return k3i_fault_set(fault, 400, "image_url",
                             "%s: Only base64 data URLs are supported for now.", where);
    size_t n_text = n - head - 1;
    uint8_t *bytes = k3i_alloc(K3I_BASE64_ROOM(n_text));
    if (bytes == NULL)
        return k3i_fault_set(fault, 503, NULL, "%s: out of memory", where);
    k3i_err err;
    if (k3i_base64_decode(comma + 1, n_text, K3I_BASE64_LENIENT, bytes, ret_n, &err) != K3_OK) {
        k3i_free(bytes);
        return k3i_fault_set(fault, 400, "image_url", "%s: invalid base64 in image data URL: %s",
                             where, err.text);
    }
    *ret = bytes;
    return true;
}

static bool load_bytes(k3i_media_store *s, const char *url, size_t n, const char *where,
                       uint8_t **ret, size_t *ret_n, k3i_fault *fault)
{
    if (has_scheme(url, n, "data:"))
        return load_data(url, n, where, ret, ret_n, fault);
    if (!has_scheme(url, n, "http://") && !has_scheme(url, n, "https://"))
        return k3i_fault_set(fault, 400, "image_url",
                             "%s: The URL must be either a HTTP or data URL.", where);
    return k3i_fetch(s->config, url, n, where, ret, ret_n, fault);
}

bool k3i_media_load(k3i_media_store *s, const char *url, size_t url_bytes, const char *where,
                    k3i_media_picture *ret, k3i_fault *fault)
{
    uint8_t *bytes = NULL, digest[K3I_IMAGE_KEY_BYTES];
    size_t n = 0;
    k3i_err err;
    if (!load_bytes(s, url, url_bytes, where, &bytes, &n, fault))
        return false;
    k3_status status = K3_OK;
    if (n > s->config->max_bytes)
        status = k3i_fail(&err, K3_E_LIMIT, "%zu bytes, the limit is %zu", n, s->config->max_bytes);
    if (status == K3_OK)
        status = k3i_image_prepare(bytes, n, s->settings, &ret->patches, &err);
    if (status == K3_OK) {
        k3i_image_key(bytes, n, s->settings, s->model, digest);
        ret->key = key_of(s, digest);
    }
    k3i_free(bytes);
    if (status == K3_E_NOMEM)
        return k3i_fault_set(fault, 503, NULL, "%s: %s", where, err.text);
    if (status != K3_OK)
        return k3i_fault_set(fault, 400, "image_url", "%s: Failed to load image: %s", where,
                             err.text);
    return true;
}
