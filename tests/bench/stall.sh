#!/usr/bin/env bash
# tests/bench/stall.sh - four steady streams, then a prompt of 6,000 tokens beside them: what the streams keep of their speed, the
# longest silence, and how long the prompt takes. SmolLM2 in two stages of one thread at each decode share; llama-server with two
# threads in the same run, asked by the same tool (`sluice bench stall`).
#   LLAMA_BIN=DIR  folder of llama-server, outside this tree; without it there is no comparison
#   --rounds N (3)  --shares "0.25 0.5 0.75"  --prompt N (6000)  --before S (10)  --stall N (250): --max-stall-ms
#   --check: each stream set keeps 0.97 of its promised share, no gap above --max-stall-ms, at 0.5 the prompt takes at most 3 times its time alone
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
rounds=3
bench_flags "$@"
shares="0.25 0.5 0.75" prompt=6000 before=10 stall=250
bench_own shares prompt before stall
[ -z "${LLAMA_BIN:-}" ] || need_llama llama-server
bench_build sluice sluice-launch sluice-coordinator sluice-stage sluice-gateway
bench_model

# measure KEY URL: notes what the streams and the prompt got.
measure() {
    local of
    load "$2" stall --streams 4 --prompt-tokens "$prompt" --before "$before" --after "$before"
    for of in before:total.before during:total.during after:total.after gap_before:gaps_before_ms.max gap:gaps_during_ms.max \
        alone:long_prompts.alone_ms read:long_prompts.ttft_ms.max ratio:long_prompts.ratio; do
        note "$1.${of%%:*}" json "$work/load.json" "${of#*:}"
    done
    # The promise is against the same streams at the length that they have then (docs: scheduling): between before and after.
    note "$1.kept" awk -v b="$(tail -n 1 "$work/figures.$1.before")" -v d="$(tail -n 1 "$work/figures.$1.during")" \
        -v a="$(tail -n 1 "$work/figures.$1.after")" 'BEGIN { print 2 * d / (b + a) }'
}

ours() {
    start_service "share$1" 2 1 --slots 5 --context 8192 --decode-share "$1" --max-stall-ms "$stall"
    measure "ours$1" "$url"
    stop_job "$job"
}
theirs() {
    free_port && url=http://127.0.0.1:$port
    start peer "$LLAMA_BIN/llama-server" -m "$model" -t 2 -tb 2 -c 40960 -np 5 --host 127.0.0.1 --port "$port"
    wait_ready peer "$url/health"
    measure theirs "$url"
    stop_job "$job"
}
for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    for share in $shares; do ours "$share"; done
    [ -z "${LLAMA_BIN:-}" ] || theirs
done

# row NAME KEY: what was measured; medians.
row() {
    local k=$2
    echo "| $1 | $(figure "$k.before" 1) | $(figure "$k.during" 1) | $(figure "$k.after" 1) | $(figure "$k.kept" 3) | $(figure "$k.gap_before" 0) | $(figure "$k.gap" 0) | $(figure "$k.alone" 0) | $(figure "$k.read" 0) | $(figure "$k.ratio" 2) |"
}
report() {
    local share
    bench_head "A prompt of $prompt tokens beside four streams"
    echo "$(basename "$model"), two stages of one thread, --max-stall-ms $stall, medians of $rounds rounds (least to most). llama-server: two threads,"
    echo "no pipeline. Share kept: during over the mean of before and after. Times alone are of another prompt on the idle server, in the same round."
    echo
    echo "| server | streams before, tokens/s | during | after | share kept | longest gap before, ms | during, ms | prompt alone, ms | beside them, ms | ratio |"
    echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for share in $shares; do row "Sluice, share $share" "ours$share"; done
    [ -z "${LLAMA_BIN:-}" ] || row llama-server theirs
    echo
    echo "| promise | measured | bound |"
    echo "| --- | --- | --- |"
    for share in $shares; do
        bound_row "share $share: share kept" "ours$share.kept" at-least "$(awk -v s="$share" 'BEGIN { print 0.97 * s }')" 3
        bound_row "share $share: longest gap, ms" "ours$share.gap" at-most "$stall" 0 most
        [ "$share" != 0.5 ] || bound_row "share 0.5: time of the prompt over its time alone" ours0.5.ratio at-most 3 2
    done
}
bench_report report
