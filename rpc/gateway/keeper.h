/* rpc/gateway/keeper.h - the journal of one exchange, which outlives the process.
 *
 * Purpose    A memfd that a holder keeps beside the client's connection: everything that another gateway process needs to go on with the answer,
 *            written ahead of what it describes. It knows how an answer is framed on the wire and so which byte comes next; what its records mean is
 *            their writer's (completion_kept.h).
 *
 *              page 0     head: magic, version, two states and which of them holds (so a process that dies while it writes leaves the other)
 *              ring       the last KEEPER_RING_BYTES of a stream's content: what the client may not have yet
 *              records    request body, facts, ids, whole answers: appended, never changed
 *
 * Ownership  keeper_create/keeper_open, keeper_close; the descriptor is the keeper's. What a kept points to lies in the mapping and is valid until the next
 *            keeper_record or keeper_close. The memory is the last holder's.
 * Threading  One thread at a time (the exchange's lock). keeper_read and keeper_rest are pure.
 * Invariants 1. Nothing written counts before keeper_publish; no system call is made but where the file grows.
 *            2. content of the frame under way and all behind it is in the ring, else the keeper has failed.
 *            3. A frame is handed out only when the kernel has taken the one before it whole. (libmicrohttpd asks for more no earlier.)
 *            4. All journals of the process hold at most KEEPER_ALL_BYTES, one at most KEEPER_FILE_BYTES.
 * Errors     Sticky: keeper_failed; whoever holds the exchange lets it go then. An image that breaks the format: STATUS_PROTOCOL.
 */
#ifndef SLUICE_RPC_GATEWAY_KEEPER_H
#define SLUICE_RPC_GATEWAY_KEEPER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/error.h"

enum {
    KEEPER_PAGE = 4096,
    KEEPER_RING_BYTES = 128 << 10, /* twice what a stream's output holds before its maker is stopped */
    KEEPER_FRAME_MAX = 16 << 10, /* content of one frame */
    KEEPER_FILE_BYTES = 192 << 20,
    KEEPER_FRAME_EXTRA = 16, /* size line and line ends around a frame's content */
};
static const uint64_t KEEPER_ALL_BYTES = 1ull << 30;

enum keeper_framing { KEEPER_UNANSWERED = 0, KEEPER_CHUNKED = 1, KEEPER_LENGTH = 2 };

/* Positions are counts of bytes. wire_*: of the connection, as keeper_position counts them; content: of the answer's body without framing. */
struct keeper_state {
    uint64_t records_bytes;
    uint64_t produced;      /* content so far */
    uint64_t ring_base;     /* content before it is not in the ring */
    uint64_t handed;        /* content given to the connection, the frame under way included */
    uint64_t wire_begin;    /* before the response */
    uint64_t wire_body;     /* of the body's first byte, if body_known */
    uint64_t frame_at;      /* KEEPER_CHUNKED: where the frame under way begins, from wire_body */
    uint32_t frame_content; /* its content; 0: no frame is under way */
    uint32_t framing;       /* enum keeper_framing */
    uint32_t body_known;    /* the head was sent, or the journal has it as its last record KEEPER_HEAD */
    uint32_t ended;         /* no content comes any more */
    uint32_t last;          /* the last frame, which is empty, is under way */
    uint32_t attempt;       /* of the request at the coordinator: the highest that was used */
    uint32_t user_flags;    /* the writer's */
    uint32_t zero;
    uint64_t appended;      /* bytes of the KEEPER_APPENDED records that count */
};

/* Kinds of records; those from KEEPER_USER on belong to whoever writes the answer. */
enum { KEEPER_HEAD = 1, KEEPER_REPLY = 2, KEEPER_APPENDED = 3, KEEPER_USER = 16, KEEPER_KINDS = 32 };

struct keeper_record {
    uint32_t kind, len;
    const char *data;
};

/* KEEPER_REPLY: this, then the body; its content type is JSON. */
struct keeper_reply {
    uint32_t http, retry_after_s;
};

/* Somebody's journal, checked. */
struct kept {
    struct keeper_state state;
    const char *ring, *records;
};

struct keeper;

/* wire_begin: position of the connection, on which no byte of the response was sent. */
enum status keeper_create(uint64_t wire_begin, struct keeper **out);
/* Takes a journal over. fd passes to the keeper, on failure too. */
enum status keeper_open(int fd, struct keeper **out, struct error *err);
void keeper_close(struct keeper *k);
int keeper_fd(const struct keeper *k);
int keeper_failed(const struct keeper *k);

/* The state that the next publish makes valid. */
struct keeper_state *keeper_state(struct keeper *k);
void keeper_record(struct keeper *k, uint32_t kind, const void *data, size_t len);
/* One record made of several pieces. */
struct keeper_part {
    const void *data;
    size_t len;
};
void keeper_record_parts(struct keeper *k, uint32_t kind, const struct keeper_part *parts, size_t n);
/* A sequence of bytes of its own that grows by a few at a time, without a record for each. */
void keeper_append(struct keeper *k, const void *data, size_t len);
/* More content of a stream. */
void keeper_content(struct keeper *k, const void *data, size_t len);
void keeper_publish(struct keeper *k);
/* The next n bytes of content become the frame under way; n 0: everything is sent, nothing is under way; KEEPER_LAST: the last one.
 * At the first frame the position of fd is noted as the body's beginning. Publishes. */
enum { KEEPER_LAST = -1 };
void keeper_frame(struct keeper *k, long n, int fd);

/* What is published, for reading. */
void keeper_view(const struct keeper *k, struct kept *out);
enum status keeper_read(const void *image, size_t len, struct kept *out, struct error *err);
/* The record behind *at (0: the first); 0 when there is none. */
int keeper_next(const struct kept *k, uint64_t *at, struct keeper_record *out);
/* The last record of a kind; 0: none. */
int keeper_find(const struct kept *k, uint32_t kind, struct keeper_record *out);
/* Appends the sequence of keeper_append. */
enum status keeper_appended(const struct kept *k, struct buf *out);
/* Appends content [from, to) of the ring. */
enum status keeper_copy(const struct kept *k, uint64_t from, uint64_t to, struct buf *out);

/* What the connection still lacks, when it has taken `position` bytes. */
struct keeper_rest {
    int whole;           /* nothing of the response was sent: a head comes first */
    uint64_t head_left;  /* last bytes of the KEEPER_HEAD record */
    uint64_t frame_left; /* then the last bytes of the frame under way */
    uint64_t content_at; /* then content from here */
};
enum status keeper_rest(const struct keeper_state *s, uint64_t head_bytes, uint64_t position, struct keeper_rest *out);
uint64_t keeper_frame_bytes(const struct keeper_state *s); /* the frame under way, on the wire */
/* Writes the frame around n bytes of content, or the last one, as libmicrohttpd does. */
void keeper_frame_open(struct buf *out, size_t n);
void keeper_frame_close(struct buf *out);

/* Bytes that the kernel has taken for this TCP connection since it was made. */
enum status keeper_position(int fd, uint64_t *out);
/* Bytes that somebody has read from it. What the client sent and nobody read is there for the next process. */
enum status keeper_consumed(int fd, uint64_t *out);

#endif
