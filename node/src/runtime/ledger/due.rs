//! Snapshots and checkpoints of the state that are due or wait until the writer is free, and checkpoints that may go.

use super::job::{CheckpointOutcome, CheckpointPurpose};
use crate::config::checkpoint_table::Every;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A checkpoint that somebody has asked for stays at least so long, however many are due after it: the reader has to
/// open it.
const READ_WITHIN: Duration = Duration::from_secs(600);
/// So many that somebody has asked for stay at a time.
const ASKED_MAX: usize = 2;

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
    /// Those that somebody has asked for, the newest last.
    asked: VecDeque<AskedFor>,
}

/// A checkpoint that somebody has asked for.
struct AskedFor {
    path: PathBuf,
    /// The time at which it was there.
    at: Instant,
    /// No other purpose wants it.
    alone: bool,
}

impl AskedFor {
    /// Whether the one who asked has had the time to read it.
    fn is_over(&self) -> bool {
        self.at.elapsed() >= READ_WITHIN
    }
}

/// The checkpoints that go when a new one is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tidying {
    /// They go at once: newer ones have been asked for.
    pub over: Vec<PathBuf>,
    /// How many of a node's own stay with the new one; all of them if only a person has asked for it.
    pub keep: Option<usize>,
    /// They stay, and do not count.
    pub spared: Vec<PathBuf>,
    /// They go before older ones: somebody has asked for them, and has had the time to read them.
    pub first: Vec<PathBuf>,
}

/// A checkpoint that is wanted.
pub struct Wanted {
    pub purpose: CheckpointPurpose,
    pub asked: Vec<oneshot::Sender<CheckpointOutcome>>,
}

impl Wanted {
    /// Whether somebody waits for it, who will read it.
    pub fn is_asked(&self) -> bool {
        self.purpose == CheckpointPurpose::Asked || !self.asked.is_empty()
    }
}

impl Checkpoints {
    /// `round` is the one that is committed at the start.
    pub fn new(plan: CheckpointPlan, round: u64) -> Self {
        Self { plan, waits: None, last: (round, Instant::now()), asked: VecDeque::new() }
    }

    /// The checkpoints that go when the one at `path` is written.
    pub fn tidying(&self, path: &Path, purpose: CheckpointPurpose, is_asked: bool) -> Tidying {
        let others: Vec<&AskedFor> = self.asked.iter().filter(|asked| asked.path != path).collect();
        let (over, stay) = others.split_at(others.len().saturating_sub(ASKED_MAX - usize::from(is_asked)));
        let paths = |of: &[&AskedFor], which: fn(&AskedFor) -> bool| -> Vec<PathBuf> {
            of.iter().filter(|asked| which(asked)).map(|asked| asked.path.clone()).collect()
        };
        Tidying {
            over: paths(over, |asked| asked.alone),
            keep: (purpose != CheckpointPurpose::Asked).then_some(self.plan.keep),
            spared: paths(stay, |asked| !asked.is_over()),
            first: paths(stay, |asked| asked.alone && asked.is_over()),
        }
    }

    /// Notes that the one at `path` is there for this purpose, and whether it was written for it.
    pub fn is_there(&mut self, path: &Path, (purpose, is_asked): (CheckpointPurpose, bool), is_new: bool) {
        let known = self.asked.iter().position(|asked| asked.path == path);
        let was_alone = known.is_some_and(|known| self.asked[known].alone);
        let alone = purpose == CheckpointPurpose::Asked && (is_new || was_alone);
        if is_asked {
            if let Some(known) = known {
                self.asked.remove(known);
            }
            self.asked.push_back(AskedFor { path: path.to_path_buf(), at: Instant::now(), alone });
        } else if let Some(known) = known {
            self.asked[known].alone = alone;
        }
        if is_new {
            // Those before were removed when it was written.
            let over = self.asked.len().saturating_sub(ASKED_MAX);
            self.asked.drain(..over);
        }
    }

    /// Whether one is due in this round, which has just been committed; it counts as made then.
    pub fn come_due(&mut self, round: u64) -> bool {
        if round < self.last.0 {
            // The node has adopted a lineage with fewer rounds.
            self.last.0 = round.saturating_sub(1);
        }
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
        // A lineage with fewer rounds is adopted.
        let due: Vec<u64> = [3, 4, 9, 10, 11, 20].into_iter().filter(|n| every_ten.come_due(*n)).collect();
        assert_eq!(due, [10, 20]);
        assert!(every_ten.come_due(10), "and another one, whose first commit here it is");
        assert!(!(0..100).any(|round| checkpoints(Every::Never, 0).come_due(round)));
    }

    #[test]
    fn a_time_that_has_passed_waits_for_a_round() {
        let mut timed = checkpoints(Every::Time(Duration::ZERO), 7);
        assert!(!timed.come_due(7) && timed.come_due(8) && !timed.come_due(8));
        assert!(timed.come_due(5), "of a lineage with fewer rounds");
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
    #[test]
    fn the_last_two_that_were_asked_for_stay_and_take_no_place_of_those_that_are_due() {
        let mut checkpoints = checkpoints(Every::Rounds(2), 0);
        let path = |n: u64| PathBuf::from(n.to_string());
        let (due, asked) = (CheckpointPurpose::Due, CheckpointPurpose::Asked);
        checkpoints.is_there(&path(2), (due, false), true);
        checkpoints.is_there(&path(3), (asked, true), true);
        assert_eq!(
            checkpoints.tidying(&path(4), due, false),
            Tidying { keep: Some(1), spared: vec![path(3)], ..Tidying::default() }
        );
        checkpoints.is_there(&path(4), (due, false), true);
        // The one that was due will do for the reader, too.
        checkpoints.is_there(&path(4), (asked, true), false);
        assert_eq!(
            checkpoints.tidying(&path(5), asked, true),
            Tidying { over: vec![path(3)], spared: vec![path(4)], ..Tidying::default() }
        );
        checkpoints.is_there(&path(5), (asked, true), true);
        let of_due = checkpoints.tidying(&path(7), asked, true);
        assert!(of_due.over.is_empty(), "it was due, and not only asked for");
        // One that was asked for is due as well.
        checkpoints.is_there(&path(5), (due, false), false);
        checkpoints.is_there(&path(7), (asked, true), true);
        assert!(checkpoints.tidying(&path(9), asked, true).over.is_empty());
        checkpoints.is_there(&path(9), (asked, true), true);
        assert_eq!(checkpoints.tidying(&path(11), asked, true).over, [path(7)]);
    }
}
