#!/usr/bin/env python3
"""Writes seeds of the fuzz targets stage_wire, grpc_messages, request and rpc_calls: messages at and past their bounds. Numbers of fields are those of
rpc/proto. usage: make_wire_seeds.py corpus"""
import struct
import sys
from pathlib import Path

FROM, TO, FROM_FULL, TO_FULL = 0, 1, 254, 255
REQUEST, EVENT, MODEL, STATUS, TRAILERS = 0, 1, 2, 3, 248
HELLO, LOADED, ACK, READY, RESULT, TIMINGS, HEARTBEAT, FAILED = range(1, 9)
ASSIGN, EPOCH, LINKS, PLAN, EXIT = range(1, 6)
NAN = float("nan")


def varint(v):
    out = b""
    v &= 2**64 - 1
    while v > 127:
        out += bytes([v & 127 | 128])
        v >>= 7
    return out + bytes([v])


def u(number, v):
    return varint(number << 3) + varint(v)


def f32(number, v):
    return varint(number << 3 | 5) + struct.pack("<f", v)


def f64(number, v):
    return varint(number << 3 | 1) + struct.pack("<d", v)


def sub(number, *parts):
    data = b"".join(p if isinstance(p, bytes) else p.encode() for p in parts)
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed(number, values):
    return sub(number, *[varint(v) for v in values])


def floats(number, values):
    return sub(number, *[struct.pack("<f", v) for v in values])


def op(*fields):
    return sub(8, *fields)


def open_(*fields, sampler=None):
    return op(u(1, 1), u(2, 5), *fields, *([] if sampler is None else [sub(6, sampler)]))


def run(seq=5, n=1, source=1, ids=(7,), *more):
    return sub(9, u(1, seq), u(2, n), u(4, source), packed(6, ids), *more)


def plan(*parts, n_rows=0, tick=3):
    return bytes([TO]) + sub(PLAN, u(3, tick), u(6, n_rows), *parts)


def result(*runs, status=0):
    return bytes([FROM]) + sub(RESULT, u(3, 4), u(4, 2 * status), *[sub(8, r) for r in runs])


def stage_wire():
    bad_samplers = {"temperature": f32(1, NAN), "top_p": f32(2, 1.5), "min_p": f32(3, -1), "typical_p": f32(9, 2),
                    "repeat_penalty": f32(6, 0.001), "presence_penalty": f32(7, 3), "frequency_penalty": f32(8, -3),
                    "n_top": u(12, 22), "bias": packed(13, [1]) + floats(14, [101]), "bias_nan": packed(13, [1]) + floats(14, [NAN]),
                    "biases_uneven": packed(13, [1, 2]) + floats(14, [1]), "biases": packed(13, [1] * 1025) + floats(14, [1] * 1025)}
    for name, s in bad_samplers.items():
        yield "plan_bad_" + name, plan(open_(sampler=s))
    yield "plan_biases", plan(open_(u(4, 9), packed(5, [1]), packed(7, range(4)),
                                    sampler=packed(13, [1, 2]) + floats(14, [1, -100]) + f32(6, 1.1) + u(10, 4)))
    yield "plan_most_biases", plan(open_(sampler=packed(13, [1] * 512) + floats(14, [1] * 512)))
    yield "plan_ops_64", plan(*[op(u(1, 4), u(2, 5))] * 64)
    yield "plan_ops_65", plan(*[op(u(1, 4), u(2, 5))] * 65)
    yield "plan_runs_64", plan(*[run()] * 64, n_rows=64)
    yield "plan_runs_65", plan(*[run()] * 65, n_rows=65)
    yield "plan_words_1024", plan(op(u(1, 2), u(2, 5), packed(5, [1] * 1024)))
    yield "plan_words_1025", plan(op(u(1, 2), u(2, 5), packed(5, [1] * 1025)))
    yield "plan_words_of_two", plan(*[op(u(1, 2), u(2, 5), packed(5, [1] * 600))] * 2)
    yield "plan_words_of_runs", plan(*[run(5, 600, 1, [1] * 600)] * 2, n_rows=1200)
    yield "plan_window", plan(op(u(1, 2), u(2, 5), packed(5, [1, 2, 3]), u(8, 2)))
    yield "plan_window_of_more", plan(op(u(1, 2), u(2, 5), packed(5, [1]), u(8, 2)))
    yield "plan_kind", plan(op(u(1, 5), u(2, 5)))
    yield "plan_ids_of_append", plan(op(u(1, 2), u(2, 5), packed(7, [1])))
    yield "plan_ids_missing", plan(open_(u(4, 9), sampler=f32(6, 1.1)))
    yield "plan_rows_zero", plan(run(5, 0, 1, ()))
    yield "plan_rows_unlike_ids", plan(run(5, 2, 1, (7,)), n_rows=2)
    yield "plan_rows_sum", plan(run(), n_rows=2)
    yield "plan_source", plan(run(5, 1, 3, ()), n_rows=1)
    yield "plan_sample", plan(run(5, 1, 1, (7,), u(5, 2)), n_rows=1)
    yield "plan_from_tick", plan(run(5, 1, 2, (), u(7, 2)), n_rows=1)
    yield "plan_from_this_tick", plan(run(5, 1, 2, (), u(7, 3)), n_rows=1)
    yield "plan_last_position", plan(run(5, 1, 1, (7,), u(3, 2**32 - 1)), n_rows=1)
    yield "plan_no_room", bytes([TO_FULL]) + sub(PLAN, u(3, 3))
    yield "result_no_room", bytes([FROM_FULL]) + sub(RESULT, u(3, 3))
    yield "result_64", result(*[u(1, 5)] * 64)
    yield "result_65", result(*[u(1, 5)] * 65)
    yield "result_failed_with_runs", result(u(1, 5), status=5)
    yield "result_id", result(u(1, 5) + u(3, 3))
    yield "result_seq_zero", result(u(2, 5))
    yield "result_most_alternatives", result(u(1, 5) + f32(5, -1) + packed(6, range(20)) + floats(7, [-2] * 20))
    yield "result_alternatives_21", result(u(1, 5) + f32(5, -1) + packed(6, range(21)) + floats(7, [-2] * 21))
    yield "result_alternatives_alone", result(u(1, 5) + packed(6, [1]) + floats(7, [-2]))
    yield "timings_8", bytes([FROM]) + sub(TIMINGS, *[sub(3, u(1, 5))] * 8)
    yield "timings_9", bytes([FROM]) + sub(TIMINGS, *[sub(3, u(1, 5))] * 9)
    yield "loaded_costs", bytes([FROM]) + sub(LOADED, *[packed(i, range(16)) for i in (4, 5, 6)])
    yield "loaded_costs_many", bytes([FROM]) + sub(LOADED, *[packed(i, range(65)) for i in (4, 5, 6)])
    yield "loaded_costs_uneven", bytes([FROM]) + sub(LOADED, packed(4, [1, 2]), packed(5, [1]), packed(6, [1, 2]))
    yield "loaded_attention_nan", bytes([FROM]) + sub(LOADED, f64(7, NAN))
    yield "loaded_attention_negative", bytes([FROM]) + sub(LOADED, f64(7, -1))
    yield "hello_hash_short", bytes([FROM]) + sub(HELLO, sub(11, bytes(31)))
    yield "hello_names_long", bytes([FROM]) + sub(HELLO, sub(4, "h" * 300), sub(11, bytes(32)), sub(13, sub(1, "\u00e9" * 100)))
    yield "links_key_short", bytes([TO]) + sub(LINKS, sub(4, bytes(31)))
    yield "failed_status", bytes([FROM]) + sub(FAILED, u(4, 99999), sub(5, "\u00e9" * 200), u(6, 1))
    yield "from_nothing", bytes([FROM])
    yield "to_nothing", bytes([TO])


def request(*fields, prompt=sub(3, "hello")):
    return bytes([REQUEST]) + prompt + b"".join(fields)


def resume(token=b"t" * 40, *fields, attempt=1, ids=(1, 2)):
    return request(u(2, attempt), sub(6, u(5, 42)), sub(15, sub(1, token), packed(2, ids), *fields), prompt=sub(4, packed(1, [7, 8])))


def usage(*fields):
    return sub(3, *fields)


def trailers(code, message, *detail):
    return bytes([TRAILERS, code, len(message)]) + message + b"".join(detail)


def grpc_messages():
    yield "id_128", request(sub(1, "i" * 128))
    yield "id_129", request(sub(1, "i" * 129))
    yield "id_space", request(sub(1, "a b"))
    yield "client_70", request(sub(12, "c" * 70))
    yield "client_71", request(sub(12, "c" * 71))
    yield "no_prompt", request(prompt=b"")
    yield "text_not_utf8", request(prompt=sub(3, b"a\xff"))
    yield "chat_not_utf8", request(prompt=sub(5, b"{\xc3}"))
    yield "stops_16", request(*[sub(8, "s")] * 16)
    yield "stops_17", request(*[sub(8, "s")] * 17)
    yield "stop_512", request(sub(8, "s" * 512))
    yield "stop_513", request(sub(8, "s" * 513))
    yield "stop_empty", request(sub(8, ""))
    yield "stop_not_utf8", request(sub(8, b"\xe2\x82"))
    yield "max_tokens_below", request(u(7, -2))
    yield "max_tokens_most", request(u(7, 2**63 - 1))
    yield "priority", request(u(10, 2))
    yield "deadline", request(u(11, 2**64 - 1))
    yield "biases_1024", request(sub(6, packed(13, range(1024)), floats(14, [1] * 1024)))
    yield "biases_1025", request(sub(6, packed(13, range(1025)), floats(14, [1] * 1025)))
    yield "biases_uneven", request(sub(6, packed(13, [1, 2]), floats(14, [1])))
    yield "bias_nan", request(sub(6, packed(13, [1]), floats(14, [NAN])))
    yield "sampler_least_repeat", request(sub(6, f32(6, 0.01)))
    yield "sampler_top_logprobs", request(sub(6, u(12, 22)))
    yield "sibling_128", request(sub(16, b"t" * 128))
    yield "sibling_129", request(sub(16, b"t" * 129))
    yield "resume_128", resume(b"t" * 128)
    yield "resume_129", resume(b"t" * 129)
    yield "resume_empty", resume(b"")
    yield "resume_first_attempt", resume(attempt=0)
    yield "resume_usage", resume(b"t", usage(u(1, 3), f64(4, 1.5), f64(5, 2), f64(6, 3)))
    yield "resume_usage_nan", resume(b"t", usage(f64(4, NAN)))
    yield "resume_usage_negative", resume(b"t", usage(f64(6, -1)))
    yield "resume_text", request(u(2, 1), sub(6, u(5, 42)), sub(15, sub(1, b"t")))
    yield "event_logprobs_uneven", bytes([EVENT]) + sub(3, sub(1, "ab"), packed(2, [1, 2]), sub(4, u(1, 1)))
    yield "event_alternatives_21", bytes([EVENT]) + sub(3, packed(2, [1]), sub(4, u(1, 1), packed(3, range(21)), floats(4, [-1] * 21)))
    yield "event_done_kind", bytes([EVENT]) + sub(4, u(1, 9))
    yield "model_names_17", bytes([MODEL]) + b"".join([sub(1, "m")] * 17)
    yield "trailers_ok", trailers(0, b"")
    for code in range(1, 17):
        yield f"trailers_code_{code}", trailers(code, b"a foreign server")
    yield "trailers_large", trailers(8, b"Received message larger than max (5 vs. 4)")
    yield "trailers_detail", trailers(3, b"m", u(1, -3 & 0xFFFFFFFF), sub(3, "why"), sub(4, "prompt"), sub(5, "code"), u(6, 7))
    yield "trailers_detail_ok", trailers(3, b"m", u(1, 0), sub(3, "why"))
    yield "trailers_detail_status", trailers(13, b"m", u(1, 12345), sub(3, "\u00e9" * 300), u(6, 2**32 - 1))
    yield "trailers_detail_long", trailers(13, b"m", sub(3, "x" * 2048))
    yield "trailers_detail_broken", trailers(14, b"m\xff", b"\x1a\xff")


def requests():
    """Behind a byte for the size of the context: 16 and 4 times that."""
    ids = lambda *values: sub(4, packed(1, values))
    token = bytes([1]) + bytes(range(32)) + b"cpu"
    with_context = lambda k, data: bytes([k]) + data[1:]
    yield "text", with_context(20, request(u(7, 5), sub(8, "lo"), sub(8, "\u20ac")))
    yield "text_empty", with_context(20, request(prompt=sub(3, "")))
    yield "text_of_context", with_context(0, request(prompt=sub(3, "a" * 15)))
    yield "text_over_context", with_context(0, request(prompt=sub(3, "a" * 16)))
    yield "text_special", with_context(20, request(prompt=sub(3, "<s>hell</s>")))
    yield "chat", with_context(20, request(prompt=sub(5, "{}")))
    yield "ids", with_context(20, request(sub(6, u(5, 1), f32(1, 0.5)), prompt=ids(1, 2, 259)))
    yield "ids_none", with_context(20, request(prompt=ids()))
    yield "id_outside", with_context(20, request(prompt=ids(1, 260)))
    yield "max_tokens_0", with_context(20, request(u(7, 0)))
    yield "bias", with_context(20, request(sub(6, packed(13, [1, 259]), floats(14, [-100, 100]))))
    yield "bias_outside", with_context(20, request(sub(6, packed(13, [260]), floats(14, [1]))))
    yield "penalties", with_context(255, request(sub(6, f32(6, 1.5), f32(7, 2), f32(8, -2), u(10, 7), u(11, 9999))))
    yield "logprobs", with_context(20, request(sub(6, u(12, 21)), u(7, 3)))
    yield "sibling", with_context(20, request(sub(16, token)))
    yield "sibling_no_token", with_context(20, request(sub(16, b"\2" + bytes(40))))
    yield "resume_no_token", with_context(20, resume(b"t" * 40))
    yield "resume", with_context(20, resume(token, ids=(258, 259)))
    yield "resume_nothing_yet", with_context(20, resume(token, ids=()))
    yield "resume_ended", with_context(20, resume(token, ids=(258, 257)))
    yield "resume_past_its_end", with_context(20, resume(token, ids=(257, 258)))
    yield "resume_ignores_its_end", with_context(20, resume(token, u(9, 0), ids=(257, 258)) + u(9, 1))
    yield "resume_id_outside", with_context(20, resume(token, ids=(260,)))
    yield "resume_full", with_context(20, resume(token, ids=[104] * 64))
    yield "resume_too_many", with_context(20, resume(token, ids=[104] * 65))
    yield "resume_stopped", with_context(20, resume(token, ids=(258, 259)) + sub(8, "ell"))
    yield "resume_past_its_stop", with_context(20, resume(token, ids=(258, 259, 1)) + sub(8, "ell"))


CHECK, WATCH, REFLECT_V1ALPHA, REFLECT, TOKENIZE, DETOKENIZE, APPLY_TEMPLATE, GET_MODEL, GET_PIECES, GET_STATUS, WATCH_STATUS, GET_METRICS, \
    DRAIN, UNDRAIN = range(14)


def call(method, *messages, trusted=1, gateway="host 17"):
    head = bytes([method, trusted, len(gateway)]) + gateway.encode()
    return head + b"".join(struct.pack("<H", len(m)) + m for m in messages)


def rpc_calls():
    yield "check", call(CHECK, b"")
    yield "check_service", call(CHECK, sub(1, "sluice.v1.Inference"))
    yield "check_unknown", call(CHECK, sub(1, "sluice.v1.Inferenc"))
    yield "check_nothing", call(CHECK)
    yield "check_broken", call(CHECK, b"\x0a\xff")
    yield "watch", call(WATCH, b"", b"")
    yield "watch_unknown", call(WATCH, sub(1, "x"))
    yield "list_services", call(REFLECT_V1ALPHA, sub(7, ""), sub(1, "host") + sub(7, "*"))
    for i, name in enumerate(("rpc/proto/types.proto", "rpc/proto/stage.proto", "types.proto", "")):
        yield f"file_{i}", call(REFLECT, sub(3, name))
    for i, name in enumerate(("sluice.v1.Inference", "sluice.v1.Inference.Generate", "sluice.v1.GenerateRequest.text",
                              "sluice.v1.Priority.PRIORITY_BATCH", "sluice.v1.OpKind", "grpc.health.v1.HealthCheckResponse.ServingStatus",
                              "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING", "grpc.reflection.v1alpha.ServerReflection",
                              "sluice.v1", "sluice.v1.", "sluice", "", ".", "sluice.v1.Nothing", "sluice.v1.Inference.", "sluice.v1.Inference.No",
                              "sluice.v1.GenerateRequest.text.more")):
        yield f"symbol_{i}", call(REFLECT, sub(4, name))
    yield "symbols", call(REFLECT, *[sub(4, "sluice.v1.Sampler")] * 3)
    yield "extension", call(REFLECT, sub(5, sub(1, "sluice.v1.Sampler"), u(2, 7)))
    yield "extensions", call(REFLECT, sub(6, "sluice.v1.Sampler"), sub(6, "sluice.v1.None"))
    yield "reflect_nothing", call(REFLECT, b"")
    yield "tokenize", call(TOKENIZE, sub(1, "hello") + u(2, 1) + u(3, 1))
    yield "tokenize_not_utf8", call(TOKENIZE, sub(1, b"\xed\xa0\x80"))
    yield "tokenize_nothing", call(TOKENIZE)
    yield "detokenize", call(DETOKENIZE, packed(1, [1, 2, 2**32 - 1]) + u(2, 1))
    yield "apply_template", call(APPLY_TEMPLATE, sub(1, "{}"))
    yield "apply_template_not_utf8", call(APPLY_TEMPLATE, sub(1, b"{\xff"))
    yield "get_model", call(GET_MODEL, b"")
    yield "get_pieces", call(GET_PIECES, b"", b"")
    yield "get_status", call(GET_STATUS, b"")
    yield "get_status_untrusted", call(GET_STATUS, b"", trusted=0)
    yield "get_status_no_pid", call(GET_STATUS, b"", gateway="host")
    yield "get_status_long_host", call(GET_STATUS, b"", gateway="h" * 100 + " 1")
    yield "get_status_minus", call(GET_STATUS, b"", gateway=" h\t -1")
    yield "watch_status", call(WATCH_STATUS, u(1, 5))
    yield "watch_status_slow", call(WATCH_STATUS, u(1, 2**32 - 1))
    yield "metrics", call(GET_METRICS, b"")
    yield "metrics_vllm", call(GET_METRICS, sub(1, "vllm"))
    yield "metrics_other", call(GET_METRICS, sub(1, b"\xffllm" * 20))
    yield "drain", call(DRAIN, b"")
    yield "undrain", call(UNDRAIN, b"")


def main(corpus):
    for name, seeds in {"stage_wire": stage_wire(), "grpc_messages": grpc_messages(), "request": requests(),
                        "rpc_calls": rpc_calls()}.items():
        (corpus / name).mkdir(exist_ok=True)
        for seed, data in seeds:
            (corpus / name / seed).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
