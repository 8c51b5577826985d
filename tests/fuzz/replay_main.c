/* Runs a fuzz target once over every file of the folders and files named on the command line, so
 * that found inputs stay tested by any compiler. Owns nothing; files are read whole. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (f == NULL || fstat(fileno(f), &st) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        if (f != NULL)
            fclose(f);
        return 1;
    }
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size + 1);
    int failed = data == NULL || fread(data, 1, size, f) != size;
    if (!failed)
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    fclose(f);
    return failed;
}

static int replay(const char *path, size_t *n)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        (*n)++;
        return replay_file(path);
    }
    int failed = 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (e->d_name[0] == '.')
            continue;
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        failed |= replay_file(file);
        (*n)++;
    }
    closedir(dir);
    return failed;
}

int main(int argc, char **argv)
{
    size_t n = 0;
    int failed = LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i], &n);
    printf("%zu inputs replayed\n", n);
    return failed;
}
