#include "rpc/grpc/error_wire.h"

#include <stdio.h>
#include <string.h>

#include <grpc/slice.h>

#include "common/base/check.h"
#include "rpc/grpc/message.h"
#include "rpc/proto/types.pb-c.h"

enum { DETAIL_MAX_BYTES = 2048 };

static grpc_slice pack_detail(const struct error *err)
{
    Sluice__V1__ErrorDetail d = SLUICE__V1__ERROR_DETAIL__INIT;
    const char *type = status_error_type(err->status);
    d.status = err->status;
    d.http_status = (uint32_t)status_http(err->status);
    d.message = PB_FIELD(err->message);
    d.param = PB_FIELD(err->param);
    d.code = PB_FIELD(err->code);
    d.retry_after_s = err->retry_after_s > 0 ? (uint32_t)err->retry_after_s : 0;
    d.retryable = status_retryable(err->status);
    d.type = pb_field(type, strlen(type) + 1);
    grpc_slice s = grpc_slice_malloc(protobuf_c_message_get_packed_size(&d.base));
    protobuf_c_message_pack(&d.base, GRPC_SLICE_START_PTR(s));
    return s;
}

static void add(struct error_trailers *t, const char *key, grpc_slice value)
{
    t->md[t->n_md++] = (grpc_metadata){.key = grpc_slice_from_static_string(key), .value = value};
}

void error_trailers_init(struct error_trailers *t, const struct error *err)
{
    char text[24];
    memset(t, 0, sizeof *t);
    t->code = (grpc_status_code)status_grpc(err->status);
    if (err->status == STATUS_OK) {
        t->message = grpc_empty_slice();
        return;
    }
    ProtobufCBinaryData m = PB_FIELD(err->message);
    t->message = grpc_slice_from_copied_buffer((const char *)m.data, m.len);
    add(t, "sluice-error-bin", pack_detail(err));
    if (err->retry_after_s > 0) {
        snprintf(text, sizeof text, "%d", err->retry_after_s);
        add(t, "retry-after", grpc_slice_from_copied_string(text));
        /* gRPC's own word for the same. */
        snprintf(text, sizeof text, "%lld", 1000ll * err->retry_after_s);
        add(t, "grpc-retry-pushback-ms", grpc_slice_from_copied_string(text));
    }
    ASSERT(t->n_md <= ARRAY_LEN(t->md));
}

void error_trailers_fini(struct error_trailers *t)
{
    grpc_slice_unref(t->message);
    for (size_t i = 0; i < t->n_md; i++)
        grpc_slice_unref(t->md[i].value);
}

static int unpack_detail(grpc_slice s, struct error *out)
{
    struct arena a;
    arena_init(&a, 0);
    Sluice__V1__ErrorDetail *d = GRPC_SLICE_LENGTH(s) > DETAIL_MAX_BYTES
                                     ? NULL
                                     : message_unpack(&sluice__v1__error_detail__descriptor, &a, GRPC_SLICE_START_PTR(s),
                                                      GRPC_SLICE_LENGTH(s));
    if (d) {
        error_clear(out);
        out->status = status_from_int(d->status);
        if (out->status == STATUS_OK)
            out->status = STATUS_INTERNAL;
        out->retry_after_s = d->retry_after_s <= 86400 ? (int)d->retry_after_s : 86400;
        FIELD_PB(out->message, d->message);
        FIELD_PB(out->param, d->param);
        FIELD_PB(out->code, d->code);
    }
    arena_fini(&a);
    return d != NULL;
}

static enum status nearest(grpc_status_code code, const char *message)
{
    switch (code) {
    case GRPC_STATUS_CANCELLED:
        return STATUS_CANCELLED;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
    case GRPC_STATUS_FAILED_PRECONDITION:
        return STATUS_BAD_REQUEST;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        return STATUS_TIMEOUT;
    case GRPC_STATUS_NOT_FOUND:
        return STATUS_NOT_FOUND;
    case GRPC_STATUS_PERMISSION_DENIED:
        return STATUS_FORBIDDEN;
    case GRPC_STATUS_RESOURCE_EXHAUSTED: /* the core's own: a message over the limit, either way */
        return strstr(message, "larger than max") ? STATUS_BODY_TOO_LARGE : STATUS_FULL;
    case GRPC_STATUS_UNIMPLEMENTED:
        return STATUS_UNSUPPORTED;
    case GRPC_STATUS_UNAVAILABLE:
        return STATUS_CLOSED;
    case GRPC_STATUS_UNAUTHENTICATED:
        return STATUS_UNAUTHENTICATED;
    default:
        return STATUS_INTERNAL;
    }
}

void error_from_trailers(grpc_status_code code, grpc_slice message, const grpc_metadata_array *md, struct error *out)
{
    error_clear(out);
    if (code == GRPC_STATUS_OK)
        return;
    for (size_t i = 0; i < md->count; i++)
        if (grpc_slice_str_cmp(md->metadata[i].key, "sluice-error-bin") == 0 && unpack_detail(md->metadata[i].value, out))
            return;
    field_pb(out->message, sizeof out->message,
             (ProtobufCBinaryData){.len = GRPC_SLICE_LENGTH(message), .data = GRPC_SLICE_START_PTR(message)});
    out->status = nearest(code, out->message);
}
