#!/usr/bin/env bash
# Kills a random node of four at N random moments, restarts it, and prints p50 and p99 of the gap without a commit.
# usage: kills.sh BIN_DIR [KILLS] [SEED]
set -euo pipefail
bin=${1:?usage: kills.sh BIN_DIR [KILLS] [SEED]}
exec "$bin/starling-kills" --bin-dir "$bin" --kills "${2:-20}" --seed "${3:-1}"
