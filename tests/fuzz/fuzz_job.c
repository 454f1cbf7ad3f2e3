/* tests/fuzz/fuzz_job.c - the launchers' control socket: whatever a connection says, and however it is cut, it is understood or
 * closed. The first byte chooses which side reads; a zero byte in the rest cuts it into pieces that arrive one by one. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/check.h"
#include "deploy/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(struct job *j)
{
    struct job_event ev;
    while (job_next(j, 1, &ev)) {
        CHECK(ev.kind != JOB_NONE && ev.rank >= 0 && ev.rank < j->n_ranks);
        CHECK(memchr(ev.what, 0, sizeof ev.what));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    if (size < 1 || size > 1024 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
        return 0;
    struct job j;
    int mode = data[0] % 3; /* rank 0 before the proof, rank 0 after it, another rank */
    job_init(&j, mode == 2 ? 1 : 0, 4);
    snprintf(j.secret, sizeof j.secret, "0123456789abcdef0123456789abcdef");
    j.lines[0] = (struct job_line){.fd = ends[0], .rank = mode == 0 ? -1 : mode == 1 ? 2 : 0};
    for (size_t at = 1; at < size;) {
        const uint8_t *zero = memchr(data + at, 0, size - at);
        size_t n = zero ? (size_t)(zero - data) - at : size - at;
        if (n && send(ends[1], data + at, n, MSG_NOSIGNAL) < 0)
            break; /* it was closed on us, as it should be */
        read_all(&j);
        at += n + 1;
    }
    close(ends[1]);
    read_all(&j);
    job_close(&j);
    return 0;
}
