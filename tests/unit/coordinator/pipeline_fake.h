/* tests/unit/coordinator/pipeline_fake.h - stages that answer as told, for the pipeline machine.
 *
 * Purpose    S pretended stages with ports that keep what they were sent. A test delivers their answers one by one, in any
 *            order, or lets them all answer by themselves.
 * Ownership  fakes_init/fakes_fini.
 * Threading  Pure.
 * Errors     Failures of cmocka.
 */
#ifndef SLUICE_TESTS_PIPELINE_FAKE_H
#define SLUICE_TESTS_PIPELINE_FAKE_H

#include "common/base/config.h"
#include "coordinator/pipeline.h"

enum { FAKE_INBOX = 64, FAKE_MAX = 8 };

struct fake {
    struct fakes *all;
    uint32_t stage;
    int any;                   /* it asks for any stage; `stage` is what it was given */
    uint32_t last_signal;      /* that its process's HELLO tells */
    uint64_t attachment, incarnation, highest_epoch, layer_counter;
    int open;                  /* its stream stands */
    int refusing;              /* its port takes no messages */
    int mute;                  /* stopped: it answers nothing and sends no heartbeats */
    int waits;                 /* for a neighbour, while busy */
    int busy;                  /* it is within tick busy_tick: it answers nothing, heartbeats go on */
    uint64_t busy_tick;
    enum status fail_with;     /* every plan but the first of an epoch fails with this */
    uint32_t n_inbox;
    struct to_stage inbox[FAKE_INBOX];
    uint64_t inbox_tick[FAKE_INBOX]; /* of a PLAN; its memory moves on */
    struct msg_assign assigned; /* the last ASSIGN it got; zero in a new process */
    struct msg_epoch epoch;    /* of the last EPOCH it got */
    uint64_t tick;             /* of the last PLAN it got */
    struct msg_ack kv;         /* what its pool holds: kv_id and the watermark */
    enum status exit_status;   /* of EXIT */
    char exit_message[200];
    int exited;
};

struct fakes {
    struct config config;
    struct split split;
    struct pipeline *p;
    uint32_t n;
    int64_t now_ns;
    uint64_t next_incarnation;
    struct fake fake[FAKE_MAX];
    struct plan *plan;
    struct result *result;
    uint32_t n_ready, n_lost;  /* events */
    struct pipeline_event event; /* the last */
};

void fakes_init(struct fakes *f, uint32_t n_stages);
void fakes_fini(struct fakes *f);

struct msg_hello fake_hello(const struct fake *k);
void fake_open(struct fake *k);                                /* a stream that has said nothing; open stays 0 when closed */
void fake_attach(struct fake *k);                              /* a new process: stream and HELLO */
void fake_attach_with(struct fake *k, const struct msg_hello *h); /* the same with another HELLO */
enum pipeline_take fake_say(struct fake *k, const struct from_stage *m);
/* What it could say now; a result is put into r, which has room for two runs. */
struct from_stage fake_message(const struct fake *k, enum from_stage_kind kind, struct result *r);
/* Says it whatever it is: HELLO on a stream of its own, as a stranger has it, all else in the middle of its work. */
void fake_say_any(struct fakes *f, struct fake *k, const struct from_stage *m);
void fake_fail(struct fake *k, enum status why, const char *message); /* FAILED, of no tick */
void fake_close(struct fake *k);
/* Takes the oldest message out of the inbox; 0: none. */
int fake_next(struct fake *k, struct to_stage *m);
/* Answers its oldest message as a good stage does (the last stage answers a plan with its result). 0: none was there. */
int fake_answer(struct fake *k);
void fake_heartbeat(struct fake *k, int busy);
void fake_new_pool(struct fake *k);                            /* what it held is gone */
void fake_wake(struct fake *k);                                /* after mute: it goes on and beats at once */
void fakes_pump(struct fakes *f);                              /* until nobody has anything to answer */
/* Time passes in steps of 100 ms; those that are not mute send heartbeats. */
void fakes_sleep(struct fakes *f, int64_t ms);
void fakes_settle(struct fakes *f);                            /* all are healthy again and answer, until RUNNING */
void fakes_run(struct fakes *f, int64_t ms);                   /* time passes, and all answer */
enum status fakes_send_plan(struct fakes *f);                  /* the next tick */
void fakes_events(struct fakes *f);                            /* polls and counts */
void fakes_check(struct fakes *f);

#endif
