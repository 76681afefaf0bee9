//! The stages of a node's life, and the state that exists in each.
//!
//! ```text
//! New -> Seeking -> Outside <-> Member -> ... -> Ended
//!     -> Founding -----------------^
//! ```
//!
//! Beside these stages, a catch-up may be under way ([`super::sync`]), and a node that has met a broken promise is
//! frozen where it is. Neither is a stage of its own. A node that catches up still hears the votes of its round, and
//! goes on in that round when the catch-up fails. A write that was under way when a node froze still ends, and moves
//! its head.

use super::config::{Founding, Stored};
use super::io::{Finish, PersistToken};
use super::round::Round;
use crate::candidate::Candidate;
use crate::record::Record;

pub(super) enum Life {
    /// Before the first input.
    New(Box<Start>),
    /// The node has no head.
    Seeking,
    /// The first record of the node's own lineage is on its way to the disk.
    Founding(PersistToken, Box<Record>),
    /// The node has no seat in its head.
    Outside,
    /// The node has a seat in its head, and works on the next record.
    Member(Box<Round>),
    Ended(Finish),
}

/// What an engine starts from.
pub(super) struct Start {
    pub found: Option<Founding>,
    pub stored: Option<Stored>,
    pub copied: bool,
    pub force_fork: bool,
}

/// What a process takes from its start into the first round that it enters, at once or when an amendment lengthens a run
/// that is over.
#[derive(Default)]
pub(super) struct FirstRound {
    /// Candidates of the disk.
    pub candidates: Vec<Candidate>,
    pub force_fork: bool,
}

impl Life {
    pub fn round(&self) -> Option<&Round> {
        if let Self::Member(round) = self { Some(round) } else { None }
    }

    pub fn round_mut(&mut self) -> Option<&mut Round> {
        if let Self::Member(round) = self { Some(round) } else { None }
    }

    pub fn end(&self) -> Option<&Finish> {
        if let Self::Ended(reason) = self { Some(reason) } else { None }
    }

    pub fn founds(&self) -> bool {
        matches!(self, Self::Founding(..))
    }

    /// The lineage's first record, if `token` names the write of it.
    pub fn founded(&self, token: PersistToken) -> Option<Record> {
        match self {
            Self::Founding(awaited, record) if *awaited == token => Some((**record).clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample;

    #[test]
    fn a_lineage_is_founded_by_its_own_write() {
        let life = Life::Founding(PersistToken(2), Box::new(sample::record()));
        assert!(life.founds() && life.founded(PersistToken(1)).is_none());
        assert_eq!(life.founded(PersistToken(2)), Some(sample::record()));
        assert!(Life::Outside.founded(PersistToken(2)).is_none());
    }
}
