/* tests/cluster/switch.c - program cluster-switch: nodes on one machine, joined by an Ethernet switch that can be made bad.
 *
 *   cluster-switch N      makes node0 to node(N-1) (node.h), says `nodeI NET_FD UTS_FD` for each and then `up`
 *
 * It forwards frames by hardware address and obeys lines on stdin, each answered with `ok`, figures, or `error why`:
 *
 *   delay US    one way, of every frame            cut I     nothing to or from node I       cut I J    nothing between the two
 *   jitter US   0 to so much more, by chance       heal I                                    heal I J
 *   loss PPM    of a million frames so many vanish       seed N    of the chance
 *   rate MBIT   of each node's way in, 0: any      stats     frames forwarded and dropped
 *
 * Kernels without netem have no other way to do this. Frames to one node stay in order, whatever the jitter. The end of stdin,
 * that is of the test, is the end of the nodes too: what lives in them is killed, but for the parent process. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "tests/cluster/node.h"

enum { MAX_NODES = 16, QUEUE = 8192, FRAME_MAX = NODE_MTU + 64, BURST = 64 };

struct frame {
    uint64_t due_ns;
    size_t len;
    uint8_t data[];
};

/* What waits for one node, the oldest first. */
struct port {
    struct frame *queue[QUEUE];
    unsigned head, tail;
    uint64_t busy_until_ns; /* its way in, at --rate */
    int cut;
};

static struct {
    struct node nodes[MAX_NODES];
    struct port ports[MAX_NODES];
    int cut[MAX_NODES][MAX_NODES];
    int n;
    uint64_t delay_ns, jitter_ns, loss_ppm, rate_mbit;
    unsigned short chance[3];
    unsigned long forwarded, dropped;
} sw;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t chance(uint64_t below)
{
    return below ? (uint64_t)nrand48(sw.chance) % below : 0;
}

/* --- frames ------------------------------------------------------------------------------------------------------------------- */

static int is_lost(int from, int to)
{
    return sw.ports[from].cut || sw.ports[to].cut || sw.cut[from][to] || chance(1000000) < sw.loss_ppm;
}

static void enqueue(int from, int to, const uint8_t *data, size_t len, uint64_t now)
{
    struct port *p = &sw.ports[to];
    struct frame *f = is_lost(from, to) || p->tail - p->head == QUEUE ? NULL : malloc(sizeof *f + len);
    if (!f) {
        sw.dropped++;
        return;
    }
    uint64_t sent = now;
    if (sw.rate_mbit) {
        sent = p->busy_until_ns > now ? p->busy_until_ns : now;
        p->busy_until_ns = sent += len * 8000 / sw.rate_mbit;
    }
    f->due_ns = sent + sw.delay_ns + chance(sw.jitter_ns);
    f->len = len;
    memcpy(f->data, data, len);
    p->queue[p->tail++ % QUEUE] = f;
}

static void forward(int from, const uint8_t *data, size_t len, uint64_t now)
{
    int everybody = data[0] & 1;
    for (int to = 0; to < sw.n; to++)
        if (to != from && (everybody || memcmp(data, sw.nodes[to].mac, 6) == 0))
            enqueue(from, to, data, len, now);
}

static void read_frames(int from, uint64_t now)
{
    static uint8_t data[FRAME_MAX];
    for (int i = 0; i < BURST; i++) {
        ssize_t n = read(sw.nodes[from].tap, data, sizeof data);
        if (n < 14)
            return;
        forward(from, data, (size_t)n, now);
    }
}

/* Hands over what is due; when the next one is, or 0. */
static uint64_t deliver(int to, uint64_t now)
{
    struct port *p = &sw.ports[to];
    while (p->head != p->tail && p->queue[p->head % QUEUE]->due_ns <= now) {
        struct frame *f = p->queue[p->head++ % QUEUE];
        if (!p->cut && write(sw.nodes[to].tap, f->data, f->len) == (ssize_t)f->len)
            sw.forwarded++;
        else
            sw.dropped++;
        free(f);
    }
    return p->head == p->tail ? 0 : p->queue[p->head % QUEUE]->due_ns;
}

/* --- commands ----------------------------------------------------------------------------------------------------------------- */

static int is_node(int i)
{
    return i >= 0 && i < sw.n;
}

static int set_cut(const char *args, int value)
{
    int a = -1, b = -1, n = sscanf(args, "%d %d", &a, &b);
    if (n < 1 || !is_node(a) || (n == 2 && (!is_node(b) || a == b)))
        return -1;
    if (n == 1)
        sw.ports[a].cut = value;
    else
        sw.cut[a][b] = sw.cut[b][a] = value;
    return 0;
}

static int set_number(const char *name, uint64_t value)
{
    if (strcmp(name, "delay") == 0)
        sw.delay_ns = value * 1000;
    else if (strcmp(name, "jitter") == 0)
        sw.jitter_ns = value * 1000;
    else if (strcmp(name, "loss") == 0)
        sw.loss_ppm = value;
    else if (strcmp(name, "rate") == 0)
        sw.rate_mbit = value;
    else if (strcmp(name, "seed") == 0)
        memcpy(sw.chance, &value, sizeof sw.chance);
    else
        return -1;
    return 0;
}

static void obey(const char *line)
{
    char name[16] = "";
    int used = 0;
    unsigned long long value;
    int rc = -1;
    if (strcmp(line, "stats") == 0) {
        printf("%lu %lu\n", sw.forwarded, sw.dropped);
        return;
    }
    if (sscanf(line, "%15s %n", name, &used) == 1 && (strcmp(name, "cut") == 0 || strcmp(name, "heal") == 0))
        rc = set_cut(line + used, name[0] == 'c');
    else if (sscanf(line + used, "%llu", &value) == 1)
        rc = set_number(name, value);
    printf(rc == 0 ? "ok\n" : "error '%.80s' is no command\n", line);
}

/* 0: stdin has ended. */
static int read_commands(void)
{
    static char text[4096];
    static size_t len;
    ssize_t n = read(STDIN_FILENO, text + len, sizeof text - 1 - len);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    len += (size_t)n;
    text[len] = 0;
    char *line = text, *end;
    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        obey(line);
    }
    len = strlen(line);
    memmove(text, line, len + 1);
    return len < sizeof text - 1;
}

/* --- the loop ----------------------------------------------------------------------------------------------------------------- */

static void run(void)
{
    for (;;) {
        struct pollfd fds[MAX_NODES + 1];
        uint64_t now = now_ns(), next = 0;
        for (int i = 0; i < sw.n; i++) {
            uint64_t due = deliver(i, now);
            if (due && (!next || due < next))
                next = due;
            fds[i] = (struct pollfd){sw.nodes[i].tap, POLLIN, 0};
        }
        fds[sw.n] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
        uint64_t wait = next > now ? next - now : 0;
        struct timespec limit = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        if (ppoll(fds, (nfds_t)sw.n + 1, next ? &limit : NULL, NULL) <= 0)
            continue;
        now = now_ns();
        for (int i = 0; i < sw.n; i++)
            if (fds[i].revents & POLLIN)
                read_frames(i, now);
        if (fds[sw.n].revents && !read_commands())
            return;
    }
}

int main(int argc, char **argv)
{
    int parent = getppid();
    sw.n = argc == 2 ? atoi(argv[1]) : 0;
    if (sw.n < 1 || sw.n > MAX_NODES) {
        fprintf(stderr, "usage: cluster-switch N (1 to %d nodes)\n", MAX_NODES);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = 0; i < sw.n; i++) {
        if (node_open(&sw.nodes[i], i) != 0)
            return 1;
        printf("%s %d %d\n", sw.nodes[i].name, sw.nodes[i].net_fd, sw.nodes[i].uts_fd);
    }
    printf("up\n");
    run();
    node_kill_processes(sw.nodes, sw.n, parent);
    return 0;
}
