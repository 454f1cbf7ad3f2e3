/* tests/fuzz/fuzz_holder.c - what a gateway says to the holder of its connections, which lives in the launcher: whatever comes, and with however
 * many descriptors, it is done or ignored, and no descriptor stays behind. Four bytes of the input are a packet: its verb, its id, its value
 * and how it is sent (`enum shape`). What the holder should have is kept beside it in a model. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/hold.h"
#include "deploy/holder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_IDS = 256, MOST_DESCRIPTORS = 5 };

/* SHAPE_DESCRIPTORS: so many come with it; with SHAPE_FITTING as many as its verb wants. SHAPE_CUT: its last bytes, as many as the value
 * says, are missing; SHAPE_LONG: some more follow. SHAPE_SERVE: the holder does what it was told, and its answers are read. */
enum shape { SHAPE_DESCRIPTORS = 7, SHAPE_FITTING = 8, SHAPE_CUT = 16, SHAPE_LONG = 32, SHAPE_SERVE = 64 };

struct model {
    uint32_t verbs[N_IDS]; /* HOLD_KEEP, HOLD_WAIT; 0: not held */
    uint8_t values[N_IDS];
    uint32_t n;
    int listener, giving;
    uint64_t taker;
};

static void model_drop(struct model *m, uint8_t id)
{
    m->n -= m->verbs[id] != 0;
    m->verbs[id] = 0;
}

static void model_take(struct model *m, const struct hold_message *said)
{
    uint8_t id = (uint8_t)said->id;
    switch (said->verb) {
    case HOLD_KEEP:
    case HOLD_WAIT:
        m->n += m->verbs[id] == 0;
        m->verbs[id] = said->verb;
        m->values[id] = (uint8_t)said->value;
        break;
    case HOLD_DROP:
        model_drop(m, id);
        break;
    case HOLD_LISTENER:
        m->listener = 1;
        break;
    case HOLD_TAKE:
        m->giving = 1;
        m->taker = said->id;
        break;
    case HOLD_CLEAR:
        for (int i = 0; i < N_IDS; i++)
            model_drop(m, (uint8_t)i);
        m->listener = m->giving = 0;
        break;
    default: /* the holder's own words, and what is none */
        break;
    }
}

/* 1: it is on its way. */
static int send_packet(int to, const struct hold_message *m, size_t len, int fd, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    char bytes[sizeof *m + 8] = {0};
    struct iovec part = {bytes, len};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    memcpy(bytes, m, sizeof *m);
    if (n_fds > 0) {
        int fds[MOST_DESCRIPTORS] = {fd, fd, fd, fd, fd};
        h.msg_control = control.bytes;
        h.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    }
    return sendmsg(to, &h, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
}

/* One answer, with descriptors of the pipe that stands for all connections. */
static void check_given(const struct model *m, const struct hold_message *a, const int *fds, ino_t pipe, uint8_t given[N_IDS])
{
    CHECK(a->about == m->taker);
    for (int i = 0; i < hold_descriptors(a->verb); i++) {
        struct stat st;
        CHECK(fstat(fds[i], &st) == 0 && st.st_ino == pipe && fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
        close(fds[i]);
    }
    if (a->verb == HOLD_GIVEN_LISTENER || a->verb == HOLD_END)
        return;
    CHECK(a->id < N_IDS && !given[a->id]++);
    CHECK(a->verb == (m->verbs[a->id] == HOLD_KEEP ? HOLD_GIVEN : HOLD_GIVEN_WAITING) && m->verbs[a->id]);
    CHECK(a->value == m->values[a->id]);
}

/* Does what was asked for; a TAKE is answered with the listener, everything that is held, and END. */
static void serve(struct holder *h, struct model *m, ino_t pipe)
{
    uint8_t given[N_IDS] = {0};
    uint32_t n_given = 0, n_listeners = 0, n_ends = 0;
    struct hold_message a;
    int fds[HOLD_MAX_FDS];
    do {
        holder_serve(h);
        while (hold_receive(holder_gateway_fd(h), &a, fds) == STATUS_OK) {
            CHECK(m->giving && !n_ends);
            check_given(m, &a, fds, pipe, given);
            n_given += a.verb == HOLD_GIVEN || a.verb == HOLD_GIVEN_WAITING;
            n_listeners += a.verb == HOLD_GIVEN_LISTENER;
            n_ends += a.verb == HOLD_END;
        }
    } while (poll(&(struct pollfd){holder_fd(h), POLLIN, 0}, 1, 0) > 0 || holder_events(h) & POLLOUT);
    CHECK(holder_held(h) == m->n && holder_events(h) == POLLIN);
    if (m->giving)
        CHECK(n_given == m->n && n_listeners == (uint32_t)m->listener && n_ends == 1);
    m->giving = 0;
}

static void say(struct holder *h, struct model *model, const uint8_t *p, int fd, ino_t pipe)
{
    const struct hold_message m = {.verb = p[0], .zero = p[3], .id = p[1], .about = p[2], .value = p[2]};
    const int wanted = hold_descriptors(m.verb), shape = p[3];
    int n_fds = shape & SHAPE_FITTING ? wanted : (shape & SHAPE_DESCRIPTORS) % (MOST_DESCRIPTORS + 1);
    size_t len = sizeof m - (shape & SHAPE_CUT ? p[2] % (sizeof m + 1) : 0) + (shape & SHAPE_LONG ? 1 + p[2] % 8 : 0);
    n_fds = n_fds < 0 ? 0 : n_fds;
    while (!send_packet(holder_gateway_fd(h), &m, len, fd, n_fds))
        serve(h, model, pipe); /* no more fit in */
    if (len == sizeof m && n_fds == wanted)
        model_take(model, &m);
    if (shape & SHAPE_SERVE || model->giving) /* a gateway that takes says nothing before END */
        serve(h, model, pipe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { PACKET = 4, MOST_PACKETS = 200 };
    struct holder *h;
    struct error err;
    struct model model = {0};
    struct stat st;
    int ends[2];
    char byte;
    if (size > PACKET * MOST_PACKETS || pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return 0;
    CHECK(fstat(ends[1], &st) == 0 && holder_create(&h, &err) == STATUS_OK);
    for (size_t at = 0; at + PACKET <= size; at += PACKET)
        say(h, &model, data + at, ends[1], st.st_ino);
    serve(h, &model, st.st_ino);
    holder_destroy(h);
    close(ends[1]);
    CHECK(read(ends[0], &byte, 1) == 0); /* the end of the pipe: nobody holds it any more */
    close(ends[0]);
    return 0;
}
