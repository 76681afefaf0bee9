//! All parts of a history, and the view that an invariant has of it. Invariants know this module alone; the event loop
//! (`course`) knows both.

use super::crowd::Strangers;
use super::disk::{Disk, Link, Write};
use super::gate::Gate;
use super::keys::Keys;
use super::mark::Marks;
use super::network::Network;
use super::options::Options;
use super::process::{Mixed, Node, Offer};
use super::random::Random;
use super::reduction::Reductions;
use super::schedule::Planned;
use super::traffic::Traffic;
use super::trainer::State;
use crate::engine::io::{AttemptKey, Input, Merge, Output, PersistToken};
use crate::message::Message;
use crate::record::{RecordKind, Span};
use crate::run::RunSpec;
use crate::{Digest, NodeId, Verifier};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Something that happens at a node.
#[derive(Debug)]
pub enum Event {
    Start,
    Tick,
    /// A tick for which no engine has asked.
    Probe,
    Deliver {
        from: usize,
        conn: u64,
        bytes: Rc<Vec<u8>>,
    },
    /// Bytes that no program sent on this connection.
    Junk {
        from: usize,
        bytes: Rc<Vec<u8>>,
    },
    Up {
        other: usize,
        conn: u64,
    },
    Down {
        other: usize,
        conn: u64,
    },
    /// The end of a connection over which nothing comes through.
    Sever {
        other: usize,
        conn: u64,
    },
    Step {
        job: u64,
    },
    Moved {
        key: AttemptKey,
        bytes: u64,
    },
    Reduced {
        key: AttemptKey,
    },
    Failed {
        key: AttemptKey,
        suspect: Option<usize>,
    },
    Verified,
    Mixed {
        round: u64,
        base: Digest,
        tokens: u64,
        merge: Merge,
    },
    AheadStep {
        job: u64,
    },
    Retaken {
        round: u64,
        base: Digest,
    },
    Applied {
        key: AttemptKey,
        update: Digest,
    },
    Written {
        token: PersistToken,
    },
    CaughtUp {
        job: u64,
        source: usize,
        target: Digest,
        afresh: bool,
    },
    /// A piece of a state that is being fetched is due.
    Piece {
        job: u64,
        /// The time of a piece from a node that serves nobody else.
        each: u64,
    },
    Proved {
        job: u64,
        source: NodeId,
        seq: u64,
        record: Digest,
        foreign: bool,
    },
    Fetched {
        job: u64,
        key: AttemptKey,
        record: Digest,
        source: usize,
    },
    Dial {
        other: usize,
    },
    Exit,
    /// The node has said what it is to die of.
    Sprung {
        sprung: Sprung,
    },
    Struck {
        sprung: Sprung,
    },
    Fault {
        index: usize,
    },
    Lie,
    /// A stranger does something.
    Strange {
        which: usize,
    },
    /// The connection of a stranger that was refused is gone.
    StrangerGone {
        which: usize,
    },
    /// Strangers were asked for a state.
    NothingCame,
}

/// An ambush that has been sprung.
#[derive(Clone, Debug)]
pub struct Sprung {
    pub(super) back: u64,
    /// The disk to come back with, if it is not the one at the death, and its age: the time, and the number of
    /// connections so far.
    pub(super) disk: Option<(u64, u64, Rc<Disk>)>,
}

/// An event, and the start of the node's program that it is for; 0 is for any.
#[derive(Debug)]
pub(super) struct Due {
    pub node: usize,
    pub start: u64,
    pub event: Event,
}

/// An event that an invariant can check.
pub enum Observed<'a> {
    /// A process starts on its disk's content.
    Started {
        node: usize,
    },
    Crashed {
        node: usize,
    },
    /// The disk is empty, or as it was some time ago.
    LostDisk {
        node: usize,
    },
    Input {
        node: usize,
        input: &'a Input,
    },
    Outputs {
        node: usize,
        outputs: &'a [Output],
    },
    /// A step is over, and its consequences are done.
    Step {
        node: usize,
    },
    /// An answer to bytes that are a lie.
    Junk {
        node: usize,
        from: usize,
        outputs: &'a [Output],
    },
    /// A node was woken before the time for which it had asked: its outputs, and any difference that a person sees.
    Probed {
        node: usize,
        outputs: &'a [Output],
        seen: Option<&'a str>,
    },
    /// An answer to a stranger's message.
    Strange {
        node: usize,
        from: NodeId,
        message: &'a Message,
        outputs: &'a [Output],
    },
    /// An honest node's bytes leave it.
    Sent {
        node: usize,
        to: usize,
        bytes: &'a Rc<Vec<u8>>,
    },
    Training {
        node: usize,
        base: Digest,
        lease: Span,
    },
    Trained {
        node: usize,
        base: Digest,
        offer: &'a Offer,
    },
    /// A difference was mixed into a contribution that was trained from this state.
    Mixed {
        node: usize,
        base: Digest,
        offer: &'a Offer,
        merge: &'a Merge,
        mixed: &'a Mixed,
    },
    /// A commit takes effect in memory; the process still holds the former state.
    Committing {
        node: usize,
        key: Option<AttemptKey>,
        link: &'a Link,
        state: &'a Rc<State>,
        mine: bool,
    },
    /// A write is about to be on the disk.
    Stored {
        node: usize,
        write: &'a Write,
    },
    /// Chain and state of the disk were replaced by another node's.
    Replaced {
        node: usize,
    },
}

/// One rule, with its memory of the history.
pub trait Invariant {
    fn name(&self) -> &'static str;

    /// Looks at an event.
    ///
    /// # Errors
    /// A description of how the rule fails.
    fn observe(&mut self, event: &Observed<'_>, world: &World) -> Result<(), String>;
}

/// An error unless the condition holds.
pub(super) fn require(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub invariant: &'static str,
    pub detail: String,
    /// Microseconds since the beginning.
    pub at: u64,
}

/// The recovery of one history after its last fault, in microseconds since then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovered {
    /// The first new COMMIT anywhere.
    pub first: Option<u64>,
    /// All nodes have one head with three new COMMITs behind it.
    pub together: Option<u64>,
    /// Every node that is there has contributed, and no other node is a member.
    pub complete: Option<u64>,
    /// No quorum was left: the flock needed a fork, and its grace.
    pub forked: bool,
}

/// All parts of a history.
pub struct World {
    pub now: u64,
    pub(super) queue: BTreeMap<(u64, u64), Due>,
    pub(super) serial: u64,
    pub random: Random,
    pub options: Options,
    pub spec: RunSpec,
    pub run: Digest,
    pub keys: Keys,
    pub gate: Gate,
    pub verifier: Box<dyn Verifier>,
    pub nodes: Vec<Node>,
    pub strangers: Strangers,
    pub network: Network,
    pub reductions: Reductions,
    pub schedule: Vec<Planned>,
    pub invariants: Vec<Box<dyn Invariant>>,
    pub violation: Option<Violation>,
    pub marks: Marks,
    /// Records that nodes with a damaged state have decided by themselves.
    pub tainted: BTreeSet<Digest>,
    pub calm: bool,
    /// Damage that nobody can mend, and that the promise does not cover: the history ends.
    pub beyond_repair: bool,
    /// The recovery of the flock after the last fault.
    pub recovered: Option<Recovered>,
    pub quiet_until: u64,
    pub events: u64,
    /// Rolling digest of all inputs and outputs, if it is asked for.
    pub trace: Option<blake3::Hasher>,
    /// Receives the story line by line, if it is asked for.
    pub story: Option<fn(&str)>,
    /// Every record that was committed: its kind, and the time of the first node's commit.
    pub decided: BTreeMap<Digest, (RecordKind, u64)>,
    pub traffic: Traffic,
}
