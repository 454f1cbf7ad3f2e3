/* coordinator/service.h - gRPC calls to engine messages and back.
 *
 * Purpose    Implements the Inference, Stages and Admin services over rpc/grpc's plain structs: names clients, hands texts to
 *            the text workers and requests to the engine, and gives each request the sink that writes to its call.
 * Ownership  service_create/service_destroy; engine, workers and tokenizer must outlive it.
 * Threading  Callbacks come on the gRPC loop's thread and never block; the rest from the main thread.
 * Errors     STATUS_ADDRESS_IN_USE, STATUS_CONFIG, STATUS_OUT_OF_MEMORY (create).
 */
#ifndef SLUICE_COORDINATOR_SERVICE_H
#define SLUICE_COORDINATOR_SERVICE_H

#include "common/base/config.h"
#include "coordinator/engine.h"
#include "coordinator/text_workers.h"

struct service;
struct rpc_tls;

struct service_options {
    const struct config *config;
    struct engine *engine;
    struct text_workers *workers;
    struct text_context text;
    const struct model *model;
    const char *names[16];      /* names the model answers to */
    uint32_t n_names;
    const char *secret;         /* "": none */
    struct rpc_tls *tls;        /* NULL: none */
};

/* Listens on config->grpc and starts to serve. */
enum status service_create(const struct service_options *o, struct service **out, struct error *err);
/* New requests are told STATUS_DRAINING. */
void service_drain(struct service *s, int on);
void service_set_health(struct service *s, int serving);
/* Stops listening; calls still open get grace_ms to send what is queued. After engine_stop, before engine_destroy. */
void service_destroy(struct service *s, int grace_ms);

#endif
