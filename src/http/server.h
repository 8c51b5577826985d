/* server.h: the HTTP server: sockets, uploads, keys, limits. One event loop owns all sockets; a few
 * workers read requests; the engine thread only wakes connections. */
#ifndef K3I_SERVER_H
#define K3I_SERVER_H

#include "api.h"

typedef struct k3i_server k3i_server;

/* Listens on host:port (port 0 = any free one). `api` outlives the server. Errors: K3_E_IO. */
k3_status k3i_server_start(k3i_api *api, const char *host, int32_t port, k3i_server **ret,
                           k3i_err *err);
int32_t k3i_server_port(const k3i_server *s);

/* Refuses new connections, lets running answers finish within the limit, cuts them then, and stops.
 * Frees the server. */
void k3i_server_stop(k3i_server *s, int64_t drain_ns);

#endif
