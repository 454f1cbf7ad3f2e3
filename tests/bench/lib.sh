# tests/bench/lib.sh - what the benchmark scripts share: flags, services that are started and always ended, rounds in turns, medians,
# tables. Sourced from the repository's root, under `set -euo pipefail`.
#   --rounds N   rounds in turns (medians are reported)       --check   exit code 3 when a target is missed
#   SLUICE_BUILD_DIR (default ./build)   SLUICE_MODEL_SMOLLM2 (default: get_model.sh)   LOG=FILE: the report goes there too
# shellcheck shell=bash disable=SC2034

bench_command="$0$(printf ' %q' "$@")"
load_before=$(cut -d' ' -f1 /proc/loadavg)
build=${SLUICE_BUILD_DIR:-$PWD/build}
rounds=5 check=0 failed=0
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-bench.XXXXXX")
jobs_started=()

say() { echo "$(basename "$0"): $*" >&2; }
fail() {
    say "$*"
    exit 1
}

# Whatever ends the script: nothing is left running. Every job has a session of its own, so that the terminal's Ctrl-C reaches
# the script alone, and nothing of a session outlives it.
end_job() {
    local job=$1 tries
    kill -TERM "$job" 2>/dev/null || true
    for tries in $(seq 60); do
        pgrep -s "$job" >/dev/null || break
        [ "$tries" -lt 50 ] || pkill -KILL -s "$job" 2>/dev/null || true
        sleep 0.1
    done
}
bench_end() {
    local job
    trap '' INT TERM HUP
    for job in "${jobs_started[@]}"; do
        end_job "$job"
    done
    rm -rf "$work"
}
trap bench_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Takes the common flags; what is left is in ${bench_rest[@]}.
bench_flags() {
    bench_rest=()
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            case ${2:-} in '' | *[!0-9]* | 0) say "--rounds wants a number from 1" && exit 2 ;; esac
            rounds=$2
            shift
            ;;
        --check) check=1 ;;
        --help)
            sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
        *) bench_rest+=("$1") ;;
        esac
        shift
    done
}

# bench_own NAME...: takes --NAME VALUE out of the rest into the variable of that name.
bench_own() {
    local kept=() name i
    for ((i = 0; i < ${#bench_rest[@]}; i++)); do
        name=${bench_rest[i]#--}
        if [[ " $* " == *" $name "* ]] && [ $((i + 1)) -lt ${#bench_rest[@]} ]; then
            printf -v "$name" %s "${bench_rest[i + 1]}"
            i=$((i + 1))
        else
            kept+=("${bench_rest[i]}")
        fi
    done
    [ ${#kept[@]} -eq 0 ] || { say "${kept[0]} is unknown; --help" && exit 2; }
}

# Builds what the script needs (SLUICE_NO_BUILD=1: it is built).
bench_build() {
    [ -n "${SLUICE_NO_BUILD:-}" ] || ninja -C "$build" "$@" >"$work/build.log" 2>&1 || { tail -n 20 "$work/build.log" >&2; fail "the build failed"; }
    sluice=$build/bin/sluice
}

bench_model() { model=${SLUICE_MODEL_SMOLLM2:-$(deploy/get_model.sh smollm2)}; }

# --- services ---------------------------------------------------------------------------------------------------------------------

# free_port: one of the kernel's choice is taken again by any connection; those below its range are not.
next_port=$((11000 + $$ * 17 % 15000))
free_port() {
    while :; do
        next_port=$((next_port + 1))
        (exec 3<>"/dev/tcp/127.0.0.1/$next_port") 2>/dev/null || break
    done
    port=$next_port
}

# start NAME COMMAND...: in the background, its output in $work/NAME.log; the job's id in $job.
start() {
    local name=$1
    shift
    setsid "$@" >"$work/$name.log" 2>&1 </dev/null &
    job=$!
    disown "$job" # the shell says nothing about how it ends
    jobs_started+=("$job")
}

# wait_ready NAME URL: until GET URL answers 200.
wait_ready() {
    local tries
    for tries in $(seq 600); do
        curl -fs -m 1 "$2" >/dev/null 2>&1 && return 0
        kill -0 "$job" 2>/dev/null || break
        sleep 0.2
    done
    tail -n 20 "$work/$1.log" >&2
    fail "$1 does not get ready"
}

# start_service NAME STAGES THREADS [sluice-launch flags]: our own service on SmolLM2; its URL in $url.
start_service() {
    local name=$1 stages=$2 threads=$3 grpc
    shift 3
    free_port && grpc=$port
    free_port && url=http://127.0.0.1:$port
    start "$name" "$build/bin/sluice-launch" --model "$model" --stages "$stages" --threads "$threads" --http "${url#http://}" \
        --grpc "127.0.0.1:$grpc" --log warn "$@"
    wait_ready "$name" "$url/ready"
}

# need_llama PROGRAM...: llama.cpp's programs, outside this tree.
need_llama() {
    local program
    [ -n "${LLAMA_BIN:-}" ] || fail "LLAMA_BIN must name the folder of $*"
    for program in "$@"; do
        [ -x "$LLAMA_BIN/$program" ] || fail "$LLAMA_BIN/$program is no program"
    done
}

stop_job() {
    local one kept=()
    end_job "$1"
    for one in "${jobs_started[@]}"; do
        [ "$one" = "$1" ] || kept+=("$one")
    done
    jobs_started=("${kept[@]}")
}

# --- load: every figure comes from `sluice bench`, of ours and of a peer alike -----------------------------------------------------

# json FILE a.b.c: a number of a JSON file.
json() {
    python3 -c 'import functools, json, sys
take = lambda v, k: v[int(k)] if isinstance(v, list) else v[k]
print(functools.reduce(take, sys.argv[2].split("."), json.load(open(sys.argv[1]))))' "$@"
}

load() {
    "$sluice" bench "$2" --url "$1" --prompt-ids --json "$work/load.json" "${@:3}" >"$work/load.log" 2>&1 ||
        { cat "$work/load.log" >&2; fail "the load against $1 failed"; }
}

# decode URL STREAMS SECONDS: tokens/s of that many steady streams over so many seconds. Their prompts of 16 are read before. The
# server needs one slot more: a prompt of one token ends the measurement.
decode() {
    load "$1" stall --streams "$2" --stream-prompt 16 --stream-tokens 1500 --prompt-tokens 1 --no-alone --before "$3" --after 0
    json "$work/load.json" total.before
}

# prefill URL TOKENS: tokens/s of reading one prompt on the idle server, from its sending to its first token.
prefill() {
    load "$1" load --concurrency 1 --requests 1 --prompt-tokens "$2" --max-tokens 1
    awk -v n="$2" -v ms="$(json "$work/load.json" ttft_ms.mean)" 'BEGIN { print 1000 * n / ms }'
}

# --- figures ------------------------------------------------------------------------------------------------------------------------

# note KEY COMMAND...: the number that it prints is a figure of this round.
note() {
    local v
    v=$("${@:2}")
    awk -v v="$v" 'BEGIN { exit !(v ~ /^[0-9.]+(e[-+]?[0-9]+)?$/) }' || fail "$1: '$v' is no figure"
    echo "$v" >>"$work/figures.$1"
}
median() { sort -g "$work/figures.$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
least() { sort -g "$work/figures.$1" | head -n 1; }
most() { sort -g "$work/figures.$1" | tail -n 1; }

# figure KEY DIGITS: "median (least to most)".
figure() { printf "%.$2f (%.$2f to %.$2f)" "$(median "$1")" "$(least "$1")" "$(most "$1")"; }

# ratio_row NAME OURS OTHER [TARGET]: a row of a table of medians; a ratio below the target counts as failed.
ratio_row() {
    local ratio missed=
    ratio=$(awk -v a="$(median "$2")" -v b="$(median "$3")" 'BEGIN { printf "%.9f", a / b }')
    if [ -n "${4:-}" ] && awk -v r="$ratio" -v t="$4" 'BEGIN { exit r >= t }'; then
        failed=1 missed=' missed'
    fi
    printf '| %s | %s | %s | %.3f | %s |\n' "$1" "$(figure "$2" 1)" "$(figure "$3" 1)" "$ratio" "${4:-}$missed"
}

# bound_row NAME KEY at-least|at-most TARGET DIGITS [most]: a figure against a bound: the median, or with `most` the worst of all rounds.
bound_row() {
    local missed=
    if awk -v v="$("${6:-median}" "$2")" -v t="$4" -v how="$3" 'BEGIN { exit how == "at-least" ? v >= t : v <= t }'; then
        failed=1 missed=' missed'
    fi
    echo "| $1 | $(figure "$2" "$5") | ${3/-/ } $4$missed |"
}

bench_head() {
    echo "# $1"
    echo
    echo "$(date -u +%F), commit $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD -- 2>/dev/null || echo ' and changes'), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores,"
    echo "load average before the run $load_before"
    echo
    echo "    $bench_command"
    echo
}

# bench_report FUNCTION: prints its table, also to LOG; the exit code tells missed targets when --check asks for it.
bench_report() {
    "$1" >"$work/report"
    cat "$work/report"
    [ -z "${LOG:-}" ] || cp "$work/report" "$LOG"
    [ "$check" -eq 0 ] || [ "$failed" -eq 0 ] || exit 3
}
