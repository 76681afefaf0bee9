//! The rules for the shape of a record, by itself and after its parent.

use super::{FREE_SPANS_MAX, GRANTS_MAX, INNER_STEPS_MAX, MEMBERS_MAX, MERGED_MAX};
use super::{Member, NextRound, OVERHEADS, Record, RecordKind, Role, Span};
use crate::Digest;
use crate::amendment::Settings;
use crate::control;
use crate::difference::Limits;
use crate::grid::{Cell, Shape};
use crate::limits::TOUR_MAX;
use crate::mutation::{Mutation, mutated};
use crate::scale::scale;
use crate::wire::{ShapeError, check_ascending};
use std::collections::BTreeSet;

fn rule(holds: bool, what: &'static str, must: &'static str) -> Result<(), ShapeError> {
    if holds { Ok(()) } else { Err(ShapeError::Rule { what, must }) }
}

/// A list of merged lineages with one more, if there is room.
pub(crate) fn merged_with(merged: &[Digest], lineage: Digest) -> Vec<Digest> {
    let mut merged = merged.to_vec();
    if let Err(at) = merged.binary_search(&lineage)
        && merged.len() < MERGED_MAX
    {
        merged.insert(at, lineage);
    }
    merged
}

impl Record {
    /// Checks a record by itself: order, ranges, sums and disjoint leases. Whether it follows from its parent is
    /// another question.
    ///
    /// # Errors
    /// The first rule that the record breaks.
    pub fn validate_shape(&self) -> Result<(), ShapeError> {
        validate(self)
    }

    /// Checks that this record can stand after `parent`, as far as the two show: the chain, the counters, and that only
    /// the parent's members contributed, from their leases. The update and `state_root` are checked by applying the
    /// update and computing the root.
    ///
    /// # Errors
    /// The first rule that the two break.
    pub fn validate_after(&self, parent: &Self) -> Result<(), ShapeError> {
        validate_after(self, parent)
    }
}

fn validate(record: &Record) -> Result<(), ShapeError> {
    match record.kind {
        RecordKind::Genesis => genesis(record)?,
        RecordKind::Commit => commit(record)?,
        RecordKind::Skip | RecordKind::Fork => unchanged(record)?,
    }
    counted(record)?;
    if let Some(amendment) = &record.amended {
        rule(record.kind == RecordKind::Commit, "amended", "be empty unless in a commit")?;
        amendment.validate_shape()?;
    }
    let tenure =
        |member: &Member| record.round.checked_sub(member.since).is_some_and(|age| age >= member.served.into());
    rule(record.next.members.iter().all(tenure), "members", "have served in rounds since they were let in")?;
    next(&record.next, &record.free, record.cursor)
}

fn validate_after(record: &Record, parent: &Record) -> Result<(), ShapeError> {
    let digest = parent.digest();
    let forks = record.kind == RecordKind::Fork;
    rule(record.kind != RecordKind::Genesis, "kind", "be another than genesis after another record")?;
    rule(record.run == parent.run, "run", "be that of the record before")?;
    rule((record.lineage == parent.lineage) != forks, "lineage", "change in a fork and only there")?;
    rule(Some(record.seq) == parent.seq.checked_add(1), "seq", "be one above the record before")?;
    rule(record.parent == digest, "parent", "be the digest of the record before")?;
    rule(record.cursor >= parent.cursor, "cursor", "not go back")?;
    amended(record, parent)?;
    if record.kind != RecordKind::Commit {
        rule(record.round == parent.round, "round", "be that of the record before")?;
        rule(record.tokens == parent.tokens, "tokens", "be those of the record before")?;
        rule(record.steps == parent.steps, "steps", "be those of the record before")?;
        rule(record.state_root == parent.state_root, "state_root", "be that of the record before")?;
        rule(record.base == parent.base_or(digest), "base", "name the record that made the state")?;
        let same = forks || mutated!(Mutation::AnySkip) || (record.next == parent.next && record.free == parent.free);
        rule(same, "next", "be that of the record before in a skip")?;
        rule(!forks || record.merge_limits() == Limits::default(), "next", "allow no merge after a fork")?;
        let pace = |record: &Record| (record.next.inner_steps, record.next.codec, record.next.overheads);
        rule(pace(record) == pace(parent), "next", "have the steps, codec and costs of the record before in a fork")?;
        tenures(record, parent)?;
        let merged = if forks { merged_with(&parent.merged, parent.lineage) } else { parent.merged.clone() };
        return rule(record.merged == merged, "merged", "be that of the record before, and in a fork its lineage");
    }
    rule(Some(record.round) == parent.round.checked_add(1), "round", "be one above the record before")?;
    for contributor in &record.contributors {
        let member = parent.member(&contributor.member);
        let member = member.ok_or(ShapeError::Rule { what: "contributors", must: "be members of the round" })?;
        let lease = &member.lease;
        let inside = contributor.start == lease.start && contributor.samples <= lease.count;
        rule(inside, "contributors", "have trained on a beginning of their leases")?;
        let steps = contributor.steps <= parent.steps_max(member);
        rule(steps, "contributors", "not have made more steps than the round has")?;
    }
    let limits = Limits::of(&record.contributors);
    rule(record.merge_limits() == limits, "next", "limit merges by its contributors")?;
    let steps = parent.steps.checked_add(parent.next.inner_steps.into());
    rule(steps == Some(record.steps), "steps", "grow by those of the round")?;
    let measured = control::of_voters(parent, record.contributors.iter().map(|c| (&c.member, &c.measured)));
    let same = record.next.codec == parent.next.codec || mutated!(Mutation::KeepCosts);
    let overheads = if same { control::overheads(&parent.next.overheads, &measured) } else { [0; OVERHEADS] };
    rule(record.next.overheads == overheads, "next", "keep the costs that its contributors measured")?;
    let kept = parent.merged.iter().all(|lineage| record.merged.binary_search(lineage).is_ok());
    rule(kept, "merged", "hold what the record before holds")?;
    tenures(record, parent)?;
    let sum = record.contributors.iter().try_fold(parent.tokens, |sum, c| sum.checked_add(c.tokens));
    rule(sum == Some(record.tokens) || mutated!(Mutation::AnyTokens), "tokens", "grow by the contributors' tokens")
}

/// Checks that the settings are the parent's with the record's amendment, which is the next one and not too early.
fn amended(record: &Record, parent: &Record) -> Result<(), ShapeError> {
    let before = &parent.next.settings;
    let Some(amendment) = &record.amended else {
        return rule(
            record.next.settings == *before,
            "settings",
            "be those of the record before, without an amendment",
        );
    };
    let next = amendment.follows(before) && amendment.is_due(record.round);
    rule(next, "amended", "be the amendment after the newest, and not before its round")?;
    rule(record.next.settings == before.after(amendment, &record.run), "settings", "be amended as the record says")
}

/// Checks that members' rounds of entry and counts of contributions go on from the parent's.
fn tenures(record: &Record, parent: &Record) -> Result<(), ShapeError> {
    for member in &record.next.members {
        let counted = record.contributors.binary_search_by(|c| c.member.cmp(&member.id)).is_ok();
        let expected = match parent.member(&member.id) {
            Some(before) => (before.since, before.served.saturating_add(counted.into())),
            None => (record.round, 0),
        };
        rule((member.since, member.served) == expected, "members", "keep and count what they have served")?;
        let new = record.kind == RecordKind::Commit || parent.member(&member.id).is_some();
        rule(new, "members", "be members before, unless in a commit")?;
    }
    Ok(())
}

fn genesis(record: &Record) -> Result<(), ShapeError> {
    const MUST: &str = "be zero or empty in a genesis record";
    let zero = Digest::default();
    rule(record.seq == 0, "seq", MUST)?;
    rule(record.round == 0, "round", MUST)?;
    rule(record.parent == zero, "parent", MUST)?;
    rule(record.base == zero, "base", MUST)?;
    rule(record.update == zero, "update", MUST)?;
    rule((record.tokens, record.steps) == (0, 0), "tokens", MUST)?;
    rule(record.next.overheads == [0; OVERHEADS], "next", MUST)?;
    rule(record.merged.is_empty(), "merged", MUST)?;
    rule(record.merge_limits() == Limits::default(), "next", MUST)?;
    rule(record.next.settings == Settings::default(), "settings", MUST)?;
    rule(record.contributors.is_empty(), "contributors", MUST)
}

fn later(record: &Record) -> Result<(), ShapeError> {
    if record.seq == 0 {
        return Err(ShapeError::OutOfRange { what: "seq", value: 0, must: "at least 1 after genesis" });
    }
    if record.round > record.seq {
        return Err(ShapeError::OutOfRange { what: "round", value: record.round, must: "not above seq" });
    }
    rule(record.parent != Digest::default(), "parent", "name a record")
}

fn unchanged(record: &Record) -> Result<(), ShapeError> {
    later(record)?;
    rule(record.base != Digest::default(), "base", "name the record that made the state")?;
    rule(record.update == Digest::default(), "update", "be zero in a record that changes no state")?;
    rule(record.contributors.is_empty(), "contributors", "be empty in a record that changes no state")
}

fn commit(record: &Record) -> Result<(), ShapeError> {
    later(record)?;
    rule(record.base == Digest::default(), "base", "be zero in a commit, which makes its own state")?;
    if record.round == 0 {
        return Err(ShapeError::OutOfRange { what: "round", value: 0, must: "at least 1 in a commit" });
    }
    if record.contributors.is_empty() {
        return Err(ShapeError::Empty { what: "contributors" });
    }
    check_ascending("contributors", &record.contributors, MEMBERS_MAX, |c| c.member)?;
    let mut sum = 0u64;
    for contributor in &record.contributors {
        let steps = (1..=INNER_STEPS_MAX).contains(&contributor.steps);
        let good = contributor.tokens > 0 && contributor.samples > 0 && steps;
        rule(good, "contributors", "have samples, tokens and between 1 and INNER_STEPS_MAX steps each")?;
        let ends = contributor.start.checked_add(contributor.samples).is_some_and(|end| end <= record.cursor);
        rule(ends, "contributors", "have trained below the cursor")?;
        sum = sum.saturating_add(contributor.tokens);
    }
    if sum > record.tokens || sum == u64::MAX {
        let must = "at least the sum of its contributors' tokens";
        return Err(ShapeError::OutOfRange { what: "tokens", value: record.tokens, must });
    }
    Ok(())
}

/// Checks the lists that a lineage carries along.
fn counted(record: &Record) -> Result<(), ShapeError> {
    let ascend = |list: &[Digest]| list.windows(2).all(|pair| pair[0] < pair[1]);
    let within = |what, count, limit| {
        if count > limit { Err(ShapeError::TooMany { what, count, limit }) } else { Ok(()) }
    };
    within("merged", record.merged.len(), MERGED_MAX)?;
    within("grants", record.grants.len(), GRANTS_MAX)?;
    within("revoked", record.revoked.len(), GRANTS_MAX)?;
    rule(ascend(&record.merged), "merged", "ascend without repeats")?;
    rule(ascend(&record.revoked), "revoked", "ascend without repeats")?;
    let grants = record.grants.windows(2).all(|pair| pair[0].grant < pair[1].grant);
    rule(grants, "grants", "ascend without repeats")
}

/// Checks that the members fill a grid that so many may have, with the voters in its first row, in columns that
/// all rows have.
fn cells(members: &[Member]) -> Result<(), ShapeError> {
    let rows = members.iter().map(|member| member.cell.row() + 1).max().unwrap_or(1);
    let shape = Shape::of(rows, members.len());
    let shape = shape.ok_or(ShapeError::Rule { what: "cells", must: "be in as many rows as the members may have" })?;
    if rows == 1 {
        return rule(members.iter().all(|member| member.cell == Cell::default()), "cells", "be zero in one row");
    }
    let distinct: BTreeSet<Cell> = members.iter().map(|member| member.cell).collect();
    rule(distinct.len() == members.len(), "cells", "be one member's each")?;
    rule(distinct.iter().all(|cell| shape.holds(*cell)), "cells", "be within rows of equal length")?;
    let first = |cell: Cell| cell.row() == 0 && cell.column() < shape.full_columns();
    let seated = members.iter().all(|member| member.role != Role::Voter || first(member.cell));
    rule(seated || mutated!(Mutation::VotersAnywhere), "cells", "be in full columns of the first row for voters")
}

fn next(next: &NextRound, free: &[Span], cursor: u64) -> Result<(), ShapeError> {
    if next.inner_steps == 0 || next.inner_steps > INNER_STEPS_MAX {
        let must = "between 1 and INNER_STEPS_MAX";
        return Err(ShapeError::OutOfRange { what: "inner_steps", value: next.inner_steps.into(), must });
    }
    check_ascending("members", &next.members, MEMBERS_MAX, |member| member.id)?;
    let voters = next.members.iter().filter(|member| member.role == Role::Voter).count();
    let limit = scale().voters;
    if voters > limit {
        return Err(ShapeError::TooMany { what: "voters", count: voters, limit });
    }
    rule(voters > 0, "members", "have a voter among them")?;
    cells(&next.members)?;
    if next.ring.len() > TOUR_MAX {
        return Err(ShapeError::TooMany { what: "ring", count: next.ring.len(), limit: TOUR_MAX });
    }
    let mut places = next.ring.clone();
    places.sort_unstable();
    let once = places.windows(2).all(|pair| pair[0] < pair[1]);
    let known = places.last().is_none_or(|place| usize::from(*place) < next.members.len());
    rule(once && known, "ring", "list members, each once")?;
    if free.len() > FREE_SPANS_MAX {
        return Err(ShapeError::TooMany { what: "free", count: free.len(), limit: FREE_SPANS_MAX });
    }
    let end = |span: &Span| span.end().filter(|end| span.count > 0 && *end <= cursor);
    let apart = free.windows(2).all(|pair| pair[0].end().is_some_and(|end| end < pair[1].start));
    rule(apart && free.iter().all(|span| end(span).is_some()), "free", "ascend apart, below the cursor")?;
    let mut ranges = Vec::with_capacity(next.members.len() + free.len());
    for span in next.members.iter().map(|member| &member.lease).chain(free) {
        let must = "cover at least one position each, all below the cursor";
        let end = end(span).ok_or(ShapeError::Rule { what: "leases", must })?;
        ranges.push((span.start, end));
    }
    ranges.sort_unstable();
    rule(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "leases", "not overlap")
}
