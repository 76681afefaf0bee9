//! The course of a node from record to record: its start, its heads, the lineages and incarnations that it takes, and
//! its leave.

use super::chain::{ChainHead, Place};
use super::io::{Finish, Notice, Output, PersistToken, Proven};
use super::life::{FirstRound, Life, Start};
use super::offer::Work;
use super::round::{Committing, Round, Training};
use super::sync::CatchUp;
use super::{Engine, Founding, PAST_MAX, Stored, scene, succession};
use crate::ancestry::Ancestry;
use crate::message::{Certificate, Leave, Message};
use crate::mutation::{Mutation, mutated};
use crate::record::Record;
use crate::{Digest, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Engine {
    pub(super) fn start(&mut self) {
        let Life::New(start) = std::mem::replace(&mut self.life, Life::Seeking) else { return };
        let Start { found, stored, copied, force_fork } = *start;
        if let Some(stored) = stored {
            self.resume(stored, copied, force_fork);
        } else if let Some(found) = found {
            self.found(&found);
        }
    }

    /// Resumes from what the disk holds.
    fn resume(&mut self, stored: Stored, copied: bool, force_fork: bool) {
        let Stored { head, certificate, past, ancestry, vote_state, candidates, evidence } = stored;
        self.sync.ancestry = ancestry;
        self.stand_on(ChainHead::new(head, certificate.clone()));
        self.conduct.resume(evidence, &self.ctx, &mut self.out);
        if let Some(why) = self.own_votes.resume(vote_state, copied, &mut self.ctx.identity) {
            self.out.notice(Notice::NewIncarnation { incarnation: self.ctx.identity.incarnation, why });
        }
        for proof in certificate.iter().chain(past.iter().take(PAST_MAX)) {
            self.ctx.learn_signed(proof);
        }
        self.heed_witnesses();
        self.resume_lineage();
        if self.own_votes.vote_state.is_none() {
            self.own_votes.write_empty(&self.ctx, &mut self.out);
        }
        self.first_round = FirstRound { candidates, force_fork };
        if !self.end_if_spent() {
            self.enter_first_round();
        }
    }

    /// Enters the first round of this process. An earlier process of this identity may have spoken in it.
    fn enter_first_round(&mut self) {
        self.enter_round(true);
        let FirstRound { candidates, force_fork } = std::mem::take(&mut self.first_round);
        let Some(round) = self.life.round_mut() else { return };
        round.resume_votes(candidates, self.own_votes.vote_state.as_ref(), &self.ctx);
        if let Some(fork) = if force_fork { self.ctx.fork_alone() } else { None } {
            round.fork(fork, &mut self.offer, &self.ctx, &mut self.out);
        }
    }

    /// Moves the vote state to the head's lineage. A process may be killed between taking the head of another lineage
    /// and writing its vote state. The next one then finds a vote state that speaks in the lineage before.
    fn resume_lineage(&mut self) {
        if self.own_votes.vote_state.is_some() && !mutated!(Mutation::ResumeAnyLineage) {
            self.speak_in();
        }
    }

    fn found(&mut self, found: &Founding) {
        let founder = (self.ctx.me, self.ctx.identity.incarnation);
        let genesis = succession::genesis(self.ctx.run, &self.ctx.spec, founder, found.nonce, found.state_root);
        // A validated run always has room for one lease.
        let Some(record) = genesis else { return };
        self.ctx.identity.begin_lineage();
        // The vote state comes first: a node that finds a head without a vote state on its disk has lost its own votes.
        self.own_votes.write_empty(&self.ctx, &mut self.out);
        let token = self.out.next_token();
        self.life = Life::Founding(token, Box::new(record.clone()));
        self.out.push(Output::Found { token, record });
    }

    /// Notes that the writes of this token are on disk.
    pub(super) fn durable(&mut self, token: PersistToken) {
        self.own_votes.written(token);
        if let Some(record) = self.life.founded(token) {
            self.out.notice(Notice::Founded { lineage: record.lineage });
            self.stand_on(ChainHead::new(record, None));
            return self.go_on();
        }
        let written = self.life.round_mut().and_then(|round| round.written(token));
        if let Some(Committing { record, certificate, since, .. }) = written {
            self.ctx.commit_took = self.ctx.now.since(since);
            self.committed(ChainHead::new(record, Some(certificate)));
        }
    }

    /// Makes the decided record, which is on disk now, the head.
    fn committed(&mut self, chain_head: ChainHead) {
        let (lineage, digest) = (chain_head.record.lineage, chain_head.digest);
        let fork = self.ctx.head.as_ref().is_some_and(|head| head.record.lineage != lineage);
        self.tell_committed(&chain_head, fork);
        self.stand_on(chain_head);
        if fork {
            self.own_votes.take_along(lineage, digest, &self.ctx, &mut self.out);
        }
        self.ctx.hand_to_learners(&mut self.out);
        self.go_on();
    }

    fn tell_committed(&mut self, chain_head: &ChainHead, fork: bool) {
        let record = &chain_head.record;
        let Record { round, seq, lineage, tokens, .. } = *record;
        let parent = self.ctx.head.as_ref().map(|head| &head.record);
        let before: BTreeSet<NodeId> = parent.iter().flat_map(|record| record.members()).collect();
        let after: BTreeSet<NodeId> = record.members().collect();
        if fork && record.contributors.is_empty() {
            self.out.notice(Notice::Forked { lineage, members: after.iter().copied().collect() });
        } else if record.contributors.is_empty() {
            self.out.notice(Notice::Skipped { record: chain_head.digest, lineage, seq });
        } else {
            let members = record.contributors.iter().map(|c| c.member).collect();
            self.out.notice(Notice::Committed { record: chain_head.digest, round, members, tokens });
            let known = |lineage: &Digest| parent.is_some_and(|parent| parent.merged.binary_search(lineage).is_ok());
            for lineage in record.merged.iter().copied().filter(|lineage| !known(lineage)) {
                self.out.notice(Notice::Merged { lineage, round });
            }
        }
        for member in after.difference(&before) {
            self.out.notice(Notice::MemberJoined { member: *member, round });
        }
        for member in before.difference(&after) {
            let fault = self.life.round().and_then(|round| self.ctx.fault(member, round));
            let reason = fault.unwrap_or("it did not contribute");
            self.out.notice(Notice::MemberLeft { member: *member, round, reason });
        }
    }

    fn stand_on(&mut self, chain_head: ChainHead) {
        let began = self.life.round().map(|round| round.began);
        self.offer.newcomers.follow(began, self.ctx.now);
        let before = self.ctx.head.take();
        self.sync.ancestry.follow(before.as_ref().map(|head| &head.record), &chain_head.record);
        self.ctx.stand_on(chain_head);
        self.tell_amended(before.as_ref().map(|head| &head.record));
        self.life = Life::Outside;
        self.sync.catch_up.follow();
        self.heed_witnesses();
        self.offer.heed_merged(&self.ctx, &mut self.out);
        self.conduct.drop_settled(&self.ctx, &mut self.out);
    }

    /// Takes over amended terms, and tells them to the user, unless the node has just started.
    fn tell_amended(&mut self, before: Option<&Record>) {
        let settings = self.ctx.settings();
        self.offer.newcomers.amend(&self.ctx.rules.join);
        if before.is_some_and(|before| before.next.settings != settings) {
            let (number, name, changes) = (settings.amendments, settings.newest, settings.changes);
            let round = self.ctx.head.as_ref().map_or(0, |head| head.record.round.saturating_add(1));
            self.out.notice(Notice::Amended { number, name, changes, round });
        }
    }

    fn is_spent(&self) -> bool {
        let spent = |head: &Arc<ChainHead>| self.ctx.is_spent(head.record.round, head.record.tokens);
        self.ctx.head.as_ref().is_some_and(spent)
    }

    /// Goes on after the end if an amendment that this node knows has added to the budget.
    pub(super) fn go_on_if_amended(&mut self) {
        if self.life.end() == Some(&Finish::BudgetSpent) && !self.is_spent() && !self.ctx.frozen {
            self.life = Life::Outside;
            self.out.push(Output::GoesOn);
            self.enter_first_round();
        }
    }

    /// Looks, after the end, whether members have gone on: by an amendment that this node has not heard of, in its own
    /// lineage or in a fork.
    pub(super) fn look_beyond_the_end(&mut self) {
        let Some(mine) = self.ctx.place().filter(|_| !self.ctx.frozen) else { return };
        let beyond = |(id, place): (NodeId, Place)| {
            let on = if place.lineage == mine.lineage { place.seq > mine.seq } else { !self.ctx.has_finished(&id) };
            self.ctx.is_member(&id) && on
        };
        if self.ctx.places().any(beyond) {
            self.consider_heads();
        }
    }

    fn end_if_spent(&mut self) -> bool {
        let done = self.is_spent();
        if done {
            self.finish(Finish::BudgetSpent);
        }
        done
    }

    /// Begins the work on the record after the head, if the run has not come to its end.
    fn go_on(&mut self) {
        if !self.end_if_spent() {
            self.enter_round(false);
        }
    }

    /// Begins the work on the record after the head, if this node is a member.
    fn enter_round(&mut self, resumed: bool) {
        self.life = Life::Outside;
        let seat = self.ctx.head.as_ref().and_then(|head| head.record.member(&self.ctx.me));
        if self.ctx.identity.heed_seat(seat.map(|seat| seat.incarnation)) {
            self.new_incarnation("the flock knows this node under a later name than its disk and its clock give");
        }
        let Some(head) = self.ctx.head.clone().filter(|head| head.record.member(&self.ctx.me).is_some()) else {
            return self.offer.discard(&self.ctx, &mut self.out);
        };
        self.conduct.follow(&head.record);
        self.life = Life::Member(Box::new(Round::new(head, self.ctx.mark(), resumed)));
        self.recheck_readys();
        self.say_ready();
    }

    /// Offers the complete contribution.
    pub(super) fn trained(&mut self, number: u64, base: Digest, work: Work) {
        let Some(round) = self.life.round_mut() else { return };
        if !self.offer.take(round, (number, base), work, &self.ctx) {
            return;
        }
        if self.offer.is_repeated(round) {
            // This happens after another lineage that came to nothing. The contribution offered here before is lost.
            // The node makes a new start, because two contributions of one start are an equivocation.
            self.renew();
        }
        let Some(round) = self.life.round_mut() else { return };
        if !self.offer.mix(round, &self.ctx, &mut self.out) {
            self.say_ready();
        }
    }

    /// Takes the fragment whose turn it is, if the driver could make it.
    pub(super) fn retaken(&mut self, number: u64, base: Digest, made: Option<(Digest, u32)>) {
        let Some(round) = self.life.round_mut() else { return };
        if self.offer.retaken(round, (number, base), made, (&self.ctx, &mut self.out)) {
            self.say_ready();
        }
    }

    pub(super) fn say_ready(&mut self) {
        if let Some(round) = self.life.round_mut() {
            self.offer.say(round, &self.conduct, &self.ctx, &mut self.out);
        }
    }

    pub(super) fn say_ready_anew(&mut self) {
        if let Some(round) = self.life.round_mut() {
            self.offer.say_anew(round, &self.conduct, &self.ctx, &mut self.out);
        } else {
            self.offer.forget_ready();
        }
    }

    /// Declares this process newly started, though it is not: its earlier statements about the round do not hold any
    /// more.
    pub(super) fn renew(&mut self) {
        self.ctx.identity.renew();
        self.offer.forget_places();
        self.ctx.send_hello(&self.ctx.reachable(), &mut self.out);
    }

    /// Speaks from a new vote state from now on, as a learner until a record has made it a voter.
    fn new_incarnation(&mut self, why: &'static str) {
        self.ctx.identity.begin_incarnation();
        self.offer.forget_places();
        self.beat.forget_join();
        self.out.notice(Notice::NewIncarnation { incarnation: self.ctx.identity.incarnation, why });
        self.own_votes.write_empty(&self.ctx, &mut self.out);
        self.ctx.send_hello(&self.ctx.reachable(), &mut self.out);
        self.say_ready_anew();
    }

    pub(super) fn heed_witnesses(&mut self) {
        if self.own_votes.is_outdated(&self.ctx) {
            self.new_incarnation("others have seen newer votes of this identity than its disk holds");
        }
    }

    /// Speaks in the lineage of the head. Votes of an incarnation in another lineage stay there. The exception is a
    /// fork that this node is itself in. It has signed that fork and takes its vote state along, whether it made the
    /// record, was given it, or was killed in between.
    fn speak_in(&mut self) {
        let Some(head) = &self.ctx.head else { return };
        let (lineage, digest) = (head.record.lineage, head.digest);
        if self.own_votes.vote_state.is_none() {
            self.own_votes.write_empty(&self.ctx, &mut self.out);
        } else if self.own_votes.went_along(&head.record, &self.ctx.me) {
            if !mutated!(Mutation::LoseForksVotes) {
                self.own_votes.take_along(lineage, digest, &self.ctx, &mut self.out);
            }
        } else if self.own_votes.is_elsewhere(&lineage) {
            self.new_incarnation("this node has come from another lineage");
        }
    }

    /// Looks at the heads of all peers, and catches up with the best.
    pub(super) fn consider_heads(&mut self) {
        if self.life.founds() {
            return;
        }
        if let Some((target, sources)) = self.sync.consider(self.life.round(), &self.ctx, &mut self.out) {
            self.begin_catch_up(target, sources);
        }
    }

    fn begin_catch_up(&mut self, target: Proven, sources: Vec<NodeId>) {
        let (Some(lineage), Some(seq)) = (target.ancestry.lineage(), target.ancestry.seq()) else { return };
        if let Some(round) = self.life.round_mut() {
            round.stop_training(&mut self.out);
            round.leave_attempt("the flock is elsewhere", None, &mut self.out);
        }
        if let Some(mine) = self.ctx.place().filter(|mine| mine.lineage != lineage) {
            self.out.notice(Notice::LineageMet { lineage, yields: true });
            self.out.notice(Notice::RolledBack { from_seq: mine.seq, to_seq: seq });
        }
        self.sync.catch_up.begin(target, sources, &self.ctx, &mut self.out);
    }

    pub(super) fn caught_up(&mut self, record: Record, certificate: Option<Certificate>, ancestry: Ancestry) {
        let Some((sources, _)) = self.sync.catch_up.end() else { return };
        let ended = self.life.end().is_some();
        self.sync.catch_up = CatchUp::default();
        self.ctx.distrusted = false;
        for id in sources {
            if let Some(peer) = self.ctx.peers.get_mut(&id) {
                peer.chain.failures = 0;
            }
        }
        let said = self.life.round().and_then(|round| round.part.ready.as_ref()).map(|own| own.signed.ready.base);
        self.offer.start_over(&self.ctx, &mut self.out);
        if let Some(proof) = &certificate {
            self.ctx.learn_signed(proof);
        }
        self.sync.ancestry = ancestry;
        self.first_round = FirstRound::default();
        let chain_head = ChainHead::new(record, certificate);
        let base = chain_head.base;
        self.stand_on(chain_head);
        self.speak_in();
        self.beat.forget_join();
        if self.end_if_spent() {
            return;
        }
        if ended {
            self.out.push(Output::GoesOn);
        }
        // The contribution that was announced for this very round is lost: a member that makes another is a new start.
        if said == Some(base) {
            self.renew();
        }
        self.enter_round(true);
        // This identity's signed statements about the next record hold, also when the head is the same as before.
        if let Some(round) = self.life.round_mut() {
            round.resume_votes(Vec::new(), self.own_votes.vote_state.as_ref(), &self.ctx);
        }
    }

    /// Tries again later, first with other sources; until then goes on from the old head.
    pub(super) fn catch_up_failed(&mut self, reason: String) {
        let Some((sources, target)) = self.sync.catch_up.end() else { return };
        self.sync.claims.forget(&target.record);
        self.sync.catch_up.fail(&self.ctx);
        for id in &sources {
            self.ctx.pause(id);
        }
        self.out.notice(Notice::CatchUpFailed { reason });
        if let Some(round) = self.life.round_mut().filter(|round| round.part.training == Training::Due) {
            round.resumed = true;
        }
    }

    /// Two certified records contradict each other: stops and shows both.
    pub(super) fn freeze(&mut self, ours: Certificate, theirs: Certificate) {
        if !self.ctx.frozen {
            if let Some(round) = self.life.round_mut() {
                round.stop_training(&mut self.out);
            }
            self.ctx.frozen = true;
            self.out.notice(Notice::SplitBrain { ours, theirs });
        }
    }

    /// Leaves at the operator's order: the node offers its contribution with its leave, and goes with the record.
    pub(super) fn leave(&mut self) {
        if self.ctx.leaving.is_some() || self.life.end().is_some() {
            return;
        }
        self.ctx.leaving = Some(self.ctx.now);
        if let Some(round) = self.life.round_mut() {
            round.cut_short(&mut self.out);
        }
    }

    pub(super) fn leave_when_due(&mut self) {
        let Some(since) = self.ctx.leaving else { return };
        let held_up = |round: &Round| {
            let busy = round.part.ready.is_some() || round.part.training == Training::Running;
            let pending = busy && round.task.members.len() > 1 && self.ctx.quorum_in_reach();
            pending || round.committing.is_some()
        };
        if !self.life.round().is_some_and(held_up) || self.ctx.has_stayed(since) {
            let head = self.ctx.head.as_ref();
            let (lineage, seq) = head.map_or((Digest::default(), 0), |head| (head.record.lineage, head.record.seq));
            self.out.send_to(&self.ctx, &self.ctx.reachable(), &Message::Leave(Leave { lineage, seq }));
            self.finish(Finish::Left);
        }
    }

    /// Sends what is due: heads on change and once a beat, and the slow repetitions.
    pub(super) fn beat(&mut self) {
        self.beat.tell_heads(&scene!(self), &mut self.out);
        if self.life.end().is_some() || self.ctx.frozen {
            return;
        }
        let (ctx, out) = (&self.ctx, &mut self.out);
        let repeats = self.beat.repeats(ctx);
        if let Some(round) = self.life.round_mut() {
            if repeats {
                round.repeat_fork(&ctx.reachable_members(), ctx, out);
                round.tell_set(ctx, out);
            }
            round.repeat_late_ready(ctx, out);
            self.relay.ask(round, ctx, out);
            round.repeat_late_votes(ctx, out, &self.own_votes);
        }
        self.beat.ask_to_join(&scene!(self), &mut self.out);
    }
}
