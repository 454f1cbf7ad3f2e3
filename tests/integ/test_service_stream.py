"""What a stream says beside its text: usage and ids that agree with it, its place in the queue. The texts themselves, whole characters and
stop strings are in test_fc_streams.py."""
import os
import subprocess
import sys

from service import BIN, SLACK, Service, run

FAST = "tick_us 100\n"


def test_usage_and_token_ids_agree_with_the_text():
    with Service(stages=1, script=FAST) as s:
        c = s.ask([40, 41, 42], 30, stream_options={"include_usage": True}, return_token_ids=True)
        usage = c.usage()
        assert usage["prompt_tokens"] == 3 and usage["completion_tokens"] == 30 and usage["total_tokens"] == 33, usage
        got = c.token_ids()
        assert bytes(i - 3 for i in got).decode() == c.text and len(got) == 30
        c.assert_reference([40, 41, 42], 30)


def test_a_waiting_stream_is_told_its_place():
    with Service(stages=1, slots=1) as s:
        first = s.call([40], 2000)
        first.wait_tokens(2)
        waiting = s.call([41], 4)
        waiting.wait(lambda: any(isinstance(e, str) and e.startswith(": queued 1") for _, e in waiting.events), 6, "a comment")
        assert waiting.events[0][0] - waiting.started < 6
        first.leave()
        waiting.finish_up(5).assert_reference([41], 4)
        s.assert_quiet()


def test_sluice_takes_a_url_with_a_slash_at_its_end():
    with Service(stages=1, script=FAST) as s:
        for command in (["status"], ["complete", "x", "--max-tokens", "3"], ["bench", "--concurrency", "1", "--requests", "1"]):
            r = subprocess.run([os.path.join(BIN, "sluice"), *command, "--url", f"http://127.0.0.1:{s.port}/"], capture_output=True,
                               timeout=20 * SLACK)
            assert r.returncode == 0, r


def test_sluice_chat_sends_no_other_text_than_was_typed():
    """Bytes that JSON cannot carry: the turn is refused, the conversation goes on without it."""
    with Service(stages=1, script=FAST) as s:
        def sluice(*words, said=b""):
            return subprocess.run([os.path.join(BIN, "sluice"), *words, "--url", f"http://127.0.0.1:{s.port}", "--max-tokens", "5"],
                                  input=said, capture_output=True, timeout=20 * SLACK)
        r = sluice("chat", said=b"hello\nb\xe9d\nmore\n")
        assert r.returncode == 0 and r.stdout.count(b"\n") == 2 and r.stderr.count(b"not UTF-8") == 1, r
        for command in (["complete", b"b\xe9d"], ["chat", b"b\xe9d"], ["chat", "hello", "--system", b"b\xe9d"]):
            r = sluice(*command)
            assert r.returncode == 1 and r.stdout == b"" and b"not UTF-8" in r.stderr, r
        assert s.status()["requests"]["accepted"] == 2


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
