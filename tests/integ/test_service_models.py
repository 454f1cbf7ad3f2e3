"""Models of every architecture behind the whole service on two stages: text in, and the ids, bytes and texts come out that another
implementation gives (tests/vectors). `test_tiny` on the tiny models, `test_qwen` and `test_gemma` on the real ones."""
import json
import os
import sys

from runner import Skip, run
from service import HERE, SLACK, Service

VECTORS = os.path.join(HERE, "../vectors")
TINY_GAP = 0.06   # twice the error that f16 K and V may cause (tests/vectors/tiny/README.md)
REAL_GAP = 0.6    # tests/vectors/text/README.md
FLAGS = ["--threads", "1", "--context", "256"]


def read(name):
    with open(os.path.join(VECTORS, name)) as f:
        return json.load(f)


def model(variable):
    path = os.environ.get(variable)
    if not path:
        raise Skip(f"{variable} names no model")
    return path


def n_same(ids, case, gap):
    """How many ids are the reference's, up to its end or a step whose gap explains another choice."""
    for i, (got, want) in enumerate(zip(ids, case["ids"])):
        if got != want:
            assert case["gaps"][i] < gap, f"{case['text']!r}: id {i} is {got}, not {want}, with a gap of {case['gaps'][i]}: {ids}"
            return i
    assert len(ids) == len(case["ids"]), (ids, case["ids"])
    return len(ids)


def ask(s, case, **fields):
    return s.call(case["text"], len(case["ids"]), stream=False, return_token_ids=True, ignore_eos=True, **fields)


def check_prompt(call, case):
    assert call.status == 200 and not call.error, call.describe()
    choice = call.answer["choices"][0]
    if "message" not in choice:  # chats do not tell them
        assert choice["prompt_token_ids"] == case["prompt"], (choice["prompt_token_ids"], case["prompt"])
    assert call.usage()["prompt_tokens"] == len(case["prompt"]) and call.usage()["completion_tokens"] == len(case["ids"])
    return choice["token_ids"]


def test_tiny_models_of_every_architecture_give_the_references_ids_and_bytes():
    cases = {name: c for name, c in read("tiny/e2e.json").items() if os.path.exists(f"{VECTORS}/tiny/{name}.gguf")}
    assert len(cases) == 8, sorted(cases)
    for name, prompts in cases.items():
        with Service(stages=2, model=f"{VECTORS}/tiny/{name}.gguf", flags=FLAGS) as s:
            calls = [ask(s, c) for c in prompts]
            whole = 0
            for call, c in zip(calls, prompts):
                ids = check_prompt(call.finish_up(30), c)
                if n_same(ids, c, TINY_GAP) == len(c["ids"]):
                    assert call.text == bytes.fromhex(c["output_hex"]).decode(errors="replace"), (call.text, c["output_hex"])
                    whole += 1
            print(f"{name}: {whole} of {len(prompts)} answers are the reference's to the end", flush=True)
            assert whole * 2 > len(prompts)
            s.assert_quiet()


def real(name, path, flags=(), chats=False):
    """All prompts together, as text; those of one user as a chat where there is a template for it."""
    prompts = read(f"text/{name}.json")["greedy"]
    user, answer = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    n_chats = 0
    with Service(stages=2, slots=6, model=path, wait=False, flags=[*FLAGS, *flags]) as s:
        s.wait_ready(120 * SLACK)
        calls = []
        for c in prompts:
            if chats and c["text"].startswith(user):
                call = s.new_call("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": c["text"][len(user):-len(answer)]}], "temperature": 0, "ignore_eos": True,
                    "max_tokens": len(c["ids"]), "return_token_ids": True})
                call.start()
                n_chats += 1
            else:
                call = ask(s, c)
            calls.append(call)
        for call, c in zip(calls, prompts):
            ids = check_prompt(call.finish_up(120), c)
            n = n_same(ids, c, REAL_GAP)
            print(f"{name}, {c['text']!r}: {n} of {len(ids)} ids are the reference's", flush=True)
            if n == len(ids) == c["first_control"]:
                assert call.text == c["output"], (call.text, c["output"])
        assert (n_chats > 0) == chats
        if not chats:
            call = s.chat("Hello", stream=False).finish_up(10)
            assert call.status == 400 and call.error["code"] == "no_chat_template", call.describe()
            assert "--chat-template" in call.error["message"] and "/v1/completions" in call.error["message"], call.error
        s.assert_quiet()


def test_qwen_gives_the_references_ids_to_chats_and_to_text():
    # Its own template begins with a system message that the reference's prompts do not have.
    real("qwen2.5", model("SLUICE_MODEL_QWEN"), flags=["--chat-template", "chatml"], chats=True)


def test_gemma_gives_the_references_ids_to_text_and_says_that_it_has_no_template():
    real("gemma3", model("SLUICE_MODEL_GEMMA"))


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
