//! Whether a deadline has come. The engine compares moments with the time nowhere else. Each method is a row of the
//! table of deadlines (`docs/protocol/8-deadlines.md`); [`super::deadline`] says how long each is. A node wakes for the
//! deadlines that have not come yet ([`super::watch`]).

use super::clock::Moment;
use super::ctx::Ctx;
use super::deadline::{self, Allowance, after_failures};
use super::peer::Peer;
use super::round::Round;
use super::touch::Touch;
use super::watch::Deadline;
use crate::NodeId;
use crate::message::Phase;

impl Ctx {
    /// Whether the moment `at` has come. If it has not, the node wakes when it does.
    fn reached(&self, what: Deadline, at: Moment) -> bool {
        let reached = at.passed(self.now);
        if !reached {
            self.watch.note(what, at);
        }
        reached
    }

    /// The same for work that is done at once when it is due, and then again after the same time.
    fn recurs(&self, what: Deadline, last: Moment, every: u64) -> bool {
        let due = self.reached(what, last.plus(every));
        if due {
            self.watch.note(what, self.now.plus(every));
        }
        due
    }

    /// Wakes the node at once: there may be more to do than was done.
    pub fn wake_at_once(&self) {
        self.watch.note(Deadline::Quiet, self.now);
    }

    /// The time, for a caller that keeps it. A wait begins with it. The engine therefore goes through its state once
    /// more before it sleeps, since conditions that it looked at before may end with that wait.
    pub fn mark(&self) -> Moment {
        self.watch.begin();
        self.now
    }

    /// Whether nothing was heard of a peer for as long as a silence lasts.
    pub fn is_silent(&self, peer: &Peer) -> bool {
        self.reached(Deadline::Silence, peer.link.heard_at.max(peer.link.switched_at).plus(self.silence(peer)))
    }

    /// Whether a peer has said something within that time: a connection alone is not enough.
    pub fn spoke_lately(&self, peer: &Peer) -> bool {
        !self.reached(Deadline::Silence, peer.link.heard_at.plus(self.silence(peer)))
    }

    /// Whether a member that was not met in this round yet has had the time to come.
    pub fn is_long_unmet(&self, round: &Round, touch: Touch) -> bool {
        self.reached(Deadline::Meeting, round.began.plus(self.meeting_grace(round, touch)))
    }

    /// Whether a connection has been down for too long.
    pub fn is_long_down(&self, peer: &Peer, round: &Round) -> bool {
        peer.link.gone || self.reached(Deadline::Down, peer.link.switched_at.plus(self.down_grace(round)))
    }

    /// Whether a peer has made no progress for too long in the phase in which it owes some, if it owes any. That of a
    /// member that is heard through others shows in a Head that comes after that time: if none comes, those that pass
    /// its Heads on may be gone.
    pub fn is_stuck(&self, (peer, touch): (&Peer, Touch), round: &Round, owes: impl FnOnce() -> Option<Phase>) -> bool {
        let moved = peer.said.moved_at.max(round.began).max(peer.link.switched_at);
        let shows = |at: Moment| touch != Touch::Passed || at.passed(peer.link.heard_at);
        let by = |patience| self.reached(Deadline::Progress, moved.plus(patience)) && shows(moved.plus(patience));
        // Most peers have moved just now: only for the others is it worth looking at their pace.
        by(self.least_stall()) && owes().is_some_and(|phase| by(self.stall(peer, phase)))
    }

    /// Whether a peer's claims are looked at. They are not for a while after a claim that led nowhere.
    pub fn heeds_claims(&self, peer: &Peer) -> bool {
        self.reached(Deadline::Claims, peer.chain.avoid_until)
    }

    /// Whether a head that was proven at `proven` may be relied on.
    pub fn is_fresh(&self, proven: Moment) -> bool {
        !self.reached(Deadline::Proof, proven.plus(deadline::FRESH))
    }

    /// Whether newer heads may be proven of a lineage that was proven at `proven`.
    pub fn may_prove_again(&self, proven: Moment) -> bool {
        self.reached(Deadline::Proof, proven.plus(deadline::AGAIN))
    }

    /// Whether peers have had the time to come since this process began.
    pub fn has_had_time_to_meet(&self) -> bool {
        self.began.is_some_and(|began| self.reached(Deadline::Meeting, began.plus(self.timing.patience_min)))
    }

    /// Whether this node still has the time to decide a record by itself that others have had since `ahead`.
    pub fn may_still_decide(&self, ahead: Option<Moment>) -> bool {
        ahead.is_none_or(|since| !self.reached(Deadline::Ahead, since.plus(self.answer_patience())))
    }

    /// Whether a catch-up may be tried again after one that failed.
    pub fn may_catch_up(&self, not_before: Moment) -> bool {
        self.reached(Deadline::CatchUp, not_before)
    }

    /// The same for a result that no source could give.
    pub fn may_fetch(&self, not_before: Moment) -> bool {
        self.reached(Deadline::Fetch, not_before)
    }

    /// Whether this node may look again at what it looked at at `looked_at`, if that is expensive in a large flock.
    pub fn may_look_again(&self, looked_at: Moment) -> bool {
        self.recurs(Deadline::Quiet, looked_at, deadline::QUIET_MAX)
    }

    /// Whether READYs should have come, since a quorum of voters is READY.
    pub fn should_have_heard_readys(&self, since: Moment) -> bool {
        self.reached(Deadline::Want, since.plus(deadline::WANT_PAUSE))
    }

    /// Whether a neighbour may be asked again for READYs that this node lacks.
    pub fn may_ask_for_readys(&self, asked_at: Moment) -> bool {
        self.recurs(Deadline::Want, asked_at, deadline::WANT_PAUSE)
    }

    /// Whether another Head of a member may be passed on.
    pub fn may_pass_head_on(&self, passed_at: Option<Moment>) -> bool {
        passed_at.is_none_or(|at| self.now.since(at) >= deadline::HEAD_PAUSE)
    }

    /// Whether the process of a peer that is heard through others has been silent for so long that an earlier one, which
    /// speaks, may be the newer one: its clock was set back.
    pub fn is_long_unheard(&self, id: &NodeId) -> bool {
        self.peers.get(id).is_none_or(|peer| self.now.since(peer.link.heard_at) >= self.far_silence())
    }

    /// Whether a neighbour's next question for READYs is answered. Its questions may arrive closer than they were asked.
    pub fn may_answer_want(&self, answered_at: Option<Moment>) -> bool {
        answered_at.is_none_or(|at| self.now.since(at) >= deadline::WANT_PAUSE / 2)
    }

    /// The same for what the user is told.
    pub fn may_look_for_user(&self, looked_at: Moment) -> bool {
        self.recurs(Deadline::Told, looked_at, deadline::LOOK)
    }

    /// Whether the user is told anew for which members this node waits.
    pub fn may_tell_again(&self, told_at: Moment) -> bool {
        self.recurs(Deadline::Told, told_at, deadline::TELL_AGAIN)
    }

    /// Whether a restarted node still listens before it does anything in this round.
    pub fn is_settling(&self, round: &Round) -> bool {
        round.resumed && !self.reached(Deadline::Settle, round.began.plus(self.timing.settle))
    }

    /// Whether there has been no quorum for longer than a connection is gone that comes back at once.
    pub fn is_quorum_lost(&self, since: Moment) -> bool {
        self.reached(Deadline::QuorumLoss, since.plus(self.timing.down_grace))
    }

    /// Whether there has been no quorum for so long that this node follows a fork of its head.
    pub fn is_long_quorum_lost(&self, since: Moment) -> bool {
        self.reached(Deadline::QuorumLoss, since.plus(self.timing.patience_min))
    }

    /// Whether the grace that ends at `ends` is over.
    pub fn is_grace_over(&self, ends: Moment) -> bool {
        self.reached(Deadline::QuorumLoss, ends)
    }

    /// Whether this node still waits for the voters that have not answered, though a quorum has answered since `since`.
    pub fn waits_for_answers(&self, since: Moment) -> bool {
        !self.reached(Deadline::Witness, since.plus(self.answer_patience()))
    }

    /// Whether attempt 0 waits no longer for a member; `votes` tells whether that is a voter.
    pub fn is_late(&self, allowed: &Allowance, votes: bool) -> bool {
        self.reached(Deadline::Assembly, allowed.end(votes))
    }

    /// Whether such a member ends its inner steps.
    pub fn is_half_over(&self, allowed: &Allowance, votes: bool) -> bool {
        self.reached(Deadline::Assembly, allowed.half(votes))
    }

    /// Whether the next attempt may be formed.
    pub fn may_attempt(&self, round: &Round) -> bool {
        self.reached(Deadline::Attempt, round.attempts.not_before)
    }

    /// Whether a missing READY of the decided set is lost.
    pub fn is_ready_lost(&self, told_at: Moment) -> bool {
        self.reached(Deadline::ReadyOfSet, told_at.plus(self.ready_of_set()))
    }

    /// Whether a reduction that last moved at `moved` stands still, by a patience that doubles with each failure.
    pub fn stands_still(&self, moved: Moment, patience: u64, failures: u32) -> bool {
        self.reached(Deadline::Reduction, moved.plus(after_failures(patience, failures)))
    }

    /// Whether a reduction that began at `began` is too young to be looked at more closely, as long as something moves.
    pub fn is_young(&self, began: Moment) -> bool {
        !self.reached(Deadline::Reduction, began.plus(self.timing.unmeasured.min(self.timing.patience_max)))
    }

    /// Whether this node waits for more than a quorum in a vote in which it last spoke at `said_at`.
    pub fn awaits_more(&self, said_at: Moment, patience: u64) -> bool {
        !self.reached(Deadline::Vote, said_at.plus(patience))
    }

    /// Whether the votes on sets have come to nothing since `last`, so that a voter in the vote on the record ends it.
    pub fn is_left_behind(&self, last: Moment) -> bool {
        self.reached(Deadline::LeftBehind, last.plus(2 * self.timing.patience_min))
    }

    /// Whether a node has waited for its own inner step for long enough since its record was decided.
    pub fn gives_up_own_step(&self, decided_at: Moment) -> bool {
        self.reached(Deadline::OwnStep, decided_at.plus(self.timing.patience_min))
    }

    /// Whether a node that has wanted to leave since `since` goes at once.
    pub fn has_stayed(&self, since: Moment) -> bool {
        self.reached(Deadline::Leave, since.plus(deadline::LEAVE_MAX))
    }

    /// Whether a Head is due that was last said at `said_at`.
    pub fn is_beat_due(&self, said_at: Option<Moment>) -> bool {
        // A Head that was never said is due now.
        let last = said_at.unwrap_or_default();
        self.recurs(Deadline::Beat, last, self.timing.heartbeat) || said_at.is_none()
    }

    /// The same for a Head to peers that are told less in a large flock.
    pub fn is_far_beat_due(&self, said_at: Moment) -> bool {
        self.recurs(Deadline::Beat, said_at, deadline::FAR_BEATS * self.timing.heartbeat)
    }

    /// Whether this node may say something new of a kind that it last said at `last`.
    pub fn may_speak_again(&self, last: Option<Moment>) -> bool {
        let waited = |at: Moment| self.reached(Deadline::Outsider, at.plus(deadline::OUTSIDER_PAUSE));
        self.is_member(&self.me) || last.is_none_or(waited)
    }

    /// Whether a message that others may have missed, last said at `said_at`, is to be repeated.
    pub fn may_repeat(&self, said_at: Moment) -> bool {
        self.recurs(Deadline::Repeat, said_at, self.timing.repeat)
    }

    /// The same for a READY that was repeated `repeats` times; `calm`: attempt 0 has not begun.
    pub fn may_repeat_ready(&self, said_at: Moment, repeats: u32, calm: bool) -> bool {
        self.recurs(Deadline::Repeat, said_at, self.ready_pause(repeats, calm))
    }

    /// Whether this node asks to be let in again.
    pub fn may_join_again(&self, asked_at: Moment) -> bool {
        self.recurs(Deadline::Join, asked_at, self.timing.join_every)
    }

    /// Whether another's request to be let in still counts.
    pub fn is_join_valid(&self, asked_at: Moment) -> bool {
        !self.reached(Deadline::Join, asked_at.plus(self.timing.join_valid.saturating_add(1)))
    }

    /// Whether a newcomer that fetches the state, and moved then, stands still.
    pub fn newcomer_stands_still(&self, moved: Moment) -> bool {
        self.reached(Deadline::Newcomer, moved.plus(self.newcomer_stall()))
    }

    /// Whether a newcomer that has the state since then has had the time to ask to be let in.
    pub fn should_have_asked(&self, arrived: Moment) -> bool {
        self.reached(Deadline::Newcomer, arrived.plus(self.answer_patience()))
    }

    /// Whether the patience with newcomers is used up, which ends then.
    pub fn is_patience_over(&self, ends: Moment) -> bool {
        self.reached(Deadline::Newcomer, ends)
    }

    /// Whether a certificate may be given to a peer that was last given one at `handed_at`.
    pub fn may_help_again(&self, handed_at: Moment) -> bool {
        self.reached(Deadline::Help, handed_at.plus(self.help_pause()))
    }

    /// Whether a peer that is one record behind must have missed something, in a round that began at `began`; `voted`:
    /// it voted on the record.
    pub fn should_have_heard(&self, peer: Option<&Peer>, voted: bool, began: Moment) -> bool {
        self.reached(Deadline::Help, began.plus(self.help_patience(peer, voted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::liveness::fault;
    use crate::wire::sample::node;

    #[test]
    fn a_node_wakes_for_a_deadline_it_looked_at_that_has_not_come() {
        let mut ctx = Ctx::sample();
        let mut round = ctx.sample_round();
        let lost = node(16);
        let (began, switched_at) = (ctx.now, ctx.now);
        ctx.peers.entry(lost).and_modify(|peer| (peer.link.connected, peer.link.switched_at) = (false, switched_at));
        assert_eq!(ctx.watch.next(), None, "nobody has looked at anything");
        assert_eq!(ctx.fault(&lost, &round), None);
        assert_eq!(ctx.watch.next(), Some((began.plus(ctx.timing.down_grace), Deadline::Down)));
        ctx.fault(&node(32), &round);
        assert_eq!(ctx.watch.next().map(|(_, what)| what), Some(Deadline::Down), "the first of them");
        // A quorum was READY after half a second.
        ctx.now = began.plus(500_000);
        round.attempts.quorum_ready_at = Some(ctx.now);
        ctx.watch.clear();
        assert_eq!(
            (ctx.fault(&lost, &round), ctx.watch.next()),
            (Some(fault::DOWN), None),
            "what has come wakes nobody"
        );
        let allowed = ctx.allowance(&round).expect("a quorum is READY");
        assert!(!ctx.is_half_over(&allowed, true) && !ctx.is_late(&allowed, true));
        assert_eq!(ctx.watch.next(), Some((allowed.half(true), Deadline::Assembly)));
    }
}
