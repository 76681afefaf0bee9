//! Gossip: the exchange of two members between two records (`starling_protocol::gossip`).
//!
//! The member with the smaller id opens a stream, the other accepts it, and both write at once what they have learned
//! and how far they have drifted, chunk by chunk. Each gets all of the other's vectors, checked, or nothing. A member
//! that cannot have its partner's in time goes on alone.
//!
//! ```text
//! trainer thread -> Exchanger: open or wait (PairRouter) -> write mine | read theirs -> Theirs
//! ```
//!
//! The exchange runs on the trainer's own thread, which waits for it; the caller sets the deadline and drops an
//! exchange that takes longer.

mod error;
mod exchange;
#[cfg(test)]
mod exchange_test;
mod opening;
mod router;

pub use error::PairError;
pub use exchange::{Exchanger, Offer, PairLinks, Theirs};
pub use router::PairRouter;

use starling_protocol::Digest;

/// One exchange of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairKey {
    pub place: Place,
    /// From 1.
    pub exchange: u32,
}

/// A round that is being trained: lineage, the record that made the state it began with, and its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub lineage: Digest,
    pub base: Digest,
    pub round: u64,
}
