/* What needs no network: packing, hostile bytes, text fields. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "coordinator/request.h"
#include "rpc/grpc/inference_wire.h"
#include "rpc/grpc/message.h"
#include "rpc/grpc/stage_api.h"

static void wire_cut_messages_are_refused(void **state)
{
    struct from_stage m = {.kind = FROM_STAGE_HELLO}, got;
    struct error err;
    uint8_t *data;
    size_t len, whole = 0;
    (void)state;
    strcpy(m.hello.host, "n0");
    strcpy(m.hello.build, "abc");
    assert_int_equal(stage_wire_pack_from_stage(&m, &data, &len), STATUS_OK);
    for (size_t n = 0; n < len; n++)
        whole += stage_wire_unpack_from_stage(data, n, NULL, &got, &err) == STATUS_OK;
    assert_int_equal(whole, 0);
    assert_int_equal(stage_wire_unpack_from_stage(data, len, NULL, &got, &err), STATUS_OK);
    free(data);
}

static void wire_key_and_hash_have_their_length(void **state)
{
    /* ToStage{links{key: 1 byte}}, FromStage{hello{}} */
    static const uint8_t links[] = {0x1a, 0x03, 0x22, 0x01, 0x00}, hello[] = {0x0a, 0x00};
    struct to_stage to;
    struct from_stage from;
    struct error err;
    (void)state;
    assert_int_equal(stage_wire_unpack_to_stage(links, sizeof links, NULL, &to, &err), STATUS_PROTOCOL);
    assert_int_equal(stage_wire_unpack_from_stage(hello, sizeof hello, NULL, &from, &err), STATUS_PROTOCOL);
    assert_int_equal(stage_wire_unpack_to_stage(NULL, 0, NULL, &to, &err), STATUS_PROTOCOL);
}

/* Two bytes a run on the wire are over a hundred in memory: the arena's bound refuses, nothing is exhausted. */
static void wire_message_of_many_tiny_parts_is_bounded(void **state)
{
    size_t n = (size_t)8 << 20;
    uint8_t *data = malloc(n + 16), *p = data;
    struct result *r;
    struct from_stage got;
    struct error err;
    (void)state;
    result_create(16, &r);
    *p++ = 0x2a; /* result */
    size_t len = n;
    while (len > 127) {
        *p++ = (uint8_t)(len | 128);
        len >>= 7;
    }
    *p++ = (uint8_t)len;
    for (size_t i = 0; i < n; i += 2) {
        p[i] = 0x42; /* runs, empty */
        p[i + 1] = 0;
    }
    int64_t start = clock_now_ns();
    assert_int_equal(stage_wire_unpack_from_stage(data, (size_t)(p - data) + n, r, &got, &err), STATUS_PROTOCOL);
    assert_true(clock_now_ns() - start < 5 * NS_PER_S);
    result_destroy(r);
    free(data);
}

static void wire_ids_that_do_not_match_the_rows_are_refused(void **state)
{
    /* ToStage{plan{n_rows 2, runs{seq 1, n 2, source IDS, ids [5]}}} */
    static const uint8_t one_id[] = {0x22, 0x0d, 0x30, 2, 0x4a, 0x09, 0x08, 1, 0x10, 2, 0x20, 1, 0x32, 1, 5};
    struct to_stage to;
    struct plan *p;
    struct error err;
    (void)state;
    plan_create(2, 2, 8, &p);
    assert_int_equal(stage_wire_unpack_to_stage(one_id, sizeof one_id, p, &to, &err), STATUS_PROTOCOL);
    assert_non_null(strstr(err.message, "ids"));
    plan_destroy(p);
}

static void wire_plan_larger_than_its_room_is_refused(void **state)
{
    struct plan *big, *small;
    struct to_stage m = {.kind = TO_STAGE_PLAN}, got;
    uint32_t ids[100] = {0};
    struct error err;
    uint8_t *data;
    size_t len;
    (void)state;
    plan_create(4, 200, 200, &big);
    plan_create(4, 4, 99, &small);
    struct plan_run r = {.seq = 1, .n = 100, .source = SOURCE_IDS};
    plan_add_run(big, &r, ids);
    m.plan = big;
    assert_int_equal(stage_wire_pack_to_stage(&m, &data, &len), STATUS_OK);
    assert_int_equal(stage_wire_unpack_to_stage(data, len, small, &got, &err), STATUS_PROTOCOL);
    assert_int_equal(stage_wire_unpack_to_stage(data, len, big, &got, &err), STATUS_OK);
    free(data);
    plan_destroy(big);
    plan_destroy(small);
}

static void wire_texts_end_at_whole_characters(void **state)
{
    char out[8];
    (void)state;
    assert_int_equal(utf8_valid_len("ab\xe2\x82", 4), 2);
    assert_int_equal(utf8_valid_len("\xe2\x82\xac", 3), 3);
    assert_int_equal(utf8_valid_len("\xed\xa0\x80", 3), 0); /* a surrogate */
    assert_int_equal(utf8_valid_len("\xc1\x81", 2), 0);     /* overlong */
    assert_int_equal(utf8_valid_len("\xf4\x90\x80\x80", 4), 0);
    assert_int_equal(utf8_valid_len("\xf0\x9f\x98\x80", 4), 4);
    field_pb(out, sizeof out, (ProtobufCBinaryData){.len = 20, .data = (uint8_t *)(uintptr_t) "0123456789abcdefghij"});
    assert_string_equal(out, "0123456");
    field_pb(out, sizeof out, (ProtobufCBinaryData){.len = 5, .data = (uint8_t *)(uintptr_t) "ab\0cd"});
    assert_string_equal(out, "ab");
    field_pb(out, sizeof out, (ProtobufCBinaryData){0, NULL});
    assert_string_equal(out, "");
}

/* What a tick costs in packing and unpacking: printed, and far from a tick's time. */
/* What a call of Generate sends, and what it is taken for. */
static enum status repack(const struct generate_request *r, struct arena *a, struct generate_request *out, struct error *err)
{
    grpc_byte_buffer *b;
    grpc_byte_buffer_reader reader;
    assert_int_equal(inference_wire_pack_request(r, &b, err), STATUS_OK);
    assert_true(grpc_byte_buffer_reader_init(&reader, b));
    grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
    enum status st = inference_wire_unpack_request(GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s), a, out, err);
    grpc_slice_unref(s);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(b);
    return st;
}

static void wire_resumption_wants_ids_a_seed_a_later_attempt_and_a_bounded_token(void **state)
{
    static const uint32_t ids[] = {5, 6, 7};
    static char token[MAX_RESUME_TOKEN + 1];
    const struct generate_request good = {.prompt = PROMPT_IDS, .ids = ids, .n_ids = 2, .sampler = {.top_p = 1}, .has_seed = 1,
                                          .max_tokens = -1, .attempt = 1,
                                          .resume = {.token = {token, MAX_RESUME_TOKEN}, .ids = ids, .n_ids = 3,
                                                     .usage = {.cached_tokens = 1, .queue_ms = 2, .prompt_ms = 3, .decode_ms = 4}}};
    struct generate_request r = good, got;
    struct arena a;
    struct error err;
    (void)state;
    arena_init(&a, 0);
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    assert_int_equal(got.resume.n_ids, 3);
    assert_int_equal(got.resume.token.len, MAX_RESUME_TOKEN);
    assert_memory_equal(&got.resume.usage, &good.resume.usage, sizeof got.resume.usage);
    r.resume.n_ids = 0; /* nothing had come */
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    for (int i = 0; i < 6; i++) {
        r = good;
        if (i == 0)
            r.resume.token.len++;
        else if (i == 1)
            r.has_seed = 0;
        else if (i == 2)
            r.attempt = 0;
        else if (i == 3)
            r.resume.usage.queue_ms = -1;
        else if (i == 4)
            r.resume.usage.decode_ms = 1e300;
        else {
            r.prompt = PROMPT_TEXT;
            r.text = (struct bytes){"x", 1};
        }
        error_clear(&err);
        assert_int_equal(repack(&r, &a, &got, &err), STATUS_BAD_REQUEST);
        assert_string_equal(err.param, "resume");
    }
    arena_fini(&a);
}

static void wire_sampler_passes_whole_and_each_value_out_of_range_is_named(void **state)
{
    static const struct logit_bias bias[MAX_BIASES + 1] = {{7, -100}, {0, 100}, {300000, 0.5f}};
    const struct generate_request good = {
        .prompt = PROMPT_TEXT, .text = {"x", 1}, .max_tokens = -1, .bias = bias, .n_bias = 3,
        .sampler = {.temperature = 1, .top_p = 1, .repeat_penalty = 1.25f, .presence_penalty = -2, .frequency_penalty = 2,
                    .typical_p = 0.5f, .repeat_last_n = 64, .n_top = 21}};
    struct generate_request r = good, got;
    struct sampler_params want = good.sampler;
    struct arena a;
    struct error err;
    (void)state;
    arena_init(&a, 0);
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    want.n_bias = 3;
    assert_memory_equal(&got.sampler, &want, sizeof want);
    assert_int_equal(got.n_bias, 3);
    assert_memory_equal(got.bias, bias, 3 * sizeof *bias);
    r.sampler.temperature = r.sampler.repeat_penalty = 100; /* both ends of a range are in it */
    r.sampler.min_p = 1;
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    r.sampler.temperature = r.sampler.top_p = 0;
    r.sampler.repeat_penalty = 0.01f;
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    r.n_bias = MAX_BIASES;
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    r.n_bias++;
    grpc_byte_buffer *b;
    assert_int_equal(inference_wire_pack_request(&r, &b, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "logit_bias");
    const struct logit_bias much = {1, 100.5f}, nan = {1, __builtin_nanf("")};
    for (int i = 0; i < 17; i++) {
        const char *param = "logit_bias";
        r = good;
        switch (i) {
        case 0: r.sampler.repeat_penalty = -1, param = "repeat_penalty"; break;
        case 1: r.sampler.repeat_penalty = 101, param = "repeat_penalty"; break;
        case 2: r.sampler.repeat_penalty = __builtin_nanf(""), param = "repeat_penalty"; break;
        case 3: r.sampler.presence_penalty = 2.01f, param = "presence_penalty"; break;
        case 4: r.sampler.presence_penalty = __builtin_inff(), param = "presence_penalty"; break;
        case 5: r.sampler.frequency_penalty = -2.01f, param = "frequency_penalty"; break;
        case 6: r.sampler.frequency_penalty = __builtin_nanf(""), param = "frequency_penalty"; break;
        case 7: r.sampler.typical_p = 1.01f, param = "typical_p"; break;
        case 8: r.sampler.typical_p = -0.01f, param = "typical_p"; break;
        case 9: r.sampler.n_top = 22, param = "top_logprobs"; break;
        case 10: r.sampler.temperature = 100.5f, param = "temperature"; break;
        case 11: r.sampler.temperature = -0.5f, param = "temperature"; break;
        case 12: r.sampler.top_p = 1.5f, param = "top_p"; break;
        case 13: r.sampler.top_p = __builtin_nanf(""), param = "top_p"; break;
        case 14: r.sampler.min_p = __builtin_inff(), param = "min_p"; break;
        case 15: r.bias = &much, r.n_bias = 1; break;
        default: r.bias = &nan, r.n_bias = 1; break;
        }
        error_clear(&err);
        assert_int_equal(repack(&r, &a, &got, &err), STATUS_BAD_REQUEST);
        assert_string_equal(err.param, param);
    }
    arena_fini(&a);
}

/* Cut anywhere, two clients with the same beginning would be one. */
static void wire_a_clients_name_is_whole_or_refused(void **state)
{
    char name[72], kept[sizeof ((struct request *)0)->client];
    struct generate_request r = {.prompt = PROMPT_TEXT, .text = {"a", 1}, .sampler = {.top_p = 1}, .client = {name, 70}}, got;
    struct error err;
    struct arena a;
    (void)state;
    memset(name, 'c', sizeof name);
    arena_init(&a, 0);
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_OK);
    assert_true(got.client.len == 70 && got.client.len < sizeof kept);
    r.client.len = 71;
    assert_int_equal(repack(&r, &a, &got, &err), STATUS_BAD_REQUEST);
    assert_string_equal(err.param, "client");
    arena_fini(&a);
}

/* What Generate's server sends, and what its client takes it for. */
static enum status repack_event(const struct generate_event *e, struct arena *a, struct generate_event *out)
{
    struct error err;
    grpc_byte_buffer_reader reader;
    grpc_byte_buffer *b = inference_wire_pack_event(e);
    assert_true(b && grpc_byte_buffer_reader_init(&reader, b));
    grpc_slice s = grpc_byte_buffer_reader_readall(&reader);
    enum status st = inference_wire_unpack_event(GRPC_SLICE_START_PTR(s), GRPC_SLICE_LENGTH(s), a, out, &err);
    grpc_slice_unref(s);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(b);
    return st;
}

static void wire_text_brings_the_logprobs_of_its_ids_or_none(void **state)
{
    static const uint32_t ids[] = {4, 0};
    static const struct token_logprobs logprobs[] = {
        {.id = 4, .logprob = -0.25f, .n_top = 20, .top_ids = {4, 300000, 0}, .top_logprobs = {-0.25f, -3, -__builtin_inff()}},
        {.id = 0, .logprob = -7}};
    struct generate_event e = {.kind = GENERATE_TEXT, .text = {"ab", 2}, .ids = ids, .n_ids = 2, .logprobs = logprobs, .n_logprobs = 2};
    struct generate_event got;
    struct arena a;
    (void)state;
    arena_init(&a, 0);
    assert_int_equal(repack_event(&e, &a, &got), STATUS_OK);
    assert_int_equal(got.n_logprobs, 2);
    assert_memory_equal(got.logprobs, logprobs, sizeof logprobs);
    e.n_logprobs = 1;
    assert_int_equal(repack_event(&e, &a, &got), STATUS_PROTOCOL);
    e.n_logprobs = 0;
    assert_int_equal(repack_event(&e, &a, &got), STATUS_OK);
    assert_true(got.n_ids == 2 && got.n_logprobs == 0);
    arena_fini(&a);
}

static void wire_open_and_result_bring_what_a_sampler_reads_and_gives(void **state)
{
    static const uint32_t blocks[] = {3}, prefix[] = {5, 300000, 7}, bias_ids[] = {1, 2};
    static const float values[] = {-1.5f, 100};
    uint32_t bits[2];
    struct plan *p, *q;
    struct result *r, *s;
    struct to_stage m = {.kind = TO_STAGE_PLAN}, got;
    struct from_stage f = {.kind = FROM_STAGE_RESULT}, back;
    struct error err;
    uint8_t *data;
    size_t len;
    (void)state;
    memcpy(bits, values, sizeof bits);
    plan_create(1, 1, 8, &p);
    plan_create(1, 1, 8, &q);
    const struct plan_op open = {.kind = OP_OPEN, .seq = 9, .length = 16, .n_blocks = 1, .n_ids = 3,
                                 .sampler = {.top_p = 1, .repeat_penalty = 2, .repeat_last_n = 3, .n_prompt = 20, .n_bias = 2, .n_top = 1}};
    assert_int_equal(plan_add_open(p, &open, blocks, prefix, bias_ids, bits), STATUS_OK);
    m.plan = p;
    assert_int_equal(stage_wire_pack_to_stage(&m, &data, &len), STATUS_OK);
    assert_int_equal(stage_wire_unpack_to_stage(data, len, q, &got, &err), STATUS_OK);
    assert_memory_equal(q->ops, p->ops, sizeof *p->ops);
    assert_int_equal(q->n_words, 8);
    assert_memory_equal(q->words, p->words, 8 * sizeof *p->words);
    free(data);
    result_create(2, &r);
    result_create(2, &s);
    r->n_runs = 2;
    r->runs[0] = (struct result_run){.seq = 9, .n_accepted = 1, .id = 5, .has_logprob = 1, .logprob = -0.5f, .n_top = 2};
    r->runs[1] = (struct result_run){.seq = 10, .n_accepted = 1, .id = 6, .has_logprob = 1, .n_top = 20};
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < r->runs[i].n_top; k++)
            result_tops(r, i)[k] = (struct top_logprob){.id = 100 * i + k, .logprob = -(float)k};
    f.result = r;
    assert_int_equal(stage_wire_pack_from_stage(&f, &data, &len), STATUS_OK);
    assert_int_equal(stage_wire_unpack_from_stage(data, len, s, &back, &err), STATUS_OK);
    assert_memory_equal(s->runs, r->runs, 2 * sizeof *r->runs);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(result_tops(s, i), result_tops(r, i), r->runs[i].n_top * sizeof *r->tops);
    free(data);
    plan_destroy(p);
    plan_destroy(q);
    result_destroy(r);
    result_destroy(s);
}

static void wire_plan_of_64_rows_packs_in_microseconds(void **state)
{
    enum { N = 2000 };
    struct plan *p, *q;
    struct to_stage m = {.kind = TO_STAGE_PLAN}, got;
    struct error err;
    uint8_t *data = NULL;
    size_t len = 0;
    (void)state;
    plan_create(64, 64, 256, &p);
    plan_create(64, 64, 256, &q);
    p->tick = 1000000;
    for (uint32_t i = 0; i < 64; i++) {
        struct plan_run r = {.seq = i + 1, .n = 1, .kv_index = 4000 + i, .source = SOURCE_FROM_TICK, .from_tick = 999997,
                             .sample = SAMPLE_LAST, .table_check = 0x89abcdef};
        plan_add_run(p, &r, NULL);
    }
    m.plan = p;
    int64_t start = clock_now_ns();
    for (int i = 0; i < N; i++) {
        free(data);
        assert_int_equal(stage_wire_pack_to_stage(&m, &data, &len), STATUS_OK);
    }
    int64_t packed = clock_now_ns();
    for (int i = 0; i < N; i++)
        assert_int_equal(stage_wire_unpack_to_stage(data, len, q, &got, &err), STATUS_OK);
    int64_t unpacked = clock_now_ns();
    print_message("[          ] plan of 64 rows: %zu bytes, pack %.1f us, unpack %.1f us\n", len,
                  (double)(packed - start) / N / 1e3, (double)(unpacked - packed) / N / 1e3);
    assert_true(unpacked - start < N * NS_PER_MS);
    free(data);
    plan_destroy(p);
    plan_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wire_cut_messages_are_refused),
        cmocka_unit_test(wire_key_and_hash_have_their_length),
        cmocka_unit_test(wire_message_of_many_tiny_parts_is_bounded),
        cmocka_unit_test(wire_ids_that_do_not_match_the_rows_are_refused),
        cmocka_unit_test(wire_plan_larger_than_its_room_is_refused),
        cmocka_unit_test(wire_texts_end_at_whole_characters),
        cmocka_unit_test(wire_resumption_wants_ids_a_seed_a_later_attempt_and_a_bounded_token),
        cmocka_unit_test(wire_sampler_passes_whole_and_each_value_out_of_range_is_named),
        cmocka_unit_test(wire_a_clients_name_is_whole_or_refused),
        cmocka_unit_test(wire_text_brings_the_logprobs_of_its_ids_or_none),
        cmocka_unit_test(wire_open_and_result_bring_what_a_sampler_reads_and_gives),
        cmocka_unit_test(wire_plan_of_64_rows_packs_in_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
