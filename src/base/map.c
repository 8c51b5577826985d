/* map.c: mmap and whole-file reads with errors that name the file. */
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Which part of the path is missing, in the words of a person. */
static k3_status fail_open(const char *path, int why, k3i_err *err)
{
    struct stat st;
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL ? 0 : (size_t)(slash - path);
    if (why != ENOENT && why != ENOTDIR)
        return k3i_fail(err, K3_E_IO, "%s: cannot be opened: %s", path, strerror(why));
    if (n > 0 && n < sizeof dir) {
        memcpy(dir, path, n);
        dir[n] = 0;
        if (stat(dir, &st) != 0)
            return k3i_fail(err, K3_E_IO, "%s: no such folder", dir);
        if (!S_ISDIR(st.st_mode))
            return k3i_fail(err, K3_E_IO, "%s: not a folder", dir);
    }
    return k3i_fail(err, K3_E_IO, "%s: no such file", path);
}

static k3_status open_regular(const char *path, int *ret_fd, size_t *ret_bytes, k3i_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_open(path, errno, err);
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return k3i_fail(err, K3_E_IO, "%s: is not a regular file", path);
    }
    *ret_fd = fd;
    *ret_bytes = (size_t)st.st_size;
    return K3_OK;
}

/* bytes of fd into `to`. */
static k3_status read_all(int fd, const char *path, char *to, size_t bytes, k3i_err *err)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, to + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return k3i_fail(err, K3_E_IO, "%s: read stopped at byte %zu of %zu", path, got, bytes);
        got += (size_t)n;
    }
    return K3_OK;
}

static k3_status read_small(int fd, const char *path, size_t bytes, k3i_map *ret, k3i_err *err)
{
    char *copy = k3i_alloc(bytes + K3I_ALIGN);
    if (copy == NULL)
        return k3i_fail(err, K3_E_NOMEM, "%s: no memory for %zu bytes", path, bytes);
    k3_status st = read_all(fd, path, copy, bytes, err);
    if (st != K3_OK) {
        k3i_free(copy);
        return st;
    }
    *ret = (k3i_map){.data = (const uint8_t *)copy, .bytes = bytes, .copy = copy};
    return K3_OK;
}

static k3_status map_large(int fd, const char *path, size_t bytes, k3i_map *ret, k3i_err *err)
{
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return k3i_fail(err, K3_E_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    /* Weights stream faster through large pages: the processor's prefetching stops at the end of a
     * page. The kernel reads files so where the file system can (ext4 from Linux 6.16, xfs, btrfs);
     * what is in the page cache already stays as it is. */
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    *ret = (k3i_map){.data = p, .bytes = bytes};
    return K3_OK;
}

k3_status k3i_map_open(const char *path, size_t read_max, k3i_map *ret, k3i_err *err)
{
    int fd;
    size_t bytes;
    k3_status st = open_regular(path, &fd, &bytes, err);
    if (st != K3_OK)
        return st;
    if (bytes == 0) {
        *ret = (k3i_map){0};
    } else {
        st = (bytes <= read_max ? read_small : map_large)(fd, path, bytes, ret, err);
    }
    close(fd);
    return st;
}

void k3i_map_align(k3i_map *map, size_t at)
{
    if (map->copy == NULL)
        return;
    char *to = map->copy + (K3I_ALIGN - at % K3I_ALIGN) % K3I_ALIGN;
    memmove(to, map->data, map->bytes);
    map->data = (const uint8_t *)to;
}

void k3i_map_close(k3i_map *map)
{
    if (map == NULL || map->data == NULL)
        return;
    if (map->copy != NULL) {
        k3i_free(map->copy);
    } else {
        munmap((void *)(uintptr_t)map->data, map->bytes);
    }
    *map = (k3i_map){0};
}

k3_status k3i_read_file(const char *path, size_t max_bytes, char **ret, size_t *ret_bytes,
                        k3i_err *err)
{
    int fd;
    size_t bytes;
    k3_status st = open_regular(path, &fd, &bytes, err);
    if (st != K3_OK)
        return st;
    char *text = NULL;
    if (bytes > max_bytes) {
        st = k3i_fail(err, K3_E_LIMIT, "%s: has %zu bytes, the limit is %zu", path, bytes,
                      max_bytes);
        goto out;
    }
    text = k3i_alloc(bytes + 1);
    if (text == NULL) {
        st = k3i_fail(err, K3_E_NOMEM, "%s: no memory for %zu bytes", path, bytes);
        goto out;
    }
    st = read_all(fd, path, text, bytes, err);
    if (st != K3_OK)
        goto out;
    text[bytes] = 0;
    *ret = text;
    *ret_bytes = bytes;
    text = NULL;
out:
    k3i_free(text);
    close(fd);
    return st;
}

k3_status k3i_read_in(const char *dir, const char *name, size_t max_bytes, char ret_path[K3I_PATH],
                      char **ret, size_t *ret_bytes, k3i_err *err)
{
    if ((size_t)snprintf(ret_path, K3I_PATH, "%s/%s", dir, name) >= K3I_PATH)
        return k3i_fail(err, K3_E_LIMIT, "%.100s...: the path is too long", dir);
    return k3i_read_file(ret_path, max_bytes, ret, ret_bytes, err);
}
