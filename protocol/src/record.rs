//! The hash-chained records that rounds end in (`protocol.md` §6).

use crate::limits::{INNER_STEPS_MAX, MEMBERS_MAX};
use crate::run::Codec;
use crate::wire::number::numbered;
use crate::wire::{self, ShapeError, bounded, check_ascending};
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};

/// What a record says. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The founder's first record: round 0, initial parameters, nobody contributed.
    Genesis = 0,
    /// A round's update was applied.
    Commit = 1,
}

numbered!(RecordKind, "kind of record", { Genesis = "genesis", Commit = "commit" });

/// One link of a lineage. All but the contributors and the update is a pure function of the parent, so two nodes
/// with the same of both build the same bytes and nobody proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub run: Digest,
    pub lineage: Digest,
    pub seq: u64,
    /// Digest of the record before; zero in a genesis record.
    pub parent: Digest,
    pub kind: RecordKind,
    /// The round that this record ends; counts COMMITs.
    pub round: u64,
    /// Whose contributions the update averages, by ascending member id.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub contributors: Vec<Contributor>,
    /// Digest of the encoded update; zero in a genesis record.
    pub update: Digest,
    /// State after applying.
    pub state_root: Digest,
    /// Tokens of all contributions of this lineage so far.
    pub tokens: u64,
    /// First sample index that was never leased.
    pub cursor: u64,
    /// What the next round does.
    pub next: NextRound,
}

/// One contribution as a record lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contributor {
    pub member: NodeId,
    /// Digest of the member's signed READY envelope.
    pub ready: Digest,
    pub tokens: u64,
    pub steps: u32,
    /// Mean training loss of the round in nats per token, times 2^16.
    pub loss_q16: u32,
}

/// Settings of the round after a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRound {
    /// Inner steps (H).
    pub inner_steps: u32,
    pub codec: Codec,
    /// Members and what each may train on, by ascending member id.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub members: Vec<Lease>,
}

/// A contiguous range of positions in the run's sample permutation, for one member and one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub member: NodeId,
    /// First position.
    pub start: u64,
    /// Number of positions (sequences).
    pub count: u64,
}

/// Name of a new lineage: of this run, founded by this node, with a nonce of its own (`protocol.md` §2).
pub fn lineage(run: &Digest, founder: &NodeId, nonce: u64) -> Digest {
    Digest::of("starling lineage v1", &[&run.0, &founder.0, &nonce.to_le_bytes()])
}

impl Record {
    /// The record's name: digest of its encoding.
    pub fn digest(&self) -> Digest {
        wire::record_digest(&wire::encode_record(self))
    }

    /// Members of the next round, by ascending id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.next.members.iter().map(|lease| lease.member)
    }

    /// The lease of a member of the next round.
    pub fn lease_of(&self, member: &NodeId) -> Option<&Lease> {
        let index = self.next.members.binary_search_by(|lease| lease.member.cmp(member)).ok()?;
        self.next.members.get(index)
    }

    /// What can be checked of a record by itself: order, ranges, sums and disjoint leases. Whether it follows from
    /// its parent is another question.
    pub fn validate_shape(&self) -> Result<(), ShapeError> {
        match self.kind {
            RecordKind::Genesis => self.validate_genesis()?,
            RecordKind::Commit => self.validate_commit()?,
        }
        self.next.validate_shape(self.cursor)
    }

    /// Whether this record can stand after `parent`, by all that the two show: the chain, the counters, and that only
    /// the parent's members contributed. The update and `state_root` are checked by applying the one and computing
    /// the other.
    pub fn validate_after(&self, parent: &Self) -> Result<(), ShapeError> {
        let rule = |holds: bool, what, must| if holds { Ok(()) } else { Err(ShapeError::Rule { what, must }) };
        rule(self.kind == RecordKind::Commit, "kind", "be commit after another record")?;
        rule(self.run == parent.run, "run", "be that of the record before")?;
        rule(self.lineage == parent.lineage, "lineage", "be that of the record before")?;
        rule(Some(self.seq) == parent.seq.checked_add(1), "seq", "be one above the record before")?;
        rule(self.parent == parent.digest(), "parent", "be the digest of the record before")?;
        rule(Some(self.round) == parent.round.checked_add(1), "round", "be one above the record before")?;
        rule(self.cursor >= parent.cursor, "cursor", "not go back")?;
        let members = self.contributors.iter().all(|c| parent.lease_of(&c.member).is_some());
        rule(members, "contributors", "be members of the round")?;
        let steps = self.contributors.iter().all(|c| c.steps <= parent.next.inner_steps);
        rule(steps, "contributors", "not have made more steps than the round has")?;
        let sum = self.contributors.iter().try_fold(parent.tokens, |sum, c| sum.checked_add(c.tokens));
        rule(sum == Some(self.tokens), "tokens", "grow by the contributors' tokens")
    }

    fn validate_genesis(&self) -> Result<(), ShapeError> {
        let zero = Digest::default();
        let rule = |holds: bool, what| {
            let must = "be zero or empty in a genesis record";
            if holds { Ok(()) } else { Err(ShapeError::Rule { what, must }) }
        };
        rule(self.seq == 0, "seq")?;
        rule(self.round == 0, "round")?;
        rule(self.parent == zero, "parent")?;
        rule(self.update == zero, "update")?;
        rule(self.tokens == 0, "tokens")?;
        rule(self.contributors.is_empty(), "contributors")
    }

    fn validate_commit(&self) -> Result<(), ShapeError> {
        if self.seq == 0 {
            return Err(ShapeError::OutOfRange { what: "seq", value: 0, must: "at least 1 after genesis" });
        }
        if self.round == 0 || self.round > self.seq {
            let must = "at least 1 and not above seq";
            return Err(ShapeError::OutOfRange { what: "round", value: self.round, must });
        }
        if self.parent == Digest::default() {
            return Err(ShapeError::Rule { what: "parent", must: "name a record" });
        }
        if self.contributors.is_empty() {
            return Err(ShapeError::Empty { what: "contributors" });
        }
        check_ascending("contributors", &self.contributors, MEMBERS_MAX, |c| c.member)?;
        let mut sum = 0u64;
        for contributor in &self.contributors {
            if contributor.tokens == 0 || contributor.steps == 0 || contributor.steps > INNER_STEPS_MAX {
                let must = "have tokens and between 1 and INNER_STEPS_MAX steps each";
                return Err(ShapeError::Rule { what: "contributors", must });
            }
            sum = sum.saturating_add(contributor.tokens);
        }
        if sum > self.tokens || sum == u64::MAX {
            let must = "at least the sum of its contributors' tokens";
            return Err(ShapeError::OutOfRange { what: "tokens", value: self.tokens, must });
        }
        Ok(())
    }
}

impl NextRound {
    fn validate_shape(&self, cursor: u64) -> Result<(), ShapeError> {
        if self.inner_steps == 0 || self.inner_steps > INNER_STEPS_MAX {
            let must = "between 1 and INNER_STEPS_MAX";
            return Err(ShapeError::OutOfRange { what: "inner_steps", value: self.inner_steps.into(), must });
        }
        check_ascending("next members", &self.members, MEMBERS_MAX, |lease| lease.member)?;
        let mut ranges = Vec::with_capacity(self.members.len());
        for lease in &self.members {
            let end = lease.start.checked_add(lease.count).filter(|end| lease.count > 0 && *end <= cursor);
            let Some(end) = end else {
                let must = "cover at least one position each, all below the cursor";
                return Err(ShapeError::Rule { what: "leases", must });
            };
            ranges.push((lease.start, end));
        }
        ranges.sort_unstable();
        if !ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0) {
            return Err(ShapeError::Rule { what: "leases", must: "not overlap" });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "record_test.rs"]
mod tests;
