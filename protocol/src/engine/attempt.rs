//! One attempt: reduce, apply to a copy, report, commit; and leaving it when it cannot end.

use super::Engine;
use super::clock::Moment;
use super::form::Forming;
use super::io::{AttemptKey, Contribution, Notice, Output};
use super::round::{Made, Round, Training};
use super::succession::{self, SignedReady};
use crate::message::{Phase, Report};
use crate::{Digest, NodeId, ring};
use std::collections::BTreeMap;

/// Failures that name the same suspect before it is ruled out although it looks alive.
const SUSPICIONS_MAX: u32 = 3;
/// The pause after a failure doubles so many times.
const PAUSE_DOUBLINGS: u32 = 4;

/// The attempt that this node is in.
#[derive(Debug)]
pub(super) struct Attempt {
    pub key: AttemptKey,
    /// By ascending id.
    pub members: Vec<NodeId>,
    pub stage: Stage,
    /// Bytes moved here, and when they last moved.
    pub progress: u64,
    pub moved_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    Reducing,
    /// The update is complete; the driver applies it to a copy of the state.
    Speculating {
        update: Digest,
    },
    /// Reported, or about to be once the report is on disk.
    Reported,
}

/// Name of the set: who takes part, and with which READY. Two nodes that hold different READYs of one member, as
/// after its restart, so never mix their data.
fn set_digest(contributions: &[SignedReady]) -> Digest {
    let bytes: Vec<u8> = contributions.iter().flat_map(|c| [c.member.0, c.digest.0]).flatten().collect();
    Digest::of("starling attempt v1", &[&bytes])
}

impl Engine {
    /// Attempt 0 begins with the last READY of the record's members, unless something happened to one of them.
    pub(super) fn check_gathering(&mut self) {
        let Some(round) = self.round.as_ref().filter(|round| round.running.is_none() && round.forming.is_none()) else {
            return;
        };
        let gone_on = |id: &NodeId| self.peers.get(id).is_some_and(|peer| peer.form_for(&round.parent).is_some());
        if round.resumed
            || round.attempt > 0
            || round.members.iter().any(|id| gone_on(id) || self.fault(id, round).is_some())
        {
            return self.gather_anew(0);
        }
        if round.members.iter().all(|id| self.is_present(id) && self.ready_of(id, round).is_some()) {
            let members = round.members.clone();
            self.start_attempt(0, members);
        }
    }

    /// Waits for a new attempt, proposing one after a pause.
    fn gather_anew(&mut self, pause: u64) {
        let not_before = self.now.plus(pause);
        if let Some(round) = &mut self.round {
            round.forming = Some(Forming::new(not_before));
        }
    }

    /// Begins an attempt whose members' READYs are all here.
    pub(super) fn start_attempt(&mut self, number: u32, members: Vec<NodeId>) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let contributions: Vec<SignedReady> =
            members.iter().filter_map(|id| self.ready_of(id, round)).cloned().collect();
        if contributions.len() != members.len() {
            return;
        }
        let (lineage, seq) = (head.record.lineage, round.seq);
        let key = AttemptKey { lineage, seq, attempt: number, set: set_digest(&contributions) };
        let by_id: BTreeMap<NodeId, &SignedReady> = contributions.iter().map(|c| (c.member, c)).collect();
        let in_ring = ring::order(&round.parent, members.iter().copied());
        let contribution =
            |c: &&SignedReady| Contribution { member: c.member, tokens: c.ready.tokens, payload: c.ready.payload };
        let reduce = Output::Reduce {
            key,
            members: in_ring.iter().filter_map(|id| by_id.get(id)).map(contribution).collect(),
            codec: head.record.next.codec,
        };
        let notice = Notice::AttemptStarted { round: round.number, attempt: number, members: members.clone() };
        self.drop_speculation();
        self.notice(notice);
        self.out.push(reduce);
        let moved_at = self.now;
        if let Some(round) = &mut self.round {
            round.attempt = number;
            round.forming = None;
            round.running = Some(Attempt { key, members, stage: Stage::Reducing, progress: 0, moved_at });
        }
    }

    /// The reported attempt's state is no longer needed in memory; report and update stay on disk.
    pub(super) fn drop_speculation(&mut self) {
        let reported = self.round.as_mut().and_then(|round| round.report.as_mut()).filter(|made| made.speculated);
        if let Some(made) = reported {
            made.speculated = false;
            self.out.push(Output::Abandon { key: made.key });
        }
    }

    fn running(&mut self, key: &AttemptKey, stage: Stage) -> Option<&mut Attempt> {
        let running = self.round.as_mut()?.running.as_mut()?;
        (running.key == *key && running.stage == stage).then_some(running)
    }

    pub(super) fn reduce_progress(&mut self, key: &AttemptKey, bytes: u64) {
        let now = self.now;
        if let Some(attempt) = self.running(key, Stage::Reducing).filter(|attempt| bytes > attempt.progress) {
            attempt.progress = bytes;
            attempt.moved_at = now;
        }
    }

    pub(super) fn reduced(&mut self, key: &AttemptKey, update: Digest) {
        let Some(attempt) = self.running(key, Stage::Reducing) else { return };
        attempt.stage = Stage::Speculating { update };
        let contributors = attempt.members.len();
        self.speculate(*key, contributors);
    }

    pub(super) fn speculate(&mut self, key: AttemptKey, contributors: usize) {
        let outer = &self.spec.outer;
        let (outer_lr, momentum) = (outer.lr_for(contributors), outer.momentum);
        self.out.push(Output::Speculate { key, outer_lr, momentum });
    }

    /// The copy of the state is ready: builds the record and reports it, or commits what was reported before.
    pub(super) fn applied(&mut self, key: &AttemptKey, state_root: Digest) {
        if self.redone(key, state_root) {
            return;
        }
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let Some(attempt) = round.running.as_ref().filter(|attempt| attempt.key == *key) else { return };
        let Stage::Speculating { update } = attempt.stage else { return };
        let members = attempt.members.clone();
        let contributions: Vec<SignedReady> =
            members.iter().filter_map(|id| self.ready_of(id, round)).cloned().collect();
        // A member that restarted meanwhile may have said READY anew: then this attempt is not what was reduced.
        let same = contributions.len() == members.len() && set_digest(&contributions) == key.set;
        let record =
            if same { succession::commit(&head.record, &self.spec, &contributions, update, state_root) } else { None };
        let Some(record) = record else {
            return self.leave_attempt("the contributions changed or the run's samples are used up", None, 0);
        };
        let (token, digest) = (self.next_token(), record.digest());
        let made = Made { key: *key, record: record.clone(), digest, speculated: true };
        self.out.push(Output::PersistReport { token, key: *key, record });
        let targets: Vec<NodeId> = members.into_iter().filter(|id| *id != self.me && self.is_present(id)).collect();
        self.send_report(&targets, made.message(), token);
        if let Some(round) = &mut self.round {
            round.report = Some(made);
            round.persisting = Some(token);
            if let Some(attempt) = &mut round.running {
                attempt.stage = Stage::Reported;
            }
        }
    }

    /// `Applied` for a report whose record was decided after its state had been dropped.
    fn redone(&mut self, key: &AttemptKey, state_root: Digest) -> bool {
        let Some(round) = self.round.as_mut().filter(|round| round.redoing) else { return false };
        let Some(made) = round.report.as_mut().filter(|made| made.key == *key) else { return false };
        round.redoing = false;
        let number = round.number;
        if made.record.state_root == state_root {
            made.speculated = true;
            self.commit_report();
        } else {
            // What was reported cannot be rebuilt from the state on this disk. Others that can will commit it, and
            // their head is fetched; if there are none, the round is made again.
            round.report = None;
            let trained = round.own.is_some();
            round.training = if trained { Training::Done } else { Training::Due };
            self.notice(Notice::AttemptFailed {
                round: number,
                attempt: key.attempt,
                suspect: None,
                reason: "the reported result cannot be rebuilt from this node's state".to_owned(),
            });
        }
        true
    }

    pub(super) fn reduce_failed(&mut self, key: &AttemptKey, suspect: Option<NodeId>, reason: String) {
        if self.running(key, Stage::Reducing).is_none() {
            return;
        }
        let pause = self.note_failure(suspect);
        self.leave_attempt(&reason, suspect, pause);
    }

    /// Counts a failure; returns the pause before the next try.
    fn note_failure(&mut self, suspect: Option<NodeId>) -> u64 {
        let (me, retry) = (self.me, self.timing.retry);
        let Some(round) = &mut self.round else { return 0 };
        let pause = retry << round.failures.min(PAUSE_DOUBLINGS);
        round.failures += 1;
        if let Some(suspect) = suspect.filter(|id| *id != me && round.members.contains(id)) {
            let times = round.suspected.entry(suspect).or_default();
            *times += 1;
            if *times >= SUSPICIONS_MAX {
                round.ruled_out.insert(suspect);
            }
        }
        pause
    }

    /// Leaves the attempt for good. Without a report its data is dropped; a report stays, and so does the copy of
    /// the state, since the others may still turn out to have reported the same.
    pub(super) fn leave_attempt(&mut self, reason: &str, suspect: Option<NodeId>, pause: u64) {
        let Some(round) = &mut self.round else { return };
        let Some(attempt) = round.running.take() else { return };
        let number = round.number;
        if attempt.stage != Stage::Reported {
            self.out.push(Output::Abandon { key: attempt.key });
        }
        let reason = reason.to_owned();
        self.notice(Notice::AttemptFailed { round: number, attempt: attempt.key.attempt, suspect, reason });
        self.gather_anew(pause);
    }

    /// Whether the attempt is decided, or cannot be any more.
    pub(super) fn check_attempt(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(attempt) = round.running.as_ref().filter(|_| round.persisting.is_none()) else { return };
        match attempt.stage {
            // The update is here and applying it needs nobody: whatever happens, finish and report first.
            Stage::Speculating { .. } => {}
            Stage::Reported => match self.tally(round, attempt) {
                Tally::Equal => self.commit_report(),
                Tally::Unequal => self.settle_difference(),
                Tally::Missing(missing) => self.check_members(&missing),
            },
            Stage::Reducing => {
                let others: Vec<NodeId> = attempt.members.iter().copied().filter(|id| *id != self.me).collect();
                self.check_members(&others);
                self.check_stall();
            }
        }
    }

    /// Leaves if one of those on whom the attempt depends has left or is gone.
    fn check_members(&mut self, needed: &[NodeId]) {
        let Some(round) = &self.round else { return };
        let Some(attempt) = &round.running else { return };
        let number = attempt.key.attempt;
        let left = |id: &NodeId| {
            self.peers.get(id).and_then(|p| p.form_for(&round.parent)).is_some_and(|form| form.attempt > number)
        };
        if let Some(id) = attempt.members.iter().copied().find(left) {
            return self.leave_attempt("a member has left the attempt", Some(id), 0);
        }
        let gone = needed.iter().find_map(|id| Some((*id, self.fault(id, round)?)));
        if let Some((id, why)) = gone {
            self.leave_attempt(why, Some(id), 0);
        }
    }

    /// A reduction in which nothing moves anywhere: leaves it, and rules out the member that has moved least.
    fn check_stall(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(attempt) = round.running.as_ref().filter(|attempt| attempt.stage == Stage::Reducing) else { return };
        let (mut moved, mut patience) = (attempt.moved_at, self.timing.stall_min);
        let mut bytes = BTreeMap::from([(self.me, attempt.progress)]);
        for (id, peer) in attempt.members.iter().filter_map(|id| Some((*id, self.peers.get(id)?))) {
            moved = moved.max(peer.moved_at);
            patience = patience.max(self.stall(peer, Phase::Reducing));
            if let Some(head) = peer.head.as_ref().filter(|head| head.phase == Phase::Reducing) {
                bytes.insert(id, head.progress);
            }
        }
        if self.now.since(moved) < patience {
            return;
        }
        let least = bytes.values().min().copied().unwrap_or(0);
        let behind: Vec<NodeId> = bytes.iter().filter(|(_, moved)| **moved == least).map(|(id, _)| *id).collect();
        // Only a single culprit is clear, and nobody accuses itself: the others do.
        let culprit = match behind[..] {
            [one] if one != self.me && bytes.len() > 1 => Some(one),
            _ => None,
        };
        if let (Some(culprit), Some(round)) = (culprit, &mut self.round) {
            round.ruled_out.insert(culprit);
        }
        let pause = self.note_failure(None);
        self.leave_attempt("nothing has moved for too long", culprit, pause);
    }

    fn tally(&self, round: &Round, attempt: &Attempt) -> Tally {
        let Some(made) = round.report.as_ref().filter(|made| made.key == attempt.key) else {
            return Tally::Missing(Vec::new());
        };
        let reports = self.reports_of(made, &attempt.members);
        let missing: Vec<NodeId> = attempt.members.iter().copied().filter(|id| !reports.contains_key(id)).collect();
        if !missing.is_empty() {
            Tally::Missing(missing)
        } else if reports.values().all(|record| *record == made.digest) {
            Tally::Equal
        } else {
            Tally::Unequal
        }
    }

    /// What each of `members` has reported for the attempt of `made`, this node included.
    pub(super) fn reports_of(&self, made: &Made, members: &[NodeId]) -> BTreeMap<NodeId, Digest> {
        let same = |r: &Report| {
            (r.lineage, r.seq, r.attempt, r.set) == (made.key.lineage, made.key.seq, made.key.attempt, made.key.set)
        };
        let heard = |id: &NodeId| {
            let report = self.peers.get(id)?.report.as_ref().filter(|report| same(report))?;
            Some((*id, report.record))
        };
        let own = members.contains(&self.me).then_some((self.me, made.digest));
        members.iter().filter_map(heard).chain(own).collect()
    }

    /// Members computed different results from the same contributions: somebody's state or arithmetic is damaged.
    /// The result that most of them have stays, of equally many the one with the smaller digest.
    pub(super) fn settle_difference(&mut self) {
        let Some(made) = self.round.as_ref().and_then(|round| round.report.clone()) else { return };
        // Only of those that are here: the others' reports may have reached some and not others.
        let contributors = made.record.contributors.iter().map(|c| c.member);
        let members: Vec<NodeId> = contributors.filter(|id| self.is_present(id)).collect();
        let reports = self.reports_of(&made, &members);
        let mut votes: BTreeMap<Digest, usize> = BTreeMap::new();
        for record in reports.values() {
            *votes.entry(*record).or_default() += 1;
        }
        let winner = votes.iter().max_by_key(|(record, count)| (**count, std::cmp::Reverse(**record)));
        let Some(winner) = winner.map(|(record, _)| *record) else { return };
        let Some(round) = &mut self.round else { return };
        if winner == made.digest {
            round.ruled_out.extend(reports.iter().filter(|(_, record)| **record != winner).map(|(id, _)| *id));
            self.leave_attempt("a member's result differs from the others'", None, 0);
        } else {
            round.barred = true;
            self.catch_up.distrust();
            self.leave_attempt("this node's result differs from the others': its state is fetched anew", None, 0);
        }
    }
}

enum Tally {
    Equal,
    Unequal,
    Missing(Vec<NodeId>),
}
