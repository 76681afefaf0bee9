#!/usr/bin/env bash
# Runs attention's kernels for tensor cores on the CPU, from the CUDA that cubecl makes of them, and compares the
# results with f64 (tests/gpu/emulator/README.md). Ends with 1 if an error is beyond its limit; it is skipped, with
# the reason, where something is missing.
# STARLING_CUDA names a folder with include and lib of CUDA 13; without it NVIDIA's packages are installed where
# gpu-check.sh has them, beside the builds. GPU_TESTS names the built unit tests of starling-gpu; without it they are
# built as by make test. WORK keeps the sources and the emulators; without it they go.
# usage: emulate-attention.sh
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/gpu

skip() {
    echo "emulate-attention SKIPPED: $1"
    exit 0
}
command -v cc >/dev/null || skip "there is no C compiler"
command -v g++ >/dev/null || skip "there is no g++"
command -v python3 >/dev/null || skip "there is no python3"

# NVRTC and its headers: cubecl writes down sources only as it compiles them.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/starling/target}
home=$CARGO_TARGET_DIR/gpu-check
cuda=${STARLING_CUDA:-$home/wheels/nvidia/cu13}
if [ -z "${STARLING_CUDA:-}" ] && [ ! -e "$home/wheels/done" ]; then
    python3 -m pip --version >/dev/null 2>&1 || skip "python3 has no pip"
    rm -rf "$home/wheels"
    why=$(timeout 600 python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$home/wheels" \
        -r "$here/requirements.txt" 2>&1) || skip "pip cannot install NVIDIA's packages: $(tail -n 1 <<<"$why")"
    touch "$home/wheels/done"
fi
[ -e "$cuda/include/cuda_fp16.h" ] || skip "$cuda has no headers of CUDA"
compgen -G "$cuda/lib/libnvrtc.so*" >/dev/null || skip "$cuda has no NVRTC"

work=${WORK:-}
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/driver" "$work/ptx"
rm -f "$work/cubecl"
cc -shared -fPIC -O1 -Wall -Wextra -o "$work/driver/libcuda.so.1" "$here/driver.c" -lpthread

tests=${GPU_TESTS:-}
if [ -z "$tests" ]; then
    command -v cargo >/dev/null || skip "there is no cargo"
    # The flags of make test, so that nothing is compiled twice.
    (cd "$root" && cargo test --release --workspace --exclude starling-protocol --locked --features cuda --lib \
        --no-run --message-format=json) >"$work/built"
    tests=$(python3 -c 'import json, sys
for line in sys.stdin:
    made = json.loads(line) if line.startswith("{") else {}
    if made.get("executable") and made["target"]["name"] == "starling_gpu":
        print(made["executable"])' <"$work/built")
fi
[ -x "$tests" ] || { echo "FAILED: there are no unit tests of starling-gpu at \`$tests\`" && exit 1; }

# The driver computes nothing; with STUB_PTX the test only compiles.
echo "compiling the kernels (minutes)"
env CUDA_PATH="$cuda" LD_LIBRARY_PATH="$work/driver:$cuda/lib" STUB_ARCH=90 STUB_PTX="$work/ptx" STUB_MEMORY=143771 \
    CUBECL_DEBUG_LOG="$work/cubecl" timeout 900 "$tests" --ignored attention::cuda_test >"$work/said" 2>&1 ||
    { tail -n 20 "$work/said" | cut -c1-1000 && echo "FAILED: the kernels do not compile" && exit 1; }
dims=$(python3 "$here/emulator/sources.py" "$work/cubecl" "$work")
[ "$dims" = "32 64 128" ] || { echo "FAILED: the kernels are for heads of $dims, not of 32 64 128" && exit 1; }
building=()
for dim in $dims; do
    g++ -O1 -std=c++17 -fno-strict-aliasing -w -DDIM="$dim" -I"$work/$dim" -o "$work/$dim/emulator" \
        "$here/emulator/main.cpp" &
    building+=($!)
done
for one in "${building[@]}"; do wait "$one"; done

failed=0 shapes=0
play() {
    local dim=$1
    shift
    shapes=$((shapes + 1))
    "$work/$dim/emulator" 1 "$1" 4 2 "${@:2}" || failed=1
}
for dim in $dims; do
    order=0
    for tokens in 1 17 100 200; do
        for late in 0 1; do
            play "$dim" "$tokens" "$((order++ % 3))" "$late"
        done
    done
    # The references of the softmax move.
    play "$dim" 200 2 1 0.05
done
[ "$failed" = 0 ] && echo "emulate-attention: all $shapes shapes are within their limits"
exit "$failed"
