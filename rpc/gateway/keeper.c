#include "rpc/gateway/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"

enum {
    FORMAT = 2,
    RECORDS_AT = KEEPER_PAGE + KEEPER_RING_BYTES,
    FIRST_RECORDS_BYTES = 64 << 10, /* untouched pages cost nothing */
    RECORD_ALIGN = 8,
    LAST_FRAME_BYTES = 5, /* "0\r\n\r\n" */
    APPEND_BYTES = 2040, /* a record of the appended sequence; with its head half a page */
};
static const char magic[8] = "SLUICEKJ";

struct record_head {
    uint32_t kind, len;
};

/* Page 0 of the file. */
struct head {
    char magic[8];
    uint32_t version;
    _Atomic uint32_t current;
    struct keeper_state states[2];
};
_Static_assert(sizeof(struct head) <= KEEPER_PAGE, "the head has one page");
_Static_assert((sizeof(struct record_head) + APPEND_BYTES) % RECORD_ALIGN == 0, "what is appended ends where its record does");

struct keeper {
    int fd, failed;
    char *map;
    size_t size;
    uint64_t at;               /* records written, published or not */
    uint64_t append_at;        /* place in the records for what is appended next, */
    size_t append_left;        /* and how much of it there is */
    struct keeper_state state; /* the next one */
};

static atomic_uint_fast64_t all_bytes;

/* --- the file --------------------------------------------------------------------------------------------------------- */

static struct head *head_of(const struct keeper *k)
{
    return (struct head *)(void *)k->map;
}

/* The mapping may move. */
static enum status grow(struct keeper *k, size_t size)
{
    size_t more = size - k->size;
    if (size > KEEPER_FILE_BYTES || atomic_fetch_add(&all_bytes, more) + more > KEEPER_ALL_BYTES) {
        if (size <= KEEPER_FILE_BYTES)
            atomic_fetch_sub(&all_bytes, more);
        return STATUS_FULL;
    }
    void *map = MAP_FAILED;
    if (ftruncate(k->fd, (off_t)size) == 0)
        map = k->map ? mremap(k->map, k->size, size, MREMAP_MAYMOVE)
                     : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
    if (map == MAP_FAILED) {
        atomic_fetch_sub(&all_bytes, more);
        return STATUS_OUT_OF_MEMORY;
    }
    k->map = map;
    k->size = size;
    return STATUS_OK;
}

enum status keeper_create(uint64_t wire_begin, struct keeper **out)
{
    struct keeper *k = calloc(1, sizeof *k);
    if (!k)
        return STATUS_OUT_OF_MEMORY;
    k->fd = memfd_create("sluice-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    enum status s = k->fd < 0 ? STATUS_IO : grow(k, RECORDS_AT + FIRST_RECORDS_BYTES);
    if (s == STATUS_OK && fcntl(k->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) /* whoever maps it next is not to die of SIGBUS */
        s = STATUS_IO;
    if (s != STATUS_OK) {
        keeper_close(k);
        return s;
    }
    struct head *h = head_of(k);
    memcpy(h->magic, magic, sizeof magic);
    h->version = FORMAT;
    k->state.wire_begin = wire_begin;
    keeper_publish(k);
    *out = k;
    return STATUS_OK;
}

/* Every record of the sequence is full but the last. */
static void find_append(struct keeper *k, const struct kept *kept)
{
    struct keeper_record r;
    uint64_t at = 0, left = kept->state.appended;
    while (keeper_next(kept, &at, &r)) {
        if (r.kind != KEEPER_APPENDED)
            continue;
        uint64_t used = left < r.len ? left : r.len;
        k->append_at = (uint64_t)(r.data - kept->records) + used;
        k->append_left = (size_t)(r.len - used);
        left -= used;
    }
}

enum status keeper_open(int fd, struct keeper **out, struct error *err)
{
    struct stat st;
    struct kept kept;
    struct keeper *k = calloc(1, sizeof *k);
    if (!k) {
        close(fd);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a journal");
    }
    k->fd = fd;
    enum status s = STATUS_OK;
    const int seals = fcntl(fd, F_GET_SEALS); /* -1: not even a memfd */
    if (fstat(fd, &st) != 0 || st.st_size < RECORDS_AT || seals < 0 || !(seals & F_SEAL_SHRINK))
        s = error_set(err, STATUS_PROTOCOL, "this is no journal of an exchange");
    else if (grow(k, (size_t)st.st_size) != STATUS_OK)
        s = error_set(err, STATUS_OUT_OF_MEMORY, "the journals of exchanges have no more room");
    else
        s = keeper_read(k->map, k->size, &kept, err);
    if (s != STATUS_OK) {
        keeper_close(k);
        return s;
    }
    k->state = kept.state;
    k->at = kept.state.records_bytes;
    find_append(k, &kept);
    *out = k;
    return STATUS_OK;
}

void keeper_close(struct keeper *k)
{
    if (k->map)
        munmap(k->map, k->size);
    atomic_fetch_sub(&all_bytes, k->size);
    if (k->fd >= 0)
        close(k->fd);
    free(k);
}

int keeper_fd(const struct keeper *k)
{
    return k->fd;
}

int keeper_failed(const struct keeper *k)
{
    return k->failed;
}

struct keeper_state *keeper_state(struct keeper *k)
{
    return &k->state;
}

/* --- writing ---------------------------------------------------------------------------------------------------------- */

/* What a record of len bytes takes in the file. */
static uint64_t padded(uint64_t len)
{
    return (sizeof(struct record_head) + len + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

/* What the file grows to for a record that ends there: to twice its size, as far as the bound allows. */
static uint64_t grown(const struct keeper *k, uint64_t end)
{
    const uint64_t twice = 2 * (uint64_t)k->size, most = twice < KEEPER_FILE_BYTES ? twice : KEEPER_FILE_BYTES;
    return end > most ? (end + KEEPER_PAGE - 1) / KEEPER_PAGE * KEEPER_PAGE : most;
}

/* Room for a record of len bytes, whose head is written; NULL when there is none. */
static char *add_record(struct keeper *k, uint32_t kind, size_t len)
{
    const uint64_t end = RECORDS_AT + k->at + padded(len);
    k->failed |= len > KEEPER_FILE_BYTES;
    if (!k->failed && end > k->size)
        k->failed = grow(k, grown(k, end)) != STATUS_OK;
    if (k->failed)
        return NULL;
    struct record_head h = {kind, (uint32_t)len};
    char *to = k->map + RECORDS_AT + k->at;
    memcpy(to, &h, sizeof h);
    k->at += padded(len);
    return to + sizeof h;
}

void keeper_record_parts(struct keeper *k, uint32_t kind, const struct keeper_part *parts, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += parts[i].len;
    char *to = add_record(k, kind, len);
    for (size_t i = 0; to && i < n; i++) {
        if (parts[i].len)
            memcpy(to, parts[i].data, parts[i].len);
        to += parts[i].len;
    }
}

void keeper_record(struct keeper *k, uint32_t kind, const void *data, size_t len)
{
    const struct keeper_part part = {data, len};
    keeper_record_parts(k, kind, &part, 1);
}

void keeper_append(struct keeper *k, const void *data, size_t len)
{
    static const char zeros[APPEND_BYTES];
    const char *from = data;
    while (len && !k->failed) {
        if (!k->append_left) {
            keeper_record(k, KEEPER_APPENDED, zeros, sizeof zeros);
            k->append_at = k->at - sizeof zeros;
            k->append_left = sizeof zeros;
            continue;
        }
        size_t n = len < k->append_left ? len : k->append_left;
        memcpy(k->map + RECORDS_AT + k->append_at, from, n);
        k->append_at += n;
        k->append_left -= n;
        k->state.appended += n;
        from += n;
        len -= n;
    }
}

void keeper_content(struct keeper *k, const void *data, size_t len)
{
    struct keeper_state *s = &k->state;
    const char *from = data;
    if (k->failed || s->produced + len - (s->handed - s->frame_content) > KEEPER_RING_BYTES) {
        k->failed = 1;
        return;
    }
    while (len) {
        size_t at = (s->produced - s->ring_base) % KEEPER_RING_BYTES, n = KEEPER_RING_BYTES - at;
        n = n < len ? n : len;
        memcpy(k->map + KEEPER_PAGE + at, from, n);
        s->produced += n;
        from += n;
        len -= n;
    }
}

void keeper_publish(struct keeper *k)
{
    struct head *h = head_of(k);
    if (k->failed)
        return;
    k->state.records_bytes = k->at;
    uint32_t other = !atomic_load_explicit(&h->current, memory_order_relaxed);
    h->states[other] = k->state;
    atomic_store_explicit(&h->current, other, memory_order_release);
}

static uint64_t hex_digits(uint64_t n)
{
    uint64_t digits = 1;
    while (n >>= 4)
        digits++;
    return digits;
}

uint64_t keeper_frame_bytes(const struct keeper_state *s)
{
    if (s->framing != KEEPER_CHUNKED)
        return s->frame_content;
    if (s->last)
        return LAST_FRAME_BYTES;
    return s->frame_content ? hex_digits(s->frame_content) + 2 + s->frame_content + 2 : 0;
}

void keeper_frame(struct keeper *k, long n, int fd)
{
    struct keeper_state *s = &k->state;
    if (k->failed)
        return;
    if (!s->body_known) {
        if (keeper_position(fd, &s->wire_body) != STATUS_OK) {
            k->failed = 1;
            return;
        }
        s->body_known = 1;
    }
    s->frame_at += keeper_frame_bytes(s);
    s->frame_content = n > 0 ? (uint32_t)n : 0;
    s->handed += s->frame_content;
    s->last = n == KEEPER_LAST;
    if (n == 0 && s->handed == s->produced)
        s->ring_base = s->produced; /* an idle stream begins the ring again, and so touches few of its pages */
    keeper_publish(k);
}

/* --- reading what another process wrote ------------------------------------------------------------------------------------ */

void keeper_view(const struct keeper *k, struct kept *out)
{
    const struct head *h = head_of(k);
    out->state = h->states[atomic_load_explicit(&h->current, memory_order_acquire)];
    out->ring = k->map + KEEPER_PAGE;
    out->records = k->map + RECORDS_AT;
}

static int state_is_sane(const struct keeper_state *s)
{
    const uint64_t far = 1ull << 60;
    if (s->produced > far || s->wire_begin > far || s->wire_body > far || s->frame_at > far || s->framing > KEEPER_LENGTH)
        return 0;
    if (s->handed > s->produced || s->frame_content > s->handed || s->frame_content > KEEPER_FRAME_MAX || s->last > 1)
        return 0;
    if (s->last && (s->frame_content || s->handed != s->produced || !s->ended))
        return 0;
    if (!s->body_known && (s->handed || s->frame_at || s->last)) /* a frame comes behind a head */
        return 0;
    if (s->framing == KEEPER_UNANSWERED)
        return !s->produced && !s->ring_base && !s->body_known && !s->ended;
    if (s->framing == KEEPER_LENGTH) /* its content is a record */
        return 1;
    return s->ring_base <= s->handed - s->frame_content && s->produced - (s->handed - s->frame_content) <= KEEPER_RING_BYTES;
}

int keeper_next(const struct kept *k, uint64_t *at, struct keeper_record *out)
{
    struct record_head h;
    if (*at >= k->state.records_bytes)
        return 0;
    memcpy(&h, k->records + *at, sizeof h);
    *out = (struct keeper_record){h.kind, h.len, k->records + *at + sizeof h};
    *at += padded(h.len);
    return 1;
}

/* The appended sequence ends in the last of its records: what is appended next would else not follow it. */
static int records_are_sane(const struct kept *k)
{
    uint64_t at = 0, end = k->state.records_bytes, n_before = 0, n_last = 0;
    struct record_head h;
    while (at < end) {
        if (end - at < sizeof h)
            return 0;
        memcpy(&h, k->records + at, sizeof h);
        if (padded(h.len) > end - at || h.kind == 0 || h.kind >= KEEPER_KINDS)
            return 0;
        if (h.kind == KEEPER_APPENDED) {
            n_before += n_last;
            n_last = h.len;
        }
        at += padded(h.len);
    }
    return k->state.appended - n_before <= n_last && (k->state.appended > n_before || !n_last);
}

enum status keeper_read(const void *image, size_t len, struct kept *out, struct error *err)
{
    struct head h;
    if (len < RECORDS_AT)
        return error_set(err, STATUS_PROTOCOL, "a journal of %zu bytes is cut off", len);
    memcpy(&h, image, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0 || h.version != FORMAT || h.current > 1)
        return error_set(err, STATUS_PROTOCOL, "the journal is another version's");
    struct kept k = {h.states[h.current], (const char *)image + KEEPER_PAGE, (const char *)image + RECORDS_AT};
    if (!state_is_sane(&k.state) || k.state.records_bytes > len - RECORDS_AT || !records_are_sane(&k))
        return error_set(err, STATUS_PROTOCOL, "the journal contradicts itself");
    *out = k;
    return STATUS_OK;
}

int keeper_find(const struct kept *k, uint32_t kind, struct keeper_record *out)
{
    struct keeper_record r;
    uint64_t at = 0;
    int found = 0;
    while (keeper_next(k, &at, &r))
        if (r.kind == kind) {
            *out = r;
            found = 1;
        }
    return found;
}

enum status keeper_appended(const struct kept *k, struct buf *out)
{
    struct keeper_record r;
    uint64_t at = 0, left = k->state.appended;
    while (left && keeper_next(k, &at, &r)) {
        if (r.kind != KEEPER_APPENDED)
            continue;
        size_t n = left < r.len ? (size_t)left : r.len;
        TRY(buf_append(out, r.data, n));
        left -= n;
    }
    return STATUS_OK;
}

enum status keeper_copy(const struct kept *k, uint64_t from, uint64_t to, struct buf *out)
{
    const struct keeper_state *s = &k->state;
    if (from < s->ring_base || to < from || to > s->produced || s->produced - from > KEEPER_RING_BYTES)
        return STATUS_PROTOCOL;
    while (from < to) {
        size_t at = (from - s->ring_base) % KEEPER_RING_BYTES, n = KEEPER_RING_BYTES - at;
        n = n < to - from ? n : to - from;
        TRY(buf_append(out, k->ring + at, n));
        from += n;
    }
    return STATUS_OK;
}

/* --- where the wire stands ---------------------------------------------------------------------------------------------- */

/* frame_at: the frame begins there; it is under way. */
static enum status rest_of_body(const struct keeper_state *s, uint64_t at, struct keeper_rest *out)
{
    if (s->framing == KEEPER_LENGTH) {
        out->content_at = at;
        return at == s->handed || (at < s->handed && !s->last) ? STATUS_OK : STATUS_PROTOCOL;
    }
    uint64_t frame = keeper_frame_bytes(s);
    if (at < s->frame_at || at - s->frame_at > frame)
        return STATUS_PROTOCOL;
    out->frame_left = frame - (at - s->frame_at);
    out->content_at = s->handed;
    return STATUS_OK;
}

enum status keeper_rest(const struct keeper_state *s, uint64_t head_bytes, uint64_t position, struct keeper_rest *out)
{
    *out = (struct keeper_rest){0};
    if (position < s->wire_begin)
        return STATUS_PROTOCOL;
    if (s->framing == KEEPER_UNANSWERED || (!s->body_known && position == s->wire_begin)) {
        out->whole = 1;
        return position == s->wire_begin ? STATUS_OK : STATUS_PROTOCOL;
    }
    if (!s->body_known) /* the head is sent in one piece, and the first frame was not made yet */
        return STATUS_OK;
    if (position >= s->wire_body)
        return rest_of_body(s, position - s->wire_body, out);
    out->head_left = s->wire_body - position;
    if (out->head_left > head_bytes || s->handed || s->last)
        return STATUS_PROTOCOL;
    return STATUS_OK;
}

void keeper_frame_open(struct buf *out, size_t n)
{
    buf_printf(out, "%zX\r\n", n);
}

void keeper_frame_close(struct buf *out)
{
    buf_text(out, "\r\n");
}

static enum status read_info(int fd, struct tcp_info *out)
{
    socklen_t len = sizeof *out;
    memset(out, 0, sizeof *out);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, out, &len) != 0)
        return STATUS_IO;
    const size_t needed = offsetof(struct tcp_info, tcpi_bytes_received) + sizeof out->tcpi_bytes_received;
    return len < needed ? STATUS_UNSUPPORTED : STATUS_OK;
}

/* A count of the connection and one of its queue, of the same moment: what moves in between would be counted twice or not at all. */
static enum status read_together(int fd, unsigned long queue, int *queued, struct tcp_info *out)
{
    enum { TRIES = 1000 };
    struct tcp_info before;
    for (int i = 0; i < TRIES; i++) {
        TRY(read_info(fd, &before));
        if (ioctl(fd, queue, queued) != 0)
            return STATUS_IO;
        TRY(read_info(fd, out));
        if (before.tcpi_bytes_acked == out->tcpi_bytes_acked && before.tcpi_bytes_received == out->tcpi_bytes_received)
            return STATUS_OK;
    }
    return STATUS_IO;
}

enum status keeper_position(int fd, uint64_t *out)
{
    struct tcp_info info;
    int queued = 0;
    TRY(read_together(fd, SIOCOUTQ, &queued, &info));
    *out = info.tcpi_bytes_acked + (uint64_t)queued;
    return STATUS_OK;
}

enum status keeper_consumed(int fd, uint64_t *out)
{
    struct tcp_info info;
    int unread = 0;
    TRY(read_together(fd, SIOCINQ, &unread, &info));
    *out = info.tcpi_bytes_received - (uint64_t)unread;
    return STATUS_OK;
}
