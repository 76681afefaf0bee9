//! The faults of a history, with their times: an explicit list, so that a failure can be reduced to the few that it
//! needs.

use super::options::Options;
use super::random::Random;
use super::{MS, SECOND};
use std::fmt;

/// A fault. Nodes are named by any number and found modulo the count, so that a list keeps its meaning when there are
/// fewer nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The process dies and comes back after a while.
    Crash {
        node: u64,
        silent: bool,
        back: u64,
    },
    /// All processes die within `spread`.
    Blackout {
        spread: u64,
        back: u64,
    },
    /// The process dies and comes back with an empty disk.
    Wipe {
        node: u64,
        back: u64,
    },
    /// The process dies and comes back with an earlier state of its disk: a copy, which its program notices or not.
    OldDisk {
        node: u64,
        age: u64,
        back: u64,
        noticed: bool,
    },
    SlowDisk {
        node: u64,
        lasts: u64,
    },
    Pause {
        node: u64,
        lasts: u64,
    },
    /// The driver's clock goes on from a later time.
    ClockJump {
        node: u64,
        by: u64,
    },
    /// The process dies and comes back with a clock that is behind, perhaps with an empty disk.
    ClockBack {
        node: u64,
        starts: u64,
        wipes: bool,
        back: u64,
    },
    Drop {
        a: u64,
        b: u64,
    },
    /// Two groups cannot reach each other; bit i is the side of node i.
    Partition {
        sides: u64,
        lasts: u64,
    },
    /// Messages from `a` to `b` are lost.
    OneWay {
        a: u64,
        b: u64,
        lasts: u64,
    },
    /// Two nodes cannot reach each other, but both reach all others.
    NonTransitive {
        a: u64,
        b: u64,
        lasts: u64,
    },
    /// Messages from `a` to `b` wait.
    Clog {
        a: u64,
        b: u64,
        lasts: u64,
    },
    /// The trainer hangs until the process is started again.
    Hang {
        node: u64,
    },
    /// The state in memory is damaged.
    Damage {
        node: u64,
    },
    Leave {
        node: u64,
        back: u64,
    },
    /// One node is told that another, or its ticket, is revoked.
    Revoke {
        node: u64,
        whom: u64,
        ticket: bool,
    },
    /// One node's operator, or those of all, amend the run.
    Amend {
        node: u64,
        choice: u64,
        late: u64,
    },
    /// The node alone has the result of the next reduction, and the others come to decide on another one.
    Contest {
        node: u64,
        contest: Contest,
    },
    /// The process dies as soon as it has said or done this, and comes back; if it forgets, with the disk from just
    /// before. A held-up node lives on, but its messages are held back for as long.
    Ambush {
        node: u64,
        moment: Moment,
        forgets: bool,
        back: u64,
    },
}

/// A reduction that ends for one node alone, and its consequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contest {
    /// The time for which that node is gone once it has named its result, while the others make another.
    pub back: u64,
    /// The time for which no node hears the vote or decision of the others.
    pub held: u64,
}

/// The moment of an ambush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// Its estimate of a record is on its disk.
    Estimate,
    /// Its vote on a record is on its disk.
    Vote,
    /// Its vote is on its disk, and the node is held up.
    HeldUp,
    /// The node is the first to have decided.
    Decision,
}

/// A fault at its time.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub at: u64,
    pub fault: Fault,
}

/// The faults of a seed.
pub fn draw(seed: u64, options: &Options) -> Vec<Planned> {
    let mut random = Random::new(seed, "schedule");
    let kinds = kinds(options);
    let mut planned = Vec::new();
    let mut at = options.settled + random.between(options.every / 2, options.every * 2);
    while at < options.duration && !kinds.is_empty() {
        let choice = random.pick(&kinds).unwrap_or(Kind::Drop);
        planned.push(Planned { at, fault: one(choice, &mut random, options) });
        at += random.between(options.every / 2, options.every * 2);
    }
    planned
}

#[derive(Clone, Copy)]
enum Kind {
    Crash,
    Blackout,
    Wipe,
    OldDisk,
    SlowDisk,
    Pause,
    ClockJump,
    ClockBack,
    Drop,
    Partition,
    OneWay,
    NonTransitive,
    Clog,
    Hang,
    Damage,
    Leave,
    Revoke,
    Amend,
    Ambush,
    Contest,
}

/// The kinds that are on; kinds that are more frequent in reality are listed more often.
fn kinds(options: &Options) -> Vec<Kind> {
    let all = [
        (options.crashes, 4, Kind::Crash),
        (options.blackouts, 1, Kind::Blackout),
        (options.wipes, 1, Kind::Wipe),
        (options.old_disks, 3, Kind::OldDisk),
        (options.slow_disks, 2, Kind::SlowDisk),
        (options.pauses, 2, Kind::Pause),
        (options.clock_jumps, 1, Kind::ClockJump),
        (options.clocks_behind, 3, Kind::ClockBack),
        (options.drops, 4, Kind::Drop),
        (options.partitions, 2, Kind::Partition),
        (options.one_way, 1, Kind::OneWay),
        (options.non_transitive, 1, Kind::NonTransitive),
        (options.clogs, 2, Kind::Clog),
        (options.hangs, 1, Kind::Hang),
        (options.damage, 1, Kind::Damage),
        (options.leaves, 1, Kind::Leave),
        (options.revocations, 1, Kind::Revoke),
        (options.amendments, 2, Kind::Amend),
        (options.ambushes, 6, Kind::Ambush),
        (options.ambushes, 8, Kind::Contest),
    ];
    all.into_iter().filter(|(on, ..)| *on).flat_map(|(_, times, kind)| std::iter::repeat_n(kind, times)).collect()
}

fn one(kind: Kind, random: &mut Random, options: &Options) -> Fault {
    let (node, a, b) = (random.draw() >> 1, random.draw() >> 1, random.draw() >> 1);
    let back = if random.chance(70) { random.between(200 * MS, 5 * SECOND) } else { random.between(5, 40) * SECOND };
    let lasts = if random.chance(60) { random.between(100 * MS, 8 * SECOND) } else { random.between(8, 40) * SECOND };
    match kind {
        Kind::Crash => Fault::Crash { node, silent: options.silent && random.chance(40), back },
        Kind::Blackout => Fault::Blackout { spread: random.between(0, 2 * SECOND), back },
        Kind::Wipe => Fault::Wipe { node, back },
        // The node is soon back with a disk from just before: the round in which it has spoken still goes on.
        Kind::OldDisk => {
            let (age, back) = (random.between(100, 6_000) * MS, random.between(200, 1_500) * MS);
            Fault::OldDisk { node, age, back, noticed: a.is_multiple_of(3) }
        }
        Kind::SlowDisk => Fault::SlowDisk { node, lasts },
        Kind::Pause => Fault::Pause { node, lasts },
        Kind::ClockJump => Fault::ClockJump { node, by: random.between(1, 3_600) * SECOND },
        Kind::ClockBack => Fault::ClockBack { node, starts: random.between(1, 6), wipes: random.chance(40), back },
        Kind::Drop => Fault::Drop { a, b },
        Kind::Partition => Fault::Partition { sides: random.draw(), lasts },
        Kind::OneWay => Fault::OneWay { a, b, lasts },
        Kind::NonTransitive => Fault::NonTransitive { a, b, lasts },
        Kind::Clog => Fault::Clog { a, b, lasts: lasts / 4 },
        Kind::Hang => Fault::Hang { node },
        Kind::Damage => Fault::Damage { node },
        Kind::Leave => Fault::Leave { node, back },
        Kind::Revoke => Fault::Revoke { node, whom: a, ticket: random.chance(60) },
        Kind::Amend => Fault::Amend { node, choice: a % 24, late: (b % 6).saturating_sub(3) },
        Kind::Contest => {
            let contest = Contest { back: random.between(300, 3_000) * MS, held: random.between(500, 4_000) * MS };
            Fault::Contest { node, contest }
        }
        Kind::Ambush => {
            let moments = [Moment::Estimate, Moment::Vote, Moment::HeldUp, Moment::Decision, Moment::Decision];
            let moment = random.pick(&moments).unwrap_or(Moment::Decision);
            let forgets = matches!(moment, Moment::Estimate | Moment::Vote) && random.chance(60);
            Fault::Ambush { node, moment, forgets, back: random.between(50, 3_000) * MS }
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:>8} ms: {:?}", self.at / MS, self.fault)
    }
}
