#include <stdio.h>
#include <stdlib.h>

#include "rpc/grpc/admin_wire.h"
#include "rpc/grpc/channel.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/unary_client.h"
#include "rpc/proto/admin.pb-c.h"

static void status_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    struct service_status *s = calloc(1, sizeof *s);
    if (!s)
        error_set(&bad, STATUS_OUT_OF_MEMORY, "no memory for the status");
    else if (bad.status == STATUS_OK)
        admin_wire_unpack(data, len, a, s, &bad);
    ((status_done *)u->done)(u->ctx, &bad, bad.status == STATUS_OK ? s : NULL);
    free(s);
}

static void metrics_arrived(struct unary_client *u, const struct error *err, const void *data, size_t len, struct arena *a)
{
    struct error bad = *err;
    Sluice__V1__GetMetricsResponse *m = NULL;
    if (bad.status == STATUS_OK && !(m = message_unpack(&sluice__v1__get_metrics_response__descriptor, a, data, len)))
        error_set(&bad, STATUS_PROTOCOL, "%zu bytes are no GetMetricsResponse", len);
    int some = m && m->text.len;
    ((metrics_done *)u->done)(u->ctx, &bad, some ? (const char *)m->text.data : "", some ? m->text.len : 0);
}

enum status admin_get_status(struct rpc_channel *c, int timeout_ms, status_done *done, void *ctx)
{
    Sluice__V1__GetStatusRequest m = SLUICE__V1__GET_STATUS_REQUEST__INIT;
    return unary_client_start(c, "/sluice.v1.Admin/GetStatus", &m.base, timeout_ms, status_arrived, (unary_done *)done, ctx);
}

enum status admin_get_metrics(struct rpc_channel *c, enum metric_aliases aliases, int timeout_ms, metrics_done *done, void *ctx)
{
    Sluice__V1__GetMetricsRequest m = SLUICE__V1__GET_METRICS_REQUEST__INIT;
    if (aliases == METRIC_ALIASES_VLLM)
        m.aliases = (ProtobufCBinaryData){.len = 4, .data = (uint8_t *)(uintptr_t)"vllm"};
    return unary_client_start(c, "/sluice.v1.Admin/GetMetrics", &m.base, timeout_ms, metrics_arrived, (unary_done *)done, ctx);
}

void admin_set_gateway(struct rpc_channel *c, const char *host, uint32_t pid)
{
    char text[96];
    snprintf(text, sizeof text, "%.63s %u", host, pid);
    rpc_channel__set_gateway(c, text);
}
