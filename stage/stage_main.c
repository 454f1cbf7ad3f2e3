#define LOG_MODULE "main"
#include "stage/stage_main.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/beat.h"
#include "common/base/cores.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "rpc/grpc/tls.h"
#include "stage/control.h"

enum { END_LIMIT_S = 2 };

struct stage_program {
    struct config config;
    struct stage_setup setup;
    stage_create_compute *create;
    char secret[65];
    struct rpc_tls *tls;
};

static enum status create_compute(void *ctx, struct compute **out, struct error *err)
{
    struct stage_program *p = ctx;
    return p->create(&p->setup, out, err);
}

/* What is not built is asked for by configuration: trying again does not help. */
static int exit_code(enum status why)
{
    return why == STATUS_UNSUPPORTED ? EXIT_CONFIG : status_exit_code(why);
}

/* The coordinator, or what it asked for, ends this process. Runs on the control thread: the compute thread may be stuck. */
static void over(void *ctx, enum status why, const char *message)
{
    (void)ctx;
    if (why == STATUS_OK)
        LOG_INFO("asked to end%s%s", message[0] ? ": " : "", message);
    else
        LOG_ERROR("%s: %s", status_text(why), message);
    if (why == STATUS_OK)
        beat_released();
    _exit(exit_code(why));
}

/* "0,1,4" of the launcher. */
static enum status read_cores(struct stage_setup *s, struct error *err)
{
    const char *text = config_inherited("CORES");
    for (const char *p = text; p && *p;) {
        char *end;
        long core = strtol(p, &end, 10);
        if (end == p || core < 0 || core >= CPU_SETSIZE || (*end && *end != ',') || s->n_cores == STAGE_MAX_CORES)
            return error_set(err, STATUS_CONFIG, "SLUICE_CORES: '%.80s' is no list of cores", text);
        s->cores[s->n_cores++] = (int)core;
        p = *end ? end + 1 : end;
    }
    return STATUS_OK;
}

/* A count of the launcher, 0 when nobody said. */
static uint32_t inherited_number(const char *name)
{
    const char *text = config_inherited(name);
    return text && atoi(text) > 0 ? (uint32_t)atoi(text) : 0;
}

static enum status fill_setup(struct stage_program *p, struct error *err)
{
    struct stage_setup *s = &p->setup;
    int64_t threads;
    s->config = &p->config;
    s->stage = p->config.stage < 0 ? STAGE_ANY : (uint32_t)p->config.stage;
    s->kv_fd = config_inherited_fd("KV");
    const uint32_t stages = inherited_number("HOST_STAGES");
    s->host_stages = stages ? stages : 1;
    s->life = inherited_number("INCARNATION");
    TRY(read_cores(s, err));
    TRY(config_threads(p->config.threads, p->config.stage < 0 ? 0 : (int)p->config.stage, &threads, err));
    s->n_threads = threads > 0 ? (int)threads : s->n_cores ? s->n_cores : cores_usable();
    if (s->n_threads > STAGE_MAX_CORES)
        return error_set(err, STATUS_CONFIG, "--threads: %d, at most %d", s->n_threads, STAGE_MAX_CORES);
    if (s->n_cores && s->n_cores < s->n_threads)
        s->n_cores = 0; /* more threads than cores: the system spreads them better than a pin */
    return STATUS_OK;
}

/* Random and new with every process; the launcher's count of starts lies in the low 16 bits. */
static uint64_t make_incarnation(void)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)getpid() << 32;
    const char *starts = config_inherited("INCARNATION");
    return starts ? (random & ~0xffffull) | (strtoull(starts, NULL, 10) & 0xffff) : random;
}

static enum status open_tls(struct stage_program *p, struct error *err)
{
    return rpc_tls_open(&(struct rpc_tls_files){p->config.tls_cert, p->config.tls_key, p->config.tls_ca}, &p->tls, err);
}

static enum status check_config(const struct config *c, struct error *err)
{
    struct address a;
    if (!c->coordinator)
        return error_set(err, STATUS_CONFIG, "--coordinator HOST:PORT is needed");
    TRY(address_parse(c->coordinator, -1, "coordinator", &a, err));
    if (strcmp(c->link, "nccl") == 0)
        return error_set(err, STATUS_CONFIG, "--link: nccl is not built into this program; auto, unix and tcp are");
    return STATUS_OK;
}

static enum status start(struct stage_program *p, struct rpc_loop *loop, struct control **out, struct error *err)
{
    const struct config *c = &p->config;
    const struct link_socket_options sockets = {
        .kind = strcmp(c->link, "unix") == 0 ? LINK_KIND_UNIX : strcmp(c->link, "tcp") == 0 ? LINK_KIND_TCP : LINK_KIND_AUTO,
        .data = c->data,
        .coordinator = c->coordinator,
        .tls = rpc_tls_is_mutual(p->tls)};
    struct control_options o = {.coordinator = c->coordinator,
                                .secret = p->secret,
                                .tls = p->tls,
                                .stage = p->setup.stage,
                                .heartbeat_ms = (int)c->heartbeat_ms,
                                .max_message_bytes = 64ll << 20,
                                .incarnation = make_incarnation(),
                                .last_signal = inherited_number("LAST_SIGNAL"),
                                .worker = {.create_compute = create_compute, .compute_ctx = p},
                                .over = over};
    TRY(link_socket_port_create(&sockets, &o.worker.port, err));
    enum status s = control_create(&o, loop, out, err);
    return s == STATUS_IO ? STATUS_BAD_MODEL : s; /* the model is the only file that a stage reads */
}

/* An orderly end waits for the tick under way; a stuck one must not keep the process. */
static void *end_anyway(void *arg)
{
    (void)arg;
    sleep(END_LIMIT_S);
    _exit(EXIT_ASKED);
}

static void wait_for_signal(const sigset_t *set, struct control *c)
{
    for (;;) {
        int number = sigwaitinfo(set, NULL);
        if (number == SIGUSR2) {
            control_dump(c);
            trace_dump(STDERR_FILENO, 0);
        } else if (number == SIGUSR1) {
            LOG_INFO("SIGUSR1: making room for the next process");
            _exit(EXIT_AGAIN);
        } else if (number == SIGHUP) {
            control_reload(c);
        } else if (number == SIGTERM || number == SIGINT) {
            LOG_INFO("signal %d: ending", number);
            return;
        }
    }
}

static int fail(const struct error *err)
{
    LOG_ERROR("%s", err->message[0] ? err->message : status_text(err->status));
    return exit_code(err->status);
}

int stage_main(int argc, char **argv, stage_create_compute *create)
{
    static struct stage_program p;
    struct error err = {0};
    enum config_action action;
    char name[32];
    p.create = create;
    log_open("stage");
    if ((err.status = config_read(PROGRAM_STAGE, argc, argv, &p.config, &action, &err)) != STATUS_OK)
        return fail(&err);
    if (action == CONFIG_EXIT)
        return EXIT_ASKED;
    if (p.config.stage >= 0) {
        snprintf(name, sizeof name, "stage %d", (int)p.config.stage);
        log_open(name);
    }
    if (log_set_levels(p.config.log, &err) != STATUS_OK || check_config(&p.config, &err) != STATUS_OK ||
        config_secret(&p.config, p.secret, &err) != STATUS_OK || open_tls(&p, &err) != STATUS_OK ||
        fill_setup(&p, &err) != STATUS_OK)
        return fail(&err);
    trace_install_crash_handler();
    /* Every thread inherits the mask: signals come to sigwaitinfo only. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct rpc_loop *loop = NULL;
    struct control *control = NULL;
    if ((err.status = rpc_loop_create(&loop, &err)) != STATUS_OK)
        return fail(&err);
    enum status s = rpc_loop_beat(loop, (int)p.config.heartbeat_ms);
    if (s == STATUS_OK)
        s = start(&p, loop, &control, &err);
    if (s != STATUS_OK) {
        err.status = s;
        int code = fail(&err);
        rpc_loop_destroy(loop);
        return code;
    }
    wait_for_signal(&set, control);
    beat_ending();
    pthread_t watchdog;
    if (pthread_create(&watchdog, NULL, end_anyway, NULL) != 0)
        _exit(EXIT_ASKED);
    pthread_detach(watchdog);
    control_destroy(control);
    rpc_loop_destroy(loop);
    return EXIT_ASKED;
}
