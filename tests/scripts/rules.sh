#!/usr/bin/env bash
# Plays docs/rules.md again. Of a row that names a test, that test has to pass, and to fail with the row's bug; of one that
# names an invariant, the simulator has to catch the bug by it within SEEDS seeds (2000). Ends with 1 if a row does not hold.
# usage: rules.sh [BUG ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:?the folder for builds}/sim
seeds=${SEEDS:-2000}
wanted=" $* "
CARGO_TARGET_DIR=$target "$cargo" build --release --locked --quiet --manifest-path tests/sim/Cargo.toml
passes() {
    CARGO_TARGET_DIR=$target "$cargo" nextest run --release --locked --cargo-quiet --status-level none --final-status-level none \
        -p starling-protocol --features sim,plants -E "test(/(^|::)$1\$/)" >/dev/null 2>&1
}
failed=0
while IFS='|' read -r _ _ rule bug by _; do
    bug=$(tr -d ' `' <<<"$bug")
    [[ $wanted == "  " || $wanted == *" $bug "* ]] || continue
    if [[ $by == *'`'* ]]; then
        name=$(sed 's/^[^`]*`\([^`]*\)`.*/\1/' <<<"$by")
        if ! passes "$name"; then
            verdict="RED: $name fails, or is not there, without the bug"
        elif STARLING_PLANT=$bug passes "$name"; then
            verdict="RED: $name passes with the bug"
        else
            verdict="ok: $name"
        fi
    else
        caught=$("$target/release/starling-sim" --seeds 1 --plants "$seeds" --plant "$bug" | grep "^  bug $bug " || true)
        [[ $caught == *"NOT CAUGHT"* || -z $caught ]] && verdict="RED: not caught in $seeds seeds" || verdict="ok:$(cut -c 33- <<<"$caught")"
    fi
    [[ $verdict == ok* ]] || failed=1
    printf '%-26s %s\n' "$bug" "$verdict"
done < <(grep -E '^\| .* \| `[a-z-]+` \|' docs/rules.md)
exit $failed
