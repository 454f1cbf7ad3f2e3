#!/usr/bin/env bash
# deploy/install_deps.sh [build|test] - installs the Debian packages that are missing; says nothing when none is.
#   build  what the programs need (default)   test  also what the tests need
set -euo pipefail
build=(gcc g++ cmake ninja-build pkg-config git libgrpc-dev libprotobuf-c-dev protobuf-c-compiler libopenmpi-dev openmpi-bin
    libmicrohttpd-dev libgnutls28-dev libjansson-dev libpcre2-dev libhwloc-dev libssl-dev libcurl4-openssl-dev
    python3 python3-jinja2 python3-pip)
test=(libcmocka-dev clang-14 libclang-rt-14-dev valgrind python3-venv python3-grpcio python3-protobuf procps iproute2 curl openssl)
wanted=("${build[@]}")
promtool=
if [ "${1:-build}" = test ]; then
    wanted+=("${test[@]}")
    command -v promtool >/dev/null || promtool=missing
fi
missing=()
for p in "${wanted[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null)" = "ii " ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && [ -z "$promtool" ] && exit 0
echo "installing: ${missing[*]} ${promtool:+promtool}" >&2
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
dir=$(mktemp -d)
chmod 755 "$dir"
trap 'rm -rf "$log" "$dir"' EXIT

# The checker of metrics pages alone, and not at any price: package prometheus would start a server.
install_promtool() {
    (cd "$dir" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && $sudo install usr/bin/promtool /usr/local/bin/)
}

for try in 1 2 3; do
    if $sudo apt-get update -qq >"$log" 2>&1 &&
        { [ ${#missing[@]} -eq 0 ] || $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >>"$log" 2>&1; } &&
        { [ -z "$promtool" ] || install_promtool >>"$log" 2>&1 ||
            echo "install_deps: no promtool: only the tests' own reader will judge metrics pages" >&2; }; then
        exit 0
    fi
    sleep $((try * 3))
done
tail -n 20 "$log" >&2
echo "install_deps: apt-get failed" >&2
exit 1
