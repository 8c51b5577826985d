/* What k3i_free_memory makes of the files of a kernel, laid out under a folder of the test's own.
 */
#include "memory.h"
#include "test.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define GIB ((int64_t)1 << 30)

static char root[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static int new_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/k3-memory-XXXXXX");
    return mkdtemp(root) == NULL;
}

static int drop_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes root/name, with the folders that it lies in. */
static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = 0;
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* 64 GiB in all, 4 idle, 40 more held by files. */
static void machine_of_64_gib(void)
{
    put("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:         4194304 kB\n"
                        "MemAvailable:   46137344 kB\nBuffers:              12 kB\n");
}

static void machine_without_groups(void **state)
{
    (void)state;
    assert_int_equal(k3i_free_memory(root, 0), 0); /* no /proc */
    machine_of_64_gib();
    assert_int_equal(k3i_free_memory(root, 0), 44 * GIB);
    assert_int_equal(k3i_free_memory(root, 10 * GIB), 34 * GIB); /* of the files, 10 are weights */
    assert_int_equal(k3i_free_memory(root, 100 * GIB), 4 * GIB);
    put("proc/meminfo", "MemFree:         4194304 kB\n");
    assert_int_equal(k3i_free_memory(root, 0), 4 * GIB);
}

/* 8 GiB allowed, 6 taken, 3 of them by files. */
static void version_2(void **state)
{
    (void)state;
    machine_of_64_gib();
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "8589934592\n");
    put("sys/fs/cgroup/a/b/memory.current", "6442450944\n");
    put("sys/fs/cgroup/a/b/memory.stat", "anon 3221225472\nfile 3221225472\nactive_file_x 1\n"
                                         "inactive_file 1073741824\nactive_file 2147483648\n");
    assert_int_equal(k3i_free_memory(root, 0), 5 * GIB);
    assert_int_equal(k3i_free_memory(root, 1 * GIB), 4 * GIB);
    assert_int_equal(k3i_free_memory(root, 10 * GIB), 2 * GIB);
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(k3i_free_memory(root, 0), 44 * GIB);
    put("sys/fs/cgroup/a/memory.max", "1073741824\n"); /* the group above allows less */
    put("sys/fs/cgroup/a/memory.current", "1000\n");
    assert_int_equal(k3i_free_memory(root, 0), GIB - 1000);
    put("sys/fs/cgroup/a/memory.current", "2000000000\n"); /* the limit was lowered */
    assert_int_equal(k3i_free_memory(root, 0), 0);
}

/* In a container of its own namespace the group is "/"; where it is not, the path leads nowhere. */
static void version_2_seen_from_inside(void **state)
{
    (void)state;
    machine_of_64_gib();
    put("sys/fs/cgroup/memory.max", "2147483648\n");
    put("sys/fs/cgroup/memory.current", "1073741824\n");
    put("proc/self/cgroup", "0::/\n");
    assert_int_equal(k3i_free_memory(root, 0), GIB);
    put("proc/self/cgroup", "0::/docker/1234\n");
    assert_int_equal(k3i_free_memory(root, 0), GIB);
    put("proc/self/cgroup", "nonsense\n");
    assert_int_equal(k3i_free_memory(root, 0), 44 * GIB);
}

static void version_1(void **state)
{
    (void)state;
    machine_of_64_gib();
    put("proc/self/cgroup", "5:cpu,cpuacct:/c\n4:hugetlb,memory:/m\n1:name=memory:/n\n0::/\n");
    put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "4294967296\n");
    put("sys/fs/cgroup/memory/m/memory.usage_in_bytes", "3221225472\n");
    put("sys/fs/cgroup/memory/m/memory.stat", "active_file 5\ntotal_active_file 1073741824\n"
                                              "total_inactive_file 1073741824\n");
    put("sys/fs/cgroup/memory/n/memory.limit_in_bytes", "1\n");
    put("sys/fs/cgroup/memory/n/memory.usage_in_bytes", "1\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* unlimited */
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    assert_int_equal(k3i_free_memory(root, 0), 3 * GIB);
    assert_int_equal(k3i_free_memory(root, 9 * GIB), 1 * GIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(machine_without_groups, new_root, drop_root),
        cmocka_unit_test_setup_teardown(version_2, new_root, drop_root),
        cmocka_unit_test_setup_teardown(version_2_seen_from_inside, new_root, drop_root),
        cmocka_unit_test_setup_teardown(version_1, new_root, drop_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
