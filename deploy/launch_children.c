#include "deploy/launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "deploy/placement.h"

static char *text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *text(const char *fmt, ...)
{
    char *out = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&out, fmt, ap);
    va_end(ap);
    CHECK(n >= 0);
    return out;
}

static struct child *add_child(struct launcher *l, const char *name, const char *program, enum program kind)
{
    struct child *c = supervisor_add(&l->sup, name);
    c->argv[0] = strchr(program, '/') ? program : text("%s/%s", l->bin, program);
    int n = config_child_flags(&l->config, kind, c->argv + 1, MAX_CHILD_ARGS - 16);
    c->argv[n + 1] = NULL;
    if (!l->config.token_file)
        supervisor_pass(c, "SECRET", l->secret_fd);
    return c;
}

static void add_flag(struct child *c, const char *flag, const char *value)
{
    int n = 0;
    while (c->argv[n])
        n++;
    CHECK(n + 2 < MAX_CHILD_ARGS);
    c->argv[n] = flag;
    c->argv[n + 1] = value;
    c->argv[n + 2] = NULL;
}

void launch_ask_again(struct child *stage)
{
    for (int i = 0; stage->argv[i]; i++)
        if (strcmp(stage->argv[i], "--stage") == 0) {
            snprintf(stage->own_flag, sizeof stage->own_flag, stage->serves < 0 ? "auto" : "%d", stage->serves);
            stage->argv[i + 1] = stage->own_flag;
        }
}

/* stage -1: the coordinator says which. */
static enum status add_stage(struct launcher *l, int stage, int local, struct error *err)
{
    int cores[MAX_CORES], n_cores;
    int64_t asked;
    TRY(config_threads(l->config.threads, stage < 0 ? 0 : stage, &asked, err));
    int n_threads = placement_cores(local, l->n_local, (int)asked, cores, &n_cores);
    const char *program = l->config.stage_program ? l->config.stage_program : "sluice-stage";
    struct child *c = add_child(l, stage < 0 ? "joined stage" : text("stage %d", stage), program, PROGRAM_STAGE);
    TRY(supervisor_keep_memory(c, "KV", err));
    add_flag(c, "--stage", stage < 0 ? "auto" : text("%d", stage));
    add_flag(c, "--coordinator", l->coordinator);
    add_flag(c, "--threads", text("%d", n_threads));
    c->env[c->n_env++] = text("SLUICE_HOST_STAGES=%d", l->n_local); /* they share this host's memory */
    if (n_cores) {
        char list[4096] = "SLUICE_CORES=";
        size_t len = strlen(list);
        for (int i = 0; i < n_cores && len + 8 < sizeof list; i++)
            len += (size_t)snprintf(list + len, sizeof list - len, "%s%d", i ? "," : "", cores[i]);
        c->env[c->n_env++] = text("%s", list);
    }
    return STATUS_OK;
}

enum status launch_add_children(struct launcher *l, struct error *err)
{
    if (l->config.join)
        return add_stage(l, -1, 0, err);
    if (l->rank == 0) {
        l->coordinator_child = add_child(l, "coordinator", "sluice-coordinator", PROGRAM_COORDINATOR);
        add_flag(l->coordinator_child, "--grpc", l->listen);
        add_flag(l->coordinator_child, "--stages", text("%d", l->n_stages));
        supervisor_pass(l->coordinator_child, "READY", l->ready_pipe[1]);
        l->gateway_child = add_child(l, "gateway", "sluice-gateway", PROGRAM_GATEWAY);
        add_flag(l->gateway_child, "--coordinator", l->coordinator);
        TRY(holder_create(&l->holder, err));
        supervisor_pass(l->gateway_child, "HOLD", holder_gateway_fd(l->holder));
    }
    if (l->n_ranks > 1)
        return add_stage(l, l->rank, l->local, err);
    for (int i = 0; i < l->n_stages; i++)
        TRY(add_stage(l, i, i, err));
    return STATUS_OK;
}

void launch_find_programs(struct launcher *l)
{
    ssize_t n = readlink("/proc/self/exe", l->bin, sizeof l->bin - 1);
    l->bin[n > 0 ? n : 0] = 0;
    char *slash = strrchr(l->bin, '/');
    if (slash)
        *slash = 0;
}
