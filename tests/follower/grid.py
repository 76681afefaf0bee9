"""The grid in which the members of a large flock sit (docs/protocol/2-records.md §2.10)."""

import json
from dataclasses import dataclass
from pathlib import Path
from collections.abc import Sequence

from wire import demand, digest

COLUMNS = 64
ROW_MEMBERS, ROW_MEMBERS_LEAST = 32, 31


@dataclass(frozen=True)
class Sitter:
    """A member that is to have a cell, and its cell in the parent, if it keeps that."""

    id: bytes
    votes: bool
    before: int | None


def may_have(rows: int, members: int) -> bool:
    """Whether a flock of so many members may have so many rows (§2.10.1)."""
    least = max(1, members // ROW_MEMBERS)
    return rows == least or rows > least and members >= ROW_MEMBERS_LEAST * rows


def is_within(cell: int, rows: int, members: int) -> bool:
    """Whether a grid has a cell (§2.10.1)."""
    row, column = divmod(cell, COLUMNS)
    return row < rows and column < members // rows + (row < members % rows)


def check_cells(cells: Sequence[int], voters: Sequence[int]) -> None:
    """§2.2.4 rule 11, for all cells and those of voters."""
    rows, members = 1 + max(cell // COLUMNS for cell in cells), len(cells)
    demand(may_have(rows, members), "§2.2.4 rule 11", f"{members} members in {rows} rows")
    if rows == 1:
        demand(not any(cells), "§2.2.4 rule 11", "a cell in a flock of one row")
        return
    demand(len(set(cells)) == members, "§2.2.4 rule 11", "two members in one cell")
    demand(all(is_within(cell, rows, members) for cell in cells), "§2.2.4 rule 11", "a cell beyond its row")
    demand(all(cell < COLUMNS for cell in voters), "§2.2.4 rule 11", "a voter outside of row 0")


def cells_of(rows_before: int, parent: bytes, sitters: Sequence[Sitter]) -> list[int]:
    """The cells of members, who are given by ascending id (§2.10.2)."""
    members = len(sitters)
    rows = rows_before if may_have(rows_before, members) else max(1, members // ROW_MEMBERS)
    if rows == 1:
        return [0] * members
    grid = [COLUMNS * row + column for column in range(COLUMNS) for row in range(rows)
            if is_within(COLUMNS * row + column, rows, members)]
    first = [cell for cell in grid if cell < COLUMNS]
    # Rule 1
    cell_of = {s.id: s.before for s in sitters if rows_before > 1 and s.before is not None and s.before in grid}
    learners = {s.id for s in sitters if not s.votes}
    # Rule 2
    for voter in (s.id for s in sitters if s.votes):
        own = cell_of.get(voter)
        if own in first:
            continue
        holder = {cell: id for id, cell in cell_of.items()}
        free = [cell for cell in first if cell not in holder]
        if free:
            cell_of[voter] = free[0]
            continue
        above = [] if own is None else [own % COLUMNS]
        taken = next(cell for cell in [*above, *first] if holder.get(cell) in learners)
        learner = holder[taken]
        cell_of[voter] = taken
        if own is None:
            del cell_of[learner]
        else:
            cell_of[learner] = own
    # Rule 3
    taken_cells = set(cell_of.values())
    without = [s.id for s in sitters if s.id not in cell_of]
    order = sorted(without, key=lambda id: (digest("starling ring v1", parent, id), id))
    cell_of.update(zip(order, (cell for cell in grid if cell not in taken_cells)))
    return [cell_of[s.id] for s in sitters]


def check_grid(path: Path) -> int:
    """Gives the members of each case their cells; returns the number of cases."""
    cases = json.loads(path.read_text())["cases"]
    for case in cases:
        sitters = [Sitter(bytes([fill]) * 32, votes, before) for fill, votes, before in case["members"]]
        cells = cells_of(case["rows"], bytes.fromhex(case["digest"]), sitters)
        demand(cells == case["cells"], "§2.10.2", f"other cells: {case['case']}")
        check_cells(cells, [cell for cell, s in zip(cells, sitters) if s.votes])
    return len(cases)
