//! What a node waits for: every deadline that it has looked at and that has not come yet.
//!
//! What an engine does follows from its state and from the time. Where no input comes only the time changes, and it changes
//! something only where a deadline comes that was looked at when the engine last went through its state. So whoever
//! compares a deadline with the time ([`super::due`]) leaves it here, and the node sleeps until the first of them. None
//! has to be listed a second time, and none is forgotten.

use super::clock::Moment;
use crate::mutation::{Mutation, mutated};
use std::cell::Cell;

/// What time alone brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// Peers are to hear again that this node is here.
    Beat,
    /// A node without a seat may say something again.
    Outsider,
    /// It asks to be let in again, or another's request counts no more.
    Join,
    /// What others may have missed is said again.
    Repeat,
    /// What came in quietly is looked at, with all that came beside it.
    Quiet,
    /// A catch-up may be tried again.
    CatchUp,
    /// A peer's claims are looked at again.
    Claims,
    /// A proven head is too old, or one may be proven anew.
    Proof,
    /// A node that is one record behind had the time to decide by itself.
    Ahead,
    /// A peer that nobody has met counts as dead.
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
    /// The last voters have had their time to bear witness.
    Witness,
    /// Half of what attempt 0 waits, and all of it.
    Assembly,
    /// The next attempt may be formed.
    Attempt,
    /// A READY of a decided set is lost.
    ReadyOfSet,
    /// A reduction stands still, or takes too long.
    Reduction,
    /// In a vote nobody waits any longer for more than a quorum.
    Vote,
    /// A vote in which nobody goes on ends in a SKIP.
    LeftBehind,
    /// A decided node waits no longer for its own inner step.
    OwnStep,
    /// A result may be fetched again.
    Fetch,
    /// A certificate may be given to somebody again.
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
    /// A wait has begun, whose end may not have been looked at yet; or something else from which more may follow.
    begun: Cell<bool>,
    /// Something has come in that is looked at later, with what comes beside it.
    unseen: Cell<bool>,
}

impl Watch {
    /// Somebody has looked at a deadline that has not come yet.
    pub fn note(&self, what: Deadline, at: Moment) {
        let asleep = what == Deadline::Claims && mutated!(Mutation::SleepOn)
            || what == Deadline::Down && mutated!(Mutation::Oversleep);
        if !asleep && self.next.get().is_none_or(|(first, _)| at < first) {
            self.next.set(Some((at, what)));
        }
    }

    /// Forgets what was noted: the first of it.
    pub fn clear(&self) -> Option<(Moment, Deadline)> {
        self.begun.set(false);
        self.unseen.set(false);
        self.next.take()
    }

    /// A wait begins, or something else from which more may follow.
    pub fn begin(&self) {
        self.begun.set(true);
    }

    /// Whether one has begun since what was noted was forgotten.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// What was noted before is awaited still, and what has come in waits for it.
    pub fn resume(&self, awaited: Option<(Moment, Deadline)>) {
        self.unseen.set(true);
        if let Some((at, what)) = awaited {
            self.note(what, at);
        }
    }

    /// Whether something has come in that nobody has looked at.
    pub fn has_unseen(&self) -> bool {
        self.unseen.get()
    }

    /// When something is due next, and what.
    pub fn next(&self) -> Option<(Moment, Deadline)> {
        self.next.get()
    }
}
