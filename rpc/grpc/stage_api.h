/* rpc/grpc/stage_api.h - service sluice.v1.Stages (Attach) as the plain structs of common/wire.
 *
 * Purpose    One bidirectional stream per stage. Server side for the coordinator, client side for a stage.
 * Ownership  Messages are copied (packed) when sent. Plans and results that arrive are filled into objects that the
 *            receiver gives out (acquire) and then owns.
 * Threading  Callbacks on the loop's thread, except *_acquire which it also calls there. Sending from any thread.
 * Errors     A message that does not parse, or breaks plan_check, ends the stream with STATUS_PROTOCOL (logged with both
 *            values). STATUS_FULL: more than 64 messages wait to be sent. STATUS_CLOSED: no stream.
 */
#ifndef SLUICE_RPC_GRPC_STAGE_API_H
#define SLUICE_RPC_GRPC_STAGE_API_H

#include "common/wire/control.h"
#include "rpc/grpc/rpc.h"

/* --- server (coordinator): callers without the secret are refused UNAUTHENTICATED ------------------------------------------ */

struct stage_conn; /* one attached stream; valid from on_attach until on_closed has returned, retain to keep longer */

struct stages_service {
    void *ctx;
    void (*on_attach)(void *ctx, struct stage_conn *c);
    void (*on_message)(void *ctx, struct stage_conn *c, const struct from_stage *m); /* a result passes to the callee */
    void (*on_closed)(void *ctx, struct stage_conn *c);
    /* NULL: too many in flight, a protocol error. One whose message turns out bad is kept for the next result. */
    struct result *(*result_acquire)(void *ctx);
};

enum status stages_service_add(struct rpc_server *s, const struct stages_service *svc);
void stage_conn_retain(struct stage_conn *c);
void stage_conn_release(struct stage_conn *c);
void stage_conn_set_data(struct stage_conn *c, void *data);
void *stage_conn_data(const struct stage_conn *c);
const char *stage_conn_peer(const struct stage_conn *c);
enum status stage_conn_send(struct stage_conn *c, const struct to_stage *m); /* m->plan stays the caller's */
/* Ends the stream after what is queued. */
void stage_conn_close(struct stage_conn *c, const struct error *why);

/* --- client (stage) -------------------------------------------------------------------------------------------------------- */

struct stage_client;

struct stage_client_events {
    void *ctx;
    void (*on_open)(void *ctx);                              /* the stream stands: send HELLO */
    void (*on_message)(void *ctx, const struct to_stage *m); /* a plan passes to the callee */
    /* After on_open, and for a refusal (a wrong secret); not for an attempt that found nobody. A new attempt follows by
     * itself after 50-100 ms. */
    void (*on_closed)(void *ctx, const struct error *why);
    /* NULL: more than the window, a protocol error. */
    struct plan *(*plan_acquire)(void *ctx);
    /* One whose message turned out bad, before on_closed: a bad message ends the stream. */
    void (*plan_release)(void *ctx, struct plan *p);
};

enum status stage_client_create(struct rpc_channel *c, const struct stage_client_events *ev, struct stage_client **out,
                                struct error *err);
enum status stage_client_send(struct stage_client *c, const struct from_stage *m); /* m->result stays the caller's */
/* An attempt that still waits for a connection begins anew, with the certificates of now; an open stream stays. Any thread. */
void stage_client_renew(struct stage_client *c);
void stage_client_destroy(struct stage_client *c); /* not on the loop's thread; no callback after it returns */

/* Packing alone, for tests and fuzzing of the wire: the protobuf bytes of a message. The unpack functions check everything
 * that can be checked without state. */
enum status stage_wire_unpack_to_stage(const void *data, size_t len, struct plan *plan, struct to_stage *out, struct error *err);
enum status stage_wire_unpack_from_stage(const void *data, size_t len, struct result *result, struct from_stage *out,
                                         struct error *err);
enum status stage_wire_pack_to_stage(const struct to_stage *m, uint8_t **data, size_t *len);     /* free() */
enum status stage_wire_pack_from_stage(const struct from_stage *m, uint8_t **data, size_t *len); /* free() */

#endif
