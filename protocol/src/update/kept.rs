//! The finished sums that a member keeps when an attempt fails (`docs/protocol/3-reduction.md` §3.4.3, §3.5.5): which
//! of them are of use in a later attempt at the same record. The bytes of the sums are the caller's.
//!
//! A sum is of use in an attempt among S' if S' is a subset of the attempt's set in which it was finished, by members
//! and by what each of them contributes. It then holds contributions of members that are gone as well. If the bytes of
//! one of these were refused here, or another member says that it has refused them, nothing is kept.

use crate::engine::io::{AttemptKey, Contribution};
use crate::mutation::{Mutation, mutated};
use crate::{Digest, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts at one record whose sets are remembered; the protocol makes four, or in a flock of several rows nine.
const SETS_MAX: usize = 9;

/// The source of a finished sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    pub from: NodeId,
    /// The attempt in which it was made here, or arrived.
    pub attempt: u32,
}

/// One attempt's contributors, and the greatest norm of their sums, if it is known.
#[derive(Debug)]
struct Set {
    key: AttemptKey,
    members: Vec<Contribution>,
    longest: Option<f32>,
}

impl Set {
    /// Whether all of these contribute the same to this attempt.
    fn covers(&self, members: &[Contribution]) -> bool {
        if mutated!(Mutation::KeepSumsOfAnotherSet) {
            return true;
        }
        let of_any_offer = mutated!(Mutation::KeepSumsOfAnotherOffer);
        let same = |ours: &Contribution, theirs: &Contribution| match of_any_offer {
            true => ours.member == theirs.member,
            false => ours == theirs,
        };
        members.iter().all(|member| self.members.iter().any(|ours| same(ours, member)))
    }
}

/// The finished sums of one record, by chunk, through all attempts at it.
#[derive(Debug, Default)]
pub struct Kept {
    /// The attempt that began last.
    key: Option<AttemptKey>,
    finished: Vec<Option<Sum>>,
    /// The attempts at this record that began here, by number.
    sets: BTreeMap<u32, Set>,
    /// Members whose bytes were refused, here or by others.
    accused: BTreeSet<NodeId>,
    /// Something on the way changes what members say of their sums.
    garbled: bool,
    /// Nothing may be kept from former attempts into the one at hand.
    nothing: bool,
}

impl Kept {
    /// The attempt that began last.
    pub fn key(&self) -> Option<AttemptKey> {
        self.key
    }

    /// Whether a later attempt of the lineage has begun, so that this one begins no more.
    pub fn is_past(&self, key: &AttemptKey) -> bool {
        let place = |key: &AttemptKey| (key.seq, key.attempt);
        self.key.is_some_and(|now| now.lineage == key.lineage && place(&now) > place(key))
    }

    /// Whether this attempt goes on where the last one at the same record has stopped.
    pub fn is_followed_by(&self, key: &AttemptKey) -> bool {
        self.key.is_some_and(|former| {
            (former.lineage, former.seq) == (key.lineage, key.seq) && former.attempt < key.attempt
        })
    }

    /// Begins an attempt: drops the sums of other records, and those that are of no use in it. `longest` is the
    /// greatest norm that sums of these members may have, if it is known.
    pub fn begin(&mut self, key: AttemptKey, members: &[Contribution], longest: Option<f32>, chunks: usize) {
        if !self.is_followed_by(&key) {
            *self = Self::default();
        }
        self.key = Some(key);
        let is_member = |id: &NodeId| members.iter().any(|contribution| contribution.member == *id);
        let refused = !self.accused.iter().all(is_member) && !mutated!(Mutation::KeepSumsOfTheRefused);
        self.nothing = self.garbled || refused;
        let (sets, nothing) = (&self.sets, self.nothing);
        let of_use = |sum: &Sum| !nothing && sets.get(&sum.attempt).is_some_and(|set| set.covers(members));
        self.finished.iter_mut().for_each(|sum| *sum = sum.filter(of_use));
        self.finished.resize(chunks, None);
        self.sets.insert(key.attempt, Set { key, members: members.to_vec(), longest });
        while self.sets.len() > SETS_MAX {
            self.sets.pop_first();
        }
    }

    /// The bytes of this member were refused here.
    pub fn accuse(&mut self, member: NodeId) {
        if self.lists(&member) {
            self.accused.insert(member);
        }
    }

    /// A member that stands on this record (lineage and number) says that it has refused the bytes of another. Only
    /// members of attempts at the next record accuse and are accused. A false word makes nodes send sums again.
    pub fn hear(&mut self, from: NodeId, accused: NodeId, (lineage, head): (Digest, u64)) {
        let at_hand = |key: AttemptKey| (key.lineage, key.seq) == (lineage, head.saturating_add(1));
        if self.key.is_some_and(at_hand) && self.lists(&from) {
            self.accuse(accused);
        }
    }

    /// Whether a node contributes to an attempt that began here.
    fn lists(&self, id: &NodeId) -> bool {
        self.sets.values().any(|set| set.members.iter().any(|contribution| contribution.member == *id))
    }

    /// Whether a sum of an earlier attempt that arrives only now is of use.
    pub fn takes_late(&self, key: &AttemptKey, chunk: usize) -> bool {
        let Some(now) = self.key.and_then(|now| self.sets.get(&now.attempt)) else { return false };
        let former = self.sets.get(&key.attempt).filter(|set| set.key == *key && key.attempt < now.key.attempt);
        !self.nothing
            && former.is_some_and(|set| set.covers(&now.members))
            && self.finished.get(chunk).is_some_and(Option::is_none)
    }

    /// The source of a chunk's finished sum, if there is one.
    pub fn sum(&self, chunk: usize) -> Option<Sum> {
        self.finished.get(chunk).copied().flatten()
    }

    /// Notes that the sum of a chunk is finished, or with none that other bytes have taken its place. False if there is
    /// no such chunk.
    pub fn put(&mut self, chunk: usize, sum: Option<Sum>) -> bool {
        self.finished.get_mut(chunk).map(|finished| *finished = sum).is_some()
    }

    /// The attempt of this number, if it began here.
    pub fn attempt(&self, number: u32) -> Option<AttemptKey> {
        self.sets.get(&number).map(|set| set.key)
    }

    /// The greatest norm that one owner's sums may have together, those of former attempts among them.
    pub fn longest(&self) -> Option<f32> {
        let now = self.sets.get(&self.key?.attempt)?;
        // Also if this node keeps nothing: the sender may not have heard of the refusal for which it does not.
        let of_use = |set: &&Set| set.key == now.key || set.covers(&now.members);
        let squares = |set: &Set| set.longest.map(|norm| f64::from(norm) * f64::from(norm));
        let sum: Option<f64> = self.sets.values().filter(of_use).map(squares).sum();
        sum.map(|sum| sum.sqrt().min(f64::from(f32::MAX)) as f32)
    }

    /// This node's word on its sums: whether nothing may be kept, then for each chunk whether its finished sum is here.
    pub fn word(&self) -> Vec<bool> {
        std::iter::once(self.nothing).chain(self.finished.iter().map(Option::is_some)).collect()
    }

    /// Drops all sums: a member keeps nothing, or the update is made.
    pub fn drop_sums(&mut self) {
        self.finished.fill(None);
    }

    /// Keeps nothing in later attempts at this record: what this node said of its sums was changed on the way.
    pub fn distrust(&mut self) {
        self.garbled = true;
    }
}

/// By the words of all members of a ring, for each of them and each chunk, whether it has the finished sum. None if a
/// member keeps nothing, so that all drop their sums.
pub fn agreed(words: Vec<Vec<bool>>) -> Option<Vec<Vec<bool>>> {
    let keeps_nothing = |word: &Vec<bool>| word.first() == Some(&true);
    let of_chunks = |word: Vec<bool>| word.into_iter().skip(1).collect();
    (!words.iter().any(keeps_nothing)).then(|| words.into_iter().map(of_chunks).collect())
}

#[cfg(test)]
#[path = "kept_test.rs"]
mod tests;
