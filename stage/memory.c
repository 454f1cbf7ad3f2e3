#include "stage/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* Reads one number that a file holds alone ("max" and unreadable: 0). */
static int read_number(const char *path, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    unsigned long long v;
    int found = fscanf(f, "%llu", &v) == 1;
    fclose(f);
    if (found)
        *out = v;
    return found;
}

/* The number behind a key at the start of a line. */
static int read_key(const char *path, const char *key, uint64_t *out)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[256];
    size_t len = strlen(key);
    int found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long v;
        found = strncmp(line, key, len) == 0 && sscanf(line + len, "%llu", &v) == 1;
        if (found)
            *out = v;
    }
    fclose(f);
    return found;
}

struct cgroup_files {
    const char *mount, *limit, *usage, *reclaimable;
};

static const struct cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
static const struct cgroup_files cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_inactive_file "};

static uint64_t cgroup_left(const char *root, const struct cgroup_files *files, const char *group)
{
    char path[1024];
    uint64_t limit, usage, reclaimable = 0;
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->limit);
    if (!read_number(path, &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->usage);
    if (!read_number(path, &usage))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, files->mount, group);
    read_key(path, files->reclaimable, &reclaimable);
    usage -= reclaimable < usage ? reclaimable : usage;
    return limit > usage ? limit - usage : 0;
}

/* The least over a group and all groups above it; a limit anywhere on the way binds. In a container the path may name
 * groups that are not mounted: those are passed over, and the mount's own root is looked at in the end. */
static uint64_t cgroup_least(const char *root, const struct cgroup_files *files, char *group)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t left = cgroup_left(root, files, group);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

static uint64_t cgroups_least(const char *root)
{
    char path[1024], line[1024];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    uint64_t least = UINT64_MAX;
    while (fgets(line, sizeof line, f)) { /* "ID:CONTROLLERS:PATH"; v2 has no controllers */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        const struct cgroup_files *files = controllers[1] == 0                 ? &cgroup_v2
                                           : strcmp(controllers + 1, "memory") == 0 ? &cgroup_v1
                                                                                    : NULL;
        uint64_t left = files ? cgroup_least(root, files, group) : UINT64_MAX;
        least = left < least ? left : least;
    }
    fclose(f);
    return least;
}

uint64_t memory_available(const char *root)
{
    char path[1024];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_key(path, "MemAvailable:", &kib))
        return 0;
    uint64_t group = cgroups_least(root);
    return kib * 1024 < group ? kib * 1024 : group;
}

uint64_t memory_mappable(const char *root)
{
    char path[1024];
    struct rlimit limit;
    uint64_t pages = 0; /* the first number of statm: all that is mapped */
    snprintf(path, sizeof path, "%s/proc/self/statm", root);
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || !read_number(path, &pages))
        return UINT64_MAX;
    const uint64_t mapped = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > mapped ? limit.rlim_cur - mapped : 1;
}

uint64_t memory_within_limit(uint64_t room)
{
    const uint64_t mappable = memory_mappable("");
    return mappable != UINT64_MAX && (room == 0 || mappable < room) ? mappable : room;
}

enum status memory_map(size_t bytes, struct memory_region *out, struct error *err)
{
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    size_t rounded = (bytes + align - 1) / align * align;
    size_t mapping_bytes = rounded + (align == HUGE_PAGE ? HUGE_PAGE : 0);
    if (rounded < bytes || mapping_bytes < rounded || bytes == 0)
        return error_set(err, STATUS_OUT_OF_MEMORY, "cannot map %zu bytes", bytes);
    void *p = mmap(NULL, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return error_set(err, STATUS_OUT_OF_MEMORY, "cannot map %s: %s", memory_print(bytes).text, strerror(errno));
    uintptr_t at = ((uintptr_t)p + align - 1) / align * align;
    madvise((void *)at, rounded, MADV_HUGEPAGE); /* a wish; small pages work as well */
    *out = (struct memory_region){
        .data = (uint8_t *)at, .bytes = rounded, .mapping = p, .mapping_bytes = mapping_bytes};
    return STATUS_OK;
}

void memory_unmap(struct memory_region *r)
{
    if (r->mapping)
        munmap(r->mapping, r->mapping_bytes);
    *r = (struct memory_region){0};
}

struct memory_text memory_print(uint64_t bytes)
{
    struct memory_text t;
    int gib = bytes >= 1u << 30;
    snprintf(t.text, sizeof t.text, "%.1f %s", (double)bytes / (gib ? 1u << 30 : 1u << 20), gib ? "GiB" : "MiB");
    return t;
}
