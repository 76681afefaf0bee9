"""Flips single bytes of a recording, and checks that the follower names the place."""

import random
from collections import Counter
from dataclasses import dataclass, replace

from follower import Follower, Recording, Refused

# Number of flips of each kind of file: files of the chain, and files with which a recording begins.
OF_THE_CHAIN, OF_THE_BEGINNING = 24, 6
CHAIN_KINDS = ("record", "certificate", "update")


@dataclass(frozen=True)
class Flip:
    """A change of one byte of one file."""

    name: str
    at: int
    flipped: bytes
    # Records before this one are unchanged.
    seq: int

    @property
    def kind(self) -> str:
        return kind_of(self.name)


@dataclass(frozen=True)
class Outcome:
    """A flip, and the follower's error; None if it noticed nothing."""

    flip: Flip
    said: Refused | None

    @property
    def named(self) -> bool:
        return self.said is not None and self.flip.name in self.said.names


def kind_of(name: str) -> str:
    """The kind of a file: record, certificate, update, manifest, chunk or spec."""
    return name.rpartition(".")[2].partition("-")[0]


def flips_of(files: Recording, seed: int) -> list[Flip]:
    """Places in files of every kind, drawn from a seed, in the order in which a follower reads them."""
    draw = random.Random(seed)
    flips = []
    for kind in sorted({kind_of(name) for name in files.names}):
        names = sorted(name for name in files.names if kind_of(name) == kind)
        for _ in range(OF_THE_CHAIN if kind in CHAIN_KINDS else OF_THE_BEGINNING):
            name = draw.choice(names)
            data = bytearray(files.read(name))
            at = draw.randrange(len(data))
            data[at] ^= draw.randrange(1, 256)
            flips.append(Flip(name, at, bytes(data), 0 if kind == "spec" else int(name.partition(".")[0])))
    return sorted(flips, key=lambda flip: flip.seq)


def outcome_of(flip: Flip, files: Recording, before: Follower | None) -> Outcome:
    """Follows the recording with the flip to its end, with a follower whose head is before the flip."""
    changed = replace(files, instead={flip.name: flip.flipped})
    try:
        follower = before.copy() if before else Follower.begin(changed)
        follower.advance_to(files.numbers()[-1], changed)
    except Refused as said:
        return Outcome(flip, said)
    return Outcome(flip, None)


def flip_bytes(files: Recording, seed: int) -> list[Outcome]:
    """The outcome of each flip."""
    first, outcomes = files.numbers()[0], []
    before: Follower | None = None
    for flip in flips_of(files, seed):
        if flip.seq > first:
            before = before or Follower.begin(files)
            before.advance_to(flip.seq - 1, files)
        outcomes.append(outcome_of(flip, files, before if flip.seq > first else None))
    return outcomes


def lines_of(outcomes: list[Outcome]) -> list[str]:
    """A line for each flip: the place, and the follower's error."""
    lines = []
    for outcome in outcomes:
        said = outcome.said or "nothing was noticed"
        lines.append(f"{'named' if outcome.named else 'MISSED':6}  {outcome.flip.name}, byte {outcome.flip.at}: {said}")
    return lines


def table(outcomes: list[Outcome]) -> str:
    """A row for each kind of file and rule, and the flips that were missed."""
    keys = [(o.flip.kind, o.said.fault.section if o.said else "nothing", o.named) for o in outcomes]
    counts = sorted(Counter(keys).items())
    rows = [f"  {kind:12} {section:16} {'named' if named else 'MISSED':6} {count:4}" for (kind, section, named), count in counts]
    return "\n".join([*rows, *(f"  {line}" for line in lines_of([o for o in outcomes if not o.named]))])
