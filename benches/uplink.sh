#!/usr/bin/env bash
# Has four nodes say the rates of their uplinks, on lines of known rates with short and long queues, after five reductions by
# owners. Needs root (network namespaces). A line of this machine that is faster than its cores is not measured well.
# usage: uplink.sh BIN_DIR      RATES, QUEUES: lists of Mbit/s and ms; JSON: a file for one object a line
set -euo pipefail
bin=${1:?usage: uplink.sh BIN_DIR}
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
for rate in ${RATES:-2 10 25 100 300 1000}; do
    for queue in ${QUEUES:-50 250}; do
        # A reduction takes some four seconds, at 2 Mbit/s twelve, and gets 8 MiB at least.
        kib=$((rate * 1300 > 8192 ? rate * 1300 : 8192))
        "$bin/bench-reduce" --no-rivals --nodes 4 --engine owners --codec int8 --rate "$rate" --queue "$queue" \
            --kib "$kib" --turns 4 --json "$rows" >/dev/null
    done
done
python3 - "$rows" "${JSON:-}" <<'PYTHON'
import json, sys
rows, to = sys.argv[1:]
print(f"{'Mbit/s':>7} {'queue ms':>9} {'said, Mbit/s':>28} {'furthest':>9}")
for line in open(rows):
    row = json.loads(line)
    rate, said = row["rate_mbit_per_s"][0], [kbps / 1000 for kbps in row["uplinks_kbps"]]
    off = max((value / rate - 1 for value in said), key=abs)
    print(f"{rate:7} {row['queue_ms']:9} {' '.join(f'{value:.1f}' for value in said):>28} {100 * off:+8.0f}%")
    if to:
        mine = {"bench": "uplink", "rate_mbit_per_s": rate, "queue_ms": row["queue_ms"], "said_mbit_per_s": said, "furthest": off}
        with open(to, "a") as file:
            file.write(json.dumps(mine) + "\n")
PYTHON
