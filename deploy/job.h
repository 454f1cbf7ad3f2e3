/* deploy/job.h - the launchers of one job, after MPI_Finalize.
 *
 * Purpose    Rank 0's control socket: the other ranks report a fatal end there and learn from it when the service was ready
 *            and when the job ends. Lines of text, one message each; a connection proves that it knows the secret of this
 *            socket, which is made for the job and told by MPI only. One connection a rank at a time.
 *
 *              rank -> 0    HELLO rank nonce hmac        once, within 2 s, else the connection is closed
 *                           EXIT code what               a child ended for good
 *              0 -> rank    READY                        the service was ready once
 *                           END code                     end your children and leave with this code
 *
 *            The nonce of a rank grows with each of its connections, so one that was overheard is worth nothing later.
 *            A rank that is heard late, or again, is told READY and END then. A proven peer that is silent for half a minute (its host
 *            is gone) or that says what does not belong here is lost.
 *
 * Ownership  job_init/job_close in place.
 * Threading  Main thread; job_poll_fds and job_next fit one poll loop.
 * Errors     STATUS_IO, STATUS_CLOSED (rank 0 is gone).
 */
#ifndef SLUICE_DEPLOY_JOB_H
#define SLUICE_DEPLOY_JOB_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

enum { JOB_MAX_RANKS = 64, JOB_MAX_FDS = 2 * JOB_MAX_RANKS + 1 };

enum job_event_kind { JOB_NONE, JOB_READY, JOB_END, JOB_EXIT, JOB_LOST };

struct job_event {
    enum job_event_kind kind;
    int rank, code;   /* EXIT: who and with what (1..255); END: code; LOST: who */
    char what[160];
};

struct job_line {
    int fd, rank;     /* rank -1: not proved yet */
    int64_t since_ns;
    char data[320];
    size_t len;
};

struct job {
    int rank, n_ranks;
    char secret[65];
    int listener;     /* rank 0 */
    uint64_t last_nonce[JOB_MAX_RANKS]; /* rank 0: of each rank */
    char host[64];    /* where rank 0 listens */
    uint16_t port;
    int told_ready, told_end, end_code;
    struct job_line lines[2 * JOB_MAX_RANKS]; /* rank 0: the others; else lines[0] is rank 0 */
};

void job_init(struct job *j, int rank, int n_ranks);
/* Rank 0 listens on host (a loopback or the address that others reach); *port is where. */
enum status job_listen(struct job *j, const char *host, uint16_t *port, struct error *err);
/* Within ten seconds. */
enum status job_connect(struct job *j, const char *host, uint16_t port, struct error *err);
/* Once more, after JOB_LOST; blocks for at most 300 ms. */
enum status job_reconnect(struct job *j, struct error *err);
void job_close(struct job *j);
int job_poll_fds(struct job *j, struct pollfd *fds, int max);
/* Reads what is there; 1 and an event, or 0 when there is none left. Call until 0. */
int job_next(struct job *j, int64_t now_ns, struct job_event *ev);
void job_tell_ready(struct job *j);
void job_tell_end(struct job *j, int code);
/* Rank 0, when it ends before its loop has run: until every other rank has been heard, so that all were told; at most ms. */
void job_settle(struct job *j, int ms);
void job_report_exit(struct job *j, int code, const char *what);

#endif
