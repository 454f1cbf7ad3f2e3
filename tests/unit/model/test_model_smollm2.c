/* The real model, where SLUICE_MODEL_SMOLLM2 names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/model/hparams.h"
#include "common/model/split.h"

static const char *path;

static void smollm2_opens_at_once_with_its_hyper_parameters(void **state)
{
    (void)state;
    struct model m;
    struct error err = {0};
    int64_t start = clock_now_ns();
    if (model_open(path, &m, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_true(clock_now_ns() - start < NS_PER_S);
    const struct hparams *hp = &m.hp;
    assert_true(hp->n_layers == 30 && hp->n_embd == 576 && hp->n_heads == 9 && hp->n_kv_heads == 3);
    assert_true(hp->head_dim == 64 && hp->n_rot == 64 && hp->n_ff == 1536 && hp->n_vocab == 49152);
    assert_true(hp->n_context == 8192 && hp->rope_theta == 100000.0f && hp->rms_eps == 1e-5f && hp->tied_head);
    assert_null(model_rope_freqs(&m));
    model_close(&m);
}

static void smollm2_splits_by_work_not_by_layers(void **state)
{
    (void)state;
    struct model m;
    struct split s;
    assert_int_equal(model_open(path, &m, NULL), STATUS_OK);
    assert_int_equal(split_plan(&m, 2, "auto", &s, NULL), STATUS_OK);
    assert_true(s.first_layer[1] > 15 && s.first_layer[1] < 20);
    model_close(&m);
}

int main(void)
{
    path = getenv("SLUICE_MODEL_SMOLLM2");
    if (!path || !*path) {
        printf("skipped: SLUICE_MODEL_SMOLLM2 does not name SmolLM2-135M-Instruct.Q4_1.gguf\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_opens_at_once_with_its_hyper_parameters),
        cmocka_unit_test(smollm2_splits_by_work_not_by_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
