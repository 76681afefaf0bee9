//! Fetches under way: candidates, the flock's state, text, and proofs of peers' claims.

use super::claims::Claims;
use super::fellows::Fellows;
use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

/// Candidates that are being fetched, or fetched and not yet on disk, at once. The engine asks for one or two.
pub const FETCHES_MAX: usize = 4;

/// The fetch of a candidate. Dropping it gives it up.
struct Fetching {
    key: AttemptKey,
    record: Digest,
    _work: AbortOnDropHandle<()>,
}

#[derive(Default)]
pub struct Fetches {
    candidates: Vec<Fetching>,
    pub claims: Claims,
    pub catch_up: Option<AbortOnDropHandle<()>>,
    pub fellows: Fellows,
    pub shards: bool,
}

impl Fetches {
    /// Whether a fetch is under way that a round must wait for.
    pub fn bring_text_or_state(&self) -> bool {
        self.shards || self.catch_up.is_some()
    }

    /// The number of candidates that are being fetched.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    pub fn start(&mut self, key: AttemptKey, record: Digest, work: JoinHandle<()>) {
        self.candidates.push(Fetching { key, record, _work: AbortOnDropHandle::new(work) });
    }

    /// Ends the fetch of a candidate; returns whether it was under way.
    pub fn arrived(&mut self, key: AttemptKey, record: Digest) -> bool {
        let at = self.candidates.iter().position(|fetching| (fetching.key, fetching.record) == (key, record));
        at.map(|at| self.candidates.remove(at)).is_some()
    }

    pub fn abandon(&mut self, key: AttemptKey) {
        self.candidates.retain(|fetching| fetching.key != key);
    }

    /// Drops fetches up to this record, which is decided.
    pub fn forget(&mut self, seq: u64) {
        self.candidates.retain(|fetching| fetching.key.seq > seq);
    }
}
