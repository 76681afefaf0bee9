//! Agreeing on the next attempt, and committing what the one before has already decided.

use super::Engine;
use super::agreement::derive;
use super::clock::Moment;
use super::round::{Made, Round};
use crate::message::Form;
use crate::{NodeId, ring};
use std::collections::{BTreeMap, BTreeSet};

/// This node waits for a new attempt.
#[derive(Debug)]
pub(super) struct Forming {
    /// Nothing is proposed before this.
    pub not_before: Moment,
    /// Since when too few members are here.
    pub few_since: Option<Moment>,
    /// The proposal that stands.
    pub proposal: Option<Form>,
}

impl Forming {
    pub fn new(not_before: Moment) -> Self {
        Self { not_before, few_since: None, proposal: None }
    }
}

impl Engine {
    /// Looks at who is here, says so when it has changed, and begins when all agree.
    pub(super) fn step_forming(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(forming) = &round.forming else { return };
        if round.persisting.is_some() || self.now < forming.not_before {
            return;
        }
        let live = self.live_members(round);
        let derived = self.derive_set(round, &live);
        let (left_out, count) = (!derived.contains(&self.me), derived.len());
        // Also a node that is left out says whom it sees: views that nobody renews would leave it out for good.
        let members = if derived.is_empty() { vec![self.me] } else { derived.into_iter().collect() };
        self.propose(live, members);
        if !left_out && self.enough(count) {
            self.try_begin();
        }
    }

    fn derive_set(&self, round: &Round, live: &[NodeId]) -> BTreeSet<NodeId> {
        let view = |id: &NodeId| Some((*id, self.peers.get(id)?.form_for(&round.parent)?.live.clone()));
        let views: BTreeMap<NodeId, Vec<NodeId>> = live.iter().filter_map(view).collect();
        derive(self.me, &ring::order(&round.parent, live.iter().copied()), &views)
    }

    /// Whether so many of the round's members may go on. At most half of them wait a little longer, and after a
    /// restart much longer: more are likely to come.
    fn enough(&mut self, count: usize) -> bool {
        let (now, age, woke, timing) = (self.now, self.age(), self.clock.woke(), &self.timing);
        let Some(round) = &mut self.round else { return false };
        let Some(forming) = &mut round.forming else { return false };
        if 2 * count > round.members.len() {
            forming.few_since = None;
            return true;
        }
        // A process that was stopped hears first what has happened meanwhile.
        let since = woke.max(*forming.few_since.get_or_insert(now));
        let fresh_start = round.resumed && age < timing.rejoin_alone_after;
        !fresh_start && now.since(since) >= timing.minority_grace
    }

    /// Says what this node would do, if that has changed. A node never says two different sets under one number; of
    /// equal sets the higher number counts, so that equal views meet after one exchange.
    fn propose(&mut self, live: Vec<NodeId>, members: Vec<NodeId>) {
        let Some((round, head)) = self.round.as_ref().zip(self.head.as_ref()) else { return };
        let Some(forming) = &round.forming else { return };
        let heard = live.iter().filter_map(|id| self.peers.get(id)?.form_for(&round.parent)).map(|form| form.attempt);
        let highest = heard.max().unwrap_or(0);
        let attempt = match &forming.proposal {
            Some(standing) if standing.members == members => highest.max(standing.attempt),
            _ => highest.max(round.attempt.saturating_add(1)),
        };
        let (lineage, seq, parent) = (head.record.lineage, round.seq, round.parent);
        let form = Form { lineage, seq, parent, attempt, members, live };
        if forming.proposal.as_ref() == Some(&form) {
            return;
        }
        if let Some(round) = &mut self.round {
            round.attempt = attempt;
            round.form = Some(form.clone());
            if let Some(forming) = &mut round.forming {
                forming.proposal = Some(form);
            }
        }
        let targets = self.reachable_members();
        self.repeat_form(&targets);
    }

    /// Begins the proposed attempt once all of its members say the same and are READY. By then each has said, in the
    /// head before its `Form`, what it reported in the attempts that it has left.
    fn try_begin(&mut self) {
        let Some(round) = &self.round else { return };
        let Some(form) = round.forming.as_ref().and_then(|forming| forming.proposal.clone()) else { return };
        let agrees = |id: &NodeId| {
            let theirs = self.peers.get(id).and_then(|peer| peer.form_for(&round.parent));
            theirs.is_some_and(|theirs| (theirs.attempt, &theirs.members) == (form.attempt, &form.members))
        };
        let ready = |id: &NodeId| self.is_present(id) && self.ready_of(id, round).is_some();
        if !form.members.iter().all(|id| ready(id) && (*id == self.me || agrees(id))) {
            return;
        }
        match self.verdict(round, &form.members) {
            Verdict::Open => self.start_attempt(form.attempt, form.members),
            Verdict::Decided => self.commit_report(),
            Verdict::Disputed => self.settle_difference(),
        }
    }

    /// What the new set's reports say of the attempt before. Only the newest attempt that anybody reported counts:
    /// it had begun because the ones before it could not be decided any more.
    fn verdict(&self, round: &Round, set: &[NodeId]) -> Verdict {
        let Some(made) = round.report.as_ref() else { return Verdict::Open };
        if self.newer_report(made, set) {
            return Verdict::Open;
        }
        let taken_part = |id: &&NodeId| made.record.contributors.iter().any(|c| c.member == **id);
        let deciding: Vec<NodeId> = set.iter().filter(taken_part).copied().collect();
        let reports = self.reports_of(made, &deciding);
        if reports.values().any(|record| *record != made.digest) {
            Verdict::Disputed
        } else if reports.len() == deciding.len() && !self.one_never_reported(round, made) {
            Verdict::Decided
        } else {
            Verdict::Open
        }
    }

    /// Whether a contributor that is here, in the set or not, is known to have left without a report and so rules out
    /// that anybody committed: it has spoken of a later attempt, or it started anew and its disk holds no report.
    /// One that may still be in the attempt proves nothing: it can report yet.
    fn one_never_reported(&self, round: &Round, made: &Made) -> bool {
        made.record.contributors.iter().any(|contributor| {
            let Some(peer) = self.peers.get(&contributor.member).filter(|peer| peer.present()) else { return false };
            let stands_here = peer.head.as_ref().is_some_and(|head| head.record == round.parent);
            let reported = self.reports_of(made, &[contributor.member]).contains_key(&contributor.member);
            let moved_on = peer.form_for(&round.parent).is_some_and(|form| form.attempt > made.key.attempt);
            let anew = peer.ready(round.seq, &round.parent).is_none_or(|ready| ready.digest != contributor.ready);
            stands_here && !reported && (moved_on || anew)
        })
    }

    /// Whether one of the set has reported in a later attempt than `made`.
    fn newer_report(&self, made: &Made, set: &[NodeId]) -> bool {
        let newer = |id: &NodeId| {
            let report = self.peers.get(id).and_then(|peer| peer.report.as_ref());
            report
                .is_some_and(|r| r.seq == made.key.seq && r.lineage == made.key.lineage && r.attempt > made.key.attempt)
        };
        set.iter().any(newer)
    }

    /// Whether the others have named a set without this node.
    pub(super) fn is_left_out(&self, round: &Round) -> bool {
        let without = |id: &NodeId| {
            let form = self.peers.get(id).filter(|peer| peer.present()).and_then(|p| p.form_for(&round.parent));
            form.is_some_and(|form| form.members.binary_search(&self.me).is_err())
        };
        round.running.is_none() && round.members.iter().any(without)
    }
}

enum Verdict {
    /// Nobody can have committed: the next attempt may begin.
    Open,
    /// All that took part and are here have reported the same.
    Decided,
    /// They have reported different results.
    Disputed,
}
