#include "common/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status file_read(const char *path, size_t max_bytes, char **out, size_t *len, struct error *err)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return error_set(err, STATUS_CONFIG, "%.200s: %s", path, strerror(errno));
    char *text = malloc(max_bytes + 1);
    const size_t n = text ? fread(text, 1, max_bytes + 1, f) : 0;
    const int bad = text && ferror(f) ? errno : 0;
    fclose(f);
    if (text && !bad && n <= max_bytes) {
        text[n] = 0;
        *out = text;
        *len = n;
        return STATUS_OK;
    }
    free(text);
    if (!text)
        return error_set(err, STATUS_OUT_OF_MEMORY, "%.200s: no memory for it", path);
    if (bad)
        return error_set(err, STATUS_CONFIG, "%.200s: %s", path, strerror(bad));
    return error_set(err, STATUS_CONFIG, "%.200s: more than %g MiB", path, (double)max_bytes / (1 << 20));
}
