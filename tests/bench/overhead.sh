#!/usr/bin/env bash
# tests/bench/overhead.sh - what a tick and a token cost beside the computing: CPU time of coordinator, gateway and stages, bytes over
# the coordinator's connections, syscalls, context switches. SmolLM2 in two stages of one thread at 1, 4 and 8 streams, and fake
# stages at 64. Figures of one window each, by overhead_sample.py: /metrics, /proc, `ss -i`; syscalls by perf or strace.
#   --seconds S (5) of each window  --tick N (4000) us of a tick of the fake stages
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
bench_flags "$@"
seconds=5 tick=4000
bench_own seconds tick
for program in ss curl python3; do
    command -v "$program" >/dev/null || fail "$program is not installed"
done
bench_build sluice sluice-launch sluice-coordinator sluice-stage sluice-stage-fake sluice-gateway
bench_model
sample=tests/bench/overhead_sample.py

# measure NAME STREAMS [bench flags]: samples while that many streams decode, then the table's rows.
measure() {
    local name=$1 streams=$2 at
    shift 2
    start load "$sluice" bench --url "$url" --concurrency "$streams" --requests 1000000 --prompt-tokens 16 --max-tokens 1500 "$@"
    for at in $(seq 300); do
        curl -fs "$url/v1/status" | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["requests"]["decoding"] < int(sys.argv[1]))' "$streams" && break
        [ "$at" -lt 300 ] || fail "$name: the streams do not get under way"
        sleep 0.1
    done
    sleep 1
    python3 $sample take "$url" "$work/before"
    sleep "$seconds"
    python3 $sample take "$url" "$work/after"
    python3 $sample trace "$url" "$seconds" "$work/traced"
    stop_job "$job"
    python3 $sample rows "$name" "$work/before" "$work/after" "$work/traced" >>"$work/rows"
}

say "two stages of SmolLM2"
start_service real 2 1 --slots 8 --context 2048 && service=$job
for n in 1 4 8; do
    measure "two stages, $n stream$([ $n -eq 1 ] || echo s)" $n --prompt-ids
done
stop_job "$service"

say "fake stages"
free_port && url=http://127.0.0.1:$port
SLUICE_BIN=$build/bin start fake tests/lib/fake_service --stages 2 --http "${url#http://}" --slots 64 --tick-us "$tick"
wait_ready fake "$url/ready"
measure "two fake stages of $tick us, 64 streams" 64

report() {
    bench_head "What a tick and a token cost beside the computing"
    echo "$(basename "$model"); windows of $seconds s. The load client shares the cores. Control bytes: both directions of a process's"
    echo "connections with the coordinator, TCP payload (the coordinator's are the sum). Syscalls: counted by"
    echo "$(json "$work/traced" by) in a window of their own."
    echo
    python3 $sample head
    cat "$work/rows"
}
bench_report report
