//! The deadlines that a node waits for: those that it has looked at and that have not come yet.
//!
//! The actions of an engine follow from its state and from the time. Without an input only the time changes. It changes
//! something only when a deadline comes that was looked at when the engine last went through its state. Each comparison
//! of a deadline with the time ([`super::due`]) therefore leaves the deadline here, and the node sleeps until the first
//! of them. No deadline has to be listed a second time, and none is forgotten.

use super::clock::Moment;
use crate::mutation::{Mutation, mutated};
use std::cell::Cell;

/// Events that time alone brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Peers are to hear again that this node is here.
    Beat,
    /// A node without a seat may say something again.
    Outsider,
    /// This node asks to be let in again, or another's request does not count any more.
    Join,
    /// A message that others may have missed is said again.
    Repeat,
    /// Neighbours may be asked for READYs that this node lacks, or asked again.
    Want,
    /// Messages that came in quietly are looked at together.
    Quiet,
    /// A catch-up may be tried again.
    CatchUp,
    /// A peer's claims are looked at again.
    Claims,
    /// A proven head is too old, or one may be proven anew.
    Proof,
    /// A node that is one record behind has had the time to decide by itself.
    Ahead,
    /// A peer that this node has not met counts as dead.
    Meeting,
    /// A connection has been down for too long.
    Down,
    /// Nothing was heard of a peer for too long.
    Silence,
    /// A peer has made no progress for too long.
    Progress,
    /// There has been no quorum for so long that it matters, or for the whole grace.
    QuorumLoss,
    /// A restarted node has listened for long enough.
    Settle,
    /// The last voters have had their time to answer with a Witness.
    Witness,
    /// Half of the time that attempt 0 waits is over, or all of it.
    Assembly,
    /// The next attempt may be formed.
    Attempt,
    /// A READY of a decided set is lost.
    ReadyOfSet,
    /// A reduction stands still, or takes too long.
    Reduction,
    /// A voter waits no longer for more than a quorum.
    Vote,
    /// A vote in which no voter goes on ends in a SKIP.
    LeftBehind,
    /// A decided node waits no longer for its own inner step.
    OwnStep,
    /// A result may be fetched again.
    Fetch,
    /// A certificate may be given to a peer again.
    Help,
    /// A node that leaves stays no longer.
    Leave,
    /// A newcomer has made no progress for too long, or the patience with newcomers is used up.
    Newcomer,
    /// The user is told again what this node waits for.
    Told,
}

/// The first deadline that has not come yet.
#[derive(Debug, Default)]
pub(super) struct Watch {
    next: Cell<Option<(Moment, Deadline)>>,
    /// A wait has begun whose end may not have been looked at yet, or another event from which more may follow.
    begun: Cell<bool>,
    /// An input has come that is looked at later, together with others.
    unseen: Cell<bool>,
}

impl Watch {
    /// Notes a deadline that was looked at and has not come yet.
    pub fn note(&self, what: Deadline, at: Moment) {
        let asleep = what == Deadline::Claims && mutated!(Mutation::SleepOn)
            || what == Deadline::Down && mutated!(Mutation::Oversleep);
        if !asleep && self.next.get().is_none_or(|(first, _)| at < first) {
            self.next.set(Some((at, what)));
        }
    }

    /// Forgets the noted deadlines; returns the first of them.
    pub fn clear(&self) -> Option<(Moment, Deadline)> {
        self.begun.set(false);
        self.unseen.set(false);
        self.next.take()
    }

    /// Notes that a wait begins, or another event from which more may follow.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// Whether a wait has begun since the noted deadlines were forgotten.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Goes on waiting for the deadline that was noted before; the input that has come waits for it, too.
    pub fn resume(&self, awaited: Option<(Moment, Deadline)>) {
        self.unseen.set(true);
        if let Some((at, what)) = awaited {
            self.note(what, at);
        }
    }

    /// Whether an input has come that the engine has not looked at.
    pub fn has_unseen(&self) -> bool {
        self.unseen.get()
    }

    /// The next deadline, and the time at which it is due.
    pub fn next(&self) -> Option<(Moment, Deadline)> {
        self.next.get()
    }
}
