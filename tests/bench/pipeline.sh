#!/usr/bin/env bash
# tests/bench/pipeline.sh - two stages of one thread, by HTTP, against what they could give at most and against one stage of two
# threads: what planning, links, processes, gRPC and HTTP cost a pipeline. SmolLM2, in turns in one run.
#   --rounds N (5)  --seconds S (4) of each figure  --check: 0.9 of the limit at 4 and 8 streams, 0.9 of one stage at 16 and in prefill
# The limit: bench_stage --limit on, the service's own split, n/2 rows per tick, both stages' ticks at the same time (stage_limit.h).
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
bench_flags "$@"
seconds=4 tokens=256 prompt=2048
bench_own seconds
bench_build bench_stage sluice sluice-launch sluice-coordinator sluice-stage sluice-gateway
bench_model

start_service pipeline 2 1 --slots 17 --context 3072 && pipeline=$url
start_service stage 1 2 --slots 17 --context 3072 && stage=$url
split=$(curl -fs "$pipeline/v1/status" | python3 -c 'import json, sys; print(json.load(sys.stdin)["stages"][1]["layers"][0])')

limit() { # bench_stage flags
    "$build/bin/bench_stage" --model "$model" --limit on --stages 2 --threads 1 --split "$split" --prompt 16 --tokens "$tokens" \
        --repeats 1 --json "$work/limit.json" "$@" >/dev/null
    json "$work/limit.json" results.0.tokens_per_s
}

measure() { # NAME URL
    for n in 4 8 16; do note "$1.$n" decode "$2" $n "$seconds"; done
    note "$1.prefill" prefill "$2" $prompt
}
measure_side() {
    case $1 in
    pipeline) measure pipeline "$pipeline" ;;
    stage) measure stage "$stage" ;;
    limit)
        for n in 4 8 16; do note "limit.$n" limit --prefill 0 --batches $n; done
        note limit.prefill limit --prefill $prompt --tick-rows 64 --batches ""
        ;;
    esac
}

for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    if [ $((round % 2)) -eq 1 ]; then order="pipeline limit stage"; else order="stage limit pipeline"; fi
    for side in $order; do measure_side "$side"; done
done

report() {
    bench_head "Two stages of one thread against their limit and one stage of two threads"
    echo "$(basename "$model"), split at layer $split, $seconds s of steady streams (the limit: $tokens tokens after 16), medians of $rounds rounds in turns (least to most), tokens/s."
    echo
    echo "| by HTTP | two stages | their limit | ratio | target |"
    echo "| --- | --- | --- | --- | --- |"
    ratio_row "decode, 4 streams" pipeline.4 limit.4 0.9
    ratio_row "decode, 8 streams" pipeline.8 limit.8 0.9
    ratio_row "decode, 16 streams" pipeline.16 limit.16
    ratio_row "prefill of $prompt" pipeline.prefill limit.prefill
    echo
    echo "| by HTTP | two stages | one stage, two threads | ratio | target |"
    echo "| --- | --- | --- | --- | --- |"
    ratio_row "decode, 4 streams" pipeline.4 stage.4
    ratio_row "decode, 8 streams" pipeline.8 stage.8
    ratio_row "decode, 16 streams" pipeline.16 stage.16 0.9
    ratio_row "prefill of $prompt" pipeline.prefill stage.prefill 0.9
}
bench_report report
