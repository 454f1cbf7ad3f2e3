/* rpc/gateway/kept_answer.h - what a client still lacks of an answer that another process began.
 *
 * Purpose    From a journal (keeper.h) and the place where its connection stands: the last bytes of what was under way when the process died,
 *            and the content that comes behind them. What is made of them on a connection is adopt.c's.
 * Ownership  Copies; kept_answer_fini, or both buffers are taken from it.
 * Threading  Pure.
 * Invariants One byte further on the connection, one byte less is lacking: no byte is sent twice, none is left out.
 * Errors     STATUS_PROTOCOL: the journal lacks what it speaks of, or the connection does not stand where it can. STATUS_OUT_OF_MEMORY.
 */
#ifndef SLUICE_RPC_GATEWAY_KEPT_ANSWER_H
#define SLUICE_RPC_GATEWAY_KEPT_ANSWER_H

#include "rpc/gateway/keeper.h"

enum { KEPT_ANSWER_PENDING = KEEPER_FRAME_MAX + KEEPER_FRAME_EXTRA + 4096 /* a head */, KEPT_ANSWER_OUT = 8 << 20 };

struct kept_answer {
    int need_head;   /* nothing of the response was sent: a head comes first */
    int last_taken;  /* nothing follows what is pending */
    enum keeper_framing framing; /* UNANSWERED: the rest is not known yet */
    int ended;       /* no content comes any more behind out */
    int http, retry_after_s;
    uint64_t handed; /* content in front of out */
    struct buf pending, out; /* as they go on the wire; content without framing */
};

/* position: keeper_position of the connection. */
enum status kept_answer_read(const struct kept *k, uint64_t position, struct kept_answer *out, struct error *err);
void kept_answer_fini(struct kept_answer *a);

#endif
