//! The stages of a node's life, and what exists in each.
//!
//! ```text
//! New -> Seeking -> Outside <-> Member -> ... -> Ended
//!     -> Founding -----------------^
//! ```
//!
//! Beside them: a catch-up may be under way ([`super::sync`]), and a node that has met a broken promise is frozen where
//! it is. Neither is a stage of its own. A node that catches up still hears the votes of its round, and goes on in that
//! round when the catch-up fails; a write that was under way when a node froze still ends, and moves its head.

use super::config::{Founding, Stored};
use super::io::{Finish, PersistToken};
use super::round::Round;
use crate::record::Record;

pub(super) enum Life {
    /// Before the first input.
    New(Box<Start>),
    /// It stands on no record.
    Seeking,
    /// The first record of its own lineage is on its way to the disk.
    Founding(PersistToken, Box<Record>),
    /// It stands on a record in which it has no seat.
    Outside,
    /// It has a seat, and works on the next record.
    Member(Box<Round>),
    Ended(Finish),
}

/// What an engine begins with.
pub(super) struct Start {
    pub found: Option<Founding>,
    pub stored: Option<Stored>,
    pub copied: bool,
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

    /// The lineage's first record, if this write was its.
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
