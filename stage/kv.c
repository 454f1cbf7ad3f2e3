#define LOG_MODULE "kv"
#include "stage/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/wire/frame.h"
#include "kernels/ops.h"
#include "stage/memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { KV_VERSION = 2 };

static const char magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};

/* What never changes while the pool lives comes first and has a checksum. */
struct kv_identity {
    char magic[8];
    uint32_t version, n_blocks;
    uint64_t id;
    struct kv_meaning meaning;
};

struct kv_header {
    struct kv_identity identity;
    uint32_t identity_crc;
    atomic_uint current;     /* which of the marks holds */
    struct kv_mark mark[2];
    struct kv_costs costs;
    uint32_t costs_crc;      /* of costs; written after them */
};

_Static_assert(sizeof(struct kv_header) <= KV_HEADER_BYTES, "the header is one page");

struct kv_shape kv_shape_of(const struct model *m, const struct msg_assign *a)
{
    const struct hparams *hp = &m->hp;
    struct kv_shape s = {.n_layers = a->end_layer - a->first_layer, .n_kv_heads = hp->n_kv_heads, .head_dim = hp->head_dim,
                         .block_positions = a->kv_block};
    s.window = kv_window_of(&(struct kv_window){.window = hp->window, .kv_block = a->kv_block, .slots = a->slots,
                                                .context = a->context, .max_rows = a->max_rows, .ticks = a->window});
    for (uint32_t l = 0; s.window.window && l < s.n_layers; l++)
        if (model_layer_window(m, a->first_layer + l))
            s.window_layers[l / 32] |= 1u << l % 32;
    return s;
}

size_t kv_layer_bytes(const struct kv_shape *s)
{
    return (size_t)s->n_kv_heads * 4 * s->head_dim * s->block_positions;
}

static int is_window(const struct kv_shape *s, uint32_t layer)
{
    return s->window_layers[layer / 32] >> layer % 32 & 1;
}

/* Of the layers before this one. */
static uint32_t n_window_layers(const struct kv_shape *s, uint32_t layer)
{
    uint32_t n = 0, words = s->window.window ? layer / 32 : 0;
    for (uint32_t i = 0; i < words; i++)
        n += (uint32_t)__builtin_popcount(s->window_layers[i]);
    return layer % 32 ? n + (uint32_t)__builtin_popcount(s->window_layers[layer / 32] << (32 - layer % 32)) : n;
}

size_t kv_block_bytes(const struct kv_shape *s)
{
    return (s->n_layers - n_window_layers(s, s->n_layers)) * kv_layer_bytes(s);
}

size_t kv_window_block_bytes(const struct kv_shape *s)
{
    return n_window_layers(s, s->n_layers) * kv_layer_bytes(s);
}

uint64_t kv_pool_bytes(const struct kv_shape *s, uint64_t n)
{
    uint32_t paged = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return n * kv_block_bytes(s) + (uint64_t)kv_window_blocks(&s->window, paged) * kv_window_block_bytes(s);
}

uint64_t kv_fd_resident(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* --- the header ------------------------------------------------------------------------------------------------------------- */

/* NULL: the identity is one of a pool of this meaning. Else what is wrong with it. */
static const char *identity_differs(const struct kv_identity *i, uint32_t crc, const struct kv_meaning *m)
{
    if (memcmp(i->magic, magic, sizeof magic) != 0 || i->version != KV_VERSION)
        return "it holds no pool of this version";
    if (crc != crc32c(0, i, sizeof *i) || i->id == 0)
        return "its header is damaged";
    if (memcmp(i->meaning.model_hash, m->model_hash, sizeof m->model_hash) != 0)
        return "it is of another model";
    if (i->meaning.first_layer != m->first_layer || i->meaning.end_layer != m->end_layer)
        return "it is of other layers";
    if (memcmp(&i->meaning, m, sizeof *m) != 0)
        return "its blocks have another form, type or numerics profile";
    return NULL;
}

uint32_t kv_pool_kept_blocks(int fd, const struct kv_meaning *m)
{
    struct kv_header h;
    struct stat st;
    if (fd < 0 || pread(fd, &h, sizeof h, 0) != sizeof h || identity_differs(&h.identity, h.identity_crc, m) ||
        fstat(fd, &st) != 0)
        return 0;
    const uint64_t bytes = KV_HEADER_BYTES + kv_pool_bytes(&m->shape, h.identity.n_blocks);
    return (uint64_t)st.st_size == bytes ? h.identity.n_blocks : 0;
}

static enum status name_content(struct kv_header *h, const struct kv_options *o, struct error *err)
{
    struct kv_identity *i = &h->identity;
    memset(h, 0, sizeof *h);
    memcpy(i->magic, magic, sizeof magic);
    i->version = KV_VERSION;
    i->n_blocks = o->n_blocks;
    i->meaning = o->meaning;
    while (i->id == 0)
        if (getrandom(&i->id, sizeof i->id, 0) != sizeof i->id)
            return error_set(err, STATUS_IO, "no random numbers to name a KV pool");
    h->identity_crc = crc32c(0, i, sizeof *i);
    return STATUS_OK;
}

uint64_t kv_pool_id(const struct kv_pool *p)
{
    return p->header->identity.id;
}

struct kv_mark kv_pool_watermark(const struct kv_pool *p)
{
    return p->header->mark[atomic_load(&p->header->current) & 1];
}

void kv_pool_mark(struct kv_pool *p, const struct kv_mark *m)
{
    const unsigned next = (atomic_load(&p->header->current) + 1) & 1;
    p->header->mark[next] = *m;
    atomic_store(&p->header->current, next);
}

int kv_pool_costs(const struct kv_pool *p, struct kv_costs *c)
{
    const struct kv_costs *kept = &p->header->costs;
    if (p->header->costs_crc != crc32c(0, kept, sizeof *kept) || kept->measured.cost_rows[0] == 0 ||
        memcmp(kept, c, offsetof(struct kv_costs, measured)) != 0)
        return 0;
    memcpy(c, kept, sizeof *c);
    return 1;
}

void kv_pool_keep_costs(struct kv_pool *p, const struct kv_costs *c)
{
    p->header->costs_crc = 0;
    memcpy(&p->header->costs, c, sizeof *c);
    p->header->costs_crc = crc32c(0, &p->header->costs, sizeof *c);
}

/* --- the mapping ------------------------------------------------------------------------------------------------------------ */

/* Takes every page now: a pool that does not fit is a status here, and would be SIGBUS in the middle of a tick. */
static int populate(uint8_t *data, size_t bytes, int fd)
{
    madvise(data, bytes, MADV_HUGEPAGE); /* a wish */
    if (kv_fd_resident(fd) >= bytes)
        return 0; /* every page is there already: looking at each costs a restart more than a tick's minor faults */
    if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    return errno == EINVAL ? posix_fallocate(fd, 0, (off_t)bytes) : errno;
}

/* A file of so many zeros, whatever it held; or the same file when the pool in it is kept. */
static enum status size_file(int fd, size_t bytes, int keep, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && (keep || st.st_size == 0 || ftruncate(fd, 0) == 0) &&
        (keep || ftruncate(fd, (off_t)bytes) == 0))
        return STATUS_OK;
    return error_set(err, STATUS_IO, "cannot size the KV pool's descriptor %d to %zu bytes: %s", fd, bytes, strerror(errno));
}

static enum status map(const struct kv_options *o, int fd, struct kv_pool *p, struct error *err)
{
    const size_t bytes = kv_pool_bytes(&o->meaning.shape, o->n_blocks), whole = KV_HEADER_BYTES + bytes;
    p->kept = kv_pool_kept_blocks(o->fd, &o->meaning) == o->n_blocks;
    TRY(size_file(fd, whole, p->kept, err));
    uint8_t *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int e = at == MAP_FAILED ? errno : o->lazy ? 0 : populate(at, whole, fd);
    if (e) {
        if (at != MAP_FAILED)
            munmap(at, whole);
        return error_set(err, STATUS_OUT_OF_MEMORY, "cannot map %s of KV: %s", memory_print(bytes).text, strerror(e));
    }
    p->shape = o->meaning.shape;
    p->n_blocks = o->n_blocks;
    p->n_window = kv_window_blocks(&o->meaning.shape.window, o->n_blocks);
    p->header = (struct kv_header *)(void *)at;
    p->data = at + KV_HEADER_BYTES;
    p->bytes = bytes;
    return STATUS_OK;
}

static void say_what_became(const struct kv_options *o, const struct kv_pool *p)
{
    const struct kv_mark m = kv_pool_watermark(p);
    if (p->kept)
        LOG_INFO("the KV pool is kept: %016llx, computed to tick %llu of epoch %llu", (unsigned long long)kv_pool_id(p),
                 (unsigned long long)m.tick, (unsigned long long)m.epoch);
    else if (o->fd >= 0)
        LOG_DEBUG("the KV pool is new: %016llx", (unsigned long long)kv_pool_id(p));
}

/* Why a pool that lies there is not taken up; nothing for an empty descriptor. */
static void say_why_lost(const struct kv_options *o)
{
    struct kv_header h;
    if (o->fd < 0 || pread(o->fd, &h, sizeof h, 0) != sizeof h)
        return;
    const char *why = identity_differs(&h.identity, h.identity_crc, &o->meaning);
    if (why || h.identity.n_blocks != o->n_blocks)
        LOG_WARN("the KV pool of an earlier process is not used: %s", why ? why : "it has another number of blocks");
}

enum status kv_pool_open(const struct kv_options *o, struct kv_pool *out, struct error *err)
{
    ASSERT(o->n_blocks > 0);
    struct kv_pool p = {0};
    const int fd = o->fd < 0 ? memfd_create("sluice-kv", MFD_CLOEXEC) : o->fd;
    if (fd < 0)
        return error_set(err, STATUS_IO, "cannot make a memfd for the KV pool: %s", strerror(errno));
    say_why_lost(o);
    enum status s = map(o, fd, &p, err);
    if (o->fd < 0)
        close(fd); /* the mapping keeps it */
    if (s == STATUS_OK && !p.kept)
        s = name_content(p.header, o, err);
    if (s != STATUS_OK) {
        kv_pool_close(&p);
        return s;
    }
    say_what_became(o, &p);
    *out = p;
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *p)
{
    if (!p->data)
        return;
    munmap(p->header, KV_HEADER_BYTES + p->bytes);
    *p = (struct kv_pool){0};
}

struct kv_view kv_pool_view(const struct kv_pool *p, uint32_t layer)
{
    const int window = is_window(&p->shape, layer);
    const uint32_t before = n_window_layers(&p->shape, layer);
    return (struct kv_view){
        .pool = window ? p->data + p->n_blocks * kv_block_bytes(&p->shape) : p->data,
        .block_stride = window ? kv_window_block_bytes(&p->shape) : kv_block_bytes(&p->shape),
        .layer_offset = (window ? before : layer - before) * kv_layer_bytes(&p->shape),
        .block_positions = p->shape.block_positions,
        .n_kv_heads = p->shape.n_kv_heads,
        .head_dim = p->shape.head_dim,
    };
}

int kv_pool_is_window(const struct kv_pool *p, uint32_t layer)
{
    return is_window(&p->shape, layer);
}
