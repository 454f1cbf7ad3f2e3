/* tests/fuzz/replay.c - runs a fuzz target over a folder of inputs, for builds without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    size_t n = data && size > 0 ? fread(data, 1, (size_t)size, f) : 0;
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (e->d_name[0] != '.')
                n += replay(path);
        }
        if (d)
            closedir(d);
    }
    printf("%d inputs\n", n);
    return n == 0; /* an empty corpus tests nothing */
}
