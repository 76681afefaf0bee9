//! Averaging: turns the members' pseudo-gradients into one encoded update that all of them hold.
//!
//! A [`ReduceEngine`] does it for one attempt: the [`RingReducer`] or the [`OwnersReducer`], and in a flock of several
//! rows the [`LatticeReducer`]. Their results are specified, to the bit, by `starling_protocol::update::reduce`,
//! `update::owners::reduce` and `update::lattice::reduce`. An engine knows no
//! rounds and no votes: it is given an attempt, and ends with the update or with the member that it suspects. Dropping
//! its future leaves the attempt.
//!
//! ```text
//!            BulkRouter (streams that arrive, by attempt)
//!                 |
//!   predecessor -> reader: check, decode, add mine, encode -> board (the update's bytes) -> writer -> successor
//!   each member -> reader: check, decode, wait for its turn, add -> sums -> encode -> writer -> each member
//! ```
//!
//! Attempts at one record share what a failed one leaves: the parts that an owner was sent ([`Parts`]) and the finished
//! sums ([`Sums`]).

mod board;
mod chunk;
mod error;
mod feedback;
mod fragments;
mod group;
#[cfg(test)]
pub(crate) mod harness;
mod held;
#[cfg(test)]
mod kept_test;
mod lattice;
mod linger;
mod links;
mod opening;
mod owners;
mod parts;
mod passed;
mod payloads;
mod progress;
mod ring;
mod router;
pub(crate) mod stream;
mod sums;
mod turns;
mod word;

pub use error::{PeerFault, ReduceError};
pub use feedback::Feedback;
pub use fragments::{FragmentFeedback, Restored};
pub use lattice::LatticeReducer;
pub use links::{BulkLinks, NetLinks};
#[cfg(feature = "byzantine")]
pub(crate) use opening::{OPENING_BYTES, opening_of};
pub use owners::OwnersReducer;
pub use parts::Parts;
pub use passed::Passed;
pub use progress::{ProgressFn, Report};
pub use ring::RingReducer;
pub use router::{BulkRouter, RouterError};
pub use sums::{Finished, Sums};
#[cfg(feature = "byzantine")]
pub(crate) use word::{WORD_HEADER_BYTES, follow};

use futures::future::BoxFuture;
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::grid::Grid;
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId};
use std::sync::Arc;

/// One attempt's reduction, as this node sees it.
#[derive(Clone)]
pub struct ReduceJob {
    pub run: Digest,
    pub key: AttemptKey,
    pub codec: Codec,
    /// All contributors, in ring order.
    pub members: Vec<Contribution>,
    /// The members that the head expects, by ascending id, with their upload bandwidths in kbit/s (0 = not known).
    /// Chunks are dealt among them, so that a death moves only the dead owner's chunks.
    pub flock: Vec<(NodeId, u32)>,
    /// The grid of the head's members. If it has several rows these add up over rows and columns.
    pub grid: Arc<Grid>,
    pub me: NodeId,
    /// This node's pseudo-gradient, not weighted: one f32 for each parameter of the model, or of the fragment whose
    /// turn it is.
    pub delta: Arc<Vec<f32>>,
    /// The residuals of this node's earlier rounds; empty for codecs that need none.
    pub feedback: Arc<Feedback>,
    /// The parts that this node was sent, as an owner, in earlier attempts of the record.
    pub parts: Arc<Parts>,
    /// The sums that were finished in earlier attempts of the record.
    pub sums: Arc<Sums>,
}

impl ReduceJob {
    /// This node's place in the ring.
    ///
    /// # Errors
    /// [`ReduceError::Members`] unless this node is listed exactly once and no member twice.
    fn position(&self) -> Result<usize, ReduceError> {
        let mut ids: Vec<_> = self.members.iter().map(|c| c.member).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ReduceError::Members("a member is listed twice"));
        }
        let mine = self.members.iter().position(|c| c.member == self.me);
        mine.ok_or(ReduceError::Members("this node is not a member"))
    }

    /// The weight of this node's contribution.
    fn weight(&self, position: usize) -> f32 {
        Contribution::weights(&self.members).get(position).copied().unwrap_or(0.0)
    }
}

/// An engine that reduces attempts.
pub trait ReduceEngine: Send + Sync {
    /// Computes the encoded update of the attempt. `progress` is told now and then how far it is, and once at the end.
    /// Dropping the future leaves the attempt.
    fn run(&self, job: ReduceJob, progress: ProgressFn) -> BoxFuture<'static, Result<Vec<u8>, ReduceError>>;
}

/// Leaves the attempt when it is dropped, however its future ends.
struct Attempt {
    links: Arc<dyn BulkLinks>,
    key: AttemptKey,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.links.leave(self.key);
    }
}

/// Counts a breach of the protocol by a peer, and remembers it for later attempts at the record.
fn note_refusal<T>(result: &Result<T, ReduceError>, sums: &Sums) {
    let Some(error) = result.as_ref().err() else { return };
    if let Some(reason) = error.refusal() {
        metrics::counter!("starling_refused_total", "reason" => reason).increment(1);
        error.suspect().into_iter().for_each(|suspect| sums.accuse(suspect));
    }
}
