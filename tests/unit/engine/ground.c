#include "tests/unit/engine/ground.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/base/log.h"

#define MODEL SLUICE_VECTORS "/tiny/llama-f32.gguf"

static enum status create_fake(void *ctx, uint32_t stage, struct compute **out, struct error *err)
{
    const struct ground *g = ctx;
    return fake_compute_create(&(struct fake_options){.stage = stage, .kv_fd = g->kv_fd[stage], .script_path = g->script_path}, out,
                               err);
}

static void new_pool(struct ground *g, uint32_t stage)
{
    if (g->kv_fd[stage] > 0)
        close(g->kv_fd[stage]);
    g->kv_fd[stage] = memfd_create("kv", MFD_CLOEXEC);
    assert_true(g->kv_fd[stage] > 0);
}

uint32_t ground_count_fds(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

void ground_open(struct ground *g, uint32_t n_stages, const char *script_path, const char *const *flags)
{
    memset(g, 0, sizeof *g);
    g->n_stages = n_stages;
    g->script_path = script_path;
    for (uint32_t i = 0; i < n_stages; i++)
        new_pool(g, i);
    const struct engine_bed_options o = {
        .model_path = MODEL, .n_stages = n_stages, .create = create_fake, .ctx = g, .beat_ms = 3, .flags = flags};
    log_set_levels("error", NULL);
    g->b = engine_bed_open(&o);
    engine_bed_wait_ready(g->b);
}

void ground_close(struct ground *g)
{
    engine_bed_close(g->b);
    for (uint32_t i = 0; i < g->n_stages; i++)
        close(g->kv_fd[i]);
}

void ground_restart_stage(struct ground *g, uint32_t stage, int keep)
{
    engine_bed_kill_stage(g->b, stage);
    if (!keep)
        new_pool(g, stage);
    engine_bed_start_stage(g->b, stage);
}

/* --- answers ------------------------------------------------------------------------------------------------------------------ */

struct bed_request *answer_newest(struct answer *a)
{
    return a->attempt[a->n_attempts - 1];
}

static void gather(struct answer *a)
{
    struct bed_request *r = answer_newest(a);
    check_logprobs(r);
    if (!a->root) {
        a->root = r->n_accepted ? r : NULL;
        return;
    }
    CHECK(a->root->n_ids + r->n_ids <= a->n_ids);
    if (a->root->n_ids == 0)
        a->root->first = r->first;
    memcpy(a->root->ids + a->root->n_ids, r->ids, r->n_ids * sizeof *r->ids);
    a->root->n_ids += r->n_ids;
}

void answer_go_on(struct answer *a)
{
    struct bed_request *before = answer_newest(a);
    if (before->end.status == STATUS_OK && before->n_done)
        return;
    CHECK(a->n_attempts < ANSWER_MAX_ATTEMPTS);
    gather(a);
    struct bed_request *r = bed_request_new(a->g->b, before->prompt, before->n_prompt, a->n_ids);
    r->sampler = before->sampler;
    r->attempt = a->n_attempts;
    if (a->root) {
        r->resumes = a->root;
        r->n_resumed = a->root->n_ids;
    }
    a->attempt[a->n_attempts++] = r;
    bed_submit(r);
}

void answer_ask(struct ground *g, struct answer *a, uint32_t n_prompt, uint32_t n_ids)
{
    uint32_t prompt[512];
    CHECK(n_prompt <= ARRAY_LEN(prompt));
    for (uint32_t k = 0; k < n_prompt; k++)
        prompt[k] = below(FAKE_VOCAB);
    *a = (struct answer){.g = g, .n_ids = n_ids};
    struct bed_request *r = bed_request_new(g->b, prompt, n_prompt, n_ids);
    vary_sampler(r);
    a->attempt[a->n_attempts++] = r;
    bed_submit(r);
}

void answer_check(struct answer *a, const char *what)
{
    struct bed_request *r = answer_newest(a);
    int32_t want[BED_MAX_IDS];
    if (r->end.status != STATUS_OK)
        fail_msg("%s: %s: %s", what, status_name(r->end.status), r->end.message);
    gather(a);
    if (a->root->n_ids != a->n_ids)
        fail_msg("%s: %u ids of %u", what, a->root->n_ids, a->n_ids);
    fake_reference(engine_bed_model(a->g->b)->hp.n_layers, &r->sampler, r->prompt, r->n_prompt, want, a->n_ids);
    for (uint32_t i = 0; i < a->n_ids; i++)
        if (a->root->ids[i] != (uint32_t)want[i])
            fail_msg("%s: id %u of %u is %u, not %d", what, i, a->n_ids, a->root->ids[i], want[i]);
    assert_int_equal(r->done.finish, FINISH_LENGTH);
    assert_int_equal(r->done.usage.prompt_tokens, r->n_prompt);
    assert_int_equal(r->done.usage.completion_tokens, a->n_ids);
}

void answer_close(struct answer *a)
{
    for (uint32_t k = 0; k < a->n_attempts; k++)
        bed_request_free(a->attempt[k]);
    a->n_attempts = 0;
}
