"""The official openai client against the gateway: shapes, streams, usage, errors by their types."""
import sys

try:
    import openai
except ImportError:
    print("skip: no openai package (set SLUICE_TEST_PYTHON to an interpreter that has it)")
    sys.exit(77)

import json

from gateway_bed import Bed, run

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
    e = raises(openai.APIStatusError, lambda: chat("x", n=2))
    assert e.status_code == 501 and e.param == "n" and e.type == "not_implemented_error"
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
