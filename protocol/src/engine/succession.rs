//! Building records: pure functions of the parent, the contributions and the update, so that no member proposes
//! (`docs/protocol/2-records.md` §2.5, §2.6, §2.7).

use crate::amendment::Settings;
use crate::control::{self, Choice};
use crate::difference::Limits;
use crate::grid::{self, Cell, Sitter};
use crate::lease::{self, Pool};
use crate::mutation::{Mutation, mutated};
use crate::record::{Contributor, GrantUse, Member, NextRound, Record, RecordKind, Role, Span, lineage, merged_with};
use crate::run::{RunSpec, SyncSpec};
use crate::{Digest, NodeId};
use probation::Probation;
use turnover::{Seat, Turnover};

pub(super) mod amending;
mod contribution;
pub(super) mod merging;
pub mod probation;
mod tour;
mod turnover;

pub use contribution::SignedReady;
pub use turnover::admitted_max;

/// The number of positions that a fork may use before it comes upon those of another fork: more than any flock reads.
const FORK_AREA: u64 = 1 << 44;
/// The number of areas among which a fork's lineage chooses: two forks of one record hardly ever read the same samples.
const FORK_AREAS: u64 = 1 << 12;

/// The members that attempt 0 of the record after `parent` waits for, by ascending id.
pub fn expected(parent: &Record) -> Vec<NodeId> {
    uplinks(parent).into_iter().map(|(id, _)| id).collect()
}

/// The same with their upload bandwidths in kbit/s, 0 if unknown: owners of chunks are chosen by these.
pub fn uplinks(parent: &Record) -> Vec<(NodeId, u32)> {
    let expected = parent.next.members.iter().filter(|member| member.expected);
    expected.map(|member| (member.id, member.upload_kbps)).collect()
}

/// The first record of a lineage; its only member is the founder, given with its incarnation. None if a lease does
/// not fit (an invalid run).
pub fn genesis(run: Digest, spec: &RunSpec, founder: (NodeId, u64), nonce: u64, state_root: Digest) -> Option<Record> {
    let (id, incarnation) = founder;
    let mut pool = Pool::new(0, &[]);
    let steps = spec.inner.steps;
    let lease = pool.take(steps, unit(spec))?;
    let (cursor, free) = pool.into_parts();
    let role = Role::Voter;
    let (since, served, cell) = (0, 0, Cell::default());
    let member =
        Member { id, incarnation, role, absent: 0, expected: true, lease, upload_kbps: 0, since, served, cell };
    Some(Record {
        run,
        lineage: lineage(&run, &id, nonce),
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        base: Digest::default(),
        round: 0,
        contributors: Vec::new(),
        update: Digest::default(),
        state_root,
        tokens: 0,
        steps: 0,
        cursor,
        free,
        merged: Vec::new(),
        grants: Vec::new(),
        revoked: Vec::new(),
        next: next_round(Choice::first(spec), vec![member]),
        amended: None,
    })
}

/// The record that ends the round after `parent` with these contributions, given by ascending member id.
///
/// None when the run's positions or its counters are used up, and when the contributions cannot stand after `parent`:
/// none at all, out of order, by others than its members, empty, or more than their leases or the round allow.
pub fn commit(
    parent: &Record,
    parent_digest: Digest,
    spec: &RunSpec,
    contributions: &[SignedReady],
    update: Digest,
    state_root: Digest,
) -> Option<Record> {
    let tokens = contributions.iter().try_fold(parent.tokens, |sum, c| sum.checked_add(c.ready.tokens))?;
    let following = following(parent, parent_digest, spec, contributions)?;
    let Following { members, cursor, free, grants, revoked, choice } = following;
    let ring = tour::ring(parent, &parent_digest, (spec, choice.codec), contributions, &members);
    let contributors: Vec<Contributor> = contributions.iter().map(contributor).collect();
    let Limits { tokens: merge_tokens, norm_bits: merge_norm_bits } = Limits::of(&contributors);
    let amended = amending::chosen(parent, spec, contributions);
    let settings = amending::settings(parent, amended.as_ref());
    Some(Record {
        run: parent.run,
        lineage: parent.lineage,
        seq: parent.seq.checked_add(1)?,
        parent: parent_digest,
        kind: RecordKind::Commit,
        base: Digest::default(),
        round: parent.round.checked_add(1)?,
        contributors,
        update,
        state_root,
        tokens,
        steps: parent.steps.checked_add(parent.next.inner_steps.into())?,
        cursor,
        free,
        merged: merging::merged(parent, contributions),
        grants,
        revoked,
        next: NextRound { merge_tokens, merge_norm_bits, ring, settings, ..next_round(choice, members) },
        amended,
    })
}

/// The lease that `member` has after the COMMIT of these contributions, if they can be committed and it stays, and the
/// inner steps of its round. The update does not matter, so both are known before there is one.
pub fn lease_after(
    parent: &Record,
    parent_digest: Digest,
    spec: &RunSpec,
    contributions: &[SignedReady],
    member: &NodeId,
) -> Option<(Span, u32)> {
    let Following { members, choice, .. } = following(parent, parent_digest, spec, contributions)?;
    members.into_iter().find(|seat| seat.id == *member).map(|seat| (seat.lease, choice.inner_steps))
}

/// The members of the round after a COMMIT with their leases, and the positions that are left to lease.
struct Following {
    members: Vec<Member>,
    cursor: u64,
    free: Vec<Span>,
    grants: Vec<GrantUse>,
    revoked: Vec<Digest>,
    choice: Choice,
}

/// The part of a COMMIT that follows from the contributions alone; None when they cannot stand after `parent`.
fn following(
    parent: &Record,
    parent_digest: Digest,
    spec: &RunSpec,
    contributions: &[SignedReady],
) -> Option<Following> {
    let ascend = contributions.windows(2).all(|pair| pair[0].member < pair[1].member);
    let merging = contributions.iter().filter_map(|c| Some((c.member, c.ready.merges?)));
    let rivals = !merging::rivals(&parent_digest, merging).is_empty();
    if contributions.is_empty() || !ascend || rivals || !contributions.iter().all(|c| fits(&spec.sync, parent, c)) {
        return None;
    }
    let probation = Probation::of(spec, parent.round.checked_add(1)?);
    let turnover = Turnover::new(parent, parent_digest, contributions, probation);
    let (mut seats, grants) = turnover.seats();
    take_cells(parent, &parent_digest, seats.iter_mut().map(|seat| (&mut seat.member, seat.settled)));
    let measured = control::of_voters(parent, contributions.iter().map(|c| (&c.member, &c.ready.measured)));
    let choice = Choice::after(spec, &parent.next, &measured, contributions.len());
    let (members, cursor, free) = leases(parent, (spec, choice.inner_steps), contributions, seats)?;
    Some(Following { members, cursor, free, grants, revoked: turnover.into_revoked(), choice })
}

/// Gives members, by ascending id, their cells in the grid (`docs/protocol/2-records.md` §2.10.2); each with whether it
/// may keep the cell that it has in `parent`.
fn take_cells<'a>(parent: &Record, parent_digest: &Digest, members: impl Iterator<Item = (&'a mut Member, bool)>) {
    let mut members: Vec<(&mut Member, bool)> = members.collect();
    let sitter = |(member, stays): &(&mut Member, bool)| {
        let before = parent.member(&member.id).filter(|_| *stays).map(|before| before.cell);
        Sitter { id: member.id, votes: member.role == Role::Voter, before }
    };
    let sitters: Vec<Sitter> = members.iter().map(sitter).collect();
    let cells = grid::cells(parent.rows(), parent_digest, &sitters);
    members.iter_mut().zip(cells).for_each(|((member, _), cell)| member.cell = cell);
}

/// The record that gives the round up for now: members, leases and pool stay, and every contribution can be offered
/// again. It has no parameters, so all members that reach it build the same. None only when `seq` would overflow.
pub fn skip(parent: &Record, parent_digest: Digest) -> Option<Record> {
    Some(Record {
        seq: parent.seq.checked_add(1)?,
        parent: parent_digest,
        kind: RecordKind::Skip,
        base: parent.base_or(parent_digest),
        contributors: Vec::new(),
        update: Digest::default(),
        amended: None,
        ..parent.clone()
    })
}

/// The first record of the lineage in which `members` go on that have lost the quorum after `parent`
/// (`docs/protocol/2-records.md` §2.7). Members that voted still vote, newcomers as long as they are fewer than a
/// third. If none of them voted, those vote that the flock has known for longest.
///
/// Their leases are new, in a range of positions far above the parent's that the new lineage's digest chooses: no
/// position of the fork is ever leased in the lineage it left. `position / len` is the epoch (see
/// [`crate::permutation`]), and `len` is not known here. A fork therefore begins at some place of an epoch of its own,
/// whose order is another one. It reads no sample twice within that epoch. Samples that the parent read in the epoch at
/// hand can come again in the fork, as in any next epoch.
///
/// None when no member of `parent` is among them, or positions or `seq` are used up.
pub fn fork(parent: &Record, parent_digest: Digest, spec: &RunSpec, members: &[(NodeId, u64)]) -> Option<Record> {
    let unit = unit(spec);
    let probation = Probation::of_fork(spec, parent.round);
    // A member under another incarnation by now does not keep its former vote: it goes as a learner, and may come to
    // vote under the new one.
    let goes = |member: &Member| {
        let (_, incarnation) = members.iter().find(|(id, _)| *id == member.id)?;
        let same = member.incarnation == *incarnation;
        let role = if same || mutated!(Mutation::ForkKeepsRole) { member.role } else { Role::Learner };
        let upload_kbps = if same { member.upload_kbps } else { 0 };
        Some(Member { incarnation: *incarnation, role, upload_kbps, ..member.clone() })
    };
    let mut gone: Vec<Member> = parent.next.members.iter().filter_map(goes).collect();
    if gone.is_empty() {
        return None;
    }
    let lineage = fork_lineage(&parent.lineage, &parent_digest, &gone);
    probation.fork_voters(&parent_digest, &mut gone);
    let mut pool = Pool::new(fork_cursor(parent.cursor, &lineage), &[]);
    let mut seats = Vec::with_capacity(gone.len());
    for member in gone {
        // A member's last lease tells how fast it is; the measurements behind it may be many records ago.
        let most = units_max((spec, parent.next.inner_steps), probation.new_for(&member) == 0);
        let units = member.lease.count.div_ceil(unit.max(1)).min(most.into());
        let lease = pool.take(u32::try_from(units).ok()?, unit)?;
        seats.push(Member { absent: 0, expected: true, lease, ..member });
    }
    let (cursor, free) = pool.into_parts();
    take_cells(parent, &parent_digest, seats.iter_mut().map(|seat| (seat, true)));
    Some(Record {
        lineage,
        kind: RecordKind::Fork,
        cursor,
        free,
        merged: merged_with(&parent.merged, parent.lineage),
        next: NextRound {
            members: seats,
            merge_tokens: 0,
            merge_norm_bits: 0,
            ring: Vec::new(),
            ..parent.next.clone()
        },
        ..skip(parent, parent_digest)?
    })
}

/// The lineage in which these members, by ascending id, go on after the record `parent` of the lineage `left`. It
/// follows from their ids and the incarnations that they speak under.
pub fn fork_lineage(left: &Digest, parent: &Digest, members: &[Member]) -> Digest {
    let bytes = |member: &Member| [&member.id.0[..], &member.incarnation.to_le_bytes()].concat();
    let going: Vec<u8> = members.iter().flat_map(bytes).collect();
    Digest::of("starling fork v1", &[&left.0, &parent.0, &going])
}

/// The start of the area of positions that a fork draws its samples from. When all areas are used up, it is where the
/// parent stopped: the same samples as the other side's are better than none.
fn fork_cursor(parent: u64, lineage: &Digest) -> u64 {
    if mutated!(Mutation::ForkInPlace) {
        return parent;
    }
    let choice = u64::from(u16::from_le_bytes([lineage.0[0], lineage.0[1]])) % FORK_AREAS;
    (parent / FORK_AREA).checked_add(1 + choice).and_then(|area| area.checked_mul(FORK_AREA)).unwrap_or(parent)
}

/// Positions of one inner step.
fn unit(spec: &RunSpec) -> u64 {
    spec.inner.samples(1)
}

/// The most units that a member is leased. A user's trainer has steps of one size, and a newcomer of an open run is not
/// known.
fn units_max((spec, inner_steps): (&RunSpec, u32), is_known: bool) -> u32 {
    lease::units_max(inner_steps, unit(spec), is_known && spec.task.is_none())
}

fn next_round(Choice { inner_steps, codec, overheads }: Choice, members: Vec<Member>) -> NextRound {
    NextRound {
        inner_steps,
        codec,
        overheads,
        merge_tokens: 0,
        merge_norm_bits: 0,
        members,
        ring: Vec::new(),
        settings: Settings::default(),
    }
}

/// Whether work of so many samples and steps, from the position `start` on, was done on a beginning of a member's
/// lease, in steps of the round.
pub fn fits_lease(parent: &Record, member: &NodeId, (start, samples, steps): (u64, u64, u32)) -> bool {
    let Some(seat) = parent.member(member) else { return false };
    seat.lease.start == start && samples <= seat.lease.count && steps <= parent.steps_max(seat)
}

/// Whether a contribution was trained on a beginning of its member's lease, in steps of the round, and merges only what
/// it may.
fn fits(sync: &SyncSpec, parent: &Record, contribution: &SignedReady) -> bool {
    let ready = &contribution.ready;
    let lease = parent.lease_of(&contribution.member);
    let start = lease.filter(|_| mutated!(Mutation::OverLease)).map_or(ready.start, |lease| lease.start);
    let fits = fits_lease(parent, &contribution.member, (start, ready.samples, ready.steps));
    let merges = merging::allowed(sync, parent, &contribution.member, ready);
    fits && merges && ready.steps > 0 && ready.samples > 0 && ready.tokens > 0
}

fn contributor(contribution: &SignedReady) -> Contributor {
    let SignedReady { member, ready, digest, .. } = contribution;
    Contributor {
        member: *member,
        ready: *digest,
        start: ready.start,
        samples: ready.samples,
        tokens: ready.tokens,
        steps: ready.steps,
        loss_q16: ready.loss_q16,
        measured: ready.measured,
    }
}

/// The members of the next round with their leases, the cursor and the pool. Positions that no longer belong to a
/// member go back first, so that they can be leased again at once.
fn leases(
    parent: &Record,
    (spec, inner_steps): (&RunSpec, u32),
    contributions: &[SignedReady],
    seats: Vec<Seat>,
) -> Option<(Vec<Member>, u64, Vec<Span>)> {
    let ready = |id: &NodeId| {
        let at = contributions.binary_search_by(|c| c.member.cmp(id)).ok()?;
        contributions.get(at).map(|c| &c.ready)
    };
    let mut pool = Pool::new(parent.cursor, &parent.free);
    for member in &parent.next.members {
        let used = ready(&member.id).map_or(0, |ready| ready.samples);
        let seat = seats.binary_search_by(|seat| seat.member.id.cmp(&member.id)).ok().and_then(|at| seats.get(at));
        let kept = seat.is_some_and(|seat| !seat.fresh);
        if !kept && !mutated!(Mutation::KeepDeadLease) {
            let Span { start, count } = member.lease;
            pool.give_back(Span { start: start.checked_add(used)?, count: count.checked_sub(used)? });
        }
    }
    let median = lease::median(contributions.iter().map(|c| c.ready.measured.step_us));
    let probation = Probation::of(spec, parent.round.saturating_add(1));
    let mut members = Vec::with_capacity(seats.len());
    for Seat { mut member, fresh, .. } in seats {
        if fresh {
            let same = parent.member(&member.id).is_some_and(|before| before.incarnation == member.incarnation);
            let step_us = ready(&member.id)
                .filter(|_| same || mutated!(Mutation::PaceOfAnother))
                .map_or(0, |ready| ready.measured.step_us);
            let most = units_max((spec, inner_steps), probation.new_for(&member) == 0);
            member.lease = pool.take(lease::units_for(inner_steps, most, median, step_us), unit(spec))?;
        }
        members.push(member);
    }
    let (cursor, free) = pool.into_parts();
    Some((members, cursor, free))
}

#[cfg(test)]
#[path = "succession/succession_test.rs"]
mod tests;

#[cfg(test)]
#[path = "succession/history_test.rs"]
mod history;
