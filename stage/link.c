#include "stage/link.h"

#include "common/base/clock.h"

enum status link_read(struct link *l, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err)
{
    return l->table->read(l, buf, len, deadline_ns, got, err);
}

enum status link_read_all(struct link *l, void *buf, size_t len, uint32_t silence_ms, struct error *err)
{
    for (char *at = buf; len;) {
        size_t got = 0;
        TRY(l->table->read(l, at, len, clock_now_ns() + silence_ms * NS_PER_MS, &got, err));
        at += got;
        len -= got;
    }
    return STATUS_OK;
}

/* Drops `put` bytes from the front of iov. */
static void advance(struct iovec **iov, int *n_iov, size_t put)
{
    while (*n_iov && put >= (*iov)->iov_len) {
        put -= (*iov)->iov_len;
        ++*iov;
        --*n_iov;
    }
    if (*n_iov) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + put;
        (*iov)->iov_len -= put;
    }
}

enum status link_write_all(struct link *l, struct iovec *iov, int n_iov, uint32_t silence_ms, struct link *also,
                           enum status (*drain)(void *ctx, struct error *err), void *ctx, struct error *err)
{
    int64_t deadline_ns = clock_now_ns() + silence_ms * NS_PER_MS;
    advance(&iov, &n_iov, 0);
    while (n_iov) {
        size_t put = 0;
        TRY(l->table->write(l, iov, n_iov, deadline_ns, also, &put, err));
        if (put)
            deadline_ns = clock_now_ns() + silence_ms * NS_PER_MS;
        else if (also)
            TRY(drain(ctx, err));
        advance(&iov, &n_iov, put);
    }
    return STATUS_OK;
}

void link_abort(struct link *l)
{
    l->table->abort(l);
}

uint32_t link_unheard_ms(struct link *l)
{
    return l->table->unheard_ms ? l->table->unheard_ms(l) : 0;
}

void link_destroy(struct link *l)
{
    if (l)
        l->table->destroy(l);
}

void link_port_addresses(const struct link_port *p, struct link_addresses *out)
{
    p->table->addresses(p, out);
}

enum status link_port_form(struct link_port *p, const struct link_form *f, struct link_pair *out, struct error *err)
{
    return p->table->form(p, f, out, err);
}

void link_port_abort(struct link_port *p, uint64_t generation)
{
    p->table->abort(p, generation);
}

void link_port_destroy(struct link_port *p)
{
    if (p)
        p->table->destroy(p);
}
