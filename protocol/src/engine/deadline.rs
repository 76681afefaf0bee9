//! The times that this node waits: one method or constant for each row of the table of deadlines
//! (`docs/protocol/8-deadlines.md` §8.1, §8.2). [`super::due`] says whether a deadline has come.

use super::clock::Moment;
use super::ctx::Ctx;
use super::peer::Peer;
use super::round::Round;
use super::touch::Touch;
use crate::message::Phase;
use crate::mutation::{Mutation, mutated};

/// A peer without progress for so many median intervals is stuck.
const STALL_FACTOR: u64 = 8;
/// A message that so many round trips should have answered is lost.
const RTT_FACTOR: u64 = 8;
/// However short rounds are, a connection may be gone for the longest grace divided by this.
const DOWN_GRACE_SHARE: u64 = 4;
/// Bounds of the time that learners are waited for after a quorum of voters is READY, without their lag, in
/// microseconds.
const LEARNER_GRACE: (u64, u64) = (2_000_000, 30_000_000);
/// First pause after a failed attempt, in microseconds, and how often it doubles.
const ATTEMPT_PAUSE: (u64, u32) = (250_000, 4);
/// A reduction that moves is given up after so many times the time that reductions took.
const REDUCTION_FACTOR: u64 = 16;
/// How often a reduction's deadline doubles.
const REDUCTION_DOUBLINGS: u32 = 2;
/// The least time that a voter waits for more than a quorum where that could help, in microseconds; and how often it
/// doubles in a vote on the record, with each ballot.
const VOTE_PATIENCE: (u64, u32) = (300_000, 6);
/// How often the pauses after a failure double.
const RETRY_DOUBLINGS: u32 = 5;
/// In a large flock learners and voters tell each other that they live once in so many beats.
pub(super) const FAR_BEATS: u64 = 4;
/// A member of which no Head is passed on for so many such beats counts as dead.
const FAR_SILENCE: u64 = 3;
/// Pause in microseconds between two Heads, and between two Joins, of a node that is no member: at most ten messages a
/// second in all. Networks hear a few a second of a stranger, and more would wait there until they are old.
pub(super) const OUTSIDER_PAUSE: u64 = 200_000;
/// How often the pauses between two repetitions of a READY double.
const READY_DOUBLINGS: u32 = 4;
/// In a large flock heartbeats and READYs that change nothing by themselves are looked at together, after so many
/// microseconds at the latest. Otherwise the cost of each of them would grow with the flock.
pub(super) const QUIET_MAX: u64 = 100_000;
/// The least time in microseconds between two Heads of one member that are passed on.
pub(super) const HEAD_PAUSE: u64 = 250_000;
/// Pause in microseconds between two questions for READYs.
pub(super) const WANT_PAUSE: u64 = 500_000;
/// A leaving node stays for so long, in microseconds, so that the record under way takes its leave along.
pub(super) const LEAVE_MAX: u64 = 6_000_000;
/// The time for which a proven head is good, in microseconds: its sources have moved on since.
pub(super) const FRESH: u64 = 30_000_000;
/// A lineage's newer heads are proven again no sooner than this, in microseconds.
pub(super) const AGAIN: u64 = 1_000_000;
/// The user is told again after this time, in microseconds, if other members are waited for.
pub(super) const TELL_AGAIN: u64 = 10_000_000;
/// In a large flock this node looks once in this time, in microseconds, at what it waits for.
pub(super) const LOOK: u64 = 500_000;

/// The time that attempt 0 waits, in microseconds from the moment at which a quorum is READY.
pub(super) struct Allowance {
    since: Moment,
    voters: u64,
    learners: u64,
    /// The time by which learners may have begun later.
    lag: u64,
}

impl Allowance {
    /// The time at which a voter, or a learner, is waited for no longer.
    pub fn end(&self, votes: bool) -> Moment {
        self.since.plus(if votes { self.voters } else { self.learners + self.lag })
    }

    /// The time at which such a member ends its inner steps. A learner does not know the lag that voters grant it.
    pub fn half(&self, votes: bool) -> Moment {
        self.since.plus(if votes { self.voters } else { self.learners } / 2)
    }
}

impl Ctx {
    /// A connected peer that says nothing for so long counts as dead.
    pub fn silence(&self, peer: &Peer) -> u64 {
        let silence =
            (2 * self.timing.patience_min).max(4 * self.timing.heartbeat).max(RTT_FACTOR * u64::from(peer.link.rtt));
        if peer.said.passed { silence.max(self.far_silence()) } else { silence }
    }

    /// The same for a member whose Heads others pass on.
    pub fn far_silence(&self) -> u64 {
        FAR_SILENCE * FAR_BEATS * self.timing.heartbeat
    }

    /// The time for which a connection may be gone before its member counts as dead. It is no longer than the quorum
    /// took for this round, since a contribution to a short round is not worth a long wait.
    pub fn down_grace(&self, round: &Round) -> u64 {
        let most = self.timing.down_grace;
        round.attempts.quorum_ready_at.map_or(most, |at| at.since(round.began).clamp(most / DOWN_GRACE_SHARE, most))
    }

    /// The time for which a member may not have been met. After a restart the others may be starting up as well.
    pub fn meeting_grace(&self, round: &Round, touch: Touch) -> u64 {
        let grace = if round.resumed { 2 * self.timing.patience_min } else { self.timing.patience_min };
        if touch == Touch::Passed { grace.max(self.far_silence()) } else { grace }
    }

    /// Without progress in `phase` for so long the peer is stuck: eight times its own median interval between two
    /// signs of progress and eight round trips, within bounds. A slow machine among fast ones is slow, not stuck.
    pub fn stall(&self, peer: &Peer, phase: Phase) -> u64 {
        let timing = &self.timing;
        let works = matches!(phase, Phase::Training | Phase::CatchingUp | Phase::Settling);
        let trips = RTT_FACTOR * u64::from(peer.link.rtt);
        match peer.said.pace.median(phase) {
            Some(median) if works || phase == Phase::Reducing => {
                let measured = median.saturating_mul(STALL_FACTOR).max(trips) + timing.heartbeat;
                measured.clamp(2 * timing.patience_min, timing.patience_max)
            }
            // Work whose pace is not known yet: a first step compiles, a first transfer waits for its source.
            None if works => timing.unmeasured,
            _ => (2 * timing.patience_min).max(trips),
        }
    }

    /// The least that [`Self::stall`] can be: a peer that has moved since is not stuck.
    pub fn least_stall(&self) -> u64 {
        (2 * self.timing.patience_min).min(self.timing.unmeasured)
    }

    /// The longest times that a quorum waits for voters and for learners. A voter that moves may take as long again as
    /// the quorum took. A learner gets a tenth of that, and the time by which it may have begun later.
    pub fn allowance(&self, round: &Round) -> Option<Allowance> {
        let since = round.attempts.quorum_ready_at?;
        let took = since.since(round.began);
        // A contribution to a short round is not worth a long wait, but a loaded machine may be a second or two behind.
        let voters_least = (self.timing.patience_min / 2).max(2 * self.slowest_rtt());
        let voters = took.clamp(voters_least.min(self.timing.patience_max), self.timing.patience_max);
        let least = LEARNER_GRACE.0.max(2 * self.slowest_rtt()).min(LEARNER_GRACE.1);
        let learners = (took / 10).clamp(least, LEARNER_GRACE.1).min(voters);
        let lag = self.learners_lag().min(LEARNER_GRACE.1);
        Some(Allowance { since, voters, learners, lag })
    }

    /// The time after which a reduction is given up in which nothing moves anywhere, if no member's own pace asks for
    /// more.
    pub fn reduction_stall(&self) -> u64 {
        2 * self.timing.patience_min
    }

    /// The longest time for a reduction that moves: far longer than the voters in it have measured. A member that sends
    /// a byte now and then is never still, and must not hold up all others for good.
    pub fn longest_reduction(&self, took: Option<u64>) -> u64 {
        took.map_or(self.timing.patience_max, |took| (REDUCTION_FACTOR * took).max(self.timing.unmeasured))
    }

    /// The time after which a missing READY of a decided set is lost, with the process that made it: a READY is said
    /// again and again.
    pub fn ready_of_set(&self) -> u64 {
        3 * self.timing.repeat.max(self.slowest_rtt())
    }

    /// The pause between a failed attempt and the next one.
    pub fn attempt_pause(&self, failures: u32) -> u64 {
        ATTEMPT_PAUSE.0 << failures.min(ATTEMPT_PAUSE.1)
    }

    /// The time to wait for more than a quorum in a ballot on the record.
    pub fn record_patience(&self, ballot: u32) -> u64 {
        let once = VOTE_PATIENCE.0.max(4 * self.slowest_rtt());
        let disturbed = if mutated!(Mutation::Disturbed) { crate::mutation::disturbance() } else { 0 };
        (once << ballot.min(VOTE_PATIENCE.1)).min(self.timing.patience_max) + disturbed
    }

    /// The same in a ballot on a set.
    pub fn set_patience(&self) -> u64 {
        VOTE_PATIENCE.0.max(4 * self.slowest_rtt())
    }

    /// The time to wait for a voter of which nothing else is known: until it has answered a restarted node, or until
    /// this node decides by itself what others have decided.
    pub fn answer_patience(&self) -> u64 {
        self.timing.repeat.max(4 * self.slowest_rtt())
    }

    /// The pause between two repetitions of a READY. A message over a connection arrives as long as the connection
    /// holds, so attempt 0 is left more and more alone as long as it has not begun.
    pub fn ready_pause(&self, repeats: u32, calm: bool) -> u64 {
        let repeat = self.timing.repeat;
        if calm { (4 * repeat) << repeats.min(READY_DOUBLINGS) } else { repeat }
    }

    /// A newcomer whose transfer moves nothing for so long is not waited for.
    pub fn newcomer_stall(&self) -> u64 {
        2 * self.timing.patience_min
    }

    /// The pause between two certificates that are given to one peer.
    pub fn help_pause(&self) -> u64 {
        self.timing.repeat / 4
    }

    /// The time that a peer that is one record behind is given to hear of the record: less if it voted on it.
    pub fn help_patience(&self, peer: Option<&Peer>, voted: bool) -> u64 {
        let trips = 2 * peer.map_or(0, |peer| u64::from(peer.link.rtt));
        let patience = if voted { self.help_pause() } else { self.timing.repeat };
        patience.max(trips)
    }

    /// The pause between a failed fetch or catch-up and the next one.
    pub fn retry_pause(&self, failures: u32) -> u64 {
        self.timing.retry << failures.min(RETRY_DOUBLINGS)
    }
}

/// Doubles a reduction's deadline for each failure.
pub(super) fn after_failures(micros: u64, failures: u32) -> u64 {
    micros << failures.min(REDUCTION_DOUBLINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_and_patience_double_up_to_their_limits() {
        let ctx = Ctx::sample();
        assert_eq!([0, 1, 4, 9].map(|failures| ctx.attempt_pause(failures)), [250_000, 500_000, 4_000_000, 4_000_000]);
        assert_eq!([0, 5, 9].map(|failures| ctx.retry_pause(failures)), [1_000_000, 32_000_000, 32_000_000]);
        assert_eq!([0, 1, 9].map(|ballot| ctx.record_patience(ballot)), [300_000, 600_000, 19_200_000]);
        assert_eq!([0, 1, 2, 3].map(|failures| after_failures(10, failures)), [10, 20, 40, 40]);
        assert_eq!(ctx.longest_reduction(None), ctx.timing.patience_max);
        assert_eq!(ctx.longest_reduction(Some(1)), ctx.timing.unmeasured);
    }
}
