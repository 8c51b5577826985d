/* media.h: from the URL of a picture to patches and a key. data: URLs always; http(s): only for the
 * domains that the operator allows, to public addresses, within limits. Runs on worker threads. */
#ifndef K3I_MEDIA_H
#define K3I_MEDIA_H

#include "fault.h"
#include "image.h"

typedef struct {
    const char *const
        *allowed_domains; /* [n]; empty = no http(s) at all (--allowed-media-domains) */
    int32_t n_allowed_domains;
    bool allow_private; /* also loopback, private and link-local addresses */
    size_t max_bytes;   /* of one encoded picture */
    int32_t max_images; /* of one request */
    int32_t timeout_s;  /* to fetch one */
    int32_t max_redirects;
} k3i_media_config;

/* Shared state: the keys of pictures seen. Thread-safe. */
typedef struct k3i_media_store k3i_media_store;

k3_status k3i_media_store_new(const k3i_media_config *config, const k3i_image_settings *settings,
                              const char *model, k3i_media_store **ret, k3i_err *err);
void k3i_media_store_free(k3i_media_store *s);

typedef struct {
    k3i_patches patches; /* owned: k3i_patches_done */
    uint64_t key;        /* equal for equal bytes and settings, else different: names engine rows */
} k3i_media_picture;

/* Loads one picture. `where` names it in messages. False with a fault. */
bool k3i_media_load(k3i_media_store *s, const char *url, size_t url_bytes, const char *where,
                    k3i_media_picture *ret, k3i_fault *fault);

#endif
