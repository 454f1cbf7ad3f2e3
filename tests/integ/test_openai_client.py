"""The official openai client against the gateway: shapes, streams, usage, errors by their types."""
import sys

try:
    import openai
except ImportError:
    print("skip: no openai package (set SLUICE_TEST_PYTHON to an interpreter that has it)")
    sys.exit(77)

import json

from gateway_bed import Bed, run, wait_for

bed = None


def client(**more):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{bed.port}/v1", api_key="k", max_retries=0, **more)


def chat(text, **fields):
    fields.setdefault("model", "fake")
    return client().chat.completions.create(messages=[{"role": "user", "content": text}], **fields)


def test_a_chat_answer_has_text_finish_usage_and_names():
    a = chat("say=Hi_there")
    assert a.choices[0].message.content == "Hi there" and a.choices[0].message.role == "assistant"
    assert a.choices[0].finish_reason == "stop" and a.object == "chat.completion" and a.model == "fake"
    assert a.id.startswith("chatcmpl-") and a.created > 1.6e9 and a.system_fingerprint.startswith("fp_")
    assert a.usage.prompt_tokens == 12 and a.usage.completion_tokens == 2 and a.usage.total_tokens == 14
    assert a.usage.prompt_tokens_details.cached_tokens == 6
    assert set(a.model_extra["timings"]) == {"queue_ms", "prompt_ms", "decode_ms"}


def test_a_chat_stream_has_role_text_and_one_finish():
    chunks = list(chat("count=5", stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "w1 w2 w3 w4 w5"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({c.id for c in chunks}) == 1 and all(c.object == "chat.completion.chunk" for c in chunks)
    assert all(c.usage is None for c in chunks)


def test_include_usage_adds_one_chunk_without_choices():
    chunks = list(chat("count=3 .", stream=True, stream_options={"include_usage": True}))
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 4
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_stop_and_max_tokens_decide_the_finish():
    a = chat("say=one_two_three", stop=["two"])
    assert a.choices[0].message.content == "one " and a.choices[0].finish_reason == "stop"
    a = chat("count=9", max_tokens=4)
    assert a.choices[0].message.content == "w1 w2 w3 w4" and a.choices[0].finish_reason == "length"
    a = chat("count=9", max_completion_tokens=2, stop="zzz")
    assert a.usage.completion_tokens == 2 and a.choices[0].finish_reason == "length"


def test_what_was_asked_arrives_at_the_coordinator():
    a = chat("echo=1", seed=77, temperature=0.5, top_p=0.25, stop=["X", "Y"], max_tokens=10**7,
             extra_body={"top_k": 5, "min_p": 0.125, "ignore_eos": True, "cache_prompt": False, "deadline_ms": 9000,
                         "priority": "batch", "chat_template_kwargs": {"thinking": False}}, reasoning_effort="low")
    told = json.loads(a.choices[0].message.content)
    want = {"seed": 77, "has_seed": True, "temperature": 0.5, "top_p": 0.25, "top_k": 5, "min_p": 0.125, "ignore_eos": True,
            "no_cache": True, "deadline_ms": 9000, "batch": 1, "stop": ["X", "Y"], "max_tokens": 10**7}
    assert {k: told[k] for k in want} == want, told
    assert told["chat"]["thinking"] is False and told["chat"]["reasoning_effort"] == "low"
    assert told["chat"]["add_generation_prompt"] is True and len(told["client"]) == 32


def test_completions_take_text_and_ids():
    c = client()
    a = c.completions.create(model="fake", prompt="say=Plain_text", max_tokens=50)
    assert a.choices[0].text == "Plain text" and a.object == "text_completion" and a.id.startswith("cmpl-")
    a = c.completions.create(model="fake", prompt=[1, 2, 3])
    assert a.choices[0].text == "ids" and a.usage.prompt_tokens == 3
    chunks = list(c.completions.create(model="fake", prompt="count=4", stream=True, stream_options={"include_usage": True}))
    assert "".join(x.choices[0].text for x in chunks if x.choices) == "w1 w2 w3 w4"
    assert chunks[-1].usage.total_tokens == 11


def test_token_ids_come_when_asked_for():
    a = chat("count=3", extra_body={"return_token_ids": True})
    assert a.choices[0].model_extra["token_ids"] == [100, 101, 102] and a.model_extra["prompt_token_ids"] == [7, 8, 9]
    chunks = list(chat("count=3", stream=True, extra_body={"return_token_ids": True}))
    assert chunks[0].model_extra["prompt_token_ids"] == [7, 8, 9]
    assert sum((c.choices[0].model_extra.get("token_ids", []) for c in chunks), []) == [100, 101, 102]


def test_samplers_arrive_at_the_coordinator():
    a = chat("echo=1", frequency_penalty=0.5, presence_penalty=-1.5, logit_bias={"100": 5, "7": -100}, logprobs=True, top_logprobs=3,
             extra_body={"repetition_penalty": 1.25, "repeat_last_n": 64, "typical_p": 0.5})
    told = json.loads(a.choices[0].message.content)
    want = {"frequency_penalty": 0.5, "presence_penalty": -1.5, "repeat_penalty": 1.25, "repeat_last_n": 64, "typical_p": 0.5, "n_top": 4}
    assert {k: told[k] for k in want} == want and sorted(told["bias"]) == [[7, -100], [100, 5]], told


def check_chat_logprobs(content, n, top):
    """Token i of the fake's answers has the id 100 + i, and a piece of one byte."""
    assert len(content) == n
    for i, t in enumerate(content):
        assert t.token == chr(100 + i) and t.bytes == [100 + i] and t.logprob == -(i + 1) / 4
        assert [(x.token, x.bytes, x.logprob) for x in t.top_logprobs] == [(chr(100 + i + k), [100 + i + k], -1 - k) for k in range(top)]


def test_chat_logprobs_whole_and_streamed():
    for top in (None, 0, 5, 20):
        fields = {} if top is None else {"top_logprobs": top}
        a = chat("count=4", logprobs=True, **fields)
        check_chat_logprobs(a.choices[0].logprobs.content, 4, top or 0)
        assert a.choices[0].logprobs.refusal is None
        chunks = list(chat("count=4", logprobs=True, stream=True, **fields))
        check_chat_logprobs([t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content], 4, top or 0)
    assert chat("count=2").choices[0].logprobs is None and chat("count=2", logprobs=False).choices[0].logprobs is None


def test_tokens_that_are_no_whole_text_have_their_bytes():
    a = chat("count=40", logprobs=True, top_logprobs=1).choices[0].logprobs.content
    assert a[28].token == "\\x80" and a[28].bytes == [128] and a[28].top_logprobs[0].token == "\\x80" and a[27].token == "\x7f"
    b = client().completions.create(model="fake", prompt="count=40", logprobs=1).choices[0].logprobs
    assert b.tokens[28] == "bytes:\\x80" and b.tokens[27] == "\x7f" and b.top_logprobs[28] == {"bytes:\\x80": -1.0}


def test_completion_logprobs_whole_and_streamed():
    c = client()
    for n in (0, 2, 5):
        a = c.completions.create(model="fake", prompt="count=4", logprobs=n).choices[0].logprobs
        assert a.tokens == list("defg") and a.token_logprobs == [-0.25, -0.5, -0.75, -1.0] and a.text_offset == [0, 1, 2, 3]
        for i, top in enumerate(a.top_logprobs):
            assert top == {"defghijk"[i + k]: -1.0 - k for k in range(n)} or (n == 0 and top == {"defg"[i]: -(i + 1) / 4})
        chunks = [x.choices[0].logprobs for x in c.completions.create(model="fake", prompt="count=4", logprobs=n, stream=True)]
        chunks = [x for x in chunks if x]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((getattr(x, name) for x in chunks), []) == getattr(a, name), name


def test_several_answers_whole_and_streamed():
    for n in (2, 5):
        a = chat("say=answer_#", n=n, seed=7, logprobs=True, extra_body={"return_token_ids": True})
        assert [x.index for x in a.choices] == list(range(n))
        assert [x.message.content for x in a.choices] == [f"answer {i}" for i in range(n)]
        assert all(x.finish_reason == "stop" and len(x.logprobs.content) == 2 for x in a.choices)
        assert a.usage.prompt_tokens == 12 and a.usage.completion_tokens == 2 * n and a.usage.total_tokens == 12 + 2 * n, a.usage
        chunks = list(chat("say=answer_#", n=n, stream=True, stream_options={"include_usage": True}))
        texts, ends = {}, {}
        for x in (y for c in chunks for y in c.choices):
            assert x.index not in ends, "something follows the end of an answer"
            texts[x.index] = texts.get(x.index, "") + (x.delta.content or "")
            if x.finish_reason:
                ends[x.index] = x.finish_reason
        assert texts == {i: f"answer {i}" for i in range(n)} and ends == {i: "stop" for i in range(n)}
        assert chunks[-1].usage.completion_tokens == 2 * n and chunks[-1].choices == []
        assert sorted(c.choices[0].index for c in chunks if c.choices and c.choices[0].delta.role) == list(range(n))
    b = client().completions.create(model="fake", prompt="say=plain_#", n=3, best_of=3)
    assert [x.text for x in b.choices] == ["plain 0", "plain 1", "plain 2"]
    e = raises(openai.BadRequestError, lambda: client().completions.create(model="fake", prompt="x", n=3, best_of=2))
    assert e.param == "best_of"


def test_each_of_several_answers_has_a_seed_of_its_own():
    a = chat("echo=1", n=3, seed=70)
    assert [json.loads(x.message.content)["seed"] for x in a.choices] == [70, 71, 72]
    b = chat("echo=1", n=2)
    assert all(json.loads(x.message.content)["has_seed"] is False for x in b.choices)


def test_one_answer_that_fails_ends_all():
    before = bed.counts()
    e = raises(openai.InternalServerError, lambda: chat("count=9 failafter=3 only=1 delay=20", n=3))
    assert "stage 1" in e.message and e.body["retryable"] is True
    got = []

    def read():
        for chunk in chat("count=30 failafter=3 only=2 delay=20", n=3, stream=True):
            got.append(chunk)

    e = raises(openai.APIError, read)
    assert e.body["retryable"] is True and all(x.finish_reason is None for c in got for x in c.choices)
    wait_for(lambda: bed.counts()["decoding"] == 0, 3, "the others are cancelled")
    after = bed.counts()
    assert after["failed"] - before["failed"] == 2 and after["cancelled"] - before["cancelled"] >= 2, (before, after)


def test_a_client_that_leaves_cancels_all_its_answers():
    before = bed.counts()["cancelled"]
    stream = chat("count=1000 delay=20", n=3, stream=True)
    for i, _ in enumerate(stream):
        if i > 20:
            break
    stream.close()
    wait_for(lambda: bed.counts()["cancelled"] == before + 3, 3, "all are cancelled")
    assert bed.counts()["decoding"] == 0


def test_models_are_listed_and_found():
    models = list(client().models.list())
    assert [m.id for m in models] == ["fake", "fake-alias"] and models[0].owned_by == "sluice"
    assert client().models.retrieve("fake-alias").created == 1700000000
    raises(openai.NotFoundError, lambda: client().models.retrieve("other"))


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def test_errors_have_the_types_the_client_knows():
    e = raises(openai.NotFoundError, lambda: chat("x", model="other"))
    assert e.code == "model_not_found" and e.param == "model" and "fake-alias" in e.message
    e = raises(openai.BadRequestError, lambda: chat("x", temperature="warm"))
    assert e.param == "temperature" and e.type == "invalid_request_error" and e.body["retryable"] is False
    e = raises(openai.RateLimitError, lambda: chat("fail=-14,9"))
    assert e.response.headers["retry-after"] == "9" and e.type == "rate_limit_error" and e.body["retryable"] is True
    for stream in (False, True):
        e = raises(openai.InternalServerError, lambda: chat("fail=-12,5", stream=stream))
        assert e.status_code == 503 and e.type == "overloaded_error" and e.response.headers["retry-after"] == "5"
    e = raises(openai.InternalServerError, lambda: chat("fail=-43"))
    assert e.status_code == 500 and e.type == "internal_error" and e.body["retryable"] is True
    e = raises(openai.APIStatusError, lambda: chat("x", extra_body={"mirostat": 2}))
    assert e.status_code == 501 and e.param == "mirostat" and e.type == "not_implemented_error"
    e = raises(openai.APIStatusError, lambda: client().embeddings.create(model="fake", input="x"))
    assert e.status_code == 501


def test_a_failure_in_a_stream_is_one_error_event():
    got = []

    def read():
        for chunk in chat("count=9 failafter=3", stream=True):
            got.append(chunk)

    e = raises(openai.APIError, read)
    assert "stage 1" in e.message and e.body["retryable"] is True and e.type == "internal_error"
    assert "".join(c.choices[0].delta.content or "" for c in got) == "w1 w2 w3"
    assert all(c.choices[0].finish_reason is None for c in got)


def test_a_refused_client_is_served_the_next_time():
    raises(openai.InternalServerError, lambda: chat("fail=-12,1"))
    assert chat("say=again").choices[0].message.content == "again"


if __name__ == "__main__":
    with Bed() as bed:
        sys.exit(run(sys.modules[__name__]))
