"""Amendments: their layout, and the terms of a run after them (docs/protocol/5-membership.md §5.8)."""

import math
import struct
from dataclasses import astuple, dataclass, replace
from typing import Annotated

from specification import RunSpec, ranges
from wire import B32, F64, U32, U64, ZERO, OneOf, Opt, Sig, check_signature, demand, digest, u64

CODES = "QQddIddBIII"


@dataclass(frozen=True)
class Changes:
    """§5.8.1"""

    rounds: Annotated[int | None, Opt(U64)] = None
    tokens: Annotated[int | None, Opt(U64)] = None
    lr: Annotated[float | None, Opt(F64)] = None
    lr_final: Annotated[float | None, Opt(F64)] = None
    warmup_steps: Annotated[int | None, Opt(U32)] = None
    weight_decay: Annotated[float | None, Opt(F64)] = None
    clip: Annotated[float | None, Opt(F64)] = None
    minority: Annotated[int | None, Opt(Annotated[int, OneOf(1, 3)])] = None
    grace_ms: Annotated[int | None, Opt(U32)] = None
    patience_ms: Annotated[int | None, Opt(U32)] = None
    share: Annotated[int | None, Opt(U32)] = None

    def encoded(self) -> bytes:
        """The bytes of these fields (§1.2)."""
        fields = zip(CODES, astuple(self))
        return b"".join(b"\0" if value is None else b"\1" + struct.pack("<" + code, value) for code, value in fields)

    def then(self, later: "Changes") -> "Changes":
        """These changes, and then later ones."""
        pairs = zip(astuple(self), astuple(later))
        return Changes(*(before if after is None else after for before, after in pairs))


@dataclass(frozen=True)
class Settings:
    """§5.8.2 rule 1"""

    amendments: U32
    newest: B32
    changes: Changes


NONE = Settings(0, ZERO, Changes())


@dataclass(frozen=True)
class Amendment:
    """§5.8.1"""

    number: U32
    before: B32
    since: U64
    changes: Changes
    signature: Annotated[bytes | None, Opt(Sig)]

    def name(self, run: bytes) -> bytes:
        """§1.1.1"""
        parts = struct.pack("<I", self.number), self.before, u64(self.since), self.changes.encoded()
        return digest("starling amendment v1", run, *parts)


def check_form(amendment: Amendment) -> None:
    """§5.8.1"""
    demand(amendment.number > 0 and amendment.changes != Changes(), "§5.8.1", "no number, or no changes")
    floats = [x for x in astuple(amendment.changes) if isinstance(x, float)]
    demand(all(math.isfinite(x) and math.copysign(1, x) > 0 for x in floats), "§5.8.1", "a float")


def settings_after(before: Settings, amended: Amendment | None, run: bytes, number: int) -> Settings:
    """The settings after the record of this round (§2.2.5 rule 9)."""
    if amended is None:
        return before
    follows = (amended.number, amended.before) == (before.amendments + 1, before.newest)
    demand(follows and amended.since <= number + 1, "§2.2.5 rule 9", "its amendment is not the next one, or too early")
    return Settings(amended.number, amended.name(run), before.changes.then(amended.changes))


def in_force(spec: RunSpec, settings: Settings) -> RunSpec:
    """The terms of the round after a record with these settings (§5.8.2 rule 1)."""
    c = settings.changes

    def pick(**values: float | int | None) -> dict[str, float | int]:
        return {key: value for key, value in values.items() if value is not None}

    inner = pick(
        lr=c.lr, lr_final=c.lr_final, warmup_steps=c.warmup_steps, weight_decay=c.weight_decay, clip=c.clip
    )
    return replace(
        spec,
        budget=replace(spec.budget, **pick(rounds=c.rounds, tokens=c.tokens)),
        inner=replace(spec.inner, **inner),
        partition=replace(spec.partition, **pick(minority=c.minority, grace_ms=c.grace_ms)),
        join=replace(spec.join, **pick(patience_ms=c.patience_ms, share=c.share)),
    )


def check_amended(spec: RunSpec, run: bytes, amended: Amendment | None, after: Settings) -> None:
    """§5.8.2 rule 3: somebody with a right to it has made it, and the run may have these terms."""
    if amended is None:
        return
    demand((spec.creator is None) == (amended.signature is None), "§5.8.2 rule 3", "a signature too many or too few")
    if spec.creator is not None and amended.signature is not None:
        check_signature(spec.creator, amended.signature, amended.name(run))
    for rule, holds in ranges(in_force(spec, after)):
        demand(holds, "§5.8.2 rule 3", f"{rule} is out of its range after the amendment")
