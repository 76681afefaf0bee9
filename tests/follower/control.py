"""The inner steps that the next round has (§2.11)."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

from wire import demand


def median(times: Iterable[int]) -> int | None:
    """§2.11.1 rule 1"""
    known = sorted(t for t in times if t > 0)
    return known[(len(known) - 1) // 2] if known else None


def overheads_after(before: tuple[int, int, int], stated: Iterable[int]) -> tuple[int, int, int]:
    """§2.11.1 rule 2"""
    newest = median(stated)
    return before if newest is None else (newest, *before[:2])


def steps_after(now: int, most: int, members: int, step_times: list[int], overheads: tuple[int, int, int]) -> int:
    """§2.11.2, where `most` is above 0, `now` the parent's, and the times those of voters."""
    step, cost = median(step_times), median(overheads)
    if members < 2 or step is None or cost is None or 0 in overheads:
        return now

    def goodput(steps: int) -> float:
        trained = float(steps) * float(step)
        apart = math.sqrt(float(steps) * float(members - 1))
        return trained / (trained + float(cost)) * (1.0 / (1.0 + 0.0264 * apart))

    least = goodput(now) * 1.03
    return next((n for n in (2 * now, now // 2) if 1 <= n <= most and goodput(n) > least), now)


def check_control(path: Path) -> int:
    """Checks the choices of `control.json`; returns their number."""
    checked = 0
    for course in json.loads(path.read_text()):
        now, overheads = course["inner_steps"], (0, 0, 0)
        for stated in course["rounds"]:
            overheads = overheads_after(overheads, stated["overhead_us"])
            demand(list(overheads) == stated["overheads"], "§2.11.1", f"{overheads} are not {stated['overheads']}")
            if course["gap_max"]:
                now = steps_after(now, course["gap_max"], len(stated["step_us"]), stated["step_us"], overheads)
            demand(now == stated["inner_steps"], "§2.11.2", f"{now} steps instead of {stated['inner_steps']}")
            checked += 1
    return checked
