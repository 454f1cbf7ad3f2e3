#include "tests/lib/tapped_link.h"

#include <stdlib.h>

struct tapped_link {
    struct link base;
    struct link *inside;
    struct link_tap tap;
};

struct tapped_port {
    struct link_port base;
    struct link_port *inside;
    struct link_tap tap;
};

static enum status gone(struct error *err)
{
    return error_set(err, STATUS_CLOSED, "the process has ended");
}

static enum status tapped_read(struct link *l, void *buf, size_t len, int64_t deadline_ns, size_t *got, struct error *err)
{
    struct tapped_link *t = (struct tapped_link *)l;
    if (!t->tap.pass(t->tap.ctx, 0, 0))
        return gone(err);
    TRY(t->inside->table->read(t->inside, buf, len, deadline_ns, got, err));
    return *got == 0 || t->tap.pass(t->tap.ctx, 0, 1) ? STATUS_OK : gone(err);
}

static enum status tapped_write(struct link *l, const struct iovec *iov, int n_iov, int64_t deadline_ns, struct link *also,
                                size_t *put, struct error *err)
{
    struct tapped_link *t = (struct tapped_link *)l, *a = (struct tapped_link *)also;
    if (!t->tap.pass(t->tap.ctx, 1, 0))
        return gone(err);
    TRY(t->inside->table->write(t->inside, iov, n_iov, deadline_ns, a ? a->inside : NULL, put, err));
    return t->tap.pass(t->tap.ctx, 1, 1) ? STATUS_OK : gone(err);
}

static void tapped_abort(struct link *l)
{
    link_abort(((struct tapped_link *)l)->inside);
}

static void tapped_destroy(struct link *l)
{
    link_destroy(((struct tapped_link *)l)->inside);
    free(l);
}

static const struct link_table tapped_table = {tapped_read, tapped_write, tapped_abort, tapped_destroy};

/* Takes l over, also when there is no memory. */
static struct link *wrap(struct link *l, const struct link_tap *tap)
{
    struct tapped_link *t = calloc(1, sizeof *t);
    if (!t) {
        link_destroy(l);
        return NULL;
    }
    *t = (struct tapped_link){{&tapped_table}, l, *tap};
    return &t->base;
}

static void port_addresses(const struct link_port *p, struct link_addresses *out)
{
    link_port_addresses(((const struct tapped_port *)p)->inside, out);
}

static enum status port_form(struct link_port *p, const struct link_form *f, struct link_pair *out, struct error *err)
{
    struct tapped_port *t = (struct tapped_port *)p;
    struct link_pair bare;
    TRY(link_port_form(t->inside, f, &bare, err));
    struct link_pair pair = {.in = wrap(bare.in, &t->tap), .out = wrap(bare.out, &t->tap)};
    if (!pair.in || !pair.out) {
        link_destroy(pair.in);
        link_destroy(pair.out);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a link");
    }
    *out = pair;
    return STATUS_OK;
}

static void port_abort(struct link_port *p, uint64_t generation)
{
    link_port_abort(((struct tapped_port *)p)->inside, generation);
}

static void port_destroy(struct link_port *p)
{
    link_port_destroy(((struct tapped_port *)p)->inside);
    free(p);
}

static const struct link_port_table port_table = {port_addresses, port_form, port_abort, port_destroy};

enum status tapped_link_port_create(struct link_port *inside, const struct link_tap *tap, struct link_port **out)
{
    struct tapped_port *t = calloc(1, sizeof *t);
    if (!t)
        return STATUS_OUT_OF_MEMORY;
    *t = (struct tapped_port){{&port_table}, inside, *tap};
    *out = &t->base;
    return STATUS_OK;
}
