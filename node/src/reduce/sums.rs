//! The finished sums of the record that is being made, and the update that is assembled of them. When an attempt fails
//! because a member died, the next one goes on from here (`docs/protocol/3-reduction.md` §3.4.3, §3.5.5).
//!
//! All attempts at a record work on one assembly, so that a sum that is kept is neither copied nor held twice: a node
//! has the bytes of one update, from the first attempt until one succeeds or the record is decided. With it come the
//! contributors of each attempt, and for each sum its sender and its attempt. [`Kept`] says which sums are of use in an
//! attempt; the simulator's reductions ask it, too.

use super::payloads::Payloads;
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::run::Codec;
use starling_protocol::update::kept::{Kept, Sum};
use starling_protocol::{Digest, NodeId, update};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The sums of one record. A node has one for all its attempts.
#[derive(Default)]
pub struct Sums {
    state: Mutex<State>,
    /// Changes when an attempt begins, and when the record is decided.
    begun: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The finished sums, and the attempts at this record.
    kept: Kept,
    /// None before the first attempt, and after one that succeeded.
    payloads: Option<Payloads>,
    /// Members that were told which of their sums are here; what still comes of their earlier sums is too late.
    told: BTreeSet<NodeId>,
    /// One for each member: held by the reader of that member's stream.
    gates: BTreeMap<NodeId, Arc<tokio::sync::Mutex<()>>>,
}

/// Finished sums of an attempt.
pub enum Finished<T> {
    Copied(T),
    NotYet,
    /// The attempt is over.
    Never,
}

/// An attempt that begins.
pub(super) struct Beginning<'a> {
    pub key: AttemptKey,
    pub members: &'a [Contribution],
    pub codec: Codec,
    pub elements: usize,
    /// The greatest norm that sums of these members may have, if it is known.
    pub longest: Option<f32>,
}

impl Sums {
    /// Every step leaves the state whole, so a holder that panicked leaves a usable lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt, unless a later one of the lineage has begun: drops sums of other records, and those that are
    /// of no use in it.
    pub(super) fn begin(&self, beginning: &Beginning<'_>) {
        self.state().begin(beginning);
        self.begun.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The bytes of this member were refused here.
    pub(super) fn accuse(&self, member: NodeId) {
        self.state().kept.accuse(member);
    }

    /// A member that stands on this record (lineage and number) says that it has refused the bytes of another. Only
    /// members of attempts at the next record accuse and are accused. A false word makes nodes send sums again.
    pub fn hear(&self, from: NodeId, accused: NodeId, head: (Digest, u64)) {
        self.state().kept.hear(from, accused, head);
    }

    /// The first of these ranges of chunks whose sums are all finished in this attempt, by its place, with a copy of their
    /// payloads, one after the other. A later attempt may make other sums.
    pub fn copy_finished(
        &self,
        key: &AttemptKey,
        mut ranges: impl Iterator<Item = Range<usize>>,
    ) -> Finished<(usize, Vec<u8>)> {
        let state = self.state();
        if state.kept.key() != Some(*key) {
            return if state.kept.is_past(key) { Finished::Never } else { Finished::NotYet };
        }
        let Some(payloads) = &state.payloads else { return Finished::Never };
        let mut place = 0;
        let finished = ranges.find(|range| {
            place += 1;
            range.clone().all(|chunk| state.kept.sum(chunk).is_some())
        });
        let Some(finished) = finished else { return Finished::NotYet };
        let mut bytes = Vec::new();
        finished.for_each(|chunk| payloads.append(chunk, &mut bytes));
        Finished::Copied((place - 1, bytes))
    }

    /// Drops everything: the record is decided.
    pub fn forget(&self) {
        *self.state() = State::default();
        self.begun.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn is_at(&self, key: &AttemptKey) -> bool {
        self.state().kept.key() == Some(*key)
    }
}

impl State {
    fn begin(&mut self, beginning: &Beginning<'_>) {
        let Beginning { key, members, codec, elements, longest } = *beginning;
        // A thread that was slow to begin an earlier attempt is too late.
        if self.kept.is_past(&key) {
            return;
        }
        let fits = self.payloads.as_ref().is_none_or(|payloads| payloads.are_of(codec, elements));
        if !self.kept.is_followed_by(&key) || !fits {
            *self = Self::default();
        }
        self.told.clear();
        self.kept.begin(key, members, longest, update::chunks(elements));
        self.payloads.get_or_insert_with(|| Payloads::new(codec, elements));
    }

    /// Whether a sum of an earlier attempt that arrives only now is taken: its sender is still to be told which of its
    /// sums are here.
    fn takes_late(&self, key: &AttemptKey, chunk: usize, from: &NodeId) -> bool {
        !self.told.contains(from) && self.kept.takes_late(key, chunk)
    }

    fn store(&mut self, chunk: usize, payload: &[u8], sum: Option<Sum>) {
        if let Some(payloads) = &mut self.payloads
            && self.kept.put(chunk, sum)
        {
            payloads.put(chunk, payload);
        }
    }
}

/// One attempt's hold on the sums. It ends when another attempt begins, or the record is decided.
#[derive(Clone)]
pub(super) struct Sheet {
    sums: Arc<Sums>,
    key: AttemptKey,
}

impl Sheet {
    /// Begins the attempt.
    pub fn begin(sums: &Arc<Sums>, beginning: &Beginning<'_>) -> Self {
        sums.begin(beginning);
        Self { sums: Arc::clone(sums), key: beginning.key }
    }

    /// The state, as long as the attempt holds it.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.sums.state()).filter(|state| state.kept.key() == Some(self.key))
    }

    /// Whether no other attempt has begun and the record is not decided.
    pub fn is_current(&self) -> bool {
        self.sums.is_at(&self.key)
    }

    /// Returns when another attempt has begun, or the record is decided.
    pub async fn superseded(&self) {
        // The sender is in `self`, so the channel cannot close during the wait.
        drop(self.sums.begun.subscribe().wait_for(|_| !self.is_current()).await);
    }

    /// Stores a payload that is not finished.
    pub fn put(&self, chunk: usize, payload: &[u8]) {
        if let Some(mut state) = self.state() {
            state.store(chunk, payload, None);
        }
    }

    /// Stores a finished sum, made here or sent in this attempt.
    pub fn finish(&self, chunk: usize, payload: &[u8], from: NodeId) {
        if let Some(mut state) = self.state() {
            state.store(chunk, payload, Some(Sum { from, attempt: self.key.attempt }));
        }
    }

    /// Stores a finished sum that its owner has sent, also if a later attempt has begun meanwhile and has use for it.
    pub fn arrive(&self, chunk: usize, payload: &[u8], from: NodeId) {
        self.pass(chunk, payload, (from, from));
    }

    /// The same for a sum that comes from `sender`, and that `owner` has made.
    pub fn pass(&self, chunk: usize, payload: &[u8], (sender, owner): (NodeId, NodeId)) {
        let mut state = self.sums.state();
        if state.kept.key() == Some(self.key) || state.takes_late(&self.key, chunk, &sender) {
            state.store(chunk, payload, Some(Sum { from: owner, attempt: self.key.attempt }));
        }
    }

    /// Copies the payload of `chunk` into `out`; false if the attempt no longer holds the sums.
    pub fn copy(&self, chunk: usize, out: &mut Vec<u8>) -> bool {
        let state = self.state();
        let payloads = state.as_ref().and_then(|state| state.payloads.as_ref());
        payloads.map(|payloads| payloads.copy(chunk, out)).is_some()
    }

    /// The update, once all sums are there; none if the attempt no longer holds them. Nothing is kept of it here.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.state()?;
        state.kept.drop_sums();
        Some(state.payloads.take()?.into_update())
    }

    /// Whether the sum of this chunk is finished.
    pub fn has(&self, chunk: usize) -> bool {
        self.state().is_some_and(|state| state.kept.sum(chunk).is_some())
    }

    /// The attempt in which this node has made the sum of a chunk that is of use in this one.
    pub fn made_by(&self, me: &NodeId, chunk: usize) -> Option<AttemptKey> {
        let state = self.state()?;
        let sum = state.kept.sum(chunk).filter(|sum| sum.from == *me)?;
        state.kept.attempt(sum.attempt)
    }

    /// Drops the sum of a chunk.
    pub fn lose(&self, chunk: usize) {
        if let Some(mut state) = self.state() {
            state.kept.put(chunk, None);
        }
    }

    /// For each of these chunks 0, or one more than the attempt in which this member has sent its sum. What still comes
    /// of earlier sums of the member does not count any more.
    pub fn tell(&self, from: NodeId, chunks: &[usize]) -> Vec<u8> {
        let Some(mut state) = self.state() else { return vec![0; chunks.len()] };
        state.told.insert(from);
        let said = |chunk: &usize| {
            let sum = state.kept.sum(*chunk).filter(|sum| sum.from == from);
            sum.and_then(|sum| u8::try_from(sum.attempt.saturating_add(1)).ok()).unwrap_or(0)
        };
        chunks.iter().map(said).collect()
    }

    /// For each of these chunks the hash of its finished sum, or 0 if that is not here. Later pieces of
    /// earlier sums over this member do not count any more.
    pub fn tell_hashes(&self, from: NodeId, chunks: &[usize], hash: impl Fn(&[u8]) -> u64) -> Vec<u64> {
        let Some(mut state) = self.state() else { return vec![0; chunks.len()] };
        state.told.insert(from);
        let mut payload = Vec::new();
        let mut said = |chunk: &usize| {
            state.kept.sum(*chunk)?;
            state.payloads.as_ref()?.copy(*chunk, &mut payload);
            Some(hash(&payload))
        };
        chunks.iter().map(|chunk| said(chunk).unwrap_or(0)).collect()
    }

    /// The greatest norm that one owner's sums may have together, those of former attempts among them.
    pub fn longest(&self) -> Option<f32> {
        self.state()?.kept.longest()
    }

    /// Whether this node has begun all attempts at the record up to this one.
    pub fn has_begun_all(&self) -> bool {
        self.state().is_some_and(|state| (0..self.key.attempt).all(|number| state.kept.attempt(number).is_some()))
    }

    /// This node's word on its sums (`docs/protocol/3-reduction.md` §3.4.3): whether nothing may be kept, then for each
    /// chunk whether its finished sum is here.
    pub fn word(&self) -> Vec<bool> {
        self.state().map(|state| state.kept.word()).unwrap_or_default()
    }

    /// Drops all sums: a member keeps nothing.
    pub fn keep_nothing(&self) {
        if let Some(mut state) = self.state() {
            state.kept.drop_sums();
        }
    }

    /// Keeps nothing in later attempts at this record: what this node said of its sums was changed on the way.
    pub fn distrust(&self) {
        if let Some(mut state) = self.state() {
            state.kept.distrust();
        }
    }

    /// The gate of a member's streams. Its reader holds the gate, so the reader of a later attempt knows when all that
    /// was sent before has come.
    pub fn gate(&self, from: NodeId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.sums.state().gates.entry(from).or_default())
    }
}

#[cfg(test)]
impl Sums {
    /// Begins an attempt of this member alone, and finishes the sums of these chunks of its update.
    pub fn finish_alone(
        &self,
        key: AttemptKey,
        (codec, elements): (Codec, usize),
        update: &[u8],
        chunks: Range<usize>,
    ) {
        let stated = update::Stated { tokens: 1, steps: 1, norm: 1.0 };
        let members = [Contribution { member: NodeId([1; 32]), stated, payload: Digest([1; 32]) }];
        self.begin(&Beginning { key, members: &members, codec, elements, longest: None });
        for chunk in chunks {
            let sum = Some(Sum { from: NodeId([1; 32]), attempt: key.attempt });
            self.state().store(chunk, &update[update::chunk_range(codec, elements, chunk)], sum);
        }
    }

    /// Whether the sum of each chunk is here.
    pub fn finished(&self) -> Vec<bool> {
        self.state().kept.word().split_off(1)
    }

    /// Whether this node has made the sum of a chunk that is here.
    pub fn made(&self, me: &NodeId, chunk: usize) -> bool {
        self.state().kept.sum(chunk).is_some_and(|sum| sum.from == *me)
    }
}

#[cfg(test)]
#[path = "sums_test.rs"]
mod tests;
