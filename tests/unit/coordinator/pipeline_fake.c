#include "pipeline_fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rand.h"

static void draw(void *ctx, void *bytes, size_t n)
{
    uint64_t *seed = ctx;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)rand_mix((*seed)++);
}

static enum status port_send(void *ctx, const struct to_stage *m)
{
    struct fake *k = ctx;
    if (k->refusing)
        return STATUS_FULL;
    if (m->kind == TO_STAGE_EXIT) {
        k->exited = 1;
        k->exit_status = m->exit.status;
        snprintf(k->exit_message, sizeof k->exit_message, "%s", m->exit.message);
    }
    assert_true(k->n_inbox < FAKE_INBOX);
    if (m->kind == TO_STAGE_PLAN)
        k->tick = k->inbox_tick[k->n_inbox] = m->plan->tick;
    k->inbox[k->n_inbox++] = *m;
    return STATUS_OK;
}

static void port_close(void *ctx, const struct error *why)
{
    (void)why;
    ((struct fake *)ctx)->open = 0;
}

void fakes_init(struct fakes *f, uint32_t n_stages)
{
    static uint64_t seed = 1;
    memset(f, 0, sizeof *f);
    log_set_levels("error,pipeline=error", NULL);
    f->config = (struct config){.slots = 4, .kv_block = 16, .kv_blocks = -1, .kv_mib = -1, .kv_type = "f16", .heartbeat_ms = 300,
                                .stuck_ms = 10000};
    f->split.n_stages = f->n = n_stages;
    for (uint32_t i = 0; i <= n_stages; i++)
        f->split.first_layer[i] = 10 * i;
    f->now_ns = 1000 * NS_PER_S;
    f->next_incarnation = 100;
    struct pipeline_options o = {.config = &f->config, .split = &f->split, .model_hash = {7}, .n_layers = 10 * n_stages,
                                 .context = 1024, .max_rows = 256, .random = draw, .random_ctx = &seed};
    assert_int_equal(pipeline_create(&o, &f->p), STATUS_OK);
    assert_int_equal(plan_create(4, 4, 64, &f->plan), STATUS_OK);
    assert_int_equal(result_create(4, &f->result), STATUS_OK);
    for (uint32_t i = 0; i < n_stages; i++)
        f->fake[i] = (struct fake){.all = f, .stage = i, .kv = {.kv_id = 7 + i}};
}

void fakes_fini(struct fakes *f)
{
    pipeline_destroy(f->p);
    plan_destroy(f->plan);
    result_destroy(f->result);
}

void fakes_events(struct fakes *f)
{
    struct pipeline_event ev;
    while (pipeline_poll(f->p, &ev)) {
        f->event = ev;
        f->n_ready += ev.kind == PIPELINE_EVENT_READY;
        f->n_lost += ev.kind == PIPELINE_EVENT_LOST;
    }
    fakes_check(f);
}

void fakes_check(struct fakes *f)
{
    const char *why;
    if (!pipeline__check(f->p, &why))
        fail_msg("%s", why);
}

struct msg_hello fake_hello(const struct fake *k)
{
    struct msg_hello h = {.wire_version = WIRE_VERSION, .stage = k->any ? STAGE_ANY : k->stage, .last_signal = k->last_signal, .host = "here", .profile = "p1", .pid = 1000 + k->stage,
                          .incarnation = k->incarnation, .highest_epoch = k->highest_epoch, .model_hash = {7},
                          .n_layers = 10 * k->all->n};
    snprintf(h.addresses.tcp, sizeof h.addresses.tcp, "stage%u:%llu", k->stage, (unsigned long long)k->incarnation);
    return h;
}

enum pipeline_take fake_say(struct fake *k, const struct from_stage *m)
{
    enum pipeline_take take = pipeline_message(k->all->p, k->attachment, m, k->all->now_ns);
    fakes_events(k->all);
    return take;
}

void fake_attach(struct fake *k)
{
    k->incarnation = k->all->next_incarnation++;
    struct msg_hello h = fake_hello(k);
    fake_attach_with(k, &h);
}

void fake_open(struct fake *k)
{
    struct stage_port port = {k, port_send, port_close};
    k->open = 1;
    k->exited = k->refusing = k->mute = k->busy = k->waits = 0;
    k->n_inbox = 0;
    k->assigned = (struct msg_assign){0};
    k->attachment = pipeline_attached(k->all->p, &port, k->all->now_ns);
}

void fake_attach_with(struct fake *k, const struct msg_hello *h)
{
    fake_open(k);
    assert_true(k->attachment > 0);
    fake_say(k, &(struct from_stage){.kind = FROM_STAGE_HELLO, .hello = *h});
}

void fake_close(struct fake *k)
{
    k->open = 0;
    pipeline_closed(k->all->p, k->attachment, k->all->now_ns);
    fakes_events(k->all);
}

void fake_fail(struct fake *k, enum status why, const char *message)
{
    struct from_stage m = {.kind = FROM_STAGE_FAILED, .failed = {k->epoch.session, k->epoch.epoch, 0, why, "", 0}};
    strncpy(m.failed.message, message, sizeof m.failed.message - 1);
    fake_say(k, &m);
}

int fake_next(struct fake *k, struct to_stage *m)
{
    if (k->n_inbox == 0)
        return 0;
    *m = k->inbox[0];
    k->n_inbox--;
    memmove(k->inbox, k->inbox + 1, k->n_inbox * sizeof k->inbox[0]);
    memmove(k->inbox_tick, k->inbox_tick + 1, k->n_inbox * sizeof k->inbox_tick[0]);
    return 1;
}

static void answer_plan(struct fake *k, uint64_t tick)
{
    struct result *r = k->all->result;
    if (k->fail_with && tick > 0) {
        struct from_stage m = {.kind = FROM_STAGE_FAILED,
                               .failed = {k->epoch.session, k->epoch.epoch, tick, k->fail_with, "as told", 0}};
        fake_say(k, &m);
        return;
    }
    k->kv = (struct msg_ack){.kv_id = k->kv.kv_id, .kv_session = k->epoch.session, .kv_epoch = k->epoch.epoch, .kv_tick = tick};
    if (k->stage + 1 != k->all->n)
        return;
    r->session = k->epoch.session;
    r->epoch = k->epoch.epoch;
    r->tick = tick;
    r->status = STATUS_OK;
    r->timing = (struct stage_timing){.tick = tick, .stage = k->stage, .compute_us = 1000};
    r->layer_counter = ++k->layer_counter;
    fake_say(k, &(struct from_stage){.kind = FROM_STAGE_RESULT, .result = r});
}

int fake_answer(struct fake *k)
{
    struct to_stage m;
    uint64_t tick = k->inbox_tick[0];
    if (!k->open || k->mute || k->busy || !fake_next(k, &m))
        return 0;
    switch (m.kind) {
    case TO_STAGE_ASSIGN:
        k->stage = k->any ? m.assign.stage : k->stage;
        k->assigned = m.assign;
        assert_int_equal(m.assign.stage, k->stage);
        assert_int_equal(m.assign.window, k->all->n + 1);
        fake_say(k, &(struct from_stage){.kind = FROM_STAGE_LOADED, .loaded = {.n_blocks = 100 + k->stage}, .assigned = k->assigned});
        break;
    case TO_STAGE_EPOCH:
        assert_true(m.epoch.epoch > k->highest_epoch);
        k->epoch = m.epoch;
        k->highest_epoch = m.epoch.epoch;
        k->tick = 0;
        k->kv.session = m.epoch.session;
        k->kv.epoch = m.epoch.epoch;
        fake_say(k, &(struct from_stage){.kind = FROM_STAGE_ACK, .ack = k->kv});
        break;
    case TO_STAGE_LINKS:
        fake_say(k, &(struct from_stage){.kind = FROM_STAGE_READY, .ready = {m.links.session, m.links.epoch}});
        break;
    case TO_STAGE_PLAN:
        answer_plan(k, tick);
        break;
    case TO_STAGE_EXIT:
        fake_close(k);
        break;
    }
    return 1;
}

void fake_heartbeat(struct fake *k, int busy)
{
    struct msg_heartbeat h = {.session = k->epoch.session, .epoch = k->epoch.epoch, .tick = k->busy ? k->busy_tick : k->tick,
                              .layer_counter = k->layer_counter, .busy = (uint32_t)busy,
                              .waits = (uint32_t)k->waits};
    fake_say(k, &(struct from_stage){.kind = FROM_STAGE_HEARTBEAT, .heartbeat = h});
}

void fake_new_pool(struct fake *k)
{
    k->kv = (struct msg_ack){.kv_id = k->all->next_incarnation++ << 8};
}

void fake_wake(struct fake *k)
{
    k->mute = 0;
    fake_heartbeat(k, k->busy);
}

void fakes_pump(struct fakes *f)
{
    for (int again = 1; again;) {
        again = 0;
        for (uint32_t i = 0; i < f->n; i++)
            again |= fake_answer(&f->fake[i]);
    }
}

void fakes_sleep(struct fakes *f, int64_t ms)
{
    for (; ms > 0; ms -= 100) {
        f->now_ns += (ms < 100 ? ms : 100) * NS_PER_MS;
        for (uint32_t i = 0; i < f->n; i++)
            if (f->fake[i].open && !f->fake[i].mute && f->fake[i].attachment)
                fake_heartbeat(&f->fake[i], f->fake[i].busy);
        pipeline_time(f->p, f->now_ns);
        fakes_events(f);
    }
}

void fakes_run(struct fakes *f, int64_t ms)
{
    for (; ms > 0; ms -= 100) {
        fakes_pump(f);
        fakes_sleep(f, ms < 100 ? ms : 100);
    }
    fakes_pump(f);
}

void fakes_settle(struct fakes *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        f->fake[i].mute = f->fake[i].busy = f->fake[i].waits = 0;
    for (int round = 0; round < 400 && !pipeline_running(f->p); round++) {
        for (uint32_t i = 0; i < f->n; i++)
            if (!f->fake[i].open)
                fake_attach(&f->fake[i]);
        fakes_pump(f);
        if (!pipeline_running(f->p))
            fakes_sleep(f, 100);
    }
    assert_true(pipeline_running(f->p));
    for (uint32_t i = 0; i < f->n; i++)
        assert_int_equal(f->fake[i].highest_epoch, pipeline_epoch(f->p));
}

enum status fakes_send_plan(struct fakes *f)
{
    plan_reset(f->plan);
    f->plan->tick = f->fake[0].tick + 1;
    enum status s = pipeline_send(f->p, f->plan, f->now_ns);
    fakes_events(f);
    return s;
}

static void fill_result(struct result *r, const struct fake *k)
{
    r->session = k->epoch.session;
    r->epoch = k->epoch.epoch;
    r->tick = pipeline_in_flight(k->all->p) ? k->tick + 1 - pipeline_in_flight(k->all->p) : k->tick;
    r->status = STATUS_OK;
    r->timing = (struct stage_timing){.tick = r->tick, .stage = k->stage, .n_rows = 3, .compute_us = 1000};
    r->layer_counter = k->layer_counter;
    r->n_runs = 2;
    r->runs[0] = (struct result_run){.seq = 5, .n_accepted = 2, .id = 77};
    r->runs[1] = (struct result_run){.seq = 6, .n_accepted = 1, .id = -1};
}

struct from_stage fake_message(const struct fake *k, enum from_stage_kind kind, struct result *r)
{
    struct from_stage m = {.kind = kind};
    const struct msg_epoch e = k->epoch;
    switch (kind) {
    case FROM_STAGE_HELLO:
        m.hello = fake_hello(k);
        break;
    case FROM_STAGE_LOADED:
        m.loaded = (struct msg_loaded){.n_blocks = 100, .weight_bytes = 1 << 20, .kv_bytes = 1 << 20, .cost_rows = {1, 16},
                                       .prompt_us = {10, 90}, .decode_us = {12, 100}, .attention_ns = 3};
        m.assigned = k->n_inbox && k->inbox[0].kind == TO_STAGE_ASSIGN ? k->inbox[0].assign : k->assigned;
        break;
    case FROM_STAGE_ACK:
        m.ack = k->kv;
        m.ack.session = e.session;
        m.ack.epoch = e.epoch;
        break;
    case FROM_STAGE_READY:
        m.ready = e;
        break;
    case FROM_STAGE_RESULT:
        fill_result(r, k);
        m.result = r;
        break;
    case FROM_STAGE_TIMINGS:
        m.timings.session = e.session;
        m.timings.epoch = e.epoch;
        m.timings.n = 2;
        for (uint32_t i = 0; i < 2; i++)
            m.timings.timing[i] = (struct stage_timing){.tick = k->tick + i, .stage = k->stage, .n_rows = 4, .compute_us = 900};
        break;
    case FROM_STAGE_HEARTBEAT:
        m.heartbeat = (struct msg_heartbeat){.session = e.session, .epoch = e.epoch, .tick = k->tick, .layer_counter = 9, .busy = 1};
        break;
    case FROM_STAGE_FAILED:
        m.failed = (struct msg_failed){.session = e.session, .epoch = e.epoch, .tick = k->tick, .status = STATUS_OUT_OF_MEMORY};
        strcpy(m.failed.message, "no room for a row");
        break;
    }
    return m;
}

void fake_say_any(struct fakes *f, struct fake *k, const struct from_stage *m)
{
    struct fake stranger = {.all = f, .stage = k->stage};
    if (m->kind != FROM_STAGE_HELLO) {
        if (k->open)
            fake_say(k, m);
        return;
    }
    fake_open(&stranger);
    if (stranger.attachment)
        fake_say(&stranger, m);
    if (stranger.open)
        fake_close(&stranger);
}
