/* tests/fuzz/fuzz_stage_says.c - stages that say anything at any time, against the coordinator's state machine.
 *
 * Input      Deeds: 1 byte what and which stage, then what it takes (enum deed). Messages are those that the stage could say now,
 *            with bytes of their packed form changed; so they are of the present session and epoch, which no input could guess.
 * Must hold  The machine's invariants, after every deed. What the wire's checks refuse, they refuse in words. With stages that are
 *            good again there is service again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "rpc/grpc/stage_api.h"
#include "tests/unit/coordinator/pipeline_fake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_STAGES = 3, MAX_SIZE = 400, MAX_RUNS = 8, MAX_MESSAGE = 4096 };

enum deed {
    SAYS,     /* 0 and 1: kind, number of changes, for each: where, how */
    ANSWERS = 2,
    ALL_ANSWER,
    SLEEPS,   /* hundreds of ms */
    PLANS,    /* the coordinator sends the next tick */
    COMES_OR_GOES,
    TURNS,    /* bits: mute, busy, waits, its port is full, its pool is new, its process ended by a signal, a stream that says nothing, a
               * leap of the clock */
};

struct input {
    const uint8_t *at, *end;
};

static unsigned take(struct input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* The message with bytes changed, as the coordinator's end of the stream reads it. 0: it is none. */
static int change(struct input *in, unsigned n_changes, const struct from_stage *m, struct result *r, struct from_stage *out)
{
    uint8_t *data;
    size_t len;
    struct error err = {0};
    CHECK(stage_wire_pack_from_stage(m, &data, &len) == STATUS_OK);
    for (; n_changes > 0 && len > 0; n_changes--) {
        const unsigned where = take(in), how = take(in);
        data[where % len] ^= (uint8_t)how;
    }
    enum status s = stage_wire_unpack_from_stage(data, len, r, out, &err);
    CHECK(s == STATUS_OK || (s == STATUS_PROTOCOL && err.message[0]));
    free(data);
    return s == STATUS_OK;
}

static void say(struct fakes *f, struct fake *k, struct input *in)
{
    static struct result *valid, *r;
    struct from_stage got;
    if (!valid)
        CHECK(result_create(MAX_RUNS, &valid) == STATUS_OK && result_create(MAX_RUNS, &r) == STATUS_OK);
    const unsigned what = take(in), n_changes = take(in) % 4;
    const struct from_stage m = fake_message(k, (enum from_stage_kind)(FROM_STAGE_HELLO + what % 8), valid);
    if (!change(in, n_changes, &m, r, &got))
        return;
    if (what & 64 && k->open) /* HELLO too, on its own stream */
        fake_say(k, &got);
    else
        fake_say_any(f, k, &got);
    if (what & 128) /* a replay */
        fake_say_any(f, k, &got);
}

static void turn(struct fakes *f, struct fake *k, unsigned bits)
{
    static struct fake silent[8];
    static unsigned n_silent;
    k->mute = bits & 1;
    k->busy = bits >> 1 & 1;
    k->busy_tick = k->tick;
    k->waits = bits >> 2 & 1;
    k->refusing = bits >> 3 & 1;
    if (bits & 16)
        fake_new_pool(k);
    k->last_signal = bits & 32 ? 11 : 0;
    if (bits & 64) {
        struct fake *stranger = &silent[n_silent++ % 8];
        *stranger = (struct fake){.all = f};
        fake_open(stranger);
    }
    if (bits & 128) {
        f->now_ns += 20 * NS_PER_S;
        pipeline_time(f->p, f->now_ns);
        fakes_events(f);
    }
}

/* A new process, whose stream is closed at once where too many are attached. */
static void come(struct fakes *f, struct fake *k)
{
    k->incarnation = f->next_incarnation++;
    fake_open(k);
    if (k->attachment)
        fake_say(k, &(struct from_stage){.kind = FROM_STAGE_HELLO, .hello = fake_hello(k)});
}

static void act(struct fakes *f, struct input *in)
{
    const unsigned byte = take(in);
    struct fake *k = &f->fake[byte / 8 % N_STAGES];
    switch (byte % 8) {
    case ANSWERS:
        fake_answer(k);
        break;
    case ALL_ANSWER:
        fakes_pump(f);
        break;
    case SLEEPS:
        fakes_sleep(f, 100 * (1 + take(in) % 40));
        break;
    case PLANS:
        if (pipeline_running(f->p) && pipeline_in_flight(f->p) < N_STAGES)
            fakes_send_plan(f);
        break;
    case COMES_OR_GOES:
        if (k->open)
            fake_close(k);
        else
            come(f, k);
        break;
    case TURNS:
        turn(f, k, take(in));
        break;
    default:
        say(f, k, in);
    }
    fakes_check(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fakes f;
    if (size > MAX_SIZE)
        return 0;
    fakes_init(&f, N_STAGES);
    for (struct input in = {data, data + size}; in.at < in.end;)
        act(&f, &in);
    for (int i = 0; i < N_STAGES; i++)
        f.fake[i].refusing = 0;
    fakes_sleep(&f, 6000); /* streams that said nothing are closed */
    fakes_settle(&f);
    CHECK(pipeline_running(f.p));
    fakes_fini(&f);
    return 0;
}
