//! Fetching a result that others hold, and rebuilding it before it is believed (`docs/protocol/4-agreement.md` §4.5.7).

use super::Engine;
use super::attempt::Stage;
use super::clock::Moment;
use super::config::Candidate;
use super::decision::{Holding, Made};
use super::io::{AttemptKey, Notice, Output};
use super::succession::{self, SignedReady};
use crate::message::{Message, Value};
use crate::plant::{Plant, planted};
use crate::record::Record;
use crate::{Digest, NodeId, wire};
use std::collections::BTreeMap;

/// Results of one round that are held or fetched at a time.
pub(super) const RESULTS_MAX: usize = 8;

/// A result that others hold.
#[derive(Debug)]
pub(super) struct Fetching {
    pub key: AttemptKey,
    /// While it is rebuilt from what was fetched.
    pub candidate: Option<Candidate>,
    pub failures: u32,
    pub not_before: Moment,
    pub active: bool,
}

impl Fetching {
    /// Whether a result with this update has come and is being rebuilt.
    fn is_rebuilding(&self, key: &AttemptKey, update: &Digest) -> bool {
        self.key == *key && self.candidate.as_ref().is_some_and(|candidate| candidate.record.update == *update)
    }
}

impl Engine {
    /// Asks for a result that others hold, from all who have named it.
    pub(super) fn fetch(&mut self, value: &Value) {
        let now = self.now;
        let Some(round) = &self.round else { return };
        let key = AttemptKey { lineage: round.lineage, seq: round.seq, attempt: value.attempt, set: value.set };
        let names = |id: &&NodeId| {
            round.record_vote.ballot.as_ref().is_some_and(|ballot| ballot.names(id).any(|named| named == value))
        };
        let voters = self.head.iter().flat_map(|head| head.quorum.voters()).map(|(id, _)| id);
        let sources: Vec<NodeId> =
            voters.filter(names).filter(|id| **id != self.me && self.is_present(id)).copied().collect();
        let Some(round) = &mut self.round else { return };
        let waits = |f: &Fetching| f.active || f.candidate.is_some() || now < f.not_before;
        if sources.is_empty()
            || contradicts_own(&round.holding, value)
            || round.holding.contains_key(&value.digest)
            || round.fetching.get(&value.digest).is_some_and(waits)
            // Two results of one attempt, of which one is wrong, must not be taken for each other.
            || round.fetching.values().any(|f| f.key == key && (f.active || f.candidate.is_some()))
            || round.fetching.len() >= RESULTS_MAX
            || round.holding.len() >= RESULTS_MAX
            || round.running.as_ref().is_some_and(|running| running.key == key)
        {
            return;
        }
        let fetching = round.fetching.entry(value.digest).or_insert_with(|| Fetching {
            key,
            candidate: None,
            failures: 0,
            not_before: now,
            active: false,
        });
        fetching.active = true;
        self.out.push(Output::Fetch { key, record: value.digest, sources });
    }

    pub(super) fn fetch_failed(&mut self, key: &AttemptKey, record: &Digest) {
        let (now, retry) = (self.now, self.timing.retry);
        let Some(round) = &mut self.round else { return };
        let Some(fetching) = round.fetching.get_mut(record).filter(|f| f.active && f.key == *key) else { return };
        fetching.active = false;
        fetching.not_before = now.plus(retry << fetching.failures.min(5));
        fetching.failures += 1;
    }

    /// A result that was asked for: believed when it follows from signed READYs and this node's own state.
    pub(super) fn fetched(&mut self, candidate: Candidate) {
        let digest = candidate.record.digest();
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let asked = round.fetching.get(&digest).is_some_and(|f| f.active && f.key == candidate.key);
        // The driver has dropped all that a commit under way leaves out.
        if !asked || round.committing.is_some() {
            return;
        }
        let key = candidate.key;
        let follows = candidate.record.validate_after(&head.record).is_ok();
        let Some(readys) = self.readys_of(&candidate).filter(|_| follows) else {
            return self.fetch_failed(&key, &digest);
        };
        self.compare_readys(&readys);
        let (update, contributors) = (candidate.record.update, candidate.record.contributors.len());
        if let Some(fetching) = self.round.as_mut().and_then(|round| round.fetching.get_mut(&digest)) {
            fetching.active = false;
            fetching.candidate = Some(candidate);
        }
        self.speculate(key, update, contributors);
    }

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

    /// `Applied` for a fetched result; whether it was one.
    pub(super) fn rebuilt_fetched(&mut self, (key, update): (&AttemptKey, &Digest), state_root: Digest) -> bool {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        let fetched = round.fetching.iter().find(|(_, f)| f.is_rebuilding(key, update));
        let Some((digest, candidate)) = fetched.and_then(|(d, f)| Some((*d, f.candidate.clone()?))) else {
            return false;
        };
        let readys = self.readys_of(&candidate);
        let rebuilt = readys.and_then(|readys| {
            succession::commit(&head.record, head.digest, &self.spec, &readys, candidate.record.update, state_root)
        });
        if rebuilt.as_ref().map(Record::digest) == Some(digest) || planted!(Plant::SkipRootCheck) {
            if let Some(round) = &mut self.round {
                round.fetching.remove(&digest);
                round.holding.insert(digest, Holding::new(candidate));
                // Leaving the attempt would drop the update of the result, which goes by the same name.
                if let Some(running) = round.running.as_mut().filter(|running| running.key == *key) {
                    running.stage = Stage::Rebuilt;
                }
            }
            return true;
        }
        // Either the holder's state or this node's is damaged: looks at the own. If the others decide for it, it is that. But
        // while this node catches up, its state may be that of a later record already.
        let stands = self.catch_up.is_idle();
        if let Some(round) = self.round.as_mut().filter(|round| stands && !round.verifying) {
            round.verifying = true;
            self.out.push(Output::VerifyState);
        }
        // The update of a result of this attempt that is held goes by the same name, and stays.
        if self.round.as_ref().is_none_or(|round| round.holding.values().all(|held| held.candidate.key != *key)) {
            self.out.push(Output::Abandon { key: *key });
        }
        let decided = self.round.as_ref().is_some_and(|round| {
            let by_vote =
                round.record_vote.ballot.as_ref().and_then(|b| b.decided()).is_some_and(|(_, v)| v.digest == digest);
            by_vote || round.proof.as_ref().is_some_and(|proof| proof.record == digest)
        });
        if let Some(fetching) = self.round.as_mut().and_then(|round| round.fetching.get_mut(&digest)) {
            fetching.candidate = None;
            fetching.active = true;
        }
        self.fetch_failed(key, &digest);
        if decided && stands {
            self.own_fault("its rebuilt result differs from the decided one");
        }
        true
    }

    /// A fetched result whose update does not apply.
    pub(super) fn give_up_fetched(&mut self, key: &AttemptKey, update: &Digest) {
        let Some(round) = &mut self.round else { return };
        let fetched = round.fetching.iter_mut().find(|(_, f)| f.is_rebuilding(key, update));
        let Some((digest, fetching)) = fetched else { return };
        let digest = *digest;
        fetching.candidate = None;
        fetching.active = true;
        self.fetch_failed(key, &digest);
    }

    /// Somebody names another result of an attempt than this node's own: one of the two has a damaged state. Looks once
    /// whether it is this one.
    pub(super) fn check_dispute(&mut self) {
        let Some(round) = self.round.as_mut().filter(|round| !round.verifying) else { return };
        let heard = round.record_vote.ballot.iter().flat_map(|ballot| ballot.heard());
        if heard.into_iter().any(|value| contradicts_own(&round.holding, value)) {
            round.verifying = true;
            self.out.push(Output::VerifyState);
        }
    }

    pub(super) fn state_verified(&mut self, state_root: Digest) {
        if !self.catch_up.is_idle() {
            // It was computed of whatever has been caught up with meanwhile; who still disagrees afterwards is asked anew.
            if let Some(round) = &mut self.round {
                round.verifying = false;
            }
            return;
        }
        let asked = self.round.as_ref().is_some_and(|round| round.verifying && round.committing.is_none());
        if asked && self.head.as_ref().is_some_and(|head| head.record.state_root != state_root) {
            self.own_fault("its state is not that of its head record");
        } else if asked && !planted!(Plant::TrustFormer) {
            self.make_anew();
        }
    }

    /// This node's state is sound, and others name another result of an attempt than it holds. What a process before this
    /// one has computed, it may have computed of a state that was not: it is computed once more.
    fn make_anew(&mut self) {
        let Some(round) = &mut self.round else { return };
        let heard: Vec<Value> = round.record_vote.ballot.iter().flat_map(|ballot| ballot.heard()).cloned().collect();
        let disputed = |held: &Holding| heard.iter().any(|value| held.contradicts(value));
        let mut results = Vec::new();
        for held in round.holding.values_mut().filter(|held| held.made == Made::Before && disputed(held)) {
            held.made = Made::Anew;
            let Candidate { key, record, .. } = &held.candidate;
            results.push((*key, record.update, record.contributors.len()));
        }
        for (key, update, contributors) in results {
            self.speculate(key, update, contributors);
        }
    }

    /// `Applied` for a result of a process before this one; whether it was one. What follows from the state that this
    /// process has takes its place.
    pub(super) fn made_anew(&mut self, (key, update): (&AttemptKey, &Digest), state_root: Digest) -> bool {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return false };
        let asked = |held: &&Holding| {
            let Candidate { key: of, record, .. } = &held.candidate;
            held.made == Made::Anew && of == key && record.update == *update
        };
        let Some((before, candidate)) = round.holding.values().find(asked).map(|h| (h.digest, h.candidate.clone()))
        else {
            return false;
        };
        let record = self
            .readys_of(&candidate)
            .and_then(|readys| succession::commit(&head.record, head.digest, &self.spec, &readys, *update, state_root));
        let Some((record, round)) = record.zip(self.round.as_mut()) else { return true };
        let anew = Holding::new(Candidate { record, ..candidate });
        if let Some(held) = round.holding.remove(&before) {
            let written = held.written && anew.digest == before;
            round.holding.entry(anew.digest).or_insert(Holding { written, ..anew });
        }
        true
    }

    /// This node's state or arithmetic is damaged: says so, and fetches the state anew.
    pub(super) fn own_fault(&mut self, detail: &'static str) {
        if !self.catch_up.distrusts() {
            self.notice(Notice::OwnFault { detail });
            self.catch_up.distrust();
        }
    }
}

/// Whether another result of an attempt is named than this node's own: fetching it would lead nowhere.
pub(super) fn contradicts_own(holding: &BTreeMap<Digest, Holding>, value: &Value) -> bool {
    holding.values().any(|held| held.contradicts(value))
}

impl Holding {
    /// Whether this value names another result of the same attempt.
    fn contradicts(&self, value: &Value) -> bool {
        let key = &self.candidate.key;
        (key.attempt, key.set) == (value.attempt, value.set) && self.digest != value.digest
    }
}
