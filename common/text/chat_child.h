/* common/text/chat_child.h - the process that runs Jinja2, seen from its parent.
 *
 * Purpose    Starts PYTHON with the embedded chat_template_child.py and exchanges frames with it over a socket pair:
 *            4 bytes length (little-endian), 1 byte kind, payload. Knows processes and frames, nothing about templates.
 *            The child gets no descriptor but the socket, no environment, its own process group, no_new_privs, limits
 *            on files, and, where the system allows, a network namespace without a network. When the parent dies it
 *            sees the end of the socket, and while it renders its own alarm kills it (PR_SET_PDEATHSIG would fire when
 *            the starting thread ends, so it is not used).
 * Ownership  In place: chat_child_start/chat_child_stop.
 * Threading  One thread at a time. Start is safe beside any other threads: vfork, and only system calls until exec.
 * Errors     STATUS_CONFIG: the program cannot be run. STATUS_TIMEOUT. STATUS_CLOSED: the child is gone.
 */
#ifndef SLUICE_COMMON_TEXT_CHAT_CHILD_H
#define SLUICE_COMMON_TEXT_CHAT_CHILD_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/base/error.h"

enum {
    CHILD_MAX_FRAME = 64 << 20,

    CHILD_ASK_TEMPLATE = 'T', /* JSON: template, tools_template, limits, clock, bos_token, eos_token */
    CHILD_ASK_RENDER = 'R',   /* JSON: the context */
    CHILD_ASK_MARKED = 'M',   /* the same with marks in it */

    CHILD_SAYS_READY = 'Y',   /* "with" or "without" a filter of system calls */
    CHILD_SAYS_TEXT = 'O',    /* what was rendered; nothing for a template that compiles */
    CHILD_SAYS_RAISED = 'X',  /* raise_exception's message */
    CHILD_SAYS_ERROR = 'E',   /* any other error's message */
    CHILD_SAYS_LIMIT = 'L',   /* memory or output limit; the child ends after it */
};

struct chat_child {
    pid_t pid; /* 0: none */
    int fd;
};

/* memory_mib: what the child may use beyond what it needs to start. */
enum status chat_child_start(struct chat_child *c, const char *python, unsigned memory_mib, struct error *err);
/* Kills and reaps; harmless without a child. */
void chat_child_stop(struct chat_child *c);
/* 0: it ended, or says something unasked. Only between an answer and the next question. */
int chat_child_idle(const struct chat_child *c);

enum status chat_child_send(struct chat_child *c, char kind, const char *payload, size_t len, int64_t deadline_ns);
/* The next frame; payload replaces what is in the buf. */
enum status chat_child_receive(struct chat_child *c, char *kind, struct buf *payload, int64_t deadline_ns);

#endif
