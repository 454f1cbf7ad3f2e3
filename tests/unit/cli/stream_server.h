/* tests/unit/cli/stream_server.h - an OpenAI-style server whose tokens come at known times.
 *
 * Purpose    One thread, thousands of connections: each request is answered after first_ms with a token, then one every step_ms, then
 *            the usage and [DONE]. Knows just enough HTTP for a client that behaves.
 * Ownership  stream_server_start/stop.
 * Threading  Its own thread; the counts may be read after stop.
 */
#ifndef SLUICE_TESTS_UNIT_CLI_STREAM_SERVER_H
#define SLUICE_TESTS_UNIT_CLI_STREAM_SERVER_H

#include <stdint.h>

struct stream_server_script {
    uint32_t n_tokens;
    int first_ms, step_ms;
};

struct stream_server;

/* Listens on a free port of the loopback, which it returns in *port. NULL: it could not. */
struct stream_server *stream_server_start(const struct stream_server_script *script, uint16_t *port);
/* Requests that it answered. */
uint64_t stream_server_stop(struct stream_server *s);

#endif
