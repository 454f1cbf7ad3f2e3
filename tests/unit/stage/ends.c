#include "tests/unit/stage/ends.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/address.h"
#include "common/base/clock.h"

const uint8_t ends_key[32] = {1, 2, 3};

/* --- two ports and their links -------------------------------------------------------------------------------------------------- */

struct link_form ends_form(uint32_t stage, uint64_t epoch, struct link_port *next)
{
    struct link_form f = {.generation = epoch, .session = ENDS_SESSION, .epoch = epoch, .stage = stage, .n_stages = 2,
                          .timeout_ms = 3000, .out_bytes = 1000};
    memcpy(f.key, ends_key, sizeof ends_key);
    link_port_addresses(next, &f.next);
    return f;
}

void *ends_form_thread(void *arg)
{
    struct end *e = arg;
    e->status = link_port_form(e->port, &e->form, &e->pair, &e->err);
    return NULL;
}

void ends_join(struct end e[2])
{
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, ends_form_thread, &e[1]), 0);
    ends_form_thread(&e[0]);
    pthread_join(t, NULL);
}

static struct mem_hub *hub;

struct link_port *ends_make_port(enum how how)
{
    struct link_port *p;
    struct error err;
    if (how == IN_MEMORY) {
        assert_int_equal(link_mem_port_create(hub, 0, &p), STATUS_OK);
        return p;
    }
    const struct link_socket_options o = {.kind = how == BY_UNIX ? LINK_KIND_UNIX : LINK_KIND_TCP, .tls = how == BY_TLS};
    if (link_socket_port_create(&o, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return p;
}

void ends_make(enum how how, struct end e[2])
{
    memset(e, 0, 2 * sizeof *e);
    for (int i = 0; i < 2; i++)
        e[i].port = ends_make_port(how);
    for (int i = 0; i < 2; i++)
        e[i].form = ends_form((uint32_t)i, 1, e[1 - i].port);
}

void ends_destroy(struct end e[2])
{
    for (int i = 0; i < 2; i++) {
        link_destroy(e[i].pair.in);
        link_destroy(e[i].pair.out);
        link_port_destroy(e[i].port);
    }
}

void ends_open(enum how how, struct end e[2])
{
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(mem_hub_create(&hub), STATUS_OK);
    ends_make(how, e);
    ends_join(e);
    for (int i = 0; i < 2; i++)
        if (e[i].status != STATUS_OK)
            fail_msg("way %d, end %d: %s", (int)how, i, e[i].err.message);
}

void ends_close(struct end e[2])
{
    ends_destroy(e);
    mem_hub_destroy(hub);
}

int ends_connect_to(struct link_port *p, int by_unix)
{
    struct link_addresses a;
    struct error err;
    link_port_addresses(p, &a);
    int fd;
    if (by_unix) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        size_t n = strlen(a.unix_name);
        memcpy(un.sun_path + 1, a.unix_name, n);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)), 0);
    } else {
        struct address parsed;
        struct sockaddr_storage to;
        socklen_t len;
        assert_int_equal(address_parse(a.tcp, -1, "data", &parsed, &err), STATUS_OK);
        assert_int_equal(address_resolve(&parsed, &to, &len, &err), STATUS_OK);
        fd = socket(to.ss_family, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&to, len), 0);
    }
    return fd;
}

/* Milliseconds until the other end closes; at most limit. */
int64_t ends_closed_after(int fd, int limit_ms)
{
    int64_t start_ns = clock_now_ns();
    char buf[256];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t ms = (clock_now_ns() - start_ns) / NS_PER_MS;
        if (ms >= limit_ms || poll(&p, 1, (int)(limit_ms - ms)) == 0)
            return limit_ms;
        if (recv(fd, buf, sizeof buf, 0) <= 0)
            return (clock_now_ns() - start_ns) / NS_PER_MS;
    }
}
