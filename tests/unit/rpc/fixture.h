/* tests/unit/rpc/fixture.h - a loop, a server on port 0 and a channel to it, with an Inference service that a test scripts.
 *
 * Purpose    Everything in one process over loopback. Callbacks count and copy under one lock; a test waits for a count.
 * Ownership  fixture_start/fixture_stop; a test may stop server or channel earlier.
 * Threading  Fields below `lock` are guarded by it.
 */
#ifndef SLUICE_TESTS_UNIT_RPC_FIXTURE_H
#define SLUICE_TESTS_UNIT_RPC_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "rpc/grpc/inference_api.h"

enum { FIXTURE_PIECES = 262145 };

struct fixture {
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct rpc_channel *channel;
    struct rpc_options server_options, channel_options;
    char address[64];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Server side. */
    struct generate_call *call; /* the last one; retained until fixture_stop or fixture_drop_call */
    int n_generate, n_closed, trusted;
    int64_t closed_ns;
    struct generate_request request; /* texts copied into `texts` */
    char texts[10][4096];
    uint32_t ids[4096], resume[64];
    struct error unary_error; /* status not OK: the service fails unary calls with it */
    /* Client side. */
    struct generate_stream *stream;
    int n_events, n_ended, hold; /* hold: events are not asked for by themselves */
    int64_t ended_ns;
    struct generate_event last;
    char text[1 << 20];
    size_t text_len, n_text_events, n_usages, n_ids, n_progress;
    uint32_t logprob_ids[4096]; /* of the logprobs that came */
    size_t n_logprobs;
    struct usage first; /* of the text that had one */
    struct error end;
};

void fixture_start(struct fixture *f, const char *server_secret, const char *channel_secret);
/* The same with certificates; NULL: plaintext. */
void fixture_start_tls(struct fixture *f, const char *server_secret, struct rpc_tls *server_tls, const char *channel_secret,
                       struct rpc_tls *channel_tls);
void fixture_restart_server(struct fixture *f); /* on the same port, after rpc_server_destroy */
void fixture_stop(struct fixture *f);
void fixture_drop_call(struct fixture *f);
void fixture_drop_stream(struct fixture *f);
void fixture_generate(struct fixture *f, const struct generate_request *r);
/* Waits until *count >= n; fails the test after ms. */
void fixture_wait(struct fixture *f, const int *count, int n, int ms);
struct bytes text_bytes(const char *text);
void fixture_send_text(struct fixture *f, const char *text, const uint32_t *ids, size_t n_ids, enum status want);
void fixture_send_done(struct fixture *f);
void sleep_ms(int ms);

#endif
