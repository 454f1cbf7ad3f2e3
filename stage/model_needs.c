#include "stage/model_needs.h"

#include "stage/forward.h"
#include "stage/sequences.h"

static uint64_t buffers_of(const void *ctx, uint32_t max_rows)
{
    const struct sized_stage *s = ctx;
    return forward_bytes(&(struct forward_options){.weights = s->weights, .team = s->team, .max_rows = max_rows});
}

/* The head is read whole by the last stage, however many there are. */
static uint64_t head_bytes(const struct weights *w)
{
    return w->has_head ? w->ops->weight_bytes(w->head.type, w->head.n, w->head.k) : 0;
}

struct memory_needs model_needs(const struct sized_stage *s, const struct msg_assign *a, const struct kv_shape *shape)
{
    return (struct memory_needs){
        .n_stages = a->n_stages, .n_layers = a->end_layer - a->first_layer,
        .model_layers = s->weights->model->hp.n_layers, .weights = s->weights->memory_bytes, .head = head_bytes(s->weights),
        .buffers = buffers_of(s, a->max_rows), .buffers_of = buffers_of, .buffers_ctx = s,
        .sampler = a->stage + 1 == a->n_stages ? sequences_sampler_bytes(a->context) : 0,
        .max_rows = a->max_rows, .slots = a->slots, .context = a->context, .kv_block = a->kv_block,
        .block_bytes = kv_block_bytes(shape), .window = shape->window, .window_block_bytes = kv_window_block_bytes(shape)};
}
