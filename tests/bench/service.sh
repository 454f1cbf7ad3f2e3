#!/usr/bin/env bash
# tests/bench/service.sh - the service by HTTP against the stage alone, in turns, on the same model, threads and batch: what
# HTTP, gRPC, planning and processes cost. One stage. Prints both sides and their ratio; fails under 0.85.
#   SLUICE_BUILD_DIR (default ./build)  SLUICE_MODEL_SMOLLM2 (default: get_model.sh)  THREADS=2  BATCHES="1 8"  ROUNDS=3
#   LOG=FILE: the report goes there too (docs/bench)
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
rounds=${ROUNDS:-3}
bench_flags "$@"
bench_own
threads=${THREADS:-2} tokens=${TOKENS:-256}
read -r -a batches <<<"${BATCHES:-1 8}"
bench_build bench_stage sluice sluice-launch sluice-coordinator sluice-stage sluice-gateway
bench_model

stage() { "$build/bin/bench_stage" --model "$model" --threads "$threads" --prefill 0 --tokens "$tokens" --batches "$1" --repeats 1 |
    awk '$1 == "decode" { print $3 }'; }
service() {
    load "$url" load --concurrency "$1" --requests "$1" --prompt-tokens 16 --max-tokens "$tokens"
    json "$work/load.json" throughput.output_tokens_per_s
}

start_service service 1 "$threads" --slots 16 --context 1024
for b in "${batches[@]}"; do
    for _ in $(seq "$rounds"); do
        note "stage$b" stage "$b"
        note "service$b" service "$b"
    done
done

report() {
    bench_head "The service by HTTP against the stage alone"
    echo "$(basename "$model"), 1 stage, $threads threads, $tokens tokens after 16, medians of $rounds rounds in turns (least to most), tokens/s."
    echo
    echo "| batch | service | stage | ratio | target |"
    echo "| --- | --- | --- | --- | --- |"
    for b in "${batches[@]}"; do ratio_row "$b" "service$b" "stage$b" 0.85; done
}
bench_report report
exit "$failed"
