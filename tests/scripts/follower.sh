#!/usr/bin/env bash
# Records short runs of real nodes and verifies them with the follower in tests/follower. Then flips single bytes; the
# follower has to name each. Ends with 1 if a check fails, and is skipped if Python's packages are not available.
# STARLING_PYTHON is a Python that has them; without it they are installed beside the builds.
# usage: follower.sh BIN_DIR OUT [SEED]
set -euo pipefail
bin=${1:?usage: follower.sh BIN_DIR OUT [SEED]}
out=${2:?usage: follower.sh BIN_DIR OUT [SEED]}
seed=${3:-1}
here=$(cd "$(dirname "$0")/.." && pwd)
skip() {
    echo "follower SKIPPED: $1"
    exit 0
}
python=${STARLING_PYTHON:-}
if [ -z "$python" ]; then
    command -v python3 >/dev/null || skip "there is no python3"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "python3 is older than 3.10"
    home=${CARGO_TARGET_DIR:?the folder for builds}/follower-python
    python=$home/bin/python
    [ -x "$python" ] || python3 -m venv "$home" >/dev/null 2>&1 || skip "python3 cannot make a virtual environment (package python3-venv)"
    why=$("$python" -m pip install --quiet --disable-pip-version-check -r "$here/follower/requirements.txt" 2>&1) ||
        skip "pip cannot install the packages: $(tail -n 1 <<<"$why")"
else
    "$python" -c 'import blake3, cryptography, numpy' 2>/dev/null || skip "$python lacks blake3, cryptography or numpy"
fi
"$bin/starling-recordings" --bin-dir "$bin" --out "$out"
PYTHONDONTWRITEBYTECODE=1 "$python" "$here/follower" --vectors "$here/../protocol/vectors" --flips "$seed" "$out"/recordings/*
