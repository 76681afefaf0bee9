#!/usr/bin/env bash
# Plays docs/rules.md again. If a row names a test, the test has to pass, and to fail with the row's bug. If it names an
# invariant, the simulator has to catch the bug by it within SEEDS seeds (2000). Ends with 1 if a row does not hold.
# Everything is built once, tests are started without cargo, and one simulator runs all of its bugs.
# usage: rules.sh [BUG ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:?the folder for builds}/sim
seeds=${SEEDS:-2000}
jobs=${JOBS:-0}
wanted=" $* "
failed=0

# A row: its bug, a colon, and the test or invariant that notices.
rows() {
    local bug by
    while IFS='|' read -r _ _ _ bug by _; do
        bug=$(tr -d ' `' <<<"$bug")
        [[ $wanted == "  " || $wanted == *" $bug "* ]] || continue
        if [[ $by == *'`'* ]]; then
            echo "$bug:test:$(sed 's/^[^`]*`\([^`]*\)`.*/\1/' <<<"$by")"
        else
            echo "$bug:seeds:$(cut -d, -f1 <<<"$by" | tr -d ' ')"
        fi
    done < <(grep -E '^\| .* \| `[a-z-]+` \|' docs/rules.md)
}

tell() {
    [[ $2 == ok* ]] || failed=1
    printf '%-26s %s\n' "$1" "$2"
}

# Builds the tests, and lists them as `program name`.
build_tests() {
    local program
    "$cargo" test --no-run --release --locked -p starling-protocol --features sim,mutations 2>&1 |
        sed -n 's/^ *Executable .*(\(.*\))$/\1/p' |
        while read -r program; do
            "$program" --list --format terse | sed -n "s|^\(.*\): test\$|$program \1|p"
        done
}

# Whether all tests of this name pass, each in a process of its own.
passes() {
    local program test
    while read -r program test; do
        (cd protocol && "$program" --exact "$test" >/dev/null 2>&1) || return 1
    done < <(grep -E "( |::)$1\$" <<<"$tests")
}

check_test() {
    local bug=$1 name=$2
    if ! grep -qE "( |::)$name\$" <<<"$tests"; then
        tell "$bug" "RED: there is no $name"
    elif ! passes "$name"; then
        tell "$bug" "RED: $name fails without the bug"
    elif STARLING_MUTATION=$bug passes "$name"; then
        tell "$bug" "RED: $name passes with the bug"
    else
        tell "$bug" "ok: $name"
    fi
}

check_seeds() {
    local bug=$1 invariant=$2 line
    line=$(grep "^  bug $bug " <<<"$caught" | tr -s ' ' || true)
    case $line in
        *" seeds $invariant "*) tell "$bug" "ok: ${line#* bug "$bug" }" ;;
        *" seeds "*) tell "$bug" "RED: not by $invariant, but ${line#* bug "$bug" }" ;;
        *) tell "$bug" "RED: not caught in $seeds seeds" ;;
    esac
}

rows=$(rows)
[[ -n $rows ]] || { echo "no row of docs/rules.md has this bug" >&2; exit 2; }
of_seeds=$(sed -n 's/:seeds:.*//p' <<<"$rows")
tests=""
if [[ $rows == *:test:* ]]; then
    tests=$(build_tests)
    [[ -n $tests ]] || { echo "the tests of starling-protocol do not build" >&2; exit 2; }
fi
while IFS=: read -r bug kind by; do
    [[ $kind == seeds ]] || check_test "$bug" "$by"
done <<<"$rows"
if [[ -n $of_seeds ]]; then
    "$cargo" build --release --locked --quiet --manifest-path tests/sim/Cargo.toml
    caught=$("$CARGO_TARGET_DIR/release/starling-sim" --seeds 1 --mutations "$seeds" --jobs "$jobs" \
        --mutation "$(paste -sd, <<<"$of_seeds")" || true)
    while IFS=: read -r bug kind by; do
        [[ $kind == test ]] || check_seeds "$bug" "$by"
    done <<<"$rows"
fi
exit $failed
