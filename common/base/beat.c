#include "common/base/beat.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/config.h"

enum { NOT_LOOKED = -2 };

static struct {
    int (*lives)(void *ctx);
    void *ctx;
} condition;

/* -1: no launcher listens. Two threads that look at once find the same. */
static int descriptor(void)
{
    static atomic_int found = NOT_LOOKED;
    int fd = atomic_load(&found);
    if (fd == NOT_LOOKED) {
        fd = config_inherited_fd("BEAT");
        if (fd >= 0)
            fcntl(fd, F_SETFD, FD_CLOEXEC); /* a child of this process must not speak for it */
        atomic_store(&found, fd);
    }
    return fd;
}

static void say(uint32_t kind)
{
    const uint8_t byte = (uint8_t)kind;
    int fd = descriptor();
    if (fd >= 0 && write(fd, &byte, 1) < 0)
        return; /* full: the launcher is stopped, and excuses us when it wakes; broken: it is gone, and so are we */
}

void beat(void)
{
    if (!condition.lives || condition.lives(condition.ctx))
        say(BEAT_ALIVE);
}

void beat_only_if(int (*lives)(void *ctx), void *ctx)
{
    condition.ctx = ctx;
    condition.lives = lives;
}

void beat_ending(void)
{
    say(BEAT_ENDING);
}

void beat_released(void)
{
    say(BEAT_RELEASED);
}

void beat_serves(uint32_t stage)
{
    if (stage < BEAT_SERVES)
        say(BEAT_SERVES + stage);
}
