//! Results of attempts: those that this node has rebuilt, and fetching one that others hold, which is rebuilt before it is
//! believed (`docs/protocol/4-agreement.md` §4.5.7).

use super::attempt::Stage;
use super::clock::Moment;
use super::ctx::Ctx;
use super::io::{AttemptKey, Output};
use super::outbox::Out;
use super::round::Round;
use super::succession::{self, SignedReady};
use crate::candidate::Candidate;
use crate::message::{Certificate, Message, Value, ValueKind};
use crate::plant::{Plant, planted};
use crate::record::Record;
use crate::{Digest, NodeId, wire};
use std::collections::BTreeMap;

/// Results of one round that are held or fetched at a time.
pub(super) const RESULTS_MAX: usize = 8;

/// Results of a round's attempts, here and elsewhere.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// That this node has rebuilt, by record.
    pub holding: BTreeMap<Digest, Holding>,
    /// That are being fetched, or could not be, by record.
    pub fetching: BTreeMap<Digest, Fetching>,
    /// A certificate that arrived before this node decided by itself.
    pub proof: Option<Certificate>,
    /// Another result of an attempt than this node's own was named, and the own state is looked at.
    verifying: bool,
}

/// A result that this node has rebuilt.
#[derive(Debug)]
pub(super) struct Holding {
    pub digest: Digest,
    pub candidate: Candidate,
    /// It is on the disk, or goes there before anything that is said after.
    pub written: bool,
    pub made: Made,
}

/// By whom a result that is held was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Here,
    /// By a process before this one, whose state may have been damaged.
    Before,
    /// The same, and it is being computed anew.
    Anew,
}

/// A result that others hold.
#[derive(Debug)]
pub(super) struct Fetching {
    key: AttemptKey,
    /// While it is rebuilt from what was fetched.
    candidate: Option<Candidate>,
    pub failures: u32,
    pub not_before: Moment,
    pub active: bool,
}

impl Fetching {
    /// Whether a result with this update has come and is being rebuilt.
    fn is_rebuilding(&self, key: &AttemptKey, update: &Digest) -> bool {
        self.key == *key && self.candidate.as_ref().is_some_and(|candidate| candidate.record.update == *update)
    }

    /// It cannot be had just now.
    fn fail(&mut self, ctx: &Ctx) {
        (self.active, self.candidate) = (false, None);
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
    fn contradicts(&self, value: &Value) -> bool {
        let key = &self.candidate.key;
        (key.attempt, key.set) == (value.attempt, value.set) && self.digest != value.digest
    }
}

impl Results {
    /// Whether another result of an attempt is named than the one that is held: fetching it would lead nowhere.
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

    /// The candidate behind a value that is said for the first time: it goes to the disk together with the register.
    pub fn unwritten(&mut self, value: &Value) -> Option<Candidate> {
        let holding = self.holding.get_mut(&value.digest);
        let holding = holding.filter(|held| !held.written && !planted!(Plant::ForgetCandidate))?;
        holding.written = true;
        Some(holding.candidate.clone())
    }

    /// Whether this result may be asked for: it is not here, nobody is being asked, and there is room.
    fn may_fetch(&self, key: &AttemptKey, value: &Value, ctx: &Ctx) -> bool {
        let waits = |f: &Fetching| f.active || f.candidate.is_some() || !ctx.may_fetch(f.not_before);
        // Two results of one attempt, of which one is wrong, must not be taken for each other.
        let alike = |f: &Fetching| f.key == *key && (f.active || f.candidate.is_some());
        !self.contradict(value)
            && !self.holding.contains_key(&value.digest)
            && !self.fetching.get(&value.digest).is_some_and(waits)
            && !self.fetching.values().any(alike)
            && self.fetching.len() < RESULTS_MAX
            && self.holding.len() < RESULTS_MAX
    }

    /// Nobody could give this result.
    pub fn fetch_failed(&mut self, key: &AttemptKey, record: &Digest, ctx: &Ctx) {
        if let Some(fetching) = self.fetching.get_mut(record).filter(|f| f.active && f.key == *key) {
            fetching.fail(ctx);
        }
    }

    /// A fetched result whose update does not apply.
    pub fn give_up(&mut self, key: &AttemptKey, update: &Digest, ctx: &Ctx) {
        if let Some(fetching) = self.fetching.values_mut().find(|fetching| fetching.is_rebuilding(key, update)) {
            fetching.fail(ctx);
        }
    }

    /// Looks whether the own state is damaged, unless that is being done.
    fn verify(&mut self, out: &mut Out) {
        if !std::mem::replace(&mut self.verifying, true) {
            out.push(Output::VerifyState);
        }
    }
}

impl Round {
    /// Asks for a result that others hold, from all who have named it.
    pub fn fetch(&mut self, value: &Value, ctx: &Ctx, out: &mut Out) {
        let key = self.key_of(value.attempt, value.set);
        let names = |id: &&NodeId| self.record_vote.names(id).any(|named| named == value) && ctx.is_present(id);
        let sources: Vec<NodeId> = self.other_voters(ctx).filter(names).copied().collect();
        let made = self.attempts.running.as_ref().is_some_and(|running| running.key == key);
        if sources.is_empty() || made || !self.results.may_fetch(&key, value, ctx) {
            return;
        }
        let (failures, not_before) = (0, ctx.now);
        let new = || Fetching { key, candidate: None, failures, not_before, active: false };
        self.results.fetching.entry(value.digest).or_insert_with(new).active = true;
        out.push(Output::Fetch { key, record: value.digest, sources });
    }

    /// A result that was asked for: the READYs behind it, if it follows from them.
    pub fn check_fetched(&mut self, candidate: &Candidate, ctx: &Ctx) -> Option<Vec<SignedReady>> {
        let (key, digest) = (&candidate.key, candidate.record.digest());
        let asked = self.results.fetching.get(&digest).is_some_and(|f| f.active && f.key == *key);
        // The driver has dropped all that a commit under way leaves out.
        if !asked || self.committing.is_some() {
            return None;
        }
        let follows = candidate.record.validate_after(&self.head.record).is_ok();
        let readys = ctx.readys_of(candidate).filter(|_| follows);
        if readys.is_none() {
            self.results.fetch_failed(key, &digest, ctx);
        }
        readys
    }

    /// It is believed when it also follows from this node's own state.
    pub fn rebuild(&mut self, candidate: Candidate, ctx: &Ctx, out: &mut Out) {
        let (key, update) = (candidate.key, candidate.record.update);
        let contributors = candidate.record.contributors.len();
        if let Some(fetching) = self.results.fetching.get_mut(&candidate.record.digest()) {
            (fetching.active, fetching.candidate) = (false, Some(candidate));
        }
        self.speculate(key, update, contributors, ctx, out);
    }

    /// What follows from a candidate's READYs and this node's own state, whose root is this after its update.
    fn record_of(&self, candidate: &Candidate, state_root: Digest, ctx: &Ctx) -> Option<Record> {
        let (head, update) = (&self.head, candidate.record.update);
        succession::commit(&head.record, head.digest, &ctx.spec, &ctx.readys_of(candidate)?, update, state_root)
    }

    /// `Applied` for a fetched result; whether it was one. `stands`: this node does not catch up.
    pub fn rebuilt_fetched(
        &mut self,
        (key, update): (&AttemptKey, &Digest),
        state_root: Digest,
        stands: bool,
        (ctx, out): (&Ctx, &mut Out),
    ) -> bool {
        let fetched = self.results.fetching.iter().find(|(_, f)| f.is_rebuilding(key, update));
        let Some((digest, candidate)) = fetched.and_then(|(d, f)| Some((*d, f.candidate.clone()?))) else {
            return false;
        };
        let rebuilt = self.record_of(&candidate, state_root, ctx);
        if rebuilt.as_ref().map(Record::digest) == Some(digest) || planted!(Plant::SkipRootCheck) {
            self.results.fetching.remove(&digest);
            self.results.holding.insert(digest, Holding::new(candidate));
            // Leaving the attempt would drop the update of the result, which goes by the same name.
            if let Some(running) = self.attempts.running.as_mut().filter(|running| running.key == *key) {
                running.stage = Stage::Rebuilt;
            }
            return true;
        }
        // Either the holder's state or this node's is damaged: looks at the own. If the others decide for it, it is that. But
        // while this node catches up, its state may be that of a later record already.
        if stands {
            self.results.verify(out);
        }
        // The update of a result of this attempt that is held goes by the same name, and stays.
        if !self.results.holds(key) {
            out.push(Output::Abandon { key: *key });
        }
        let by_vote = self.record_vote.ballot.as_ref().and_then(|ballot| ballot.decided());
        let decided = by_vote.is_some_and(|(_, value)| value.digest == digest)
            || self.results.proof.as_ref().is_some_and(|proof| proof.record == digest);
        self.results.give_up(key, update, ctx);
        if decided && stands {
            out.own_fault("its rebuilt result differs from the decided one", ctx);
        }
        true
    }

    /// Somebody names another result of an attempt than this node's own: one of the two has a damaged state. Looks once
    /// whether it is this one.
    pub fn check_dispute(&mut self, out: &mut Out) {
        if self.record_vote.heard().any(|value| self.results.contradict(value)) {
            self.results.verify(out);
        }
    }

    /// The root of the state that this node holds was computed. `stands`: this node does not catch up.
    pub fn state_verified(&mut self, state_root: Digest, stands: bool, ctx: &Ctx, out: &mut Out) {
        if !stands {
            // It was computed of whatever has been caught up with meanwhile; who still disagrees afterwards is asked anew.
            self.results.verifying = false;
        } else if self.results.verifying && self.committing.is_none() {
            if self.head.record.state_root != state_root {
                out.own_fault("its state is not that of its head record", ctx);
            } else if !planted!(Plant::TrustFormer) {
                self.make_anew(ctx, out);
            }
        }
    }

    /// This node's state is sound, and others name another result of an attempt than it holds. What a process before this
    /// one has computed, it may have computed of a state that was not: it is computed once more.
    fn make_anew(&mut self, ctx: &Ctx, out: &mut Out) {
        let disputed = |held: &Holding| self.record_vote.heard().any(|value| held.contradicts(value));
        let mut results = Vec::new();
        for held in self.results.holding.values_mut().filter(|held| held.made == Made::Before && disputed(held)) {
            held.made = Made::Anew;
            let Candidate { key, record, .. } = &held.candidate;
            results.push((*key, record.update, record.contributors.len()));
        }
        for (key, update, contributors) in results {
            self.speculate(key, update, contributors, ctx, out);
        }
    }

    /// `Applied` for a result of a process before this one; whether it was one. What follows from the state that this
    /// process has takes its place.
    pub fn made_anew(&mut self, (key, update): (&AttemptKey, &Digest), state_root: Digest, ctx: &Ctx) -> bool {
        let asked = |held: &&Holding| {
            let Candidate { key: of, record, .. } = &held.candidate;
            held.made == Made::Anew && of == key && record.update == *update
        };
        let held = self.results.holding.values().find(asked);
        let Some((before, candidate)) = held.map(|held| (held.digest, held.candidate.clone())) else { return false };
        let Some(record) = self.record_of(&candidate, state_root, ctx) else { return true };
        let anew = Holding::new(Candidate { record, ..candidate });
        if let Some(held) = self.results.holding.remove(&before) {
            let written = held.written && anew.digest == before;
            self.results.holding.entry(anew.digest).or_insert(Holding { written, ..anew });
        }
        true
    }
}

impl Ctx {
    /// The contributions behind a fetched record, if they are signed and the ones that it lists.
    fn readys_of(&self, candidate: &Candidate) -> Option<Vec<SignedReady>> {
        let listed = &candidate.record.contributors;
        if listed.len() != candidate.readys.len() {
            return None;
        }
        let open = |(contributor, bytes): (&crate::record::Contributor, &Vec<u8>)| {
            let opened = wire::open(self.verifier.as_ref(), &self.run, bytes).ok()?;
            let Message::Ready(ready) = opened.message else { return None };
            let same = (opened.sender, opened.digest) == (contributor.member, contributor.ready);
            let signed = SignedReady { member: opened.sender, ready, digest: opened.digest, bytes: bytes.clone() };
            let head = self.head.as_ref()?;
            let here = signed.ready.base == head.base && signed.ready.lineage == head.record.lineage;
            (same && here && self.fits_round(&signed).is_ok()).then_some(signed)
        };
        let readys: Option<Vec<SignedReady>> = listed.iter().zip(&candidate.readys).map(open).collect();
        readys.filter(|readys| super::attempt::set_digest(readys) == candidate.key.set || planted!(Plant::AnyReadys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{self, node};

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

    #[test]
    fn a_fetch_is_asked_of_those_who_name_it_and_again_after_a_pause() {
        let (mut ctx, mut out) = (Ctx::sample(), Out::default());
        let mut round = ctx.sample_round();
        let value = sample::value();
        round.fetch(&value, &ctx, &mut out);
        assert!(out.outputs.is_empty(), "nobody names it");
        let said = crate::ballot::Said { ballot: 0, value: value.clone(), voted: None };
        round.record_vote.hear(node(32), 7, said, b"", &ctx).unwrap();
        for _ in 0..2 {
            round.fetch(&value, &ctx, &mut out);
        }
        let key = round.key_of(value.attempt, value.set);
        let asked = vec![Output::Fetch { key, record: value.digest, sources: vec![node(32)] }];
        assert_eq!(std::mem::take(&mut out.outputs), asked, "once at a time");
        round.results.fetch_failed(&key, &value.digest, &ctx);
        round.fetch(&value, &ctx, &mut out);
        assert!(out.outputs.is_empty());
        ctx.now = ctx.now.plus(ctx.timing.retry);
        round.fetch(&value, &ctx, &mut out);
        assert_eq!(out.outputs, asked);
    }
}
