"""deploy/demo.sh as a person runs it: one answer, a taken port, Ctrl-C at any moment; nothing is left over."""
import os
import signal
import socket
import subprocess
import sys
import time

from service import BIN, HERE, SLACK, Call, Service, run, wait_for

MODEL = os.environ.get("SLUICE_MODEL_SMOLLM2")
if not MODEL:
    print("skip: SLUICE_MODEL_SMOLLM2 names no model")
    sys.exit(77)
DEMO = os.path.join(HERE, "../../deploy/demo.sh")


class Demo(Service):
    """The script in a process group of its own, as a terminal has it; the service's harness finds and judges the rest."""

    def __init__(self, *flags, stages=2):
        super().__init__(stages=stages, model=MODEL, mpi=False, wait=False)
        home = os.path.join(self.dir.name, "home")
        os.mkdir(home)
        self.env.update(HOME=home, SLUICE_BUILD_DIR=os.path.dirname(os.path.abspath(BIN)))
        self.env.pop("XDG_CACHE_HOME", None)
        # A model under its own name is found by get_model.sh, which checks its sum; another one is named by --model.
        named = os.path.basename(MODEL) == "SmolLM2-135M-Instruct.Q4_1.gguf"
        if named:
            self.env["SLUICE_MODEL_DIR"] = os.path.dirname(os.path.abspath(MODEL))
        self.demo_flags = ["--stages", str(stages), "--http", f"127.0.0.1:{self.port}", "--grpc", f"127.0.0.1:{self.grpc_port}",
                           *([] if named else ["--model", MODEL]), *flags]  # the last one wins
        self.out_path = os.path.join(self.dir.name, "out")
        self.cwd = None

    def command(self):
        return [DEMO, *self.demo_flags]

    def start(self):
        with open(self.log_path, "wb") as err, open(self.out_path, "wb") as out:
            self.job = subprocess.Popen(self.command(), stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=self.env, cwd=self.cwd,
                                        start_new_session=True)

    def said(self):
        with open(self.out_path, errors="replace") as f:
            return f.read()

    def ctrl_c(self):
        os.killpg(self.job.pid, signal.SIGINT)

    def wait_said(self, text, seconds=60):
        wait_for(lambda: text in self.log() + self.said() or self.job.poll() is not None, seconds, text)
        assert text in self.log() + self.said(), f"the demo ended before it said '{text}'"

    def left_logs(self):
        return [f for f in os.listdir(self.dir.name) if f.startswith("sluice-demo.")]


def test_once_streams_a_sensible_answer_and_ends():
    with Demo("--once", "Why is the sky blue?") as d:
        d.wait_exit(0, 120)
        text = d.said()
        assert any(w in text.lower() for w in ("light", "scatter", "atmosphere", "sunlight")) and len(text) > 100, text
        assert "ready after" in d.log() and f"http://127.0.0.1:{d.port}" in d.log()
        assert not d.left_logs(), d.left_logs()


def test_a_taken_port_is_one_line_and_exit_code_4():
    for flag in ("--http", "--grpc"):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            taken_port(flag, "127.0.0.1:%d" % s.getsockname()[1])


def taken_port(flag, at):
    with Demo(flag, at) as d:
        d.wait_exit(4, 60)
        lines = [line for line in d.log().splitlines() if at in line]
        assert len(lines) == 1 and "in use" in lines[0], d.log()
        assert d.log().splitlines()[-1] == lines[0]


def test_ctrl_c_while_it_serves_lets_running_answers_finish():
    with Demo() as d:
        d.wait_said("Ctrl-C ends", 120)
        assert "stage" in d.said() and d.ready()
        c = Call(d.port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Name a colour."}], "stream": True,
                                                  "max_tokens": 60, "temperature": 0})
        c.start()
        c.wait_tokens(1)
        d.ctrl_c()
        d.wait_exit(0, 40)
        c.finish_up(1)
        assert c.done and not c.error and not c.broken, c.describe()
        assert not d.left_logs(), d.left_logs()


def test_ctrl_c_before_it_is_ready_leaves_nothing():
    with Demo() as d:
        d.wait_said("starting", 120)
        time.sleep(0.3)
        d.ctrl_c()
        d.job.wait(30 * SLACK)
        d.exit_code = d.job.returncode


def test_ctrl_c_twice_ends_at_once():
    with Demo() as d:
        d.wait_said("Ctrl-C ends", 120)
        running = Call(d.port, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell a long story."}],
                                                        "stream": True, "max_tokens": 4000, "temperature": 0})
        running.start()
        running.wait_tokens(5)
        d.ctrl_c()
        wait_for(lambda: not d.ready(), 2, "it drains")
        asked = time.monotonic()
        d.ctrl_c()
        d.job.wait(10 * SLACK)
        d.exit_code = d.job.returncode
        assert time.monotonic() - asked < 5 * SLACK
        running.finish_up(2)


def test_wrong_flags_are_told_with_their_exit_codes():
    for flags, code, word in ((["--stages", "0"], 2, "--stages"), (["--nonsense"], 2, "--nonsense"),
                              (["--model", "/nowhere.gguf"], 3, "/nowhere.gguf")):
        r = subprocess.run([DEMO, *flags], capture_output=True, timeout=20 * SLACK)
        assert r.returncode == code and word.encode() in r.stderr, (flags, r)


def test_a_model_is_found_from_where_the_caller_stands():
    d = Demo("--model", "no_model.gguf")
    d.cwd = os.path.dirname(d.file("no_model.gguf", "GGUF but not quite"))
    with d:
        d.wait_exit(3, 60)
        assert "refused: no_model.gguf" in d.log(), d.log()


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
