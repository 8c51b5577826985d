/* fetch.h: pictures from http(s) URLs, for servers whose operator allows it. The name must be on
 * the list, and the address it resolves to is checked when the connection is made, so a name that
 * changes its address between check and use gains nothing. */
#ifndef K3I_FETCH_H
#define K3I_FETCH_H

#include "media.h"

#include <sys/socket.h>

/* *ret [*ret_n] is freed with k3i_free. False with a fault. */
bool k3i_fetch(const k3i_media_config *config, const char *url, size_t url_bytes, const char *where,
               uint8_t **ret, size_t *ret_n, k3i_fault *fault);

/* Is this an address of the public internet? (No loopback, private, link-local, multicast,
 * reserved, nor IPv6 forms that wrap such an IPv4 address.) */
bool k3i_is_public_address(const struct sockaddr *address);

/* Is the host on the list? Exact names, without regard to case; "*" stands for all. */
bool k3i_is_allowed_host(const k3i_media_config *config, const char *host);

/* Once per process, before threads start. */
bool k3i_fetch_init(void);

#endif
