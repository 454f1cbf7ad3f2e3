#!/usr/bin/env bash
# tests/bench/service.sh - the service by HTTP against the stage alone, in turns, on the same model, threads and batch: what
# HTTP, gRPC, planning and processes cost. One stage. Prints both sides and their ratio; fails under 0.85.
#   SLUICE_BUILD_DIR (default ./build)  SLUICE_MODEL_SMOLLM2 (default: get_model.sh)  THREADS=2  BATCHES="1 8"  ROUNDS=3
#   LOG=FILE: the report goes there too (docs/bench)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${SLUICE_BUILD_DIR:-$PWD/build}
model=${SLUICE_MODEL_SMOLLM2:-$(deploy/get_model.sh smollm2)}
threads=${THREADS:-2} rounds=${ROUNDS:-3} tokens=${TOKENS:-256}
read -r -a batches <<<"${BATCHES:-1 8}"
ninja -C "$build" bench_stage sluice sluice-launch sluice-coordinator sluice-stage sluice-gateway >/dev/null

http=127.0.0.1:${HTTP_PORT:-18480} grpc=127.0.0.1:${GRPC_PORT:-18481}
work=$(mktemp -d)
job=
end() {
    if [ -n "$job" ]; then
        kill -TERM "$job" 2>/dev/null || true
        wait "$job" || true
    fi
    rm -rf "$work"
}
trap end EXIT
"$build/bin/sluice-launch" --model "$model" --stages 1 --threads "$threads" --slots 16 --context 1024 --http "$http" --grpc "$grpc" \
    >"$work/log" 2>&1 &
job=$!
until curl -fs -m 1 "http://$http/ready" >/dev/null; do
    kill -0 "$job" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.2
done

median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
stage() { "$build/bin/bench_stage" --model "$model" --threads "$threads" --prefill 0 --tokens "$tokens" --batches "$1" --repeats 1 |
    awk '$1 == "decode" { print $3 }'; }
service() { "$build/bin/sluice" bench --url "http://$http" --concurrency "$1" --requests "$1" --prompt-tokens 16 --prompt-ids \
    --max-tokens "$tokens" --json - | python3 -c 'import json, sys; print(json.load(sys.stdin)["throughput"]["output_tokens_per_s"])'; }

report() {
    echo "# $(date -u +%F), commit $(git rev-parse --short HEAD), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores"
    echo "# $(basename "$model"), 1 stage, $threads threads, $tokens tokens after 16, medians of $rounds rounds in turns, tokens/s"
    printf '%-8s %10s %10s %7s\n' batch stage service ratio
    local failed=0
    for b in "${batches[@]}"; do
        : >"$work/stage" >"$work/service"
        for _ in $(seq "$rounds"); do
            stage "$b" >>"$work/stage"
            service "$b" >>"$work/service"
        done
        awk -v b="$b" -v s="$(median <"$work/stage")" -v h="$(median <"$work/service")" \
            'BEGIN { printf "%-8d %10.2f %10.2f %7.3f\n", b, s, h, h / s; exit h / s < 0.85 }' || failed=1
    done
    return $failed
}
report | tee "${LOG:-/dev/null}"
