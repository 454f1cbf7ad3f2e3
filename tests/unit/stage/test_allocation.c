/* Nothing is allocated inside a tick: every allocation on a worker's thread between two moments of a running pipeline counts. */
#include "tests/unit/stage/cmocka_all.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "stage/model_compute.h"
#include "tests/lib/fake_compute.h"
#include "tests/lib/pipeline.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void)
{
    puts("skipped: a sanitizer has malloc in its hands");
    return 77;
}
#else

enum { N_OUT = 40, N_REQUESTS = 3 };

static atomic_int counting, n_allocations;
static size_t allowed; /* blocks up to this size do not count */
static _Thread_local int is_test; /* the test's own thread may allocate */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static void count(size_t n)
{
    if (n > allowed && atomic_load(&counting) && !is_test && !pipeline_in_send)
        atomic_fetch_add(&n_allocations, 1);
}

void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    return fake_compute_create(&(struct fake_options){.stage = stage}, out, err);
}

static enum status create_model(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    (void)ctx;
    (void)stage;
    const struct model_compute_options o = {
        .model_path = SLUICE_VECTORS "/tiny/llama-q8_0.gguf", .n_threads = 1, .kv_fd = -1, .skip_calibration = 1};
    return model_compute_create(&o, out, err);
}

static void check(enum status (*create)(void *, uint32_t, struct compute **, struct error *), uint32_t n_stages,
                  enum pipeline_links links, uint32_t n_layers)
{
    static const uint32_t prompt[70];
    static int32_t out[N_REQUESTS][N_OUT];
    static const struct sampler_params samplers[N_REQUESTS] = {
        {.top_p = 1},
        {.temperature = 1, .top_p = 0.9f, .typical_p = 0.9f, .repeat_penalty = 1.5f, .n_prompt = 70, .n_top = 1},
        {.top_p = 1, .presence_penalty = 1, .frequency_penalty = 0.5f, .n_prompt = 70, .n_top = 1 + MAX_TOP_LOGPROBS}};
    struct pipeline_request r[N_REQUESTS];
    struct pipeline *p;
    struct error err = {0};
    const struct pipeline_options o = {
        .n_stages = n_stages, .links = links, .n_layers = n_layers, .context = 128, .max_rows = 48, .create = create};
    if (pipeline_open(&o, &p, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        r[i] = (struct pipeline_request){.prompt = prompt, .n_prompt = 70, .n_out = N_OUT, .sampler = samplers[i], .out = out[i]};
    atomic_store(&n_allocations, 0);
    atomic_store(&counting, 1); /* from the first tick on */
    enum status s = pipeline_generate(p, r, N_REQUESTS, &err);
    atomic_store(&counting, 0);
    assert_int_equal(s, STATUS_OK);
    assert_int_equal(atomic_load(&n_allocations), 0);
    pipeline_close(p);
}

static void ticks_of_a_fake_stage_allocate_nothing(void **state)
{
    (void)state;
    check(create_fake, 1, PIPELINE_MEM, 8);
    check(create_fake, 3, PIPELINE_MEM, 8);
    check(create_fake, 3, PIPELINE_UNIX, 8);
    check(create_fake, 3, PIPELINE_TCP, 8);
    allowed = 40; /* libssl's own, a few for each record, freed before it returns (stage/link_tls.h) */
    check(create_fake, 3, PIPELINE_TLS, 8);
    allowed = 0;
}

static void ticks_of_a_model_allocate_nothing(void **state)
{
    (void)state;
    check(create_model, 1, PIPELINE_MEM, 2);
    check(create_model, 2, PIPELINE_UNIX, 2);
}

static void the_counter_sees_what_a_thread_allocates(void **state)
{
    (void)state;
    struct pipeline *p;
    struct error err = {0};
    const struct pipeline_options o = {.create = create_fake};
    atomic_store(&n_allocations, 0);
    atomic_store(&counting, 1);
    assert_int_equal(pipeline_open(&o, &p, &err), STATUS_OK); /* loading allocates, on the worker's thread */
    atomic_store(&counting, 0);
    assert_true(atomic_load(&n_allocations) > 0);
    pipeline_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_sees_what_a_thread_allocates),
        cmocka_unit_test(ticks_of_a_fake_stage_allocate_nothing),
        cmocka_unit_test(ticks_of_a_model_allocate_nothing),
    };
    is_test = 1;
    log_set_levels("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
