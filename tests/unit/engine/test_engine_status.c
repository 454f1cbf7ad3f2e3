/* What the engine publishes: at every moment, under any load, the numbers add up and counters do not fall. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "tests/lib/engine_bed.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/fake_script.h"
#include "tests/unit/engine/prometheus.h"

enum { WAIT_MS = 20000, N_REQUESTS = 150, STAGES = 2, SLOTS = 5, MAX_PROMPT = 200 };
#define MODEL SLUICE_VECTORS "/tiny/llama-f32.gguf"
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static uint64_t seed = 1, draws;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rand_at(seed, draws++) % n);
}

/* --- what must hold ----------------------------------------------------------------------------------------------------------- */

struct sampler {
    struct engine *e;
    struct service_status *now, *before;
    struct prometheus *page, *page_before;
    struct buf text;
    uint32_t n_samples, n_pages, most_parked, most_reading;
};

#define HOLDS(s, cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            fail_msg("sample %u: this must hold and does not: %s", (s)->n_samples, #cond);                               \
    } while (0)

static void check_requests(const struct sampler *s, const struct service_status *n)
{
    HOLDS(s, n->accepted == n->done + n->failed + n->cancelled + n->queued + n->reading + n->decoding + n->parked);
    HOLDS(s, n->queue_requests == n->queued + n->parked);
    HOLDS(s, (n->queue_requests == 0) == (n->queue_tokens == 0));
    HOLDS(s, n->blocks_free + n->blocks_cached + n->blocks_live + n->blocks_draining == n->blocks_total);
    HOLDS(s, n->blocks_promised <= n->blocks_free + n->blocks_cached);
    HOLDS(s, n->ticks_in_flight <= n->tick_window && n->tick_window == STAGES + 1);
    HOLDS(s, n->tick_readers + n->tick_streams <= n->reading + n->decoding);
}

static void check_slots(const struct sampler *s, const struct service_status *n)
{
    uint32_t reading = 0, decoding = 0;
    HOLDS(s, n->n_slots == SLOTS);
    for (uint32_t i = 0; i < n->n_slots; i++) {
        const struct slot_status *t = &n->slots[i];
        int is_free = strcmp(t->state, "free") == 0;
        reading += strcmp(t->state, "reading") == 0;
        decoding += strcmp(t->state, "decoding") == 0;
        HOLDS(s, t->slot == i);
        HOLDS(s, is_free == (t->request[0] == 0));
        HOLDS(s, t->read_tokens <= t->prompt_tokens && t->cached_tokens <= t->prompt_tokens);
        HOLDS(s, strcmp(t->state, "decoding") != 0 || t->generated_tokens > 0);
    }
    HOLDS(s, reading == n->reading);
    HOLDS(s, decoding == n->decoding);
}

static void check_growth(const struct sampler *s, const struct service_status *n, const struct service_status *b)
{
    HOLDS(s, n->accepted >= b->accepted);
    HOLDS(s, n->done >= b->done && n->failed >= b->failed && n->cancelled >= b->cancelled);
    HOLDS(s, n->ticks_sent >= b->ticks_sent && n->epoch >= b->epoch && n->blocks_evicted >= b->blocks_evicted);
    for (uint32_t i = 0; i < n->n_stages; i++)
        HOLDS(s, n->stages[i].restarts >= b->stages[i].restarts);
}

static double value(const struct sampler *s, const char *series)
{
    double v = prometheus_value(s->page, series);
    if (!(v >= 0))
        fail_msg("sample %u: %s is %g", s->n_samples, series, v);
    return v;
}

static double sum_of(const struct prometheus *p, const char *name)
{
    double sum = 0;
    for (int i = 0; i < p->n_samples; i++)
        if (strcmp(p->samples[i].name, name) == 0)
            sum += p->samples[i].value;
    return sum;
}

static void check_page(struct sampler *s)
{
    const struct prometheus *p = s->page;
    double ended = sum_of(p, "sluice_requests_total"), ticks = value(s, "sluice_ticks_total");
    HOLDS(s, value(s, "sluice_requests_accepted_total") == ended + sum_of(p, "sluice_requests"));
    HOLDS(s, value(s, "sluice_requests_total{outcome=\"done\"}") == sum_of(p, "sluice_requests_done_total"));
    HOLDS(s, value(s, "sluice_e2e_seconds_count") == ended);
    HOLDS(s, value(s, "sluice_read_seconds_count") == sum_of(p, "sluice_requests_done_total"));
    HOLDS(s, value(s, "sluice_slots{state=\"decoding\"}") == value(s, "sluice_requests{state=\"decoding\"}"));
    HOLDS(s, sum_of(p, "sluice_slots") == SLOTS);
    HOLDS(s, value(s, "sluice_ttft_seconds_count") + value(s, "sluice_itl_seconds_count") == value(s, "sluice_generated_tokens_total"));
    HOLDS(s, value(s, "sluice_tick_rows_count{kind=\"decode\"}") == ticks);
    HOLDS(s, value(s, "sluice_tick_rows_count{kind=\"prompt\"}") == ticks);
    HOLDS(s, value(s, "sluice_prompt_tokens_total") + value(s, "sluice_replayed_tokens_total") <=
                 value(s, "sluice_tick_rows_sum{kind=\"prompt\"}"));
    if (s->n_pages && s->page_before->n_samples != p->n_samples)
        fail_msg("a page of %d series after one of %d", p->n_samples, s->page_before->n_samples);
    for (int i = 0; s->n_pages && i < p->n_samples; i++) {
        const struct prometheus_sample *now = &p->samples[i], *before = &s->page_before->samples[i];
        assert_string_equal(now->series, before->series);
        if (strcmp(p->families[now->family].type, "gauge") != 0 && now->value < before->value)
            fail_msg("%s fell from %g to %g", now->series, before->value, now->value);
    }
}

static void sample(struct sampler *s)
{
    struct service_status *old = s->before;
    s->before = s->now;
    s->now = old;
    engine_status(s->e, s->now);
    check_requests(s, s->now);
    check_slots(s, s->now);
    check_growth(s, s->now, s->before);
    s->n_samples++;
    if (s->now->parked > s->most_parked)
        s->most_parked = (uint32_t)s->now->parked;
    if (s->now->reading > s->most_reading)
        s->most_reading = (uint32_t)s->now->reading;
}

static void sample_page(struct sampler *s)
{
    struct prometheus *old = s->page_before;
    char why[200];
    s->page_before = s->page;
    s->page = old;
    buf_clear(&s->text);
    engine_metrics(s->e, s->n_pages % 2 ? METRIC_ALIASES_VLLM : METRIC_ALIASES_NONE, &s->text);
    char *aliases = strstr(s->text.data, "# HELP vllm:"); /* the same series as before: without the second half */
    if (!prometheus_read(s->text.data, s->text.len, s->page, why))
        fail_msg("%s", why);
    if (aliases)
        assert_true(prometheus_read(s->text.data, (size_t)(aliases - s->text.data), s->page, why));
    check_page(s);
    s->n_pages++;
}

static void sampler_open(struct sampler *s, struct engine *e)
{
    *s = (struct sampler){.e = e};
    s->now = calloc(1, sizeof *s->now);
    s->before = calloc(1, sizeof *s->before);
    s->page = calloc(1, sizeof *s->page);
    s->page_before = calloc(1, sizeof *s->page_before);
    buf_init(&s->text, 4 << 20);
    assert_true(s->now && s->before && s->page && s->page_before);
}

static void sampler_close(struct sampler *s)
{
    free(s->now);
    free(s->before);
    free(s->page);
    free(s->page_before);
    buf_fini(&s->text);
}

/* --- random load ---------------------------------------------------------------------------------------------------------------- */

struct load {
    struct engine_bed *b;
    struct bed_request *r[N_REQUESTS];
    uint32_t n, n_left;
};

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    return fake_compute_create(&(struct fake_options){.stage = stage, .script_path = ctx}, out, err);
}

/* Half of the prompts begin as others do, so that the cache has something to give. */
static void come(struct load *l)
{
    uint32_t prompt[MAX_PROMPT], n = 1 + below(MAX_PROMPT), family = below(2) ? 1 + below(3) : 100 + l->n;
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (uint32_t)(rand_at(family, i) % FAKE_VOCAB);
    struct bed_request *r = bed_request_new(l->b, prompt, n, 1 + below(120));
    if (below(10) == 0)
        r->deadline_ms = 1 + below(50);
    bed_submit(l->r[l->n++] = r);
}

static void go(struct load *l)
{
    struct bed_request *r = l->r[below(l->n)];
    if (bed_ended(r))
        return;
    bed_cancel(r);
    l->n_left++;
}

static void step(struct load *l)
{
    if (below(3) && l->n < N_REQUESTS)
        come(l);
    else if (below(3) == 0 && l->n)
        go(l);
    else if (below(150) == 0)
        engine_bed_break_stream(l->b, below(STAGES));
    else
        usleep(below(3000));
}

static void status_adds_up_at_every_moment_of_a_random_load(void **state)
{
    struct load l = {0};
    struct sampler s;
    char script[FAKE_SCRIPT_PATH];
    (void)state;
    fake_script_file("tick_us 150\nrow_us 10\ntoken_us 3\n", script);
    const struct engine_bed_options o = {
        .model_path = MODEL, .n_stages = STAGES, .create = create_fake, .ctx = script,
        .flags = FLAGS("--slots", "5", "--kv-blocks", "30", "--kv-block", "16", "--piece-max", "32", "--queue-requests", "12")};
    l.b = engine_bed_open(&o);
    engine_bed_wait_ready(l.b);
    sampler_open(&s, engine_bed_engine(l.b));
    while (l.n < N_REQUESTS) {
        step(&l);
        sample(&s);
        if (s.n_samples % 8 == 0)
            sample_page(&s);
    }
    for (uint32_t i = 0; i < l.n; i++)
        while (!bed_ended(l.r[i])) {
            usleep(500);
            sample(&s);
        }
    engine_bed_assert_quiet(l.b);
    sample(&s);
    sample_page(&s);
    HOLDS(&s, value(&s, "sluice_requests_accepted_total") == (double)s.now->accepted);
    print_message("%u samples, %u pages, %u requests, %u left, at most %u parked, %llu evicted, %g cached, %g replayed\n",
                  s.n_samples, s.n_pages, l.n, l.n_left, s.most_parked, (unsigned long long)s.now->blocks_evicted,
                  value(&s, "sluice_cached_tokens_total"), value(&s, "sluice_replayed_tokens_total"));
    assert_true(s.most_reading > 0 && s.now->done > 0 && s.now->cancelled > 0); /* it was a load, with all that there is */
    HOLDS(&s, value(&s, "sluice_preemptions_total") > 0 && value(&s, "sluice_replayed_tokens_total") > 0);
    HOLDS(&s, value(&s, "sluice_cached_tokens_total") > 0 && s.now->blocks_evicted > 0);
    sampler_close(&s);
    for (uint32_t i = 0; i < l.n; i++)
        bed_request_free(l.r[i]);
    engine_bed_close(l.b);
    unlink(script);
}

/* --- what a request counts ------------------------------------------------------------------------------------------------------ */

static void metrics_count_a_cancelled_prompt_as_far_as_it_was_computed(void **state)
{
    enum { PROMPT = 400, PIECE = 16 };
    struct sampler s;
    char script[FAKE_SCRIPT_PATH];
    uint32_t prompt[PROMPT];
    (void)state;
    fake_script_file("tick_us 3000\n", script);
    const struct engine_bed_options o = {.model_path = MODEL, .n_stages = STAGES, .create = create_fake, .ctx = script,
                                         .flags = FLAGS("--slots", "5", "--piece-max", "16")};
    struct engine_bed *b = engine_bed_open(&o);
    engine_bed_wait_ready(b);
    sampler_open(&s, engine_bed_engine(b));
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = below(FAKE_VOCAB);
    struct bed_request *r = bed_request_new(b, prompt, PROMPT, 5);
    bed_submit(r);
    for (uint32_t read = 0; read < PROMPT / 10; usleep(200)) {
        sample(&s);
        read = s.now->n_slots ? s.now->slots[0].read_tokens : 0;
        assert_true(!bed_ended(r));
    }
    uint32_t at_cancel = s.now->slots[0].read_tokens;
    bed_cancel(r);
    bed_wait(r, WAIT_MS);
    engine_bed_assert_quiet(b);
    sample_page(&s);
    double counted = value(&s, "sluice_prompt_tokens_total");
    /* What had retired; at most one more piece retired on the way of the snapshot and of the cancel, and a window in flight. */
    if (counted < at_cancel || counted > at_cancel + (STAGES + 1 + 8) * PIECE)
        fail_msg("%g tokens are counted, %u were read at the cancel", counted, at_cancel);
    HOLDS(&s, (uint64_t)counted % PIECE == 0 && counted < PROMPT);
    HOLDS(&s, value(&s, "sluice_tick_rows_sum{kind=\"prompt\"}") == counted);
    bed_request_free(r);
    sampler_close(&s);
    engine_bed_close(b);
    unlink(script);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_adds_up_at_every_moment_of_a_random_load),
        cmocka_unit_test(metrics_count_a_cancelled_prompt_as_far_as_it_was_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
