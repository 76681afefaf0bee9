//! Control messages between nodes. Tensor data travels in frames.

use crate::amendment::Amendment;
use crate::limits::{MEMBERS_MAX, RTTS_MAX, RUN_SPEC_BYTES_MAX, SET_BYTES_MAX, STATEMENTS_MAX, TICKET_BYTES_MAX};
use crate::limits::{STATEMENT_BYTES_MAX, VOTE_BYTES_MAX, VOTERS_MAX};
use crate::record::Measured;
use crate::wire::bounded;
use crate::wire::number::numbered;
use crate::{Digest, NodeId};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

mod shape;

/// A message from one node to another. [`crate::wire`] gives each kind its number. Serde does not know this enum, so
/// the order of declaration never reaches the wire.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Hello(Hello),
    Head(Head),
    Join(Join),
    Ready(Ready),
    Leave(Leave),
    Estimate(Estimate),
    Vote(Vote),
    Certificate(Certificate),
    Witness(Witness),
    Fork(Fork),
    Start(Start),
    Evidence(Evidence),
    Alive(Alive),
    Amend(Amendment),
    Want(Want),
}

/// First message in each direction of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    /// The encoded `RunSpec`: the receiver can name the keys in which it differs.
    #[serde(deserialize_with = "bounded::bytes::<_, RUN_SPEC_BYTES_MAX>")]
    pub spec: Vec<u8>,
    /// Fresh for each start of a process. Two live nonces under one key show a cloned identity
    /// (`docs/protocol/5-membership.md` §5.6).
    pub boot: u64,
    /// Names the vote state that the sender speaks from: the `boot` of the process that created it.
    pub incarnation: u64,
}

/// Heartbeat: the sender's head and phase. Sent on every change and once a beat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Zero until the sender has met a flock.
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    /// Committed tokens of the lineage. They decide between two forks of one record that equally many of its voters
    /// went along.
    pub tokens: u64,
    pub phase: Phase,
    /// Grows while the sender makes progress in its phase (inner steps done, bytes reduced).
    pub progress: u64,
    /// What the sender waits for in a reduction by owners; outside of one, the member whose data it has refused in this
    /// round.
    pub awaits: Option<Awaits>,
    pub pulse: Pulse,
}

/// Which process says a Head and when, and which members it cannot reach. A member that hears another one through
/// others alone has no Hello and no connection of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// As in the sender's newest Hello.
    pub boot: u64,
    pub incarnation: u64,
    /// Grows from one Head of a process to the next.
    pub beat: u64,
    /// The neighbours in the grid of its head record that the sender does not reach, as a set of members. Empty in a
    /// flock of one row.
    #[serde(deserialize_with = "bounded::bytes::<_, SET_BYTES_MAX>")]
    pub down: Vec<u8>,
}

/// Something without which a member of a reduction cannot go on, and the member that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaits {
    pub what: Awaited,
    pub from: NodeId,
}

/// The numbers are on the wire. A value that comes first in their order depends on none that comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Awaited {
    /// A part of a chunk that the sender owns, or which parts are missing at an owner.
    Part = 1,
    /// The sum of a chunk, from its owner.
    Sum = 2,
    /// Confirmation that sent data was taken.
    Room = 3,
    /// Nothing any more: the sender of the Head has refused the data that came, and left the attempt.
    Refused = 4,
    /// In a flock of several rows: the sum of a row over a chunk, from the member that adds it up or passes it on.
    RowSum = 5,
}

numbered!(Awaited, "thing to await", {
    Part = "part", Sum = "sum", Room = "room", Refused = "refused", RowSum = "row_sum",
});

impl Awaited {
    fn rank(self) -> u8 {
        match self {
            Self::Part => 1,
            Self::RowSum => 2,
            Self::Sum => 3,
            Self::Room => 4,
            Self::Refused => 5,
        }
    }
}

impl Ord for Awaited {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Awaited {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A node's activity. The numbers are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Has met no flock yet.
    Seeking = 1,
    /// Fetching state or records.
    CatchingUp = 2,
    /// Has the flock's head and asks to be let in.
    Joining = 3,
    Training = 4,
    /// Trained; waits for the others.
    Ready = 5,
    Reducing = 6,
    /// Applying, voting and writing.
    Settling = 7,
    /// The run's budget is spent.
    Finished = 8,
    /// Without a quorum; waits or halts by the run's policy.
    QuorumLost = 9,
    /// Stopped until a person looks: two certified records contradict each other.
    Frozen = 10,
}

numbered!(Phase, "phase", {
    Seeking = "seeking",
    CatchingUp = "catching-up",
    Joining = "joining",
    Training = "training",
    Ready = "ready",
    Reducing = "reducing",
    Settling = "settling",
    Finished = "finished",
    QuorumLost = "cut-off",
    Frozen = "frozen",
});

/// "I hold this state; count me in from the next round on."
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    pub state_root: Digest,
    pub incarnation: u64,
    /// An encoded [`crate::admission::Ticket`]; empty when the run asks for none.
    #[serde(deserialize_with = "bounded::bytes::<_, TICKET_BYTES_MAX>")]
    pub ticket: Vec<u8>,
}

/// A member's one immutable statement of its contribution to a round (`docs/protocol/4-agreement.md` §4.2): at most 512
/// bytes signed, plus 4 for each measured peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub lineage: Digest,
    /// The COMMIT that this contribution is to enter.
    pub round: u64,
    /// The record that made the state to which the contribution is to be applied. It is not the head, since the
    /// contribution stays valid over SKIPs. A contribution that is offered again was trained from an earlier state.
    pub base: Digest,
    pub state_root: Digest,
    /// The start of the sender's process. A process that lost its contribution may make another one.
    pub boot: u64,
    /// Positions `start .. start + samples` were trained on.
    pub start: u64,
    pub samples: u64,
    pub tokens: u64,
    pub steps: u32,
    pub loss_q16: u32,
    /// Digest of the pseudo-gradient (little-endian f32).
    pub payload: Digest,
    pub measured: Measured,
    #[serde(deserialize_with = "bounded::list::<_, _, STATEMENTS_MAX>")]
    pub statements: Vec<Statement>,
    /// The sender leaves after this round.
    pub leave: bool,
    /// The lineage whose difference the payload holds as well (`docs/protocol/7-merging.md` §7.4).
    pub merges: Option<Digest>,
    /// The tokens that this difference counts for beside `tokens`; 0 exactly when nothing is merged.
    pub merged_tokens: u64,
    /// Round-trip times, by ascending place in the head record's list of members.
    #[serde(deserialize_with = "bounded::list::<_, _, RTTS_MAX>")]
    pub rtts: Vec<PeerRtt>,
    /// The amendment that the sender passes on from the run's creator, or that its operator agrees to.
    pub amends: Option<Box<Amendment>>,
}

impl Ready {
    /// Microseconds of one of its steps, of which a fast member's has several units.
    pub fn step_us(&self, unit: u64) -> u64 {
        let units = self.samples / unit.max(1);
        u64::from(self.measured.step_us).saturating_mul(units) / u64::from(self.steps.max(1))
    }
}

/// A member's statement about another node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Statement {
    pub kind: StatementKind,
    pub id: NodeId,
    /// Incarnation of a joiner; else 0.
    pub incarnation: u64,
    /// The ticket that a joiner uses, or the one that is revoked; else zero.
    pub grant: Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum StatementKind {
    /// The node asks to be let in, has a recent head, and is admitted.
    Joins = 1,
    /// The member holds the node to be dead or damaged.
    Suspect = 2,
    /// The run's creator has revoked this identity, or the ticket `grant`.
    Revoked = 3,
}

numbered!(StatementKind, "kind of statement", { Joins = "joins", Suspect = "suspect", Revoked = "revoked" });

/// A measured round-trip time: 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRtt {
    /// Place in the list of members.
    pub peer: u16,
    /// In units of 100 microseconds, saturating.
    pub rtt: u16,
}

/// "I am going away": no node needs to wait for the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leave {
    pub lineage: Digest,
    pub seq: u64,
}

/// One of the values between which voters decide in a ballot (`docs/protocol/4-agreement.md` §4.5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    pub kind: ValueKind,
    /// Digest of the record, or of the set with its READYs.
    pub digest: Digest,
    /// Tokens of the contributions, and their number.
    pub tokens: u64,
    pub contributors: u32,
    /// The attempt that made the record, or the attempt that the set is for.
    pub attempt: u32,
    /// The attempt's set; equal to `digest` when the value is a set, zero in a SKIP.
    pub set: Digest,
    /// The set's members if the value is a set, one bit for each member of the head record, least significant first.
    #[serde(deserialize_with = "bounded::bytes::<_, SET_BYTES_MAX>")]
    pub members: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ValueKind {
    Commit = 1,
    Skip = 2,
    Set = 3,
}

numbered!(ValueKind, "kind of value", { Commit = "commit", Skip = "skip", Set = "set" });

/// The subject of one vote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Question {
    pub seq: u64,
    /// The head record that the decided record follows. It also tells the lineage.
    pub parent: Digest,
    /// [`Question::RECORD`] for the record itself; else the number, from 1, of the attempt whose set is decided.
    pub instance: u32,
}

impl Question {
    /// The vote on the record. It comes after all votes on sets, and a voter does not return from it to one of them.
    pub const RECORD: u32 = u32::MAX;
}

/// Phase A of a ballot: "my value, and I hold its bytes".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    pub question: Question,
    pub incarnation: u64,
    pub ballot: u32,
    pub value: Value,
}

/// Phase B of a ballot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub question: Question,
    pub incarnation: u64,
    pub ballot: u32,
    /// The value that the sender goes on with.
    pub value: Value,
    /// Whether the sender votes for it: all members of a quorum had named it.
    pub voted: bool,
}

/// The quorum of signed votes that decided a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    pub lineage: Digest,
    pub seq: u64,
    pub record: Digest,
    /// Signed [`Vote`]s as received, by ascending sender. In a fork: the signed [`Fork`]s of all its members.
    #[serde(deserialize_with = "bounded::blobs::<_, VOTERS_MAX, VOTE_BYTES_MAX>")]
    pub votes: Vec<Vec<u8>>,
}

/// "The newest statement that I have seen you sign": tells a restarted node whether its disk is old
/// (`docs/protocol/4-agreement.md` §4.9.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Witness {
    pub incarnation: u64,
    pub stamp: Stamp,
}

/// The place of a statement among those that one vote state signs: by `seq`, then sets of attempts before the record,
/// then ballot and phase. It rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    pub seq: u64,
    pub instance: u32,
    pub ballot: u32,
    /// 1 estimate, 2 vote; 0 nothing yet.
    pub phase: u8,
}

/// "We are without a quorum: these members go on as a lineage of their own" (`docs/protocol/7-merging.md` §7.2). In
/// force when all of them say the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub lineage: Digest,
    pub seq: u64,
    pub parent: Digest,
    pub incarnation: u64,
    /// The FORK record that will be the sender's head: signing it signs each incarnation and each lease.
    pub record: Digest,
    /// One bit for each member of the parent record, least significant first.
    #[serde(deserialize_with = "bounded::bytes::<_, SET_BYTES_MAX>")]
    pub members: Vec<u8>,
}

/// "This set was decided for this attempt": from a voter to the set's learners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub question: Question,
    pub value: Value,
}

/// "This node has contradicted itself": two envelopes as their signer sent them, checked by [`crate::evidence`]. Every
/// node that hears it passes it on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    #[serde(deserialize_with = "bounded::bytes::<_, STATEMENT_BYTES_MAX>")]
    pub first: Vec<u8>,
    #[serde(deserialize_with = "bounded::bytes::<_, STATEMENT_BYTES_MAX>")]
    pub second: Vec<u8>,
}

/// "I run, though another process with my key has been started". A process says so when it is shown the [`Hello`] of a
/// later start of its own key, and the message is handed to that start (`docs/protocol/5-membership.md` §5.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// The sender's own start.
    pub boot: u64,
    /// The start in the Hello that it was shown.
    pub newer: u64,
}

/// "Say the READYs of these members to me": to a neighbour in a flock of several rows
/// (`docs/protocol/1-wire.md` §1.5.18).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    pub lineage: Digest,
    pub round: u64,
    /// The record that made the state.
    pub base: Digest,
    /// At most [`crate::limits::WANTED_MAX`], by the sender's head record.
    #[serde(deserialize_with = "bounded::bytes::<_, SET_BYTES_MAX>")]
    pub members: Vec<u8>,
}

impl Message {
    /// The kind's name in logs and counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Head(_) => "head",
            Self::Join(_) => "join",
            Self::Ready(_) => "ready",
            Self::Leave(_) => "leave",
            Self::Estimate(_) => "estimate",
            Self::Vote(_) => "vote",
            Self::Certificate(_) => "certificate",
            Self::Witness(_) => "witness",
            Self::Fork(_) => "fork",
            Self::Start(_) => "start",
            Self::Evidence(_) => "evidence",
            Self::Alive(_) => "alive",
            Self::Amend(_) => "amend",
            Self::Want(_) => "want",
        }
    }
}

impl Value {
    /// The SKIP record of this digest.
    pub fn skip(digest: Digest) -> Self {
        let (set, members) = (Digest::default(), Vec::new());
        Self { kind: ValueKind::Skip, digest, tokens: 0, contributors: 0, attempt: 0, set, members }
    }

    /// The order in which a voter prefers values when none is forced: COMMIT before SKIP, more tokens, larger C,
    /// smaller hash (`docs/protocol/4-agreement.md` §4.5.6). Greater is better.
    pub fn rank(&self) -> impl Ord + use<> {
        let kind = std::cmp::Reverse(self.kind);
        (kind, self.tokens, self.contributors, std::cmp::Reverse(self.digest))
    }
}

/// A set of members as bits over a record's list of members, least significant first, without zero bytes at the end.
pub fn member_bits(indices: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut bits = Vec::new();
    for index in indices.into_iter().filter(|index| *index < MEMBERS_MAX) {
        if bits.len() <= index / 8 {
            bits.resize(index / 8 + 1, 0);
        }
        bits[index / 8] |= 1 << (index % 8);
    }
    bits
}

/// The indices of a set of members, ascending.
pub fn member_indices(bits: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let set = |(at, byte): (usize, &u8)| {
        let byte = *byte;
        (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
    };
    bits.iter().enumerate().flat_map(set)
}
