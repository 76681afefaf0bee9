//! Whether a node has lost the quorum, and for how long.

use super::clock::Moment;
use crate::message::Fork;
use crate::run::Minority;

/// Whether a quorum is in reach, and since when none is.
#[derive(Debug, Default)]
pub(super) struct QuorumLoss {
    /// No quorum is in reach since then.
    since: Option<Moment>,
    /// A quorum is in reach again since then.
    back: Option<Moment>,
    /// The time without a quorum before that, in microseconds.
    carried: u64,
    /// The user has been told.
    pub told: bool,
    /// The policy is in force.
    pub due: bool,
    pub policy: Option<Minority>,
    /// The fork in which this node would go on.
    pub fork: Option<Fork>,
}

impl QuorumLoss {
    /// Whether the policy forbids to train.
    pub fn holds_training(&self) -> bool {
        self.since.is_some() && self.policy == Some(Minority::Halt)
    }

    /// The time since when no quorum is in reach.
    pub fn since(&self) -> Option<Moment> {
        self.since
    }

    /// The time at which there has been no quorum for `grace`, if there is none until then.
    pub fn due_at(&self, grace: u64) -> Option<Moment> {
        self.since.map(|since| since.plus(grace.saturating_sub(self.carried)))
    }

    /// Notes that a quorum is in reach. The time without one is forgotten no faster than it passed: a quorum that comes
    /// and goes, with members that are killed and start again, decides nothing either.
    ///
    /// Returns whether the user was told that there was none.
    pub fn restore(&mut self, now: Moment) -> bool {
        if let Some(since) = self.since.take() {
            (self.carried, self.back) = (self.carried.saturating_add(now.since(since)), Some(now));
        }
        self.due = false;
        std::mem::take(&mut self.told)
    }

    /// Forgets what is known of a quorum, except the proposed fork: this node is on its way to another head.
    pub fn reset(&mut self) {
        *self = Self { fork: self.fork.take(), ..Self::default() };
    }

    /// Notes that no quorum is in reach; returns since when.
    pub fn lose(&mut self, now: Moment) -> Moment {
        if let Some(back) = self.back.take() {
            self.carried = self.carried.saturating_sub(now.since(back));
        }
        *self.since.get_or_insert(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_without_a_quorum_is_forgotten_no_faster_than_it_grew() {
        let at = |seconds: u64| Moment::default().plus(seconds * 1_000_000);
        let mut cut = QuorumLoss::default();
        assert_eq!((cut.lose(at(10)), cut.lose(at(14))), (at(10), at(10)));
        cut.restore(at(15));
        assert_eq!((cut.since(), cut.lose(at(17))), (None, at(17)), "five seconds less two");
        assert_eq!(cut.due_at(10_000_000), Some(at(24)));
        cut.told = true;
        assert!(cut.restore(at(18)) && !cut.restore(at(19)), "the user is told once that it is over");
        cut.reset();
        cut.lose(at(30));
        assert_eq!(cut.due_at(10_000_000), Some(at(40)));
    }
}
