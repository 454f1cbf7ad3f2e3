#define LOG_MODULE "rpc"
#include "rpc/grpc/stage_api.h"

#include <stdlib.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "rpc/grpc/channel.h"
#include "rpc/grpc/stage_stream.h"

/*   TRYING --headers--> OPEN --ended--> WAITING --50-100 ms--> TRYING
 *     \------ended------------------------^
 *   any --stage_client_destroy, and nothing under way--> ENDED
 */
enum client_state { CLIENT_TRYING, CLIENT_OPEN, CLIENT_WAITING, CLIENT_ENDED };

enum { RETRY_MIN_MS = 50, RETRY_SPREAD_MS = 50 };

struct client_stream {
    struct stage_stream stream;
    struct stage_client *client; /* lives longer: it waits for on_closed */
    struct error broken;         /* the server's message was none; the loop's thread only */
};

struct stage_client {
    struct rpc_channel *channel;
    struct rpc_loop *loop;
    struct stage_client_events events;
    struct stage_source source; /* the loop's thread only */
    struct rpc_timer retry;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended;
    enum client_state state;
    int ending;
    struct client_stream *stream; /* TRYING, OPEN: with a reference */
};

#define STREAM_OF(c) ((struct client_stream *)(void *)(c))

static void attempt(struct stage_client *k);

/* After an attempt: waits for the next, or ends. The last that the loop's thread does with k when it ends. */
static void rest(struct stage_client *k)
{
    pthread_mutex_lock(&k->lock);
    if (k->ending) {
        k->state = CLIENT_ENDED;
        pthread_cond_broadcast(&k->ended);
    } else {
        int64_t now = clock_now_ns();
        k->state = CLIENT_WAITING;
        rpc_timer_start(k->loop, &k->retry, now + (RETRY_MIN_MS + now / 1000 % RETRY_SPREAD_MS) * NS_PER_MS);
    }
    pthread_mutex_unlock(&k->lock);
}

static void on_retry(struct rpc_timer *t, int fired)
{
    struct stage_client *k = LIST_ENTRY(t, struct stage_client, retry);
    pthread_mutex_lock(&k->lock);
    int go = fired && !k->ending;
    if (!go)
        k->ending = 1;
    pthread_mutex_unlock(&k->lock);
    if (go)
        attempt(k);
    else
        rest(k);
}

static void on_open(struct rpc_call *c)
{
    struct stage_client *k = STREAM_OF(c)->client;
    if (!rpc_call_stands(c))
        return;
    pthread_mutex_lock(&k->lock);
    int open = !k->ending;
    if (open)
        k->state = CLIENT_OPEN;
    pthread_mutex_unlock(&k->lock);
    if (open)
        k->events.on_open(k->events.ctx);
}

static int is_ending(struct stage_client *k)
{
    pthread_mutex_lock(&k->lock);
    int ending = k->ending;
    pthread_mutex_unlock(&k->lock);
    return ending;
}

static enum status unpack(struct rpc_call *c, grpc_byte_buffer *b, struct to_stage *m, struct error *err)
{
    grpc_byte_buffer_reader r;
    if (!grpc_byte_buffer_reader_init(&r, b))
        return error_set(err, STATUS_PROTOCOL, "a message that cannot be read");
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&r);
    grpc_byte_buffer_reader_destroy(&r);
    enum status st = stage_wire__unpack_to(GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes),
                                           rpc_loop__scratch(c->loop), &STREAM_OF(c)->client->source, m, err);
    grpc_slice_unref(bytes);
    return st;
}

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct client_stream *s = STREAM_OF(c);
    struct to_stage m;
    if (!b || is_ending(s->client))
        return;
    if (unpack(c, b, &m, &s->broken) != STATUS_OK) {
        LOG_WARN("coordinator: %s", s->broken.message);
        rpc_call_cancel(c, &s->broken);
        return;
    }
    s->client->events.on_message(s->client->events.ctx, &m);
    rpc_call_read(c);
}

/* The next coordinator may assign something else, and plans of another size. */
static void give_spare_plan_back(struct stage_client *k)
{
    struct plan *spare = k->source.spare_plan;
    k->source.spare_plan = NULL;
    if (spare)
        k->events.plan_release(k->events.ctx, spare);
}

/* An attempt that never stood and only found nobody there, or was begun anew, is not told: it says nothing new. */
static int worth_telling(int was_open, const struct error *why)
{
    return was_open || (why->status != STATUS_CLOSED && why->status != STATUS_TIMEOUT && why->status != STATUS_CANCELLED);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct client_stream *s = STREAM_OF(c);
    struct stage_client *k = s->client;
    struct error why = s->broken.status != STATUS_OK ? s->broken : *e;
    if (why.status == STATUS_OK)
        error_set(&why, STATUS_CLOSED, "the coordinator has ended the stream");
    stage_stream__drop(&s->stream);
    give_spare_plan_back(k);
    pthread_mutex_lock(&k->lock);
    int was_open = k->state == CLIENT_OPEN, ending = k->ending;
    k->stream = NULL;
    k->state = CLIENT_WAITING;
    pthread_mutex_unlock(&k->lock);
    if (!ending && worth_telling(was_open, &why))
        k->events.on_closed(k->events.ctx, &why);
    rest(k);
    rpc_call_release(c);
}

static void destroy(struct rpc_call *c)
{
    stage_stream__fini(&STREAM_OF(c)->stream);
    free(c);
}

static const struct rpc_call_ops stream_ops = {
    .pull = stage_stream__pull, .on_open = on_open, .on_message = on_message, .on_closed = on_closed, .destroy = destroy};

static void attempt(struct stage_client *k)
{
    struct client_stream *s = calloc(1, sizeof *s);
    if (!s) {
        rest(k);
        return;
    }
    struct rpc_call *c = &s->stream.base;
    rpc_call_init(c, &stream_ops, k->loop);
    s->client = k;
    pthread_mutex_lock(&k->lock);
    k->state = CLIENT_TRYING;
    k->stream = s;
    pthread_mutex_unlock(&k->lock);
    rpc_call_retain(c);
    if (rpc_channel__open(k->channel, c, "/sluice.v1.Stages/Attach", 0, 1, NULL, NULL) == STATUS_OK) {
        rpc_call_read(c);
    } else {
        /* The channel is being destroyed before its client: the attempts end. */
        pthread_mutex_lock(&k->lock);
        k->stream = NULL;
        k->ending = 1;
        pthread_mutex_unlock(&k->lock);
        rest(k);
        rpc_call_release(c);
    }
    rpc_call_release(c);
}

enum status stage_client_create(struct rpc_channel *c, const struct stage_client_events *ev, struct stage_client **out,
                                struct error *err)
{
    struct stage_client *k = calloc(1, sizeof *k);
    if (!k)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the stage's stream");
    k->channel = c;
    k->loop = rpc_channel__loop(c);
    k->events = *ev;
    k->source = (struct stage_source){.ctx = ev->ctx, .plan = ev->plan_acquire};
    k->retry.fn = on_retry;
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->ended, NULL);
    *out = k;
    attempt(k);
    return STATUS_OK;
}

/* The stream in this state, with a reference; NULL: there is none. */
static struct client_stream *take_stream(struct stage_client *k, enum client_state in)
{
    pthread_mutex_lock(&k->lock);
    struct client_stream *s = k->state == in ? k->stream : NULL;
    if (s)
        rpc_call_retain(&s->stream.base);
    pthread_mutex_unlock(&k->lock);
    return s;
}

enum status stage_client_send(struct stage_client *k, const struct from_stage *m)
{
    struct client_stream *s = take_stream(k, CLIENT_OPEN);
    if (!s)
        return STATUS_CLOSED;
    enum status st = stage_stream__send_from(&s->stream, m);
    rpc_call_release(&s->stream.base);
    return st;
}

void stage_client_renew(struct stage_client *k)
{
    struct client_stream *s = take_stream(k, CLIENT_TRYING);
    if (!s)
        return;
    rpc_call_cancel(&s->stream.base, NULL);
    rpc_call_release(&s->stream.base);
}

/* Cancelling again is harmless; the first may come before the attempt's call is made. */
static void stop(struct stage_client *k)
{
    struct client_stream *s = k->stream;
    if (s)
        rpc_call_cancel(&s->stream.base, NULL);
    if (k->state == CLIENT_WAITING)
        rpc_timer_cancel(k->loop, &k->retry);
}

void stage_client_destroy(struct stage_client *k)
{
    if (!k)
        return;
    CHECK(!rpc_loop__is_here(k->loop));
    pthread_mutex_lock(&k->lock);
    k->ending = 1;
    while (k->state != CLIENT_ENDED) {
        struct timespec soon;
        stop(k);
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 20 * NS_PER_MS;
        soon.tv_sec += soon.tv_nsec / NS_PER_S;
        soon.tv_nsec %= NS_PER_S;
        pthread_cond_timedwait(&k->ended, &k->lock, &soon);
    }
    pthread_mutex_unlock(&k->lock);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->ended);
    free(k);
}
