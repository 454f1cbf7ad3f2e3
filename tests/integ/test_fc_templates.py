"""FC-62 and what a service does with chat templates: the model's own, one for tools, a chosen one, a bad one, none."""
import json
import os
import subprocess
import sys
import tempfile
import time

from gguf_maker import TEXT, GgufFile
from runner import Skip
from service import BIN, SLACK, Service, case, run

HOSTILE = {
    "loop": "{% for a in range(100000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
    "range": "{% for i in range(1000000000) %}{% endfor %}",
    "mro": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "popen": "{{ cycler.__init__.__globals__.os.popen('touch WITNESS').read() }}",
    "double": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "power": "{% set n = messages | length * 9999999 %}{{ n ** n ** n }}",
}
SHOW = ("{{ documents[0].text if documents }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ tools | length if tools }}|"
        "{{ messages[0].content }}")


def model(folder, template=None, **more):
    path = os.path.join(folder, "model.gguf")
    f = GgufFile.llama(template=template)
    f.keys += [("tokenizer.chat_template." + name, TEXT, text) for name, text in more.items()]
    with open(path, "wb") as out:
        out.write(f.bytes())
    return path


def service(path, *flags):
    return Service(stages=1, model=path, mpi=False, slots=2, flags=["--threads", "1", *flags])


def post(s, path, body):
    """(status, JSON, seconds)"""
    c = s.connection(20)
    started = time.monotonic()
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, json.loads(r.read()), time.monotonic() - started
    finally:
        c.close()


def chat(s, text, **more):
    return post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 2, **more})


def rendered(s, text, **more):
    status, a, _ = post(s, "/apply-template", {"messages": [{"role": "user", "content": text}], **more})
    assert status == 200, (status, a)
    return a["prompt"]


def completes(s):
    status, a, _ = post(s, "/v1/completions", {"prompt": "abc", "max_tokens": 2, "temperature": 0})
    assert status == 200 and a["usage"]["completion_tokens"] >= 1, (status, a)


def tree_kib(pid):
    """Of a process and of what it has started."""
    kib = 0
    for p in [pid, *children(pid)]:
        try:
            with open(f"/proc/{p}/status") as f:
                kib += next((int(line.split()[1]) for line in f if line.startswith("VmRSS")), 0)
        except OSError:
            pass
    return kib


def children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as f:
            found += [int(p) for p in f.read().split()]
    return found


@case("full", seconds=90)
def fc_62_templates_that_loop_or_reach_out_end_in_an_error():
    with tempfile.TemporaryDirectory(prefix="sluice-template-") as folder:
        witness = os.path.join(folder, "witness")
        branches = "".join(f"{{% if messages[0].content == '{name}' %}}{text}{{% endif %}}" for name, text in HOSTILE.items())
        path = model(folder, branches.replace("WITNESS", witness) + "{{ messages[0].content }}")
        with service(path) as s:
            pid = s.pid("coordinator")
            assert chat(s, "sound")[0] == 200
            before = tree_kib(pid)
            for name in HOSTILE:
                status, a, seconds = chat(s, name)
                assert status in (400, 500, 503, 504) and a["error"]["message"], (name, status, a)
                assert seconds < 2 * SLACK, f"{name}: {seconds:.1f} s"
                assert SLACK > 1 or tree_kib(pid) < before + (64 << 10), f"{name}: {before} to {tree_kib(pid)} KiB"
                assert chat(s, "sound")[0] == 200, name
            assert not os.path.exists(witness)
            completes(s)
            assert s.pid("coordinator") == pid
            s.assert_quiet()


@case("full", seconds=60)
def fc_62_a_template_that_is_hostile_when_it_is_compiled_takes_chats_only():
    with tempfile.TemporaryDirectory(prefix="sluice-template-") as folder:
        with service(model(folder, "{{ 'x' * 3000000000 }}{{ 2 ** 2 ** 2 ** 2 ** 2 ** 2 }}")) as s:
            status, a, seconds = chat(s, "hello")
            assert status in (400, 503, 504) and seconds < 2 * SLACK, (status, a, seconds)
            completes(s)


@case("full", seconds=60)
def fc_62_what_a_client_says_reaches_the_template_and_tools_have_their_own():
    with tempfile.TemporaryDirectory(prefix="sluice-template-") as folder:
        with service(model(folder, "plain|" + SHOW, tool_use="tools|" + SHOW)) as s:
            tool = {"type": "function", "function": {"name": "f"}}
            assert rendered(s, "a") == "plain|||||a"
            assert rendered(s, "a", tools=[tool, tool]) == "tools||||2|a"
            assert rendered(s, "a", tools=[tool], tool_choice="none") == "plain|||||a"
            assert rendered(s, "a", documents=[{"text": "D"}]) == "plain|D||||a"
            assert rendered(s, "a", chat_template_kwargs={"enable_thinking": True}) == "plain||True|||a"
            assert rendered(s, "a", reasoning_effort="high") == "plain|||high||a"
            assert rendered(s, "a", reasoning_effort="none") == "plain||False|none||a"
            assert chat(s, "a", tools=[tool])[0] == 200
            for wrong in ({"documents": "x"}, {"documents": [1]}, {"chat_template_kwargs": []}):
                status, a, _ = chat(s, "a", **wrong)
                assert status == 400 and a["error"]["param"].startswith(next(iter(wrong))), (wrong, status, a)


@case("full", seconds=60)
def fc_62_without_a_template_plain_text_is_completed_and_chats_are_told_how():
    with tempfile.TemporaryDirectory(prefix="sluice-template-") as folder:
        for template, word in ((None, "no chat template"), ("a\n{% if %}", "line 2")):
            with service(model(folder, template)) as s:
                status, a, _ = chat(s, "hello")
                e = a["error"]
                assert status == 400 and e["code"] == "no_chat_template", (status, a)
                assert all(w in e["message"] for w in (word, "--chat-template", "/v1/completions")), e
                status, a, _ = post(s, "/apply-template", {"messages": [{"role": "user", "content": "x"}]})
                assert status == 400 and a["error"]["code"] == "no_chat_template", (status, a)
                completes(s)
                said = [line for line in s.log().splitlines() if "only plain completion" in line]
                assert len(said) == 1 and word in said[0] and "chatml" in said[0], s.log()
        with service(model(folder, "a\n{% if %}"), "--chat-template", "llama3") as s:
            assert rendered(s, "x").endswith("<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|><|start_header_id|>assistant"
                                             "<|end_header_id|>\n\n")


@case("full", seconds=60)
def fc_62_a_chosen_template_that_cannot_be_had_ends_the_start():
    with tempfile.TemporaryDirectory(prefix="sluice-template-") as folder:
        path, bad = model(folder, "own"), os.path.join(folder, "bad.jinja")
        with open(bad, "w") as f:
            f.write("a\n\n{% for %}")
        for choice, words in (("no-such", ["no-such", "chatml", "@FILE"]), ("@/no/such/file", ["/no/such/file"]),
                              ("@" + bad, ["line 3"])):
            r = subprocess.run([os.path.join(BIN, "sluice-coordinator"), "--model", path, "--chat-template", choice, "--grpc",
                                "127.0.0.1:0"], capture_output=True, timeout=20 * SLACK)
            last = r.stderr.decode().splitlines()[-1]
            assert r.returncode == 2 and all(w in last for w in words + ["--chat-template"]), (choice, r)


@case("full", seconds=240, real=True)
def fc_62_the_demo_answers_with_qwen_and_completes_with_a_base_model():
    qwen, gemma = os.environ.get("SLUICE_MODEL_QWEN"), os.environ.get("SLUICE_MODEL_GEMMA")
    if not (qwen and gemma and os.environ.get("SLUICE_MODEL_SMOLLM2")):
        raise Skip("SLUICE_MODEL_QWEN, SLUICE_MODEL_GEMMA and SLUICE_MODEL_SMOLLM2 name no models")
    from test_service_demo import Demo
    small = ("--context", "1024", "--slots", "2")
    with Demo("--model", qwen, "--once", "Write a C function that adds two ints.", "--", *small) as d:
        d.wait_exit(0, 100)
        assert "return a + b;" in d.said() and "base model" not in d.log(), d.said()
    with Demo("--model", gemma, "--once", "The capital of France is", "--", *small) as d:
        d.wait_exit(0, 100)
        assert "France" in d.said(), d.said()
        assert "this is a base model" in d.log() and "no chat template" in d.log(), d.log()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
