#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "rpc/grpc/channel.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/unary_client.h"
#include "rpc/proto/inference.pb-c.h"

/* --- Generate ---------------------------------------------------------------------------------------------------------- */

struct generate_stream {
    struct rpc_call base;
    struct generate_events events;
    void *ctx;
    int released;           /* guarded by base.lock */
    int done;               /* a DONE event came; the loop's thread only, like what follows */
    struct error broken;    /* the server's message was no event */
};

#define STREAM_OF(c) ((struct generate_stream *)(void *)(c))

static int is_released(struct generate_stream *s)
{
    pthread_mutex_lock(&s->base.lock);
    int released = s->released;
    pthread_mutex_unlock(&s->base.lock);
    return released;
}

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct generate_stream *s = STREAM_OF(c);
    struct generate_event e;
    grpc_byte_buffer_reader r;
    if (!b || is_released(s) || !grpc_byte_buffer_reader_init(&r, b))
        return;
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&r);
    grpc_byte_buffer_reader_destroy(&r);
    enum status st = inference_wire_unpack_event(GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes),
                                                 rpc_loop__scratch(c->loop), &e, &s->broken);
    grpc_slice_unref(bytes);
    if (st != STATUS_OK) {
        rpc_call_cancel(c, NULL);
        return;
    }
    s->done |= e.kind == GENERATE_DONE;
    s->events.on_event(s->ctx, s, &e);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    struct generate_stream *s = STREAM_OF(c);
    struct error err = s->broken.status != STATUS_OK ? s->broken : *e;
    if (err.status == STATUS_OK && !s->done)
        error_set(&err, STATUS_PROTOCOL, "the stream ended without its last event");
    if (!is_released(s))
        s->events.on_end(s->ctx, s, &err);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static const struct rpc_call_ops stream_ops = {.on_message = on_message, .on_closed = on_closed, .destroy = destroy};

enum status inference_generate(struct rpc_channel *ch, const struct generate_request *r, const struct generate_events *ev,
                               void *ctx, struct generate_stream **out, struct error *err)
{
    grpc_byte_buffer *request;
    TRY(inference_wire_pack_request(r, &request, err));
    struct generate_stream *s = calloc(1, sizeof *s);
    if (!s) {
        grpc_byte_buffer_destroy(request);
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for a stream");
    }
    s->events = *ev;
    s->ctx = ctx;
    rpc_call_init(&s->base, &stream_ops, rpc_channel__loop(ch));
    /* Written first, and held: callbacks, and with them a release, may come before this returns. */
    *out = s;
    rpc_call_retain(&s->base);
    enum status st = rpc_channel__open(ch, &s->base, "/sluice.v1.Inference/Generate", 0, 0, request, err);
    if (st == STATUS_OK) {
        rpc_call_read(&s->base);
    } else {
        rpc_call_release(&s->base);
        *out = NULL;
    }
    rpc_call_release(&s->base);
    return st;
}

void generate_stream_next(struct generate_stream *s)
{
    rpc_call_read(&s->base);
}

void generate_stream_cancel(struct generate_stream *s)
{
    rpc_call_cancel(&s->base, NULL);
}

void generate_stream_release(struct generate_stream *s)
{
    pthread_mutex_lock(&s->base.lock);
    s->released = 1;
    pthread_mutex_unlock(&s->base.lock);
    rpc_call_cancel(&s->base, NULL);
    rpc_call_release(&s->base);
}

/* --- the others -------------------------------------------------------------------------------------------------------- */

static void tokens_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    Sluice__V1__TokenizeResponse *m = NULL;
    if (err->status == STATUS_OK && !(m = message_unpack(&sluice__v1__tokenize_response__descriptor, a, data, len)))
        error_set(&bad, STATUS_PROTOCOL, "%zu bytes are no TokenizeResponse", len);
    ((tokens_done *)u->done)(u->ctx, &bad, m ? m->ids : NULL, m ? m->n_ids : 0);
}

static void text_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    Sluice__V1__DetokenizeResponse *m = NULL;
    if (err->status == STATUS_OK && !(m = message_unpack(&sluice__v1__detokenize_response__descriptor, a, data, len)))
        error_set(&bad, STATUS_PROTOCOL, "%zu bytes are no text response", len);
    ((text_done *)u->done)(u->ctx, &bad, m ? bytes_pb(m->text) : (struct bytes){"", 0});
}

static void model_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    struct model_facts m = {0};
    if (err->status == STATUS_OK)
        inference_wire_unpack_model(data, len, a, &m, &bad);
    ((model_done *)u->done)(u->ctx, &bad, &m);
}

static void pieces_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    struct vocabulary_pieces p = {0};
    Sluice__V1__GetPiecesResponse *m = NULL;
    if (err->status == STATUS_OK && !(m = message_unpack(&sluice__v1__get_pieces_response__descriptor, a, data, len)))
        error_set(&bad, STATUS_PROTOCOL, "%zu bytes are no GetPiecesResponse", len);
    if (m)
        p = (struct vocabulary_pieces){bytes_pb(m->pieces), m->lengths, m->hidden, m->n_lengths, m->n_hidden};
    ((pieces_done *)u->done)(u->ctx, &bad, &p);
}

enum status inference_tokenize(struct rpc_channel *c, struct bytes text, int add_special, int parse_special, int timeout_ms,
                               tokens_done *done, void *ctx)
{
    Sluice__V1__TokenizeRequest m = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    m.text = pb_bytes(text);
    m.add_special = add_special != 0;
    m.parse_special = parse_special != 0;
    return unary_client_start(c, "/sluice.v1.Inference/Tokenize", &m.base, timeout_ms, tokens_arrived, (unary_done *)done, ctx);
}

enum status inference_detokenize(struct rpc_channel *c, const uint32_t *ids, size_t n_ids, int show_special, int timeout_ms,
                                 text_done *done, void *ctx)
{
    Sluice__V1__DetokenizeRequest m = SLUICE__V1__DETOKENIZE_REQUEST__INIT;
    m.ids = (uint32_t *)(uintptr_t)ids;
    m.n_ids = n_ids;
    m.show_special = show_special != 0;
    return unary_client_start(c, "/sluice.v1.Inference/Detokenize", &m.base, timeout_ms, text_arrived, (unary_done *)done, ctx);
}

enum status inference_apply_template(struct rpc_channel *c, struct bytes chat_json, int timeout_ms, text_done *done, void *ctx)
{
    Sluice__V1__ApplyTemplateRequest m = SLUICE__V1__APPLY_TEMPLATE_REQUEST__INIT;
    m.chat_json = pb_bytes(chat_json);
    return unary_client_start(c, "/sluice.v1.Inference/ApplyTemplate", &m.base, timeout_ms, text_arrived, (unary_done *)done,
                              ctx);
}

enum status inference_get_model(struct rpc_channel *c, int timeout_ms, model_done *done, void *ctx)
{
    Sluice__V1__GetModelRequest m = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    return unary_client_start(c, "/sluice.v1.Inference/GetModel", &m.base, timeout_ms, model_arrived, (unary_done *)done, ctx);
}

enum status inference_get_pieces(struct rpc_channel *c, int timeout_ms, pieces_done *done, void *ctx)
{
    Sluice__V1__GetPiecesRequest m = SLUICE__V1__GET_PIECES_REQUEST__INIT;
    return unary_client_start(c, "/sluice.v1.Inference/GetPieces", &m.base, timeout_ms, pieces_arrived, (unary_done *)done, ctx);
}
