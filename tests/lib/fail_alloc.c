/* For LD_PRELOAD: lets one allocation of a running program fail (FC-52).
 *
 * SLUICE_FAIL_ALLOC names a folder. A program whose name is that of a file there maps this file: three int64, `countdown` (-1: nothing
 * fails; K: the K-th allocation from now on does, counted from 0), `calls` and `failed`, both counted here. What counts are
 * malloc, calloc and realloc that the program's own code calls, or libprotobuf-c on its behalf: sizes that come from a client. Those
 * of libraries that end the process without memory (gRPC's core) are not touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

struct control {
    _Atomic int64_t countdown, calls, failed;
};

enum { MAX_RANGES = 8 };

static struct control *_Atomic control;
static struct {
    uintptr_t from, to;
} ranges[MAX_RANGES];
static int n_ranges;

static int add_ranges(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    (void)ctx;
    int is_program = !info->dlpi_name || !info->dlpi_name[0];
    if (!is_program && !strstr(info->dlpi_name, "libprotobuf-c"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || n_ranges == MAX_RANGES)
            continue;
        ranges[n_ranges].from = info->dlpi_addr + p->p_vaddr;
        ranges[n_ranges++].to = info->dlpi_addr + p->p_vaddr + p->p_memsz;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    const char *folder = getenv("SLUICE_FAIL_ALLOC");
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, program_invocation_short_name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    dl_iterate_phdr(add_ranges, NULL);
    atomic_store(&control, map);
}

static int fails(const void *caller)
{
    struct control *c = atomic_load_explicit(&control, memory_order_acquire);
    uintptr_t at = (uintptr_t)caller;
    if (!c)
        return 0;
    for (int i = 0; i < n_ranges; i++)
        if (at >= ranges[i].from && at < ranges[i].to) {
            atomic_fetch_add(&c->calls, 1);
            if (atomic_load(&c->countdown) < 0 || atomic_fetch_sub(&c->countdown, 1) != 0)
                return 0;
            atomic_fetch_add(&c->failed, 1);
            errno = ENOMEM;
            return 1;
        }
    return 0;
}

void *malloc(size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, size);
}
