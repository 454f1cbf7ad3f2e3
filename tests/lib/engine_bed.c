#include "tests/lib/engine_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "tests/lib/engine_bed_impl.h"
#include "tests/lib/tapped_link.h"

enum { BEAT_MS = 40, READY_MS = 20000, MAX_FLAGS = 64 };
enum { PUBLISHED_MS = 100 }; /* the engine publishes its figures within half of it */

void bed__lock(struct engine_bed *b)
{
    pthread_mutex_lock(&b->lock);
}

void bed__unlock(struct engine_bed *b)
{
    pthread_mutex_unlock(&b->lock);
}

static void sleep_ms(int ms)
{
    usleep((useconds_t)ms * 1000);
}

/* --- processes that end at a given point ---------------------------------------------------------------------------------------- */

void engine_bed_end_at(struct engine_bed *b, enum bed_point point, uint32_t stage, uint32_t n, int after)
{
    bed__lock(b);
    b->end.armed = 1;
    b->end.fired = 0;
    b->end.point = point;
    b->end.stage = stage;
    b->end.n = n;
    b->end.after = after;
    bed__unlock(b);
}

void engine_bed_end_nowhere(struct engine_bed *b)
{
    bed__lock(b);
    b->end.armed = 0;
    bed__unlock(b);
}

int engine_bed_has_ended(struct engine_bed *b)
{
    bed__lock(b);
    int fired = b->end.fired;
    bed__unlock(b);
    return fired;
}

int bed__may_pass(struct engine_bed *b, enum bed_point point, uint32_t stage, int after)
{
    int of_stage = point < BED_ENGINE_SENDS;
    if (of_stage ? b->stages[stage].dead : b->engine_dead)
        return 0;
    if (!b->end.armed || b->end.point != point || (of_stage && b->end.stage != stage) || b->end.after != after ||
        --b->end.n > 0)
        return 1;
    b->end.armed = 0;
    b->end.fired = 1;
    if (of_stage)
        b->stages[stage].dead = 1;
    else
        b->engine_dead = 1;
    pthread_cond_broadcast(&b->changed);
    return 0;
}

static int pass_link(void *ctx, int writes, int after)
{
    struct bed_stage *s = ctx;
    bed__lock(s->bed);
    int ok = bed__may_pass(s->bed, writes ? BED_STAGE_WRITES : BED_STAGE_READS, s->index, after);
    bed__unlock(s->bed);
    return ok;
}

/* --- engine -> stage (the engine's thread) ---------------------------------------------------------------------------------- */

static enum status post_plan(struct worker *w, const struct to_stage *m)
{
    struct plan *copy = worker_plan_acquire(w);
    if (!copy)
        return STATUS_FULL;
    CHECK(plan_copy(copy, m->plan) == STATUS_OK);
    worker_post(w, &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = copy});
    return STATUS_OK;
}

static enum status port_send(void *ctx, const struct to_stage *m)
{
    struct bed_conn *c = ctx;
    struct bed_stage *s = c->stage;
    struct engine_bed *b = s->bed;
    enum status st = STATUS_CLOSED;
    bed__lock(b);
    if (c->open && s->worker) {
        st = STATUS_OK;
        if (!bed__may_pass(b, BED_ENGINE_SENDS, 0, 0) || !bed__may_pass(b, BED_STAGE_GETS, s->index, 0))
            ; /* into a stream that nobody writes to or reads any more */
        else if (m->kind == TO_STAGE_PLAN)
            st = post_plan(s->worker, m);
        else if (m->kind != TO_STAGE_EXIT)
            worker_post(s->worker, m);
        bed__may_pass(b, BED_STAGE_GETS, s->index, 1);
        bed__may_pass(b, BED_ENGINE_SENDS, 0, 1);
    }
    bed__unlock(b);
    return st;
}

static void port_close(void *ctx, const struct error *why)
{
    struct bed_conn *c = ctx;
    (void)why;
    bed__lock(c->stage->bed);
    c->open = 0;
    if (c->stage->conn == c) {
        c->stage->conn = NULL;
        if (c->stage->worker)
            worker_detach(c->stage->worker);
    }
    bed__unlock(c->stage->bed);
}

/* --- stage -> engine (the compute thread, or the beater) -------------------------------------------------------------------- */

static void give_as(struct engine_bed *b, uint64_t attachment, const struct from_stage *m)
{
    struct from_stage copy = *m;
    if (m->kind == FROM_STAGE_RESULT) {
        struct result *r = engine_result_acquire(b->engine);
        if (!r) { /* a server would end the stream; the bed's tests never send more than the window */
            fprintf(stderr, "engine_bed: no result is free\n");
            return;
        }
        CHECK(result_copy(r, m->result) == STATUS_OK);
        copy.result = r;
    }
    engine_stage_message(b->engine, attachment, &copy);
}

/* By the stream c, if it still stands. */
static void give(struct bed_conn *c, const struct from_stage *m)
{
    struct bed_stage *s = c->stage;
    struct engine_bed *b = s->bed;
    int counts = m->kind != FROM_STAGE_HEARTBEAT;
    pthread_rwlock_rdlock(&b->engine_lock); /* the engine that it was attached to: streams end before there is another */
    bed__lock(b);
    int ok = s->conn == c && c->open && !s->dead && !b->engine_dead;
    if (ok && counts)
        ok = bed__may_pass(b, BED_STAGE_SENDS, s->index, 0) && bed__may_pass(b, BED_ENGINE_GETS, 0, 0);
    bed__unlock(b);
    if (ok)
        give_as(b, c->attachment, m);
    bed__lock(b);
    if (ok && counts) {
        bed__may_pass(b, BED_STAGE_SENDS, s->index, 1);
        bed__may_pass(b, BED_ENGINE_GETS, 0, 1);
    }
    bed__unlock(b);
    pthread_rwlock_unlock(&b->engine_lock);
}

static void on_worker_send(void *ctx, const struct from_stage *m)
{
    struct bed_stage *s = ctx;
    bed__lock(s->bed);
    struct bed_conn *c = s->silent ? NULL : s->conn;
    bed__unlock(s->bed);
    if (c)
        give(c, m);
}

/* A new stream; 0: somebody was faster, or the process is gone. */
static int connect_stage(struct bed_stage *s, struct bed_conn *c, struct msg_hello *hello)
{
    struct engine_bed *b = s->bed;
    const struct stage_port port = {c, port_send, port_close};
    pthread_rwlock_rdlock(&b->engine_lock);
    uint64_t attachment = engine_stage_attached(b->engine, &port);
    bed__lock(b);
    c->attachment = attachment;
    int ok = c->open && s->worker && !s->conn && !s->dead;
    if (ok) {
        s->conn = c;
        worker_describe(s->worker, hello);
        hello->incarnation = s->incarnation;
        hello->last_signal = s->last_signal;
    }
    bed__unlock(b);
    if (!ok)
        engine_stage_closed(b->engine, attachment);
    pthread_rwlock_unlock(&b->engine_lock);
    return ok;
}

static void attach(struct bed_stage *s)
{
    struct engine_bed *b = s->bed;
    struct bed_conn *c = calloc(1, sizeof *c);
    struct from_stage m = {.kind = FROM_STAGE_HELLO};
    CHECK(c);
    *c = (struct bed_conn){.stage = s, .open = 1};
    bed__lock(b);
    c->next = b->conns;
    b->conns = c;
    bed__unlock(b);
    if (!connect_stage(s, c, &m.hello))
        return;
    m.hello.wire_version = WIRE_VERSION;
    m.hello.stage = s->index;
    m.hello.pid = (uint32_t)getpid();
    snprintf(m.hello.host, sizeof m.hello.host, "bed");
    give(c, &m);
}

static void beat(struct bed_stage *s)
{
    struct from_stage m = {.kind = FROM_STAGE_HEARTBEAT};
    bed__lock(s->bed);
    struct bed_conn *c = s->worker && !s->silent ? s->conn : NULL;
    int lonely = s->worker && !s->conn && !s->away && !s->silent && !s->dead && !s->bed->engine_dead;
    if (c)
        worker_heartbeat(s->worker, &m.heartbeat);
    bed__unlock(s->bed);
    if (c)
        give(c, &m);
    if (lonely)
        attach(s);
}

static void *run_beater(void *arg)
{
    struct engine_bed *b = arg;
    for (;;) {
        bed__lock(b);
        int ending = b->ending;
        bed__unlock(b);
        if (ending)
            return NULL;
        for (uint32_t i = 0; i < b->o.n_stages; i++)
            beat(&b->stages[i]);
        sleep_ms(b->o.beat_ms ? (int)b->o.beat_ms : BEAT_MS);
    }
}

/* --- stages that come and go -------------------------------------------------------------------------------------------------- */

static enum status create_compute(void *ctx, struct compute **out, struct error *err)
{
    struct bed_stage *s = ctx;
    return s->bed->o.create(s->bed->o.ctx, s->index, out, err);
}

void engine_bed_start_stage(struct engine_bed *b, uint32_t stage)
{
    struct bed_stage *s = &b->stages[stage];
    struct link_port *port;
    struct worker *w;
    struct error err = {0};
    struct link_port *bare;
    CHECK(link_mem_port_create(b->hub, 0, &bare) == STATUS_OK);
    CHECK(tapped_link_port_create(bare, &(struct link_tap){pass_link, s}, &port) == STATUS_OK);
    const struct worker_options o = {
        .create_compute = create_compute, .compute_ctx = s, .port = port, .send = on_worker_send, .send_ctx = s};
    if (worker_create(&o, &w, &err) != STATUS_OK)
        fail_msg("stage %u: %s", stage, err.message);
    bed__lock(b);
    CHECK(!s->worker);
    s->worker = w;
    s->incarnation = rand_mix(++b->next_incarnation) | 1;
    s->away = s->dead = 0; /* the beater attaches it */
    bed__unlock(b);
}

static void drop_conn(struct bed_stage *s, struct worker **worker)
{
    bed__lock(s->bed);
    struct bed_conn *c = s->conn;
    s->conn = NULL;
    if (c)
        c->open = 0;
    if (worker) {
        *worker = s->worker;
        s->worker = NULL;
        s->away = 1;
    } else if (s->worker) {
        worker_detach(s->worker);
    }
    bed__unlock(s->bed);
    if (c) /* on the test's thread, which alone makes engines */
        engine_stage_closed(s->bed->engine, c->attachment);
}

void engine_bed_kill_stage(struct engine_bed *b, uint32_t stage)
{
    engine_bed_crash_stage(b, stage, SIGKILL);
}

void engine_bed_crash_stage(struct engine_bed *b, uint32_t stage, int signal)
{
    struct worker *w;
    drop_conn(&b->stages[stage], &w);
    worker_destroy(w);
    b->stages[stage].last_signal = (uint32_t)signal; /* it is away: nobody reads this */
}

void engine_bed_break_stream(struct engine_bed *b, uint32_t stage)
{
    drop_conn(&b->stages[stage], NULL);
}

void engine_bed_silence(struct engine_bed *b, uint32_t stage, int on)
{
    bed__lock(b);
    b->stages[stage].silent = on;
    bed__unlock(b);
}

/* --- life ----------------------------------------------------------------------------------------------------------------------- */

static void read_config(struct engine_bed *b)
{
    static const char *const fixed[] = {"bed", "--heartbeat-ms", "100", "--kv-block", "16"};
    char *argv[MAX_FLAGS];
    int n = 0;
    struct error err = {0};
    enum config_action action;
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        argv[n++] = (char *)(uintptr_t)fixed[i];
    for (const char *const *f = b->o.flags; f && *f && n < MAX_FLAGS; f++)
        argv[n++] = (char *)(uintptr_t)*f;
    if (config_read(PROGRAM_COORDINATOR, n, argv, &b->config, &action, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void start_engine(struct engine_bed *b)
{
    struct error err = {0};
    const struct engine_options eo = {.config = &b->config, .model = &b->model, .tokenizer = b->tokenizer, .split = &b->split,
                                      .model_name = "bed", .hash_bits = b->o.hash_bits};
    if (engine_create(&eo, &b->engine, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

void engine_bed_restart_engine(struct engine_bed *b)
{
    bed__lock(b);
    b->engine_dead = 1;
    bed__unlock(b);
    engine_stop(b->engine); /* closes every stream */
    pthread_rwlock_wrlock(&b->engine_lock);
    engine_destroy(b->engine);
    start_engine(b);
    pthread_rwlock_unlock(&b->engine_lock);
    bed__lock(b);
    b->engine_dead = 0;
    bed__unlock(b);
}

struct engine_bed *engine_bed_open(const struct engine_bed_options *o)
{
    struct engine_bed *b = calloc(1, sizeof *b);
    struct error err = {0};
    assert_non_null(b);
    b->o = *o;
    pthread_mutex_init(&b->lock, NULL);
    pthread_rwlock_init(&b->engine_lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    read_config(b);
    if (model_open(o->model_path, &b->model, &err) != STATUS_OK ||
        split_plan(&b->model, o->n_stages, NULL, &b->split, &err) != STATUS_OK ||
        tokenizer_create(b->model.gguf, &b->tokenizer, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    if (resume_key_init(&b->resume, "the bed's", b->model.hash, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    if (b->config.context < 0)
        b->config.context = b->model.hp.n_context;
    b->config.stages = o->n_stages;
    start_engine(b);
    assert_int_equal(mem_hub_create(&b->hub), STATUS_OK);
    for (uint32_t i = 0; i < o->n_stages; i++) {
        b->stages[i] = (struct bed_stage){.bed = b, .index = i, .away = 1};
        engine_bed_start_stage(b, i);
    }
    assert_int_equal(pthread_create(&b->beater, NULL, run_beater, b), 0);
    return b;
}

void engine_bed_close(struct engine_bed *b)
{
    bed__lock(b);
    b->ending = 1;
    bed__unlock(b);
    pthread_join(b->beater, NULL);
    engine_stop(b->engine);
    for (uint32_t i = 0; i < b->o.n_stages; i++)
        worker_destroy(b->stages[i].worker);
    engine_destroy(b->engine);
    while (b->conns) {
        struct bed_conn *c = b->conns;
        b->conns = c->next;
        free(c);
    }
    mem_hub_destroy(b->hub);
    tokenizer_destroy(b->tokenizer);
    model_close(&b->model);
    pthread_mutex_destroy(&b->lock);
    pthread_rwlock_destroy(&b->engine_lock);
    pthread_cond_destroy(&b->changed);
    free(b);
}

struct engine *engine_bed_engine(struct engine_bed *b)
{
    return b->engine;
}

const struct resume_key *engine_bed_resume_key(const struct engine_bed *b)
{
    return &b->resume;
}

const struct model *engine_bed_model(const struct engine_bed *b)
{
    return &b->model;
}

const struct tokenizer *engine_bed_tokenizer(const struct engine_bed *b)
{
    return b->tokenizer;
}

void engine_bed_wait_ready(struct engine_bed *b)
{
    for (int64_t end_ns = clock_now_ns() + READY_MS * NS_PER_MS; !engine_ready(b->engine);) {
        if (clock_now_ns() > end_ns)
            fail_msg("not ready within %d ms", READY_MS);
        sleep_ms(2);
    }
}

/* --- quiet ------------------------------------------------------------------------------------------------------------------------ */

static int is_quiet(const struct service_status *s)
{
    return s->queued + s->reading + s->decoding + s->parked == 0 && s->blocks_live == 0 && s->blocks_draining == 0 &&
           s->blocks_free + s->blocks_cached == s->blocks_total && s->queue_requests == 0 && s->queue_tokens == 0 &&
           s->accepted == s->done + s->failed + s->cancelled && s->ticks_in_flight == 0;
}

void engine_bed_assert_quiet(struct engine_bed *b)
{
    struct service_status *s = malloc(sizeof *s);
    assert_non_null(s);
    sleep_ms(PUBLISHED_MS); /* the figures may be of before what the caller has just seen */
    int64_t end_ns = clock_now_ns() + NS_PER_S;
    do {
        sleep_ms(2);
        engine_status(b->engine, s);
    } while (!is_quiet(s) && clock_now_ns() < end_ns);
    if (!is_quiet(s))
        fail_msg("not quiet: queued %llu reading %llu decoding %llu, blocks free %u live %u draining %u of %u, accepted %llu = "
                 "done %llu + failed %llu + cancelled %llu, %u ticks in flight",
                 (unsigned long long)s->queued, (unsigned long long)s->reading, (unsigned long long)s->decoding, s->blocks_free,
                 s->blocks_live, s->blocks_draining, s->blocks_total, (unsigned long long)s->accepted,
                 (unsigned long long)s->done, (unsigned long long)s->failed, (unsigned long long)s->cancelled,
                 s->ticks_in_flight);
    for (uint32_t i = 0; i < s->n_slots; i++)
        assert_string_equal(s->slots[i].state, "free");
    free(s);
}
