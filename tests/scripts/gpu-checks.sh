#!/usr/bin/env bash
# All that a GPU is needed for, on a machine with one that may have no network and no compiler. The binaries are built
# here and carried. A stage has a time limit, appends one JSON object to OUT/rows.jsonl, and the next one follows
# whatever came of it; the stages of most worth come first. Without a GPU each stage runs for a moment and says so.
#
#   gpu-checks.sh pack OUT [BIN_DIR]    here: OUT/pack.tar.xz, of the binaries that `make build` has made
#   gpu-checks.sh first PACK OUT        there, at most 9 minutes: PACK is the archive, OUT a folder
#   gpu-checks.sh second PACK OUT       the rest, at most 9 minutes
#
# STARLING_COMMIT names the commit in the rows. STARLING_STAGES="NAME NAME" plays these stages alone.
# STARLING_DRY=SECONDS is the most that a stage takes in a dry run.
set -uo pipefail
usage() {
    sed -n '7,9s/^# *//p' "$0" >&2
    exit 2
}
[ $# -ge 2 ] || usage
checkout=$(cd "$(dirname "$0")/../.." && pwd)

if [ "$1" = pack ]; then
    set -e
    out=$2 bin=${3:-${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/starling/target}/release}
    mkdir -p "$out"
    pack=$(mktemp -d)
    trap 'rm -rf "$pack"' EXIT
    mkdir "$pack/bin"
    for program in starling bench-train bench-gpu; do
        strip -o "$pack/bin/$program" "$bin/$program" 2>/dev/null || cp "$bin/$program" "$pack/bin/"
    done
    cp "$checkout/benches/pytorch/train_step.py" "$checkout/tests/gpu/flock.py" "$pack"
    # Text of which a byte model learns something, the same for all commits near this one.
    cat "$checkout"/docs/*.md "$checkout"/docs/*/*.md >"$pack/text.txt"
    tar -C "$pack" -c . | xz -T0 "${XZ_LEVEL:--6}" >"$out/pack.tar.xz"
    bytes=$(wc -c <"$out/pack.tar.xz")
    echo "$out/pack.tar.xz: $bytes bytes"
    [ "$bytes" -lt $((64 << 20)) ] || { echo "more than the 64 MiB that travel" >&2; exit 1; }
    exit 0
fi
[ $# = 3 ] || usage
which=$1
mkdir -p "$3"
out=$(cd "$3" && pwd)
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
tar -C "$work" -xJf "$2" || exit 2
PATH=$work/bin:$PATH
python=${PYTHON:-python3}
rows=$out/rows.jsonl
# Seconds of the whole call, and what is left for the end of it.
whole=525

# CUDA's libraries: the machine's, and those that PyTorch brings.
if [ -z "${CUDA_PATH:-}" ]; then
    CUDA_PATH=$(ls -d /usr/local/cuda-13 /usr/local/cuda 2>/dev/null | head -n 1)
    export CUDA_PATH
    brought=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0] + "/cu13/lib")' 2>/dev/null)
    export LD_LIBRARY_PATH=$CUDA_PATH/lib64:$CUDA_PATH/targets/x86_64-linux/lib:$brought:${LD_LIBRARY_PATH:-}
fi
# PyTorch compiles once for all stages.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$work/inductor}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$work/triton}
export PYTHONUNBUFFERED=1
card=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
dry=""
if [ -z "$card" ]; then
    card="none" dry=${STARLING_DRY:-5}
fi

# Appends a row: stage, outcome, seconds, and the file with its words.
row() {
    "$python" - "$rows" "$1" "$2" "$3" "$4" "$card" "${STARLING_COMMIT:-unknown}" <<'PYTHON'
import json, sys
rows, stage, outcome, seconds, words, card, commit = sys.argv[1:]
text = open(words, errors="replace").read()[-4000:]
row = {"bench": "gpu-checks", "commit": commit, "card": card, "stage": stage, "outcome": outcome}
row |= {"seconds": int(seconds), "words": text}
with open(rows, "a") as file:
    file.write(json.dumps(row) + "\n")
print(f"{stage}: {outcome} after {seconds} s\n{text}", flush=True)
PYTHON
}

# Whether a stage is to be played.
chosen() {
    [[ " ${STARLING_STAGES:-$1} " == *" $1 "* ]]
}

# Runs a stage: its name, whether it `needs` a card or has `none` of that, its most seconds, and its command.
stage() {
    local name=$1 needs=$2 most=$3 said=$work/$1.said began=$SECONDS left status=0 outcome=ok
    shift 3
    chosen "$name" || return 0
    left=$((whole - SECONDS))
    [ "$most" -le "$left" ] || most=$left
    if [ "$most" -lt 5 ]; then
        echo "no time was left for it" >"$said"
        row "$name" late 0 "$said"
        return
    fi
    [ -z "$dry" ] || [ "$most" -le "$dry" ] || most=$dry
    timeout --kill-after=10 "$most" "$@" >"$said" 2>&1 || status=$?
    case $status in
        0) ;;
        124 | 137) outcome=late ;;
        *) outcome=failed ;;
    esac
    [ -z "$dry" ] || [ "$needs" = none ] || echo "(this stage needs a card: a dry run)" >>"$said"
    row "$name" "$outcome" $((SECONDS - began)) "$said"
}

# The stages that are more than one command. They run in processes of their own, so that a time limit ends them.

environment() {
    nvidia-smi --query-gpu=name,driver_version,memory.total,memory.free,compute_cap,clocks.max.sm --format=csv
    ls -d /usr/local/cuda*
    find -L "$CUDA_PATH" -name 'libnvrtc.so*' -o -name 'libcublasLt.so*' 2>/dev/null | sort -u
    "$python" -c 'import torch; print("PyTorch", torch.__version__, torch.version.cuda)'
    echo "$(nproc) cores"
    starling --version
}

# Seconds from a node's start to its first step, twice: the second one finds what the first has compiled.
starts() {
    local home
    printf 'name = "starts"\n[model]\npreset = "125m"\nseq_len = 256\n[data]\nsources = ["%s"]\nholdout = 0.05\n' \
        "$work/text.txt" >"$work/starts.toml"
    printf '[inner]\nsteps = 1\nbatch = 4\n[budget]\nrounds = 1\n' >>"$work/starts.toml"
    for home in cold warm; do
        [ $home = cold ] || { mkdir -p "$work/warm" && cp -r "$work/cold/kernels" "$work/warm/"; }
        "$python" - "$home" starling train --run "$work/starts.toml" --home "$work/$home" --cache "$work/cache" \
            --device cuda --no-mdns --metrics off --log info --json <<'PYTHON' || return 1
import json, subprocess, sys, time
name, *command = sys.argv[1:]
began, first = time.monotonic(), None
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] in ("step", "trained") and first is None:
            first = time.monotonic() - began
print(f"{name}: {first} s to the end of the first step; it ended with {process.returncode}")
sys.exit(first is None)
PYTHON
    done
}

# Beside PyTorch, with a row.
bench_train() {
    JSON=${JSON-$rows} bench-train --script "$work/train_step.py" --python "$python" --device cuda "$@"
}
# Alone, with a row.
bench_alone() {
    python=/none bench_train "$@"
}
# The same without a row: PyTorch keeps what it compiles.
compile_for() {
    JSON='' bench_train --way compiled-bf16 --rounds 1 --steps 1 --case "$1"
}

# Another program holds all of the card's memory but so many bytes, while a command runs.
beside_another() {
    "$python" - "$@" <<'PYTHON'
import subprocess, sys, torch
left, *command = sys.argv[1:]
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(free - int(left), 0), dtype=torch.uint8, device="cuda")
print("held", held.numel(), flush=True)
sys.exit(subprocess.run(command).returncode)
PYTHON
}
# Far too little memory has to be an error that says so.
no_memory() {
    local said
    if said=$(beside_another 300000000 bench-train --python /none --device cuda --rounds 1 --steps 1 \
        --case 125m:8x1024 2>&1); then
        echo "$said"
        return 1
    fi
    echo "$said"
    ! grep -q Traceback <<<"$said" && grep -q memory <<<"$said"
}
# A comparison whose rows all have to say that they are right.
agreeing() {
    local status=0 found=$work/agreeing.$BASHPID
    bench-gpu "$@" >"$found" || status=$?
    cat "$found"
    [ "$status" = 0 ] && ! grep -qE '"ok": ?false' "$found"
}
export -f agreeing environment starts bench_train bench_alone compile_for beside_another no_memory
export work python rows CUDA_PATH PATH

case $which in
    first)
        stage environment none 30 bash -c environment
        stage starts needs 90 bash -c starts
        # PyTorch compiles while results are compared; what is timed comes after it.
        (
            chosen torch-compiles || exit
            timeout 240 bash -c 'compile_for 125m:8x1024' >"$work/compiled-125m" 2>&1 &
            timeout 240 bash -c 'compile_for 350m:4x1024' >"$work/compiled-350m" 2>&1 &
            wait
            timeout 200 bash -c 'compile_for 1b:4x2048' >"$work/compiled-1b" 2>&1
        ) &
        compiling=$!
        stage gradients needs 120 bash -c 'agreeing gradients'
        stage cuda-and-cpu needs 90 \
            "$python" "$work/flock.py" "$work/bin/starling" "$work/text.txt" "$work/mixed" cuda cpu
        stage torch-compiles needs 200 bash -c "tail --pid=$compiling -f /dev/null; tail -n 5 $work/compiled-*"
        stage train-125m needs 70 bash -c 'bench_train --way compiled-bf16 --rounds 3 --steps 10 --case 125m:8x1024'
        stage muon-125m needs 40 bash -c 'bench_alone --optimizer muon --rounds 3 --steps 10 --case 125m:8x1024'
        stage train-350m needs 70 bash -c 'bench_train --way compiled-bf16 --rounds 3 --steps 5 --case 350m:4x1024'
        stage train-1b needs 90 bash -c 'bench_train --way compiled-bf16 --rounds 3 --steps 3 --case 1b:4x2048'
        stage muon-1b needs 60 bash -c 'bench_alone --optimizer muon --rounds 2 --steps 2 --case 1b:4x2048'
        stage attention needs 60 bench-gpu attention
        stage products needs 60 bench-gpu products
        stage transfers needs 30 bench-gpu transfers
        ;;
    second)
        stage environment none 30 bash -c environment
        stage two-nodes-one-gpu needs 110 \
            "$python" "$work/flock.py" "$work/bin/starling" "$work/text.txt" "$work/two" cuda cuda
        stage losses needs 120 bench-gpu losses
        stage taken-memory needs 60 bash -c 'beside_another 6000000000 bench-train --python /none --device cuda \
            --rounds 1 --steps 2 --case 125m:8x1024'
        stage no-memory needs 40 bash -c no_memory
        stage large-1b needs 90 bash -c 'bench_alone --rounds 1 --steps 2 --case 1b:16x2048'
        # The card through Vulkan, in f32; it needs Vulkan's loader.
        stage wgpu-gradients needs 90 bash -c 'agreeing --device wgpu gradients'
        stage cuda-and-wgpu needs 90 \
            "$python" "$work/flock.py" "$work/bin/starling" "$work/text.txt" "$work/portable" cuda wgpu
        stage wgpu-125m needs 60 bench-train --python /none --json "$rows" --device wgpu --rounds 2 --steps 2 \
            --case 125m:8x1024
        stage eager-125m needs 60 bash -c 'bench_train --way eager --rounds 3 --steps 3 --case 125m:8x1024'
        stage eager-350m needs 60 bash -c 'bench_train --way eager --rounds 3 --steps 3 --case 350m:4x1024'
        stage doctor needs 60 starling doctor --device cuda
        ;;
    *) usage ;;
esac
echo "$(wc -l <"$rows") rows in $rows after $SECONDS s"
