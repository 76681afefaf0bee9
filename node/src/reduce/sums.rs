//! The finished sums of the record that is being made, and the update that is assembled of them. When an attempt fails
//! because a member died, the next one goes on from here (`docs/protocol/3-reduction.md` §3.4.3, §3.5.5).
//!
//! All attempts at a record work on one assembly, so that a sum that is kept is neither copied nor held twice: a node
//! has the bytes of one update, from the first attempt until one succeeds or the record is decided. With it come the
//! contributors of each attempt, and for each sum its sender and its attempt.
//!
//! A sum is of use in an attempt among S' if S' is a subset of the attempt's set in which it was finished, by members
//! and by what each of them contributes. It then holds contributions of members that are gone as well. If the bytes of
//! one of these were refused here, or another member says that it has refused them, nothing is kept.

use super::payloads::Payloads;
use starling_protocol::engine::io::{AttemptKey, Contribution};
use starling_protocol::run::Codec;
use starling_protocol::{Digest, NodeId, update};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Attempts at one record whose sets are remembered; the protocol makes four.
const SETS_MAX: usize = 8;

/// The sums of one record. A node has one for all its attempts.
#[derive(Default)]
pub struct Sums {
    state: Mutex<State>,
    /// Changes when an attempt begins, and when the record is decided.
    begun: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The attempt that began last.
    key: Option<AttemptKey>,
    /// None before the first attempt, and after one that succeeded.
    payloads: Option<Payloads>,
    /// The finished sums by chunk.
    finished: Vec<Option<Sum>>,
    /// The attempts at this record that began here, by number.
    sets: BTreeMap<u32, Set>,
    /// Members whose bytes were refused, here or by others.
    accused: BTreeSet<NodeId>,
    /// Something on the way changes what members say of their sums.
    garbled: bool,
    /// Nothing may be kept from former attempts into the one at hand.
    nothing: bool,
    /// Members that were told which of their sums are here; what still comes of their earlier sums is too late.
    told: BTreeSet<NodeId>,
    /// One for each member: held by the reader of that member's stream.
    gates: BTreeMap<NodeId, Arc<tokio::sync::Mutex<()>>>,
}

/// The source of a finished sum.
#[derive(Clone, Copy)]
struct Sum {
    from: NodeId,
    /// The attempt in which it was made here, or arrived.
    attempt: u32,
}

/// One attempt's contributors, and the greatest norm of their sums, if it is known.
struct Set {
    key: AttemptKey,
    members: Vec<Contribution>,
    longest: Option<f32>,
}

impl Set {
    /// Whether all of these contribute the same to this attempt.
    fn covers(&self, members: &[Contribution]) -> bool {
        members.iter().all(|member| self.members.contains(member))
    }
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
        let mut state = self.state();
        if state.lists(&member) {
            state.accused.insert(member);
        }
    }

    /// A member that stands on this record (lineage and number) says that it has refused the bytes of another. Only
    /// members of attempts at the next record accuse and are accused. A false word makes nodes send sums again.
    pub fn hear(&self, from: NodeId, accused: NodeId, (lineage, head): (Digest, u64)) {
        let mut state = self.state();
        let at_hand = |key: AttemptKey| (key.lineage, key.seq) == (lineage, head.saturating_add(1));
        if state.key.is_some_and(at_hand) && state.lists(&from) && state.lists(&accused) {
            state.accused.insert(accused);
        }
    }

    /// Drops everything: the record is decided.
    pub fn forget(&self) {
        *self.state() = State::default();
        self.begun.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn is_at(&self, key: &AttemptKey) -> bool {
        self.state().key == Some(*key)
    }
}

impl State {
    fn begin(&mut self, beginning: &Beginning<'_>) {
        let Beginning { key, members, codec, elements, longest } = *beginning;
        let place = |key: AttemptKey| (key.seq, key.attempt);
        // A thread that was slow to begin an earlier attempt is too late.
        if self.key.is_some_and(|now| now.lineage == key.lineage && place(now) > place(key)) {
            return;
        }
        let follows =
            |former: AttemptKey| (former.lineage, former.seq) == (key.lineage, key.seq) && former.attempt < key.attempt;
        let fits = self.payloads.as_ref().is_none_or(|payloads| payloads.are_of(codec, elements));
        if !self.key.is_some_and(follows) || !fits {
            *self = Self::default();
        }
        self.key = Some(key);
        self.told.clear();
        let is_member = |id: &NodeId| members.iter().any(|contribution| contribution.member == *id);
        self.nothing = self.garbled || !self.accused.iter().all(is_member);
        let sets = &self.sets;
        let of_use = |sum: &Sum| sets.get(&sum.attempt).is_some_and(|set| set.covers(members));
        let nothing = self.nothing;
        self.finished.iter_mut().for_each(|sum| *sum = sum.filter(|sum| !nothing && of_use(sum)));
        self.finished.resize(update::chunks(elements), None);
        self.payloads.get_or_insert_with(|| Payloads::new(codec, elements));
        self.sets.insert(key.attempt, Set { key, members: members.to_vec(), longest });
        while self.sets.len() > SETS_MAX {
            self.sets.pop_first();
        }
    }

    /// Whether a node contributes to an attempt that began here.
    fn lists(&self, id: &NodeId) -> bool {
        self.sets.values().any(|set| set.members.iter().any(|contribution| contribution.member == *id))
    }

    /// Whether a sum of an earlier attempt that arrives only now is taken: its sender is still to be told which of its
    /// sums are here.
    fn takes_late(&self, key: &AttemptKey, chunk: usize, from: &NodeId) -> bool {
        let Some(now) = self.key.and_then(|now| self.sets.get(&now.attempt)) else { return false };
        let former = self.sets.get(&key.attempt).filter(|set| set.key == *key && key.attempt < now.key.attempt);
        !self.nothing
            && !self.told.contains(from)
            && former.is_some_and(|set| set.covers(&now.members))
            && self.finished.get(chunk).is_some_and(Option::is_none)
    }

    fn store(&mut self, chunk: usize, payload: &[u8], sum: Option<Sum>) {
        if let (Some(payloads), Some(finished)) = (&mut self.payloads, self.finished.get_mut(chunk)) {
            payloads.put(chunk, payload);
            *finished = sum;
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
        Some(self.sums.state()).filter(|state| state.key == Some(self.key))
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
        let mut state = self.sums.state();
        if state.key == Some(self.key) || state.takes_late(&self.key, chunk, &from) {
            state.store(chunk, payload, Some(Sum { from, attempt: self.key.attempt }));
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
        state.finished.fill(None);
        Some(state.payloads.take()?.into_update())
    }

    /// Whether the sum of this chunk is finished.
    pub fn has(&self, chunk: usize) -> bool {
        self.state().is_some_and(|state| state.finished.get(chunk).is_some_and(Option::is_some))
    }

    /// The attempt in which this node has made the sum of a chunk that is of use in this one.
    pub fn made_by(&self, me: &NodeId, chunk: usize) -> Option<AttemptKey> {
        let state = self.state()?;
        let sum = state.finished.get(chunk).copied().flatten().filter(|sum| sum.from == *me)?;
        state.sets.get(&sum.attempt).map(|set| set.key)
    }

    /// Drops the sum of a chunk.
    pub fn lose(&self, chunk: usize) {
        if let Some(finished) = self.state().as_mut().and_then(|state| state.finished.get_mut(chunk)) {
            *finished = None;
        }
    }

    /// For each of these chunks 0, or one more than the attempt in which this member has sent its sum. What still comes
    /// of earlier sums of the member does not count any more.
    pub fn tell(&self, from: NodeId, chunks: &[usize]) -> Vec<u8> {
        let Some(mut state) = self.state() else { return vec![0; chunks.len()] };
        state.told.insert(from);
        let said = |chunk: &usize| {
            let sum = state.finished.get(*chunk).copied().flatten().filter(|sum| sum.from == from);
            sum.and_then(|sum| u8::try_from(sum.attempt.saturating_add(1)).ok()).unwrap_or(0)
        };
        chunks.iter().map(said).collect()
    }

    /// The greatest norm that one owner's sums may have together, those of former attempts among them.
    pub fn longest(&self) -> Option<f32> {
        let state = self.state()?;
        let now = state.sets.get(&self.key.attempt)?;
        // Also if this node keeps nothing: the sender may not have heard of the refusal for which it does not.
        let of_use = |set: &&Set| set.key == self.key || set.covers(&now.members);
        let squares = |set: &Set| set.longest.map(|norm| f64::from(norm) * f64::from(norm));
        let sum: Option<f64> = state.sets.values().filter(of_use).map(squares).sum();
        sum.map(|sum| sum.sqrt().min(f64::from(f32::MAX)) as f32)
    }

    /// This node's word on its sums (`docs/protocol/3-reduction.md` §3.4.3): whether nothing may be kept, then for each
    /// chunk whether its finished sum is here.
    pub fn word(&self) -> Vec<bool> {
        let Some(state) = self.state() else { return Vec::new() };
        std::iter::once(state.nothing).chain(state.finished.iter().map(Option::is_some)).collect()
    }

    /// Drops all sums: a member keeps nothing.
    pub fn keep_nothing(&self) {
        if let Some(mut state) = self.state() {
            state.finished.fill(None);
        }
    }

    /// Keeps nothing in later attempts at this record: what this node said of its sums was changed on the way.
    pub fn distrust(&self) {
        if let Some(mut state) = self.state() {
            state.garbled = true;
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
    /// Whether the sum of each chunk is here.
    pub fn finished(&self) -> Vec<bool> {
        self.state().finished.iter().map(Option::is_some).collect()
    }

    /// Whether this node has made the sum of a chunk that is here.
    pub fn made(&self, me: &NodeId, chunk: usize) -> bool {
        self.state().finished.get(chunk).copied().flatten().is_some_and(|sum| sum.from == *me)
    }
}

#[cfg(test)]
#[path = "sums_test.rs"]
mod tests;
