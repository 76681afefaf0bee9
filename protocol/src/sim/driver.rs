//! The driver of a simulated node: carries out an engine's outputs in virtual time.

use super::disk::{Held, Link, Write};
use super::invariant::Observed;
use super::process::{Offer, Training};
use super::sums::Sums;
use super::trainer::{self, State};
use super::world::{Event, World};
use super::{MS, SECOND};
use crate::engine::io::{AttemptKey, Finish, Input, Notice, Output, PersistToken, Refusal};
use crate::engine::{Candidate, VoteState};
use crate::message::Certificate;
use crate::mutation::{Mutation, mutated};
use crate::outer::Rule;
use crate::record::{Measured, Record, Span};
use crate::{Digest, NodeId, lease, update};
use std::cmp::Ordering;
use std::rc::Rc;

impl World {
    pub(super) fn execute(&mut self, node: usize, output: Output) {
        self.note(|| match &output {
            Output::Send { .. } => None,
            Output::Notice(Notice::Waiting { .. } | Notice::PhaseChanged { .. }) => None,
            other => Some(format!("n{node} -> {other:?}")),
        });
        match output {
            Output::Send { to, bytes, after } => self.send(node, &to, bytes, after),
            Output::Train { round, base, lease, inner_steps, .. } => self.train(node, round, base, lease, inner_steps),
            Output::CutShort { round } => self.cut_short(node, round),
            Output::StopTraining { .. } => self.stop_training(node),
            // No trainer here reads ahead.
            Output::Ahead { steps: 0, .. } => {}
            Output::Ahead { round, base, lease, inner_steps, steps, .. } => {
                self.ahead(node, (round, base), lease, [inner_steps, steps]);
            }
            Output::Retake { round, base } => {
                let after = self.random.between(1, 100) * MS;
                self.schedule_own(after, node, Event::Retaken { round, base });
            }
            Output::StartOver => self.start_over(node),
            Output::Reduce { key, members, flock, grid, codec } => {
                self.reduce(node, key, (members, flock, grid, codec))
            }
            Output::Merge { round, base, tokens, merge } => self.mix(node, (round, base), tokens, merge),
            Output::DropDifference { lineage } => self.drop_difference(node, &lineage),
            Output::Abandon { key } => self.abandon(node, key),
            Output::Speculate { key, update, rule } => self.speculate(node, (key, update), &rule),
            Output::Persist { token, vote_state, candidate } => self.persist(node, token, vote_state, candidate),
            Output::Commit { token, key, record, certificate, mine } => {
                self.commit(node, token, key, (record, certificate), mine);
            }
            Output::VerifyState => self.schedule_own(20_000, node, Event::Verified),
            Output::Fetch { key, record, sources } => self.fetch(node, key, record, &sources),
            Output::Found { token, record } => {
                let (link, state) = (Link::new(record, None), State::initial(self.spec.sync.mode));
                let (head, held) = (link.clone(), Rc::clone(&state));
                self.process(node, |process| (process.head, process.state) = (Some(head), held));
                self.write(node, token, Write::Found { link, state });
            }
            Output::CatchUp { sources, .. } if self.asks_strangers(node, &sources) => {}
            Output::CatchUp { target, sources, afresh, .. } => self.catch_up(node, target, &sources, afresh),
            Output::Prove { peer, seq, record, foreign } => self.prove(node, &peer, (seq, record), foreign),
            Output::Evidence { against, evidence, .. } => {
                self.marks.hit("evidence held");
                self.nodes[node].disk.evidence.insert(against, evidence);
            }
            Output::DropEvidence { against } => drop(self.nodes[node].disk.evidence.remove(&against)),
            Output::Refuse { peer, refusal } => self.refuse(node, &peer, &refusal),
            // Each identity has one process here.
            Output::Admit { .. } | Output::Deny { .. } => {}
            Output::Notice(notice) => self.mark_notice(&notice),
            Output::Finished { reason } => self.finish(node, &reason),
            Output::GoesOn => {
                self.marks.hit("went on after the end");
                self.process(node, |process| process.finished = false);
            }
        }
    }

    pub(super) fn process(&mut self, node: usize, change: impl FnOnce(&mut super::process::Process)) {
        if let Some(process) = self.nodes[node].process.as_mut() {
            change(process);
        }
    }

    fn send(&mut self, node: usize, to: &NodeId, bytes: Vec<u8>, after: Option<PersistToken>) {
        if self.strangers.hears(node, to, &bytes) {
            return;
        }
        let Some(to) = self.keys.index(to) else {
            return self.violate("S19 resources", format!("node {node} sends to somebody that does not exist"));
        };
        let bytes = Rc::new(bytes);
        let pending = |token: &PersistToken| {
            let writes = self.nodes[node].process.as_ref().map(|process| &process.writes);
            writes.is_some_and(|writes| writes.iter().any(|(waiting, _)| waiting == token))
        };
        match after.filter(pending).filter(|_| !mutated!(Mutation::SendBeforeDurable)) {
            Some(token) => self.process(node, |process| process.waiting.push((token, to, bytes))),
            None => self.post(node, to, bytes),
        }
    }

    /// Sends bytes from a node.
    pub(super) fn post(&mut self, from: usize, to: usize, bytes: Rc<Vec<u8>>) {
        if !self.network.connected(from, to) {
            return;
        }
        self.traffic.sent((from, to), super::network::kind(&bytes), &bytes, self.now);
        if self.nodes[from].liar.is_none() || self.calm {
            self.observe(&Observed::Sent { node: from, to, bytes: &bytes });
        }
        for bytes in self.twist(from, to, bytes) {
            if let Some((conn, at)) = self.network.post(from, to, &bytes, self.now, &mut self.random) {
                self.schedule(at - self.now, to, 0, Event::Deliver { from, conn, bytes });
            }
        }
    }

    fn train(&mut self, node: usize, round: u64, base: Digest, lease: Span, steps: u32) {
        let step = self.nodes[node].step;
        let after = self.random.between(step / 2, step * 2);
        self.observe(&Observed::Training { node, base, lease });
        let held = self.nodes[node].process.as_ref().and_then(|process| process.offer.as_ref());
        if held.is_some_and(|offer| offer.left_out && offer.span.start == lease.start) {
            self.marks.hit("gradient left out and taken anew");
        }
        let done = self.settle_ahead(node, Some((round, lease)));
        let mut started = None;
        self.process(node, |process| {
            let job = process.job();
            let state = Rc::clone(&process.state);
            // A trainer that has done all steps ahead leaves the last of them to do.
            let last = process.own.as_mut().filter(|_| done >= steps).and_then(|own| own.steps.pop());
            let done = if last.is_some() { steps.saturating_sub(1) } else { done };
            process.training = Some(Training { job, round, base, lease, steps, done, cut_short: false, state });
            started = Some(job).filter(|_| !process.hung);
        });
        if let Some(job) = started {
            self.schedule_own(after, node, Event::Step { job });
        }
    }

    fn cut_short(&mut self, node: usize, round: u64) {
        self.marks.hit("cut short");
        self.process(node, |process| {
            if let Some(training) = process.training.as_mut().filter(|training| training.round == round) {
                training.cut_short = true;
            }
        });
    }

    pub(super) fn train_step(&mut self, node: usize, job: u64) {
        let pace = self.nodes[node].step;
        let once = self.random.between(pace / 2, pace * 2);
        let unit = self.spec.inner.samples(1).max(1);
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        let Some(training) = process.training.as_mut().filter(|t| t.job == job) else { return };
        if process.hung {
            return;
        }
        training.done += 1;
        let (round, done, last) =
            (training.round, training.done, training.done >= training.steps || training.cut_short);
        let (lease, steps) = (training.lease, training.steps);
        let before = |step| lease::positions_before(&lease, unit, steps, step);
        let step = Span { start: lease.start + before(done - 1), count: before(done) - before(done - 1) };
        process.stepped(step);
        if !last {
            let after = once * ((before(done + 1) - before(done)) / unit);
            self.schedule_own(after, node, Event::Step { job });
            return self.feed(node, Input::TrainProgress { round, step: done });
        }
        let Some(training) = process.training.take() else { return };
        let span = Span { start: training.lease.start, count: before(done) };
        let vector = self.contribution(node, &training, span);
        let vector = Rc::new(self.inflated(node, vector));
        let payload = update::contribution_digest(&vector);
        let tokens = span.count * u64::from(self.spec.sample_weight());
        let norm_bits = trainer::norm(&vector).to_bits();
        let upload_kbps = self.uplink(node, round);
        let overhead_us = self.overhead(node, round);
        let measured = Measured { step_us: pace as u32, upload_kbps, reduce_us: 0, overhead_us, norm_bits };
        let offer = Offer { payload, vector, span, tokens, base: training.base, left_out: false };
        self.observe(&Observed::Trained { node, base: training.base, offer: &offer });
        self.process(node, |process| {
            if let Some(own) = &mut process.own {
                own.offered = own.steps.len();
            }
        });
        self.process(node, |process| process.offer = Some(offer));
        let (samples, base, loss_q16) = (span.count, training.base, 3 << 16);
        self.feed(node, Input::Trained { round, base, samples, tokens, steps: done, loss_q16, payload, measured });
    }

    /// The statement of a node about its uplink in a round: none at first, then about the same for some rounds, then
    /// another value. Where a flock chooses its codec, a liar slanders its line.
    fn uplink(&self, node: usize, round: u64) -> u32 {
        if self.options.adapts && self.nodes[node].liar.is_some() && !self.calm {
            return 1;
        }
        let own = self.nodes[node].step / 7;
        // Every other four of the rounds that cost seconds do so since lines hardly carry anything.
        let narrow = self.options.adapts && is_costly(round) && !(round / 8).is_multiple_of(2);
        let own = if narrow { (own / 4000).max(1) } else { own };
        let changed = [0, own, own + own / 9, own - own / 9, 3 * own, 3 * own + own / 2];
        changed[(round + own) as usize % changed.len()] as u32
    }

    /// The statement of a node about the cost of its last round: a hundredth of a second for some rounds, then several
    /// seconds. A liar boasts, or states nothing.
    fn overhead(&self, node: usize, round: u64) -> u32 {
        if self.nodes[node].liar.is_some() && !self.calm {
            return if round.is_multiple_of(2) { u32::MAX } else { 0 };
        }
        let cost = if is_costly(round) { 5_000_000 } else { 10_000 };
        cost + node as u32
    }

    /// The state after the outer step, on a copy.
    fn stepped(&self, node: usize, (key, update): (&AttemptKey, &Digest), rule: &Rule) -> Option<Rc<State>> {
        let process = self.nodes[node].process.as_ref()?;
        let bytes = process.update(&self.nodes[node].disk, key, update)?;
        let parent = &process.head.as_ref()?.record;
        let round = parent.round.saturating_add(1);
        let group = self.reductions.groups.get(key).filter(|group| group.contributions.len() > 1);
        if let Some(group) = group.filter(|_| mutated!(Mutation::ApplyUnencoded)) {
            return process.state.step_by(&self.spec.sync, round, &group.unencoded, rule);
        }
        process.state.step(&self.spec.sync, (round, parent.next.codec), &bytes, rule)
    }

    /// Gives the engine the root of the current state.
    pub fn verified(&mut self, node: usize) {
        if let Some(state_root) = self.nodes[node].process.as_ref().map(|process| process.state.root) {
            self.feed(node, Input::StateVerified { state_root });
        }
    }

    fn speculate(&mut self, node: usize, (key, update): (AttemptKey, Digest), rule: &Rule) {
        let Some(state) = self.stepped(node, (&key, &update), rule) else {
            return self.violate("S10 attempt isolation", format!("node {node} has no update of {key:?} to apply"));
        };
        self.process(node, |process| drop(process.speculated.insert((key, update), state)));
        let after = self.random.between(2, 100) * MS;
        self.schedule_own(after, node, Event::Applied { key, update });
    }

    pub(super) fn applied(&mut self, node: usize, (key, update): (AttemptKey, Digest)) {
        let process = self.nodes[node].process.as_ref();
        if let Some(state) = process.and_then(|process| process.speculated.get(&(key, update)).cloned()) {
            self.feed(node, Input::Applied { key, update, state_root: state.root });
        }
    }

    fn persist(&mut self, node: usize, token: PersistToken, vote_state: VoteState, candidate: Option<Candidate>) {
        let process = self.nodes[node].process.as_ref();
        let held = candidate.map(|candidate| {
            let update = process
                .and_then(|process| process.update(&self.nodes[node].disk, &candidate.key, &candidate.record.update));
            (candidate, update)
        });
        let candidate = match held {
            Some((candidate, Some(update))) => Some(Held { candidate: Rc::new(candidate), update }),
            Some((candidate, None)) => {
                let why = format!("node {node} writes a result of {:?} whose update it does not have", candidate.key);
                return self.violate("S10 attempt isolation", why);
            }
            None => None,
        };
        self.write(node, token, Write::Vote { vote_state: Box::new(vote_state), candidate });
    }

    fn commit(
        &mut self,
        node: usize,
        token: PersistToken,
        key: Option<AttemptKey>,
        (record, certificate): (Record, Certificate),
        mine: bool,
    ) {
        let mut link = Link::new(record, Some(certificate));
        if self.options.steady {
            // A thousand nodes with a thousand members each share one copy.
            link.record = Rc::clone(self.traffic.records.entry(link.digest).or_insert(link.record));
        }
        let update = link.record.update;
        let known = self.nodes[node].process.as_ref().and_then(|p| p.speculated.get(&(key?, update)).cloned());
        let computed = key.is_none() || known.is_some();
        let parent = self.nodes[node].process.as_ref().and_then(|process| process.head.as_ref());
        let rule = parent.map(|parent| Rule::of(&self.spec, &parent.record, link.record.contributors.len()));
        // After a restart this process has not computed the step yet.
        let state = match key {
            None => self.nodes[node].process.as_ref().map(|process| Rc::clone(&process.state)),
            Some(key) => known.or_else(|| self.stepped(node, (&key, &update), rule.as_ref()?)),
        };
        let damaged = self.nodes[node].process.as_ref().is_some_and(|process| process.damaged);
        let sound = state.as_ref().is_some_and(|state| state.root == link.record.state_root);
        if damaged && !computed && !sound {
            // The engine compared nothing: a driver that finds its memory damaged starts again from its disk.
            self.crash(node, false);
            return self.schedule(SECOND, node, 0, Event::Start);
        }
        let Some(mut state) = state else {
            return self
                .violate("S8 exact result", format!("node {node} commits {:?} without its update", link.digest));
        };
        if let Some((twice, rule)) = key.filter(|_| mutated!(Mutation::ApplyTwice)).zip(rule) {
            let process = self.nodes[node].process.as_ref();
            let bytes = process.and_then(|process| process.update(&self.nodes[node].disk, &twice, &update));
            let codec = process.and_then(|process| Some(process.head.as_ref()?.record.next.codec));
            let at = (link.record.round, codec.unwrap_or(self.spec.sync.codec));
            state = bytes.and_then(|b| state.step(&self.spec.sync, at, &b, &rule)).unwrap_or(state);
        }
        if key.is_some() && !computed && !sound && self.tainted.contains(&link.digest) {
            // Only nodes with a damaged state decided the record, and that state died with its process: no disk leads
            // to the record. Its node refuses the record, and a person has to choose where to go on.
            self.beyond_repair = true;
            return self.crash(node, false);
        }
        if key.is_some() && self.damaged_decided(&link) {
            // No other node had a vote in it: the damaged state is the flock's now.
            self.process(node, |process| process.damaged = false);
            self.tainted.insert(link.digest);
        }
        self.traffic.committed(link.record.seq, self.now);
        self.observe(&Observed::Committing { node, key, link: &link, state: &state, mine });
        if key.is_some_and(|key| key.attempt > 0) {
            self.marks.hit("later attempt committed");
        }
        let process = self.nodes[node].process.as_ref();
        let before = process.and_then(|process| process.head.as_ref()).map(|head| head.record.next.codec);
        match before.map(|before| link.record.next.codec.cmp(&before)) {
            Some(Ordering::Greater) => self.marks.hit("coarser codec chosen"),
            Some(Ordering::Less) => self.marks.hit("finer codec chosen"),
            Some(Ordering::Equal) | None => {}
        }
        let (head, held, sound) = (link.clone(), Rc::clone(&state), state.root == link.record.state_root);
        if key.is_some() {
            self.mix_own(node, link.record.round, &state);
        }
        self.process(node, |process| {
            (process.head, process.state) = (Some(head), held);
            process.damaged &= !sound;
            process.speculated.clear();
            process.updates.clear();
            process.reducing = None;
            process.sums = Sums::default();
            process.offer.take_if(|_| mine);
            process.mixed.take_if(|_| mine);
            if let Some(offer) = process.offer.as_mut().filter(|_| key.is_some()) {
                offer.left_out = true;
            }
        });
        self.reductions.prune(link.record.seq);
        self.write(node, token, Write::Commit { link, state: key.map(|_| state) });
    }

    /// Whether all votes for a record are by nodes whose state is damaged, as by a damaged node that goes on alone.
    fn damaged_decided(&self, link: &Link) -> bool {
        let votes = link.certificate.as_deref().map_or(&[][..], |certificate| certificate.votes.as_slice());
        let damaged = |bytes: &Vec<u8>| {
            let sender = bytes.get(2..34).and_then(|id| id.try_into().ok()).map(NodeId);
            let node = sender.and_then(|id| self.keys.index(&id)).and_then(|node| self.nodes[node].process.as_ref());
            node.is_some_and(|process| process.damaged)
        };
        votes.iter().all(damaged) || self.tainted.contains(&link.digest)
    }

    fn refuse(&mut self, node: usize, peer: &NodeId, refusal: &Refusal) {
        let Some(peer) = self.keys.index(peer) else { return self.stranger_refused(node, peer) };
        if matches!(refusal, Refusal::Equivocation { .. }) {
            self.marks.hit("equivocation seen");
        }
        if self.nodes[peer].liar.is_some() {
            self.marks.hit("liar refused");
        }
        if let Refusal::NotAdmitted { why } = refusal {
            self.mark_not_admitted(why);
        }
        self.disconnect(node, peer);
    }

    fn finish(&mut self, node: usize, reason: &Finish) {
        self.process(node, |process| process.finished = true);
        match reason {
            Finish::BudgetSpent => self.marks.hit("budget spent"),
            Finish::Left => {
                self.nodes[node].left = true;
                self.schedule_own(100 * MS, node, Event::Exit);
            }
            Finish::Fenced | Finish::RunMismatch { .. } => {
                self.violate("S18 accuracy of blame", format!("node {node} ends: {reason:?}"));
            }
        }
    }
}

/// Whether a round is one of those that cost seconds: four of eight.
const fn is_costly(round: u64) -> bool {
    (round / 4).is_multiple_of(2)
}
