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

struct sim {
    const struct sim_options *o;
    const struct sim_request *requests;
    uint32_t n_requests, n_arrived, n_started, n_done;
    struct sched *sched;
    struct sched_plan *plan;
    struct slots *slots;
    struct cost_model truth;
    struct flight flight[MAX_STAGES + 2];
    uint64_t oldest; /* tick in flight */
    uint32_t in_flight;
    double now_us, last_finish_us[MAX_STAGES];
    uint64_t draws;
    int of_slot[SLOTS_MAX];          /* request, -1: none */
    struct slot_ref refs[SIM_MAX_REQUESTS];
    struct sim_result *out;
};

struct msg_loaded sim_stage(double base_us, double row_us, double head_us, double attention_ns)
{
    static const uint32_t rows[N_COST_POINTS] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    struct msg_loaded l = {.n_blocks = 1, .attention_ns = attention_ns};
    for (int i = 0; i < N_COST_POINTS; i++) {
        l.cost_rows[i] = rows[i];
        l.prompt_us[i] = (uint32_t)(base_us / 10 + fmax(base_us, row_us * rows[i]));
        l.decode_us[i] = l.prompt_us[i] + (uint32_t)(head_us * rows[i]);
    }
    return l;
}

static struct flight *flight_of(struct sim *m, uint64_t tick)
{
    return &m->flight[tick % (MAX_STAGES + 2)];
}

static double noise(struct sim *m)
{
    double u = (double)(rand_at(m->o->seed, m->draws++) >> 11) * 0x1p-53;
    return m->o->noise_low + u * (m->o->noise_high - m->o->noise_low);
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
        f->cost_us[i] = cost_base_us(&m->truth, i, &m->plan->shape) * noise(m);
        double start = fmax(ready, m->last_finish_us[i]);
        f->finish_us[i] = m->last_finish_us[i] = ready = start + f->cost_us[i];
        m->out->busy_us[i] += f->cost_us[i];
        m->out->most_tick_us = fmax(m->out->most_tick_us, f->cost_us[i]);
    }
    for (uint32_t i = 0; i < f->n_runs; i++) {
        struct sim_tokens *t = &m->out->tokens[m->of_slot[f->runs[i].ref.slot]];
        if (t->first_piece_us == 0)
            t->first_piece_us = m->now_us;
    }
    m->out->n_ticks++;
    m->in_flight++;
    sched_commit(m->sched, m->plan);
}

static void finish_request(struct sim *m, int request)
{
    struct slot_ref ref = m->refs[request];
    CHECK(sched_remove(m->sched, ref) == STATUS_OK);
    CHECK(slots_release(m->slots, ref) == STATUS_OK);
    m->of_slot[ref.slot] = -1;
    m->n_done++;
}

static void retire_tick(struct sim *m)
{
    uint32_t n_stages = m->o->sched.n_stages;
    struct flight *f = flight_of(m, m->oldest);
    CHECK(sched_retire(m->sched, f->tick, NULL) == STATUS_OK);
    for (uint32_t i = 0; i < n_stages && m->o->learn; i++)
        sched_timing(m->sched, i, f->tick, f->cost_us[i]);
    m->oldest++;
    m->in_flight--;
    for (uint32_t i = 0; i < f->n_runs; i++) {
        int request = m->of_slot[f->runs[i].ref.slot];
        if (f->runs[i].sample != SAMPLE_LAST || request < 0 || m->refs[request].seq != f->runs[i].ref.seq)
            continue;
        struct sim_tokens *t = &m->out->tokens[request];
        t->at_us[t->n++] = f->finish_us[n_stages - 1];
        if (t->n == m->requests[request].n_answer)
            finish_request(m, request);
    }
}

static void admit(struct sim *m)
{
    while (m->n_arrived < m->n_requests && m->requests[m->n_arrived].arrives_us <= m->now_us)
        m->n_arrived++;
    while (m->n_started < m->n_arrived) {
        uint32_t r = m->n_started;
        if (slots_acquire(m->slots, &m->refs[r]) != STATUS_OK)
            return;
        m->of_slot[m->refs[r].slot] = (int)r;
        m->out->tokens[r].started_us = m->now_us;
        CHECK(sched_add(m->sched, m->refs[r], &(struct sched_sequence){.n_prompt = m->requests[r].n_prompt, .n_answer = m->requests[r].n_answer, .order = r, .limit = UINT32_MAX}) == STATUS_OK);
        m->n_started++;
    }
}

/* When the coordinator has the result of the oldest tick. */
static double result_us(struct sim *m)
{
    if (m->in_flight == 0)
        return INFINITY;
    return flight_of(m, m->oldest)->finish_us[m->o->sched.n_stages - 1] + m->o->sched.lambda_us;
}

/* The next thing that the coordinator hears of. */
static double next_event_us(struct sim *m)
{
    double at = result_us(m);
    if (m->n_arrived < m->n_requests)
        at = fmin(at, m->requests[m->n_arrived].arrives_us);
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
        admit(m);
        while (sched_plan(m->sched, m->plan))
            send_tick(m);
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

static void start(struct sim *m)
{
    const struct sched_options *so = &m->o->sched;
    CHECK(m->n_requests <= SIM_MAX_REQUESTS);
    CHECK(sched_create(so, &m->sched) == STATUS_OK);
    CHECK(sched_plan_create(m->sched, &m->plan) == STATUS_OK);
    CHECK(slots_create(so->n_slots, &m->slots) == STATUS_OK);
    cost_model_init(&m->truth, so->n_stages);
    for (uint32_t i = 0; i < so->n_stages; i++) {
        sched_set_stage(m->sched, i, &m->o->stage[i]);
        cost_model_set_stage(&m->truth, i, &m->o->stage[i]);
    }
    for (uint32_t i = 0; i < MAX_STAGES + 2; i++)
        CHECK((m->flight[i].runs = calloc(so->n_slots, sizeof(struct sched_run))) != NULL);
    for (uint32_t i = 0; i < so->n_slots; i++)
        m->of_slot[i] = -1;
    for (uint32_t i = 0; i < m->n_requests; i++)
        CHECK((m->out->tokens[i].at_us = calloc(m->requests[i].n_answer, sizeof(double))) != NULL);
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
    slots_destroy(m->slots);
    sched_plan_destroy(m->plan);
    sched_destroy(m->sched);
    free(m);
}

void sim_result_fini(struct sim_result *r)
{
    for (uint32_t i = 0; i < r->n_requests; i++)
        free(r->tokens[i].at_us);
}
