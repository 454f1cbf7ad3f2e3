#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "rpc/grpc/generate_call.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/server.h"
#include "rpc/proto/inference.pb-c.h"

/* A linger: how long a finished stream may take to leave the queue. */
enum { MAX_OPEN_GENERATE = 8192, MAX_OPEN_UNARY = 4096, GENERATE_LINGER_MS = 30000 };

struct unary_call {
    struct rpc_call base;
    int asked;
    grpc_byte_buffer *reply; /* guarded by base.lock */
};

#define UNARY_OF(c) ((struct unary_call *)(void *)(c))

static grpc_byte_buffer *pull(struct rpc_call *c)
{
    struct unary_call *u = UNARY_OF(c);
    grpc_byte_buffer *b = u->reply;
    u->reply = NULL;
    return b;
}

static void on_open(struct rpc_call *c)
{
    rpc_call_read(c);
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    (void)e;
    pthread_mutex_lock(&c->lock);
    grpc_byte_buffer *b = pull(c);
    pthread_mutex_unlock(&c->lock);
    if (b)
        grpc_byte_buffer_destroy(b);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static void refuse(struct rpc_call *c, enum status why, const char *what)
{
    struct error err;
    if (why == STATUS_OUT_OF_MEMORY)
        error_set(&err, why, "no memory for the request");
    else
        error_set(&err, why, "no %s in the request", what);
    rpc_call_finish(c, &err);
}

/* The service's handle, until it answers. */
static struct unary_call *hand_out(struct rpc_call *c)
{
    rpc_call_retain(c);
    UNARY_OF(c)->asked = 1;
    return UNARY_OF(c);
}

static void *unpack(struct rpc_call *c, grpc_byte_buffer *b, const ProtobufCMessageDescriptor *d)
{
    void *m = b && !UNARY_OF(c)->asked ? message_unpack_buffer(d, rpc_loop__scratch(c->loop), b) : NULL;
    if (!m && !UNARY_OF(c)->asked)
        refuse(c, b ? message_why(rpc_loop__scratch(c->loop)) : STATUS_BAD_REQUEST, d->short_name);
    return m;
}

static int text_is_good(struct rpc_call *c, struct bytes text, const char *name)
{
    struct error err;
    if (inference_wire_check_text(text, name, &err) == STATUS_OK)
        return 1;
    rpc_call_finish(c, &err);
    return 0;
}

static void on_tokenize(struct rpc_call *c, grpc_byte_buffer *b)
{
    const struct inference_service *svc = c->service;
    Sluice__V1__TokenizeRequest *m = unpack(c, b, &sluice__v1__tokenize_request__descriptor);
    if (m && text_is_good(c, bytes_pb(m->text), "text"))
        svc->tokenize(svc->ctx, hand_out(c), bytes_pb(m->text), m->add_special, m->parse_special);
}

static void on_detokenize(struct rpc_call *c, grpc_byte_buffer *b)
{
    const struct inference_service *svc = c->service;
    Sluice__V1__DetokenizeRequest *m = unpack(c, b, &sluice__v1__detokenize_request__descriptor);
    if (m && m->n_ids > MAX_REQUEST_IDS)
        refuse(c, STATUS_BAD_REQUEST, "bounded number of ids");
    else if (m)
        svc->detokenize(svc->ctx, hand_out(c), m->ids, m->n_ids, m->show_special);
}

static void on_apply_template(struct rpc_call *c, grpc_byte_buffer *b)
{
    const struct inference_service *svc = c->service;
    Sluice__V1__ApplyTemplateRequest *m = unpack(c, b, &sluice__v1__apply_template_request__descriptor);
    if (m && text_is_good(c, bytes_pb(m->chat_json), "messages"))
        svc->apply_template(svc->ctx, hand_out(c), bytes_pb(m->chat_json));
}

static void on_get_model(struct rpc_call *c, grpc_byte_buffer *b)
{
    const struct inference_service *svc = c->service;
    if (unpack(c, b, &sluice__v1__get_model_request__descriptor))
        svc->get_model(svc->ctx, hand_out(c));
}

static void on_get_pieces(struct rpc_call *c, grpc_byte_buffer *b)
{
    const struct inference_service *svc = c->service;
    struct error err;
    if (!unpack(c, b, &sluice__v1__get_pieces_request__descriptor))
        return;
    struct unary_call *u = hand_out(c);
    if (svc->get_pieces) {
        svc->get_pieces(svc->ctx, u);
        return;
    }
    error_set(&err, STATUS_UNSUPPORTED, "this service does not tell its vocabulary");
    unary_call_fail(u, &err);
}

#define UNARY_OPS(handler)                                                                                             \
    {                                                                                                                  \
        .pull = pull, .on_open = on_open, .on_message = handler, .on_closed = on_closed, .destroy = destroy            \
    }
static const struct rpc_call_ops tokenize_ops = UNARY_OPS(on_tokenize), detokenize_ops = UNARY_OPS(on_detokenize),
                                 apply_template_ops = UNARY_OPS(on_apply_template),
                                 get_model_ops = UNARY_OPS(on_get_model), get_pieces_ops = UNARY_OPS(on_get_pieces);

/* --- answers ----------------------------------------------------------------------------------------------------------- */

static void answer(struct unary_call *u, grpc_byte_buffer *b)
{
    pthread_mutex_lock(&u->base.lock);
    int gone = u->base.closed || u->base.finishing;
    if (!gone)
        u->reply = b;
    pthread_mutex_unlock(&u->base.lock);
    if (gone)
        grpc_byte_buffer_destroy(b);
    else
        rpc_call_finish(&u->base, NULL);
    rpc_call_release(&u->base);
}

void unary_call_fail(struct unary_call *u, const struct error *err)
{
    rpc_call_finish(&u->base, err);
    rpc_call_release(&u->base);
}

void unary_call_tokens(struct unary_call *u, const uint32_t *ids, size_t n_ids)
{
    Sluice__V1__TokenizeResponse m = SLUICE__V1__TOKENIZE_RESPONSE__INIT;
    m.ids = (uint32_t *)(uintptr_t)ids;
    m.n_ids = n_ids;
    answer(u, message_pack(&m.base));
}

/* DetokenizeResponse and ApplyTemplateResponse have the same fields. */
void unary_call_text(struct unary_call *u, struct bytes text)
{
    Sluice__V1__DetokenizeResponse m = SLUICE__V1__DETOKENIZE_RESPONSE__INIT;
    m.text = pb_bytes(text);
    answer(u, message_pack(&m.base));
}

void unary_call_model(struct unary_call *u, const struct model_facts *f)
{
    answer(u, inference_wire_pack_model(f));
}

void unary_call_pieces(struct unary_call *u, const struct vocabulary_pieces *p)
{
    Sluice__V1__GetPiecesResponse m = SLUICE__V1__GET_PIECES_RESPONSE__INIT;
    m.pieces = pb_bytes(p->text);
    m.lengths = (uint32_t *)(uintptr_t)p->lengths;
    m.n_lengths = p->n;
    m.hidden = (uint32_t *)(uintptr_t)p->hidden;
    m.n_hidden = p->n_hidden;
    answer(u, message_pack(&m.base));
}

/* --- the service ------------------------------------------------------------------------------------------------------- */

static enum status add(struct rpc_server *s, const char *path, size_t bytes, const struct rpc_call_ops *ops, uint32_t max_open,
                       int linger_ms, void *svc)
{
    struct rpc_method m = {
        .path = path, .call_bytes = bytes, .ops = ops, .max_open = max_open, .linger_ms = linger_ms, .service = svc};
    return rpc_server__add_method(s, &m);
}

enum status inference_service_add(struct rpc_server *s, const struct inference_service *service)
{
    struct inference_service *svc = malloc(sizeof *svc);
    if (!svc)
        return STATUS_OUT_OF_MEMORY;
    *svc = *service;
    enum status st = rpc_server__add_service(s, "sluice.v1.Inference", svc, free);
    if (st != STATUS_OK) {
        free(svc);
        return st;
    }
    size_t unary = sizeof(struct unary_call);
    TRY(add(s, "/sluice.v1.Inference/Generate", sizeof(struct generate_call), &generate_call__ops, MAX_OPEN_GENERATE,
            GENERATE_LINGER_MS, svc));
    TRY(add(s, "/sluice.v1.Inference/Tokenize", unary, &tokenize_ops, MAX_OPEN_UNARY, 0, svc));
    TRY(add(s, "/sluice.v1.Inference/Detokenize", unary, &detokenize_ops, MAX_OPEN_UNARY, 0, svc));
    TRY(add(s, "/sluice.v1.Inference/ApplyTemplate", unary, &apply_template_ops, MAX_OPEN_UNARY, 0, svc));
    TRY(add(s, "/sluice.v1.Inference/GetModel", unary, &get_model_ops, MAX_OPEN_UNARY, 0, svc));
    return add(s, "/sluice.v1.Inference/GetPieces", unary, &get_pieces_ops, MAX_OPEN_UNARY, 0, svc);
}
