/* Streams that come: HELLO with its checks, who gets which stage, and those that wait for one. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/base/address.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "coordinator/pipeline_impl.h"

#define LOG_MODULE "pipeline"
#include "common/base/log.h"

#define HELLO_NS (5 * NS_PER_S) /* a stream says it within */
#define MAX_PATIENCE_MS 86400000 /* a stage takes no more */
#define SPARE_NS (2 * NS_PER_S) /* a stage's own process has so long to come back before a spare takes its place */

/* --- HELLO -------------------------------------------------------------------------------------------------------------------- */

struct name {
    char text[96];
};

static struct name name_of(const struct msg_hello *h)
{
    struct name n;
    if (h->stage == STAGE_ANY)
        snprintf(n.text, sizeof n.text, "a spare on %.63s", h->host);
    else
        snprintf(n.text, sizeof n.text, "stage %u on %.63s", h->stage, h->host);
    return n;
}

static enum status check_model(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    static const uint8_t no_hash[32];
    if (h->n_layers == 0 && memcmp(h->model_hash, no_hash, 32) == 0)
        return STATUS_OK; /* a fake stage has no model */
    if (h->n_layers != p->opt.n_layers)
        return error_set(why, STATUS_BAD_MODEL, "%s: its model has %u layers, the coordinator's %u", name_of(h).text,
                         h->n_layers, p->opt.n_layers);
    if (memcmp(h->model_hash, p->opt.model_hash, 32) != 0)
        return error_set(why, STATUS_BAD_MODEL, "%s: another model file (hash %02x%02x%02x%02x..., not %02x%02x%02x%02x...)",
                         name_of(h).text, h->model_hash[0], h->model_hash[1], h->model_hash[2], h->model_hash[3],
                         p->opt.model_hash[0], p->opt.model_hash[1], p->opt.model_hash[2], p->opt.model_hash[3]);
    return STATUS_OK;
}

static enum status check_profile(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (i != h->stage && e->attachment != 0 && strncmp(e->hello.profile, h->profile, sizeof h->profile) != 0)
            return error_set(why, STATUS_CONFIG, "%s: numerics profile '%.63s', stage %u has '%.63s'", name_of(h).text,
                             h->profile, i, e->hello.profile);
    }
    return STATUS_OK;
}

/* Without one every epoch would fail at its links, and the neighbour would be blamed. */
static enum status check_addresses(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    const struct link_addresses *a = &h->addresses;
    struct address parsed;
    if (p->n_stages == 1 || (a->unix_name[0] && !a->tcp[0]))
        return STATUS_OK;
    if (address_parse(a->tcp, -1, "link", &parsed, NULL) != STATUS_OK)
        return error_set(why, STATUS_CONFIG, "%s: its link's address '%.63s' is no HOST:PORT", name_of(h).text, a->tcp);
    return STATUS_OK;
}

static enum status check_hello(const struct pipeline *p, const struct msg_hello *h, struct error *why)
{
    if (h->wire_version != WIRE_VERSION)
        return error_set(why, STATUS_CONFIG, "%s: wire version %u, the coordinator speaks %d", name_of(h).text,
                         h->wire_version, WIRE_VERSION);
    if (h->stage != STAGE_ANY && h->stage >= p->n_stages)
        return error_set(why, STATUS_CONFIG, "%s: there are %u stages", name_of(h).text, p->n_stages);
    if (h->incarnation == 0)
        return error_set(why, STATUS_CONFIG, "%s: incarnation 0", name_of(h).text);
    if (h->highest_epoch >= UINT64_MAX / 2)
        return error_set(why, STATUS_CONFIG, "%s: epoch %llu cannot be", name_of(h).text,
                         (unsigned long long)h->highest_epoch);
    TRY(check_model(p, h, why));
    TRY(check_profile(p, h, why));
    return check_addresses(p, h, why);
}

/* Who waits may wait for one long tick after the other, of as many stages. Which of them is stuck is judged here; only what is
 * not noticed here ends the waiting. */
static uint32_t patience_ms(const struct pipeline *p)
{
    int64_t ms = p->n_stages * p->stuck_ms + HEARTBEATS_MISSED * p->heartbeat_ms;
    return ms < MAX_PATIENCE_MS ? (uint32_t)ms : MAX_PATIENCE_MS;
}

struct msg_assign pipeline__assignment(const struct pipeline *p, uint32_t stage)
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
        .stuck_ms = patience_ms(p),
        .window = p->window,
    };
    snprintf(a.kv_type, sizeof a.kv_type, "%s", c->kv_type);
    return a;
}

void pipeline__refuse(struct pipeline *p, uint64_t attachment, const struct error *why, int64_t now_ns)
{
    struct stage_port port = stage_table_attachment(p->stages, attachment)->port;
    LOG_ERROR("refused: %s", why->message);
    stage_table_detach(p->stages, attachment, now_ns);
    p->stats.refused++;
    pipeline__send_exit(&port, why);
}

void pipeline__look_at_strangers(struct pipeline *p, int64_t now_ns)
{
    const struct stage_attachment *a;
    for (uint64_t id = 0; (a = stage_table_next(p->stages, id)) != NULL;) {
        id = a->id;
        if (a->stage != STAGE_NONE || a->waits || now_ns - a->attached_ns < HELLO_NS)
            continue;
        struct stage_port port = a->port;
        struct error why;
        error_set(&why, STATUS_TIMEOUT, "no HELLO in %lld ms", (long long)(HELLO_NS / NS_PER_MS));
        stage_table_detach(p->stages, id, now_ns);
        p->stats.refused++;
        port.close(port.ctx, &why);
    }
}

/* --- who gets which stage ----------------------------------------------------------------------------------------------------------- */

static int is_missing(const struct stage_entry *e)
{
    return e->attachment == 0 || e->state == STAGE_SILENT;
}

/* A process that dials again keeps its stage, and its new stream replaces the old one. Else a stage is given to who asks for it
 * by number as soon as nobody serves it, and to a spare when its own process stays away. */
static int stage_for(const struct pipeline *p, const struct msg_hello *h, int64_t now_ns)
{
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if ((h->stage == i || h->stage == STAGE_ANY) && e->hello.incarnation == h->incarnation)
            return (int)i;
    }
    if (h->stage != STAGE_ANY)
        return is_missing(stage_table_at(p->stages, h->stage)) ? (int)h->stage : STAGE_NONE;
    for (uint32_t i = 0; i < p->n_stages; i++) {
        const struct stage_entry *e = stage_table_at(p->stages, i);
        if (is_missing(e) && now_ns - e->gone_ns > SPARE_NS)
            return (int)i;
    }
    return STAGE_NONE;
}

/* It waits, if only until the end of this input: pipeline__seat gives stages away. Who is to have one is no spare: a stage's own
 * process must not be sent away because as many wait as may. */
void pipeline__hello(struct pipeline *p, uint64_t attachment, const struct msg_hello *h, int64_t now_ns)
{
    struct error why;
    enum status s = check_hello(p, h, &why);
    if (s == STATUS_OK && stage_table_n_waiting(p->stages) >= p->n_stages && stage_for(p, h, now_ns) == STAGE_NONE)
        s = error_set(&why, STATUS_FULL, "%s: %u spares wait already", name_of(h).text, p->n_stages);
    if (s == STATUS_OK)
        stage_table_wait(p->stages, attachment, h, now_ns);
    else
        pipeline__refuse(p, attachment, &why, now_ns);
}

/* Did who served this stage in the epoch that was lost last, and in none since, bring its end on itself? */
static void note_crash(struct pipeline *p, uint32_t stage, const struct msg_hello *h)
{
    const struct stage_entry *e = stage_table_at(p->stages, stage);
    uint32_t s = h->last_signal;
    if (s != SIGSEGV && s != SIGABRT && s != SIGBUS && s != SIGILL && s != SIGFPE)
        return;
    if (p->crash_signal || p->used_epoch == 0 || e->acked != p->used_epoch || e->hello.incarnation == h->incarnation)
        return;
    p->crash_signal = (int)s;
    p->crash_stage = (int)stage;
}

static void give_stage(struct pipeline *p, const struct stage_attachment *a, uint32_t stage, int64_t now_ns)
{
    struct error why;
    const struct msg_hello h = a->hello;
    const struct stage_entry *e = stage_table_at(p->stages, stage);
    uint64_t id = a->id;
    int is_same = e->hello.incarnation == h.incarnation;
    if (e->attachment != 0) {
        error_set(&why, STATUS_CLOSED, is_same ? "stage %u: attached again" : "stage %u: not heard, and replaced", stage);
        pipeline__lose(p, stage, &why, !is_same, now_ns);
    }
    note_crash(p, stage, &h);
    stage_table_claim(p->stages, id, stage, &h, now_ns);
    LOG_INFO("stage %u on %.63s pid %u: layers %u..%u", stage, h.host, h.pid, p->opt.split->first_layer[stage],
             p->opt.split->first_layer[stage + 1] - 1);
    struct to_stage m = {.kind = TO_STAGE_ASSIGN, .assign = pipeline__assignment(p, stage)};
    pipeline__send(p, stage, &m, now_ns);
}

/* A stage has come: whoever waits with other numerics was first, but could not serve beside it. */
static void refuse_other_profiles(struct pipeline *p, int64_t now_ns)
{
    const struct stage_attachment *a;
    for (uint64_t id = 0; stage_table_n_waiting(p->stages) && (a = stage_table_next(p->stages, id)) != NULL;) {
        struct error why;
        id = a->id;
        if (a->waits && check_profile(p, &a->hello, &why) != STATUS_OK)
            pipeline__refuse(p, id, &why, now_ns);
    }
}

/* Words of the other one that came after this HELLO, and were not on their way before it: it lives. */
static int is_served(const struct pipeline *p, const struct stage_attachment *a)
{
    if (a->hello.stage == STAGE_ANY)
        return 0;
    const struct stage_entry *e = stage_table_at(p->stages, a->hello.stage);
    return !e->is_spare && e->heard_ns - a->attached_ns > p->heartbeat_ms * NS_PER_MS;
}

void pipeline__seat(struct pipeline *p, int64_t now_ns)
{
    const struct stage_attachment *a;
    for (uint64_t id = 0; stage_table_n_waiting(p->stages) && (a = stage_table_next(p->stages, id)) != NULL;) {
        id = a->id;
        int stage = a->waits ? stage_for(p, &a->hello, now_ns) : STAGE_NONE;
        if (stage != STAGE_NONE) {
            give_stage(p, a, (uint32_t)stage, now_ns);
            refuse_other_profiles(p, now_ns);
        } else if (a->waits && is_served(p, a)) {
            struct error why;
            const struct stage_entry *e = stage_table_at(p->stages, a->hello.stage);
            error_set(&why, STATUS_CONFIG, "%s (pid %u): served by pid %u on %.63s", name_of(&a->hello).text, a->hello.pid,
                      e->hello.pid, e->hello.host);
            pipeline__refuse(p, id, &why, now_ns);
        }
    }
}
