#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/status.h>

#include "common/base/check.h"
#include "rpc/grpc/descriptor_set.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/server.h"
#include "rpc/proto/reflection.pb-c.h"

/* v1 and v1alpha have the same messages; only the package differs. Replies: a client that asks on without reading. */
enum { MAX_FILES = 16, MAX_OPEN_REFLECTIONS = 64, MAX_REPLIES = 32 };

typedef Grpc__Reflection__V1__ServerReflectionRequest request_message;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_message;

struct span {
    const uint8_t *data;
    size_t len;
};

struct reflection {
    struct rpc_server *server;
    size_t n_files;
    struct span files[MAX_FILES];
};

struct reflection_call {
    struct rpc_call base;
    grpc_byte_buffer *replies[MAX_REPLIES]; /* guarded by base.lock */
    size_t head, n_replies;
};

#define CALL_OF(c) ((struct reflection_call *)(void *)(c))

/* --- a walk over protobuf fields --------------------------------------------------------------------------------------- */

static int read_varint(struct span *s, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && s->len; shift += 7) {
        uint8_t b = *s->data++;
        s->len--;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            *out = v;
            return 1;
        }
    }
    return 0;
}

/* The next length-delimited field; others are skipped. 0: the end, or not protobuf. */
static int next_field(struct span *s, uint32_t *number, struct span *value)
{
    uint64_t key, n = 0;
    while (s->len && read_varint(s, &key)) {
        switch (key & 7) {
        case 0:
            if (!read_varint(s, &n))
                return 0;
            n = 0;
            break;
        case 1:
            n = 8;
            break;
        case 2:
            if (!read_varint(s, &n))
                return 0;
            break;
        case 5:
            n = 4;
            break;
        default:
            return 0;
        }
        if (n > s->len)
            return 0;
        *value = (struct span){s->data, (size_t)n};
        s->data += n;
        s->len -= (size_t)n;
        *number = (uint32_t)(key >> 3);
        if ((key & 7) == 2)
            return 1;
    }
    return 0;
}

static struct span field(struct span message, uint32_t number)
{
    uint32_t n;
    for (struct span v; next_field(&message, &n, &v);)
        if (n == number)
            return v;
    return (struct span){NULL, 0};
}

static int same(struct span a, struct span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* --- descriptors: numbers are those of google/protobuf/descriptor.proto -------------------------------------------------- */

enum { FILE_NAME = 1, FILE_PACKAGE = 2, FILE_DEPENDENCY = 3, FILE_MESSAGE = 4, FILE_ENUM = 5, FILE_SERVICE = 6 };
enum { ANY_NAME = 1, MESSAGE_FIELD = 2, MESSAGE_NESTED = 3, MESSAGE_ENUM = 4, ENUM_VALUE = 2, SERVICE_METHOD = 2 };

/* rest of the symbol behind `name`, when it is name or begins with name, a dot and more. */
static int step(struct span symbol, struct span name, struct span *rest)
{
    if (symbol.len < name.len || memcmp(symbol.data, name.data, name.len) != 0)
        return 0;
    if (symbol.len == name.len) {
        *rest = (struct span){symbol.data + name.len, 0};
        return 1;
    }
    *rest = (struct span){symbol.data + name.len + 1, symbol.len - name.len - 1};
    return symbol.data[name.len] == '.' && rest->len > 0;
}

static int has_child(struct span message, uint32_t number, struct span name)
{
    uint32_t n;
    for (struct span v; next_field(&message, &n, &v);)
        if (n == number && same(field(v, ANY_NAME), name))
            return 1;
    return 0;
}

static int in_enum(struct span e, struct span symbol)
{
    struct span rest;
    return step(symbol, field(e, ANY_NAME), &rest) && (rest.len == 0 || has_child(e, ENUM_VALUE, rest));
}

static int in_service(struct span s, struct span symbol)
{
    struct span rest;
    return step(symbol, field(s, ANY_NAME), &rest) && (rest.len == 0 || has_child(s, SERVICE_METHOD, rest));
}

/* Our own protos: the depth is that of their nesting. */
static int in_message(struct span m, struct span symbol)
{
    struct span rest;
    uint32_t n;
    if (!step(symbol, field(m, ANY_NAME), &rest))
        return 0;
    if (rest.len == 0 || has_child(m, MESSAGE_FIELD, rest))
        return 1;
    for (struct span v; next_field(&m, &n, &v);)
        if ((n == MESSAGE_NESTED && in_message(v, rest)) || (n == MESSAGE_ENUM && in_enum(v, rest)))
            return 1;
    return 0;
}

static int in_file(struct span file, struct span symbol)
{
    struct span rest;
    uint32_t n;
    if (!step(symbol, field(file, FILE_PACKAGE), &rest) || rest.len == 0)
        return 0;
    for (struct span v; next_field(&file, &n, &v);)
        if ((n == FILE_MESSAGE && in_message(v, rest)) || (n == FILE_ENUM && in_enum(v, rest)) ||
            (n == FILE_SERVICE && in_service(v, rest)))
            return 1;
    return 0;
}

static size_t find_file(const struct reflection *r, struct span name)
{
    size_t i = 0;
    while (i < r->n_files && !same(field(r->files[i], FILE_NAME), name))
        i++;
    return i;
}

static size_t find_symbol(const struct reflection *r, struct span symbol)
{
    size_t i = 0;
    while (i < r->n_files && !in_file(r->files[i], symbol))
        i++;
    return i;
}

/* The file, then what it imports, each once. */
static size_t add_with_imports(const struct reflection *r, size_t file, ProtobufCBinaryData out[MAX_FILES], size_t n,
                               unsigned *seen)
{
    uint32_t number;
    if (file >= r->n_files || (*seen >> file & 1))
        return n;
    *seen |= 1u << file;
    struct span f = r->files[file];
    out[n++] = (ProtobufCBinaryData){.len = f.len, .data = (uint8_t *)(uintptr_t)f.data};
    for (struct span v; next_field(&f, &number, &v);)
        if (number == FILE_DEPENDENCY)
            n = add_with_imports(r, find_file(r, v), out, n, seen);
    return n;
}

/* --- answers ----------------------------------------------------------------------------------------------------------- */

static struct span span_pb(ProtobufCBinaryData b)
{
    return (struct span){b.data, b.len};
}

static grpc_byte_buffer *not_found(response_message *m, const char *what)
{
    Grpc__Reflection__V1__ErrorResponse e = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    e.error_code = GRPC_STATUS_NOT_FOUND;
    e.error_message = pb_field(what, strlen(what) + 1);
    m->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    m->error_response = &e;
    return message_pack(&m->base);
}

static grpc_byte_buffer *give_file(const struct reflection *r, response_message *m, size_t file)
{
    Grpc__Reflection__V1__FileDescriptorResponse f = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    ProtobufCBinaryData files[MAX_FILES];
    unsigned seen = 0;
    if (file >= r->n_files)
        return not_found(m, "not described here");
    f.n_file_descriptor_proto = add_with_imports(r, file, files, 0, &seen);
    f.file_descriptor_proto = files;
    m->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    m->file_descriptor_response = &f;
    return message_pack(&m->base);
}

static grpc_byte_buffer *give_services(const struct reflection *r, response_message *m)
{
    Grpc__Reflection__V1__ListServiceResponse l = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1__ServiceResponse services[RPC_MAX_SERVICES], *pointers[RPC_MAX_SERVICES];
    const char *names[RPC_MAX_SERVICES];
    l.n_service = rpc_server__services(r->server, names);
    for (size_t i = 0; i < l.n_service; i++) {
        grpc__reflection__v1__service_response__init(&services[i]);
        services[i].name = pb_field(names[i], strlen(names[i]) + 1);
        pointers[i] = &services[i];
    }
    l.service = pointers;
    m->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    m->list_services_response = &l;
    return message_pack(&m->base);
}

/* None of our messages has extensions. */
static grpc_byte_buffer *give_extensions(const struct reflection *r, response_message *m, ProtobufCBinaryData type)
{
    Grpc__Reflection__V1__ExtensionNumberResponse e = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    if (find_symbol(r, span_pb(type)) >= r->n_files)
        return not_found(m, "no such type");
    e.base_type_name = type;
    m->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    m->all_extension_numbers_response = &e;
    return message_pack(&m->base);
}

static grpc_byte_buffer *answer(const struct reflection *r, request_message *q)
{
    response_message m = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    m.valid_host = q->host;
    q->base.n_unknown_fields = 0; /* protobuf-c reads tags that it does not read again once it has written them */
    m.original_request = q;
    switch (q->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        return give_services(r, &m);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        return give_file(r, &m, find_file(r, span_pb(q->file_by_filename)));
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        return give_file(r, &m, find_symbol(r, span_pb(q->file_containing_symbol)));
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        return give_extensions(r, &m, q->all_extension_numbers_of_type);
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        return not_found(&m, "no extensions");
    default:
        return NULL;
    }
}

/* --- the call ---------------------------------------------------------------------------------------------------------- */

static grpc_byte_buffer *pull(struct rpc_call *c)
{
    struct reflection_call *r = CALL_OF(c);
    if (!r->n_replies)
        return NULL;
    grpc_byte_buffer *b = r->replies[r->head];
    r->head = (r->head + 1) % MAX_REPLIES;
    r->n_replies--;
    return b;
}

static int push(struct reflection_call *r, grpc_byte_buffer *b)
{
    pthread_mutex_lock(&r->base.lock);
    int fits = r->n_replies < MAX_REPLIES;
    if (fits)
        r->replies[(r->head + r->n_replies++) % MAX_REPLIES] = b;
    pthread_mutex_unlock(&r->base.lock);
    return fits;
}

static void on_open(struct rpc_call *c)
{
    rpc_call_read(c);
}

static void on_message(struct rpc_call *c, grpc_byte_buffer *b)
{
    struct error err;
    if (!b) {
        rpc_call_finish(c, NULL);
        return;
    }
    request_message *q = message_unpack_buffer(&grpc__reflection__v1__server_reflection_request__descriptor,
                                               rpc_loop__scratch(c->loop), b);
    grpc_byte_buffer *reply = q ? answer(c->service, q) : NULL;
    if (!reply) {
        error_set(&err, STATUS_BAD_REQUEST, "no ServerReflectionRequest");
        rpc_call_finish(c, &err);
    } else if (!push(CALL_OF(c), reply)) {
        grpc_byte_buffer_destroy(reply);
        error_set(&err, STATUS_FULL, "%d answers wait to be read", MAX_REPLIES);
        rpc_call_finish(c, &err);
    } else {
        rpc_call_kick(c);
        rpc_call_read(c);
    }
}

static void on_closed(struct rpc_call *c, const struct error *e)
{
    (void)e;
    pthread_mutex_lock(&c->lock);
    for (grpc_byte_buffer *b; (b = pull(c)) != NULL;)
        grpc_byte_buffer_destroy(b);
    pthread_mutex_unlock(&c->lock);
}

static void destroy(struct rpc_call *c)
{
    rpc_call_fini(c);
    free(c);
}

static const struct rpc_call_ops ops = {
    .pull = pull, .on_open = on_open, .on_message = on_message, .on_closed = on_closed, .destroy = destroy};

static void read_files(struct reflection *r)
{
    struct span set = {descriptor_set, descriptor_set_bytes};
    uint32_t n;
    for (struct span v; next_field(&set, &n, &v);) {
        CHECK(r->n_files < MAX_FILES);
        r->files[r->n_files++] = v;
    }
}

enum status reflection_service_add(struct rpc_server *s)
{
    struct reflection *r = calloc(1, sizeof *r);
    if (!r)
        return STATUS_OUT_OF_MEMORY;
    r->server = s;
    read_files(r);
    enum status st = rpc_server__add_service(s, "grpc.reflection.v1alpha.ServerReflection", r, free);
    if (st != STATUS_OK) {
        free(r);
        return st;
    }
    TRY(rpc_server__add_service(s, "grpc.reflection.v1.ServerReflection", NULL, NULL));
    struct rpc_method m = {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                           .call_bytes = sizeof(struct reflection_call),
                           .ops = &ops,
                           .max_open = MAX_OPEN_REFLECTIONS,
                           .service = r};
    TRY(rpc_server__add_method(s, &m));
    m.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    return rpc_server__add_method(s, &m);
}
