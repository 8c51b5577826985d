/* map.h: whole files, mapped read-only or read into memory. */
#ifndef K3I_MAP_H
#define K3I_MAP_H

#include "alloc.h"

typedef struct {
    const uint8_t *data; /* NULL if bytes is 0 */
    size_t bytes;
    char *copy; /* owned: what a small file was read into; or NULL: mapped, and page-aligned */
} k3i_map;

/* Maps a regular file, shared between processes, or reads it if it has at most read_max bytes:
 * memory in large pages, which files seldom have, is worth more to a small file than sharing it.
 * Errors: K3_E_IO naming the path, K3_E_NOMEM. */
k3_status k3i_map_open(const char *path, size_t read_max, k3i_map *ret, k3i_err *err);
/* Moves a file that was read so that its byte `at` <= bytes begins a cache line. */
void k3i_map_align(k3i_map *map, size_t at);
void k3i_map_close(k3i_map *map);

/* Reads a regular file of at most max_bytes; a NUL follows the contents. Free *ret with k3i_free.
 */
k3_status k3i_read_file(const char *path, size_t max_bytes, char **ret, size_t *ret_bytes,
                        k3i_err *err);

/* The same for the file `name` in the folder `dir`. Its path stays in ret_path, for what else is to
 * be said about it. */
#define K3I_PATH 4096
k3_status k3i_read_in(const char *dir, const char *name, size_t max_bytes, char ret_path[K3I_PATH],
                      char **ret, size_t *ret_bytes, k3i_err *err);

#endif
