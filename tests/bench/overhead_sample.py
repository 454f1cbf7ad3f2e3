"""What a running service has used so far: CPU time, context switches and syscalls of its processes, bytes over the coordinator's
sockets, ticks and tokens. Two samples make a measurement.

    overhead_sample.py take URL FILE            a sample, as JSON
    overhead_sample.py trace URL SECONDS FILE   counts syscalls by process for a while (perf if it may, else strace)
    overhead_sample.py row NAME BEFORE AFTER [TRACE TRACE_BEFORE TRACE_AFTER]   a Markdown row for each process

The processes are those of /v1/status; all must be on this host.
"""
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HEAD = ("| load | process | CPU us per tick | CPU us per token | share of a core | control bytes per token | syscalls per token | "
        "voluntary switches per token |\n| --- | --- | --- | --- | --- | --- | --- | --- |")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as r:
        return r.read().decode()


def processes(url):
    """{name: pid}, the coordinator first, and the port that it listens on for the others."""
    s = json.loads(get(f"{url}/v1/status"))
    out = {"coordinator": s["coordinator"]["pid"]}
    out |= {f"gateway {i}" if i else "gateway": g["pid"] for i, g in enumerate(s["gateways"])}
    out |= {f"stage {g['stage']}": g["pid"] for g in s["stages"]}
    return out


def threads(pid):
    """CPU seconds and voluntary switches over all threads. A thread that ended in between is lost: none of ours does."""
    cpu = switches = 0
    for t in Path(f"/proc/{pid}/task").iterdir():
        try:
            cpu += int((t / "schedstat").read_text().split()[0])
            switches += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (t / "status").read_text(), re.M)[1])
        except OSError:
            pass
    return {"cpu_s": cpu / 1e9, "switches": switches}


def sockets(pids):
    """Bytes sent and received over the TCP connections of each process to the coordinator."""
    text = subprocess.run(["ss", "-tinpHO", "state", "established"], capture_output=True, text=True, check=True).stdout
    out = {name: 0 for name in pids}
    by_pid = {pid: name for name, pid in pids.items()}
    ports = set()
    rows = []
    for line in text.splitlines():
        owner = re.search(r"pid=(\d+)", line)
        ends = re.findall(r"[\d.:\[\]a-f]+:(\d+)(?=\s)", line)
        name = by_pid.get(int(owner[1])) if owner else None
        if name and len(ends) >= 2:
            n = sum(int(v) for v in re.findall(r"bytes_(?:sent|received):(\d+)", line))
            rows.append((name, ends[0], ends[1], n))
            if name == "coordinator":
                ports.add(ends[0])
    for name, here, there, n in rows:
        if name == "coordinator" and here in ports:
            out[name] += n
        elif there in ports:
            out[name] += n
    return out


def metrics(url):
    text = get(f"{url}/metrics")
    value = lambda name: sum(float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))
    by_stage = lambda name: {int(s): float(v) for s, v in re.findall(rf'^{name}{{stage="(\d+)"}} (\S+)$', text, re.M)}
    return {"ticks": value("sluice_ticks_total"), "tokens": value("sluice_generated_tokens_total"),
            "compute_s": by_stage("sluice_stage_tick_seconds_sum"), "wait_s": by_stage("sluice_bubble_seconds_total"),
            "send_s": by_stage("sluice_hop_seconds_sum")}


def take(url, path):
    pids = processes(url)
    sample = {"time": time.time(), "metrics": metrics(url), "bytes": sockets(pids),
              "threads": {name: threads(pid) for name, pid in pids.items()}}
    Path(path).write_text(json.dumps(sample))


def perf_may(pid):
    return bool(shutil.which("perf")) and subprocess.run(
        ["perf", "stat", "-e", "raw_syscalls:sys_enter", "-p", str(pid), "--", "sleep", "0.01"], capture_output=True).returncode == 0


def count_by_perf(pids, seconds):
    """Cheap: the processes do not stop at each syscall."""
    out, running = {}, {}
    for name, pid in pids.items():
        running[name] = subprocess.Popen(["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-p", str(pid), "--", "sleep", str(seconds)],
                                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for name, p in running.items():
        out[name] = int(p.communicate()[1].split(",")[0])
    return out


def count_by_strace(pids, seconds):
    """Slows the processes: the load's own rate falls, the counts per token stay about the same."""
    out = {}
    for name, pid in pids.items():
        with tempfile.NamedTemporaryFile("r") as f:
            p = subprocess.Popen(["strace", "-c", "-f", "-o", f.name, "-p", str(pid)], stderr=subprocess.DEVNULL)
            try:
                p.wait(timeout=seconds / len(pids))
            except subprocess.TimeoutExpired:
                p.send_signal(signal.SIGINT)
                p.wait()
            total = re.search(r"(\d+)(?:\s+\d+)?\s+total\s*$", f.read(), re.M)
            out[name] = int(total[1]) if total else 0
    return out


def trace(url, seconds, path):
    pids = processes(url)
    by_perf = perf_may(pids["coordinator"])
    if not by_perf and not shutil.which("strace"):
        sys.exit("overhead_sample.py: neither perf nor strace can count syscalls here")
    tokens, out = {}, {"by": "perf" if by_perf else "strace"}
    if by_perf:
        before = metrics(url)
        out["syscalls"] = count_by_perf(pids, seconds)
        after = metrics(url)
        tokens = {name: after["tokens"] - before["tokens"] for name in pids}
    else:
        out["syscalls"] = {}
        for name, pid in pids.items():
            before = metrics(url)
            out["syscalls"] |= count_by_strace({name: pid}, seconds / len(pids))
            tokens[name] = metrics(url)["tokens"] - before["tokens"]
    out["tokens"] = tokens
    Path(path).write_text(json.dumps(out))


def rows(load, before, after, traced):
    a, b, t = (json.loads(Path(p).read_text()) for p in (before, after, traced))
    seconds = b["time"] - a["time"]
    ticks, tokens = (b["metrics"][k] - a["metrics"][k] for k in ("ticks", "tokens"))
    if ticks <= 0 or tokens <= 0:
        sys.exit(f"overhead_sample.py: {load}: {ticks:.0f} ticks, {tokens:.0f} tokens between the samples")
    print(f"| **{load}** | {tokens / seconds:.0f} tokens/s, {ticks / seconds:.0f} ticks/s, {tokens / ticks:.2f} tokens per tick | | | | | | |")
    for name in b["threads"]:
        used = {k: b["threads"][name][k] - a["threads"][name][k] for k in ("cpu_s", "switches")}
        n_bytes = b["bytes"][name] - a["bytes"][name]
        calls = t["syscalls"][name] / t["tokens"][name] if t["tokens"].get(name) else float("nan")
        print(f"| | {name} | {used['cpu_s'] / ticks * 1e6:.0f} | {used['cpu_s'] / tokens * 1e6:.0f} | {used['cpu_s'] / seconds * 100:.1f} % | "
              f"{n_bytes / tokens:.0f} | {calls:.1f} | {used['switches'] / tokens:.2f} |")
    for name in sorted(a["metrics"]["compute_s"]):
        of = lambda key: (b["metrics"][key].get(name, 0) - a["metrics"][key].get(name, 0)) / ticks * 1e6
        print(f"| | stage {name}, of a tick | computes {of('compute_s'):.0f} us | waits for rows {of('wait_s'):.0f} us | "
              f"sends {of('send_s'):.0f} us | every {seconds / ticks * 1e6:.0f} us | | |")


def main():
    what, *args = sys.argv[1:]
    if what == "take":
        take(*args)
    elif what == "trace":
        trace(args[0], float(args[1]), args[2])
    elif what == "head":
        print(HEAD)
    elif what == "rows":
        rows(*args)
    else:
        sys.exit(__doc__)


main()
