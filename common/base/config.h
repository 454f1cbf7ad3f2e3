/* common/base/config.h - every parameter of every program, in one table.
 *
 * Purpose    PARAM_MAP is the only list of names, ranges, defaults and meanings. `struct config` gets a field for each;
 *            file (`--config FILE`, `name = value` lines), environment (SLUICE_NAME) and flags are read into it, the
 *            last one wins, and --help is printed from it. There is no getenv elsewhere.
 * Ownership  Strings in the config live as long as the process.
 * Threading  Read once at start, then read-only.
 * Errors     STATUS_CONFIG with one line that says which name and what is allowed.
 */
#ifndef SLUICE_COMMON_BASE_CONFIG_H
#define SLUICE_COMMON_BASE_CONFIG_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/error.h"

enum program {
    PROGRAM_COORDINATOR = 1,
    PROGRAM_STAGE = 2,
    PROGRAM_GATEWAY = 4,
    PROGRAM_LAUNCH = 8,
    PROGRAM_ALL = 15,
};

/* X(field, kind, flag, programs, default, min, max, choices, help)
 *   kind INT: int64_t; REAL: double; TEXT: const char * (NULL when the default is NULL); CHOICE: const char *, one of
 *   choices ("a|b"); SWITCH: int, --flag [on|off]. A default "auto" of an INT is -1. The launcher takes the flags of its
 *   children, but for those that it sets itself (--stage, --coordinator), and passes on what was given. */
#define PARAM_MAP(X)                                                                                                              \
    X(model, TEXT, "model", 11, NULL, 0, 0, NULL, "GGUF file")                                                                    \
    X(model_name, TEXT, "model-name", 9, NULL, 0, 0, NULL, "names it answers to, A,B (default: the file's name)")                 \
    X(stages, INT, "stages", 9, "1", 1, 64, NULL, "number of stages")                                                             \
    X(stage, INT, "stage", 2, "auto", 0, 63, NULL, "which stage this is (auto: the coordinator says)")                            \
    X(grpc, TEXT, "grpc", 9, "127.0.0.1:7411", 0, 0, NULL, "HOST:PORT where the coordinator listens")                             \
    X(http, TEXT, "http", 12, "127.0.0.1:8080", 0, 0, NULL, "HOST:PORT where the gateway listens")                                \
    X(coordinator, TEXT, "coordinator", 6, NULL, 0, 0, NULL, "HOST:PORT of the coordinator")                                      \
    X(data, TEXT, "data", 10, "auto", 0, 0, NULL, "HOST[:PORT] where a stage takes its link")                                     \
    X(token_file, TEXT, "token-file", 15, NULL, 0, 0, NULL, "file with the secret between processes")                             \
    X(tls_cert, TEXT, "tls-cert", 15, NULL, 0, 0, NULL, "PEM certificate (chain): HTTPS at the gateway; with --tls-ca gRPC too")  \
    X(tls_key, TEXT, "tls-key", 15, NULL, 0, 0, NULL, "PEM private key of --tls-cert, without a passphrase")                      \
    X(tls_ca, TEXT, "tls-ca", 15, NULL, 0, 0, NULL, "PEM CA: processes show each other certificates; links are encrypted")        \
    X(drain_ms, INT, "drain-ms", 13, "30000", 0, 3600000, NULL, "longest drain on SIGTERM")                                       \
    X(restart_delay_ms, INT, "restart-delay-ms", 8, "100", 0, 60000, NULL, "wait before a process is restarted")                  \
    X(restarts, INT, "restarts", 8, "10", 0, 1000000, NULL, "restarts of one process in ten minutes")                             \
    X(detach, SWITCH, "detach", 8, "off", 0, 0, NULL, "mpirun returns when it serves; the processes stay")                        \
    X(join, TEXT, "join", 8, NULL, 0, 0, NULL, "HOST:PORT of a running coordinator: one stage for it, instead of a lost one")     \
    X(pid_file, TEXT, "pid-file", 8, NULL, 0, 0, NULL, "pid of this launcher; rank R > 0: FILE.R (detached: sluice.pid)")         \
    X(log_file, TEXT, "log-file", 8, "sluice.log", 0, 0, NULL, "where a detached service logs")                                   \
    X(slots, INT, "slots", 9, "8", 1, 4096, NULL, "sequences in ticks at the same time")                                          \
    X(context, INT, "context", 9, "auto", 16, 16777216, NULL, "most positions of one sequence (default: the model's)")            \
    X(kv_mib, INT, "kv-mib", 9, "auto", 1, 16777216, NULL, "KV pool of a stage in MiB (auto: slots x context, at most half of what is free)") \
    X(kv_type, CHOICE, "kv-type", 9, "f16", 0, 0, "f16|q8_0", "type of keys and values; q8_0 is not built yet")                   \
    X(kv_block, INT, "kv-block", 9, "64", 16, 128, NULL, "positions in a block: 16, 32, 64 or 128")                               \
    X(kv_blocks, INT, "kv-blocks", 9, "auto", 1, 1 << 24, NULL, "blocks in the pool, instead of --kv-mib")                        \
    X(piece_max, INT, "piece-max", 9, "auto", 1, 4096, NULL, "longest prompt piece in tokens")                                    \
    X(max_rows, INT, "max-rows", 9, "auto", 1, 4096, NULL, "rows of one tick")                                                    \
    X(decode_share, REAL, "decode-share", 9, "0.5", 0, 0.9, NULL, "what running streams keep of their speed while prompts are read") \
    X(max_stall_ms, INT, "max-stall-ms", 9, "250", 1, 600000, NULL, "no gap between two tokens of a stream is planned longer")    \
    X(max_tick_ms, INT, "max-tick-ms", 9, "250", 1, 600000, NULL, "bound of a tick when nothing decodes")                         \
    X(queue_requests, INT, "queue-requests", 9, "1024", 0, 1 << 20, NULL, "requests that may wait")                               \
    X(queue_tokens, INT, "queue-tokens", 9, "4194304", 1, 1ll << 40, NULL, "prompt tokens that may wait")                         \
    X(queue_wait_ms, INT, "queue-wait-ms", 9, "600000", 1, 1ll << 40, NULL, "longest wait for a slot")                            \
    X(client_slots, INT, "client-slots", 9, "0", 0, 4096, NULL, "slots of one client (0: no limit)")                              \
    X(client_queue, INT, "client-queue", 9, "0", 0, 1 << 20, NULL, "waiting requests of one client (0: no limit)")                \
    X(max_answer_tokens, INT, "max-answer-tokens", 9, "auto", 1, 16777216, NULL, "server cap on an answer (default: the context)") \
    X(write_stall_ms, INT, "write-stall-ms", 13, "10000", 100, 3600000, NULL, "a client that reads nothing for so long is dropped") \
    X(split, TEXT, "split", 9, "auto", 0, 0, NULL, "auto, or the first layers of stages 1..S-1: K1,K2,...")                       \
    X(backend, CHOICE, "backend", 10, "auto", 0, 0, "auto|cpu|cuda|ref", "kernels of a stage; cuda is not built yet")             \
    X(isa, CHOICE, "isa", 10, "auto", 0, 0, "auto|portable|avx2|avxvnni|avx512|amx", "instruction set of the cpu backend; all give the same bits") \
    X(device, INT, "device", 10, "0", 0, 255, NULL, "GPU of a stage; nothing to a CPU")                                           \
    X(threads, TEXT, "threads", 10, "auto", 0, 0, NULL, "compute threads: N for every stage, or N0,N1,... by stage")              \
    X(link, CHOICE, "link", 10, "auto", 0, 0, "auto|unix|tcp|nccl", "activation transport; nccl is not built yet")                \
    X(heartbeat_ms, INT, "heartbeat-ms", 15, "300", 20, 60000, NULL, "heartbeat interval; lost after four missed")                \
    X(stuck_ms, INT, "stuck-ms", 15, "10000", 100, 3600000, NULL, "longest time without progress while heartbeats live")          \
    X(recovery_timeout_ms, INT, "recovery-timeout-ms", 13, "120000", 100, 3600000, NULL, "how long requests wait for a lost process") \
    X(exact, SWITCH, "exact", 11, "on", 0, 0, NULL, "row-invariant kernels only; on CPUs all are")                                \
    X(max_body_mib, INT, "max-body-mib", 13, "64", 1, 1024, NULL, "largest HTTP body and gRPC message")                           \
    X(metrics_aliases, CHOICE, "metrics-aliases", 12, "none", 0, 0, "none|vllm", "a second set of metric names")                  \
    X(api_keys, TEXT, "api-keys", 12, NULL, 0, 0, NULL, "file of HTTP keys, lines `name sha256:HEX`")                             \
    X(stage_program, TEXT, "stage-program", 8, NULL, 0, 0, NULL, "program to run as a stage (tests: sluice-stage-fake)")          \
    X(python, TEXT, "python", 9, "/usr/bin/python3", 0, 0, NULL, "interpreter with jinja2 that renders chat templates")           \
    X(chat_template, TEXT, "chat-template", 9, NULL, 0, 0, NULL, "instead of the model's own: a built-in's name (chatml, llama3, ...), another of the model's, or @FILE") \
    X(script, TEXT, "script", 10, NULL, 0, 0, NULL, "fake stage only: what its ticks cost and say")                               \
    X(log, TEXT, "log", 15, "info", 0, 0, NULL, "LEVEL[,module=LEVEL]: error, warn, info, debug, trace")

struct config {
#define PARAM_FIELD_INT(field) int64_t field;
#define PARAM_FIELD_REAL(field) double field;
#define PARAM_FIELD_TEXT(field) const char *field;
#define PARAM_FIELD_CHOICE(field) const char *field;
#define PARAM_FIELD_SWITCH(field) int field;
#define X(field, kind, flag, programs, def, min, max, choices, help) PARAM_FIELD_##kind(field)
    PARAM_MAP(X)
#undef X
    uint64_t given; /* bit i: parameter i of the map was set by file, environment or flag */
};

enum config_action { CONFIG_RUN, CONFIG_EXIT }; /* EXIT: --help or --version was printed */

/* Reads file, environment and flags of one program, in that order. argv[0] is skipped. A parameter that is not the
 * program's is unknown to it. Range and form are checked; what needs other facts (files, addresses) is not. */
enum status config_read(enum program program, int argc, char **argv, struct config *out, enum config_action *action,
                        struct error *err);
/* Flags (--name value) for a child, made of what was given and of what the child takes; NULL-terminated, at most
 * max - 1 strings, kept for the life of the process. Returns their number. */
int config_child_flags(const struct config *c, enum program child, const char **out, int max);
/* Frees the strings of everything read so far: for a fuzzer that reads millions of files. Not thread-safe. */
void config_forget(void);
void config_help(enum program program, FILE *out);
const char *config_version(void); /* "sluice 0.1.0 (commit) backends: ref cpu" */

/* The job secret: read from --token-file, else from the descriptor that the launcher passes in SLUICE_SECRET_FD.
 * secret is text (16 to 64 printable characters; the launcher's are 32 hex digits) or "" when there is none. */
enum status config_secret(const struct config *c, char secret[65], struct error *err);
/* The descriptor by that name that the launcher handed down (SLUICE_<NAME>_FD), or -1. */
int config_inherited_fd(const char *name);
/* Text by that name that the launcher handed down (SLUICE_<NAME>: INCARNATION, CORES, HOST_STAGES), or NULL. */
const char *config_inherited(const char *name);
/* Value i of --threads, "N" or "N0,N1,...": auto or absent gives -1. STATUS_CONFIG when it is no list of positive numbers. */
enum status config_threads(const char *list, int index, int64_t *out, struct error *err);

#endif
