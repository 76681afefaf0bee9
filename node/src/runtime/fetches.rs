//! What is on its way here from peers: candidates, the flock's state, text, and proofs of what peers claim.

use super::claims::Claims;
use super::fellows::Fellows;
use starling_protocol::Digest;
use starling_protocol::engine::io::AttemptKey;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

/// A candidate on its way here. Dropping it gives it up.
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
    /// Whether a round cannot begin before something is here.
    pub fn bring_text_or_state(&self) -> bool {
        self.shards || self.catch_up.is_some()
    }

    /// How many candidates are on their way.
    pub fn candidates(&self) -> usize {
        self.candidates.len()
    }

    pub fn start(&mut self, key: AttemptKey, record: Digest, work: JoinHandle<()>) {
        self.candidates.push(Fetching { key, record, _work: AbortOnDropHandle::new(work) });
    }

    /// Whether it was on its way. It is not any more.
    pub fn arrived(&mut self, key: AttemptKey, record: Digest) -> bool {
        let at = self.candidates.iter().position(|fetching| (fetching.key, fetching.record) == (key, record));
        at.map(|at| self.candidates.remove(at)).is_some()
    }

    pub fn abandon(&mut self, key: AttemptKey) {
        self.candidates.retain(|fetching| fetching.key != key);
    }

    /// The record of this number is decided.
    pub fn forget(&mut self, seq: u64) {
        self.candidates.retain(|fetching| fetching.key.seq > seq);
    }
}
