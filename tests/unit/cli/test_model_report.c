/* What `sluice model` gathers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/model.h"
#include "stage/model_compute.h"

#define TINY(name) SLUICE_VECTORS "/tiny/" name ".gguf"

static struct model_report *report(const char *path, uint32_t stages, uint32_t slots)
{
    const struct model_options o = {.path = path, .stages = stages, .slots = slots, .kv_block = 32};
    struct model_report *r = calloc(1, sizeof *r);
    struct error err;
    if (model_report_open(&o, r, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    return r;
}

static void end(struct model_report *r)
{
    model_report_close(r);
    free(r);
}

static void a_model_is_told_with_what_each_stage_needs(void **state)
{
    (void)state;
    struct model_report *r = report(TINY("llama-q4_1"), 2, 3);
    assert_int_equal(r->n_refusals, 0);
    assert_int_equal(r->n_tokens, 320);
    assert_int_equal(r->context, 512);
    assert_int_equal(r->split.n_stages, 2);
    assert_true(r->n_types >= 2);
    for (uint32_t i = 0; i < r->n_types; i++)
        assert_string_equal(r->types[i].kernels, strcmp(r->types[i].name, "F32") == 0 ? "as it is" : "int8");
    uint64_t context = 0;
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(r->stages[i].needs.weights > 0 && r->stages[i].needs.buffers > 0);
        assert_int_equal(r->stages[i].needs.slots, 3);
        assert_int_equal(r->stages[i].needs.sampler, i == 1 ? 512 * 4 + 1024 * 8 : 0); /* ids and biases, where it samples */
        context += r->stages[i].kv_context;
    }
    assert_int_equal(context, 3 * 512 * 2 * 2 * 2 * 16); /* layers, positions, K and V, f16, KV heads, head size */
    assert_non_null(strstr(r->chat_template, "its own"));
    end(r);
}

static void the_figures_are_those_that_a_stage_loads(void **state)
{
    (void)state;
    struct model_report *r = report(TINY("llama-q4_1"), 1, 4);
    const struct model_compute_options o = {.model_path = TINY("llama-q4_1"), .kv_fd = -1, .skip_calibration = 1};
    const struct msg_assign a = {.n_stages = 1, .end_layer = 3, .slots = 4, .context = 512, .kv_block = 32, .max_rows = 16,
                                 .kv_type = "f16"};
    struct compute *c;
    struct msg_loaded loaded;
    struct error err;
    if (model_compute_create(&o, &c, &err) != STATUS_OK || c->table->load(c, &a, &loaded, &err) != STATUS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(loaded.weight_bytes, r->stages[0].needs.weights);
    assert_int_equal(loaded.kv_bytes, 4 * r->stages[0].kv_context);
    c->table->destroy(c);
    end(r);
}

static void what_is_refused_is_told_by_name(void **state)
{
    (void)state;
    struct model_report *r = report(TINY("qwen3next-q8_0"), 1, 1);
    assert_int_equal(r->n_refusals, 1);
    assert_non_null(strstr(r->refusals[0], "qwen3next"));
    assert_true(r->gguf && !r->is_model && r->tokenizer);
    end(r);
    r = report("/nonexistent/model.gguf", 1, 1);
    assert_int_equal(r->n_refusals, 1);
    assert_non_null(strstr(r->refusals[0], "/nonexistent/model.gguf"));
    assert_null(r->gguf);
    end(r);
}

static void a_bad_split_or_context_is_the_callers_fault(void **state)
{
    (void)state;
    struct model_report r;
    struct error err;
    struct model_options o = {.path = TINY("llama-f32"), .stages = 9, .slots = 1, .kv_block = 32};
    assert_int_equal(model_report_open(&o, &r, &err), STATUS_CONFIG);
    model_report_close(&r);
    o.stages = 1;
    o.context = 513;
    assert_int_equal(model_report_open(&o, &r, &err), STATUS_CONFIG);
    assert_non_null(strstr(err.message, "512"));
    model_report_close(&r);
}

static char *text_of(const struct model_report *r, void (*print)(const struct model_report *, const struct model_options *, FILE *))
{
    const struct model_options o = {.path = "", .stages = r->split.n_stages, .slots = 3, .kv_block = 32};
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    print(r, &o, f);
    fclose(f);
    return text;
}

static void table_and_json_name_the_same_things(void **state)
{
    (void)state;
    struct model_report *r = report(TINY("llama-q4_1"), 3, 3);
    static const char *const words[] = {"llama", "Q4_1", "int8", "320", "512"};
    char *table = text_of(r, model_report_print), *json = text_of(r, model_report_json);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_non_null(strstr(table, words[i]));
        assert_non_null(strstr(json, words[i]));
    }
    assert_non_null(strstr(table, "2..2"));
    assert_non_null(strstr(json, "\"refused\": []"));
    free(table);
    free(json);
    end(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_told_with_what_each_stage_needs),
        cmocka_unit_test(the_figures_are_those_that_a_stage_loads),
        cmocka_unit_test(what_is_refused_is_told_by_name),
        cmocka_unit_test(a_bad_split_or_context_is_the_callers_fault),
        cmocka_unit_test(table_and_json_name_the_same_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
