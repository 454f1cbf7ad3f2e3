/* What stages say: HELLO with its checks, the answers of the epoch steps, results, heartbeats, failures. */
#include <stdio.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "coordinator/pipeline_impl.h"

#define LOG_MODULE "pipeline"
#include "common/base/log.h"

uint64_t pipeline_attached(struct pipeline *p, const struct stage_port *port, int64_t now_ns)
{
    uint64_t id;
    struct error why;
    pipeline__enter(p, now_ns);
    if (p->stopped)
        error_set(&why, STATUS_DRAINING, "the coordinator is ending");
    else if (stage_table_attach(p->stages, port, now_ns, &id) != STATUS_OK)
        error_set(&why, STATUS_FULL, "too many streams are attached for %u stages", p->n_stages);
    else
        return id;
    p->stats.refused++;
    port->close(port->ctx, &why);
    return 0;
}

/* --- HELLO -------------------------------------------------------------------------------------------------------------------- */

static enum status check_model(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    static const uint8_t no_hash[32];
    if (h->n_layers == 0 && memcmp(h->model_hash, no_hash, 32) == 0)
        return STATUS_OK; /* a fake stage has no model */
    if (h->n_layers != p->opt.n_layers)
        return error_set(why, STATUS_BAD_MODEL, "stage %u on %.63s: its model has %u layers, the coordinator's %u", h->stage,
                         h->host, h->n_layers, p->opt.n_layers);
    if (memcmp(h->model_hash, p->opt.model_hash, 32) != 0)
        return error_set(why, STATUS_BAD_MODEL, "stage %u on %.63s: another model file (hash %02x%02x%02x%02x..., not %02x%02x%02x%02x...)",
                         h->stage, h->host, h->model_hash[0], h->model_hash[1], h->model_hash[2], h->model_hash[3],
                         p->opt.model_hash[0], p->opt.model_hash[1], p->opt.model_hash[2], p->opt.model_hash[3]);
    return STATUS_OK;
}

static enum status check_profile(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (i != h->stage && e->attachment != 0 && strncmp(e->hello.profile, h->profile, sizeof h->profile) != 0)
            return error_set(why, STATUS_CONFIG, "stage %u on %.63s: numerics profile '%.63s', stage %u has '%.63s'", h->stage,
                             h->host, h->profile, i, e->hello.profile);
    }
    return STATUS_OK;
}

/* A process that is here already keeps its stage; its own new stream replaces the old one. */
static enum status check_claim(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    const struct stage_entry *e = stage_table_at(p->stages, h->stage);
    if (e->attachment == 0 || e->hello.incarnation == h->incarnation)
        return STATUS_OK;
    return error_set(why, STATUS_CONFIG, "stage %u on %.63s (pid %u): served by pid %u on %.63s", h->stage, h->host, h->pid,
                     e->hello.pid, e->hello.host);
}

static enum status check_hello(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    if (h->wire_version != WIRE_VERSION)
        return error_set(why, STATUS_CONFIG, "stage %u on %.63s: wire version %u, the coordinator speaks %d", h->stage, h->host,
                         h->wire_version, WIRE_VERSION);
    if (h->stage >= p->n_stages)
        return error_set(why, STATUS_CONFIG, "stage %u on %.63s: there are %u stages", h->stage, h->host, p->n_stages);
    if (h->incarnation == 0)
        return error_set(why, STATUS_CONFIG, "stage %u on %.63s: incarnation 0", h->stage, h->host);
    if (h->highest_epoch >= UINT64_MAX / 2)
        return error_set(why, STATUS_CONFIG, "stage %u on %.63s: epoch %llu cannot be", h->stage, h->host,
                         (unsigned long long)h->highest_epoch);
    TRY(check_model(p, h, why));
    TRY(check_profile(p, h, why));
    return check_claim(p, h, why);
}

static struct msg_assign assignment(const struct pipeline *p, uint32_t stage)
{
    const struct config *c = p->opt.config;
    struct msg_assign a = {
        .stage = stage,
        .n_stages = p->n_stages,
        .first_layer = p->opt.split->first_layer[stage],
        .end_layer = p->opt.split->first_layer[stage + 1],
        .slots = (uint32_t)c->slots,
        .context = p->opt.context,
        .kv_block = (uint32_t)c->kv_block,
        .n_blocks = c->kv_blocks > 0 ? (uint32_t)c->kv_blocks : 0,
        .max_rows = p->opt.max_rows,
        .kv_bytes = c->kv_mib > 0 ? (uint64_t)c->kv_mib << 20 : 0,
        .heartbeat_ms = (uint32_t)c->heartbeat_ms,
        .stuck_ms = (uint32_t)c->stuck_ms,
        .window = p->window,
    };
    snprintf(a.kv_type, sizeof a.kv_type, "%s", c->kv_type);
    return a;
}

static void refuse(struct pipeline *p, uint64_t attachment, const struct error *why)
{
    struct stage_port port = stage_table_attachment(p->stages, attachment)->port;
    LOG_ERROR("refused: %s", why->message);
    stage_table_detach(p->stages, attachment);
    p->stats.refused++;
    pipeline__send_exit(&port, why);
}

static void on_hello(struct pipeline *p, uint64_t attachment, const struct msg_hello *h, int64_t now_ns)
{
    struct error why;
    if (check_hello(p, h, &why) != STATUS_OK) {
        refuse(p, attachment, &why);
        return;
    }
    if (stage_table_at(p->stages, h->stage)->attachment != 0) {
        error_set(&why, STATUS_CLOSED, "stage %u: attached again", h->stage);
        pipeline__lose(p, h->stage, &why, 0, now_ns);
    }
    stage_table_claim(p->stages, attachment, h, now_ns);
    LOG_INFO("stage %u on %.63s pid %u: layers %u..%u", h->stage, h->host, h->pid, p->opt.split->first_layer[h->stage],
             p->opt.split->first_layer[h->stage + 1]);
    struct to_stage m = {.kind = TO_STAGE_ASSIGN, .assign = assignment(p, h->stage)};
    pipeline__send(p, h->stage, &m, now_ns);
}

/* --- epoch steps ---------------------------------------------------------------------------------------------------------------- */

/* Of the present epoch, while there is one? Else it is counted and dropped. */
static int is_current(struct pipeline *p, uint64_t session, uint64_t epoch)
{
    if (p->state != PIPELINE_WAITING && session == p->session && epoch == p->epoch)
        return 1;
    p->stats.stale++;
    return 0;
}

/* A message that this state cannot have: it changes nothing. */
static void out_of_turn(struct pipeline *p, uint32_t stage, const char *what)
{
    p->stats.protocol_errors++;
    LOG_WARN("stage %u: %s while %s", stage, what, pipeline_state_name(p->state));
}

static void on_loaded(struct pipeline *p, uint32_t stage, const struct msg_loaded *l, int64_t now_ns)
{
    struct error why;
    if (stage_table_at(p->stages, stage)->state != STAGE_LOADING) {
        out_of_turn(p, stage, "LOADED");
    } else if (l->n_blocks == 0) {
        error_set(&why, STATUS_OUT_OF_MEMORY, "stage %u: no room for a single KV block", stage);
        pipeline__lose(p, stage, &why, 1, now_ns);
    } else {
        stage_table_loaded(p->stages, stage, l);
    }
}

static void on_ack(struct pipeline *p, uint32_t stage, const struct msg_ack *m)
{
    if (!is_current(p, m->session, m->epoch))
        return;
    if (p->state != PIPELINE_RAISING || stage_table_at(p->stages, stage)->acked == m->epoch)
        out_of_turn(p, stage, "ACK");
    else
        stage_table_acked(p->stages, stage, m->epoch);
}

static void on_ready(struct pipeline *p, uint32_t stage, const struct msg_epoch *m)
{
    if (!is_current(p, m->session, m->epoch))
        return;
    if (p->state != PIPELINE_LINKING || stage_table_at(p->stages, stage)->state != STAGE_LINKING)
        out_of_turn(p, stage, "READY");
    else
        stage_table_ready(p->stages, stage, m->epoch);
}

/* --- ticks ----------------------------------------------------------------------------------------------------------------------- */

static enum pipeline_take on_result(struct pipeline *p, uint32_t stage, const struct result *r, int64_t now_ns)
{
    struct error why;
    if (!is_current(p, r->session, r->epoch))
        return PIPELINE_TAKEN;
    stage_table_progress(p->stages, stage, r->layer_counter, now_ns);
    if (r->status != STATUS_OK) {
        error_set(&why, r->status, "stage %u: tick %llu: %.159s", stage, (unsigned long long)r->tick, r->message);
    } else if (p->state != PIPELINE_RUNNING || stage != p->n_stages - 1 || p->retired_tick == p->sent_tick ||
               r->tick != p->retired_tick + 1) {
        error_set(&why, STATUS_PROTOCOL, "stage %u: a result of tick %llu, the oldest in flight is %llu of %u", stage,
                  (unsigned long long)r->tick, (unsigned long long)p->retired_tick + 1, pipeline_in_flight(p));
    } else {
        struct stage_timing timing = r->timing;
        timing.stage = stage;
        stage_table_timing(p->stages, &timing, now_ns);
        p->retired_tick++;
        p->cause.since_ns = 0;
        p->progress_ns = now_ns;
        return PIPELINE_RESULT;
    }
    pipeline__fall(p, (int)stage, &why, now_ns);
    return PIPELINE_TAKEN;
}

static enum pipeline_take on_timings(struct pipeline *p, uint32_t stage, const struct from_stage *m, int64_t now_ns)
{
    if (!is_current(p, m->timings.session, m->timings.epoch))
        return PIPELINE_TAKEN;
    if (m->timings.n > MAX_TIMINGS) {
        out_of_turn(p, stage, "too many timings");
        return PIPELINE_TAKEN;
    }
    for (uint32_t i = 0; i < m->timings.n; i++) {
        if (m->timings.timing[i].stage != stage) {
            out_of_turn(p, stage, "the timing of another stage");
            return PIPELINE_TAKEN;
        }
    }
    for (uint32_t i = 0; i < m->timings.n; i++)
        stage_table_timing(p->stages, &m->timings.timing[i], now_ns);
    return PIPELINE_TIMINGS;
}

static void on_heartbeat(struct pipeline *p, uint32_t stage, const struct msg_heartbeat *h, int64_t now_ns)
{
    uint64_t before = stage_table_at(p->stages, stage)->layer_counter;
    stage_table_heartbeat(p->stages, stage, h, now_ns);
    if (h->layer_counter != before)
        p->progress_ns = now_ns;
}

static void on_failed(struct pipeline *p, uint32_t stage, const struct msg_failed *f, int64_t now_ns)
{
    struct error why;
    enum status s = f->status == STATUS_OK ? STATUS_STAGE : f->status;
    int loading = stage_table_at(p->stages, stage)->state == STAGE_LOADING;
    error_set(&why, s, "stage %u: %.199s", stage, f->message);
    if (f->fatal || loading) /* what could not load once will not serve */
        pipeline__lose(p, stage, &why, !f->fatal, now_ns);
    else if (is_current(p, f->session, f->epoch))
        pipeline__fall(p, (int)stage, &why, now_ns);
}

/* --- all of them ------------------------------------------------------------------------------------------------------------------ */

static enum pipeline_take from_stranger(struct pipeline *p, uint64_t attachment, const struct from_stage *m, int64_t now_ns)
{
    struct error why;
    if (m->kind == FROM_STAGE_HELLO) {
        on_hello(p, attachment, &m->hello, now_ns);
        return PIPELINE_TAKEN;
    }
    p->stats.protocol_errors++;
    error_set(&why, STATUS_PROTOCOL, "message %d before HELLO", m->kind);
    refuse(p, attachment, &why);
    return PIPELINE_TAKEN;
}

static enum pipeline_take from_known(struct pipeline *p, uint32_t stage, const struct from_stage *m, int64_t now_ns)
{
    switch (m->kind) {
    case FROM_STAGE_HELLO:
        out_of_turn(p, stage, "a second HELLO");
        break;
    case FROM_STAGE_LOADED:
        on_loaded(p, stage, &m->loaded, now_ns);
        break;
    case FROM_STAGE_ACK:
        on_ack(p, stage, &m->ack);
        break;
    case FROM_STAGE_READY:
        on_ready(p, stage, &m->ready);
        break;
    case FROM_STAGE_RESULT:
        return on_result(p, stage, m->result, now_ns);
    case FROM_STAGE_TIMINGS:
        return on_timings(p, stage, m, now_ns);
    case FROM_STAGE_HEARTBEAT:
        on_heartbeat(p, stage, &m->heartbeat, now_ns);
        break;
    case FROM_STAGE_FAILED:
        on_failed(p, stage, &m->failed, now_ns);
        break;
    default:
        out_of_turn(p, stage, "a message of no known kind");
    }
    return PIPELINE_TAKEN;
}

enum pipeline_take pipeline_message(struct pipeline *p, uint64_t attachment, const struct from_stage *m, int64_t now_ns)
{
    pipeline__enter(p, now_ns);
    const struct stage_attachment *a = stage_table_attachment(p->stages, attachment);
    if (!a) { /* it was given up; its stream is ending */
        p->stats.stale++;
        return PIPELINE_TAKEN;
    }
    enum pipeline_take take;
    if (a->stage == STAGE_NONE) {
        take = from_stranger(p, attachment, m, now_ns);
    } else {
        stage_table_heard(p->stages, (uint32_t)a->stage, now_ns);
        take = from_known(p, (uint32_t)a->stage, m, now_ns);
    }
    pipeline__advance(p, now_ns);
    return take;
}
