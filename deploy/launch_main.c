/* deploy/launch_main.c - program sluice-launch: one rank of `mpirun -np S`. Exchanges who is where by MPI, leaves MPI, then
 * starts and supervises the processes of its rank until the job ends. Rank i runs stage i; rank 0 runs coordinator and
 * gateway too. Without mpirun, or with -np 1 and --stages S, one launcher runs all stages. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/trace.h"
#include "deploy/job.h"
#include "deploy/placement.h"
#include "deploy/supervisor.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

static const int64_t KILL_AFTER_NS = 1 * NS_PER_S;  /* SIGTERM to SIGKILL */
static const int64_t DRAIN_SLACK_NS = 2 * NS_PER_S; /* beyond --drain-ms, for the processes to end by themselves */

/* What every rank tells the others. */
struct rank_facts {
    char boot_id[40], address[64];
    int64_t host_key; /* ranks with the same one share a host (network namespace included) */
};

enum phase { PHASE_RUN, PHASE_DRAIN, PHASE_END };

struct launcher {
    struct config config;
    int rank, n_ranks, n_stages;
    int local, n_local; /* among the ranks of this host */
    int one_host;
    struct rank_facts facts[JOB_MAX_RANKS];
    char coordinator[128]; /* as the processes of this rank reach it */
    char listen[128];      /* --grpc of the coordinator */
    char bin[3072];        /* folder of the programs */
    int secret_fd, ready_pipe[2], signal_fd;
    struct job job;
    struct supervisor sup;
    struct child *coordinator_child, *gateway_child;
    enum phase phase;
    int ready, exit_code, kills;
    int64_t phase_until_ns;
};

/* --- MPI: who is where ------------------------------------------------------------------------------------------------------ */

static void own_address(char out[64])
{
    struct ifaddrs *all = NULL;
    snprintf(out, 64, "127.0.0.1");
    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *a = all; a; a = a->ifa_next) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a->ifa_addr;
        if (!in || in->sin_family != AF_INET || (ntohl(in->sin_addr.s_addr) >> 24) == 127)
            continue;
        inet_ntop(AF_INET, &in->sin_addr, out, 64);
        break;
    }
    freeifaddrs(all);
}

static void own_facts(struct rank_facts *f)
{
    memset(f, 0, sizeof *f);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, f->boot_id, 36) < 0)
        f->boot_id[0] = 0;
    if (fd >= 0)
        close(fd);
    char ns[64] = "";
    ssize_t n = readlink("/proc/self/ns/net", ns, sizeof ns - 1);
    uint64_t h = 14695981039346656037ull;
    for (const char *p = f->boot_id; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211ull;
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)ns[i]) * 1099511628211ull;
    f->host_key = (int64_t)h;
    own_address(f->address);
}

static void make_secret(char secret[65])
{
    unsigned char bytes[32];
    while (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        ;
    for (int i = 0; i < 32; i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
}

/* A sealed memfd: children inherit it, nothing of it is on a command line or in the environment. */
static enum status keep_secret(struct launcher *l, struct error *err)
{
    size_t n = strlen(l->job.secret);
    l->secret_fd = memfd_create("sluice-secret", MFD_ALLOW_SEALING);
    if (l->secret_fd < 0 || write(l->secret_fd, l->job.secret, n) != (ssize_t)n ||
        fcntl(l->secret_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return error_set(err, STATUS_IO, "the secret cannot be kept: %s", strerror(errno));
    return STATUS_OK;
}

static enum status check_stages(struct launcher *l, struct error *err)
{
    int asked = (l->config.given && l->config.stages > 1) ? (int)l->config.stages : 0;
    if (l->n_ranks > JOB_MAX_RANKS)
        return error_set(err, STATUS_CONFIG, "%d ranks, at most %d are supported", l->n_ranks, JOB_MAX_RANKS);
    if (asked && l->n_ranks > 1 && asked != l->n_ranks)
        return error_set(err, STATUS_CONFIG, "--stages %d, but mpirun started %d ranks: one rank is one stage", asked,
                         l->n_ranks);
    l->n_stages = l->n_ranks > 1 ? l->n_ranks : asked ? asked : 1;
    return STATUS_OK;
}

/* A rank that cannot go on takes part nevertheless: the others would wait for it for ever. They learn of it here. */
static enum status agree(struct launcher *l, enum status s, struct error *err)
{
    struct {
        int status, rank;
    } mine = {s, l->rank}, worst;
    MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MINLOC, MPI_COMM_WORLD);
    if (s != STATUS_OK || worst.status == STATUS_OK)
        return s;
    return error_set(err, status_from_int(worst.status), "rank %d cannot start: %s", worst.rank,
                     status_text(status_from_int(worst.status)));
}

static enum status exchange(struct launcher *l, struct error *err)
{
    struct rank_facts mine;
    uint16_t port = 0;
    enum status s = STATUS_OK;
    own_facts(&mine);
    MPI_Allgather(&mine, (int)sizeof mine, MPI_BYTE, l->facts, (int)sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    l->one_host = 1;
    for (int i = 0; i < l->n_ranks; i++) {
        int same = l->facts[i].host_key == mine.host_key;
        l->local += same && i < l->rank;
        l->n_local += same;
        l->one_host &= same;
    }
    if (l->n_ranks == 1)
        l->n_local = l->n_stages;
    const char *host = l->one_host ? "127.0.0.1" : l->facts[0].address;
    if (l->rank == 0) {
        make_secret(l->job.secret); /* of the control socket; without --token-file also the processes' */
        if (l->n_ranks > 1)
            s = job_listen(&l->job, host, &port, err);
    }
    MPI_Bcast(l->job.secret, sizeof l->job.secret, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(&port, sizeof port, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (l->rank != 0 && port)
        s = job_connect(&l->job, host, port, err);
    return agree(l, s, err);
}

/* Where the coordinator listens, and how this rank's processes reach it. */
static enum status choose_addresses(struct launcher *l, struct error *err)
{
    struct address a;
    TRY(address_parse(l->config.grpc, -1, "grpc", &a, err));
    if (a.port == 0)
        return error_set(err, STATUS_CONFIG, "--grpc: port 0 is not allowed here; the stages must know it");
    snprintf(l->listen, sizeof l->listen, "%.100s:%u", a.host, a.port);
    if (!l->one_host && address_is_loopback(&a)) {
        snprintf(l->listen, sizeof l->listen, "0.0.0.0:%u", a.port);
        snprintf(a.host, sizeof a.host, "%s", l->facts[0].address);
    }
    if (strcmp(a.host, "0.0.0.0") == 0)
        snprintf(a.host, sizeof a.host, "%s", l->one_host ? "127.0.0.1" : l->facts[0].address);
    snprintf(l->coordinator, sizeof l->coordinator, "%.100s:%u", a.host, a.port);
    return STATUS_OK;
}

/* --- children ----------------------------------------------------------------------------------------------------------------- */

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
        c->env[c->n_env++] = text("SLUICE_SECRET_FD=%d", l->secret_fd);
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

static enum status add_stage(struct launcher *l, int stage, int local, struct error *err)
{
    int cores[MAX_CORES], n_cores;
    int64_t asked;
    TRY(config_list_value(l->config.threads, stage, &asked, err));
    int n_threads = placement_cores(local, l->n_local, (int)asked, cores, &n_cores);
    const char *program = l->config.stage_program ? l->config.stage_program : "sluice-stage";
    struct child *c = add_child(l, text("stage %d", stage), program, PROGRAM_STAGE);
    add_flag(c, "--stage", text("%d", stage));
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

static enum status add_children(struct launcher *l, struct error *err)
{
    if (l->rank == 0) {
        l->coordinator_child = add_child(l, "coordinator", "sluice-coordinator", PROGRAM_COORDINATOR);
        add_flag(l->coordinator_child, "--grpc", l->listen);
        add_flag(l->coordinator_child, "--stages", text("%d", l->n_stages));
        l->coordinator_child->env[l->coordinator_child->n_env++] = text("SLUICE_READY_FD=%d", l->ready_pipe[1]);
        l->coordinator_child->pass_fd = l->ready_pipe[1];
        l->gateway_child = add_child(l, "gateway", "sluice-gateway", PROGRAM_GATEWAY);
        add_flag(l->gateway_child, "--coordinator", l->coordinator);
    }
    if (l->n_ranks > 1)
        return add_stage(l, l->rank, l->local, err);
    for (int i = 0; i < l->n_stages; i++)
        TRY(add_stage(l, i, i, err));
    return STATUS_OK;
}

static void find_programs(struct launcher *l)
{
    ssize_t n = readlink("/proc/self/exe", l->bin, sizeof l->bin - 1);
    l->bin[n > 0 ? n : 0] = 0;
    char *slash = strrchr(l->bin, '/');
    if (slash)
        *slash = 0;
}

/* --- running -------------------------------------------------------------------------------------------------------------------- */

static void begin_end(struct launcher *l, int code)
{
    if (l->phase == PHASE_END)
        return;
    l->phase = PHASE_END;
    l->exit_code = code;
    l->sup.ending = 1;
    l->phase_until_ns = clock_now_ns() + KILL_AFTER_NS;
    if (l->rank == 0)
        job_tell_end(&l->job, code);
    supervisor_signal(&l->sup, SIGTERM);
    if (code) /* nothing to wait for: a second one means now. (Two SIGTERMs in a row would be one.) */
        supervisor_signal(&l->sup, SIGINT);
}

static void begin_drain(struct launcher *l)
{
    LOG_INFO("draining: running requests finish within %lld ms; once more ends at once", (long long)l->config.drain_ms);
    l->phase = PHASE_DRAIN;
    l->sup.ending = 1;
    l->phase_until_ns = clock_now_ns() + l->config.drain_ms * NS_PER_MS + DRAIN_SLACK_NS;
    if (l->coordinator_child->pid)
        kill(l->coordinator_child->pid, SIGTERM);
    if (l->gateway_child->pid)
        kill(l->gateway_child->pid, SIGTERM);
}

/* A child that cannot do its work ends the job with its code. */
static void fatal(struct launcher *l, int code, const char *what)
{
    LOG_ERROR("rank %d: %s", l->rank, what);
    if (l->rank != 0)
        job_report_exit(&l->job, code, what);
    begin_end(l, code);
}

/* The cause in words, for the last line that somebody reads; the details stand in the child's own line above. */
static const char *exit_meaning(int code)
{
    switch (code) {
    case EXIT_CONFIG:
        return " (bad configuration)";
    case EXIT_MODEL:
        return " (bad or missing model file)";
    case EXIT_ADDRESS:
        return " (address in use)";
    case EXIT_MEMORY:
        return " (out of memory at start)";
    default:
        return "";
    }
}

static void child_ended(struct launcher *l, const struct child_end *end, int64_t now)
{
    struct child *c = end->child;
    char how[80], what[160];
    if (end->signal)
        snprintf(how, sizeof how, "was ended by signal %d (%s)", end->signal, strsignal(end->signal));
    else
        snprintf(how, sizeof how, "exited with code %d%s", end->code, exit_meaning(end->code));
    if (l->phase == PHASE_END)
        return;
    if (l->phase == PHASE_DRAIN) {
        LOG_INFO("%s %s", c->name, how);
        return;
    }
    snprintf(what, sizeof what, "%s %s", c->name, how);
    if (!l->ready && !end->signal && end->code >= EXIT_CONFIG && end->code <= EXIT_MEMORY) {
        fatal(l, end->code, what);
        return;
    }
    if (!end->signal && end->code == EXIT_ASKED && (c == l->coordinator_child || c == l->gateway_child)) {
        LOG_INFO("%s ended as somebody asked it to; it is not started again", c->name);
        if (c == l->coordinator_child)
            begin_end(l, EXIT_ASKED);
        return;
    }
    if (supervisor_restart(&l->sup, c, now) == STATUS_OK) {
        LOG_WARN("%s; started again in %lld ms", what, (long long)l->config.restart_delay_ms);
        return;
    }
    snprintf(what, sizeof what, "%s %s, after %lld restarts in ten minutes: given up", c->name, how,
             (long long)l->config.restarts);
    fatal(l, end->signal ? EXIT_BUG : end->code ? end->code : EXIT_BUG, what);
}

static void on_signal(struct launcher *l, int sig)
{
    switch (sig) {
    case SIGCHLD:
        break;
    case SIGUSR2:
        supervisor_signal(&l->sup, SIGUSR2);
        break;
    case SIGHUP:
        if (l->gateway_child && l->gateway_child->pid)
            kill(l->gateway_child->pid, SIGHUP);
        break;
    case SIGUSR1:
        if (l->rank == 0 && l->phase == PHASE_RUN)
            begin_drain(l); /* mpirun tells every rank; the others end when rank 0 says so */
        break;
    default: /* SIGTERM, SIGINT */
        if (l->phase == PHASE_RUN && l->rank == 0)
            begin_drain(l);
        else if (l->phase == PHASE_DRAIN || ++l->kills > 1)
            begin_end(l, EXIT_ASKED);
    }
}

static void read_signals(struct launcher *l, int64_t now)
{
    struct signalfd_siginfo si;
    struct child_end end;
    while (read(l->signal_fd, &si, sizeof si) == sizeof si)
        on_signal(l, (int)si.ssi_signo);
    while (supervisor_reap(&l->sup, &end))
        child_ended(l, &end, now);
}

static void read_ready(struct launcher *l)
{
    char byte;
    while (read(l->ready_pipe[0], &byte, 1) == 1) {
        if (!l->ready)
            LOG_INFO("ready: http://%s", l->config.http);
        l->ready = 1;
        job_tell_ready(&l->job);
    }
}

static void read_job(struct launcher *l, int64_t now)
{
    struct job_event ev;
    while (l->n_ranks > 1 && job_next(&l->job, now, &ev)) {
        if (ev.kind == JOB_READY)
            l->ready = 1;
        else if (ev.kind == JOB_END)
            begin_end(l, ev.code);
        else if (ev.kind == JOB_EXIT) {
            LOG_ERROR("rank %d: %s", ev.rank, ev.what);
            begin_end(l, ev.code);
        } else if (ev.kind == JOB_LOST && l->rank != 0 && l->phase != PHASE_END) {
            LOG_ERROR("rank %d: rank 0 is gone", l->rank);
            begin_end(l, EXIT_BUG);
        } else if (ev.kind == JOB_LOST && l->rank == 0 && l->phase == PHASE_RUN) {
            LOG_WARN("the launcher of rank %d is gone: its stage is not started again", ev.rank);
        }
    }
}

static int64_t next_time(const struct launcher *l)
{
    int64_t at = supervisor_next_start(&l->sup);
    return l->phase != PHASE_RUN && l->phase_until_ns < at ? l->phase_until_ns : at;
}

static void wait_events(struct launcher *l)
{
    struct pollfd fds[JOB_MAX_FDS + 2];
    int n = 0;
    fds[n++] = (struct pollfd){l->signal_fd, POLLIN, 0};
    if (l->rank == 0)
        fds[n++] = (struct pollfd){l->ready_pipe[0], POLLIN, 0};
    if (l->n_ranks > 1)
        n += job_poll_fds(&l->job, fds + n, JOB_MAX_FDS);
    int64_t now = clock_now_ns(), at = next_time(l), wait = at == INT64_MAX ? 1000 : (at - now) / NS_PER_MS + 1;
    poll(fds, (nfds_t)n, wait < 0 ? 0 : wait > 1000 ? 1000 : (int)wait);
}

static void supervise(struct launcher *l)
{
    for (;;) {
        int64_t now = clock_now_ns();
        supervisor_start_due(&l->sup, now);
        wait_events(l);
        now = clock_now_ns();
        read_signals(l, now);
        if (l->rank == 0)
            read_ready(l);
        read_job(l, now);
        if (l->phase == PHASE_DRAIN && (now >= l->phase_until_ns || (!l->coordinator_child->pid && !l->gateway_child->pid)))
            begin_end(l, EXIT_ASKED);
        if (l->phase == PHASE_END && now >= l->phase_until_ns) {
            supervisor_signal(&l->sup, SIGKILL);
            l->phase_until_ns = now + KILL_AFTER_NS;
        }
        if (l->phase == PHASE_END && supervisor_running(&l->sup) == 0)
            return;
    }
}

/* --- start ------------------------------------------------------------------------------------------------------------------------ */

static enum status open_signals(struct launcher *l, struct error *err)
{
    sigset_t set;
    sigemptyset(&set);
    const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->signal_fd < 0 || pipe2(l->ready_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, STATUS_IO, "signals: %s", strerror(errno));
    return STATUS_OK;
}

static enum status prepare(struct launcher *l, struct error *err)
{
    if (!l->config.model)
        return error_set(err, STATUS_CONFIG, "--model FILE is missing");
    TRY(check_stages(l, err));
    TRY(choose_addresses(l, err));
    if (!l->config.token_file)
        TRY(keep_secret(l, err));
    TRY(open_signals(l, err));
    placement_clear();
    find_programs(l);
    supervisor_init(&l->sup, l->config.restart_delay_ms, l->config.restarts);
    return add_children(l, err);
}

#ifdef __SANITIZE_ADDRESS__
/* MPI unloads its plug-ins and leaves what they allocated: LeakSanitizer can no longer name the place, so no line of
 * tests/lsan.supp can. The children are checked. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

int main(int argc, char **argv)
{
    static struct launcher l = {.secret_fd = -1};
    struct error err = {0};
    enum config_action action;
    char name[24] = "launch";
    log_open(name);
    enum status s = config_read(PROGRAM_LAUNCH, argc, argv, &l.config, &action, &err);
    if (s == STATUS_OK && action == CONFIG_EXIT)
        return EXIT_ASKED;
    if (s == STATUS_OK)
        s = log_set_levels(l.config.log, &err);
    trace_install_crash_handler();
    if (supervisor_started_by_mpi())
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* an mpirun that is killed leaves nothing behind; a shell that ends leaves a service */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &l.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l.n_ranks);
    snprintf(name, sizeof name, "launch %d", l.rank);
    log_open(name);
    job_init(&l.job, l.rank, l.n_ranks);
    if (s == STATUS_OK)
        s = check_stages(&l, &err);
    if ((s = agree(&l, s, &err)) == STATUS_OK)
        s = exchange(&l, &err);
    /* Out of MPI before the first fork: no descriptors of it in the children, no barrier at the end. */
    MPI_Finalize();
    if (s == STATUS_OK)
        s = prepare(&l, &err);
    if (s != STATUS_OK) {
        LOG_ERROR("%s", err.message);
        if (l.rank == 0) {
            job_tell_end(&l.job, status_exit_code(s));
            job_settle(&l.job, 1000);
        } else {
            job_report_exit(&l.job, status_exit_code(s), err.message);
        }
        job_close(&l.job);
        return status_exit_code(s);
    }
    supervise(&l);
    job_close(&l.job);
    return l.exit_code;
}
