//! Fetching a result of an attempt that others hold, which is rebuilt before it is believed
//! (`docs/protocol/4-agreement.md` §4.5.7).

use super::attempt::set_digest;
use super::ctx::Ctx;
use super::io::{AttemptKey, Output};
use super::outbox::Out;
use super::results::{Fetching, Holding, Made, StateCheck};
use super::round::{Round, Stage};
use super::succession::{self, SignedReady};
use crate::candidate::Candidate;
use crate::message::{Message, Value};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::{Digest, NodeId, wire};

impl Round {
    /// Asks for a result that others hold, from all voters that have named it.
    pub fn fetch(&mut self, value: &Value, ctx: &Ctx, out: &mut Out) {
        let key = self.key_of(value.attempt, value.set);
        let names = |id: &&NodeId| self.record_vote.names(id).any(|named| named == value) && ctx.is_connected(id);
        let sources: Vec<NodeId> = self.other_voters(ctx).filter(names).copied().collect();
        let made = self.attempts.running.as_ref().is_some_and(|running| running.key == key);
        if sources.is_empty() || made || !self.results.may_fetch(&key, value, ctx) {
            return;
        }
        let (failures, not_before) = (0, ctx.now);
        let new = || Fetching { key, candidate: None, built: None, failures, not_before, active: false };
        self.results.fetching.entry(value.digest).or_insert_with(new).active = true;
        out.push(Output::Fetch { key, record: value.digest, sources });
    }

    /// Returns the READYs behind a result that was asked for, if it follows from them.
    pub fn check_fetched(&mut self, candidate: &Candidate, ctx: &Ctx) -> Option<Vec<SignedReady>> {
        let (key, digest) = (&candidate.key, candidate.record.digest());
        let asked = self.results.fetching.get(&digest).is_some_and(|f| f.active && f.key == *key);
        // The driver has dropped all results that a commit under way leaves out.
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

    /// Has a fetched result rebuilt. It is believed only if it also follows from this node's own state.
    pub fn rebuild(&mut self, candidate: Candidate, ctx: &Ctx, out: &mut Out) {
        let (key, update) = (candidate.key, candidate.record.update);
        let contributors = candidate.record.contributors.len();
        if let Some(fetching) = self.results.fetching.get_mut(&candidate.record.digest()) {
            (fetching.active, fetching.candidate) = (false, Some(candidate));
        }
        self.speculate(key, update, contributors, ctx, out);
    }

    /// The record that follows from a candidate's READYs and this node's own state, whose root after the update is
    /// `state_root`.
    fn record_of(&self, candidate: &Candidate, state_root: Digest, ctx: &Ctx) -> Option<Record> {
        let (head, update) = (&self.head, candidate.record.update);
        succession::commit(&head.record, head.digest, &ctx.spec, &ctx.readys_of(candidate)?, update, state_root)
    }

    /// Takes `Applied` for a fetched result; returns whether it was for one. `stands`: this node does not catch up.
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
        if rebuilt.as_ref().map(Record::digest) == Some(digest) || mutated!(Mutation::SkipRootCheck) {
            self.results.fetching.remove(&digest);
            self.results.hold(Holding::new(candidate));
            self.keep_update(key);
            return true;
        }
        // Either the holder's state or this node's is damaged, so this node verifies its own. If the others decide for
        // the result, this node's is damaged. But while this node catches up, its state may already be that of a later
        // record.
        if stands {
            self.results.verify(out);
        }
        let by_vote = self.record_vote.ballot.as_ref().and_then(|ballot| ballot.decided());
        let decided = by_vote.is_some_and(|(_, value)| value.digest == digest)
            || self.results.proof.as_ref().is_some_and(|proof| proof.record == digest);
        // If a result of this attempt is held, its update has the same key, and stays.
        let holds = self.results.holds(key);
        let built = rebuilt.filter(|_| stands && !decided && !holds && !mutated!(Mutation::AskTheDead));
        if let Some((record, fetching)) = built.zip(self.results.fetching.get_mut(&digest)) {
            fetching.built = Some(record);
            self.keep_update(key);
            if self.results.state == StateCheck::Sound {
                self.results.hold_built();
            }
            return true;
        }
        if !holds {
            out.push(Output::Abandon { key: *key });
        }
        self.results.give_up(key, update, ctx);
        if decided && stands {
            out.own_fault("its rebuilt result differs from the decided one", ctx);
        }
        true
    }

    /// Keeps the update of a result if its attempt runs here, too: to leave that attempt would drop the update, which has
    /// the same key.
    fn keep_update(&mut self, key: &AttemptKey) {
        if let Some(running) = self.attempts.running.as_mut().filter(|running| running.key == *key) {
            running.stage = Stage::Rebuilt;
        }
    }

    /// Verifies this node's state once if a voter names another result of an attempt than this node's own: one of the
    /// two has a damaged state.
    pub fn check_dispute(&mut self, out: &mut Out) {
        if self.record_vote.heard().any(|value| self.results.contradict(value)) {
            self.results.verify(out);
        }
    }

    /// Takes the computed root of the state that this node holds. `stands`: this node does not catch up.
    pub fn state_verified(&mut self, state_root: Digest, stands: bool, ctx: &Ctx, out: &mut Out) {
        if !stands {
            // The root is that of the state caught up with meanwhile. If a voter still disagrees afterwards, the state
            // is verified anew.
            self.results.state = StateCheck::None;
            for key in self.results.drop_built(ctx) {
                out.push(Output::Abandon { key });
            }
        } else if self.results.state != StateCheck::None && self.committing.is_none() {
            if self.head.record.state_root != state_root {
                out.own_fault("its state is not that of its head record", ctx);
                return;
            }
            self.results.state = StateCheck::Sound;
            self.results.hold_built();
            if !mutated!(Mutation::TrustFormer) {
                self.make_anew(ctx, out);
            }
        }
    }

    /// Computes disputed results of a former process once more. This node's state is sound, and others name another
    /// result of an attempt than it holds. The former process may have computed its result from a damaged state.
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

    /// Takes `Applied` for a result of a former process; returns whether it was for one. The result that follows from
    /// this process's state replaces it.
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
    /// The contributions behind a fetched record, if they are signed and are the ones that it lists.
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
        readys.filter(|readys| set_digest(readys) == candidate.key.set || mutated!(Mutation::AnyReadys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::sample::{self, node};

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
