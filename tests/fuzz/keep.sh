#!/usr/bin/env bash
# tests/fuzz/keep.sh PROGRAMS FOUND [NAME...] - keeps in corpus/NAME what fuzzing found: of FOUND/fuzz_NAME or FOUND/fuzz_NAME.corpus
# (tests/run.sh leaves them in the build folder) the fewest inputs that reach an edge which none of the tree's reaches, of at most
# 8 KiB each. PROGRAMS is the folder of the libFuzzer programs (build/fuzz/fuzz with tests/run.sh). Without names: every target.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
programs=$(realpath "$1") found=$(realpath "$2")
shift 2
cd "$(dirname "$0")/corpus"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || set -- *
for name; do
    rm -rf "${work:?}"/*
    mkdir "$work/small" "$work/kept"
    for folder in "$found/fuzz_$name" "$found/fuzz_$name.corpus"; do
        [ ! -d "$folder" ] || find "$folder" -type f -size -9k -exec cp -t "$work/small" {} +
    done
    cp "$name"/* "$work/kept"
    # Edges only: the counters' features would keep ten times as many.
    "$programs/fuzz_$name" -set_cover_merge=1 -use_counters=0 -rss_limit_mb=2048 "$work/kept" "$work/small" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; exit 1; }
    before=$(find "$name" -type f | wc -l)
    for input in "$work/kept"/*; do
        [ -e "$name/${input##*/}" ] || cp "$input" "$name/found_$(sha1sum "$input" | cut -c1-12)"
    done
    echo "$name: $before inputs, now $(find "$name" -type f | wc -l)"
done
