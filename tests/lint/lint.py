#!/usr/bin/env python3
"""Keeps the tree's rules: layers, header headings, homes of getenv and printf, file sizes; links of the docs lead somewhere, what
operators see (metrics, fields of /v1/status) stands in docs/operations.md, and the fuzzer of JSON knows every field. Prints every
breach."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/fuzz"))
import make_http_json_seeds  # noqa: E402 (where the fields of a request stand)

# folder -> folders whose headers it may include (besides its own)
LAYERS = {
    "common/base": [],
    "common/wire": ["common/base"],
    "common/model": ["common/base"],
    "common/text": ["common/base", "common/model"],
    "kernels": ["common/base", "common/model"],
    "rpc/grpc": ["common/base", "common/wire"],
    "rpc/gateway": ["common/base", "common/wire/plan.h", "rpc/grpc"],
    "stage": ["common/base", "common/wire", "common/model", "kernels", "rpc/grpc"],
    "coordinator": ["common/base", "common/wire", "common/model", "common/text", "rpc/grpc"],
    "deploy": ["common/base"],
    "deploy/cli": ["common/base", "common/model", "common/text", "kernels", "stage"],
}
# Only these may name what the left side says.
HOMES = {
    r"\bgetenv\s*\(": ["common/base/config.c", "deploy/cli/main.c", "tests/"],
    r"\b(printf|puts|putchar)\s*\(": ["common/base/config.c", "deploy/cli/", "tests/"],
    r"\bv?fprintf\s*\(\s*stderr": ["deploy/cli/", "deploy/supervisor.c", "tests/"],
    r"#include <grpc": ["rpc/grpc/", "tests/"],
    r"\.pb-c\.h": ["rpc/grpc/", "tests/"],
    r"#include <microhttpd": ["rpc/gateway/"],
    r"#include <mpi\.h>": ["deploy/launch_main.c"],
    r"#include <immintrin\.h>": ["kernels/"],
}
MAX_LINES = 1000
HEADINGS = ["Purpose", "Threading"]


def tracked():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if out.returncode == 0:
        names = out.stdout.split("\n")
    else:  # an unpacked archive
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
    return [n for n in names if n and (ROOT / n).is_file() and not n.startswith("build")]


def layer_of(name):
    return next((l for l in sorted(LAYERS, key=len, reverse=True) if name.startswith(l + "/")), None)


def check_includes(name, text, breach):
    own = layer_of(name)
    if own is None:
        return
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#include "([^"]+)"', line)
        if not m or m.group(1).startswith(own + "/"):
            continue
        target = m.group(1)
        if target.endswith(".c"):
            breach(f"{name}:{n}: includes a .c file")
        elif "/" not in target or not (target.startswith("generated/") or target.startswith("rpc/proto/") or any(
                target == a or target.startswith(a + "/") for a in LAYERS[own])):
            breach(f"{name}:{n}: {own} may not include {target}")


def check_homes(name, text, breach):
    for pattern, homes in HOMES.items():
        if any(name.startswith(h) for h in homes):
            continue
        for n, line in enumerate(text.split("\n"), 1):
            if re.search(pattern, line) and not re.match(r"\s*(//|\*|/\*)", line):
                breach(f"{name}:{n}: {pattern} belongs in {', '.join(homes)}")


def check_header(name, text, breach):
    if not text.startswith("/* " + name):
        breach(f"{name}: a header opens with its own path")
        return
    head = text[: text.find("*/")]
    for h in HEADINGS:
        if h not in head and not ("Threading:" in head and h == "Purpose"):
            breach(f"{name}: the head comment has no {h}")


def check_links(name, text, breach):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if re.match(r"[a-z]+:", target):
            continue
        if not file.exists():
            breach(f"{name}: a link leads to {target}, which is not there")
        elif anchor and anchor not in {re.sub(r"[^a-z0-9 -]", "", h.lower()).strip().replace(" ", "-")
                                       for h in re.findall(r"^#+ (.*)$", file.read_text(), re.M)}:
            breach(f"{name}: {target}: no such heading")


def check_documented(breach):
    page = "docs/operations.md"
    words = set(re.findall(r"[A-Za-z0-9_]+", (ROOT / page).read_text()))
    own = (ROOT / "tests/integ/metric_names.txt").read_text().split("[vllm]")[0]
    for name in re.findall(r"^sluice_(\w+) ", own, re.M):
        if name not in words:
            breach(f"{page}: does not know the metric {name}")
    for name in re.findall(r'\\"(\w+)\\":', (ROOT / "rpc/gateway/status_json.c").read_text()):
        if name not in words:
            breach(f"{page}: does not know {name} of /v1/status")
    order = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "README.md" and f"({page.name})" not in order:
            breach(f"docs/README.md: does not name {page.name}")


def check_dictionary(breach):
    dictionary = (ROOT / "tests/fuzz/http_json.dict").read_text()
    for name in make_http_json_seeds.table():
        if f'\\"{name}\\"' not in dictionary:
            breach(f"tests/fuzz/http_json.dict: does not know {name}: run make_http_json_seeds.py")


def main():
    breaches = []
    check_documented(breaches.append)
    check_dictionary(breaches.append)
    for name in tracked():
        if not re.search(r"\.(c|h|py|sh|md|cmake|txt|proto)$", name) and not name.startswith(".ci/"):
            continue
        text = (ROOT / name).read_text(errors="replace")
        is_c = name.endswith((".c", ".h"))
        if is_c:
            check_includes(name, text, breaches.append)
            check_homes(name, text, breaches.append)
            if "\t" in text:
                breaches.append(f"{name}: tabs")
            if len(text.split("\n")) > MAX_LINES and "over 1,000 lines because" not in text:
                breaches.append(f"{name}: over {MAX_LINES} lines without a reason in its head comment")
        if name.endswith(".md"):
            check_links(name, text, breaches.append)
        if name.endswith(".h") and not name.startswith("tests/vectors"):
            check_header(name, text, breaches.append)
        if not name.startswith("tests/lint/") and re.search(r"/work/|/root/|/tmp/(b-|helper|peer|models)", text):
            breaches.append(f"{name}: names a machine's path")
    for b in breaches:
        print(b)
    print(f"{len(breaches)} breaches")
    return 1 if breaches else 0


sys.exit(main())
