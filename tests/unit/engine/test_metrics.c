/* coordinator/metrics: the page is strict Prometheus text, with the names of interface.md, whatever the state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/metrics.h"
#include "tests/unit/engine/prometheus.h"

/* interface.md: names are promises. A name here may be added, never changed. */
static const char *const frozen[] = {
    "sluice_requests", "sluice_requests_total", "sluice_queue_rejected_total", "sluice_prompt_tokens_total",
    "sluice_cached_tokens_total", "sluice_generated_tokens_total", "sluice_replayed_tokens_total", "sluice_preemptions_total",
    "sluice_ttft_seconds", "sluice_itl_seconds", "sluice_queue_seconds", "sluice_e2e_seconds", "sluice_blocks", "sluice_slots",
    "sluice_stage_busy_ratio", "sluice_stage_tick_seconds", "sluice_stage_restarts_total", "sluice_hop_seconds",
    "sluice_hop_bytes_total", "sluice_bubble_seconds_total", "sluice_cache_evicted_blocks_total",
    "sluice_cache_restored_blocks_total", "sluice_cache_damaged_total", "sluice_stale_messages_total",
    "sluice_protocol_errors_total", "sluice_write_stalled_total", "sluice_ticks_total", "sluice_tick_rows",
    "sluice_ticks_in_flight", "sluice_epoch",
};

/* What vLLM's page and the dashboards of its repository call them. */
static const char *const frozen_vllm[] = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_swapped", "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total", "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total",
    "vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
};

struct page {
    struct prometheus p;
    struct buf text;
};

/* model NULL: our own names only. */
static struct page *write_page_of(const struct metrics *m, const struct service_status *s, const char *model)
{
    struct page *page = calloc(1, sizeof *page);
    char why[200];
    buf_init(&page->text, 4 << 20);
    metrics_write(m, s, &page->text);
    if (model)
        metrics_write_vllm(m, s, model, &page->text);
    assert_int_equal(page->text.failed, 0);
    if (!prometheus_read(page->text.data, page->text.len, &page->p, why))
        fail_msg("%s", why);
    return page;
}

static struct page *write_page(const struct metrics *m, const struct service_status *s)
{
    return write_page_of(m, s, NULL);
}

static void page_free(struct page *page)
{
    buf_fini(&page->text);
    free(page);
}

static struct service_status *status_of(uint32_t n_stages, uint32_t n_slots)
{
    struct service_status *s = calloc(1, sizeof *s);
    s->n_stages = n_stages;
    s->n_slots = s->concurrency_serving = n_slots;
    for (uint32_t i = 0; i < n_slots; i++)
        snprintf(s->slots[i].state, sizeof s->slots[i].state, "free");
    return s;
}

static void check_list(const struct prometheus *p, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++) {
        int found = 0;
        for (int j = 0; j < p->n_families; j++)
            found |= strcmp(names[i], p->families[j].name) == 0;
        if (!found)
            fail_msg("%s has vanished", names[i]);
    }
}

static void check_names(const struct prometheus *p)
{
    check_list(p, frozen, sizeof frozen / sizeof *frozen);
    for (int j = 0; j < p->n_families; j++)
        assert_memory_equal(p->families[j].name, "sluice_", 7);
}

static void metrics_page_of_an_idle_service_has_every_name(void **state)
{
    (void)state;
    static struct metrics m;
    struct service_status *s = status_of(2, 4);
    struct page *page = write_page(&m, s);
    check_names(&page->p);
    assert_true(prometheus_value(&page->p, "sluice_requests{state=\"queued\"}") == 0);
    assert_true(prometheus_value(&page->p, "sluice_ttft_seconds_count") == 0);
    page_free(page);
    free(s);
}

static void metrics_page_of_a_loaded_service_says_its_numbers(void **state)
{
    (void)state;
    static struct metrics m = {.done = 7, .failed = 1, .cancelled = 2, .expired = 3, .prompt_tokens = 1ull << 53};
    m.rejected[REJECT_QUEUE_FULL] = 5;
    m.stage[1].hop_bytes = 4096;
    histogram_add(&m.ttft, 0.0001, 1);
    histogram_add(&m.ttft, 0.3, 2);
    histogram_add(&m.ttft, 1e6, 1);
    histogram_add(&m.stage[0].tick_seconds, 0.01, 10);
    struct service_status *s = status_of(2, 4);
    s->queued = 3;
    s->reading = 1;
    s->decoding = 2;
    s->bank_us = -1500;
    s->blocks_evicted = 12;
    for (int i = 0; i < 3; i++)
        snprintf(s->slots[i].state, sizeof s->slots[i].state, i == 0 ? "reading" : "decoding");
    metrics_count_tick(&m, 2, 0);
    metrics_count_tick(&m, 2, 500);
    s->epoch = 41;
    struct page *page = write_page(&m, s);
    const struct prometheus *p = &page->p;
    check_names(p);
    assert_true(prometheus_value(p, "sluice_requests{state=\"queued\"}") == 3);
    assert_true(prometheus_value(p, "sluice_requests_total{outcome=\"expired\"}") == 3);
    assert_true(prometheus_value(p, "sluice_queue_rejected_total{reason=\"queue_full\"}") == 5);
    assert_true(prometheus_value(p, "sluice_prompt_tokens_total") == 9007199254740992.0);
    assert_true(prometheus_value(p, "sluice_slots{state=\"free\"}") == 1);
    assert_true(prometheus_value(p, "sluice_slots{state=\"decoding\"}") == 2);
    assert_true(prometheus_value(p, "sluice_hop_bytes_total{stage=\"1\"}") == 4096);
    assert_true(prometheus_value(p, "sluice_stage_tick_seconds_count{stage=\"0\"}") == 10);
    assert_true(prometheus_value(p, "sluice_ttft_seconds_bucket{le=\"0.001\"}") == 1);
    assert_true(prometheus_value(p, "sluice_ttft_seconds_bucket{le=\"600\"}") == 3);
    assert_true(prometheus_value(p, "sluice_ttft_seconds_bucket{le=\"+Inf\"}") == 4);
    assert_true(prometheus_value(p, "sluice_epoch") == 41);
    assert_true(prometheus_value(p, "sluice_bank_seconds") == -0.0015);
    assert_true(prometheus_value(p, "sluice_cache_evicted_blocks_total{tier=\"device\"}") == 12);
    assert_true(prometheus_value(p, "sluice_ticks_total") == 2);
    assert_true(prometheus_value(p, "sluice_tick_rows_sum{kind=\"decode\"}") == 4);
    assert_true(prometheus_value(p, "sluice_tick_rows_count{kind=\"decode\"}") == 2);
    assert_true(prometheus_value(p, "sluice_tick_rows_bucket{kind=\"prompt\",le=\"0\"}") == 1);
    assert_true(prometheus_value(p, "sluice_tick_rows_bucket{kind=\"prompt\",le=\"200\"}") == 1);
    assert_true(prometheus_value(p, "sluice_tick_rows_bucket{kind=\"prompt\",le=\"500\"}") == 2);
    page_free(page);
    free(s);
}

static void metrics_of_a_done_request_are_those_its_client_was_told(void **state)
{
    (void)state;
    static struct metrics m;
    const struct usage u = {.prompt_tokens = 100, .completion_tokens = 11, .queue_ms = 5, .prompt_ms = 200, .decode_ms = 1000};
    const struct usage one = {.prompt_tokens = 1, .completion_tokens = 1};
    metrics_count_done(&m, &u, FINISH_LENGTH);
    metrics_count_done(&m, &one, FINISH_STOP);
    struct service_status *s = status_of(1, 1);
    struct page *page = write_page(&m, s);
    const struct prometheus *p = &page->p;
    assert_true(prometheus_value(p, "sluice_requests_total{outcome=\"done\"}") == 2);
    assert_true(prometheus_value(p, "sluice_requests_done_total{reason=\"stop\"}") == 1);
    assert_true(prometheus_value(p, "sluice_requests_done_total{reason=\"length\"}") == 1);
    assert_true(prometheus_value(p, "sluice_read_seconds_sum") == 0.2);
    assert_true(prometheus_value(p, "sluice_decode_seconds_sum") == 1);
    assert_true(prometheus_value(p, "sluice_tpot_seconds_count") == 1); /* one token has no time per token */
    assert_true(prometheus_value(p, "sluice_tpot_seconds_sum") == 0.1);
    assert_true(prometheus_value(p, "sluice_request_prompt_tokens_sum") == 101);
    assert_true(prometheus_value(p, "sluice_request_generated_tokens_bucket{le=\"10\"}") == 1);
    page_free(page);
    free(s);
}

/* NULL: the series as it stands. */
static double labelled(const struct prometheus *p, const char *name, const char *more)
{
    char series[256];
    snprintf(series, sizeof series, "%s{model_name=\"a\\\"b\\\\c\",engine=\"0\"%s%s}", name, more ? "," : "", more ? more : "");
    return prometheus_value(p, series);
}

static void metrics_under_vllms_names_are_the_same_facts(void **state)
{
    (void)state;
    static struct metrics m = {.failed = 1, .cancelled = 2, .expired = 3, .prompt_tokens = 100, .cached_tokens = 50,
                               .generated_tokens = 9, .preemptions = 4, .done = 7, .done_stop = 5, .done_length = 2};
    struct service_status *s = status_of(2, 4);
    s->queued = 3;
    s->parked = 1;
    s->reading = 1;
    s->decoding = 2;
    s->blocks_total = 100;
    s->blocks_live = 20;
    s->blocks_draining = 5;
    s->blocks_cached = 40;
    s->blocks_free = 35;
    histogram_add(&m.itl, 0.02, 3);
    struct page *page = write_page_of(&m, s, "a\"b\\c");
    const struct prometheus *p = &page->p;
    check_list(p, frozen, sizeof frozen / sizeof *frozen);
    check_list(p, frozen_vllm, sizeof frozen_vllm / sizeof *frozen_vllm);
    assert_true(labelled(p, "vllm:num_requests_running", NULL) == 3);
    assert_true(labelled(p, "vllm:num_requests_waiting", NULL) == 4);
    assert_true(labelled(p, "vllm:kv_cache_usage_perc", NULL) == 0.25);
    assert_true(labelled(p, "vllm:gpu_cache_usage_perc", NULL) == 0.25);
    assert_true(labelled(p, "vllm:prompt_tokens_total", NULL) == 150);
    assert_true(labelled(p, "vllm:prefix_cache_queries_total", NULL) == 150);
    assert_true(labelled(p, "vllm:prefix_cache_hits_total", NULL) == 50);
    assert_true(labelled(p, "vllm:num_preemptions_total", NULL) == 4);
    assert_true(labelled(p, "vllm:request_success_total", "finished_reason=\"stop\"") == 5);
    assert_true(labelled(p, "vllm:request_success_total", "finished_reason=\"length\"") == 2);
    assert_true(labelled(p, "vllm:request_success_total", "finished_reason=\"abort\"") == 2);
    assert_true(labelled(p, "vllm:request_success_total", "finished_reason=\"error\"") == 4);
    assert_true(labelled(p, "vllm:inter_token_latency_seconds_count", NULL) == 3);
    assert_true(labelled(p, "vllm:time_per_output_token_seconds_bucket", "le=\"0.025\"") == 3);
    page_free(page);
    free(s);
}

static void metrics_pages_of_one_and_of_64_stages_have_the_same_names(void **state)
{
    (void)state;
    static struct metrics m;
    struct service_status *s[2] = {status_of(1, 1), status_of(64, STATUS_MAX_SLOTS)};
    struct page *page[2] = {write_page(&m, s[0]), write_page(&m, s[1])};
    assert_int_equal(page[0]->p.n_families, page[1]->p.n_families);
    for (int i = 0; i < page[0]->p.n_families; i++)
        assert_string_equal(page[0]->p.families[i].name, page[1]->p.families[i].name);
    for (int i = 0; i < 2; i++) {
        page_free(page[i]);
        free(s[i]);
    }
}

static void metrics_bounds_of_a_histogram_hold_their_own_value(void **state)
{
    (void)state;
    struct histogram h = {0};
    histogram_add(&h, 0.25, 1); /* le is "less or equal" */
    histogram_add(&h, 0.2500001, 1);
    histogram_add(&h, -1, 1); /* a clock that was stepped: no sum may fall */
    static struct metrics m;
    m.queue = h;
    struct service_status *s = status_of(1, 1);
    struct page *page = write_page(&m, s);
    assert_true(prometheus_value(&page->p, "sluice_queue_seconds_bucket{le=\"0.15\"}") == 1);
    assert_true(prometheus_value(&page->p, "sluice_queue_seconds_bucket{le=\"0.25\"}") == 2);
    assert_true(prometheus_value(&page->p, "sluice_queue_seconds_bucket{le=\"0.5\"}") == 3);
    assert_true(fabs(prometheus_value(&page->p, "sluice_queue_seconds_sum") - 0.5000001) < 1e-9);
    page_free(page);
    free(s);
}

static void the_reader_of_this_test_refuses_what_promtool_refuses(void **state)
{
    (void)state;
    static const char *const pages[] = {
        "",
        "# HELP a b\n# TYPE a gauge\na 1",
        "a 1\n",
        "# TYPE a gauge\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a b\n# TYPE a counter\na -1\n",
        "# HELP a b\n# TYPE a gauge\na{x=\"1} 2\n",
        "# HELP a b\n# TYPE a gauge\na{x=\"1\",x=\"2\"} 2\n",
        "# HELP a b\n# TYPE a gauge\na x\n",
        "# HELP a b\n# TYPE a gauge\n",
        "# HELP a b\n# TYPE a gauge\na 1\n# HELP b c\n# TYPE b gauge\nb 1\na{x=\"1\"} 2\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n",
        "# HELP a_total b\n# TYPE a_total gauge\na_total 1\n",
    };
    struct prometheus *p = malloc(sizeof *p);
    char why[200];
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (prometheus_read(pages[i], strlen(pages[i]), p, why))
            fail_msg("page %zu was taken", i);
    const char *good = "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 2\n";
    assert_true(prometheus_read(good, strlen(good), p, why));
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_page_of_an_idle_service_has_every_name),
        cmocka_unit_test(metrics_page_of_a_loaded_service_says_its_numbers),
        cmocka_unit_test(metrics_of_a_done_request_are_those_its_client_was_told),
        cmocka_unit_test(metrics_under_vllms_names_are_the_same_facts),
        cmocka_unit_test(metrics_pages_of_one_and_of_64_stages_have_the_same_names),
        cmocka_unit_test(metrics_bounds_of_a_histogram_hold_their_own_value),
        cmocka_unit_test(the_reader_of_this_test_refuses_what_promtool_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
