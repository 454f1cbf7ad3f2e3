#include "tests/unit/stage/mini_coordinator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/queue.h"

enum { WAIT_MS = 5000, INBOX = 1024, MAX_RUNS = 64 };

struct mini {
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct queue *inbox;
    char address[64];
    pthread_mutex_t lock; /* guards conn */
    struct stage_conn *conn;
};

static void set_conn(struct mini *m, struct stage_conn *c)
{
    pthread_mutex_lock(&m->lock);
    struct stage_conn *old = m->conn;
    m->conn = c;
    pthread_mutex_unlock(&m->lock);
    if (old)
        stage_conn_release(old);
}

static void on_attach(void *ctx, struct stage_conn *c)
{
    stage_conn_retain(c);
    set_conn(ctx, c);
}

static void on_message(void *ctx, struct stage_conn *c, const struct from_stage *m)
{
    struct mini *mini = ctx;
    (void)c;
    if (queue_push(mini->inbox, m) != STATUS_OK)
        mini_release(&(struct from_stage){.kind = m->kind, .result = m->result});
}

static void on_closed(void *ctx, struct stage_conn *c)
{
    (void)ctx;
    (void)c;
}

static struct result *result_acquire(void *ctx)
{
    struct result *r = NULL;
    (void)ctx;
    return result_create(MAX_RUNS, &r) == STATUS_OK ? r : NULL;
}

struct mini *mini_open(const char *address, const char *secret)
{
    struct mini *m = calloc(1, sizeof *m);
    struct error err = {0};
    const struct rpc_options o = {.secret = secret, .max_message_bytes = 8 << 20, .heartbeat_ms = 300};
    const struct stages_service svc = {m, on_attach, on_message, on_closed, result_acquire};
    pthread_mutex_init(&m->lock, NULL);
    assert_int_equal(queue_create(INBOX, sizeof(struct from_stage), &m->inbox), STATUS_OK);
    assert_int_equal(rpc_loop_create(&m->loop, &err), STATUS_OK);
    assert_int_equal(rpc_server_create(m->loop, &o, &m->server, &err), STATUS_OK);
    assert_int_equal(stages_service_add(m->server, &svc), STATUS_OK);
    if (rpc_server_listen(m->server, address, &err) != STATUS_OK || rpc_server_start(m->server, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    snprintf(m->address, sizeof m->address, "127.0.0.1:%d", rpc_server_port(m->server));
    return m;
}

const char *mini_address(const struct mini *m)
{
    return m->address;
}

void mini_close(struct mini *m)
{
    struct from_stage left;
    rpc_server_destroy(m->server, 0);
    set_conn(m, NULL);
    rpc_loop_destroy(m->loop);
    while (queue_pop(m->inbox, &left, 0) == STATUS_OK)
        mini_release(&left);
    queue_destroy(m->inbox);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void mini_release(struct from_stage *m)
{
    if (m->kind == FROM_STAGE_RESULT)
        result_destroy(m->result);
}

void mini_await(struct mini *m, enum from_stage_kind kind, struct from_stage *out)
{
    const int64_t deadline_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    for (;;) {
        if (queue_pop(m->inbox, out, deadline_ns) != STATUS_OK)
            fail_msg("message %d did not come", (int)kind);
        if (out->kind == kind)
            return;
        if (out->kind == FROM_STAGE_FAILED)
            fail_msg("waited for message %d: %s", (int)kind, out->failed.message);
        mini_release(out);
    }
}

void mini_send(struct mini *m, const struct to_stage *message)
{
    pthread_mutex_lock(&m->lock);
    enum status s = m->conn ? stage_conn_send(m->conn, message) : STATUS_CLOSED;
    pthread_mutex_unlock(&m->lock);
    assert_int_equal(s, STATUS_OK);
}

void mini_end_stream(struct mini *m)
{
    struct error why;
    error_set(&why, STATUS_CLOSED, "the test ends the stream");
    pthread_mutex_lock(&m->lock);
    stage_conn_close(m->conn, &why);
    pthread_mutex_unlock(&m->lock);
}

void mini_assign(struct mini *m, uint32_t slots)
{
    struct from_stage loaded;
    const struct to_stage assign = {.kind = TO_STAGE_ASSIGN,
                                    .assign = {.n_stages = 1,
                                               .end_layer = MINI_LAYERS,
                                               .slots = slots,
                                               .context = 64,
                                               .kv_block = 16,
                                               .max_rows = 32,
                                               .heartbeat_ms = 20,
                                               .stuck_ms = 5000,
                                               .window = 2,
                                               .kv_type = "f16"}};
    mini_send(m, &assign);
    mini_await(m, FROM_STAGE_LOADED, &loaded);
    assert_int_equal(loaded.loaded.n_blocks, slots * 4);
    assert_null(assign_difference(&loaded.assigned, &assign.assign)); /* also the heartbeat's times of one that is loaded already */
}

void mini_join(struct mini *m, uint64_t epoch)
{
    struct from_stage got;
    mini_send(m, &(struct to_stage){.kind = TO_STAGE_EPOCH, .epoch = {.session = MINI_SESSION, .epoch = epoch}});
    mini_await(m, FROM_STAGE_ACK, &got);
    assert_int_equal(got.ack.epoch, epoch);
    mini_send(m, &(struct to_stage){.kind = TO_STAGE_LINKS, .links = {.session = MINI_SESSION, .epoch = epoch}});
    mini_await(m, FROM_STAGE_READY, &got);
}

void mini_tick(struct mini *m, uint64_t epoch, const uint32_t *ids, uint32_t n)
{
    struct plan *p;
    const uint32_t block = 2;
    assert_int_equal(plan_create(4, 4, 64, &p), STATUS_OK);
    p->session = MINI_SESSION;
    p->epoch = epoch;
    p->tick = 1;
    plan_add_op(p, &(struct plan_op){.kind = OP_OPEN, .seq = 1, .n_blocks = 1, .sampler.top_p = 1}, &block);
    plan_add_run(p,
                 &(struct plan_run){.seq = 1, .n = n, .source = SOURCE_IDS, .sample = SAMPLE_LAST,
                                    .table_check = plan_table_digest(&block, 1)},
                 ids);
    mini_send(m, &(struct to_stage){.kind = TO_STAGE_PLAN, .plan = p});
    plan_destroy(p);
}
