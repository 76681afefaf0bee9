"""A follower of recorded runs, written from docs/protocol alone (README, *Parts of an implementation*).

    python tests/follower RECORDING...              verify recordings to their last record
    python tests/follower --flips SEED RECORDING... verify them, then flip single bytes, and name each
    python tests/follower --vectors FOLDER          read the vectors of protocol/vectors

It needs the packages of requirements.txt beside it. The file RECORDING.flips gets the result of each flip. The status
is 0 if all checks hold, 1 if one does not, 2 if an argument is wrong.
"""

import argparse
import sys
import time
from pathlib import Path

from control import check_control
from flips import flip_bytes, lines_of, table
from follower import Follower, Recording, Refused, follow
from grid import check_grid
from made import check_made
from vectors import check_codec, check_wire
from wire import Fault


def main() -> int:
    """Runs the command of the arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="follower", description="Verifies recordings of `starling chain export`.")
    parser.add_argument("recordings", nargs="*", type=Path, metavar="RECORDING")
    parser.add_argument("--flips", type=int, metavar="SEED", help="flip single bytes at places drawn from this seed")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="the folder protocol/vectors")
    arguments = parser.parse_args()
    wrong = [str(folder) for folder in arguments.recordings if not folder.is_dir()]
    if wrong or not (arguments.recordings or arguments.vectors):
        parser.error(f"{', '.join(wrong) or 'nothing'}: name folders that `starling chain export` wrote")
    holds = [show_vectors(arguments.vectors)] if arguments.vectors else []
    holds += [show_recording(folder, arguments.flips) for folder in arguments.recordings]
    return 0 if all(holds) else 1


def show_vectors(folder: Path) -> bool:
    """Reads the vectors, and prints the result."""
    try:
        wire, codec = check_wire(folder / "wire.txt"), check_codec(folder / "codec.txt")
        made, grids = check_made(folder / "wire.txt"), check_grid(folder / "grid.json")
        chosen = check_control(folder / "control.json")
    except Fault as fault:
        print(f"vectors: RED: {fault}")
        return False
    print(f"vectors: {wire} documents and digests of wire.txt and {codec} payloads of codec.txt are as specified; "
          f"{made} certificates made here are taken or refused as they should be, {grids} flocks sit as specified, "
          f"and {chosen} rounds have the steps that they should have")
    return True


def show_recording(folder: Path, seed: int | None) -> bool:
    """Follows a recording, and with a seed flips bytes of it."""
    files, started = Recording.open(folder), time.monotonic()
    try:
        follower = follow(files)
    except Refused as refused:
        print(f"{folder.name}: RED: {refused}")
        return False
    print(f"{folder.name}: {summary(files, follower)}, in {time.monotonic() - started:.1f} s")
    if seed is None:
        return True
    outcomes = flip_bytes(files, seed)
    folder.with_name(f"{folder.name}.flips").write_text("\n".join(lines_of(outcomes)) + "\n")
    named = sum(outcome.named for outcome in outcomes)
    print(f"{folder.name}: {named} of {len(outcomes)} flips of one byte were named, seed {seed}\n{table(outcomes)}")
    return named == len(outcomes)


def summary(files: Recording, follower: Follower) -> str:
    """The verified parts, as a sentence."""
    record, numbers = follower.head.record, files.numbers()
    counts = ", ".join(f"{count} {what}" for what, count in follower.seen.items())
    return (f"records {numbers[0]} to {numbers[-1]} hold ({counts}); the last is round {record.round} with state "
            f"{record.state_root.hex()[:16]}")


if __name__ == "__main__":
    sys.exit(main())
