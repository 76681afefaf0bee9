#!/usr/bin/env bash
# Fuzzes every target for SECONDS with libFuzzer, on stable Rust, from the seed corpora and the inputs of earlier runs.
# Ends with 1 if a target crashes; the input is kept beside its corpus.
# usage: fuzz.sh SECONDS [TARGET ...]
set -euo pipefail
seconds=${1:?usage: fuzz.sh SECONDS [TARGET ...]}
shift
cd "$(dirname "$0")/../../fuzz"
cargo=${CARGO:-cargo}
folder=${CARGO_TARGET_DIR:?the folder for builds}/fuzz
triple=$("${RUSTC:-rustc}" -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz without the sanitizer, which stable does not have: coverage, which steers libFuzzer.
coverage="-Cpasses=sancov-module -Ccodegen-units=1 --cfg fuzzing"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$option"
done
# The triple keeps the flags away from build scripts.
CARGO_TARGET_DIR=$folder RUSTFLAGS=$coverage "$cargo" build --release --locked --bins --target "$triple"
bin=$folder/$triple/release
corpus=$folder/corpus
CORPUS=$corpus "$bin/seeds" 2>/dev/null
targets=("$@")
[ ${#targets[@]} -gt 0 ] || for file in fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
failed=0
for target in "${targets[@]}"; do
    log=$corpus/$target.log
    if "$bin/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$corpus/$target-" "$corpus/$target" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        printf '%-12s %10s runs in %s s\n' "$target" "$runs" "$seconds"
    else
        failed=1
        printf '%-12s FAILED: %s\n' "$target" "$(grep -m 1 -A 1 panicked "$log" | tr '\n' ' ')"
        tail -n 40 "$log"
    fi
done
exit $failed
