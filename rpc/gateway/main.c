/* sluice-gateway: HTTP for people and programs, in front of one coordinator. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/beat.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "rpc/gateway/adopt.h"
#include "rpc/gateway/gateway.h"
#include "rpc/gateway/held.h"
#include "rpc/gateway/json_in.h"
#include "rpc/gateway/server.h"
#include "rpc/grpc/tls.h"

#define LOG_MODULE "main"
#include "common/base/log.h"

enum { DRAIN_STEP_MS = 20 };

static enum status check_config(const struct config *c, struct error *err)
{
    if (!c->coordinator)
        return error_set(err, STATUS_CONFIG, "--coordinator: HOST:PORT of the coordinator is needed");
    return STATUS_OK;
}

static void reload(struct gateway *gw)
{
    struct error err;
    if (auth_reload(gw->auth, &err) == STATUS_OK)
        LOG_INFO("API keys read again");
    else
        LOG_ERROR("API keys stay as they were: %s", err.message);
    rpc_tls_reload_logged(gw->tls);
}

/* As if it had been killed: what is open goes on in the next process. */
static void make_room(void)
{
    LOG_INFO("SIGUSR1: making room for the next process");
    _exit(EXIT_AGAIN);
}

/* Signals are blocked in every thread and taken here. Returns the signal that asks for the end. */
static int wait_for_end(struct gateway *gw, const sigset_t *signals)
{
    for (;;) {
        int sig = sigwaitinfo(signals, NULL);
        if (sig == SIGHUP)
            reload(gw);
        else if (sig == SIGUSR2)
            trace_dump(STDERR_FILENO, 0);
        else if (sig == SIGUSR1)
            make_room();
        else if (sig == SIGTERM || sig == SIGINT)
            return sig;
    }
}

/* New requests are refused, open ones may end. A second signal ends the wait. */
static void drain(struct gateway *gw, const sigset_t *signals)
{
    int64_t until = clock_now_ns() + gw->config->drain_ms * NS_PER_MS;
    atomic_store(&gw->draining, 1);
    LOG_INFO("draining: %u requests are open, at most %lld ms", server_open_requests(gw->server),
             (long long)gw->config->drain_ms);
    while (server_open_requests(gw->server) && clock_now_ns() < until) {
        int sig = sigtimedwait(signals, NULL, &(struct timespec){.tv_nsec = DRAIN_STEP_MS * NS_PER_MS});
        if (sig == SIGTERM || sig == SIGINT)
            break;
    }
}

/* Whatever still holds an exchange waits for the coordinator, and every such call has a time limit. */
static void wait_for_exchanges(struct gateway *gw)
{
    enum { MOST_MS = 2000, STEP_MS = 5 };
    for (int i = 0; atomic_load(&gw->n_exchanges) && i < MOST_MS / STEP_MS; i++)
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * NS_PER_MS}, NULL);
}

/* Listens, and goes on with what a gateway before this one has left with the holder. */
static enum status open_doors(struct gateway *gw, struct error *err)
{
    static struct held_connection left[HOLD_MAX];
    int listener;
    gw->held = held_create();
    uint32_t n = held_take(gw->held, left, &listener);
    TRY(server_create(gw, gw->config->http, listener, &gw->server, err));
    if (n && adopt_create(gw, &gw->adopt, err) != STATUS_OK)
        LOG_ERROR("%u answers of the gateway before this one are lost: %s", n, err->message);
    else if (n)
        adopt_begin(gw->adopt, left, n);
    return STATUS_OK;
}

static enum status serve(struct gateway *gw, const sigset_t *signals, struct error *err)
{
    struct rpc_loop *loop;
    struct error why;
    enum status s = auth_create(gw->config->api_keys, &gw->auth, err);
    if (s != STATUS_OK)
        return s;
    s = rpc_tls_open(&(struct rpc_tls_files){gw->config->tls_cert, gw->config->tls_key, gw->config->tls_ca}, &gw->tls, err);
    if (s != STATUS_OK)
        goto destroy_auth;
    if ((s = rpc_loop_create(&loop, err)) != STATUS_OK)
        goto close_tls;
    if ((s = rpc_loop_beat(loop, (int)gw->config->heartbeat_ms)) != STATUS_OK)
        goto destroy_loop;
    if ((s = backend_create(loop, gw->config, gw->tls, &gw->backend, err)) != STATUS_OK)
        goto destroy_loop;
    if ((s = open_doors(gw, err)) != STATUS_OK)
        goto destroy_held;
    LOG_INFO("listening on %s://%s, coordinator %s", gw->tls ? "https" : "http", server_address(gw->server),
             gw->config->coordinator);
    wait_for_end(gw, signals);
    drain(gw, signals);
    beat_ending();
    error_param(&why, STATUS_DRAINING, NULL, "draining", "the service ended before the answer did");
    server_destroy(gw->server, &why);
    wait_for_exchanges(gw);
    held_clear(gw->held);
destroy_held:
    held_destroy(gw->held);
    backend_destroy(gw->backend);
destroy_loop:
    rpc_loop_destroy(loop);
close_tls:
    rpc_tls_close(gw->tls);
destroy_auth:
    auth_destroy(gw->auth);
    return s;
}

static void block_signals(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGHUP);
    sigaddset(out, SIGUSR1);
    sigaddset(out, SIGUSR2);
    sigprocmask(SIG_BLOCK, out, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    struct config config;
    enum config_action action;
    struct error err;
    struct gateway gw = {.config = &config};
    sigset_t signals;
    block_signals(&signals);
    log_open("gateway");
    trace_install_crash_handler();
    json_in_install();
    enum status s = config_read(PROGRAM_GATEWAY, argc, argv, &config, &action, &err);
    if (s == STATUS_OK && action == CONFIG_EXIT)
        return EXIT_ASKED;
    if (s == STATUS_OK)
        s = log_set_levels(config.log, &err);
    if (s == STATUS_OK)
        s = check_config(&config, &err);
    if (s == STATUS_OK)
        s = serve(&gw, &signals, &err);
    if (s != STATUS_OK)
        LOG_ERROR("%s", err.message);
    return status_exit_code(s);
}
