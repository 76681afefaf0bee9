//! The terms that a variant of local training sets for contributions. The engine's parts read these terms and know no
//! variant.

use crate::mutation::{Mutation, mutated};
use crate::run::{SyncMode, SyncSpec};

/// The terms of a run, chosen when it is set up.
#[derive(Debug)]
pub(super) struct Terms {
    moved: Moved,
    /// The trainer has parameters of its own, which begin anew when a contribution is dropped.
    pub own_parameters: bool,
    /// A contribution may have the difference of another lineage in it.
    pub merges: bool,
    /// Inner steps of the next round that may be done while a record is made.
    pub ahead: u32,
}

/// The fate of a contribution that a COMMIT left out, when that COMMIT has moved the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moved {
    /// It is offered again as it is.
    Stands,
    /// Another fragment has its turn, and is made first.
    Retaken,
    /// A gradient is valid only at the state where it was taken: its lease is trained on anew.
    Dropped,
}

impl Terms {
    pub fn of(sync: &SyncSpec) -> Self {
        let moved = match sync.mode {
            SyncMode::EveryStep => Moved::Dropped,
            SyncMode::Rounds if sync.fragments > 1 => Moved::Retaken,
            SyncMode::Rounds => Moved::Stands,
        };
        Self { moved, own_parameters: sync.streams(), merges: sync.merges(), ahead: sync.overlap }
    }

    pub fn moved(&self) -> Moved {
        match self.moved {
            Moved::Dropped if mutated!(Mutation::StaleGradient) => Moved::Stands,
            Moved::Retaken if mutated!(Mutation::StaleFragment) => Moved::Stands,
            _ if mutated!(Mutation::DropLeftOut) => Moved::Dropped,
            moved => moved,
        }
    }
}
