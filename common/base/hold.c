#include "common/base/hold.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

int hold_descriptors(uint32_t verb)
{
    switch (verb) {
    case HOLD_KEEP:
    case HOLD_GIVEN:
        return 2;
    case HOLD_WAIT:
    case HOLD_GIVEN_WAITING:
    case HOLD_LISTENER:
    case HOLD_GIVEN_LISTENER:
        return 1;
    case HOLD_DROP:
    case HOLD_TAKE:
    case HOLD_CLEAR:
    case HOLD_END:
        return 0;
    default:
        return -1;
    }
}

static enum status failure(void)
{
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case ENOBUFS:
    case ETOOMANYREFS: /* descriptors that nobody has received yet */
        return STATUS_FULL;
    default:
        return STATUS_CLOSED;
    }
}

enum status hold_send(int socket, const struct hold_message *m, const int *fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(HOLD_MAX_FDS * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)m, sizeof *m};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    int n = hold_descriptors(m->verb);
    if (n > 0) {
        h.msg_control = control.bytes;
        h.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
        memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
    }
    return sendmsg(socket, &h, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *m ? STATUS_OK : failure();
}

static int take_descriptors(struct msghdr *h, int fds[HOLD_MAX_FDS])
{
    int n = 0, fd;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (n < HOLD_MAX_FDS)
                fds[n++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

enum status hold_receive(int socket, struct hold_message *m, int fds[HOLD_MAX_FDS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(HOLD_MAX_FDS * sizeof(int))];
    } control;
    struct iovec part = {m, sizeof *m};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t len = recvmsg(socket, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (len < 0)
        return failure() == STATUS_FULL ? STATUS_TIMEOUT : STATUS_CLOSED;
    int n = take_descriptors(&h, fds);
    if (len == (ssize_t)sizeof *m && !(h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && hold_descriptors(m->verb) == n)
        return STATUS_OK;
    while (n > 0)
        close(fds[--n]);
    return len == 0 ? STATUS_CLOSED : STATUS_PROTOCOL;
}
