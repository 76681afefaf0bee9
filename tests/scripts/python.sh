#!/usr/bin/env bash
# Tests the package of python/ beside a node for tests, and beside real ones. Parts are skipped, with the reason, where
# PyTorch, Hugging Face's packages or a C compiler are not installed; all of it where numpy is not to be had.
# STARLING_PYTHON is a Python that has them; without it python3 is taken, and numpy, if it lacks it, is installed beside
# the builds. STARLING_BIN is the folder of the binaries; without it the parts with real nodes are skipped. STARLING_KILLS
# says how often these kill a script.
# usage: python.sh
set -euo pipefail
here=$(cd "$(dirname "$0")/../../python" && pwd)
python=${STARLING_PYTHON:-python3}
skip() {
    echo "python SKIPPED: $1"
    exit 0
}
has_numpy() { "$python" -c 'import numpy' 2>/dev/null; }
command -v "$python" >/dev/null || skip "there is no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$python is older than 3.10"
if ! has_numpy; then
    [ -z "${STARLING_PYTHON:-}" ] || skip "$python lacks numpy"
    [ -n "${CARGO_TARGET_DIR:-}" ] || skip "python3 lacks numpy, and CARGO_TARGET_DIR names no folder for it"
    home=$CARGO_TARGET_DIR/package-python
    [ -x "$home/bin/python" ] || python3 -m venv "$home" >/dev/null 2>&1 ||
        skip "python3 lacks numpy, and cannot make a virtual environment (package python3-venv)"
    python=$home/bin/python
    if ! has_numpy; then
        why=$("$python" -m pip install --quiet --disable-pip-version-check 'numpy>=1.26,<3' 2>&1) ||
            skip "pip cannot install numpy: $(tail -n 1 <<<"$why")"
    fi
fi
if [ -n "${STARLING_BIN:-}" ]; then
    STARLING_BIN=$(cd "$STARLING_BIN" && pwd)
    export STARLING_BIN
fi
cd "$here"
# One line a test, so that a skipped one tells why.
PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} \
    "$python" -m unittest discover --verbose --start-directory tests --top-level-directory tests
