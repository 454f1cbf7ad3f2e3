#include <stdlib.h>

#include "common/base/beat.h"
#include "common/base/clock.h"
#include "rpc/grpc/loop.h"

struct beats {
    struct rpc_timer timer;
    struct rpc_loop *loop;
    int64_t every_ns;
};

static void on_beat(struct rpc_timer *t, int fired)
{
    struct beats *b = LIST_ENTRY(t, struct beats, timer);
    if (!fired) {
        free(b);
        return;
    }
    beat();
    rpc_timer_start(b->loop, &b->timer, clock_now_ns() + b->every_ns);
}

enum status rpc_loop_beat(struct rpc_loop *l, int every_ms)
{
    struct beats *b = calloc(1, sizeof *b);
    if (!b)
        return STATUS_OUT_OF_MEMORY;
    *b = (struct beats){.timer.fn = on_beat, .loop = l, .every_ns = every_ms * NS_PER_MS};
    rpc_timer_start(l, &b->timer, clock_now_ns());
    return STATUS_OK;
}
