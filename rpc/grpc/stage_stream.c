#include "rpc/grpc/stage_stream.h"

#include <grpc/byte_buffer.h>

grpc_byte_buffer *stage_stream__pull(struct rpc_call *c)
{
    struct stage_stream *s = (struct stage_stream *)(void *)c;
    if (!s->n_waiting)
        return NULL;
    grpc_byte_buffer *b = s->queue[s->head];
    s->head = (s->head + 1) % MAX_WAITING;
    s->n_waiting--;
    return b;
}

/* Lock held. */
static enum status may_send(const struct stage_stream *s)
{
    if (s->base.closed || s->base.finishing)
        return STATUS_CLOSED;
    return s->n_waiting == MAX_WAITING ? STATUS_FULL : STATUS_OK;
}

static enum status push(struct stage_stream *s, enum status st, grpc_byte_buffer *b)
{
    if (st == STATUS_OK)
        s->queue[(s->head + s->n_waiting++) % MAX_WAITING] = b;
    pthread_mutex_unlock(&s->base.lock);
    if (st == STATUS_OK)
        rpc_call_kick(&s->base);
    return st;
}

enum status stage_stream__send_to(struct stage_stream *s, const struct to_stage *m)
{
    grpc_byte_buffer *b = NULL;
    pthread_mutex_lock(&s->base.lock);
    enum status st = may_send(s);
    if (st == STATUS_OK)
        st = stage_wire__pack_to(&s->packer, m, &b);
    return push(s, st, b);
}

enum status stage_stream__send_from(struct stage_stream *s, const struct from_stage *m)
{
    grpc_byte_buffer *b = NULL;
    pthread_mutex_lock(&s->base.lock);
    enum status st = may_send(s);
    if (st == STATUS_OK)
        st = stage_wire__pack_from(&s->packer, m, &b);
    return push(s, st, b);
}

void stage_stream__drop(struct stage_stream *s)
{
    pthread_mutex_lock(&s->base.lock);
    for (grpc_byte_buffer *b; (b = stage_stream__pull(&s->base)) != NULL;)
        grpc_byte_buffer_destroy(b);
    pthread_mutex_unlock(&s->base.lock);
}

void stage_stream__fini(struct stage_stream *s)
{
    stage_packer_fini(&s->packer);
    rpc_call_fini(&s->base);
}
