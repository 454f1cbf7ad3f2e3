#!/bin/sh
# One stage, in process, against llama.cpp on the same file: rounds in turns, medians, ratios, a table in Markdown.
#
#   LLAMA_BIN=DIR tests/bench/llamacpp.sh --model F --bench build/bin/bench_stage [--threads 2] [--rounds 5] [--out FILE.md] [--check]
#
# LLAMA_BIN holds llama-bench and llama-batched-bench of a native build, outside this tree. Prefill: one prompt of 512
# tokens. Decode: 64 tokens of B sequences after prompts of 16. --check fails below the targets of the model that the file is,
# by its name: Qwen2.5-0.5B decode of one sequence 1.6, prefill 3; Gemma 3 270M 1.2 and 1.5; any other 0.95, of eight 2, prefill 1.2
# (set for SmolLM2-135M). Another load on the machine hits both sides alike only on average: keep it idle.
set -eu

model='' bench='' threads=2 rounds=5 out='' check=0
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=$2; shift ;;
    --bench) bench=$2; shift ;;
    --threads) threads=$2; shift ;;
    --rounds) rounds=$2; shift ;;
    --out) out=$2; shift ;;
    --check) check=1 ;;
    *) echo "llamacpp.sh: $1 is unknown; see the head of this file" >&2; exit 2 ;;
    esac
    shift
done
[ -n "$model" ] && [ -n "$bench" ] || { echo "llamacpp.sh: --model and --bench are needed" >&2; exit 2; }
: "${LLAMA_BIN:?names the folder of llama-bench and llama-batched-bench}"
for program in "$LLAMA_BIN/llama-bench" "$LLAMA_BIN/llama-batched-bench" "$bench"; do
    [ -x "$program" ] || { echo "llamacpp.sh: $program is no program" >&2; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

ours() {
    "$bench" --model "$model" --threads "$threads" --repeats 1 --json "$work/ours.$1.json" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; exit 1; }
}

theirs() {
    { "$LLAMA_BIN/llama-bench" -m "$model" -t "$threads" -p 512 -n 0 -r 1 -o jsonl >"$work/prefill.$1.jsonl" &&
        "$LLAMA_BIN/llama-batched-bench" -m "$model" -t "$threads" -tb "$threads" -c 2048 -npp 16 -ntg 64 \
            -npl 1,2,4,8,16 --output-format jsonl >"$work/decode.$1.jsonl"; } 2>"$work/log" ||
        { cat "$work/log" >&2; exit 1; }
}

round=1
while [ "$round" -le "$rounds" ]; do
    echo "round $round of $rounds" >&2
    if [ $((round % 2)) -eq 1 ]; then ours "$round"; theirs "$round"; else theirs "$round"; ours "$round"; fi
    round=$((round + 1))
done

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
commit=$(git -C "$(dirname "$0")" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
python3 - "$work" "$rounds" "$check" "$cpu" "$threads" "$commit" "$(basename "$model")" <<'PY' >"$work/table" || failed=$?
import json, statistics, sys
from pathlib import Path

work, rounds, check = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
cpu, threads, commit, model = sys.argv[4:8]
target = {("prefill", 512): 1.2, ("decode", 1): 0.95, ("decode", 8): 2.0}
for part, wanted in (("qwen", {("prefill", 512): 3.0, ("decode", 1): 1.6}), ("gemma", {("prefill", 512): 1.5, ("decode", 1): 1.2})):
    target = wanted if part in model.lower() else target
ours, theirs, backend = {}, {}, ""


def lines(path):
    return [json.loads(l) for l in path.read_text().splitlines() if l.startswith("{")]


for r in range(1, rounds + 1):
    doc = json.loads((work / f"ours.{r}.json").read_text())
    backend = doc["backend"]
    for x in doc["results"]:
        ours.setdefault((x["test"], x["n"]), []).append(x["tokens_per_s"])
    for x in lines(work / f"prefill.{r}.jsonl"):
        if x["n_prompt"]:
            theirs.setdefault(("prefill", x["n_prompt"]), []).append(x["avg_ts"])
    for x in lines(work / f"decode.{r}.jsonl"):
        theirs.setdefault(("decode", x["pl"]), []).append(x["speed_tg"])

print(f"{model}, {cpu}, {backend}, {threads} threads, commit {commit}, medians of {rounds} rounds (least to most)\n")
print("| test | Sluice stage tok/s | llama.cpp tok/s | ratio | target |\n| --- | --- | --- | --- | --- |")
missed = []
for key in ours:
    if key not in theirs:
        sys.exit(f"llama.cpp gave no figure for {key}")
    a, b = statistics.median(ours[key]), statistics.median(theirs[key])
    want = target.get(key)
    name = f"prefill of {key[1]}" if key[0] == "prefill" else f"decode, batch {key[1]}"
    span = lambda v: f"({min(v):.0f} to {max(v):.0f})"
    print(f"| {name} | {a:.1f} {span(ours[key])} | {b:.1f} {span(theirs[key])} | {a / b:.2f} | {want or ''} |")
    if want and a / b < want:
        missed.append(f"{name}: {a / b:.2f} is below {want}")
if missed:
    print("\n" + "; ".join(missed))
sys.exit(3 if missed and check else 0)
PY
cat "$work/table"
[ -z "$out" ] || cp "$work/table" "$out"
exit "${failed:-0}"
