//! Results of a round's attempts: results that this node has rebuilt, and results that it fetches.

use super::clock::Moment;
use super::ctx::Ctx;
use super::io::{AttemptKey, Output};
use super::outbox::Out;
use crate::Digest;
use crate::candidate::Candidate;
use crate::message::{Certificate, Value, ValueKind};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use std::collections::BTreeMap;

/// The number of results of one round that are held or fetched at a time.
pub(super) const RESULTS_MAX: usize = 8;

/// Results of a round's attempts, held here or by others.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Results that this node has rebuilt, by record.
    pub holding: BTreeMap<Digest, Holding>,
    /// Results that are being fetched or could not be had, by record.
    pub fetching: BTreeMap<Digest, Fetching>,
    /// A certificate that arrived before this node decided by itself.
    pub proof: Option<Certificate>,
    /// The state of this node, once a peer has named another result of an attempt than this node's own.
    pub state: StateCheck,
}

/// A round's verification of this node's own state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StateCheck {
    #[default]
    None,
    UnderWay,
    /// The state is that of the head record.
    Sound,
}

/// A result that this node has rebuilt.
#[derive(Debug)]
pub(super) struct Holding {
    pub digest: Digest,
    pub candidate: Candidate,
    /// The result is on the disk, or goes there before any later statement is sent.
    pub written: bool,
    pub made: Made,
}

/// The process that computed a held result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Here,
    /// A process before this one, whose state may have been damaged.
    Before,
    /// A process before this one; the result is being computed anew.
    Anew,
}

/// A result that others hold.
#[derive(Debug)]
pub(super) struct Fetching {
    pub key: AttemptKey,
    /// The fetched candidate while it is rebuilt.
    pub candidate: Option<Candidate>,
    /// The record that this node has built in place of the candidate's: it is held once this node's state is known to be
    /// sound.
    pub built: Option<Record>,
    pub failures: u32,
    pub not_before: Moment,
    pub active: bool,
}

impl Fetching {
    /// Whether a result with this update has come and is being rebuilt.
    pub fn is_rebuilding(&self, key: &AttemptKey, update: &Digest) -> bool {
        self.key == *key && self.candidate.as_ref().is_some_and(|candidate| candidate.record.update == *update)
    }

    /// Notes that the result cannot be had just now.
    pub fn fail(&mut self, ctx: &Ctx) {
        (self.active, self.candidate, self.built) = (false, None, None);
        self.not_before = ctx.mark().plus(ctx.retry_pause(self.failures));
        self.failures += 1;
    }
}

impl Holding {
    pub fn new(candidate: Candidate) -> Self {
        Self { digest: candidate.record.digest(), candidate, written: false, made: Made::Here }
    }

    pub fn value(&self) -> Value {
        let (key, record) = (&self.candidate.key, &self.candidate.record);
        let tokens = record.contributors.iter().fold(0u64, |sum, c| sum.saturating_add(c.tokens));
        let contributors = record.contributors.len() as u32;
        let (attempt, set) = (key.attempt, key.set);
        Value { kind: ValueKind::Commit, digest: self.digest, tokens, contributors, attempt, set, members: Vec::new() }
    }

    /// Whether this value names another result of the same attempt.
    pub fn contradicts(&self, value: &Value) -> bool {
        let key = &self.candidate.key;
        (key.attempt, key.set) == (value.attempt, value.set) && self.digest != value.digest
    }
}

impl Results {
    /// Whether a value names another result of an attempt than the held one: fetching it would lead nowhere.
    pub fn contradict(&self, value: &Value) -> bool {
        self.holding.values().any(|held| held.contradicts(value))
    }

    /// Whether a result of this attempt is held.
    pub fn holds(&self, key: &AttemptKey) -> bool {
        self.holding.values().any(|held| held.candidate.key == *key)
    }

    pub fn hold(&mut self, holding: Holding) {
        self.holding.insert(holding.digest, holding);
    }

    /// The candidate behind a value that is named for the first time. It goes to the disk together with the vote state.
    pub fn unwritten(&mut self, value: &Value) -> Option<Candidate> {
        let holding = self.holding.get_mut(&value.digest);
        let holding = holding.filter(|held| !held.written && !mutated!(Mutation::ForgetCandidate))?;
        holding.written = true;
        Some(holding.candidate.clone())
    }

    /// Whether this result may be asked for: it is not here, no source is being asked, and there is room.
    pub fn may_fetch(&self, key: &AttemptKey, value: &Value, ctx: &Ctx) -> bool {
        let waits = |f: &Fetching| f.active || f.candidate.is_some() || !ctx.may_fetch(f.not_before);
        // Two results of one attempt, one of which is wrong, must not be taken for each other.
        let alike = |f: &Fetching| f.key == *key && (f.active || f.candidate.is_some());
        !self.contradict(value)
            && !self.holding.contains_key(&value.digest)
            && !self.fetching.get(&value.digest).is_some_and(waits)
            && !self.fetching.values().any(alike)
            && self.fetching.len() < RESULTS_MAX
            && self.holding.len() < RESULTS_MAX
    }

    /// Notes that no source could give this result.
    pub fn fetch_failed(&mut self, key: &AttemptKey, record: &Digest, ctx: &Ctx) {
        if let Some(fetching) = self.fetching.get_mut(record).filter(|f| f.active && f.key == *key) {
            fetching.fail(ctx);
        }
    }

    /// Gives up a fetched result whose update does not apply.
    pub fn give_up(&mut self, key: &AttemptKey, update: &Digest, ctx: &Ctx) {
        if let Some(fetching) = self.fetching.values_mut().find(|fetching| fetching.is_rebuilding(key, update)) {
            fetching.fail(ctx);
        }
    }

    /// Verifies this node's own state, unless that is done or under way.
    pub fn verify(&mut self, out: &mut Out) {
        if self.state == StateCheck::None {
            self.state = StateCheck::UnderWay;
            out.push(Output::VerifyState);
        }
    }

    /// Holds the records that this node has built in place of fetched ones, as its state is sound.
    pub fn hold_built(&mut self) {
        let built = self.fetching.extract_if(.., |_, fetching| fetching.built.is_some());
        let candidate = |fetching: Fetching| Some(Candidate { record: fetching.built?, ..fetching.candidate? });
        let results: Vec<Candidate> = built.filter_map(|(_, fetching)| candidate(fetching)).collect();
        results.into_iter().for_each(|candidate| self.hold(Holding::new(candidate)));
    }

    /// Gives up the records that this node has built in place of fetched ones, as its state is in doubt. Returns the
    /// attempts whose updates nobody needs any more.
    pub fn drop_built(&mut self, ctx: &Ctx) -> Vec<AttemptKey> {
        let mut keys = Vec::new();
        for fetching in self.fetching.values_mut().filter(|fetching| fetching.built.is_some()) {
            fetching.fail(ctx);
            keys.push(fetching.key);
        }
        keys.retain(|key| !self.holds(key));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample;

    #[test]
    fn a_result_is_written_once_and_contradicts_another_of_its_attempt() {
        let mut results = Results::default();
        let holding = Holding::new(sample::candidate());
        let (key, own) = (holding.candidate.key, holding.value());
        results.hold(holding);
        assert!(results.holds(&key) && !results.contradict(&own));
        assert!(results.contradict(&Value { digest: sample::digest(9), ..own.clone() }));
        assert!(!results.contradict(&Value { digest: sample::digest(9), attempt: 9, ..own.clone() }));
        assert_eq!(results.unwritten(&own), Some(sample::candidate()));
        assert_eq!(results.unwritten(&own), None);
    }
}
