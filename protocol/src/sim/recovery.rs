//! The time until a flock commits again after its last fault, by the kind of fault: each kind alone, and all as drawn.

use super::MS;
use super::history::{Outcome, Settings};
use super::options::Options;
use super::world::Recovered;
use std::fmt;

/// Kinds of faults that can be played alone. With the first of them nothing goes wrong, with the last all that a seed
/// draws.
pub const CLASSES: &[&str] = &[
    "none",
    "crashes",
    "silent-crashes",
    "blackouts",
    "wipes",
    "old-disks",
    "slow-disks",
    "pauses",
    "clock-jumps",
    "drops",
    "partitions",
    "one-way",
    "non-transitive",
    "clogs",
    "replays",
    "failing-reductions",
    "failing-fetches",
    "hangs",
    "damage",
    "leaves",
    "ambushes",
    "late-votes",
    "liars",
    "lossy-links",
    "everything",
];

/// The time within which the first new COMMIT has to come, in microseconds since the last fault.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// If a quorum is left.
    pub kept: u64,
    /// If none is left: within this time after the grace of the run.
    pub forked: u64,
}

impl Bound {
    /// Whether a flock whose run has this grace recovered in time.
    fn holds(&self, seen: &Recovered, grace: u64) -> bool {
        let most = if seen.forked { self.forked + grace } else { self.kept };
        seen.first.is_some_and(|us| us <= most)
    }
}

/// The time for which faults of one kind come: only the time afterwards is measured.
const DURATION: (u64, u64) = (20 * super::SECOND, 30 * super::SECOND);

impl Options {
    /// The same flock with one kind of fault only.
    pub fn alone(&mut self, class: &str) {
        if class == "everything" {
            return;
        }
        *self = Self {
            nodes: self.nodes,
            first: self.first,
            policy: self.policy,
            codec: self.codec,
            mode: self.mode,
            fragments: self.fragments,
            overlap: self.overlap,
            mixing: self.mixing,
            grace: self.grace,
            every: self.every,
            duration: self.duration.clamp(DURATION.0, DURATION.1),
            delay: self.delay,
            capacity: self.capacity,
            awake: self.awake,
            ..Self::calm(self.nodes)
        };
        match class {
            "crashes" => self.crashes = true,
            "silent-crashes" => (self.crashes, self.silent) = (true, true),
            "blackouts" => self.blackouts = true,
            "wipes" => self.wipes = true,
            "old-disks" => self.old_disks = true,
            "slow-disks" => self.slow_disks = true,
            "pauses" => self.pauses = true,
            "clock-jumps" => self.clock_jumps = true,
            "drops" => self.drops = true,
            "partitions" => self.partitions = true,
            "one-way" => self.one_way = true,
            "non-transitive" => self.non_transitive = true,
            "clogs" => self.clogs = true,
            "replays" => (self.replays, self.drops) = (true, true),
            "failing-reductions" => self.failing_reductions = 20,
            "failing-fetches" => (self.failing_fetches, self.crashes) = (25, true),
            "hangs" => self.hangs = true,
            "damage" => self.damage = true,
            "leaves" => self.leaves = true,
            "ambushes" => self.ambushes = true,
            "late-votes" => self.late_votes = 25,
            "liars" => self.liars = if self.nodes >= 4 { self.nodes / 4 } else { 0 },
            "lossy-links" => self.loss = 10,
            _ => {}
        }
    }
}

/// A history that went on: its seed, its recovery, and the grace of its run.
type Seen = (u64, Recovered, u64);

/// The outcomes of some seeds of one kind.
#[derive(Clone, Debug)]
pub struct Row {
    pub class: &'static str,
    bound: Bound,
    seen: Vec<Seen>,
    /// Seeds that broke a rule, and those that could not go on by their policy.
    pub broken: Vec<u64>,
    stuck: usize,
}

impl Row {
    pub fn new(class: &'static str, bound: Bound) -> Self {
        Self { class, bound, seen: Vec::new(), broken: Vec::new(), stuck: 0 }
    }

    /// The settings for a seed of this kind.
    pub fn settings(&self) -> Settings {
        Settings { class: Some(self.class), ..Settings::default() }
    }

    pub fn add(&mut self, seed: u64, outcome: &Outcome) {
        if outcome.violation.is_some() {
            self.broken.push(seed);
        }
        match outcome.recovered {
            Some(recovered) => self.seen.push((seed, recovered, outcome.options.grace)),
            None => self.stuck += usize::from(outcome.violation.is_none()),
        }
    }

    /// Whether no rule was broken, and all flocks recovered in time.
    pub fn is_good(&self) -> bool {
        self.broken.is_empty() && self.late().next().is_none()
    }

    /// Seeds that took longer than they may.
    fn late(&self) -> impl Iterator<Item = u64> + '_ {
        self.seen.iter().filter(|(_, seen, grace)| !self.bound.holds(seen, *grace)).map(|(seed, ..)| *seed)
    }

    fn spread(&self, f: &mut fmt::Formatter<'_>, of: impl Fn(&Recovered) -> Option<u64>) -> fmt::Result {
        let mut all: Vec<(u64, u64)> =
            self.seen.iter().filter_map(|(seed, seen, _)| Some((of(seen)?, *seed))).collect();
        all.sort_unstable();
        for percent in [50, 90, 99, 100] {
            let at = all.len().saturating_sub(1) * percent / 100;
            write!(f, " {:>6.1}", all.get(at).map_or(0.0, |(us, _)| *us as f64 / (1_000 * MS) as f64))?;
        }
        write!(f, " ({:>5})", all.last().map_or(0, |(_, seed)| *seed))
    }
}

/// The heading above the rows.
pub const HEADING: &str = "\
                                 seconds since the last fault until
                                 the first new COMMIT                | three, and one head                 | all contribute
class              seeds    slow    p50    p90    p99    most (seed) |    p50    p90    p99    most (seed) |    p50    p90    p99    most (seed)";

/// Most flocks recover within this time; the rows count those that do not.
pub const SOON: u64 = 30 * super::SECOND;

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, forked) in [("", false), (" +fork", true)] {
            let part = Self {
                seen: self.seen.iter().filter(|(_, seen, _)| seen.forked == forked).copied().collect(),
                ..self.clone()
            };
            if part.seen.is_empty() {
                continue;
            }
            let slow = |(_, seen, _): &&Seen| seen.first.is_none_or(|us| us > SOON);
            let slow = part.seen.iter().filter(slow).count();
            write!(f, "{:<18} {:>5} {slow:>7}", format!("{}{what}", self.class), part.seen.len())?;
            part.spread(f, |seen| seen.first)?;
            write!(f, " |")?;
            part.spread(f, |seen| seen.together)?;
            write!(f, " |")?;
            part.spread(f, |seen| seen.complete)?;
            writeln!(f)?;
        }
        let late: Vec<u64> = self.late().collect();
        if !late.is_empty() {
            let Bound { kept, forked } = self.bound;
            let (kept, forked) = (kept / super::SECOND, forked / super::SECOND);
            writeln!(f, "{:<18} LATER THAN {kept} s, {forked} s after a grace: seeds {late:?}", "")?;
        }
        if self.stuck > 0 || !self.broken.is_empty() {
            writeln!(f, "{:<18} {} wait for a quorum, broken {:?}", "", self.stuck, self.broken)?;
        }
        Ok(())
    }
}
