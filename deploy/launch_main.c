/* deploy/launch_main.c - program sluice-launch: one rank of `mpirun -np S`. Exchanges who is where by MPI, leaves MPI, then
 * starts and supervises the processes of its rank until the job ends. Rank i runs stage i; rank 0 runs coordinator and
 * gateway too. Without mpirun, or with -np 1 and --stages S, one launcher runs all stages. With --join it runs one stage for a
 * service that is there already. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/base/clock.h"
#include "common/base/trace.h"
#include "deploy/launch.h"
#include "deploy/placement.h"

#define LOG_MODULE "launch"
#include "common/base/log.h"

/* --- MPI: who is where ------------------------------------------------------------------------------------------------------ */

/* The address of ours from which packets for `to` would leave; nothing is sent. 0: no route leads there. */
static int address_towards(const char *to, char out[64])
{
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(9)}, own;
    socklen_t len = sizeof own;
    int found = 0, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && inet_pton(AF_INET, to, &peer.sin_addr) == 1 && connect(fd, (struct sockaddr *)&peer, sizeof peer) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &len) == 0 && (ntohl(own.sin_addr.s_addr) >> 24) != 127 && own.sin_addr.s_addr)
        found = inet_ntop(AF_INET, &own.sin_addr, out, 64) != NULL;
    if (fd >= 0)
        close(fd);
    return found;
}

/* The one that the default route uses, else the first that is not the loopback's. */
static void own_address(char out[64])
{
    struct ifaddrs *all = NULL;
    snprintf(out, 64, "127.0.0.1");
    if (address_towards("192.0.2.1", out) || getifaddrs(&all) != 0) /* an address of documentation: it lies elsewhere */
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

/* A sealed memfd that is handed down: nothing of it is on a command line or in the environment. */
static enum status keep_secret(struct launcher *l, struct error *err)
{
    size_t n = strlen(l->job.secret);
    l->secret_fd = memfd_create("sluice-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
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

/* Rank 0 is known by the address from which it reaches the others: a host may have several. */
static void settle_address(struct launcher *l)
{
    struct rank_facts *zero = &l->facts[0];
    for (int i = 1; l->rank == 0 && i < l->n_ranks; i++)
        if (l->facts[i].host_key != zero->host_key && address_towards(l->facts[i].address, zero->address))
            break;
    MPI_Bcast(zero->address, sizeof zero->address, MPI_BYTE, 0, MPI_COMM_WORLD);
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
    settle_address(l);
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

/* Without a rank there is nothing to exchange. */
static enum status check_join(struct launcher *l, struct error *err)
{
    struct address a;
    TRY(address_parse(l->config.join, -1, "join", &a, err));
    if (!l->config.token_file)
        return error_set(err, STATUS_CONFIG, "--join needs --token-file, with the secret of the service that it joins");
    address_print(&a, l->coordinator);
    l->n_ranks = l->n_stages = l->n_local = 1;
    return STATUS_OK;
}

/* Everything that is done by MPI, with the others. s: what this rank has found so far. */
static enum status meet(struct launcher *l, enum status s, int *argc, char ***argv, struct error *err)
{
    char name[24];
    if (supervisor_started_by_mpi())
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* an mpirun that is killed leaves nothing behind; a shell that ends leaves a service */
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &l->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l->n_ranks);
    snprintf(name, sizeof name, "launch %d", l->rank);
    log_open(name);
    job_init(&l->job, l->rank, l->n_ranks);
    if (s == STATUS_OK)
        s = check_stages(l, err);
    if (s == STATUS_OK)
        s = launch_open_files(l, err);
    if ((s = agree(l, s, err)) == STATUS_OK)
        s = exchange(l, err);
    /* Out of MPI before the first fork: no descriptors of it in the children, no barrier at the end. */
    MPI_Finalize();
    return s;
}

static enum status join_alone(struct launcher *l, struct error *err)
{
    log_open("launch");
    job_init(&l->job, 0, 1);
    TRY(check_join(l, err));
    return launch_open_files(l, err);
}

/* Where the coordinator listens, and how this rank's processes reach it. */
static enum status choose_addresses(struct launcher *l, struct error *err)
{
    struct address a;
    TRY(address_parse(l->config.grpc, -1, "grpc", &a, err));
    if (a.port == 0)
        return error_set(err, STATUS_CONFIG, "--grpc: port 0 is not allowed here; the stages must know it");
    address_print(&a, l->listen);
    if (!l->one_host && address_is_loopback(&a)) {
        snprintf(l->listen, sizeof l->listen, "0.0.0.0:%u", a.port);
        snprintf(a.host, sizeof a.host, "%s", l->facts[0].address);
    }
    if (strcmp(a.host, "0.0.0.0") == 0 || strcmp(a.host, "::") == 0)
        snprintf(a.host, sizeof a.host, "%s", l->one_host ? "127.0.0.1" : l->facts[0].address);
    address_print(&a, l->coordinator);
    return STATUS_OK;
}

/* --- start ------------------------------------------------------------------------------------------------------------------------ */

static enum status prepare(struct launcher *l, struct error *err)
{
    enum { BEATS_MISSED = 4, LEAST_SILENCE_MS = 2000 };
    int64_t silence_ms = BEATS_MISSED * l->config.heartbeat_ms;
    if (!l->config.model)
        return error_set(err, STATUS_CONFIG, "--model FILE is missing");
    if (!l->config.join)
        TRY(choose_addresses(l, err));
    if (!l->config.token_file)
        TRY(keep_secret(l, err));
    TRY(launch_open_signals(l, err));
    placement_clear();
    launch_find_programs(l);
    supervisor_init(&l->sup, l->config.restart_delay_ms, l->config.restarts);
    l->sup.silence_ns = (silence_ms > LEAST_SILENCE_MS ? silence_ms : LEAST_SILENCE_MS) * NS_PER_MS;
    return launch_add_children(l, err);
}

/* Nothing has been started: the others and the process that mpirun waits for are told. */
static int give_up(struct launcher *l, enum status s, const struct error *err)
{
    int code = status_exit_code(s);
    LOG_ERROR("%s", err->message);
    if (l->rank == 0) {
        job_tell_end(&l->job, code);
        job_settle(&l->job, 1000);
    } else {
        job_report_exit(&l->job, code, err->message);
    }
    launch_tell_starter(l, code, err->message);
    return code;
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
    static struct launcher l = {.secret_fd = -1, .starter_fd = -1, .log_fd = -1, .pid_fd = -1};
    struct error err = {0};
    enum config_action action;
    log_open("launch");
    signal(SIGCHLD, SIG_DFL); /* whoever ignores it hands that down, and then no child that ends is ever heard of */
    enum status s = config_read(PROGRAM_LAUNCH, argc, argv, &l.config, &action, &err);
    if (s == STATUS_OK && action == CONFIG_EXIT)
        return EXIT_ASKED;
    if (s == STATUS_OK)
        s = log_set_levels(l.config.log, &err);
    trace_install_crash_handler();
    s = s == STATUS_OK && l.config.join ? join_alone(&l, &err) : meet(&l, s, &argc, &argv, &err);
    if (s == STATUS_OK && l.config.detach)
        s = launch_detach(&l, &err); /* from here on in another process */
    if (s == STATUS_OK)
        s = prepare(&l, &err);
    if (s == STATUS_OK) {
        launch_write_pid(&l);
        launch_supervise(&l);
        launch_tell_starter(&l, l.exit_code, l.why);
    } else {
        l.exit_code = give_up(&l, s, &err);
    }
    job_close(&l.job);
    launch_close_files(&l);
    return l.exit_code;
}
