"""Records: their layout, the rules for a record alone and after its parent, and the records that all nodes build alike
(docs/protocol/2-records.md §2.2, §2.4, §2.6, §2.7)."""

from dataclasses import dataclass, replace
from typing import Annotated
from collections.abc import Callable, Iterable

from amendments import NONE, Amendment, Settings, check_form, settings_after
from control import Known, choice_after, overheads_after
from grid import Sitter, cells_of, check_cells
from specification import Codec, RunSpec
from wire import B32, U8, U16, U32, U64, ZERO, Bool, Fault, ListOf, OneOf, Opt, decode, demand, digest, u64

GENESIS, COMMIT, SKIP, FORK = range(4)
KINDS = ("genesis", "COMMIT", "SKIP", "FORK")
VOTER, LEARNER = 1, 2
VOTERS_MAX = 31
MERGED_MAX = 64
TOKENS_MAX = 2**56 - 1
STEPS_MAX = 2**20


@dataclass(frozen=True, order=True)
class Span:
    start: U64
    count: U64

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True)
class Measured:
    step_us: U32
    upload_kbps: U32
    reduce_us: U32
    overhead_us: U32
    norm: U32


@dataclass(frozen=True)
class Contributor:
    member: B32
    ready: B32
    start: U64
    samples: U64
    tokens: U64
    steps: U32
    loss_q16: U32
    measured: Measured


@dataclass(frozen=True)
class Member:
    id: B32
    incarnation: U64
    role: Annotated[int, OneOf(VOTER, LEARNER)]
    absent: U8
    expected: Bool
    lease: Span
    upload_kbps: U32
    since: U64
    served: U16
    cell: U16


@dataclass(frozen=True)
class Grant:
    grant: B32
    uses: U32


@dataclass(frozen=True)
class Next:
    inner_steps: U32
    codec: Codec
    overhead_1: U32
    overhead_2: U32
    overhead_3: U32
    merge_tokens: U64
    merge_norm: U32
    members: Annotated[tuple[Member, ...], ListOf(Member, 1024)]
    ring: Annotated[tuple[int, ...], ListOf(U16, 64)]
    settings: Settings

    @property
    def overheads(self) -> tuple[int, int, int]:
        return self.overhead_1, self.overhead_2, self.overhead_3


@dataclass(frozen=True)
class Record:
    """§2.2.1"""

    run: B32
    lineage: B32
    seq: U64
    parent: B32
    kind: Annotated[int, OneOf(GENESIS, FORK)]
    base: B32
    round: U64
    contributors: Annotated[tuple[Contributor, ...], ListOf(Contributor, 1024)]
    update: B32
    state_root: B32
    tokens: U64
    steps: U64
    cursor: U64
    free: Annotated[tuple[Span, ...], ListOf(Span, 64)]
    merged: Annotated[tuple[bytes, ...], ListOf(B32, MERGED_MAX)]
    grants: Annotated[tuple[Grant, ...], ListOf(Grant, 512)]
    revoked: Annotated[tuple[bytes, ...], ListOf(B32, 512)]
    next: Next
    amended: Annotated[Amendment | None, Opt(Amendment)]

    @property
    def voters(self) -> list[Member]:
        return [m for m in self.next.members if m.role == VOTER]

    @property
    def spans(self) -> list[Span]:
        """Leases and pool."""
        return sorted([*self.free, *(m.lease for m in self.next.members)])


@dataclass(frozen=True)
class Link:
    """A record and its digest."""

    record: Record
    digest: bytes

    @property
    def base(self) -> bytes:
        """The record that made the state (chapter 2)."""
        return self.record.base if self.record.kind in (SKIP, FORK) else self.digest


def read_record(data: bytes) -> Link:
    """A record that is well formed by itself."""
    record = decode(Record, data, 262_144)
    check_alone(record)
    return Link(record, digest("starling record v5", data))


def ascend(keys: Iterable[object]) -> bool:
    """Whether the keys ascend without repeats."""
    listed = list(keys)
    return all(a < b for a, b in zip(listed, listed[1:]))  # type: ignore[operator]


def check_alone(r: Record) -> None:
    """§2.2.4"""
    n, members = r.next, r.next.members
    lists = ([c.member for c in r.contributors], [m.id for m in members], [g.grant for g in r.grants], r.revoked, r.merged)
    demand(all(ascend(keys) for keys in lists), "§2.2.4 rule 1", "a list does not ascend")
    demand(1 <= len(r.voters) <= VOTERS_MAX, "§2.2.4 rule 2", f"{len(r.voters)} voters")
    demand(1 <= n.inner_steps <= STEPS_MAX, "§2.2.4 rule 2", f"{n.inner_steps} inner steps")
    places = set(n.ring)
    demand(len(places) == len(n.ring) and all(p < len(members) for p in places), "§2.2.4 rule 3", "the ring names no places")
    gaps = all(a.end < b.start for a, b in zip(r.free, r.free[1:]))
    demand(gaps, "§2.2.4 rule 4", "free spans touch or do not ascend")
    demand(all(s.count > 0 and s.end <= r.cursor for s in r.spans), "§2.2.4 rule 4", "a span is empty or beyond the cursor")
    apart = all(a.end <= b.start for a, b in zip(r.spans, r.spans[1:]))
    demand(apart, "§2.2.4 rule 4", "two spans overlap")
    ages = all(m.since <= r.round and m.served <= r.round - m.since for m in members)
    demand(ages, "§2.2.4 rule 5", "a member is older, or has served more, than the record")
    if r.amended is not None:
        demand(r.kind == COMMIT, "§2.2.4 rule 10", "it amends the run, and is no commit")
        check_form(r.amended)
    check_cells([m.cell for m in members], [m.cell for m in r.voters])
    if r.kind == GENESIS:
        numbers = (r.seq, r.round, r.tokens, r.steps, *n.overheads, n.merge_tokens, n.merge_norm)
        empty = (r.parent, r.base, r.update, r.merged, r.contributors) == (ZERO, ZERO, ZERO, (), ())
        demand(not any(numbers) and empty and n.settings == NONE, "§2.2.4 rule 6", "a genesis with a past")
        return
    demand(1 <= r.seq >= r.round and r.parent != ZERO, "§2.2.4 rule 7", "seq, round or parent")
    if r.kind == COMMIT:
        check_commit_alone(r)
    else:
        past = r.base != ZERO and r.update == ZERO and not r.contributors
        demand(past, "§2.2.4 rule 9", "it has no base, or an update or contributors")


def check_commit_alone(r: Record) -> None:
    """§2.2.4 rule 8"""
    demand(r.base == ZERO and r.round >= 1 and len(r.contributors) > 0, "§2.2.4 rule 8", "base, round or contributors")
    for c in r.contributors:
        counts = c.samples >= 1 and c.tokens >= 1 and 1 <= c.steps <= STEPS_MAX and c.start + c.samples <= r.cursor
        demand(counts, "§2.2.4 rule 8", f"the counts of contributor {c.member.hex()[:8]}")
    total = sum(c.tokens for c in r.contributors)
    demand(total <= r.tokens and total < 2**64 - 1, "§2.2.4 rule 8", "fewer tokens than those of its contributors")


def check_after(parent: Link, r: Record) -> None:
    """§2.2.5; the caller checks that `parent` is the parent's digest."""
    p = parent.record
    demand(r.kind != GENESIS and r.run == p.run and r.seq == p.seq + 1, "§2.2.5 rule 1", "kind, run or seq")
    demand(r.cursor >= p.cursor, "§2.2.5 rule 1", "the cursor is lower than before")
    demand((r.lineage == p.lineage) == (r.kind != FORK), "§2.2.5 rule 2", "the lineage")
    if r.kind == COMMIT:
        check_commit_after(p, r)
    else:
        same = (r.round, r.tokens, r.steps, r.state_root) == (p.round, p.tokens, p.steps, p.state_root)
        demand(same and r.base == parent.base, "§2.2.5 rule 4", "round, tokens, state root or base")
    if r.kind == SKIP:
        demand((r.next, r.free, r.merged) == (p.next, p.free, p.merged), "§2.2.5 rule 5", "next, free or merged")
    if r.kind == FORK:
        merges = (r.next.merge_tokens, r.next.merge_norm, r.merged)
        demand(merges == (0, 0, merged_by_fork(p)), "§2.2.5 rule 6", "merge_tokens, merge_norm or merged")
        pace = (r.next.inner_steps, r.next.codec, r.next.overheads) == (p.next.inner_steps, p.next.codec, p.next.overheads)
        demand(pace, "§2.2.5 rule 6", "inner_steps, codec or overheads")
    settings = settings_after(p.next.settings, r.amended, r.run, r.round)
    demand(r.next.settings == settings, "§2.2.5 rule 9", "the settings")
    before, contributed = {m.id: m for m in p.next.members}, {c.member for c in r.contributors}
    for m in r.next.members:
        if (old := before.get(m.id)) is None:
            new = r.kind == COMMIT and m.since == r.round and m.served == 0
            demand(new, "§2.2.5 rule 8", f"since or served of the new member {m.id.hex()[:8]}")
        else:
            served = min(old.served + (m.id in contributed), 65_535)
            demand((m.since, m.served) == (old.since, served), "§2.2.5 rule 7", f"since or served of {m.id.hex()[:8]}")


def check_commit_after(p: Record, r: Record) -> None:
    """§2.2.5 rule 3"""
    leases = {m.id: m.lease for m in p.next.members}
    absent = {m.id for m in p.next.members if m.absent > 0}
    demand(r.round == p.round + 1, "§2.2.5 rule 3", "the round is not one more")
    for c in r.contributors:
        lease = leases.get(c.member, Span(-1, 0))
        most = p.next.inner_steps * (2 if c.member in absent else 1)
        fits = c.start == lease.start and c.samples <= lease.count and c.steps <= most
        demand(fits, "§2.2.5 rule 3", f"contributor {c.member.hex()[:8]} keeps to no lease")
    total = sum(c.tokens for c in r.contributors)
    demand(r.tokens == p.tokens + total, "§2.2.5 rule 3", "the tokens did not grow by the contributors'")
    demand(r.steps == p.steps + p.next.inner_steps, "§2.2.5 rule 3", "the steps did not grow by the round's")
    costs = overheads_after(p.next.overheads, [c.measured.overhead_us for c in voting(p, r)])
    costs = costs if r.next.codec == p.next.codec else (0, 0, 0)
    demand(r.next.overheads == costs, "§2.11.1 rule 2", "the costs of the last rounds")
    demand(set(p.merged) <= set(r.merged), "§2.2.5 rule 3", "a merged lineage is gone")
    norms = sorted(c.measured.norm for c in r.contributors if c.measured.norm)
    bounds = (min(total, TOKENS_MAX), norms[(len(norms) - 1) // 2] if norms else 0)
    demand((r.next.merge_tokens, r.next.merge_norm) == bounds, "§2.5 rule 7", "merge_tokens or merge_norm")


def units_max(spec: RunSpec, steps: int, newcomer: bool) -> int:
    """L of §2.4.3."""
    return steps if newcomer or spec.task is not None else max(steps, min(4 * steps, 2**42 // spec.unit))


def voting(p: Record, r: Record) -> list[Contributor]:
    """The contributors that are voters of the parent."""
    voters = {m.id for m in p.voters}
    return [c for c in r.contributors if c.member in voters]


def check_steps(spec: RunSpec, p: Record, r: Record) -> None:
    """§2.11.2"""
    choice = (p.next.inner_steps, p.next.codec)
    if r.kind == COMMIT and spec.sync.gap_max == 0:
        choice = (spec.inner.steps, spec.sync.codec)
    elif r.kind == COMMIT:
        stated = [c.measured for c in voting(p, r)]
        costs = overheads_after(p.next.overheads, [m.overhead_us for m in stated])
        seats = {m.id: m.upload_kbps for m in p.voters}
        lines = [c.measured.upload_kbps or seats[c.member] for c in voting(p, r)]
        known = Known(len(r.contributors), [m.step_us for m in stated], lines, costs)
        choice = choice_after(choice, spec.sync, spec.parameters, known)
    demand((r.next.inner_steps, r.next.codec) == choice, "§2.11", f"{r.next.inner_steps} steps, {r.next.codec}: not {choice}")


def audit(p: Record, r: Record) -> None:
    """§2.4.5: no position is used twice."""
    used = [Span(c.start, c.samples) for c in r.contributors]
    live = without(p.spans, used) if r.kind != FORK else []
    live = sorted([*live, *([Span(p.cursor, r.cursor - p.cursor)] if r.cursor > p.cursor else [])])
    without(live, r.spans)


def without(live: list[Span], used: list[Span]) -> list[Span]:
    """The live spans without the used ones, each of which must be live."""
    left = joined(live)
    for span in used:
        home = next((s for s in left if s.start <= span.start and span.end <= s.end), None)
        if home is None:
            raise Fault("§2.4.5", f"positions {span.start} to {span.end} are not live")
        left.remove(home)
        rest = [Span(home.start, span.start - home.start), Span(span.end, home.end - span.end)]
        left += [s for s in rest if s.count]
    return sorted(left)


def joined(spans: list[Span]) -> list[Span]:
    """Sorted spans; spans that touch become one."""
    whole: list[Span] = []
    for span in sorted(spans):
        if whole and whole[-1].end == span.start:
            whole[-1] = Span(whole[-1].start, whole[-1].count + span.count)
        else:
            whole.append(span)
    return whole


def ring_order(record: bytes) -> Callable[[Member], tuple[bytes, bytes]]:
    """The key that sorts members into the ring order under a record (§1.1.2)."""
    return lambda member: (digest("starling ring v1", record, member.id), member.id)


def skip_of(parent: Link) -> Record:
    """The SKIP after a record (§2.6)."""
    p = parent.record
    return replace(p, seq=p.seq + 1, parent=parent.digest, kind=SKIP, contributors=(), update=ZERO, base=parent.base, amended=None)


def merged_by_fork(p: Record) -> tuple[bytes, ...]:
    """§2.7 rule 2"""
    return tuple(sorted({*p.merged, p.lineage})) if len(p.merged) < MERGED_MAX else p.merged


def fork_of(parent: Link, spec: RunSpec, signed: dict[bytes, int]) -> Record:
    """The FORK of some members of the parent, under the incarnations that they signed (§2.7)."""
    p, probation = parent.record, spec.admission.probation
    going = [m for m in p.next.members if m.id in signed]
    names = b"".join(m.id + u64(signed[m.id]) for m in going)
    lineage = digest("starling fork v1", p.lineage, parent.digest, names)
    seats = [seat_in_fork(m, signed[m.id]) for m in going]
    order = ring_order(parent.digest)
    newcomers = {m.id for m in seats if m.since and p.round - m.since < 4 * probation}
    if any(m.role == VOTER for m in seats):
        voters = outnumbering([m for m in seats if m.role == VOTER], newcomers, order)
    else:
        oldest = min(m.since for m in seats)
        elders = [m for m in seats if m.id not in newcomers] or [m for m in seats if m.since == oldest]
        voters = {m.id for m in sorted(elders, key=order)[:VOTERS_MAX]}
    area = 2**44
    cursor = (p.cursor // area + 1 + int.from_bytes(lineage[:2], "little") % 4096) * area
    cursor = cursor if cursor < 2**64 else p.cursor
    members = []
    for m in seats:
        units = min(-(-m.lease.count // spec.unit), units_max(spec, p.next.inner_steps, m.id in newcomers))
        lease = Span(cursor, units * spec.unit)
        cursor = lease.end
        members.append(replace(m, role=VOTER if m.id in voters else LEARNER, lease=lease))
    rows = 1 + max(m.cell // 64 for m in p.next.members)
    cells = cells_of(rows, parent.digest, [Sitter(m.id, m.role == VOTER, m.cell) for m in members])
    members = [replace(m, cell=cell) for m, cell in zip(members, cells)]
    following = replace(p.next, merge_tokens=0, merge_norm=0, ring=(), members=tuple(members))
    merged = merged_by_fork(p)
    return replace(skip_of(parent), lineage=lineage, kind=FORK, merged=merged, free=(), cursor=cursor, next=following)


def seat_in_fork(m: Member, incarnation: int) -> Member:
    """§2.7 rule 4, except role and lease of the next round."""
    if m.incarnation == incarnation:
        return replace(m, absent=0, expected=True)
    return replace(m, incarnation=incarnation, role=LEARNER, upload_kbps=0, absent=0, expected=True)


def outnumbering(voters: list[Member], newcomers: set[bytes], order: Callable[[Member], tuple[bytes, bytes]]) -> set[bytes]:
    """The voters that stay when newcomers among others are reduced to fewer than a third (§5.5 rule 2)."""
    new = sorted((m for m in voters if m.id in newcomers), key=lambda m: (m.since, order(m)))
    kept = len(voters)
    while 0 < len(new) < kept and 3 * len(new) >= kept:
        new.pop()
        kept -= 1
    gone = {m.id for m in voters if m.id in newcomers} - {m.id for m in new}
    return {m.id for m in voters} - gone
