/* tests/fuzz/fuzz_rpc_calls.c - calls of any client to the services of a coordinator, but for Generate (fuzz_request.c).
 *
 * Input      1 byte which method, 1 byte whether the peer showed the secret, 1 byte length, its sluice-gateway header; then messages:
 *            2 bytes length, bytes. Behind the last one the peer sends no more.
 * Must hold  Each message is answered, or refused in words, or handed to the service, with text that is UTF-8 and ids that are
 *            bounded; nothing is answered twice. Only who showed the secret is seen as a gateway, by a host that is a word. A
 *            file that reflection gives is one of ours and holds what was asked for.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "rpc/grpc/admin_api.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/server.h"
#include "rpc/proto/health.pb-c.h"
#include "rpc/proto/reflection.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- a server that holds one call ---------------------------------------------------------------------------------------- */

enum status __wrap_rpc_server__add_service(struct rpc_server *s, const char *name, void *service, void (*on_end)(void *service));
enum status __wrap_rpc_server__add_method(struct rpc_server *s, const struct rpc_method *m);
size_t __wrap_rpc_server__services(const struct rpc_server *s, const char *names[RPC_MAX_SERVICES]);
void __wrap_rpc_server__set_health(struct rpc_server *s, struct health *h);
void __wrap_rpc_call_read(struct rpc_call *c);
void __wrap_rpc_call_kick(struct rpc_call *c);
void __wrap_rpc_call_finish(struct rpc_call *c, const struct error *err);
void __wrap_rpc_call_retain(struct rpc_call *c);
void __wrap_rpc_call_release(struct rpc_call *c);
void __wrap_rpc_call_fini(struct rpc_call *c);
int __wrap_rpc_call_closed(struct rpc_call *c);
struct arena *__wrap_rpc_loop__scratch(struct rpc_loop *l);
void __wrap_rpc_timer_start(struct rpc_loop *l, struct rpc_timer *t, int64_t time_ns);
void __wrap_rpc_timer_cancel(struct rpc_loop *l, struct rpc_timer *t);

static struct {
    struct rpc_method methods[RPC_MAX_METHODS];
    size_t n_methods, n_services;
    const char *services[RPC_MAX_SERVICES];
    struct health *health;
    struct arena scratch;
    /* of the one call */
    struct rpc_call *call;
    int wants_message, n_finished, n_handed_out, n_destroyed;
    struct error final;
    struct rpc_timer *timer;
} world;

enum status __wrap_rpc_server__add_service(struct rpc_server *s, const char *name, void *service, void (*on_end)(void *service))
{
    (void)s, (void)service, (void)on_end;
    CHECK(world.n_services < RPC_MAX_SERVICES);
    world.services[world.n_services++] = name;
    return STATUS_OK;
}

enum status __wrap_rpc_server__add_method(struct rpc_server *s, const struct rpc_method *m)
{
    (void)s;
    if (strcmp(m->path, "/sluice.v1.Inference/Generate") == 0)
        return STATUS_OK;
    CHECK(world.n_methods < RPC_MAX_METHODS && m->call_bytes >= sizeof(struct rpc_call));
    world.methods[world.n_methods++] = *m;
    return STATUS_OK;
}

size_t __wrap_rpc_server__services(const struct rpc_server *s, const char *names[RPC_MAX_SERVICES])
{
    (void)s;
    memcpy(names, world.services, sizeof world.services);
    return world.n_services;
}

void __wrap_rpc_server__set_health(struct rpc_server *s, struct health *h)
{
    (void)s;
    world.health = h;
}

void __wrap_rpc_call_read(struct rpc_call *c)
{
    CHECK(c == world.call);
    world.wants_message = 1;
}

void __wrap_rpc_call_kick(struct rpc_call *c)
{
    CHECK(c == world.call);
}

void __wrap_rpc_call_finish(struct rpc_call *c, const struct error *err)
{
    CHECK(c == world.call);
    pthread_mutex_lock(&c->lock);
    c->finishing = 1;
    pthread_mutex_unlock(&c->lock);
    if (world.n_finished++ == 0)
        world.final = err ? *err : (struct error){.status = STATUS_OK};
}

void __wrap_rpc_call_retain(struct rpc_call *c)
{
    c->refs++;
}

void __wrap_rpc_call_release(struct rpc_call *c)
{
    CHECK(c->refs > 0);
    if (--c->refs == 0)
        c->ops->destroy(c);
}

void __wrap_rpc_call_fini(struct rpc_call *c)
{
    pthread_mutex_destroy(&c->lock);
    world.n_destroyed++;
}

int __wrap_rpc_call_closed(struct rpc_call *c)
{
    return c->closed;
}

struct arena *__wrap_rpc_loop__scratch(struct rpc_loop *l)
{
    (void)l;
    return &world.scratch;
}

void __wrap_rpc_timer_start(struct rpc_loop *l, struct rpc_timer *t, int64_t time_ns)
{
    (void)l;
    CHECK(!world.timer && time_ns > 0);
    world.timer = t;
}

void __wrap_rpc_timer_cancel(struct rpc_loop *l, struct rpc_timer *t)
{
    (void)l;
    if (world.timer != t)
        return;
    world.timer = NULL;
    t->fn(t, 0);
}

/* --- the services ---------------------------------------------------------------------------------------------------------- */

static int is_utf8(struct bytes t)
{
    return utf8_valid_len(t.data, t.len) == t.len;
}

static void tokenize(void *ctx, struct unary_call *call, struct bytes text, int add_special, int parse_special)
{
    static const uint32_t ids[] = {1, 2};
    (void)ctx, (void)add_special, (void)parse_special;
    CHECK(is_utf8(text));
    world.n_handed_out++;
    unary_call_tokens(call, ids, text.len % 3);
}

static void detokenize(void *ctx, struct unary_call *call, const uint32_t *ids, size_t n_ids, int show_special)
{
    struct error err;
    (void)ctx, (void)show_special;
    uint32_t sum = 0;
    CHECK(n_ids <= MAX_REQUEST_IDS);
    for (size_t i = 0; i < n_ids; i++)
        sum += ids[i];
    world.n_handed_out++;
    error_set(&err, STATUS_BAD_REQUEST, "a sum of %u", sum);
    unary_call_fail(call, &err);
}

static void apply_template(void *ctx, struct unary_call *call, struct bytes chat_json)
{
    (void)ctx;
    CHECK(is_utf8(chat_json));
    world.n_handed_out++;
    unary_call_text(call, chat_json);
}

static void get_model(void *ctx, struct unary_call *call)
{
    const struct model_facts facts = {.n_layers = 3};
    (void)ctx;
    world.n_handed_out++;
    unary_call_model(call, &facts);
}

static void get_pieces(void *ctx, struct unary_call *call)
{
    static const uint32_t lengths[] = {1, 1};
    const struct vocabulary_pieces p = {.text = {"ab", 2}, .lengths = lengths, .n = 2};
    (void)ctx;
    world.n_handed_out++;
    unary_call_pieces(call, &p);
}

static void get_status(void *ctx, struct service_status *out)
{
    (void)ctx;
    out->n_slots = 0;
}

static void get_metrics(void *ctx, enum metric_aliases aliases, struct buf *out)
{
    (void)ctx;
    CHECK(aliases == METRIC_ALIASES_NONE || aliases == METRIC_ALIASES_VLLM);
    buf_text(out, "up 1\n");
}

static void drain(void *ctx, int on)
{
    (void)ctx;
    health_set(world.health, !on);
}

static void seen_gateway(void *ctx, const char *host, uint32_t pid)
{
    (void)ctx, (void)pid;
    CHECK(world.call->trusted && host[0] && strlen(host) < 64 && !host[strcspn(host, " \t\n\v\f\r")]);
    CHECK(strstr(world.call->gateway, host));
}

static void make_services(void)
{
    static const struct inference_service inference = {.tokenize = tokenize, .detokenize = detokenize, .apply_template = apply_template,
                                                       .get_model = get_model, .get_pieces = get_pieces};
    static const struct admin_service admin = {.get_status = get_status, .get_metrics = get_metrics, .drain = drain, .seen_gateway = seen_gateway};
    arena_init(&world.scratch, 0);
    CHECK(health_service_add(NULL) == STATUS_OK && reflection_service_add(NULL) == STATUS_OK);
    CHECK(inference_service_add(NULL, &inference) == STATUS_OK && admin_service_add(NULL, &admin) == STATUS_OK);
}

/* --- answers ------------------------------------------------------------------------------------------------------------------ */

static int contains(ProtobufCBinaryData in, struct bytes what)
{
    return what.len == 0 || memmem(in.data, in.len, what.data, what.len) != NULL;
}

static struct bytes last_part(struct bytes symbol)
{
    const char *dot = symbol.len ? memrchr(symbol.data, '.', symbol.len) : NULL;
    return dot ? (struct bytes){dot + 1, symbol.len - (size_t)(dot + 1 - symbol.data)} : symbol;
}

static void check_reflection(const void *data, size_t len)
{
    struct arena a;
    arena_init(&a, 0);
    const Grpc__Reflection__V1__ServerReflectionResponse *m =
        message_unpack(&grpc__reflection__v1__server_reflection_response__descriptor, &a, data, len);
    CHECK(m && m->original_request);
    const Grpc__Reflection__V1__ServerReflectionRequest *q = m->original_request;
    if (m->message_response_case == GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE) {
        const Grpc__Reflection__V1__FileDescriptorResponse *f = m->file_descriptor_response;
        CHECK(f->n_file_descriptor_proto >= 1 && f->n_file_descriptor_proto <= 16);
        if (q->message_request_case == GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME)
            CHECK(q->file_by_filename.len && contains(f->file_descriptor_proto[0], bytes_pb(q->file_by_filename)));
        else
            CHECK(q->file_containing_symbol.len && last_part(bytes_pb(q->file_containing_symbol)).len &&
                  contains(f->file_descriptor_proto[0], last_part(bytes_pb(q->file_containing_symbol))));
    } else if (m->message_response_case == GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE) {
        CHECK(m->list_services_response->n_service == world.n_services);
    }
    arena_fini(&a);
}

/* What is there to send now: how many messages. */
static int read_answers(const struct rpc_method *m)
{
    int n = 0;
    for (;;) {
        pthread_mutex_lock(&world.call->lock);
        grpc_byte_buffer *b = m->ops->pull(world.call);
        pthread_mutex_unlock(&world.call->lock);
        if (!b)
            return n;
        grpc_byte_buffer_reader reader;
        CHECK(grpc_byte_buffer_reader_init(&reader, b));
        grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
        if (strstr(m->path, "Reflection"))
            check_reflection(GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s));
        grpc_slice_unref(s);
        grpc_byte_buffer_reader_destroy(&reader);
        grpc_byte_buffer_destroy(b);
        n++;
    }
}

static void take_message(const struct rpc_method *m, const uint8_t *data, size_t len)
{
    grpc_slice s = grpc_slice_from_copied_buffer((const char *)data, len);
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&s, 1);
    world.wants_message = world.n_handed_out = 0;
    m->ops->on_message(world.call, b);
    const int n = read_answers(m);
    CHECK(n <= 1 && world.n_finished <= 1 && world.n_handed_out <= 1);
    if (world.n_finished && world.final.status != STATUS_OK)
        CHECK(n == 0 && world.final.message[0]);
    else
        CHECK(n == 1);
    grpc_byte_buffer_destroy(b);
    grpc_slice_unref(s);
}

static void end_of_stream(const struct rpc_method *m)
{
    world.wants_message = 0;
    m->ops->on_message(world.call, NULL);
    CHECK(read_answers(m) == 0 && (world.n_finished == 1 || strstr(m->path, "Watch")));
}

/* A watch goes on until it is closed. */
static void let_time_pass(const struct rpc_method *m)
{
    if (world.timer) {
        struct rpc_timer *t = world.timer;
        world.timer = NULL;
        t->fn(t, 1);
        CHECK(read_answers(m) == 1 && world.timer);
    }
    health_set(world.health, 0);
    health_set(world.health, 1);
    read_answers(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!world.n_methods)
        make_services();
    if (size < 3)
        return 0;
    const struct rpc_method *m = &world.methods[data[0] % world.n_methods];
    struct rpc_call *c = calloc(1, m->call_bytes);
    CHECK(c);
    const size_t n_gateway = data[2] < size - 3 ? data[2] : size - 3;
    c->ops = m->ops;
    c->service = m->service;
    c->trusted = data[1] & 1;
    c->refs = 1;
    snprintf(c->gateway, sizeof c->gateway, "%.*s", (int)n_gateway, (const char *)data + 3);
    pthread_mutex_init(&c->lock, NULL);
    world.call = c;
    world.wants_message = world.n_finished = world.n_destroyed = 0;
    m->ops->on_open(c);
    CHECK(world.wants_message);
    for (data += 3 + n_gateway, size -= 3 + n_gateway; size >= 2 && world.wants_message && !world.n_finished;) {
        const size_t len = data[0] | (size_t)data[1] << 8, n = len < size - 2 ? len : size - 2;
        take_message(m, data + 2, n);
        data += 2 + n;
        size -= 2 + n;
    }
    if (world.wants_message && !world.n_finished)
        end_of_stream(m);
    let_time_pass(m);
    c->closed = 1;
    m->ops->on_closed(c, NULL);
    CHECK(!world.timer && c->refs == 1);
    __wrap_rpc_call_release(c);
    CHECK(world.n_destroyed == 1);
    return 0;
}
