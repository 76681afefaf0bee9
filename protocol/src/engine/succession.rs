//! Building records: pure functions of the parent, the contributions and the update, so that nobody proposes
//! (`protocol.md` §6).

use crate::limits::MEMBERS_MAX;
use crate::message::Ready;
use crate::record::{Contributor, NextRound, Record, RecordKind, lineage};
use crate::run::RunSpec;
use crate::{Digest, NodeId, lease, ring};
use std::collections::BTreeSet;

/// A member's READY as it counts in an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct SignedReady {
    pub member: NodeId,
    pub ready: Ready,
    /// Digest of the signed envelope.
    pub digest: Digest,
}

/// New members that one record may admit on top of those that return: as many as contributed, at least two. A
/// small flock so grows quickly, and the newcomers' first round never dwarfs the tried members.
pub fn admitted_max(contributors: usize) -> usize {
    contributors.max(2)
}

/// The first record of a lineage; its only member is the founder. None if a lease does not fit (an invalid run).
pub fn genesis(run: Digest, spec: &RunSpec, founder: NodeId, nonce: u64, state_root: Digest) -> Option<Record> {
    let (members, cursor) = lease::split(0, [founder], spec.inner.samples(spec.inner.steps))?;
    Some(Record {
        run,
        lineage: lineage(&run, &founder, nonce),
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        round: 0,
        contributors: Vec::new(),
        update: Digest::default(),
        state_root,
        tokens: 0,
        cursor,
        next: NextRound { inner_steps: spec.inner.steps, codec: spec.sync.codec, members },
    })
}

/// The record that ends the round after `parent` with these contributions, given by ascending member id.
/// None when the positions of the run are used up.
pub fn commit(
    parent: &Record,
    spec: &RunSpec,
    contributions: &[SignedReady],
    update: Digest,
    state_root: Digest,
) -> Option<Record> {
    let parent_digest = parent.digest();
    let contributor = |c: &SignedReady| Contributor {
        member: c.member,
        ready: c.digest,
        tokens: c.ready.tokens,
        steps: c.ready.steps,
        loss_q16: c.ready.loss_q16,
    };
    let tokens = contributions.iter().try_fold(parent.tokens, |sum, c| sum.checked_add(c.ready.tokens))?;
    let members = next_members(parent, &parent_digest, contributions);
    let (members, cursor) = lease::split(parent.cursor, members, spec.inner.samples(spec.inner.steps))?;
    Some(Record {
        run: parent.run,
        lineage: parent.lineage,
        seq: parent.seq.checked_add(1)?,
        parent: parent_digest,
        kind: RecordKind::Commit,
        round: parent.round.checked_add(1)?,
        contributors: contributions.iter().map(contributor).collect(),
        update,
        state_root,
        tokens,
        cursor,
        next: NextRound { inner_steps: spec.inner.steps, codec: spec.sync.codec, members },
    })
}

/// Who contributed and stays, members that ask to return, and as many new ones as may come at once.
fn next_members(parent: &Record, parent_digest: &Digest, contributions: &[SignedReady]) -> BTreeSet<NodeId> {
    let mut members: BTreeSet<NodeId> =
        contributions.iter().filter(|c| !c.ready.leave).map(|c| c.member).take(MEMBERS_MAX).collect();
    let leaving: BTreeSet<NodeId> = contributions.iter().filter(|c| c.ready.leave).map(|c| c.member).collect();
    let joins: BTreeSet<NodeId> =
        contributions.iter().flat_map(|c| c.ready.joins.iter().copied()).filter(|id| !leaving.contains(id)).collect();
    let (returning, new): (Vec<NodeId>, Vec<NodeId>) =
        joins.into_iter().filter(|id| !members.contains(id)).partition(|id| parent.lease_of(id).is_some());
    // The order of the ring is the same for everybody and favours nobody for long.
    let new = ring::order(parent_digest, new).into_iter().take(admitted_max(contributions.len()));
    for id in ring::order(parent_digest, returning).into_iter().chain(new) {
        if members.len() < MEMBERS_MAX {
            members.insert(id);
        }
    }
    if members.is_empty() {
        // Everybody announced to leave: the last ones stay named, so that the lineage can be taken up again.
        return contributions.iter().map(|c| c.member).collect();
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample;

    fn id(fill: u8) -> NodeId {
        NodeId([fill; 32])
    }

    fn ready(parent: &Record, member: u8, joins: &[u8]) -> SignedReady {
        let lease = parent.lease_of(&id(member)).unwrap();
        let ready = Ready {
            lineage: parent.lineage,
            seq: parent.seq + 1,
            round: parent.round + 1,
            parent: parent.digest(),
            state_root: parent.state_root,
            lease_start: lease.start,
            samples: lease.count,
            tokens: lease.count * 128,
            steps: 30,
            loss_q16: 9,
            payload: Digest([member; 32]),
            step_us: 1,
            joins: joins.iter().copied().map(id).collect(),
            leave: false,
        };
        SignedReady { member: id(member), ready, digest: Digest([member; 32]) }
    }

    #[test]
    fn records_follow_one_another_with_fresh_leases() {
        let spec = sample::spec();
        let first = genesis(spec.digest(), &spec, id(1), 7, Digest([9; 32])).unwrap();
        first.validate_shape().unwrap();
        let second = commit(&first, &spec, &[ready(&first, 1, &[5, 6, 7])], Digest([3; 32]), Digest([4; 32])).unwrap();
        second.validate_shape().unwrap();
        assert_eq!(second.parent, first.digest());
        assert_eq!(second.members().len(), 3, "two at once in a flock of one");
        assert_eq!(second.tokens, 240 * 128);
        assert!(second.next.members.iter().all(|lease| lease.start >= first.cursor));
        let all: Vec<u8> = second.members().map(|m| m.0[0]).collect();
        let contributions: Vec<_> = all.iter().map(|m| ready(&second, *m, &[])).collect();
        let third = commit(&second, &spec, &contributions, Digest([3; 32]), Digest([4; 32])).unwrap();
        third.validate_shape().unwrap();
        assert_eq!(third.members().collect::<Vec<_>>(), second.members().collect::<Vec<_>>());
    }

    #[test]
    fn who_did_not_contribute_is_out_unless_it_asks_to_return() {
        let spec = sample::spec();
        let first = genesis(spec.digest(), &spec, id(1), 7, Digest([9; 32])).unwrap();
        let second = commit(&first, &spec, &[ready(&first, 1, &[5, 6])], Digest([3; 32]), Digest([4; 32])).unwrap();
        let out = commit(&second, &spec, &[ready(&second, 1, &[])], Digest([3; 32]), Digest([4; 32])).unwrap();
        assert_eq!(out.members().collect::<Vec<_>>(), [id(1)]);
        let back = commit(&second, &spec, &[ready(&second, 1, &[6])], Digest([3; 32]), Digest([4; 32])).unwrap();
        assert_eq!(back.members().collect::<Vec<_>>(), [id(1), id(6)]);
        let mut leaver = ready(&second, 5, &[]);
        leaver.ready.leave = true;
        let left =
            commit(&second, &spec, &[ready(&second, 1, &[5]), leaver], Digest([3; 32]), Digest([4; 32])).unwrap();
        assert_eq!(left.members().collect::<Vec<_>>(), [id(1)]);
    }

    #[test]
    fn a_flock_never_outgrows_its_limit() {
        let spec = sample::spec();
        let mut record = genesis(spec.digest(), &spec, id(1), 7, Digest([9; 32])).unwrap();
        for _ in 0..10 {
            let joins: Vec<u8> = (2..66).collect();
            let members: Vec<u8> = record.members().map(|m| m.0[0]).collect();
            let contributions: Vec<_> = members.iter().map(|m| ready(&record, *m, &joins)).collect();
            record = commit(&record, &spec, &contributions, Digest([3; 32]), Digest([4; 32])).unwrap();
            record.validate_shape().unwrap();
        }
        assert_eq!(record.members().len(), MEMBERS_MAX);
    }
}
