#!/usr/bin/env bash
# tests/run.sh - builds and runs the tests: installs what is missing, release tests, sanitizers, fuzzing. Ends with the one
# line "N passed, N failed, N skipped" over everything. Under 25 minutes on two cores.
#   --full           longer cases too: under 75 minutes    --nightly        all there is, without a limit
#   --only PART      one part: unit, component, model, service, asan, tsan, fuzz
#   --fuzz-seconds N time of each fuzz target (10; full 60, nightly 600)
#   SLUICE_BUILD_DIR (default ./build; sanitizer builds beside it), SLUICE_MODEL_DIR (what deploy/get_model.sh fetches: SmolLM2;
#   from --full on Qwen2.5 and Gemma 3 too)
set -uo pipefail
cd "$(dirname "$0")/.."

only= fuzz_seconds= tier=fast
while [ $# -gt 0 ]; do
    case $1 in
    --full | --nightly) tier=${1#--}; shift ;;
    --only) only=${2:?}; shift 2 ;;
    --fuzz-seconds) fuzz_seconds=${2:?}; shift 2 ;;
    --help) sed -n '2,8s/^# //p' "$0"; exit 0 ;;
    *) echo "run.sh: '$1' is no flag" >&2; sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
    esac
done
case $only in
'' | unit | component | model | service | asan | tsan | fuzz) ;;
*) echo "run.sh: --only $only: unit, component, model, service, asan, tsan and fuzz are parts" >&2; exit 2 ;;
esac
# Every test that is not of a longer tier runs in this one. Sanitizers run the fast ones only, whatever the tier.
case $tier in
fast) longer='^(full|nightly)$' default_fuzz_seconds=10 ;;
full) longer='^nightly$' default_fuzz_seconds=60 ;;
nightly) longer='^none$' default_fuzz_seconds=600 ;;
esac
fuzz_seconds=${fuzz_seconds:-$default_fuzz_seconds}
readonly not_fast='^(full|nightly)$'
# The failure cases under ASan are for the longer tiers.
not_asan=$not_fast
[ $tier = fast ] && not_asan='^(full|nightly|case)$'
# Services on fake stages sleep more than they compute: so many at once keep two cores busy, and bounds in time still hold.
readonly service_jobs=3

build=${SLUICE_BUILD_DIR:-$PWD/build}
logs=$build/test-logs
passed=0 failed=0 skipped=0 began=$SECONDS
say() { printf '== %4d s  %s\n' $((SECONDS - began)) "$*"; }
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
broken() { say "FAILED: $*"; failed=$((failed + 1)); }
finish() {
    say "done"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
    exit
}

say "dependencies"
deploy/install_deps.sh test || { broken "dependencies"; finish; }
mkdir -p "$logs"
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)

# build_in DIR NAME TARGETS cmake-flags...: configures and builds, quietly; the log is shown when it fails. TARGETS: names, "all",
# or "label:L" for the programs of the tests with that label (a test's program has the test's name).
build_in() {
    local dir=$1 name=$2 targets=$3
    shift 3
    say "build: $name"
    if cmake -S . -B "$dir" -G Ninja "${launcher[@]}" "$@" >"$logs/$name.cmake.log" 2>&1 &&
        case $targets in
        label:*) targets=$(ctest --test-dir "$dir" -N -L "${targets#label:}" | sed -nE 's/^ *Test +#[0-9]+: //p') ;;
        esac &&
        ninja -C "$dir" $targets >"$logs/$name.build.log" 2>&1; then
        return 0
    fi
    tail -n 40 "$logs/$name.cmake.log" "$logs/$name.build.log"
    broken "build of $name"
    return 1
}

# run_ctest DIR NAME ctest-flags...: adds to the counts and shows what failed or was skipped, with its reason. Whole services are
# held to bounds in time, which a busy machine can break: those get a second try, and it is told.
run_ctest() {
    local dir=$1 name=$2 log=$logs/$2.ctest.log
    shift 2
    say "tests: $name"
    ctest --test-dir "$dir" --output-on-failure --no-tests=error "$@" >"$log" 2>&1
    local rc=$?
    local n_skip n_fail n_run
    read -r n_fail n_run < <(sed -nE 's/.*, ([0-9]+) tests? failed out of ([0-9]+)$/\1 \2/p' "$log")
    [ -n "${n_run:-}" ] || { n_fail=1 n_run=1; } # ctest itself did not get to its end
    n_skip=$(grep -c '\*\*\*Skipped' "$log")
    [ $rc -eq 0 ] || [ "$n_fail" -gt 0 ] || n_fail=1
    passed=$((passed + n_run - n_skip - n_fail)) failed=$((failed + n_fail)) skipped=$((skipped + n_skip))
    if [ "$n_fail" -gt 0 ]; then
        grep -vE '^ *[0-9]+/[0-9]+ Test .*(Passed|Skipped)|^ *Start ' "$log" | tail -n 150
    elif grep -qE '\*\*\*(Failed|Timeout|Exception)' "$log"; then
        say "passed at the second try (the log has the first): $(grep -E '\*\*\*(Failed|Timeout|Exception)' "$log" | tr -s '. ' ' ')"
    fi
    grep -E '\*\*\*Skipped' "$log"
    say "tests: $name: $((n_run - n_skip - n_fail)) passed, $n_fail failed, $n_skip skipped"
}

build_in "$build" release all -DCMAKE_BUILD_TYPE=Release || finish
if wanted unit; then
    run_ctest "$build" unit -L unit -LE "$longer"
fi
if wanted component; then
    run_ctest "$build" component -L component -LE "$longer" -j2
fi

say "model"
SLUICE_MODEL_SMOLLM2=$(deploy/get_model.sh smollm2) || { broken "the model cannot be fetched"; finish; }
export SLUICE_MODEL_SMOLLM2
if [ $tier != fast ]; then
    # Tests of the larger ones are of the longer tiers; without its file a test is skipped.
    if SLUICE_MODEL_QWEN=$(deploy/get_model.sh qwen2.5); then export SLUICE_MODEL_QWEN; else broken "qwen2.5 cannot be fetched"; fi
    if SLUICE_MODEL_GEMMA=$(deploy/get_model.sh gemma3); then export SLUICE_MODEL_GEMMA; else broken "gemma3 cannot be fetched"; fi
fi

if wanted model; then
    run_ctest "$build" model -L model -LE "$longer"
fi

if wanted service || wanted asan; then
    # The official clients, from PyPI; kept between runs.
    venv=$build/test-venv
    if [ ! -f "$venv/.ready" ]; then
        say "python clients"
        if /usr/bin/python3 -m venv --system-site-packages "$venv" >"$logs/venv.log" 2>&1 &&
            "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt >>"$logs/venv.log" 2>&1; then
            touch "$venv/.ready"
        else
            tail -n 20 "$logs/venv.log"
            broken "the python clients cannot be installed"
            finish
        fi
    fi
    export SLUICE_TEST_PYTHON=$venv/bin/python
fi
if wanted service; then
    run_ctest "$build" service -L service -LE "$longer" -j$service_jobs --repeat until-pass:2
fi

if wanted asan && build_in "$build-asan" asan all -DCMAKE_BUILD_TYPE=Debug -DSLUICE_SANITIZE=address; then
    export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
    export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
    run_ctest "$build-asan" asan-unit -L 'unit|component' -LE "$not_fast" -j2
    run_ctest "$build-asan" asan-service -L asan -LE "$not_asan" -j$service_jobs --repeat until-pass:2
    unset ASAN_OPTIONS UBSAN_OPTIONS LSAN_OPTIONS
fi

if wanted tsan && build_in "$build-tsan" tsan label:tsan -DCMAKE_BUILD_TYPE=Debug -DSLUICE_SANITIZE=thread; then
    export TSAN_OPTIONS=halt_on_error=1
    run_ctest "$build-tsan" tsan -L tsan -LE "$not_fast"
    unset TSAN_OPTIONS
fi

if wanted fuzz && build_in "$build-fuzz" fuzz fuzzers -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang-14 -DSLUICE_FUZZ=ON; then
    say "fuzzing: $fuzz_seconds s each, three at a time"
    # The corpus in the tree is read only; what is found lies in the build folder.
    fuzz_one() {
        local target=$1 name dict
        name=$(basename "$target")
        dict=tests/fuzz/${name#fuzz_}.dict
        mkdir -p "$3/$name.corpus"
        # A leak report needs ptrace; -rss_limit_mb bounds what a hostile input may take.
        "$target" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$3/$name." \
            $([ -e "$dict" ] && echo "-dict=$dict") "$3/$name.corpus" "tests/fuzz/corpus/${name#fuzz_}" >"$3/$name.log" 2>&1
    }
    export -f fuzz_one
    targets=("$build-fuzz"/fuzz/fuzz_*)
    printf '%s\n' "${targets[@]}" | xargs -P 3 -I{} bash -c 'fuzz_one "$1" "$2" "$3" || touch "$3/$(basename "$1").failed"' _ {} "$fuzz_seconds" "$logs"
    for t in "${targets[@]}"; do
        name=$(basename "$t")
        if [ -e "$logs/$name.failed" ]; then
            rm -f "$logs/$name.failed"
            tail -n 40 "$logs/$name.log"
            broken "$name"
        else
            passed=$((passed + 1))
            say "$name: $(grep -o 'stat::number_of_executed_units: *[0-9]*' "$logs/$name.log" | grep -o '[0-9]*$') inputs"
        fi
    done
fi
finish
