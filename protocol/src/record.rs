//! The hash-chained records that rounds end in (`docs/protocol/2-records.md` §2.2).

use crate::amendment::{Amendment, Settings};
use crate::grid::{Cell, Grid};
use crate::limits::{FREE_SPANS_MAX, GRANTS_MAX, INNER_STEPS_MAX, MEMBERS_MAX, MERGED_MAX, TOUR_MAX};
use crate::mutation::{Mutation, mutated};
use crate::run::Codec;
use crate::wire::bounded;
use crate::wire::number::numbered;
use crate::{Digest, NodeId, ring};
use serde::{Deserialize, Serialize};

pub(crate) mod bytes;
mod shape;

pub(crate) use shape::merged_with;

/// The kind of a record. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordKind {
    /// The founder's first record: round 0, initial parameters, nobody contributed.
    Genesis = 0,
    /// A round's update was applied.
    Commit = 1,
    /// The attempts at a round failed: nothing changes but the place in the chain.
    Skip = 2,
    /// A part of the flock without a quorum goes on as a lineage of its own (`docs/protocol/7-merging.md` §7.2).
    Fork = 3,
}

numbered!(RecordKind, "kind of record", { Genesis = "genesis", Commit = "commit", Skip = "skip", Fork = "fork" });

/// One link of a lineage. All but the contributors and the update is a pure function of the parent and the
/// contributors' READYs. Two nodes with the same contributors and update build the same bytes, so nobody proposes a
/// record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub run: Digest,
    pub lineage: Digest,
    pub seq: u64,
    /// Digest of the record before; zero in a genesis record.
    pub parent: Digest,
    pub kind: RecordKind,
    /// The record whose state this one has, for kinds that change no state (skip, fork). Zero for the others, which are
    /// their own base.
    pub base: Digest,
    /// COMMITs of this lineage so far, this one included.
    pub round: u64,
    /// The contributions that the update averages, by ascending member id.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub contributors: Vec<Contributor>,
    /// Digest of the encoded update; zero in records that change no state.
    pub update: Digest,
    /// State after applying.
    pub state_root: Digest,
    /// Tokens of all contributions of this lineage so far.
    pub tokens: u64,
    /// Inner steps (H) of all its rounds so far: learning rates follow them.
    pub steps: u64,
    /// First position that was never leased.
    pub cursor: u64,
    /// Positions below the cursor that were returned unused, ascending and apart.
    #[serde(deserialize_with = "bounded::list::<_, _, FREE_SPANS_MAX>")]
    pub free: Vec<Span>,
    /// Other lineages whose work is in the state, ascending: those whose difference has been taken in, and those that
    /// this one has forked from.
    #[serde(deserialize_with = "bounded::list::<_, _, MERGED_MAX>")]
    pub merged: Vec<Digest>,
    /// How often each ticket has been used, by ascending ticket.
    #[serde(deserialize_with = "bounded::list::<_, _, GRANTS_MAX>")]
    pub grants: Vec<GrantUse>,
    /// Identities and tickets that may not be admitted any more, ascending.
    #[serde(deserialize_with = "bounded::list::<_, _, GRANTS_MAX>")]
    pub revoked: Vec<Digest>,
    /// Settings and members of the next round.
    pub next: NextRound,
    /// The amendment by which `next.settings` differ from those of the record before.
    pub amended: Option<Amendment>,
}

/// The work of a lineage before a round: learning rates follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub tokens: u64,
    /// Inner steps of its rounds.
    pub steps: u64,
}

/// One contribution as a record lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contributor {
    pub member: NodeId,
    /// Digest of the member's signed READY envelope.
    pub ready: Digest,
    /// Positions `start .. start + samples` were trained on.
    pub start: u64,
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    /// Mean training loss of the round in nats per token, times 2^16.
    pub loss_q16: u32,
    /// The member's measurements, on which the sync controller acts.
    pub measured: Measured,
}

/// A member's own integer measurements of one round: inputs of the sync controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Mean time of a unit in microseconds: of the batch of an inner step, of which a fast member's step has several.
    pub step_us: u32,
    /// Bandwidth of the member's uplink in kbit/s, all its streams together; 0 = unknown, as it never held anything
    /// back.
    pub upload_kbps: u32,
    /// Time that the last reduction took, in microseconds, saturating; 0 = not measured.
    pub reduce_us: u32,
    /// Time of the last round from its last contribution to its COMMIT, in which nobody could train, in microseconds,
    /// saturating; 0 = not measured.
    pub overhead_us: u32,
    /// L2 norm of the pseudo-gradient, as the bits of an f32.
    pub norm_bits: u32,
}

/// Rounds whose cost a record remembers.
pub const OVERHEADS: usize = 3;

/// Settings of the round after a record, which the sync controller gives, and the members of that round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextRound {
    /// Inner steps (H) of a member at full speed.
    pub inner_steps: u32,
    pub codec: Codec,
    /// Costs of the last rounds beyond their inner steps, the newest first: medians of the voters' `overhead_us`.
    pub overheads: [u32; OVERHEADS],
    /// The most tokens that a READY's difference may count for, and the median norm that its length is measured by
    /// (bits of an f32): [`crate::difference::Limits`] of the newest COMMIT; zero after a fork.
    pub merge_tokens: u64,
    pub merge_norm_bits: u32,
    /// By ascending member id.
    #[serde(deserialize_with = "bounded::list::<_, _, MEMBERS_MAX>")]
    pub members: Vec<Member>,
    /// Places in `members` in the order of the reduction's ring, each once; empty if nothing is known that shows a good
    /// order.
    #[serde(deserialize_with = "bounded::list::<_, _, TOUR_MAX>")]
    pub ring: Vec<u16>,
    /// The amendments of the lineage so far: they are in force in the next round.
    pub settings: Settings,
}

/// The part of a member in the flock. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Decides, contributes and follows.
    Voter = 1,
    /// Contributes and follows.
    Learner = 2,
}

numbered!(Role, "role", { Voter = "voter", Learner = "learner" });

/// A member of the round after a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    /// The vote state that it speaks from: votes of another incarnation do not count.
    pub incarnation: u64,
    pub role: Role,
    /// COMMITs in a row that left it out.
    pub absent: u8,
    /// Whether attempt 0 waits for it.
    pub expected: bool,
    /// Positions that it may train on.
    pub lease: Span,
    /// Bandwidth of its uplink in kbit/s, as it stated in a contribution; 0 = unknown. It follows the statements with
    /// hysteresis, so that owners of chunks do not change with every round.
    pub upload_kbps: u32,
    /// The round whose COMMIT let it in; 0 if it founded the lineage.
    pub since: u64,
    /// COMMITs since then that took in a contribution of it, saturating.
    pub served: u16,
    /// Its cell in the flock's grid.
    pub cell: Cell,
}

impl Member {
    /// Whether it has had its seat from the beginning, as a founder.
    pub fn is_founder(&self) -> bool {
        self.since == 0
    }
}

/// A contiguous range of positions in the run's sample permutation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    pub start: u64,
    /// Number of positions (sequences).
    pub count: u64,
}

/// Uses of one admission ticket so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantUse {
    pub grant: Digest,
    pub uses: u32,
}

/// The name of a new lineage of this run that this node founded, with a nonce of its own (`docs/protocol/1-wire.md`
/// §1.1.1).
pub fn lineage(run: &Digest, founder: &NodeId, nonce: u64) -> Digest {
    Digest::of("starling lineage v1", &[&run.0, &founder.0, &nonce.to_le_bytes()])
}

impl Span {
    /// The position behind the last; None if that is beyond 2^64.
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.count)
    }
}

/// Name of a set of contributions: its members, by ascending id, each with its READY. So two nodes that hold different
/// READYs of one member, as after its restart, never mix their data.
pub fn set_digest(contributions: impl Iterator<Item = (NodeId, Digest)>) -> Digest {
    let bytes: Vec<u8> = contributions.flat_map(|(member, ready)| [member.0, ready.0]).flatten().collect();
    Digest::of("starling attempt v2", &[&bytes])
}

impl Record {
    /// The set of the contributions that this record averages, as attempts name it.
    pub fn set(&self) -> Digest {
        set_digest(self.contributors.iter().map(|c| (c.member, c.ready)))
    }

    /// The work of the lineage up to here.
    pub fn done(&self) -> Done {
        Done { tokens: self.tokens, steps: self.steps }
    }

    /// The most inner steps of a member's contribution to the round after this record. A member that keeps its lease may
    /// have made all steps of the round before, of which there were twice as many at most ([`crate::control`]).
    pub fn steps_max(&self, member: &Member) -> u32 {
        let part = if member.absent > 0 { 2 } else { 1 };
        self.next.inner_steps.saturating_mul(part).min(INNER_STEPS_MAX)
    }

    /// The record that made the state, given this one's digest. Contributions to the next round start from that state.
    pub fn base_or(&self, own: Digest) -> Digest {
        if self.changes_state() { own } else { self.base }
    }

    /// Whether applying it changes the state.
    pub fn changes_state(&self) -> bool {
        matches!(self.kind, RecordKind::Genesis | RecordKind::Commit)
    }

    /// Members of the next round, by ascending id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = NodeId> + '_ {
        self.next.members.iter().map(|member| member.id)
    }

    /// Voters on the next record, by ascending id.
    /// Whether the node votes on the record after this one.
    pub fn votes(&self, id: &NodeId) -> bool {
        self.member(id).is_some_and(|member| member.role == Role::Voter)
    }

    pub fn voters(&self) -> impl Iterator<Item = &Member> + '_ {
        self.next.members.iter().filter(|member| member.role == Role::Voter)
    }

    pub fn member(&self, id: &NodeId) -> Option<&Member> {
        let index = self.member_index(id)?;
        self.next.members.get(index)
    }

    /// Whether the work of a lineage is in the state, or may be: nothing can be added to a full list.
    pub fn has_merged(&self, lineage: &Digest) -> bool {
        let listed = self.merged.binary_search(lineage).is_ok();
        (listed && !mutated!(Mutation::MergeAgain)) || self.merged.len() >= MERGED_MAX || self.lineage == *lineage
    }

    /// The grid of the members of the next round.
    pub fn grid(&self) -> Grid {
        Grid::of(self.next.members.iter().map(|member| (member.id, member.cell)))
    }

    /// The number of rows of that grid.
    pub fn rows(&self) -> usize {
        self.next.members.iter().map(|member| member.cell.row() + 1).max().unwrap_or(1)
    }

    /// The members that this one may meet in the exchanges of the next round, itself among them: of those that the
    /// record expects, the members of its row. So a meeting needs no connection that the reduction does not need.
    pub fn gossip_of<'a>(&'a self, me: &NodeId) -> impl Iterator<Item = NodeId> + 'a {
        let row = self.member(me).map(|own| own.cell.row());
        let meets = move |member: &&Member| member.expected && Some(member.cell.row()) == row;
        self.next.members.iter().filter(meets).map(|member| member.id)
    }

    /// Place of a member in the list: its bit in a set of members.
    pub fn member_index(&self, id: &NodeId) -> Option<usize> {
        self.next.members.binary_search_by(|member| member.id.cmp(id)).ok()
    }

    /// Members in the order of the ring of a reduction after this record, whose digest is `own`: listed members as the
    /// record lists them, and behind them the others in ring order.
    pub fn ring_of(&self, own: &Digest, members: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let listed = |id: &NodeId| {
            let place = u16::try_from(self.member_index(id)?).ok()?;
            self.next.ring.iter().position(|other| *other == place)
        };
        let mut order = ring::order(own, members);
        // A stable sort: members that are not listed stay in their order.
        order.sort_by_cached_key(|id| listed(id).unwrap_or(usize::MAX));
        order
    }

    /// The lease of a member of the next round.
    pub fn lease_of(&self, id: &NodeId) -> Option<&Span> {
        self.member(id).map(|member| &member.lease)
    }
}

#[cfg(test)]
#[path = "record_test.rs"]
mod tests;
