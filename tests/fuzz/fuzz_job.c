/* tests/fuzz/fuzz_job.c - the launchers' control socket: whatever connections say, and however it is cut, it is understood or they are
 * closed. The first byte chooses which side reads. In the rest a byte below 8 cuts: what lies before it arrives and is read before
 * anything else happens, then what `enum cut` says. An '@' in a HELLO stands for the proof of a rank that knows the secret: without it
 * nobody gets past the greeting. */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "deploy/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_RANKS = 4, MAX_PEERS = 6, CUTS = 8 };
enum cut { CUT_ONLY, CUT_TELL_READY, CUT_TELL_END, CUT_CONNECT, CUT_CLOSE, CUT_TURN, CUT_WAIT };

/* The other ends. */
struct peer {
    int fd; /* -1: it has closed */
    int line; /* of job.lines when it connected; whoever comes later may have it again */
    int is_current, has_proof;
    int is_told_ready, told_code; /* what it has heard; -1: no end */
};

struct play {
    struct job j;
    struct peer peers[MAX_PEERS];
    int n_peers, speaker;
    int64_t now_ns;
};

static const char secret[] = "0123456789abcdef0123456789abcdef";

static void connect_peer(struct play *p, int rank)
{
    int ends[2], line = 0;
    while (p->j.lines[line].fd >= 0)
        line++;
    if (p->n_peers == MAX_PEERS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
        return;
    for (int i = 0; i < p->n_peers; i++)
        p->peers[i].is_current &= p->peers[i].line != line;
    p->j.lines[line] = (struct job_line){.fd = ends[0], .rank = rank, .since_ns = p->now_ns};
    p->peers[p->n_peers] = (struct peer){.fd = ends[1], .line = line, .is_current = 1, .has_proof = rank >= 0, .told_code = -1};
    p->speaker = p->n_peers++;
}

/* What rank 0 says is one of its two lines; it says them whole. */
static void listen_to(struct peer *a)
{
    char heard[1024];
    ssize_t n;
    while (a->fd >= 0 && (n = recv(a->fd, heard, 1, MSG_PEEK)) > 0) {
        size_t len = heard[0] == 'R' ? 6 : 7; /* codes have two digits here */
        n = recv(a->fd, heard, len, 0);
        heard[n > 0 ? n : 0] = 0;
        CHECK(a->has_proof && n == (ssize_t)len);
        if (strcmp(heard, "READY\n") == 0)
            a->is_told_ready = 1;
        else
            CHECK(sscanf(heard, "END %d", &a->told_code) == 1 && heard[6] == '\n');
    }
}

static void check_lines(struct play *p)
{
    uint32_t seen = 0;
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++) {
        const struct job_line *l = &p->j.lines[i];
        if (l->fd < 0)
            continue;
        CHECK(l->rank >= -1 && l->rank < N_RANKS && l->len < sizeof l->data);
        CHECK(l->rank < 0 || !(seen & 1u << l->rank)); /* one connection a rank */
        seen |= l->rank < 0 ? 0 : 1u << l->rank;
    }
    for (int i = 0; i < p->n_peers; i++) {
        struct peer *a = &p->peers[i];
        const struct job_line *l = a->is_current && p->j.lines[a->line].fd >= 0 ? &p->j.lines[a->line] : NULL;
        if (l && l->rank >= 0 && p->j.rank == 0)
            CHECK(a->has_proof && (l->rank >= 1 || i == 0));
        listen_to(a);
        if (!l || l->rank < 0 || p->j.rank != 0 || a->fd < 0)
            continue;
        CHECK(a->is_told_ready || !p->j.told_ready); /* whoever has proved itself knows all that was told */
        CHECK(!p->j.told_end || a->told_code == p->j.end_code);
    }
}

static void read_all(struct play *p)
{
    struct job_event ev;
    while (job_next(&p->j, p->now_ns, &ev)) {
        CHECK(ev.rank >= 0 && ev.rank < N_RANKS && memchr(ev.what, 0, sizeof ev.what));
        CHECK(ev.kind == JOB_LOST || (p->j.rank == 0 ? ev.kind == JOB_EXIT : ev.kind == JOB_READY || ev.kind == JOB_END));
        CHECK(ev.kind != JOB_EXIT || (ev.rank != 0 && ev.code >= 1 && ev.code <= 255 && ev.what[0] && !strchr(ev.what, '\n')));
        for (int i = 0; ev.kind == JOB_LOST && i < 2 * JOB_MAX_RANKS; i++)
            CHECK(p->j.lines[i].fd < 0 || p->j.lines[i].rank != ev.rank);
    }
    check_lines(p);
}

/* The proof for the HELLO that text begins its last line with. */
static void prove(const char *text, size_t len, char out[65])
{
    char line[64], nonce[20], said[128];
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned mac_len = 0;
    int rank;
    const char *end = memrchr(text, '\n', len), *from = end ? end + 1 : text;
    out[0] = 0;
    snprintf(line, sizeof line, "%.*s", (int)(len - (size_t)(from - text)), from);
    if (sscanf(line, "HELLO %d %16s", &rank, nonce) != 2)
        return;
    int n = snprintf(said, sizeof said, "sluice-launch %d %s", rank, nonce);
    HMAC(EVP_sha256(), secret, (int)strlen(secret), (const unsigned char *)said, (size_t)n, mac, &mac_len);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", mac[i]);
}

static void say(struct play *p, const char *text, size_t len)
{
    struct peer *a = &p->peers[p->speaker];
    char proof[65];
    const char *at = memchr(text, '@', len);
    size_t n = at ? (size_t)(at - text) : len;
    if (a->fd < 0)
        return;
    if (n)
        send(a->fd, text, n, MSG_NOSIGNAL); /* an error: it was closed on us, as it should be */
    if (at) {
        prove(text, n, proof);
        a->has_proof |= proof[0] != 0;
        send(a->fd, proof, strlen(proof), MSG_NOSIGNAL);
        send(a->fd, at + 1, len - n - 1, MSG_NOSIGNAL);
    }
}

static void act(struct play *p, enum cut cut)
{
    struct peer *a = &p->peers[p->speaker];
    switch (cut) {
    case CUT_TELL_READY:
        if (p->j.rank == 0)
            job_tell_ready(&p->j);
        break;
    case CUT_TELL_END:
        if (p->j.rank == 0)
            job_tell_end(&p->j, 70 + p->speaker);
        break;
    case CUT_CONNECT:
        if (p->j.rank == 0)
            connect_peer(p, -1);
        break;
    case CUT_CLOSE:
        if (a->fd >= 0)
            close(a->fd);
        a->fd = -1;
        break;
    case CUT_TURN:
        p->speaker = (p->speaker + 1) % p->n_peers;
        break;
    case CUT_WAIT: /* longer than a greeting may take */
        p->now_ns += 3 * NS_PER_S;
        break;
    case CUT_ONLY:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct play p;
    if (size < 1 || size > 1024)
        return 0;
    log_set_levels("error", NULL);
    int mode = data[0] % 3; /* rank 0 before the proof, rank 0 after it, another rank */
    p.n_peers = p.speaker = 0;
    p.now_ns = 1;
    job_init(&p.j, mode == 2 ? 1 : 0, N_RANKS);
    snprintf(p.j.secret, sizeof p.j.secret, "%s", secret);
    connect_peer(&p, mode == 0 ? -1 : mode == 1 ? 2 : 0);
    for (size_t at = 1; at < size; at++) {
        size_t from = at;
        while (at < size && data[at] >= CUTS)
            at++;
        say(&p, (const char *)data + from, at - from);
        read_all(&p);
        if (at < size && data[at] <= CUT_WAIT)
            act(&p, (enum cut)data[at]);
        read_all(&p);
    }
    for (int i = 0; i < p.n_peers; i++)
        if (p.peers[i].fd >= 0)
            close(p.peers[i].fd);
    for (int i = 0; i < p.n_peers; i++)
        p.peers[i].fd = -1;
    read_all(&p);
    for (int i = 0; i < 2 * JOB_MAX_RANKS; i++)
        CHECK(p.j.lines[i].fd < 0);
    job_close(&p.j);
    return 0;
}
