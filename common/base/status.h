/* common/base/status.h - one result code for everything that can fail.
 *
 * Purpose    Functions return `enum status`: STATUS_OK is 0, every failure is negative. The map below is the only place
 *            that knows how a failure is told to HTTP and gRPC clients and whether it makes sense to try again.
 * Ownership  Texts are static.
 * Threading  Pure.
 * Errors     The tens say what must be rebuilt: -10 the request, -20 a slot, -30 a link, -40 a stage, -50 the pipeline,
 *            -60 the process.
 */
#ifndef SLUICE_COMMON_BASE_STATUS_H
#define SLUICE_COMMON_BASE_STATUS_H

#define STATUS_MAP(X)                                                                                                  \
    /* name             code http grpc retry type                     text                                           */ \
    X(OK,                 0, 200,  0, 0, "",                       "ok")                                               \
    X(BAD_REQUEST,      -10, 400,  3, 0, "invalid_request_error",  "the request can never work as it stands")          \
    X(CANCELLED,        -11, 499,  1, 0, "cancelled",              "the client left")                                  \
    X(QUEUE_FULL,       -12, 503,  8, 1, "overloaded_error",       "too many requests are waiting")                    \
    X(QUEUE_WAIT,       -13, 503,  8, 1, "overloaded_error",       "the request waited too long")                      \
    X(CLIENT_LIMIT,     -14, 429,  8, 1, "rate_limit_error",       "this client is over its own limit")                \
    X(UNAUTHENTICATED,  -15, 401, 16, 0, "authentication_error",   "missing or wrong API key")                         \
    X(FORBIDDEN,        -16, 403,  7, 0, "permission_error",       "not allowed with this key")                        \
    X(NOT_FOUND,        -17, 404,  5, 0, "not_found_error",        "no such thing here")                               \
    X(METHOD,           -18, 405, 12, 0, "invalid_request_error",  "this path does not take this method")              \
    X(BODY_TOO_LARGE,   -19, 413,  8, 0, "request_too_large",      "the body is over the limit")                       \
    X(BODY_TYPE,       -110, 415,  3, 0, "invalid_request_error",  "the body is not JSON")                             \
    X(UNSUPPORTED,     -111, 501, 12, 0, "not_implemented_error",  "not built yet")                                    \
    X(WRITE_STALLED,   -112, 499,  1, 1, "cancelled",              "the client read nothing for too long")             \
    X(CONFLICT,        -113, 409, 10, 0, "conflict_error",         "a later attempt of the same request is here")      \
    X(SLOTS_BUSY,       -20, 503,  8, 1, "overloaded_error",       "every slot is in use")                             \
    X(SLOT_STALE,       -21, 500, 13, 1, "internal_error",         "the slot has passed to another sequence")          \
    X(BLOCKS_BUSY,      -22, 503,  8, 1, "overloaded_error",       "every KV block is in use")                         \
    X(LINK,             -30, 503, 14, 1, "overloaded_error",       "a link between stages broke")                      \
    X(TIMEOUT,          -31, 503,  4, 1, "overloaded_error",       "no answer in time")                                \
    X(CLOSED,           -32, 503, 14, 1, "overloaded_error",       "the other side has closed")                        \
    X(PROTOCOL,         -40, 500, 13, 1, "internal_error",         "a message broke the protocol")                     \
    X(STALE,            -41, 500, 13, 1, "internal_error",         "a message of another epoch")                       \
    X(STAGE,            -42, 500, 13, 1, "internal_error",         "a stage failed")                                   \
    X(BAD_LOGITS,       -43, 500, 13, 1, "internal_error",         "the model gave no finite logits for this row")     \
    X(PIPELINE,         -50, 503, 14, 1, "overloaded_error",       "the pipeline is not ready")                        \
    X(DRAINING,         -51, 503, 14, 1, "overloaded_error",       "the service is ending")                            \
    X(PIPELINE_LOST,    -52, 500, 14, 1, "internal_error",         "a stage was lost while this request ran")          \
    X(POISON,           -53, 500, 13, 0, "internal_error",         "stages die of this request")                       \
    X(OUT_OF_MEMORY,    -60, 503,  8, 1, "overloaded_error",       "no memory for this")                               \
    X(CONFIG,           -61, 500,  3, 0, "internal_error",         "bad configuration")                                \
    X(BAD_MODEL,        -62, 500,  3, 0, "internal_error",         "bad model file")                                   \
    X(ADDRESS_IN_USE,   -63, 500, 13, 0, "internal_error",         "the address is in use")                            \
    X(IO,               -64, 500, 13, 1, "internal_error",         "input or output failed")                           \
    X(FULL,             -65, 503,  8, 1, "overloaded_error",       "a bounded queue is full")                          \
    X(INTERNAL,         -69, 500, 13, 1, "internal_error",         "a fault of ours")

enum status {
#define X(name, code, http, grpc, retry, type, text) STATUS_##name = (code),
    STATUS_MAP(X)
#undef X
};

/* Exit codes of all programs (interface.md). */
enum exit_code {
    EXIT_ASKED = 0,
    EXIT_CONFIG = 2,
    EXIT_MODEL = 3,
    EXIT_ADDRESS = 4,
    EXIT_MEMORY = 5,
    EXIT_BUG = 70,
    EXIT_AGAIN = 75, /* asked (SIGUSR1) to make room for the next process, which the launcher starts */
};

/* For a number outside the map the answers are those of STATUS_INTERNAL. */
const char *status_text(enum status s);
const char *status_name(enum status s);        /* "QUEUE_FULL" */
const char *status_error_type(enum status s);  /* error.type of the HTTP API */
int status_http(enum status s);
int status_grpc(enum status s);
int status_retryable(enum status s);
int status_exit_code(enum status s);           /* exit code of a process that could not start for this reason */
enum status status_from_int(int code);         /* a code read from a peer; unknown ones become STATUS_INTERNAL */

#endif
