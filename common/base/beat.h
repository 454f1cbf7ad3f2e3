/* common/base/beat.h - tells the launcher that this process is alive.
 *
 * Purpose    The launcher hands down the write end of a pipe (SLUICE_BEAT_FD). Whoever speaks on it at all must go on: a
 *            process that is silent for four heartbeats, two seconds at least, is killed and started again. So the thread
 *            whose standing still makes the process useless is the one that calls beat().
 * Threading  Any thread, also in a signal's thread; nothing blocks.
 * Errors     None: without a launcher, or with a full pipe, nothing is said.
 */
#ifndef SLUICE_COMMON_BASE_BEAT_H
#define SLUICE_COMMON_BASE_BEAT_H

#include <stdint.h>

/* What a byte on the pipe means. */
enum beat_kind {
    BEAT_ALIVE = 'b',
    BEAT_ENDING = 'e',   /* it puts itself away, which may take a while without beats */
    BEAT_RELEASED = 'r', /* the coordinator needs it no more: a joined stage is not started again */
    BEAT_SERVES = 0x80,  /* + stage (0..63): which stage the coordinator has made it */
};

void beat(void);
/* Before the first beat: from then on beat() says something only while lives(ctx) says 1. For a process that is also of no use
 * when another of its threads stands still. */
void beat_only_if(int (*lives)(void *ctx), void *ctx);
void beat_ending(void);
void beat_released(void);
void beat_serves(uint32_t stage);

#endif
