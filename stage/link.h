/* stage/link.h - bytes between neighbouring stages.
 *
 * Purpose    `struct link` is one direction of bytes between two stages; `struct link_port` is how a stage gets its two links
 *            of an epoch. link_tcp.c does both over TCP and UNIX sockets, link_mem.c inside one process. What the bytes mean
 *            is common/wire/frame.h and the worker's business.
 * Ownership  link_port_form hands out links; the taker destroys them. Ports are destroyed after their links.
 * Threading  read, write, form and destroy: the compute thread. link_abort and link_port_abort: any thread, at any moment, as
 *            long as the object lives; they wake a blocked call, which returns STATUS_CLOSED.
 * Invariants Stage i writes to i+1, the last to 0; each stage reads what the one before it writes. With one stage no link.
 * Errors     STATUS_LINK: the other end is gone. STATUS_TIMEOUT: the deadline passed. STATUS_CLOSED: aborted.
 *            STATUS_UNAUTHENTICATED: the other end does not know the key of the epoch.
 */
#ifndef SLUICE_STAGE_LINK_H
#define SLUICE_STAGE_LINK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/wire/control.h"

struct link {
    const struct link_table *table;
};

struct link_table {
    enum status (*read)(struct link *l, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err);
    enum status (*write)(struct link *l, const struct iovec *iov, int n_iov, int64_t deadline_ns, struct link *also,
                         size_t *put, struct error *err);
    void (*abort)(struct link *l);
    void (*destroy)(struct link *l);
    uint32_t (*unheard_ms)(struct link *l); /* NULL: always 0 */
};

/* Waits until deadline_ns (0: not at all) for at least one byte and takes at most len. *got is 0 only without a wait. */
enum status link_read(struct link *l, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err);
/* Reads exactly len; each byte that comes renews the patience. */
enum status link_read_all(struct link *l, void *buf, size_t len, uint32_t silence_ms, struct error *err);
/* Writes everything; iov is used up. While it waits and `also` (NULL: none) has something to read, drain(ctx) is called, so
 * that two stages that write to each other cannot both wait. */
enum status link_write_all(struct link *l, struct iovec *iov, int n_iov, uint32_t silence_ms, struct link *also,
                           enum status (*drain)(void *ctx, struct error *err), void *ctx, struct error *err);
void link_abort(struct link *l);
/* For how long bytes that were written, or an idle link's question, have waited for a word of the other host, as far as earlier calls can tell; 0: none wait.
 * A kernel acknowledges for a process that computes, is stopped or reads slowly: only a host or a way that is gone says nothing.
 * Any thread, one at a time. */
uint32_t link_unheard_ms(struct link *l);
void link_destroy(struct link *l); /* NULL is nothing */

struct link_pair {
    struct link *in, *out;
};

struct link_form {
    uint64_t generation;        /* of the caller; link_port_abort(g) ends every form with a smaller one, also later ones */
    uint64_t session, epoch;
    uint32_t stage, n_stages;   /* n_stages > 1 */
    struct link_addresses next; /* of the stage that is written to */
    uint8_t key[32];
    uint32_t timeout_ms;
    size_t out_bytes;           /* that should fit into the out link without a reader */
};

struct link_port {
    const struct link_port_table *table;
};

struct link_port_table {
    void (*addresses)(const struct link_port *p, struct link_addresses *out);
    enum status (*form)(struct link_port *p, const struct link_form *f, struct link_pair *out, struct error *err);
    void (*abort)(struct link_port *p, uint64_t generation);
    void (*destroy)(struct link_port *p);
};

void link_port_addresses(const struct link_port *p, struct link_addresses *out);
enum status link_port_form(struct link_port *p, const struct link_form *f, struct link_pair *out, struct error *err);
void link_port_abort(struct link_port *p, uint64_t generation);
void link_port_destroy(struct link_port *p);

/* --- sockets (link_tcp.c) ------------------------------------------------------------------------------------------------ */

enum link_kind { LINK_KIND_AUTO, LINK_KIND_UNIX, LINK_KIND_TCP };

struct link_socket_options {
    enum link_kind kind;
    const char *data;        /* HOST[:PORT] to listen on; NULL or "auto": the address that routes to the coordinator */
    const char *coordinator; /* HOST:PORT; NULL: loopback */
    int tls;                 /* TCP links are encrypted with the key of the epoch (link_tls.h); UNIX sockets never are */
};

/* Listens at once, and shakes hands with whoever connects on a thread of its own. */
enum status link_socket_port_create(const struct link_socket_options *o, struct link_port **out, struct error *err);

struct link_socket_counters {
    uint64_t accepted, refused, stale; /* connections that became a link; that broke the handshake; of another epoch */
    uint32_t pending;                  /* in a handshake now */
};
void link_socket_port_counters(struct link_port *p, struct link_socket_counters *out);
struct link_tls;
/* A link over a connected stream socket and TLS on it (NULL: plain), which pass to it. */
enum status link_socket_create(int fd, struct link_tls *tls, struct link **out);

/* --- in one process (link_mem.c) ------------------------------------------------------------------------------------------- */

struct mem_hub; /* where the ports of one process meet; outlives them */

enum status mem_hub_create(struct mem_hub **out);
void mem_hub_destroy(struct mem_hub *h);
/* capacity: bytes that a link holds; 0: what link_form.out_bytes asks for. */
enum status link_mem_port_create(struct mem_hub *h, size_t capacity, struct link_port **out);

#endif
