/* rpc/gateway/exchange.h - one HTTP request and what is answered to it.
 *
 * Purpose    Stands between libmicrohttpd, which pulls, and whoever makes the answer, which pushes from other threads: a
 *            whole reply, or a stream through a bounded buffer. It suspends the connection while there is nothing to send
 *            and resumes it when there is. An exchange whose connection a holder keeps (exchange_hold) writes a journal of what it
 *            hands out; one that this process took over from a dead one (adopt.h) has no libmicrohttpd: adopt.c pulls and writes.
 *            It does not know paths, JSON or the coordinator.
 * Ownership  Counted. The server holds one reference from the first header to the end of the request; an operation that
 *            waits for somebody else holds one more. ops->fini frees the operation with the last reference.
 * Threading  `lock` guards everything below it. Functions marked (locked) want it held. The lists of the server are taken
 *            without it.
 * Invariants 1. conn is not NULL exactly while libmicrohttpd knows the request; only then it may be resumed.
 *            2. There is one reply: whole or stream. Later ones are ignored.
 *               An adopted exchange has conn NULL and adopted not NULL, until it is completed.
 *            3. The output holds at most EXCHANGE_OUT_MAX bytes; whoever pushes stops at EXCHANGE_OUT_HIGH and goes on after
 *               ops->room.
 *            4. With a journal, what is in the output is in the journal before anybody can take it.
 * Errors     A reply that cannot be built for want of memory ends the connection.
 *
 *      READING --body is whole--> WORKING --reply/begin--> ANSWERING --all read, or gone--> COMPLETED
 *                                    \----------- the client left: gone ----------------------^
 */
#ifndef SLUICE_RPC_GATEWAY_EXCHANGE_H
#define SLUICE_RPC_GATEWAY_EXCHANGE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/base/list.h"
#include "rpc/gateway/auth.h"

enum { EXCHANGE_OUT_HIGH = 64 << 10, EXCHANGE_OUT_LOW = 16 << 10, EXCHANGE_OUT_MAX = 8 << 20 };
/* Socket buffer of a stream: a client that does not read is noticed by what it does not acknowledge, so the kernel must not
 * take megabytes on its behalf. */
enum { EXCHANGE_SNDBUF = 64 << 10 };

struct adopted;
struct exchange;
struct gateway;
struct keeper;
struct route;

struct exchange_ops {
    void (*tick)(struct exchange *x, int64_t now_ns);              /* (locked) about every 50 ms */
    void (*gone)(struct exchange *x);                              /* (locked) once: the client left */
    void (*room)(struct exchange *x);                              /* (locked) the output fell below EXCHANGE_OUT_LOW */
    void (*expire)(struct exchange *x, const struct error *why);   /* (locked) the process ends */
    void (*build)(struct exchange *x);                             /* what server_hand_over leads to, once it is started */
    void (*fini)(struct exchange *x);                              /* the last reference went */
};

struct exchange {
    struct gateway *gw;
    uint64_t serial; /* never used twice */
    struct list link; /* in the server's list; guarded by its lock */
    atomic_int refs;
    const struct route *route;
    char request_id[132], client[CLIENT_BYTES];
    int named_by_client; /* request_id is what the client sent as x-request-id: perhaps not the only one of that name */
    const char *path_rest; /* what follows a route's prefix; valid while the request is being read and started */

    pthread_mutex_t lock;
    struct MHD_Connection *conn;
    int fd;
    const struct exchange_ops *ops;
    void *op;
    struct buf body;
    size_t body_discarded;
    int refused; /* a reply was made before the body was read */
    int started, suspended, gone, watched;
    int have_reply, streaming, ended, http;
    int retry_after_s;
    const char *content_type, *allow;
    struct buf out;
    int full; /* somebody waits for room */
    struct adopted *adopted;
    struct keeper *keeper; /* NULL: nothing is held */
    uint64_t held_id;      /* 0: the holder has not got it yet */
    size_t out_kept;       /* bytes of out that are in the journal */
    size_t out_taken;      /* of a whole reply, which may be large: it is not moved for each piece that goes */
    int can_hold, close_after; /* HTTP/1.1 without TLS; the client wants the connection closed */
    int64_t started_ns, acked_ns, stall_check_ns;
    uint64_t acked_bytes;
};

struct exchange *exchange_create(struct gateway *gw, struct MHD_Connection *conn);
/* One whose connection another process began; conn is NULL. */
struct exchange *exchange_create_adopted(struct gateway *gw, int fd);
void exchange_retain(struct exchange *x);
void exchange_release(struct exchange *x);

/* (locked) A whole reply; what body holds is taken. */
void exchange_reply(struct exchange *x, int http, const char *content_type, struct buf *body);
void exchange_reply_error(struct exchange *x, const struct error *err);
/* (locked) A stream: 200, text/event-stream. Write appends, end closes after what is there. */
void exchange_stream_begin(struct exchange *x);
struct buf *exchange_stream_out(struct exchange *x);
void exchange_stream_written(struct exchange *x);
void exchange_stream_end(struct exchange *x);

/* (locked) From here on the exchange may outlive this process. Before it is answered; once. NULL: it cannot. What is written to the
 * journal then counts with the next exchange_publish, or with what the exchange itself publishes: text, its end, a whole reply. */
struct keeper *exchange_hold(struct exchange *x);
void exchange_publish(struct exchange *x);
/* (locked) It is not held any more. */
void exchange_unhold(struct exchange *x);

/* (locked) The next bytes of the answer's body: their number, 0 when there are none now (the exchange is suspended then), or
 * one of these. */
enum { EXCHANGE_END = -1, EXCHANGE_GONE = -2 };
long exchange_take(struct exchange *x, char *to, size_t max);
/* The headers of the reply but for framing, one after the other. */
void exchange_headers(const struct exchange *x, void (*add)(void *ctx, const char *name, const char *value), void *ctx);

/* (locked) The client left, or is thrown out. Calls ops->gone once. */
void exchange_leave(struct exchange *x);
/* (locked) Whether the client has acknowledged nothing for stall_ms though something is on its way. */
int exchange_stalled(struct exchange *x, int64_t now_ns, int64_t stall_ms);
/* Hands the reply to libmicrohttpd; on its thread, without the lock. The reply's head does not change any more. */
enum MHD_Result exchange_queue(struct exchange *x);

#endif
