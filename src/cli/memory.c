/* memory.c: reads /proc/meminfo and the memory controller of control groups, version 1 and 2.
 *
 * Files that were read fill memory and give way when it is needed, the weights among them, which
 * should stay. So there is room for what nobody holds, and for files beyond the size of the
 * weights. A group's limit holds for all groups below it, hence the walk up to the root. A folder
 * that is not there belongs to a hierarchy whose upper part a container does not see. */
#include "memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The words in which a version of control groups says the same. */
typedef struct {
    const char *mount, *limit, *usage, *files[2];
} words;

static const words V1 = {"/sys/fs/cgroup/memory",
                         "memory.limit_in_bytes",
                         "memory.usage_in_bytes",
                         {"total_active_file", "total_inactive_file"}};
static const words V2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"active_file", "inactive_file"}};

/* The number behind the word `key` at the beginning of a line of root/folder/name, with key "" the
 * one at the file's beginning; -1: there is none. */
static int64_t number_in(const char *root, const char *folder, const char *name, const char *key)
{
    char path[PATH_BYTES], line[256], *end = NULL;
    size_t len = strlen(key);
    int64_t found = -1;
    int n = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "r") : NULL;
    if (f == NULL)
        return -1;
    while (found < 0 && fgets(line, sizeof line, f) != NULL) {
        long long x = strncmp(line, key, len) == 0 ? strtoll(line + len, &end, 10) : -1;
        if (x >= 0 && end != line + len)
            found = x;
        if (len == 0)
            break;
    }
    fclose(f);
    return found;
}

static int64_t room(int64_t idle, int64_t files, int64_t weight_bytes)
{
    return (idle > 0 ? idle : 0) + (files > weight_bytes ? files - weight_bytes : 0);
}

/* What the group at `path` and those above it leave; INT64_MAX without a limit. Shortens path. */
static int64_t room_in_groups(const char *root, const words *w, char *path, int64_t weight_bytes)
{
    char folder[PATH_BYTES + 32];
    int64_t least = INT64_MAX;
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", w->mount, path);
        int64_t limit = number_in(root, folder, w->limit, "");
        int64_t usage = number_in(root, folder, w->usage, "");
        if (limit >= 0 && usage >= 0) {
            int64_t files = 0;
            for (int i = 0; i < 2; i++) {
                int64_t x = number_in(root, folder, "memory.stat", w->files[i]);
                files += x > 0 ? x : 0;
            }
            int64_t here = room(limit - usage, files, weight_bytes);
            least = here < least ? here : least;
        }
        char *last = strrchr(path, '/');
        if (last == NULL)
            return least;
        *last = 0;
    }
}

/* Whether a comma-separated list of controllers names "memory". */
static bool has_memory(const char *list, size_t len)
{
    static const char NAME[] = "memory";
    for (size_t at = 0; at < len;) {
        size_t n = strcspn(list + at, ",:");
        if (n == sizeof NAME - 1 && memcmp(list + at, NAME, n) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

/* The lines of /proc/self/cgroup are "0::PATH" (version 2) and "N:CONTROLLERS:PATH" (version 1). */
static int64_t room_in_container(const char *root, int64_t weight_bytes)
{
    char line[PATH_BYTES];
    int64_t least = INT64_MAX;
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "r");
    if (f == NULL)
        return least;
    while (fgets(line, sizeof line, f) != NULL) {
        char *list = strchr(line, ':');
        char *path = list == NULL ? NULL : strchr(list + 1, ':');
        if (path == NULL)
            continue;
        list++;
        size_t len = (size_t)(path - list);
        path++;
        path[strcspn(path, "\n")] = 0;
        if (len > 0 && !has_memory(list, len))
            continue;
        int64_t here = room_in_groups(root, len == 0 ? &V2 : &V1, path, weight_bytes);
        least = here < least ? here : least;
    }
    fclose(f);
    return least;
}

int64_t k3i_free_memory(const char *root, int64_t weight_bytes)
{
    int64_t idle = number_in(root, "/proc", "meminfo", "MemFree:");
    int64_t available = number_in(root, "/proc", "meminfo", "MemAvailable:");
    idle = idle < 0 || idle > INT64_MAX / 1024 ? 0 : idle * 1024;
    available = available < 0 || available > INT64_MAX / 1024 ? 0 : available * 1024;
    int64_t machine = room(idle, available - idle, weight_bytes);
    int64_t container = room_in_container(root, weight_bytes);
    return container < machine ? container : machine;
}
