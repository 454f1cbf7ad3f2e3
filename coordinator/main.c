/* coordinator/main.c - program sluice-coordinator: reads the model's head, starts engine and services, drains on SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/beat.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "coordinator/service.h"
#include "rpc/grpc/tls.h"

#define LOG_MODULE "main"
#include "common/base/log.h"

enum { TEXT_THREADS = 2, GRACE_MS = 500 };

struct coordinator {
    struct config config;
    struct model model;
    struct split split;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    char no_template[sizeof((struct error *)0)->message]; /* why there is none */
    struct text_workers *workers;
    struct engine *engine;
    struct service *service;
    char secret[65];
    struct rpc_tls *tls;
    char *names; /* cut at the commas */
    struct service_options options;
};

static enum status check_config(struct coordinator *c, struct error *err)
{
    struct address a;
    if (!c->config.model)
        return error_set(err, STATUS_CONFIG, "--model FILE is missing");
    TRY(address_parse(c->config.grpc, -1, "grpc", &a, err));
    TRY(config_secret(&c->config, c->secret, err));
    TRY(rpc_tls_open(&(struct rpc_tls_files){c->config.tls_cert, c->config.tls_key, c->config.tls_ca}, &c->tls, err));
    if (!address_is_loopback(&a) && !c->secret[0] && !rpc_tls_is_mutual(c->tls))
        return error_set(err, STATUS_CONFIG, "--grpc %s can be reached from other machines: give --token-file or --tls-ca",
                         c->config.grpc);
    if (strcmp(c->config.kv_type, "f16") != 0)
        return error_set(err, STATUS_CONFIG, "--kv-type: %s is not built yet; f16 is", c->config.kv_type);
    return STATUS_OK;
}

/* A model's own template that cannot be used takes nothing from plain completion; one that somebody chose must work. */
static enum status open_template(struct coordinator *c, struct error *err)
{
    struct chat_source source = {0};
    struct error why = {0};
    enum status s = chat_source_find(c->model.gguf, c->config.chat_template, &source, &why);
    if (s == STATUS_OK)
        s = chat_template_open(&source, c->config.python, c->tokenizer, &c->chat_template, &why);
    chat_source_free(&source);
    if (s == STATUS_UNSUPPORTED || (s == STATUS_BAD_MODEL && !c->config.chat_template)) {
        LOG_WARN("%s: %s: only plain completion is served (/v1/completions); --chat-template gives one: %s, or @FILE", c->config.model,
                 why.message, chat_builtin_names());
        snprintf(c->no_template, sizeof c->no_template, "%s", why.message);
        return STATUS_OK;
    }
    if (s == STATUS_OK)
        return s;
    return error_set(err, s == STATUS_BAD_MODEL ? STATUS_CONFIG : s, "%s%s", s == STATUS_BAD_MODEL ? "--chat-template: " : "",
                     why.message);
}

/* --model-name, else the file's name without .gguf. */
static enum status set_names(struct coordinator *c)
{
    const char *slash = strrchr(c->config.model, '/'), *file = slash ? slash + 1 : c->config.model;
    const char *names = c->config.model_name ? c->config.model_name : file;
    size_t len = strlen(names);
    if (names == file && len > 5 && strcmp(file + len - 5, ".gguf") == 0)
        len -= 5;
    c->names = malloc(len + 1);
    if (!c->names)
        return STATUS_OUT_OF_MEMORY;
    model_clean_name((struct text){names, len}, c->names, len + 1);
    char *save = NULL;
    for (char *name = strtok_r(c->names, ",", &save); name; name = strtok_r(NULL, ",", &save))
        if (c->options.n_names < 16)
            c->options.names[c->options.n_names++] = name;
    if (!c->options.n_names)
        c->options.names[c->options.n_names++] = c->model.name; /* nothing but commas */
    return STATUS_OK;
}

/* Nobody is served while the engine's thread stands still, however well the others do. Called on the gRPC loop's thread. */
static int engine_moves(void *engine)
{
    static uint64_t seen = UINT64_MAX;
    uint64_t turns = engine_turns(engine);
    int moves = turns != seen;
    seen = turns;
    return moves;
}

static enum status open_model(struct coordinator *c, struct error *err)
{
    enum status s = model_open(c->config.model, &c->model, err);
    return s == STATUS_IO ? STATUS_BAD_MODEL : s; /* a file that is not there or cannot be read: exit code 3, no restarts */
}

static enum status start(struct coordinator *c, struct error *err)
{
    TRY(check_config(c, err));
    TRY(open_model(c, err));
    TRY(split_plan(&c->model, (uint32_t)c->config.stages, c->config.split, &c->split, err));
    TRY(tokenizer_create(c->model.gguf, &c->tokenizer, err));
    TRY(open_template(c, err));
    if (set_names(c) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory");
    int64_t context = c->config.context;
    if (context < 0)
        context = c->model.hp.n_context;
    if (context > c->model.hp.n_context)
        return error_set(err, STATUS_CONFIG, "--context: %lld is not allowed; the model was made for %u", (long long)context,
                         c->model.hp.n_context);
    c->config.context = context;
    uint32_t max_jobs = (uint32_t)(c->config.queue_requests + c->config.slots + 64);
    if (text_workers_create(TEXT_THREADS, max_jobs, &c->workers) != STATUS_OK)
        return error_set(err, STATUS_OUT_OF_MEMORY, "no memory for the text workers");
    TRY(engine_create(&(struct engine_options){&c->config, &c->model, c->tokenizer, &c->split, c->options.names[0]}, &c->engine, err));
    beat_only_if(engine_moves, c->engine);
    struct service_options *o = &c->options;
    o->config = &c->config;
    o->engine = c->engine;
    o->workers = c->workers;
    o->model = &c->model;
    o->secret = c->secret;
    o->tls = c->tls;
    o->text = (struct text_context){.tokenizer = c->tokenizer,
                                    .chat_template = c->chat_template,
                                    .no_template = c->no_template,
                                    .context = (uint32_t)context,
                                    .answer_cap = c->config.max_answer_tokens > 0 ? (uint32_t)c->config.max_answer_tokens
                                                                                  : UINT32_MAX};
    TRY(service_create(o, &c->service, err));
    LOG_INFO("%s: %s, %u layers, context %lld, %u tokens; %lld stages; gRPC on %s", o->names[0], c->model.hp.arch->name,
             c->model.hp.n_layers, (long long)context, c->model.hp.n_vocab, (long long)c->config.stages, c->config.grpc);
    return STATUS_OK;
}

static void end(struct coordinator *c)
{
    if (c->engine)
        engine_stop(c->engine);
    /* Workers before the service: a job holds it and answers its calls. Freed after it: until then calls come in, which are
     * told that the workers take no more. */
    if (c->workers)
        text_workers_stop(c->workers);
    service_destroy(c->service, GRACE_MS);
    text_workers_destroy(c->workers);
    if (c->engine)
        engine_destroy(c->engine);
    if (c->chat_template)
        chat_template_close(c->chat_template);
    if (c->tokenizer)
        tokenizer_destroy(c->tokenizer);
    model_close(&c->model);
    rpc_tls_close(c->tls);
    free(c->names);
}

/* Waits for a signal; 0 when timeout_ms passed. */
static int wait_signal(const sigset_t *set, int timeout_ms)
{
    struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000l};
    int sig = sigtimedwait(set, NULL, &t);
    return sig > 0 ? sig : 0;
}

static int is_end(int sig)
{
    return sig == SIGTERM || sig == SIGINT;
}

/* The launcher hands a pipe down: a byte on it says that the service was ready once. */
static void tell_launcher(void)
{
    static int told;
    int fd = told ? -1 : config_inherited_fd("READY");
    told = 1;
    if (fd >= 0) {
        ssize_t ignored = write(fd, "R", 1);
        (void)ignored;
        close(fd);
    }
}

static void serve(struct coordinator *c, const sigset_t *set)
{
    int serving = -1;
    int64_t drain_until = INT64_MAX;
    for (;;) {
        int sig = wait_signal(set, 50), draining = drain_until != INT64_MAX;
        if (sig == SIGUSR2)
            trace_dump(STDERR_FILENO, 0);
        if (sig == SIGHUP)
            rpc_tls_reload_logged(c->tls);
        if (sig == SIGUSR1) { /* as if it had been killed: the stages stay, the gateways resume their streams with the next one */
            LOG_INFO("SIGUSR1: making room for the next process");
            _exit(EXIT_AGAIN);
        }
        if (is_end(sig) && draining)
            return;
        if (is_end(sig)) {
            drain_until = clock_now_ns() + c->config.drain_ms * NS_PER_MS;
            service_drain(c->service, 1);
        }
        draining = drain_until != INT64_MAX;
        int ready = engine_ready(c->engine) && !draining;
        if (ready)
            tell_launcher();
        if (ready != serving)
            service_set_health(c->service, serving = ready);
        if (draining && (engine_idle(c->engine) || clock_now_ns() >= drain_until))
            return;
    }
}

int main(int argc, char **argv)
{
    struct coordinator c = {0};
    struct error err = {0};
    enum config_action action;
    log_open("coordinator");
    enum status s = config_read(PROGRAM_COORDINATOR, argc, argv, &c.config, &action, &err);
    if (s == STATUS_OK && action == CONFIG_EXIT)
        return EXIT_ASKED;
    if (s == STATUS_OK)
        s = log_set_levels(c.config.log, &err);
    trace_install_crash_handler();
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before threads start, so that none takes them */
    if (s == STATUS_OK)
        s = start(&c, &err);
    if (s == STATUS_OK)
        serve(&c, &set);
    else
        LOG_ERROR("%s", err.message);
    beat_ending();
    end(&c);
    if (s == STATUS_OK)
        LOG_INFO("ended");
    return status_exit_code(s);
}
