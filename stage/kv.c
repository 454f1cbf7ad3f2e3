#include "stage/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"
#include "stage/memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

size_t kv_layer_bytes(const struct kv_shape *s)
{
    return (size_t)s->n_kv_heads * 4 * s->head_dim * s->block_positions;
}

size_t kv_block_bytes(const struct kv_shape *s)
{
    return s->n_layers * kv_layer_bytes(s);
}

uint64_t kv_fd_resident(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* Takes every page now: a pool that does not fit is a status here, and would be SIGBUS in the middle of a tick. */
static int populate(uint8_t *data, size_t bytes, int fd)
{
    madvise(data, bytes, MADV_HUGEPAGE); /* a wish */
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    return errno == EINVAL ? posix_fallocate(fd, 0, (off_t)bytes) : errno;
}

enum status kv_pool_open(const struct kv_shape *s, uint32_t n_blocks, int fd, struct kv_pool *out, struct error *err)
{
    ASSERT(n_blocks > 0 && s->block_positions % 16 == 0);
    size_t bytes = n_blocks * kv_block_bytes(s);
    int own = fd < 0 ? memfd_create("sluice-kv", MFD_CLOEXEC) : -1;
    int use = fd < 0 ? own : fd;
    if (use < 0)
        return error_set(err, STATUS_IO, "cannot make a memfd for the KV pool: %s", strerror(errno));
    struct stat st;
    if (fstat(use, &st) != 0 || (st.st_size != (off_t)bytes && ftruncate(use, (off_t)bytes) != 0)) {
        enum status e = error_set(err, STATUS_IO, "cannot size the KV pool's descriptor %d to %zu bytes: %s", use, bytes,
                                  strerror(errno));
        if (own >= 0)
            close(own);
        return e;
    }
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, use, 0);
    int e = data == MAP_FAILED ? errno : populate(data, bytes, use);
    if (e) {
        if (data != MAP_FAILED)
            munmap(data, bytes);
        if (own >= 0)
            close(own);
        return error_set(err, STATUS_OUT_OF_MEMORY, "cannot map %s of KV: %s", memory_print(bytes).text, strerror(e));
    }
    *out = (struct kv_pool){.shape = *s, .n_blocks = n_blocks, .data = data, .bytes = bytes, .own_fd = own};
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *p)
{
    if (!p->data)
        return;
    munmap(p->data, p->bytes);
    if (p->own_fd >= 0)
        close(p->own_fd);
    *p = (struct kv_pool){.own_fd = -1};
}

struct kv_view kv_pool_view(const struct kv_pool *p, uint32_t layer)
{
    return (struct kv_view){
        .pool = p->data,
        .block_stride = kv_block_bytes(&p->shape),
        .layer_offset = layer * kv_layer_bytes(&p->shape),
        .block_positions = p->shape.block_positions,
        .n_kv_heads = p->shape.n_kv_heads,
        .head_dim = p->shape.head_dim,
    };
}
