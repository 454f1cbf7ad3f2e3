#include "tests/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/check.h"
#include "common/base/rand.h"

struct flight {
    uint64_t tick;
    uint32_t n_runs;
    struct sched_run *runs;
    double finish_us[MAX_STAGES];
    double cost_us[MAX_STAGES];
};

/* A request as the engine would know it. */
struct seat {
    struct slot_ref ref;          /* seq 0: not in a slot */
    uint32_t waiting;             /* parked: it comes back before anybody new */
    uint32_t n_prompt;            /* its prompt now: what came before it was parked is part of it */
    uint32_t next, lost;          /* row to be planned next; what runs in flight will be found not to count */
    uint64_t last_tick;
    uint32_t limited;
    double host_at_us;            /* the host is ready then, 0: nothing under way */
};

struct sim {
    const struct sim_options *o;
    const struct sim_request *requests;
    uint32_t n_requests, n_arrived, n_started, n_done, n_leaving, n_hosts, n_limited, n_waiting;
    struct sched *sched;
    struct sched_plan *plan;
    struct slots *slots;
    struct cost_model truth;
    struct flight flight[MAX_STAGES + 2];
    uint64_t oldest;              /* tick in flight */
    uint32_t in_flight;
    double now_us, last_finish_us[MAX_STAGES];
    uint64_t draws;
    int of_slot[SLOTS_MAX];       /* request, -1: none */
    struct seat *seats;           /* [n_requests] */
    uint32_t *accepted;           /* [n_slots] */
    struct sim_result *out;
};

/* --- stages ----------------------------------------------------------------------------------------------------------------- */

static const uint32_t POINTS[N_COST_POINTS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

struct msg_loaded sim_stage(double base_us, double row_us, double head_us, double attention_ns)
{
    struct msg_loaded l = {.n_blocks = 1, .attention_ns = attention_ns};
    for (int i = 0; i < N_COST_POINTS; i++) {
        l.cost_rows[i] = POINTS[i];
        l.prompt_us[i] = (uint32_t)(base_us / 10 + fmax(base_us, row_us * POINTS[i]));
        l.decode_us[i] = l.prompt_us[i] + (uint32_t)(head_us * POINTS[i]);
    }
    return l;
}

struct msg_loaded sim_straight_stage(double tick_us, double row_us, double token_us)
{
    struct msg_loaded l = {.n_blocks = 1};
    for (int i = 0; i < N_COST_POINTS; i++) {
        l.cost_rows[i] = POINTS[i];
        l.prompt_us[i] = (uint32_t)(tick_us + token_us * POINTS[i]);
        l.decode_us[i] = (uint32_t)(tick_us + row_us * POINTS[i]);
    }
    return l;
}

struct msg_loaded sim_scaled_stage(const struct msg_loaded *l, double factor)
{
    struct msg_loaded s = *l;
    for (int i = 0; i < N_COST_POINTS; i++) {
        s.prompt_us[i] = (uint32_t)(l->prompt_us[i] * factor);
        s.decode_us[i] = (uint32_t)(l->decode_us[i] * factor);
    }
    s.attention_ns *= factor;
    return s;
}

static double draw(struct sim *m)
{
    return (double)(rand_at(m->o->seed, m->draws++) >> 11) * 0x1p-53;
}

static double cost_us(struct sim *m, uint32_t stage)
{
    double factor = m->o->noise_low + draw(m) * (m->o->noise_high - m->o->noise_low);
    double us = cost_base_us(&m->truth, stage, &m->plan->shape) * factor;
    return m->o->spikes > 0 && draw(m) * 1000 < m->o->spikes ? us + m->o->spike_us : us;
}

/* --- ticks ------------------------------------------------------------------------------------------------------------------ */

static struct flight *flight_of(struct sim *m, uint64_t tick)
{
    return &m->flight[tick % (MAX_STAGES + 2)];
}

/* The planner must ask for rows as its header says. */
static void check_run(struct sim *m, const struct sched_run *r)
{
    int request = m->of_slot[r->ref.slot];
    CHECK(request >= 0 && m->seats[request].ref.seq == r->ref.seq && r->n >= 1);
    struct seat *seat = &m->seats[request];
    const struct sim_request *q = &m->requests[request];
    CHECK(r->kv_index == seat->next);
    CHECK(r->is_piece == (r->kv_index < seat->n_prompt));
    CHECK(!r->is_piece || r->kv_index + r->n <= seat->n_prompt);
    CHECK(r->sample == (!r->is_piece || r->kv_index + r->n == seat->n_prompt ? SAMPLE_LAST : SAMPLE_NONE));
    CHECK(r->is_piece || r->n <= (q->run_rows > 1 ? q->run_rows : 1));
    CHECK(r->kv_index + r->n <= q->n_prompt + q->n_answer);
    CHECK(!seat->limited || r->kv_index + r->n <= q->n_prompt / 2);
    CHECK(!q->cut || !r->is_piece || r->kv_index / q->cut == (r->kv_index + r->n - 1) / q->cut);
    int retired = seat->last_tick < m->oldest;
    CHECK(r->is_piece || retired == (r->source == SOURCE_IDS));
    CHECK(r->source == SOURCE_IDS || r->from_tick == seat->last_tick);
    if (q->needs_host && r->sample == SAMPLE_LAST) {
        CHECK(seat->host_at_us < 0 && (r->is_piece || retired));
        seat->host_at_us = 0;
    }
    seat->next += r->n;
    seat->last_tick = m->plan->tick;
    if (q->cut && r->is_piece)
        CHECK(sched_set_cut(m->sched, r->ref, (seat->next / q->cut + 1) * q->cut) == STATUS_OK);
}

/* When stage 0 has the ids of the rows of this tick. */
static double ids_ready_us(struct sim *m)
{
    double ready = 0;
    for (uint32_t i = 0; i < m->plan->n_runs; i++) {
        const struct sched_run *r = &m->plan->runs[i];
        if (r->source != SOURCE_FROM_TICK)
            continue;
        struct flight *from = flight_of(m, r->from_tick);
        CHECK(from->tick == r->from_tick);
        ready = fmax(ready, from->finish_us[m->o->sched.n_stages - 1] + m->o->sched.delta_us);
    }
    return ready;
}

static void note_piece(struct sim *m, const struct sched_run *r)
{
    struct sim_tokens *t = &m->out->tokens[m->of_slot[r->ref.slot]];
    if (t->first_piece_us == 0)
        t->first_piece_us = m->now_us;
    else if (r->is_piece)
        t->piece_wait_us = fmax(t->piece_wait_us, m->now_us - t->last_piece_us);
    if (r->is_piece && r->n > t->row_max)
        t->row_max = r->n;
    if (r->is_piece)
        t->last_piece_us = m->now_us;
}

/* All that the tick waits for is known when it is sent, so its whole passage is. */
static void send_tick(struct sim *m)
{
    uint32_t n_stages = m->o->sched.n_stages;
    struct flight *f = flight_of(m, m->plan->tick);
    double ready = fmax(m->now_us + m->o->sched.lambda_us, ids_ready_us(m));
    f->tick = m->plan->tick;
    f->n_runs = m->plan->n_runs;
    memcpy(f->runs, m->plan->runs, f->n_runs * sizeof f->runs[0]);
    for (uint32_t i = 0; i < n_stages; i++) {
        f->cost_us[i] = cost_us(m, i);
        double start = fmax(ready, m->last_finish_us[i]);
        f->finish_us[i] = m->last_finish_us[i] = ready = start + f->cost_us[i];
        m->out->busy_us[i] += f->cost_us[i];
        m->out->most_tick_us = fmax(m->out->most_tick_us, f->cost_us[i]);
    }
    m->out->n_ticks++;
    m->out->n_rows += m->plan->n_rows;
    m->out->n_wide += m->plan->wide;
    m->out->stall_unmet += m->plan->stall_unmet;
    if (m->plan->n_streams > 0)
        m->out->period_us = m->plan->period_us;
    m->in_flight++;
    sched_commit(m->sched, m->plan);
    for (uint32_t i = 0; i < f->n_runs; i++) {
        check_run(m, &f->runs[i]);
        note_piece(m, &f->runs[i]);
    }
    m->out->bank_bound_us = fmax(m->out->bank_bound_us, sched_stats(m->sched).bank_bound_us);
}

/* --- requests --------------------------------------------------------------------------------------------------------------- */

static void leave_slot(struct sim *m, uint32_t request)
{
    struct seat *seat = &m->seats[request];
    if (seat->ref.seq == 0)
        return;
    CHECK(sched_remove(m->sched, seat->ref) == STATUS_OK);
    CHECK(slots_release(m->slots, seat->ref) == STATUS_OK);
    m->of_slot[seat->ref.slot] = -1;
    m->n_hosts -= seat->host_at_us > 0;
    m->n_limited -= seat->limited;
    seat->ref.seq = 0;
    seat->host_at_us = 0;
    seat->limited = 0;
}

static int is_done(const struct sim *m, uint32_t request)
{
    return m->out->tokens[request].n == m->requests[request].n_answer || m->out->tokens[request].cancelled;
}

static void finish_request(struct sim *m, uint32_t request)
{
    leave_slot(m, request);
    m->n_done++;
}

static void cancel_request(struct sim *m, uint32_t request)
{
    if (is_done(m, request))
        return;
    m->out->tokens[request].cancelled = 1;
    m->n_waiting -= m->seats[request].waiting;
    m->seats[request].waiting = 0;
    finish_request(m, request);
}

static void park_request(struct sim *m, uint32_t request)
{
    if (m->seats[request].ref.seq == 0)
        return;
    leave_slot(m, request);
    m->seats[request].waiting = 1;
    m->n_waiting++;
}

static void ask_host(struct sim *m, uint32_t request)
{
    m->seats[request].host_at_us = m->now_us + m->o->host_us;
    m->n_hosts++;
}

static int seat_request(struct sim *m, uint32_t r)
{
    struct seat *seat = &m->seats[r];
    const struct sim_request *q = &m->requests[r];
    struct sim_tokens *t = &m->out->tokens[r];
    struct slot_ref ref;
    if (slots_acquire(m->slots, &ref) != STATUS_OK)
        return 0;
    uint32_t first = t->n ? 0 : q->n_cached;
    *seat = (struct seat){.ref = ref, .n_prompt = q->n_prompt + t->n, .next = first};
    m->of_slot[ref.slot] = (int)r;
    if (t->started_us == 0)
        t->started_us = m->now_us;
    seat->limited = q->waits_us > m->now_us && q->n_prompt >= 2 && first < q->n_prompt / 2;
    m->n_limited += seat->limited;
    const struct sched_sequence s = {.position = first, .n_prompt = seat->n_prompt, .n_answer = q->n_answer - t->n, .order = r,
                                     .limit = seat->limited ? q->n_prompt / 2 : UINT32_MAX, .run_rows = q->run_rows,
                                     .needs_host = q->needs_host};
    CHECK(sched_add(m->sched, ref, &s) == STATUS_OK);
    if (q->cut)
        CHECK(sched_set_cut(m->sched, ref, (first / q->cut + 1) * q->cut) == STATUS_OK);
    if (q->needs_host)
        ask_host(m, r);
    return 1;
}

static void admit(struct sim *m)
{
    for (uint32_t r = 0; m->n_waiting > 0 && r < m->n_started; r++)
        if (m->seats[r].waiting) {
            if (!seat_request(m, r))
                return;
            m->n_waiting--;
        }
    for (; m->n_started < m->n_arrived; m->n_started++)
        if (!is_done(m, m->n_started) && !seat_request(m, m->n_started))
            return;
}

/* --- events ----------------------------------------------------------------------------------------------------------------- */

static void take_run(struct sim *m, const struct flight *f, uint32_t i)
{
    const struct sched_run *r = &f->runs[i];
    int request = m->of_slot[r->ref.slot];
    if (request < 0 || m->seats[request].ref.seq != r->ref.seq)
        return;
    m->seats[request].next -= r->n - m->accepted[i];
    if (r->sample != SAMPLE_LAST)
        return;
    struct sim_tokens *t = &m->out->tokens[request];
    uint32_t n = r->is_piece ? 1 : m->accepted[i];
    for (; n > 0 && t->n < m->requests[request].n_answer; n--)
        t->at_us[t->n++] = f->finish_us[m->o->sched.n_stages - 1];
    if (t->n == m->requests[request].n_answer)
        finish_request(m, (uint32_t)request);
    else if (m->requests[request].needs_host)
        ask_host(m, (uint32_t)request);
}

static void retire_tick(struct sim *m)
{
    uint32_t n_stages = m->o->sched.n_stages;
    struct flight *f = flight_of(m, m->oldest);
    if (!m->o->blind)
        sched_clock(m->sched, m->now_us);
    for (uint32_t i = 0; i < f->n_runs; i++) {
        m->accepted[i] = f->runs[i].n;
        if (!f->runs[i].is_piece && f->runs[i].n > 1)
            m->accepted[i] = 1 + (uint32_t)(draw(m) * f->runs[i].n);
    }
    CHECK(sched_retire(m->sched, f->tick, m->accepted) == STATUS_OK);
    for (uint32_t i = 0; i < n_stages && m->o->learn; i++)
        sched_timing(m->sched, i, f->tick, f->cost_us[i]);
    m->oldest++;
    m->in_flight--;
    for (uint32_t i = 0; i < f->n_runs; i++)
        take_run(m, f, i);
}

/* All ticks in flight are lost; whoever ran comes back. */
static void new_epoch(struct sim *m)
{
    for (uint32_t r = 0; r < m->n_started; r++)
        park_request(m, r);
    sched_reset(m->sched);
    m->oldest = 1;
    m->in_flight = 0;
    for (uint32_t i = 0; i < m->o->sched.n_stages; i++)
        m->last_finish_us[i] = m->now_us;
}

static void strike(struct sim *m)
{
    if (m->o->blow == SIM_EPOCH)
        new_epoch(m);
    else if (m->o->blow == SIM_CANCEL)
        cancel_request(m, m->o->blow_request);
    else
        park_request(m, m->o->blow_request);
}

static void event(struct sim *m)
{
    if (++m->out->n_events == m->o->blow_event)
        strike(m);
}

/* When the coordinator has the result of the oldest tick. */
static double result_us(struct sim *m)
{
    if (m->in_flight == 0)
        return INFINITY;
    return flight_of(m, m->oldest)->finish_us[m->o->sched.n_stages - 1] + m->o->sched.lambda_us;
}

/* Hosts that are ready, limits that rise, clients that leave. */
static void timers(struct sim *m)
{
    for (uint32_t r = 0; m->n_hosts > 0 && r < m->n_started; r++)
        if (m->seats[r].host_at_us > 0 && m->seats[r].host_at_us <= m->now_us) {
            m->seats[r].host_at_us = -1;
            m->n_hosts--;
            CHECK(sched_host_ready(m->sched, m->seats[r].ref) == STATUS_OK);
        }
    for (uint32_t r = 0; m->n_limited > 0 && r < m->n_started; r++)
        if (m->seats[r].limited && m->requests[r].waits_us <= m->now_us) {
            m->seats[r].limited = 0;
            m->n_limited--;
            CHECK(sched_set_limit(m->sched, m->seats[r].ref, UINT32_MAX) == STATUS_OK);
        }
    for (uint32_t r = 0; m->n_leaving > 0 && r < m->n_arrived; r++)
        if (m->requests[r].leaves_us > 0 && m->requests[r].leaves_us <= m->now_us)
            cancel_request(m, r);
}

/* The next thing that the coordinator hears of. */
static double next_event_us(struct sim *m)
{
    double at = result_us(m);
    if (m->n_arrived < m->n_requests)
        at = fmin(at, m->requests[m->n_arrived].arrives_us);
    for (uint32_t r = 0; m->n_hosts > 0 && r < m->n_started; r++)
        if (m->seats[r].host_at_us > 0)
            at = fmin(at, m->seats[r].host_at_us);
    for (uint32_t r = 0; m->n_limited > 0 && r < m->n_started; r++)
        if (m->seats[r].limited)
            at = fmin(at, m->requests[r].waits_us);
    for (uint32_t r = 0; m->n_leaving > 0 && r < m->n_requests; r++)
        if (m->requests[r].leaves_us > m->now_us && !is_done(m, r))
            at = fmin(at, m->requests[r].leaves_us);
    return at;
}

static double busiest(const struct sim *m)
{
    double most = 0;
    for (uint32_t i = 0; i < m->o->sched.n_stages; i++)
        most = fmax(most, m->out->busy_us[i]);
    return most;
}

static void run(struct sim *m)
{
    while (m->n_done < m->n_requests && (m->o->until_us == 0 || m->now_us < m->o->until_us)) {
        double busy = busiest(m), from = m->now_us;
        while (m->n_arrived < m->n_requests && m->requests[m->n_arrived].arrives_us <= m->now_us)
            m->n_arrived++;
        timers(m); /* who leaves makes room */
        admit(m);
        if (!m->o->blind)
            sched_clock(m->sched, m->now_us);
        while (sched_plan(m->sched, m->plan))
            send_tick(m);
        event(m);
        if (m->n_waiting > 0 || m->n_done == m->n_requests)
            continue;
        int reading = sched_stats(m->sched).n_readers > 0;
        double at = next_event_us(m);
        CHECK(isfinite(at)); /* work is left, and nothing will ever happen: the planner has stopped */
        m->now_us = fmax(m->now_us, at);
        while (result_us(m) <= m->now_us)
            retire_tick(m);
        if (reading) {
            m->out->reading_us += m->now_us - from;
            m->out->reading_busy_us += busiest(m) - busy;
        }
    }
    m->out->end_us = m->now_us;
}

/* --- the whole -------------------------------------------------------------------------------------------------------------- */

static void start(struct sim *m)
{
    const struct sched_options *so = &m->o->sched;
    CHECK(sched_create(so, &m->sched) == STATUS_OK);
    CHECK(sched_plan_create(m->sched, &m->plan) == STATUS_OK);
    CHECK(slots_create(so->n_slots, &m->slots) == STATUS_OK);
    cost_model_init(&m->truth, so->n_stages);
    for (uint32_t i = 0; i < so->n_stages; i++) {
        sched_set_stage(m->sched, i, &m->o->stage[i]);
        cost_model_set_stage(&m->truth, i, m->o->truth[i].n_blocks ? &m->o->truth[i] : &m->o->stage[i]);
    }
    for (uint32_t i = 0; i < MAX_STAGES + 2; i++)
        CHECK((m->flight[i].runs = calloc(so->n_slots, sizeof(struct sched_run))) != NULL);
    for (uint32_t i = 0; i < so->n_slots; i++)
        m->of_slot[i] = -1;
    CHECK((m->accepted = calloc(so->n_slots, sizeof *m->accepted)) != NULL);
    CHECK((m->seats = calloc(m->n_requests, sizeof *m->seats)) != NULL);
    CHECK((m->out->tokens = calloc(m->n_requests, sizeof *m->out->tokens)) != NULL);
    for (uint32_t i = 0; i < m->n_requests; i++) {
        CHECK((m->out->tokens[i].at_us = calloc(m->requests[i].n_answer, sizeof(double))) != NULL);
        m->n_leaving += m->requests[i].leaves_us > 0;
    }
    m->oldest = 1;
}

void sim_run(const struct sim_options *o, const struct sim_request *requests, uint32_t n, struct sim_result *out)
{
    struct sim *m = calloc(1, sizeof *m);
    CHECK(m != NULL);
    memset(out, 0, sizeof *out);
    out->n_requests = n;
    m->o = o;
    m->requests = requests;
    m->n_requests = n;
    m->out = out;
    start(m);
    run(m);
    for (uint32_t i = 0; i < MAX_STAGES + 2; i++)
        free(m->flight[i].runs);
    free(m->accepted);
    free(m->seats);
    slots_destroy(m->slots);
    sched_plan_destroy(m->plan);
    sched_destroy(m->sched);
    free(m);
}

void sim_result_fini(struct sim_result *r)
{
    for (uint32_t i = 0; i < r->n_requests; i++)
        free(r->tokens[i].at_us);
    free(r->tokens);
}
