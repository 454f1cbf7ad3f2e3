#include "tests/unit/engine/fake_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/rand.h"

#define MODEL SLUICE_VECTORS "/tiny/llama-f32.gguf"

static uint64_t seed = 3, draws;

uint32_t below(uint32_t n)
{
    return (uint32_t)(rand_at(seed, draws++) % n);
}

void sleep_ms(uint32_t ms)
{
    usleep(ms * 1000);
}

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    const struct bed *t = ctx;
    return fake_compute_create(
        &(struct fake_options){.stage = stage, .script_path = t->script, .profile = t->profile, .kv_fd = t->kv_fd[stage]},
        out, err);
}

struct bed *bed_open_hash(uint32_t n_stages, const char *script, const char *const *flags, uint32_t hash_bits)
{
    struct bed *t = calloc(1, sizeof *t);
    assert_non_null(t);
    fake_script_file(script, t->script);
    const struct engine_bed_options o = {
        .model_path = MODEL, .n_stages = n_stages, .flags = flags, .create = create_fake, .ctx = t,
        .hash_bits = hash_bits};
    for (uint32_t i = 0; i < BED_MAX_STAGES; i++)
        t->kv_fd[i] = -1;
    t->b = engine_bed_open(&o);
    engine_bed_wait_ready(t->b);
    return t;
}

struct bed *bed_open(uint32_t n_stages, const char *script, const char *const *flags)
{
    return bed_open_hash(n_stages, script, flags, 0);
}

void bed_keep_kv(struct bed *t)
{
    for (uint32_t i = 0; i < BED_MAX_STAGES; i++)
        assert_true((t->kv_fd[i] = memfd_create("kv", MFD_CLOEXEC)) >= 0);
}

void bed_close(struct bed *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        bed_request_free(t->r[i]);
    engine_bed_close(t->b);
    for (uint32_t i = 0; i < BED_MAX_STAGES; i++)
        if (t->kv_fd[i] >= 0)
            close(t->kv_fd[i]);
    unlink(t->script);
    free(t);
}

void vary_sampler(struct bed_request *r)
{
    if (below(3) == 0) {
        r->sampler.temperature = 1;
        r->sampler.seed = below(1u << 30);
    }
    uint32_t penalties = below(6);
    if (penalties < 2) {
        r->sampler.repeat_penalty = 1.5f;
        r->sampler.repeat_last_n = below(2) ? 1 + below(60) : 0;
    }
    if (penalties == 1 || penalties == 2)
        r->sampler.frequency_penalty = 0.5f;
    if (below(2))
        r->sampler.n_top = 1 + below(1 + MAX_TOP_LOGPROBS);
}

void check_logprobs(const struct bed_request *r)
{
    for (uint32_t i = 0; i < r->n_logprobs; i++) {
        const struct token_logprobs *l = &r->logprobs[i];
        uint32_t position = r->n_prompt + r->n_resumed + i;
        assert_true(l->logprob == fake_logprob(position, 0));
        for (uint32_t k = 0; k < l->n_top; k++) {
            assert_int_equal(l->top_ids[k], (l->id + k) % FAKE_VOCAB);
            assert_true(l->top_logprobs[k] == fake_logprob(position, k));
        }
    }
}

struct bed_request *add(struct bed *t, uint32_t n_prompt, uint32_t n_out)
{
    uint32_t prompt[512];
    CHECK(t->n < MAX_REQUESTS && n_prompt <= ARRAY_LEN(prompt));
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = below(FAKE_VOCAB);
    struct bed_request *r = bed_request_new(t->b, prompt, n_prompt, n_out);
    vary_sampler(r);
    return t->r[t->n++] = r;
}

struct bed_request *start(struct bed *t, uint32_t n_prompt, uint32_t n_out)
{
    struct bed_request *r = add(t, n_prompt, n_out);
    bed_submit(r);
    return r;
}

void check_answer(struct bed *t, const struct bed_request *r)
{
    int32_t want[BED_MAX_IDS];
    struct buf text;
    uint32_t n = (uint32_t)(r->max_tokens > 0 ? r->max_tokens : 512 - r->n_prompt);
    fake_reference(engine_bed_model(t->b)->hp.n_layers, &r->sampler, r->prompt, r->n_prompt, want, n);
    assert_true(r->n_ids <= n);
    assert_memory_equal(r->ids, want, r->n_ids * sizeof *want);
    assert_int_equal(r->n_logprobs, r->sampler.n_top ? r->n_ids : 0);
    check_logprobs(r);
    if (r->end.status != STATUS_OK || r->stop)
        return;
    assert_int_equal(r->n_done, 1);
    assert_int_equal(r->n_ids, n);
    assert_int_equal(r->done.finish, FINISH_LENGTH);
    assert_int_equal(r->done.usage.prompt_tokens, r->n_prompt);
    assert_int_equal(r->done.usage.completion_tokens, n);
    buf_init(&text, 1 << 20);
    struct detokenizer d;
    detokenizer_init(&d, engine_bed_tokenizer(t->b), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(detokenizer_push(&d, (uint32_t)want[i], &text), STATUS_OK);
    assert_int_equal(detokenizer_finish(&d, &text), STATUS_OK);
    assert_int_equal(r->text.len, text.len);
    assert_memory_equal(r->text.data, text.data, text.len);
    buf_fini(&text);
}

void wait_all(struct bed *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        bed_wait(t->r[i], WAIT_MS);
        check_answer(t, t->r[i]);
    }
}

void wait_ids(struct bed_request *r, uint32_t n)
{
    for (int64_t end_ns = clock_now_ns() + 5 * NS_PER_S; bed_n_ids(r) < n && !bed_ended(r);) {
        if (clock_now_ns() > end_ns)
            fail_msg("%u ids did not come within 5 s", n);
        usleep(200);
    }
}

void canary(struct bed *t)
{
    struct bed_request *r = start(t, 20, 8);
    bed_wait(r, WAIT_MS);
    assert_int_equal(r->end.status, STATUS_OK);
    check_answer(t, r);
}
