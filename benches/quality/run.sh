#!/usr/bin/env bash
# Plays the comparisons of a list with bench-loss, and keeps their rows, tables and curves. Each seed is a process with one
# thread that waits for an idle core. Runs whose rows are there are not played again, so a queue that was stopped goes on.
# A line of a list: a name, the number of seeds, and arguments of bench-loss. JOBS: most processes at a time.
# usage: run.sh BIN_DIR LIST [RESULTS]
set -euo pipefail
usage="usage: run.sh BIN_DIR LIST [RESULTS]"
bin=$(realpath "${1:?$usage}")
list=$(realpath "${2:?$usage}")
cd "$(dirname "$0")/../.."
results=${3:-benches/results}
most=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
mkdir -p "$results"
# One file for all lines: a case that two of them have is played once.
rows=$results/rows.jsonl
# Two queues would play the same runs.
if command -v flock >/dev/null; then
    exec 9<"$results"
    flock -n 9 || { echo "another queue writes to $results: wait for it, or give another folder" >&2; exit 1; }
fi
work=$(mktemp -d)
end() {
    local children
    children=$(jobs -p)
    # shellcheck disable=SC2086
    [[ -z $children ]] || kill $children 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

idle_ticks() {
    local _ user nice system idle wait rest
    read -r _ user nice system idle wait rest </proc/stat
    echo $((idle + wait))
}

# Whether four fifths of a core were idle for two seconds.
core_is_idle() {
    [[ -r /proc/stat ]] || return 0
    local before
    before=$(idle_ticks)
    sleep 2
    (($(idle_ticks) - before >= 2 * $(getconf CLK_TCK) * 4 / 5))
}

wait_for_core() {
    core_is_idle || echo "waiting for an idle core"
    while (($(jobs -pr | wc -l) >= most)) || ! core_is_idle; do sleep 1; done
}

play() {
    local name=$1 seed=$2
    shift 2
    nice -n 10 "$bin/bench-loss" "$@" >"$work/$name.$seed" 2>&1 &
    # shellcheck disable=SC2064
    trap "kill $! 2>/dev/null; exit 143" TERM
    if wait $!; then
        sed -n "s/^seed /$name: seed /p" "$work/$name.$seed"
    else
        { echo "$name: seed $seed FAILED"; cat "$work/$name.$seed"; } >&2
        touch "$work/$name.failed"
    fi
}

# Makes the text of crates that this checkout and an earlier commit lock, and fetches them if they are not here.
make_text() {
    local locked folder
    "$bin/bench-loss" --make-text 2>"$work/text" && return
    locked=$(sed -n 's/.* commit \([0-9a-f]\{8,\}\),.*/\1/p' "$work/text" | head -n 1)
    [[ -n $locked ]] || { cat "$work/text" >&2; exit 1; }
    mkdir "$work/locked"
    git archive "$locked" | tar -x -C "$work/locked" || {
        echo "the commit $locked is not in this clone, whose crates are the text: git fetch --unshallow" >&2
        exit 1
    }
    echo "fetching the crates of commit $locked"
    for folder in . "$work/locked" "$work/locked/tests/sim" "$work/locked/fuzz"; do
        cargo fetch --quiet --locked --manifest-path "$folder/Cargo.toml"
    done
    "$bin/bench-loss" --make-text
}

# Lines of the list without comments, and without an end that lacks its newline.
lines() {
    sed -e 's/#.*//' "$list" | grep -v '^[[:space:]]*$' || true
}

make_text
while read -r name seeds rest; do
    read -r -a words <<<"$rest"
    for seed in $(seq 1 "$seeds"); do
        one=("${words[@]}" --threads 1 --first-seed "$seed" --seeds 1 --json "$rows")
        [[ $("$bin/bench-loss" "${one[@]}" --due) != 0 ]] || continue
        wait_for_core
        play "$name" "$seed" "${one[@]}" &
    done
done < <(lines)
wait

failed=0
while read -r name seeds rest; do
    if [[ -e $work/$name.failed ]]; then
        failed=1
        continue
    fi
    read -r -a words <<<"$rest"
    echo "== $name"
    "$bin/bench-loss" "${words[@]}" --threads 1 --seeds "$seeds" --json "$rows" --plot "$results/$name.svg" |
        tee "$results/$name.txt" | sed '/^seed /d'
done < <(lines)
exit $failed
