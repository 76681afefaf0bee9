//! Figures of simulated flocks: the time until they go on after faults, the cost of agreement and of a round, the
//! effect of churn.

use crate::simulation::{live, on_all_cores};
use anyhow::{Context, ensure};
use starling_protocol::limits::MEMBERS_MAX;
use starling_protocol::sim::churn::{self, Churn};
use starling_protocol::sim::cost::cost;
use starling_protocol::sim::history::Settings;
use starling_protocol::sim::measure;
use starling_protocol::sim::recovery::{Bound, CLASSES, HEADING, Row, SOON};
use starling_protocol::sim::{MS, SECOND};
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// The kind of fault with this name.
pub fn parse_class(name: &str) -> anyhow::Result<&'static str> {
    let known = CLASSES.iter().copied().find(|class| *class == name);
    known.with_context(|| format!("no kind of fault is named {name}: there are {}", CLASSES.join(", ")))
}

/// Most nodes of a flock in measurements of recovery: a larger flock takes as long as dozens of others.
const RECOVERING_MAX: usize = 12;
/// If a transfer stands still and some of its members do not hear that another has left it, they wait as long as for a
/// transfer that may go on: 32 s after a failed attempt (`docs/reliability.md`, "Back after the last fault").
const SOON_IF_STILL: u64 = 60 * SECOND;
/// Kinds of faults after which a transfer stands still like this.
const STILL: &[&str] = &["drops"];
/// A stopped process goes on when its pause is over, at most this long after the last fault began.
const PAUSE_MAX: u64 = 40 * SECOND;
/// Kinds of faults that stop processes.
const PAUSED: &[&str] = &["pauses", "everything"];

/// The time in which flocks have to be back after their last fault. A fork needs the grace of its run, and as long as
/// others from then on.
fn bound(class: &str) -> Bound {
    let kept = match class {
        paused if PAUSED.contains(&paused) => SOON + PAUSE_MAX,
        still if STILL.contains(&still) => SOON_IF_STILL,
        _ => SOON,
    };
    Bound { kept, forked: kept }
}

/// Prints the times in which flocks go on after their last fault. Returns whether no rule was broken and all were in
/// time ([`Row::is_good`]).
pub fn recovery(from: u64, seeds: u64, jobs: usize, class: Option<&str>) -> bool {
    println!("{HEADING}");
    let mut good = true;
    for class in CLASSES.iter().copied().filter(|name| class.is_none_or(|class| class == *name)) {
        let row = Row::new(class, bound(class));
        let settings = Settings { nodes: Some(RECOVERING_MAX), ..row.settings() };
        let row = Mutex::new(row);
        on_all_cores(jobs, seeds, |index| {
            let seed = from + index;
            let mut outcome = live(seed, &settings);
            // With the policy to wait, a quorum may stay lost.
            outcome.recovered = outcome.recovered.filter(|_| !outcome.stuck);
            // A run that has spent its rounds commits no more.
            let spent = outcome.recovered.is_some_and(|seen| seen.first.is_none() && seen.together.is_some());
            if spent {
                return;
            }
            if let Ok(mut row) = row.lock() {
                row.add(seed, &outcome);
            }
        });
        let Ok(row) = row.into_inner() else { return false };
        good &= row.is_good();
        print!("{row}");
    }
    good
}

/// Sizes of the measured flocks.
const SIZES: &[usize] = &[1, 2, 4, 8, 16, 32, 128, 512, 1000];

/// Prints the cost of agreement in flocks of at most `nodes` nodes; returns whether it is within its bounds.
pub fn measure(nodes: Option<usize>) -> bool {
    let mut report = measure::Report::default();
    let mut gathered = true;
    for size in SIZES.iter().filter(|size| nodes.is_none_or(|most| **size <= most)) {
        let began = Instant::now();
        gathered &= measure::measure(*size, &mut report);
        eprintln!("{report}\n{size} nodes took {} s", began.elapsed().as_secs());
    }
    println!("{report}");
    gathered && report.good()
}

/// The meaning of the table of costs.
const COSTS: &str = "\
Means over the nodes of a role and the measured rounds. Bytes are those of signed control messages, without the
transport's. Heads go by time, so a longer round has more of them. The engine's time is that of one thread on this
machine by the wall clock, signatures and the simulator's overflow checks included: measure on an idle machine.";

/// Prints what a round costs a node in flocks of these sizes, and writes it to a file as JSON; returns whether all
/// flocks gathered and went on.
///
/// # Errors
/// If a size is out of range, or the file cannot be written.
pub fn costs(sizes: &[usize], json: Option<&Path>) -> anyhow::Result<bool> {
    let wrong = sizes.iter().find(|size| !(1..=MEMBERS_MAX).contains(*size));
    ensure!(wrong.is_none(), "a flock has 1 to {MEMBERS_MAX} nodes, not {}", wrong.unwrap_or(&0));
    let mut costs = Vec::new();
    for size in sizes {
        match cost(*size, nanoseconds) {
            Some(cost) => {
                println!("{cost}");
                costs.push(cost);
            }
            None => println!("{size} nodes: the flock did not gather, or did not go on\n"),
        }
    }
    println!("{COSTS}");
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&costs)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(costs.len() == sizes.len())
}

/// Nanoseconds since the first call.
fn nanoseconds() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Prints the times without a commit in flocks whose nodes come and go; returns whether no rule was broken.
pub fn churn(from: u64, seeds: u64, nodes: usize, grace: u64) -> bool {
    let churn = Churn { nodes, least: 3.min(nodes), every: 1_250 * MS, lasting: 600 * SECOND, grace: grace * SECOND };
    let mut outcomes: Vec<(u64, churn::Outcome)> =
        (from..from.saturating_add(seeds)).map(|s| (s, churn.play(s))).collect();
    for (seed, outcome) in &outcomes {
        if let Some(violation) = &outcome.violation {
            println!("seed {seed}: {violation}");
        }
    }
    let good = outcomes.iter().all(|(_, outcome)| outcome.violation.is_none());
    outcomes.sort_by_key(|(_, outcome)| outcome.gap);
    println!("a kill or a start each 1.25 s, 3 to {nodes} nodes, ten minutes of each seed, forks after {grace} s");
    for (name, at) in [("median", seeds / 2), ("nine of ten", seeds * 9 / 10), ("worst", seeds.saturating_sub(1))] {
        if let Some((seed, o)) = outcomes.get(at as usize) {
            let seconds = |us: u64| us as f64 / SECOND as f64;
            println!(
                "{name:12} {:6.1} s without a commit from {:.1} s on (seed {seed}), {} commits, {} forks",
                seconds(o.gap),
                seconds(o.at),
                o.commits,
                o.forks
            );
        }
    }
    good
}
