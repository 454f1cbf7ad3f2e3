#!/usr/bin/env bash
# deploy/demo.sh - from a fresh clone to a streamed answer: installs what is missing, builds, fetches a model, starts
# coordinator, stages and gateway by mpirun, asks one question, shows the status and serves until Ctrl-C.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) # the files that flags name are the caller's

usage() {
    cat <<'U'
usage: deploy/demo.sh [flags] [-- any sluice-launch flag]
  --once TEXT        end after the answer to TEXT
  --model NAME|FILE  smollm2 (the default), qwen2.5 or gemma3, fetched; or any GGUF. One without a chat template, such as gemma3,
                     is a base model: TEXT is not answered then, it goes on
  --stages N         number of stages (default 2)
  --http HOST:PORT   where the gateway listens (default 127.0.0.1:8080)
  --grpc HOST:PORT   where the coordinator listens (default 127.0.0.1:7411)
  SLUICE_BUILD_DIR   build folder (default: build of this tree)   SLUICE_MODEL_DIR  where models are kept
Ctrl-C drains: running answers finish; a second one ends at once.
U
}

once= model= stages=2 http=127.0.0.1:8080 grpc=127.0.0.1:7411 extra=()
while [ $# -gt 0 ]; do
    case $1 in
    --once | --model | --stages | --http | --grpc)
        [ $# -ge 2 ] || { echo "demo: $1 wants a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --help) usage; exit 0 ;;
    --) shift; extra=("$@"); break ;;
    *) echo "demo: '$1' is no flag" >&2; usage >&2; exit 2 ;;
    esac
done
case $stages in '' | *[!0-9]* | 0) echo "demo: --stages: '$stages' is not allowed; a whole number from 1 is" >&2; exit 2 ;; esac
case $model in
'' | smollm2 | qwen2.5 | gemma3) ;;
*) [ -f "$model" ] || { echo "demo: --model $model: no such file, and not smollm2, qwen2.5 or gemma3" >&2; exit 3; } ;;
esac

say() { echo "demo: $*" >&2; }
build=${SLUICE_BUILD_DIR:-$root/build}

"$root/deploy/install_deps.sh" build
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
say "building in $build"
[ -f "$build/build.ninja" ] || cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${launcher[@]}" >/dev/null
if [ -t 2 ]; then
    ninja -C "$build" sluice-launch sluice-coordinator sluice-stage sluice-gateway sluice >&2
else
    NINJA_STATUS='demo: [%f/%t] ' ninja -C "$build" sluice-launch sluice-coordinator sluice-stage sluice-gateway sluice |
        awk 'NR % 25 == 1 { print; fflush() } /FAILED|error/ { print }' >&2
fi
[ -f "$model" ] || model=$("$root/deploy/get_model.sh" "${model:-smollm2}")

# What is in it, and whether it can be served at all, before anything starts.
facts=$("$build/bin/sluice" model --stages "$stages" "$model") || exit
say "$(head -n 1 <<<"$facts")"
is_base=
if grep -q '^template *none' <<<"$facts" && [[ " ${extra[*]} " != *" --chat-template"* ]]; then
    is_base=1
    say "this is a base model: it has no chat template, so it completes plain text and holds no conversation"
fi

# A taken port is told before anything starts.
taken() { (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }
for at in "$http" "$grpc"; do
    if taken "$at"; then
        echo "demo: address $at is in use: stop what listens there or choose another with --http/--grpc" >&2
        exit 4
    fi
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader OMPI_MCA_plm_rsh_agent=
log=$(mktemp "${TMPDIR:-/tmp}/sluice-demo.XXXXXX.log")
say "starting $stages stages, coordinator and gateway (log: $log)"
# In a session of its own, so that the terminal's Ctrl-C reaches this script alone.
setsid mpirun -np "$stages" "$build/bin/sluice-launch" --model "$model" --http "$http" --grpc "$grpc" "${extra[@]}" \
    >"$log" 2>&1 </dev/null &
job=$!

stops=0
stop() {
    stops=$((stops + 1))
    if [ $stops -eq 1 ]; then
        say "draining (Ctrl-C again ends at once)"
        kill -USR1 "$job" 2>/dev/null || true
    else
        kill -TERM "$job" 2>/dev/null || true
    fi
}
trap stop INT TERM HUP
trap 'kill -TERM "$job" 2>/dev/null || true' EXIT # whatever ends this script: nothing is left behind
# Waits for the job's end whatever signals come; leaves its exit code in $code. A signal cuts a wait short: then it is asked
# again (bash keeps the code of a job that has ended).
wait_job() {
    local before
    while :; do
        before=$stops code=0
        wait "$job" || code=$?
        [ "$stops" -ne "$before" ] || break
    done
    trap - EXIT
}
finish() {
    [ $stops -gt 0 ] || stop
    wait_job
    if [ "$code" -eq 0 ]; then rm -f "$log"; fi
    exit "$code"
}
fail() {
    say "$1; the log's last lines:"
    tail -n 15 "$log" >&2
    kill -TERM "$job" 2>/dev/null || true
    wait_job
    [ "$code" -ne 0 ] || code=1
    exit "$code"
}

url=http://$http
started=$SECONDS
next=2
until curl -fs -m 2 "$url/ready" >/dev/null 2>&1 || "$build/bin/sluice" --url "$url" status --json 2>/dev/null | grep -q '"ready": true'; do
    [ $stops -eq 0 ] || finish
    kill -0 "$job" 2>/dev/null || fail "the service ended before it was ready"
    if [ $((SECONDS - started)) -ge $next ]; then
        say "loading ($((SECONDS - started)) s)$(grep -oE '(packing weights:|measuring|KV pool of) .*' "$log" | tail -n 1 | sed 's/^/: /')"
        next=$((next + 2))
    fi
    sleep 0.1 || true # Ctrl-C ends the sleep too, not this script
done
say "ready after $((SECONDS - started)) s: $url"

if [ -n "$is_base" ]; then
    text=${once:-The sky is blue because}
    say "completing: $text"
    ask=complete
else
    text=${once:-Why is the sky blue?}
    say "asking: $text"
    ask=chat
fi
"$build/bin/sluice" $ask --url "$url" --max-tokens 200 --temperature 0 "$text" || { [ $stops -gt 0 ] || fail "the answer failed"; }
[ -z "$once" ] || finish
echo
"$build/bin/sluice" status --url "$url" || true
say "serving at $url (log: $log); Ctrl-C ends"
wait_job
[ "$code" -ne 0 ] || rm -f "$log"
exit "$code"
