"""What a stream says: whole characters only, stop strings over token edges, one finish_reason, the same text as without one."""
import random
import sys
import time

from service import Service, run

FAST = "tick_us 100\n"
SCRIPT_TEXT = "Zürich 中文 👩‍👧‍👦 naïve 🇨🇭 end of ça, 日本語テキスト ok 🏳️‍🌈 and some plain words to reach two hundred bytes, abcab abcabd."


def escaped(text):
    return "".join(chr(b) if 32 < b < 127 and b != 92 else f"\\x{b:02x}" for b in text.encode())


def scripted(text, repeat=False):
    return FAST + f"text {escaped(text)}\n" + ("repeat on\n" if repeat else "")


def both(s, **fields):
    """The same request as a stream and without; the stream, judged."""
    whole = s.call([40, 41], stream=False, **fields)
    stream = s.call([40, 41], stream=True, **fields)
    whole.finish_up(20)
    stream.finish_up(20)
    for c in (whole, stream):
        assert c.status == 200 and not c.error and not c.broken, c.describe()
    assert stream.text == whole.text, (stream.text, whole.text)
    assert stream.finish == whole.finish, (stream.finish, whole.finish)
    assert stream.done
    check_shape(stream)
    return stream


def check_shape(c):
    """null in every event but the last, which has the right word once."""
    reasons = [x["finish_reason"] for _, e in c.events if isinstance(e, dict) for x in e["choices"]]
    assert reasons[-1] in ("stop", "length") and all(r is None for r in reasons[:-1]), reasons


def test_split_characters_come_whole():
    with Service(stages=2, script=scripted(SCRIPT_TEXT)) as s:
        c = both(s, max_tokens=1000)
        assert c.text == SCRIPT_TEXT and c.finish == "stop", c.describe()
        s.assert_quiet(canary=False)


def test_an_answer_cut_inside_a_character_ends_in_one_replacement():
    text = "a👩‍👧é中"
    raw = text.encode()
    with Service(stages=1, script=scripted(text)) as s:
        for n in range(1, len(raw) + 1):
            c = both(s, max_tokens=n)
            whole = raw[:n].decode(errors="ignore")
            want = whole + ("" if len(whole.encode()) == n else "\N{REPLACEMENT CHARACTER}")
            assert c.text == want and c.finish == "length", (n, c.text, want)
        s.assert_quiet(canary=False)


def test_every_substring_as_a_stop_gives_the_text_before_it():
    text = SCRIPT_TEXT[:120]
    rng = random.Random(4)
    spans = {(a, n) for a in range(len(text)) for n in range(1, 13) if a + n <= len(text)}
    with Service(stages=1, script=scripted(text), slots=8) as s:
        for at, n in rng.sample(sorted(spans), 60):
            stop = text[at:at + n]
            c = both(s, max_tokens=1000, stop=[stop, "never there"])
            assert c.text == text[:text.index(stop)] and c.finish == "stop", (stop, c.text)
        s.assert_quiet(canary=False)


def test_what_was_held_for_a_stop_is_delivered_at_the_end():
    with Service(stages=1, script=scripted("xyz abc")) as s:
        c = both(s, max_tokens=100, stop="abcX")
        assert c.text == "xyz abc" and c.finish == "stop", c.describe()
        c = both(s, max_tokens=6, stop=["ab!", "z abX"])
        assert c.text == "xyz ab" and c.finish == "length", c.describe()
        s.assert_quiet(canary=False)


def test_a_failed_stage_is_one_error_event_without_a_finish():
    with Service(stages=2, script="tick_us 2000\nstage 1 fail_tick 60 OUT_OF_MEMORY\n") as s:
        c = s.ask([40, 41], 500)
        assert c.status == 200 and c.error and c.error["retryable"] is True and "stage 1" in c.error["message"], c.describe()
        assert c.finish is None and not c.done and not c.broken, c.describe()
        assert [e for _, e in c.events if isinstance(e, dict) and "error" in e] == [c.events[-1][1]]
        s.wait_ready(5)
        s.assert_quiet()


def test_usage_and_token_ids_agree_with_the_text():
    with Service(stages=1, script=FAST) as s:
        c = s.ask([40, 41, 42], 30, stream_options={"include_usage": True}, return_token_ids=True)
        data = [e for _, e in c.events if isinstance(e, dict)]
        usage = next(e["usage"] for e in data if e.get("usage"))
        assert usage["prompt_tokens"] == 3 and usage["completion_tokens"] == 30 and usage["total_tokens"] == 33, usage
        got = [i for e in data for x in e["choices"] for i in x.get("token_ids") or []]
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


if __name__ == "__main__":
    sys.exit(run(sys.modules[__name__]))
