//! Coverage marks: events that must happen in some history of a batch. A batch in which one never happens proves
//! nothing about it.

use std::collections::BTreeMap;

/// Every mark, in the order in which tables show them.
pub const MARKS: &[&str] = &[
    "round committed",
    "skip committed",
    "fork",
    "other lineage taken",
    "merged",
    "set decided by vote",
    "later attempt committed",
    "two ballots",
    "vote against",
    "forced value fetched",
    "decided value fetched",
    "fetch failed",
    "claim proven",
    "claim open",
    "forged path",
    "false claim",
    "certificate by catch-up",
    "reduction failed for some only",
    "reduction for one alone",
    "sums kept after a failure",
    "death in a reduction",
    "crash between vote and persist",
    "crash between commit and persist",
    "write torn at a crash",
    "all crashed at once",
    "restart with a vote state",
    "old disk",
    "copied disk",
    "old disk known by certificates only",
    "wiped disk",
    "death in a vote",
    "vote held up",
    "death at a decision",
    "old disk in a vote",
    "new incarnation",
    "contribution left out and offered again",
    "cut short",
    "gradient left out and taken anew",
    "fragment left out and another taken",
    "steps ahead kept",
    "steps ahead dropped",
    "member joined",
    "member joined by a limited ticket",
    "admission revoked",
    "amendment handed in",
    "run amended",
    "went on after the end",
    "refused: not listed",
    "refused: no ticket",
    "refused: forged ticket",
    "refused: expired ticket",
    "refused: ticket used up",
    "refused: revoked identity",
    "refused: revoked ticket",
    "member left",
    "member removed",
    "learner became voter",
    "probation over",
    "newcomer set back",
    "elders decide",
    "partition without a quorum",
    "quorum back in reach",
    "distinguished half went on",
    "one-way partition",
    "non-transitive partition",
    "clogged link",
    "a killed process told by its machine",
    "a round waited for newcomers",
    "old bytes replayed",
    "liar refused",
    "liar that pretends to fetch",
    "contribution clipped",
    "equivocation seen",
    "evidence held",
    "evidence after a restart",
    "liar revoked",
    "stale message ignored",
    "damaged state found",
    "catch-up failed",
    "source lost in a transfer",
    "newcomer served by a newcomer",
    "small flock in rows",
    "reduction in rows",
    "sums kept in rows",
    "sum of a row passed on",
    "coarser codec chosen",
    "finer codec chosen",
    "n = 1 run",
    "run with real signatures",
    "clock jumped",
    "clock behind at a start",
    "stranger came",
    "stranger refused",
    "flock of more than 31",
    "flock of more than 62",
    "flock of two voters and faults",
    "process paused",
    "budget spent",
];

/// The number of times that each mark was hit.
#[derive(Clone, Debug, Default)]
pub struct Marks(BTreeMap<&'static str, u64>);

impl Marks {
    pub fn hit(&mut self, mark: &'static str) {
        debug_assert!(MARKS.contains(&mark), "{mark} is listed");
        *self.0.entry(mark).or_default() += 1;
    }

    pub fn count(&self, mark: &str) -> u64 {
        self.0.get(mark).copied().unwrap_or(0)
    }

    pub fn add(&mut self, other: &Self) {
        for (mark, count) in &other.0 {
            *self.0.entry(mark).or_default() += count;
        }
    }

    /// Every mark with its count.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        MARKS.iter().map(|mark| (*mark, self.count(mark)))
    }
}
