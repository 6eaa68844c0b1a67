/* Runs a fuzz target over the files of a kept corpus, in builds that have no libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static int replay(const char *dir, const char *name)
{
    char path[4096];
    static uint8_t data[1 << 20];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    size_t length = fread(data, 1, sizeof(data), file);
    int failed = ferror(file);
    (void)fclose(file);
    /* A block of its own length, so that sanitizers see a read beyond it. */
    uint8_t *block = malloc(length > 0 ? length : 1);
    if (failed != 0 || block == NULL) {
        free(block);
        return -1;
    }
    for (size_t i = 0; i < length; i++) {
        block[i] = data[i];
    }
    (void)LLVMFuzzerTestOneInput(block, length);
    free(block);
    return 0;
}

int main(int argc, char **argv)
{
    int files = 0;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (dir == NULL) {
        (void)fprintf(stderr, "usage: %s CORPUS-DIRECTORY\n", argv[0]);
        return 2;
    }
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_type == DT_REG) {
            if (replay(argv[1], entry->d_name) != 0) {
                return 1;
            }
            files++;
        }
    }
    (void)closedir(dir);
    (void)printf("%d inputs replayed\n", files);
    return files > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
