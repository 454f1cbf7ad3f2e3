/* The control line against a real gRPC server, with fake compute in the same process. */
#include "tests/unit/stage/mini_coordinator.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "stage/control.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/fake_script.h"

enum { INCARNATION = 991, OVER_MS = 3000 };

static struct {
    struct mini *coordinator;
    struct rpc_loop *loop;
    struct control *control;
    char script[FAKE_SCRIPT_PATH];
    int n_created;

    pthread_mutex_t lock; /* guards what follows */
    int n_over;
    enum status why;
    char message[200];
} t;

static enum status create_fake(void *ctx, struct compute **out, struct error *err)
{
    (void)ctx;
    t.n_created++;
    return fake_compute_create(&(struct fake_options){.script_path = t.script[0] ? t.script : NULL}, out, err);
}

static void over(void *ctx, enum status why, const char *message)
{
    (void)ctx;
    pthread_mutex_lock(&t.lock);
    t.n_over++;
    t.why = why;
    snprintf(t.message, sizeof t.message, "%s", message);
    pthread_mutex_unlock(&t.lock);
}

static void await_over(enum status why, const char *words)
{
    int64_t limit_ns = clock_now_ns() + OVER_MS * NS_PER_MS;
    for (int n = 0; !n;) {
        pthread_mutex_lock(&t.lock);
        n = t.n_over;
        pthread_mutex_unlock(&t.lock);
        if (!n && clock_now_ns() > limit_ns)
            fail_msg("nobody says that it is over");
        usleep(1000);
    }
    pthread_mutex_lock(&t.lock);
    assert_int_equal(t.n_over, 1);
    assert_int_equal(t.why, why);
    if (!strstr(t.message, words))
        fail_msg("'%s' says nothing of '%s'", t.message, words);
    pthread_mutex_unlock(&t.lock);
}

static void start(const char *script, const char *secret)
{
    struct error err = {0};
    memset(&t, 0, sizeof t);
    pthread_mutex_init(&t.lock, NULL);
    if (script)
        fake_script_file(script, t.script);
    t.coordinator = mini_open("127.0.0.1:0", "the-secret-of-this-job");
    assert_int_equal(rpc_loop_create(&t.loop, &err), STATUS_OK);
    struct control_options o = {.coordinator = mini_address(t.coordinator),
                                .secret = secret,
                                .heartbeat_ms = 20,
                                .max_message_bytes = 8 << 20,
                                .incarnation = INCARNATION,
                                .worker = {.create_compute = create_fake},
                                .over = over};
    assert_int_equal(link_socket_port_create(&(struct link_socket_options){0}, &o.worker.port, &err), STATUS_OK);
    if (control_create(&o, t.loop, &t.control, &err) != STATUS_OK)
        fail_msg("%s", err.message);
}

static void stop(void)
{
    control_destroy(t.control);
    rpc_loop_destroy(t.loop);
    mini_close(t.coordinator);
    if (t.script[0])
        unlink(t.script);
}

static const uint32_t prompt[] = {40, 41, 42};

static void check_tick(struct mini *m, uint64_t epoch)
{
    struct from_stage got;
    int32_t want;
    mini_tick(m, epoch, prompt, 3);
    mini_await(m, FROM_STAGE_RESULT, &got);
    fake_reference(MINI_LAYERS, &(struct sampler_params){.top_p = 1}, prompt, 3, &want, 1);
    assert_int_equal(got.result->status, STATUS_OK);
    assert_int_equal(got.result->n_runs, 1);
    assert_int_equal(got.result->runs[0].id, want);
    assert_int_equal(got.result->layer_counter, MINI_LAYERS);
    mini_release(&got);
}

static void a_stage_attaches_says_who_it_is_and_runs_a_tick(void **state)
{
    (void)state;
    struct from_stage m;
    start(NULL, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    assert_int_equal(m.hello.wire_version, WIRE_VERSION);
    assert_int_equal(m.hello.incarnation, INCARNATION);
    assert_int_equal(m.hello.pid, getpid());
    assert_int_equal(m.hello.highest_epoch, 0);
    assert_string_equal(m.hello.backend, "fake");
    assert_non_null(strchr(m.hello.addresses.tcp, ':'));
    assert_true(m.hello.host[0] && m.hello.build[0]);
    mini_assign(t.coordinator, 2);
    mini_join(t.coordinator, 3);
    check_tick(t.coordinator, 3);
    mini_await(t.coordinator, FROM_STAGE_HEARTBEAT, &m);
    assert_int_equal(m.heartbeat.session, MINI_SESSION);
    assert_int_equal(m.heartbeat.epoch, 3);
    stop();
}

static void a_stage_whose_compute_is_stuck_beats_and_obeys_exit(void **state)
{
    (void)state;
    struct from_stage m;
    start("sleep_tick 1 600\n", "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    mini_assign(t.coordinator, 2);
    mini_join(t.coordinator, 1);
    mini_tick(t.coordinator, 1, prompt, 3);
    int64_t start_ns = clock_now_ns();
    for (int n_busy = 0; n_busy < 3; n_busy += m.heartbeat.busy) {
        mini_await(t.coordinator, FROM_STAGE_HEARTBEAT, &m);
        assert_int_equal(m.heartbeat.layer_counter, 0);
    }
    mini_send(t.coordinator, &(struct to_stage){.kind = TO_STAGE_EXIT, .exit = {.status = STATUS_BAD_MODEL, .message = "model hash 12 is not 34"}});
    await_over(STATUS_BAD_MODEL, "model hash 12 is not 34");
    assert_true(clock_now_ns() - start_ns < 500 * NS_PER_MS);
    stop();
}

static void a_slow_tick_that_gets_on_shows_it(void **state)
{
    (void)state;
    struct from_stage m;
    uint64_t last = 0, n_steps = 0;
    start("slow_tick 1 400\n", "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    mini_assign(t.coordinator, 2);
    mini_join(t.coordinator, 1);
    mini_tick(t.coordinator, 1, prompt, 3);
    do {
        mini_await(t.coordinator, FROM_STAGE_HEARTBEAT, &m);
        assert_true(m.heartbeat.layer_counter >= last);
        n_steps += m.heartbeat.busy && m.heartbeat.layer_counter > last;
        last = m.heartbeat.layer_counter;
    } while (last < MINI_LAYERS || m.heartbeat.busy);
    assert_true(n_steps >= 3);
    stop();
}

static void the_next_coordinator_finds_the_weights_in_place(void **state)
{
    (void)state;
    struct from_stage m;
    char address[64];
    start(NULL, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    mini_assign(t.coordinator, 2);
    mini_join(t.coordinator, 5);
    mini_end_stream(t.coordinator); /* the same process, another stream */
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    assert_int_equal(m.hello.incarnation, INCARNATION);
    assert_int_equal(m.hello.highest_epoch, 5);
    mini_assign(t.coordinator, 2);
    mini_join(t.coordinator, 6);
    snprintf(address, sizeof address, "%s", mini_address(t.coordinator));
    mini_close(t.coordinator); /* another process on the same address */
    t.coordinator = mini_open(address, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    assert_int_equal(m.hello.highest_epoch, 6);
    mini_assign(t.coordinator, 2);
    assert_int_equal(t.n_created, 1);
    mini_join(t.coordinator, 7);
    check_tick(t.coordinator, 7);
    mini_assign(t.coordinator, 4); /* another one is loaded anew */
    assert_int_equal(t.n_created, 2);
    stop();
}

/* Coordinators come and go, some after a while without one: the time from where one listens until HELLO is there. */
static void a_stage_finds_the_next_coordinator_soon(void **state)
{
    (void)state;
    struct from_stage m;
    char address[64];
    int64_t worst_ns = 0, sum_ns = 0;
    enum { N = 6 };
    start(NULL, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    snprintf(address, sizeof address, "%s", mini_address(t.coordinator));
    for (int i = 0; i < N; i++) {
        mini_close(t.coordinator);
        usleep((useconds_t)i * 70000);
        int64_t start_ns = clock_now_ns();
        t.coordinator = mini_open(address, "the-secret-of-this-job");
        mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
        int64_t ns = clock_now_ns() - start_ns;
        worst_ns = ns > worst_ns ? ns : worst_ns;
        sum_ns += ns;
    }
    print_message("HELLO %lld ms after the coordinator on the average, %lld at worst\n", (long long)(sum_ns / N / NS_PER_MS),
                  (long long)(worst_ns / NS_PER_MS));
    assert_true(worst_ns < 300 * NS_PER_MS);
    stop();
}

static void a_wrong_token_ends_the_stage(void **state)
{
    (void)state;
    start(NULL, "of-another-job-entirely");
    await_over(STATUS_CONFIG, "token");
    stop();
}

static void an_assignment_that_cannot_be_loaded_is_told_and_ends_the_stage(void **state)
{
    (void)state;
    struct from_stage m;
    start(NULL, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    const struct to_stage assign = {.kind = TO_STAGE_ASSIGN,
                                    .assign = {.n_stages = 1, .end_layer = MINI_LAYERS, .slots = 1, .context = 64,
                                               .n_blocks = 1u << 31, .kv_block = 16, .max_rows = 32, .heartbeat_ms = 20,
                                               .stuck_ms = 5000, .window = 2, .kv_type = "f16"}};
    mini_send(t.coordinator, &assign);
    mini_await(t.coordinator, FROM_STAGE_FAILED, &m);
    assert_int_equal(m.failed.fatal, 1);
    assert_int_equal(m.failed.status, STATUS_OUT_OF_MEMORY);
    /* A coordinator that assigns it again at once gets the same answer, and no more of the stage's time for that. */
    for (int n = 0; n < 20; n++) {
        mini_send(t.coordinator, &assign);
        usleep(50000);
    }
    pthread_mutex_lock(&t.lock);
    assert_int_equal(t.n_over, 1);
    pthread_mutex_unlock(&t.lock);
    await_over(STATUS_OUT_OF_MEMORY, "2147483648 blocks");
    stop();
}

/* A plan that cannot be read ends the stream. What it was read into is of the old assignment: nothing of the next one goes there. */
static void after_a_bad_plan_the_next_assignment_has_plans_of_its_own_size(void **state)
{
    (void)state;
    enum { SLOTS = 32 };
    struct from_stage m;
    struct plan *p;
    start(NULL, "the-secret-of-this-job");
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    mini_assign(t.coordinator, 1);
    mini_join(t.coordinator, 1);
    assert_int_equal(plan_create(2 * SLOTS, 1, 0, &p), STATUS_OK);
    p->n_rows = 1; /* and no run */
    mini_send(t.coordinator, &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = p});
    mini_await(t.coordinator, FROM_STAGE_HELLO, &m);
    mini_assign(t.coordinator, SLOTS);
    mini_join(t.coordinator, 2);
    plan_reset(p);
    p->session = MINI_SESSION;
    p->epoch = 2;
    p->tick = 1;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        plan_add_op(p, &(struct plan_op){.kind = OP_OPEN, .seq = slot + 1, .slot = slot, .sampler.top_p = 1}, NULL);
        plan_add_op(p, &(struct plan_op){.kind = OP_CLOSE, .seq = slot + 1}, NULL);
    }
    mini_send(t.coordinator, &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = p});
    mini_await(t.coordinator, FROM_STAGE_RESULT, &m);
    assert_int_equal(m.result->status, STATUS_OK);
    mini_release(&m);
    plan_destroy(p);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stage_attaches_says_who_it_is_and_runs_a_tick),
        cmocka_unit_test(a_stage_whose_compute_is_stuck_beats_and_obeys_exit),
        cmocka_unit_test(a_slow_tick_that_gets_on_shows_it),
        cmocka_unit_test(the_next_coordinator_finds_the_weights_in_place),
        cmocka_unit_test(a_stage_finds_the_next_coordinator_soon),
        cmocka_unit_test(a_wrong_token_ends_the_stage),
        cmocka_unit_test(an_assignment_that_cannot_be_loaded_is_told_and_ends_the_stage),
        cmocka_unit_test(after_a_bad_plan_the_next_assignment_has_plans_of_its_own_size),
    };
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
