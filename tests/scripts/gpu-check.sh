#!/usr/bin/env bash
# Looks at the trainer for GPUs on a machine without one. A driver that computes nothing (tests/gpu/driver.c) stands for
# the GPU, and NVIDIA's own compiler for kernels is there. Prints launches, copies, waits and memory of a step beside
# the limits of tests/gpu/limits.txt, assembles every kernel for three architectures, and makes devices fail: each case
# has to end in an error. It is skipped, with the reason, where something is missing.
# STARLING_CUDA names a folder with include, lib and bin of CUDA 13; without it NVIDIA's packages are installed beside
# the builds. WORK keeps what was written down; without it that goes.
# usage: gpu-check.sh BIN_DIR
set -euo pipefail
bin=$(cd "${1:?usage: gpu-check.sh BIN_DIR}" && pwd)
here=$(cd "$(dirname "$0")/../gpu" && pwd)
limits=$here/limits.txt
# The architectures: what the driver says, and what ptxas is asked for.
architectures="80:sm_80 90:sm_90a 120:sm_120a"
# GiB of this machine's memory for the largest case.
large=12
failed=0

skip() {
    echo "gpu-check SKIPPED: $1"
    exit 0
}
fail() {
    echo "FAILED $1"
    failed=1
}
# The text without blanks around it.
trim() {
    sed 's/^ *//; s/ *$//' <<<"$1"
}
command -v cc >/dev/null || skip "there is no C compiler"
command -v python3 >/dev/null || skip "there is no python3"
[ -x "$bin/bench-gpu" ] || skip "$bin has no bench-gpu"

# NVRTC, its headers and ptxas.
home=${CARGO_TARGET_DIR:?the folder for builds}/gpu-check
mkdir -p "$home/driver"
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
cc -shared -fPIC -O1 -Wall -Wextra -o "$home/driver/libcuda.so.1" "$here/driver.c" -lpthread
# Under the first name that is looked for.
mkdir -p "$home/old"
cc -shared -fPIC -O1 -Wall -Wextra -o "$home/old/libnvrtc.so" "$here/old_nvrtc.c"

work=${WORK:-}
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/nothing"

# Runs a program with the driver; NAME=VALUE before it sets more.
with_driver() {
    env CUDA_PATH="$cuda" LD_LIBRARY_PATH="$home/driver:$cuda/lib" STUB_MEMORY=143771 "$@"
}

# Whether some words are in what was said, of any case: what it is about, what was said, and the words between bars.
says() {
    local wanted word
    IFS='|' read -ra wanted <<<"$3"
    for word in "${wanted[@]}"; do
        grep -qiF -- "$(trim "$word")" <<<"$2" || fail "$1: \`$(trim "$word")\` is missing in: $2"
    done
}

# Two steps of a case; what they ask goes to the folder.
count() {
    local case=$1 folder=$2 preset rest inner=adamw
    shift 2
    preset=${case%%:*} rest=${case#*:}
    [[ $rest != *:* ]] || inner=${rest#*:} rest=${rest%%:*}
    rm -rf "$folder" && mkdir -p "$folder/ptx"
    with_driver STUB_LOG="$folder/log" STUB_PTX="$folder/ptx" STUB_KEEP=0 STUB_TALLY=1 "$@" timeout 420 \
        "$bin/bench-gpu" counts --preset "$preset" --batch "${rest%x*}" --seq "${rest#*x}" \
        --inner "$inner" >"$folder/said" 2>&1
}

mapfile -t cases < <(python3 "$here/report.py" cases "$limits")
first=${cases[0]}
mkdir -p "$work/counts"
if ! count "$first" "$work/counts/$first" STUB_ARCH=90; then
    grep -q "without CUDA" "$work/counts/$first/said" && skip "this build has no CUDA"
    tail -n 20 "$work/counts/$first/said" | cut -c1-1000
    fail "$first does not run"
    exit 1
fi
for case in "${cases[@]}"; do
    free=$(awk '/MemAvailable/ {printf "%d", $2 / 1048576}' /proc/meminfo 2>/dev/null || echo 0)
    if [[ $case == 1b:* ]] && [ "${free:-0}" -lt "$large" ]; then
        echo "$case SKIPPED: this machine has not $large GiB of free memory"
        continue
    fi
    if [ "$case" != "$first" ] && ! count "$case" "$work/counts/$case" STUB_ARCH=90; then
        tail -n 5 "$work/counts/$case/said"
        fail "$case does not run"
        continue
    fi
    python3 "$here/report.py" counts "$limits" "$case" "$work/counts/$case/log" || failed=1
done

# Every kernel of one case, for each architecture.
assembled=$(python3 "$here/report.py" assembled "$limits")
if [ -x "$cuda/bin/ptxas" ]; then
    for pair in $architectures; do
        folder=$work/counts/$assembled
        if [ "${pair%%:*}" != 90 ]; then
            folder=$work/counts/${pair#*:}
            count "$assembled" "$folder" STUB_ARCH="${pair%%:*}" ||
                { fail "$assembled does not run as ${pair#*:}"; continue; }
        fi
        python3 "$here/report.py" modules "$limits" "${pair#*:}" "$cuda/bin/ptxas" "$folder/log" "$folder/ptx" ||
            failed=1
    done
else
    echo "assembling SKIPPED: $cuda has no ptxas"
fi

# Memory that runs out at each allocation in turn, a device that is lost, and one that computes nothing: an error, and
# never a step's report. A table has the words of a step in which a device is lost.
small=0.1m:2x64:muon
mkdir -p "$work/small"
if count "$small" "$work/small/whole" STUB_ARCH=90; then
    refused=0 wrong=0 allocations=$(grep -c '^ALLOC' "$work/small/whole/log")
    launches=$(grep -c '^LAUNCH' "$work/small/whole/log")
    # No report of a step, no panic, no signal and no time limit.
    errs() {
        local what=$1 status=0
        shift
        count "$small" "$work/small/bad" STUB_ARCH=90 "$@" || status=$?
        if [ "$status" -ge 101 ] || grep -qE '"loss"|panicked' "$work/small/bad/said"; then
            failed=1 wrong=$((wrong + 1))
            # The first ones are enough to see what is wrong.
            [ "$wrong" -gt 3 ] || echo "FAILED $what: status $status: $(tr '\n' ' ' <"$work/small/bad/said" | cut -c1-300)"
        else
            refused=$((refused + 1))
        fi
    }
    errs "no kernel runs" STUB_TALLY=0
    for n in $(seq "$allocations"); do errs "allocation $n of $allocations fails" STUB_FAIL="$n"; done
    for n in 1 $((launches / 2)) "$launches"; do
        errs "the device is lost at launch $n of $launches" STUB_LOST="$n"
    done
    echo "errors: $refused of $((allocations + 4)) (each allocation, a device lost three times, kernels that never run)"
    # The second step, in which everything is compiled.
    first=$(awk '/^LAUNCH/ {n++} /^MARK step/ {at = n + 1} END {print at}' "$work/small/whole/log") steps=0
    while IFS='|' read -r name settings words; do
        name=$(trim "$name")
        for n in "$first" $(((first + launches) / 2)) "$launches"; do
            read -ra variables <<<"${settings//AT/$n}"
            count "$small" "$work/small/bad" STUB_ARCH=90 "${variables[@]}" || fail "$name, launch $n: no step ends"
            said=$(grep '"step":2' "$work/small/bad/said" || true) steps=$((steps + 1))
            says "$name, launch $n" "$said" "$words"
        done
        echo "$name: $(cut -c1-240 <<<"$said")"
    done < <(grep -v -e '^#' -e '^$' "$here/bad_steps.txt")
    # A step takes no memory, so that others may have it.
    count "$small" "$work/small/bad" STUB_ARCH=90 STUB_GONE="$first" || fail "memory taken by others: no step ends"
    cmp -s "$work/small/whole/said" "$work/small/bad/said" || fail "a step minds that others take the device's memory"
    ! grep -q '^REFUSED' "$work/small/bad/log" || fail "a step asks for memory"
else
    tail -n 5 "$work/small/whole/said"
    fail "$small does not run"
fi

# Parameters go in and come back by way of pinned memory; without any they go the old way, of which a person is told.
said=$(with_driver STUB_TALLY=1 timeout 300 "$bin/bench-gpu" transfers 2>&1) || fail "bench-gpu transfers ends with an error"
[ "$(grep -c '"same":true' <<<"$said")" = 4 ] || fail "parameters do not come back as they went in: $said"
said=$(with_driver STUB_TALLY=1 STUB_UNPINNED=1 timeout 300 "$bin/bench-gpu" transfers 2>&1) ||
    fail "bench-gpu transfers ends with an error without pinned memory"
says "no pinned memory" "$said" "slow transfers, because | 64 MiB of pinned memory | read_s"
echo "no pinned memory: $(head -n 1 <<<"$said" | cut -c1-240)"

# Nodes that share a GPU, which has memory for one and a half: the second has fewer sequences at a time, the third none.
hold() {
    with_driver STUB_MEMORY=10000 STUB_SHARED="$work/shared" STUB_TALLY=1 timeout 200 \
        "$bin/bench-gpu" hold --preset 125m --batch 8 --seq 1024 2>&1
}
mkfifo "$work/in1" "$work/out1" "$work/in2" "$work/out2"
hold <"$work/in1" >"$work/out1" &
exec 3>"$work/in1" 4<"$work/out1"
read -r said <&4 || true
says "the first node on a GPU" "$said" "on cuda:0"
! grep -q 'inner.batch' <<<"$said" || fail "the first node on a GPU has less than all: $said"
hold <"$work/in2" >"$work/out2" &
exec 5>"$work/in2" 6<"$work/out2"
read -r said <&6 || true
says "the second node on a GPU" "$said" "has memory for 4 sequences at a time | inner.batch = 8"
echo "the second node on a GPU: $(cut -c1-240 <<<"$said")"
said=$(hold </dev/null) && fail "the third node on a GPU trains: $said"
says "the third node on a GPU" "$said" "MiB of memory free | stop other programs | --device cpu"
echo "the third node on a GPU: $(head -n 1 <<<"$said")"
# The two end with their standard input.
exec 3>&- 5>&-
wait
exec 4<&- 6<&-

# What a person is told, by the table.
mkdir -p "$work/home"
while IFS='|' read -r name settings words; do
    name=$(trim "$name") kept=(--home "$work/home") variables=()
    for setting in $settings; do
        case $setting in
            NO_NVRTC) variables+=("LD_LIBRARY_PATH=$home/driver") kept=() ;;
            OLD_NVRTC) variables+=("LD_LIBRARY_PATH=$home/driver:$home/old") kept=() ;;
            NO_HEADERS) variables+=("CUDA_PATH=$work/nothing") kept=() ;;
            *) variables+=("$setting") ;;
        esac
    done
    said=$(with_driver STUB_MEMORY=81559 "${variables[@]}" timeout 200 \
        "$bin/starling" doctor --device cuda --json "${kept[@]}" 2>"$work/doctor" | python3 -c 'import json, sys
found = [f for f in json.load(sys.stdin)["findings"] if f["check"] == "device"][0]
print(found["verdict"], "|", found["finding"], "| mend:", found["mend"])' 2>&1) || true
    echo "$name: $said"
    [[ $said == bad\ * ]] || fail "$name: it is not bad"
    [ ! -s "$work/doctor" ] || fail "$name: it says more than its findings: $(head -n 2 "$work/doctor" | tr '\n' ' ')"
    says "$name" "$said" "$words"
done < <(grep -v -e '^#' -e '^$' "$here/bad_devices.txt")
said=$(with_driver STUB_MEMORY=81559 timeout 200 "$bin/starling" doctor --device auto --home "$work/home" 2>&1) || true
grep -q '^doubtful *device *cpu' <<<"$said" || fail "auto does not say that the CPU takes the device's place: $said"

# What a lent GPU is for, without one: each stage runs for a moment, and leaves a row.
checks=$(dirname "$0")/gpu-checks.sh
if XZ_LEVEL=-0 "$checks" pack "$work/pack" "$bin" >"$work/packed" 2>&1; then
    for which in first second; do
        with_driver STUB_MEMORY=81559 STARLING_DRY=3 "$checks" $which "$work/pack/pack.tar.xz" "$work/rows" \
            >"$work/$which" 2>&1 || fail "gpu-checks.sh $which ended with $?: $(tail -n 3 "$work/$which")"
    done
    stages=$(grep -c '^        stage ' "$checks") rows=$(cat "$work/rows/rows.jsonl" 2>/dev/null | grep -c '"stage"')
    echo "gpu-checks.sh: $rows rows of $stages stages in a dry run"
    [ "$rows" = "$stages" ] || fail "a stage left no row"
else
    fail "gpu-checks.sh cannot pack: $(tail -n 3 "$work/packed")"
fi

[ "$failed" = 0 ] && echo "gpu-check: all limits hold"
exit "$failed"
