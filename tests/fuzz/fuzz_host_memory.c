/* tests/fuzz/fuzz_host_memory.c - what the kernel's files say of memory.
 *
 * Input      Texts with a 0 behind each: meminfo, cgroup, then in the order in which the groups ask: limit, usage, memory.stat. An
 *            empty one cannot be opened.
 * Must hold  There is never more than meminfo says is available, and every file is asked for below the root. Nothing is left open.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "stage/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

enum { MAX_SIZE = 8192 };

static struct {
    int inside;
    char *at, *end;
    const char *meminfo, *cgroup;
} world;

static const char *next_text(void)
{
    const char *text = world.at;
    world.at += world.at < world.end ? strlen(world.at) + 1 : 0;
    return text;
}

static int ends_with(const char *path, const char *with)
{
    const size_t n = strlen(path), m = strlen(with);
    return n >= m && strcmp(path + n - m, with) == 0;
}

FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (!world.inside)
        return __real_fopen(path, mode);
    CHECK(strncmp(path, "root/", 5) == 0);
    const char *text = ends_with(path, "/proc/meminfo")       ? world.meminfo
                       : ends_with(path, "/proc/self/cgroup") ? world.cgroup
                                                              : next_text();
    return text[0] ? fmemopen((void *)(uintptr_t)text, strlen(text), "r") : NULL;
}

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    return __wrap_fopen(path, mode);
}

/* The first line of meminfo that says it; 0: none does. */
static uint64_t said_available(const char *meminfo)
{
    for (const char *line = meminfo; *line;) {
        char copy[256];
        unsigned long long kib;
        const size_t len = strcspn(line, "\n");
        snprintf(copy, sizeof copy, "%.*s", (int)len, line);
        if (strncmp(copy, "MemAvailable:", 13) == 0 && sscanf(copy + 13, "%llu", &kib) == 1)
            return kib;
        line += len + (line[len] == '\n');
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MAX_SIZE + 2];
    if (size > MAX_SIZE)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = text[size + 1] = 0;
    world.at = text;
    world.end = text + size;
    world.meminfo = next_text();
    world.cgroup = next_text();
    world.inside = 1;
    const uint64_t available = memory_available("root");
    world.inside = 0;
    const uint64_t said = said_available(world.meminfo);
    if (said < UINT64_MAX / 1024 && strlen(world.meminfo) < 200) /* lines that are longer come in parts */
        CHECK(available <= said * 1024);
    return 0;
}
