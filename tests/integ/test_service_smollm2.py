"""The real model behind every protocol: the official openai client over HTTP, grpcio over gRPC, `sluice chat` on a terminal."""
import math
import os
import re
import subprocess
import sys

from service import BIN, SLACK, Service, run, wait_for

MODEL = os.environ.get("SLUICE_MODEL_SMOLLM2")
if not MODEL:
    print("skip: SLUICE_MODEL_SMOLLM2 names no model")
    sys.exit(77)
try:
    import grpc
    import openai
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as e:
    print(f"skip: {e} (set SLUICE_TEST_PYTHON to an interpreter that has openai, grpc and protobuf)")
    sys.exit(77)

s = None
NAME = "the-model"
CONTEXT = 1024 if SLACK == 1 else 256
SKY = [{"role": "user", "content": "Why is the sky blue?"}]


def client(**more):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="tester", max_retries=0, timeout=60 * SLACK, **more)


def chat(messages=None, max_tokens=24, temperature=0, **fields):
    return client().chat.completions.create(model=NAME, messages=messages or SKY, max_tokens=max_tokens, temperature=temperature,
                                            **fields)


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


# --- openai ----------------------------------------------------------------------------------------------------------------------

def test_a_chat_answer_makes_sense_and_counts_its_tokens():
    a = chat(max_tokens=60)
    text = a.choices[0].message.content
    assert any(w in text.lower() for w in ("light", "sky", "scatter", "blue", "atmosphere")), text
    assert a.usage.completion_tokens == 60 and a.choices[0].finish_reason == "length" or a.choices[0].finish_reason == "stop"
    assert a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens and a.usage.prompt_tokens > 10
    assert a.usage.prompt_tokens_details.cached_tokens == 0
    assert a.model == NAME and a.object == "chat.completion" and a.choices[0].message.role == "assistant"


def test_a_stream_is_the_same_text_in_pieces():
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and set(reasons[:-1]) == {None}
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 5


def test_a_seed_repeats_an_answer_and_another_one_does_not():
    a, b = (chat(temperature=1, seed=7, max_tokens=12).choices[0].message.content for _ in range(2))
    assert a == b
    assert len({chat(temperature=1, seed=n, max_tokens=6).choices[0].message.content for n in range(1, 5)}) > 1
    assert len({chat(temperature=1, max_tokens=8).choices[0].message.content for _ in range(3)}) > 1


def test_a_stop_string_cuts_the_answer():
    text = chat().choices[0].message.content
    stop = text[10:13]
    a = chat(stop=[stop])
    assert a.choices[0].message.content == text[:text.index(stop)] and a.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_models_own_distribution():
    """Greedy takes the best; seeds, temperature, bias and penalties change the choice and not what a token is worth."""
    a = chat(max_tokens=12, logprobs=True, top_logprobs=20).choices[0]
    content = a.logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == a.message.content and len(content) == 12
    for t in content:
        best = t.top_logprobs
        assert t.token == best[0].token and t.logprob == best[0].logprob and len(best) == 20
        assert [x.logprob for x in best] == sorted((x.logprob for x in best), reverse=True)
        assert 0 < sum(math.exp(x.logprob) for x in best) <= 1.000001
    for fields in ({"temperature": 5, "seed": 3}, {"frequency_penalty": 2, "presence_penalty": 2}, {"extra_body": {"repeat_penalty": 9}}):
        b = chat(max_tokens=1, logprobs=True, top_logprobs=20, **fields).choices[0].logprobs.content[0]
        assert [(x.token, x.logprob) for x in b.top_logprobs] == [(x.token, x.logprob) for x in content[0].top_logprobs], fields
    first, second = content[0], content[0].top_logprobs[1]
    chosen = s_post("/tokenize", {"content": first.token})["tokens"]
    assert len(chosen) == 1, first
    c = chat(max_tokens=1, logprobs=True, top_logprobs=2, logit_bias={str(chosen[0]): -100}).choices[0].logprobs.content[0]
    assert c.token == second.token and c.logprob == second.logprob and c.top_logprobs[0].token == first.token
    streamed = [t for x in chat(max_tokens=12, logprobs=True, top_logprobs=20, stream=True) if x.choices[0].logprobs
                for t in x.choices[0].logprobs.content]
    assert streamed == content


def test_characters_of_several_tokens_have_their_bytes():
    c = client()
    text = "🙂 🚀 naïve 中文 🙂"
    ids = s_post("/tokenize", {"content": text})["tokens"]
    bias = {str(i): 30 for i in ids}  # so that the answer is made of these tokens
    a = c.completions.create(model=NAME, prompt=text, max_tokens=12, temperature=1, seed=5, logprobs=1, logit_bias=bias).choices[0]
    got = a.logprobs
    assert len(got.tokens) == len(got.token_logprobs) == len(got.top_logprobs) == len(got.text_offset) == 12
    made = b"".join(re.sub(rb"\\x(..)", lambda m: bytes([int(m[1], 16)]), t.encode()[6:]) if t.startswith("bytes:") else t.encode()
                    for t in got.tokens)
    assert made.decode(errors="replace") == a.text, (got.tokens, a.text)
    assert any(t.startswith("bytes:") for t in got.tokens), got.tokens
    for t, offset in zip(got.tokens, got.text_offset):
        assert t.startswith("bytes:") or a.text[offset:offset + len(t)] == t, (t, offset, a.text)


def test_several_answers_are_those_of_their_seeds():
    alone = [chat(max_tokens=10, temperature=1, seed=40 + i).choices[0].message.content for i in range(3)]
    a = chat(max_tokens=10, temperature=1, seed=40, n=3)
    assert [x.message.content for x in a.choices] == alone and len(set(alone)) > 1
    assert a.usage.completion_tokens == 30 and a.usage.prompt_tokens == chat(max_tokens=1).usage.prompt_tokens
    s.assert_quiet()


def test_penalties_keep_an_answer_from_repeating_itself():
    c = client()

    def ask(**fields):
        text = c.completions.create(model=NAME, prompt=" ".join("1" * 16), max_tokens=16, temperature=0, **fields).choices[0].text
        return text.split().count("1")

    plain = ask()
    assert plain >= 6, plain
    assert ask(frequency_penalty=2, presence_penalty=2) < plain - 3 and ask(extra_body={"repetition_penalty": 3}) < plain - 3


def test_answers_beside_others_are_the_answers_alone():
    questions = [f"Name {n} animals." for n in ("two", "three", "four", "five")]
    alone = [chat([{"role": "user", "content": q}]).choices[0].message.content for q in questions]
    calls = [s.chat(q, model=NAME, max_tokens=24) for q in questions]
    assert [c.finish_up(60).text for c in calls] == alone
    s.assert_quiet()


def test_a_plain_completion_of_text_and_of_ids():
    c = client()
    a = c.completions.create(model=NAME, prompt="The capital of France is", max_tokens=5, temperature=0)
    assert "Paris" in a.choices[0].text, a.choices[0].text
    tokens = s_post("/tokenize", {"content": "The capital of France is"})["tokens"]
    b = c.completions.create(model=NAME, prompt=tokens, max_tokens=5, temperature=0)
    assert b.choices[0].text == a.choices[0].text and b.usage.prompt_tokens == len(tokens)


def s_post(path, body):
    import json
    import urllib.request
    r = urllib.request.Request(f"http://127.0.0.1:{s.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=30 * SLACK) as f:
        return json.loads(f.read())


def test_tokenize_and_template_agree_with_what_a_chat_counts():
    rendered = s_post("/apply-template", {"messages": SKY})["prompt"]
    assert "<|im_start|>user\nWhy is the sky blue?<|im_end|>" in rendered, rendered
    tokens = s_post("/tokenize", {"content": rendered, "parse_special": True})["tokens"]
    assert len(tokens) == chat(max_tokens=1).usage.prompt_tokens
    assert s_post("/detokenize", {"tokens": s_post("/tokenize", {"content": "naïve 中文 🙂"})["tokens"]})["content"] == "naïve 中文 🙂"


def test_models_are_listed_by_their_names():
    models = client().models.list().data
    assert [m.id for m in models] == [NAME, "alias"]
    assert client().models.retrieve("alias").id == "alias"


def test_errors_have_their_types():
    e = raises(openai.NotFoundError, lambda: client().chat.completions.create(model="other", messages=SKY))
    assert e.status_code == 404 and NAME in str(e)
    e = raises(openai.BadRequestError, lambda: chat(max_tokens=0))
    assert e.param == "max_tokens"
    for n in (CONTEXT, CONTEXT + 1):
        e = raises(openai.BadRequestError, lambda: client().completions.create(model=NAME, prompt=[5] * n, max_tokens=1))
        assert e.code == "context_length_exceeded" and f"{n} tokens" in str(e) and f"{CONTEXT} with" in str(e), e
    e = raises(openai.BadRequestError, lambda: client().completions.create(model=NAME, prompt=[49152]))
    assert e.code == "bad_token_id"
    e = raises(openai.APIStatusError, lambda: client().embeddings.create(model=NAME, input="x"))
    assert e.status_code == 501


def test_the_longest_prompt_has_room_for_one_token():
    a = client().completions.create(model=NAME, prompt=[(i * 7) % 4000 + 300 for i in range(CONTEXT - 1)], max_tokens=None, temperature=0)
    assert a.usage.completion_tokens == 1 and a.choices[0].finish_reason == "length"


def test_a_full_queue_is_an_api_status_error_503():
    running = [s.chat("Tell a long story.", model=NAME, max_tokens=900) for _ in range(4)]
    wait_for(lambda: s.status()["requests"]["decoding"] == 4, 10, "all slots are busy")
    queued = [s.chat("Hi", model=NAME, max_tokens=2) for _ in range(2)]
    wait_for(lambda: s.status()["requests"]["queued"] == 2, 5, "the queue is full")
    e = raises(openai.InternalServerError, chat)
    assert e.status_code == 503 and e.type == "overloaded_error" and 1 <= int(e.response.headers["retry-after"]) <= 60
    for c in running:
        c.leave()
    for c in queued:
        assert c.finish_up(20).status == 200
    s.assert_quiet()


# --- grpcio ----------------------------------------------------------------------------------------------------------------------

class Reflected:
    """Message classes and calls from what the server's reflection says: no generated code."""

    def __init__(self, channel):
        self.channel = channel
        self.pool = descriptor_pool.DescriptorPool()
        self.known = set()
        self.bootstrap()

    # The reflection messages themselves, of which four fields are needed.
    def bootstrap(self):
        f = descriptor_pb2.FileDescriptorProto(name="mini_reflection.proto", package="mini", syntax="proto3")

        def message(name, *fields):
            m = f.message_type.add(name=name)
            for number, label, kind, field, *type_name in fields:
                m.field.add(name=field, number=number, label=label, type=kind, **({"type_name": type_name[0]} if type_name else {}))

        message("Request", (3, 1, 9, "file_by_filename"), (4, 1, 9, "file_containing_symbol"), (7, 1, 9, "list_services"))
        message("Files", (1, 3, 12, "file_descriptor_proto"))
        message("Service", (1, 1, 9, "name"))
        message("Services", (1, 3, 11, "service", ".mini.Service"))
        message("Failure", (1, 1, 5, "error_code"), (2, 1, 9, "error_message"))
        message("Response", (4, 1, 11, "files", ".mini.Files"), (6, 1, 11, "services", ".mini.Services"),
                (7, 1, 11, "failure", ".mini.Failure"))
        mini = descriptor_pool.DescriptorPool()
        mini.Add(f)
        self.request = get_class(mini, "mini.Request")
        self.response = get_class(mini, "mini.Response")

    def ask(self, version="v1", **fields):
        call = self.channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                          request_serializer=self.request.SerializeToString,
                                          response_deserializer=self.response.FromString)
        return next(call(iter([self.request(**fields)]), timeout=10 * SLACK))

    def services(self, version="v1"):
        return sorted(x.name for x in self.ask(version, list_services="*").services.service)

    def load(self, files):
        protos = {f.name: f for f in map(descriptor_pb2.FileDescriptorProto.FromString, files)}
        for f in protos.values():
            self.add(f, protos)

    def add(self, f, protos):
        if f.name in self.known:
            return
        for d in f.dependency:
            if d not in self.known and d not in protos:
                self.load(self.ask(file_by_filename=d).files.file_descriptor_proto)
            elif d in protos:
                self.add(protos[d], protos)
        self.known.add(f.name)
        self.pool.Add(f)

    def service(self, name):
        self.load(self.ask(file_containing_symbol=name).files.file_descriptor_proto)
        return self.pool.FindServiceByName(name)

    def call(self, service, method, /, **fields):
        m = self.service(service).FindMethodByName(method)
        request, response = get_class(self.pool, m.input_type.full_name), get_class(self.pool, m.output_type.full_name)
        kind = self.channel.unary_stream if method in ("Generate", "Watch") else self.channel.unary_unary
        stub = kind(f"/{service}/{method}", request_serializer=request.SerializeToString, response_deserializer=response.FromString)
        return stub(request(**fields), timeout=60 * SLACK)


def get_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def reflected():
    channel = grpc.insecure_channel(f"127.0.0.1:{s.grpc_port}")
    return channel, Reflected(channel)


def test_reflection_lists_every_service_in_both_versions():
    channel, r = reflected()
    with channel:
        for version in ("v1", "v1alpha"):
            got = r.services(version)
            assert {"sluice.v1.Inference", "sluice.v1.Stages", "sluice.v1.Admin", "grpc.health.v1.Health"} <= set(got), got
        assert r.ask(file_containing_symbol="no.such.Thing").failure.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_generate_over_grpc_is_the_answer_over_http():
    channel, r = reflected()
    with channel:
        prompt = "The capital of France is"
        events = list(r.call("sluice.v1.Inference", "Generate", text=prompt, max_tokens=8,
                             sampler={"temperature": 0, "top_p": 1}))
        kinds = [e.WhichOneof("event") or e.WhichOneof(e.DESCRIPTOR.oneofs[0].name) for e in events]
        assert kinds[0] == "accepted" and kinds[-1] == "done" and kinds.count("accepted") == kinds.count("done") == 1, kinds
        text = "".join(e.text.text for e in events)
        over_http = client().completions.create(model=NAME, prompt=prompt, max_tokens=8, temperature=0)
        assert text == over_http.choices[0].text
        assert len([i for e in events for i in e.text.ids]) == 8
        accepted = events[0].accepted
        assert accepted.model == NAME and list(accepted.prompt_ids) == s_post("/tokenize", {"content": prompt})["tokens"]


def test_a_bad_request_over_grpc_has_its_code_and_details():
    channel, r = reflected()
    with channel:
        e = raises(grpc.RpcError, lambda: list(r.call("sluice.v1.Inference", "Generate", ids={"ids": [49152]}, max_tokens=1)))
        assert e.code() == grpc.StatusCode.INVALID_ARGUMENT and "49152" in e.details(), e
        assert any(k == "sluice-error-bin" for k, _ in e.trailing_metadata())


def test_a_cancelled_grpc_call_frees_its_slot():
    channel, r = reflected()
    with channel:
        call = r.call("sluice.v1.Inference", "Generate", text="Once upon a time", max_tokens=900,
                      sampler={"temperature": 0, "top_p": 1}, ignore_eos=True)
        for e in call:
            if e.text.text:
                break
        call.cancel()
        wait_for(lambda: not s.quiet_problem(), 1, "its slot is free")


def test_health_over_grpc_answers_and_watches():
    channel, r = reflected()
    with channel:
        assert r.call("grpc.health.v1.Health", "Check").status == 1  # SERVING
        assert r.call("grpc.health.v1.Health", "Check", service="sluice.v1.Inference").status == 1
        e = raises(grpc.RpcError, lambda: r.call("grpc.health.v1.Health", "Check", service="no.such"))
        assert e.code() == grpc.StatusCode.NOT_FOUND
        watch = r.call("grpc.health.v1.Health", "Watch")
        assert next(watch).status == 1
        s.kill(1)  # a stage
        seen = [next(watch).status]
        while seen[-1] != 1:
            seen.append(next(watch).status)
        assert seen == [2, 1], seen  # NOT_SERVING, SERVING
        watch.cancel()
    s.wait_ready(10 * SLACK)
    chat(max_tokens=2)
    s.assert_quiet(restarts=1)


# --- the command line ------------------------------------------------------------------------------------------------------------

def test_sluice_chat_streams_an_answer_and_keeps_a_conversation():
    cli = [os.path.join(BIN, "sluice")]
    url = ["--url", f"http://127.0.0.1:{s.port}"]
    r = subprocess.run([*cli, "chat", *url, "--max-tokens", "20", "--temperature", "0", "Why is the sky blue?"], capture_output=True,
                       timeout=60 * SLACK)
    want = chat(max_tokens=20).choices[0].message.content
    assert r.returncode == 0 and r.stdout.decode().strip() == want.strip(), (r, want)
    r = subprocess.run([*cli, "status", *url], capture_output=True, timeout=20 * SLACK)
    assert r.returncode == 0 and NAME in r.stdout.decode() and "stage" in r.stdout.decode(), r
    assert "ready, epoch" in r.stdout.decode() and "NOT READY" not in r.stdout.decode(), r
    r = subprocess.run([*cli, "chat", *url, "--max-tokens", "12", "--temperature", "0"], input=b"Hello\nAnd again\n", capture_output=True,
                       timeout=60 * SLACK)
    assert r.returncode == 0 and len(r.stdout) > 20, r


def test_killing_a_stage_of_the_real_model_is_a_pause():
    ask = "Tell a very long story about the sea."
    want = s.chat(ask, model=NAME, max_tokens=300).finish_up(60 * SLACK)
    restarts = sum(x["restarts"] for x in s.status()["stages"])
    running = s.chat(ask, model=NAME, max_tokens=300)
    running.wait_tokens(10)
    s.kill(0)
    running.finish_up(60 * SLACK)
    assert running.text == want.text and running.finish == want.finish and not running.error, (running.describe(), want.describe())
    s.assert_quiet(restarts=restarts + 1)


if __name__ == "__main__":
    with Service(stages=2, slots=4, model=MODEL, mpi=True,
                 flags=["--model-name", f"{NAME},alias", "--queue-requests", "2", "--threads", "1", "--context", str(CONTEXT)]) as s:
        sys.exit(run(sys.modules[__name__]))
