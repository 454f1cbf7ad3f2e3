#!/usr/bin/env bash
# tests/bench/rpc_peer.sh - the whole service by HTTP, two stages of one thread, against llama.cpp split the same way: llama-server
# with two ggml-rpc-server workers of one thread over loopback. Same file, same load tool, in turns in one run.
#   LLAMA_BIN=DIR  folder of llama-server and ggml-rpc-server, outside this tree
#   --rounds N (5)  --seconds S (4) of each decode figure  --check: decode of one stream 3, of eight 5, prefill of 512 5
# A peer that waits uses no CPU, and both are asked alone; keep the machine idle otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/lib.sh
bench_flags "$@"
seconds=4
bench_own seconds
need_llama llama-server ggml-rpc-server
bench_build sluice sluice-launch sluice-coordinator sluice-stage sluice-gateway
bench_model

start_peer() {
    local i at=()
    for i in 1 2; do
        free_port
        start "rpc$i" "$LLAMA_BIN/ggml-rpc-server" -H 127.0.0.1 -p "$port" -t 1
        at+=("127.0.0.1:$port")
    done
    sleep 1
    free_port && url=http://127.0.0.1:$port
    start peer "$LLAMA_BIN/llama-server" -m "$model" --rpc "${at[0]},${at[1]}" -ngl 99 -ts 1,1 -t 1 -c 18432 -np 9 \
        --host 127.0.0.1 --port "$port"
    wait_ready peer "$url/health"
}

start_service ours 2 1 --slots 9 --context 2048 && ours=$url
start_peer && theirs=$url

measure() {
    for n in 1 8; do note "$1.$n" decode "$2" $n "$seconds"; done
    note "$1.prefill" prefill "$2" 512
}
for round in $(seq "$rounds"); do
    say "round $round of $rounds"
    if [ $((round % 2)) -eq 1 ]; then
        measure ours "$ours"
        measure theirs "$theirs"
    else
        measure theirs "$theirs"
        measure ours "$ours"
    fi
done

report() {
    bench_head "Two stages of one thread against llama.cpp with two RPC workers of one thread"
    echo "$(basename "$model"), by HTTP over loopback, medians of $rounds rounds in turns (least to most), tokens/s. Decode: $seconds s of steady"
    echo "streams after prompts of 16. Prefill: one prompt, from its sending to its first token."
    echo
    echo "| | Sluice | llama.cpp | ratio | target |"
    echo "| --- | --- | --- | --- | --- |"
    ratio_row "decode, 1 stream" ours.1 theirs.1 3
    ratio_row "decode, 8 streams" ours.8 theirs.8 5
    ratio_row "prefill of 512" ours.prefill theirs.prefill 5
}
bench_report report
