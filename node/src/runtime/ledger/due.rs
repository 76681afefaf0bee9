//! What is due to be written of the state, and what waits until the writer is free.

use super::job::{CheckpointOutcome, CheckpointPurpose};
use crate::config::checkpoint_table::Every;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A checkpoint that somebody has asked for stays at least so long, however many come after it: the reader has to open it.
const READ_WITHIN: Duration = Duration::from_secs(600);

/// Snapshots that wait until a checkpoint is written.
#[derive(Default)]
pub struct Owed {
    /// One was due meanwhile. One that is due while another snapshot is written is left out.
    pub due: bool,
    /// One for newcomers was asked for.
    pub newcomers: Option<oneshot::Sender<Duration>>,
}

/// When checkpoints are due, where they are written, and how many stay.
#[derive(Clone, Debug)]
pub struct CheckpointPlan {
    pub folder: PathBuf,
    pub every: Every,
    pub keep: usize,
}

/// The checkpoints of a ledger.
pub struct Checkpoints {
    pub plan: CheckpointPlan,
    /// One that waits until the writer is free.
    pub waits: Option<Wanted>,
    /// Round and time of the last one that was due, or of the start.
    last: (u64, Instant),
    /// The last one that somebody has asked for, and when it was there.
    asked: Option<(PathBuf, Instant)>,
}

/// A checkpoint that is wanted.
pub struct Wanted {
    pub purpose: CheckpointPurpose,
    pub asked: Vec<oneshot::Sender<CheckpointOutcome>>,
}

impl Checkpoints {
    /// `round` is the one that is committed at the start.
    pub fn new(plan: CheckpointPlan, round: u64) -> Self {
        Self { plan, waits: None, last: (round, Instant::now()), asked: None }
    }

    /// Has this one stay for somebody who has asked for it.
    pub fn spare(&mut self, path: PathBuf) {
        self.asked = Some((path, Instant::now()));
    }

    /// The one that stays for somebody.
    pub fn spared(&self) -> Option<&Path> {
        let (path, at) = self.asked.as_ref()?;
        (at.elapsed() < READ_WITHIN).then_some(path.as_path())
    }

    /// Whether one is due in this round, which has just been committed; it counts as made then.
    pub fn come_due(&mut self, round: u64) -> bool {
        let (last, at) = self.last;
        let is_due = match self.plan.every {
            Every::Never => false,
            // A catch-up may have passed the round at which one was due.
            Every::Rounds(rounds) => round / rounds.max(1) > last / rounds.max(1),
            Every::Time(time) => round > last && at.elapsed() >= time,
        };
        if is_due {
            self.last = (round, Instant::now());
        }
        is_due
    }

    /// Has this one wait, with another that waits already.
    pub fn wait(&mut self, wanted: Wanted) {
        let waits = self.waits.get_or_insert(Wanted { purpose: wanted.purpose, asked: Vec::new() });
        waits.purpose = waits.purpose.max(wanted.purpose);
        waits.asked.extend(wanted.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(every: Every, round: u64) -> Checkpoints {
        Checkpoints::new(CheckpointPlan { folder: PathBuf::new(), every, keep: 1 }, round)
    }

    #[test]
    fn they_come_due_at_multiples_and_once_for_all_that_were_passed() {
        let mut every_ten = checkpoints(Every::Rounds(10), 7);
        let due: Vec<u64> = [8, 9, 10, 10, 11, 19, 35, 36, 40].into_iter().filter(|n| every_ten.come_due(*n)).collect();
        assert_eq!(due, [10, 35, 40]);
        assert!(!(0..100).any(|round| checkpoints(Every::Never, 0).come_due(round)));
    }

    #[test]
    fn a_time_that_has_passed_waits_for_a_round() {
        let mut timed = checkpoints(Every::Time(Duration::ZERO), 7);
        assert!(!timed.come_due(7) && timed.come_due(8) && !timed.come_due(8));
        let mut later = checkpoints(Every::Time(Duration::from_secs(3600)), 7);
        assert!(!later.come_due(100));
    }

    #[test]
    fn those_that_wait_together_are_one_for_the_last_purpose() {
        let mut checkpoints = checkpoints(Every::Never, 0);
        for purpose in [CheckpointPurpose::Asked, CheckpointPurpose::Leaving, CheckpointPurpose::Due] {
            checkpoints.wait(Wanted { purpose, asked: vec![oneshot::channel().0] });
        }
        let waits = checkpoints.waits.expect("it waits");
        assert_eq!((waits.purpose, waits.asked.len()), (CheckpointPurpose::Leaving, 3));
    }
}
