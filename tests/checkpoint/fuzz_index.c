/* Any bytes as model.safetensors.index.json beside one valid shard. */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void write_file(const char *name, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, n, f) != n)
        abort();
    fclose(f);
}

static void remove_folder(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (dir[0] == 0) {
        static const char header[] =
            "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
        char shard[8 + sizeof header] = {(char)(sizeof header - 1)};
        memcpy(shard + 8, header, sizeof header); /* the NUL is the byte of data */
        snprintf(dir, sizeof dir, "/tmp/k3-fuzz-XXXXXX");
        if (mkdtemp(dir) == NULL)
            abort();
        atexit(remove_folder);
        write_file("a.safetensors", shard, sizeof shard);
    }
    write_file("model.safetensors.index.json", data, size);
    k3i_ckpt *ck;
    k3i_err err;
    if (k3i_ckpt_open(dir, &ck, &err) == K3_OK) {
        if (k3i_ckpt_count(ck) != 1 || k3i_ckpt_find(ck, "x") == NULL)
            abort();
        k3i_ckpt_free(ck);
    }
    return 0;
}
