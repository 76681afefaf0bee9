"""The inner steps and the codec that the next round has (§2.11)."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, Protocol

from payloads import payload_max
from specification import Codec
from wire import demand


def median(times: Iterable[int]) -> int | None:
    """§2.11.1 rule 1"""
    known = sorted(t for t in times if t > 0)
    return known[(len(known) - 1) // 2] if known else None


def overheads_after(before: tuple[int, int, int], stated: Iterable[int]) -> tuple[int, int, int]:
    """§2.11.1 rule 2"""
    newest = median(stated)
    return before if newest is None else (newest, *before[:2])


class Known(NamedTuple):
    """The statements that a choice goes by: those of voters, but for the number of all contributors."""

    members: int
    step_us: list[int]
    upload_kbps: list[int]
    overheads: tuple[int, int, int]


class Bounds(Protocol):
    """The fields of `sync` of §2.1.1 that bound a choice."""

    codec: Codec
    gap_max: int
    coarsest: Codec | None


def best(peak: Callable[[Codec], float], codec: Codec, sync: Bounds) -> Codec:
    """§2.11.3"""
    last = sync.codec.number if sync.coarsest is None else sync.coarsest.number
    if codec.number < last and peak(coarser := Codec(codec.number + 1, 0)) > peak(codec) * 1.03:
        return coarser
    if codec.number > sync.codec.number and peak(finer := Codec(codec.number - 1, 0)) >= peak(codec) * 0.99:
        return finer
    return codec


def choice_after(before: tuple[int, Codec], sync: Bounds, parameters: int, known: Known) -> tuple[int, Codec]:
    """§2.11.2 and §2.11.3, where `gap_max` is above 0, and `before` the parent's."""
    (now, codec), most = before, sync.gap_max
    step, cost = median(known.step_us), median(known.overheads)
    if known.members < 2 or step is None or cost is None or 0 in known.overheads:
        return before
    lines = sorted(k or 2**32 - 1 for k in known.upload_kbps)
    line, size = lines[(len(lines) - 1) // 2], float(payload_max(codec, parameters))
    others = float(known.members - 1) / float(known.members)
    wire = 0 if line == 2**32 - 1 else min(int(16.0 * size * others * 1000.0 / float(line)), cost)

    def costs(other: Codec) -> int:
        told = int(float(cost - wire) + float(wire) * (float(payload_max(other, parameters)) / size))
        return min(max(told, 1), 2**32 - 1)

    def goodput(steps: int, cost: int) -> float:
        trained = float(steps) * float(step)
        apart = math.sqrt(float(steps) * float(known.members - 1))
        return trained / (trained + float(cost)) * (1.0 / (1.0 + 0.0264 * apart))

    def peak(other: Codec) -> float:
        steps = [now << n for n in range(32) if now << n <= most] + [now >> n for n in range(32) if now >> n]
        return max(goodput(n, costs(other)) for n in steps)

    codec = best(peak, codec, sync) if wire else codec
    least = goodput(now, costs(codec)) * 1.03
    choices = (n for n in (2 * now, now // 2) if 1 <= n <= most and goodput(n, costs(codec)) > least)
    return next(choices, now), codec


def check_control(path: Path) -> int:
    """Checks the choices of `control.json`; returns their number."""
    checked, named = 0, {"bf16": Codec(1, 0), "int8": Codec(2, 0), "int4": Codec(3, 0), None: None}
    for course in json.loads(path.read_text()):
        codec, coarsest = named[course["codec"]], named[course["coarsest"]]
        sync = SimpleNamespace(codec=codec, gap_max=course["gap_max"], coarsest=coarsest)
        now, overheads = (course["inner_steps"], codec), (0, 0, 0)
        for stated in course["rounds"]:
            overheads = overheads_after(overheads, stated["overhead_us"])
            if course["gap_max"]:
                known = Known(len(stated["step_us"]), stated["step_us"], stated["upload_kbps"], overheads)
                before, now = now, choice_after(now, sync, course["parameters"], known)
                overheads = overheads if now[1] == before[1] else (0, 0, 0)
            told = (stated["inner_steps"], named[stated["codec"]])
            demand(now == told, "§2.11", f"{now} instead of {told}")
            demand(list(overheads) == stated["overheads"], "§2.11.1", f"{overheads} are not {stated['overheads']}")
            checked += 1
    return checked
