//! The engine in a simulated world: virtual time, delays, deaths, lost connections, disks that forget.
//!
//! The very code that a node runs is driven here by a fake network, trainer, reduction and disk. One seed is one
//! history. To see the history of a failing seed:
//!
//! ```text
//! SIM_SEED=123 SIM_TRACE=1 cargo test --release -p starling-protocol --test engine_sim one_seed -- --nocapture
//! ```
//!
//! `SIM_SEEDS=10000` makes the batch longer, `SIM_FIRST` moves its start.

mod check;
mod disk;
mod driver;
mod faults;
mod history;
mod keys;
mod net;
mod process;
mod random;
mod reduction;
mod scenarios;
mod world;

use check::Marks;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A debug build is ten times slower.
const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 400 };
const THREADS: u64 = 2;

/// What a batch has to have been through to mean anything.
const EXPECTED: &[&str] = &[
    "a later attempt began",
    "a later attempt committed",
    "a member joined",
    "an attempt failed",
    "caught up",
    "everybody was killed",
    "rolled back",
];

struct Batch {
    failed: Vec<(u64, String)>,
    marks: Marks,
    rounds: u64,
    virtual_time: u64,
}

fn run(seeds: impl Iterator<Item = u64>) -> Batch {
    let mut batch = Batch { failed: Vec::new(), marks: BTreeMap::new(), rounds: 0, virtual_time: 0 };
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| history::live(seed))) {
            Ok(outcome) => {
                for (mark, count) in outcome.marks {
                    *batch.marks.entry(mark).or_default() += count;
                }
                batch.rounds += outcome.rounds;
                batch.virtual_time += outcome.virtual_time;
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                batch.failed.push((seed, text.unwrap_or_default()));
            }
        }
    }
    batch
}

#[test]
fn histories() {
    let (first, count) = (number("SIM_FIRST").unwrap_or(1), number("SIM_SEEDS").unwrap_or(SEEDS));
    std::panic::set_hook(Box::new(|_| {}));
    let batches: Vec<Batch> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || run((first..first + count).filter(|seed| seed % THREADS == thread)));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a batch collects its panics")).collect()
    });
    let _ = std::panic::take_hook();
    let mut marks = Marks::new();
    let mut failed = Vec::new();
    let (mut rounds, mut hours) = (0, 0.0);
    for batch in batches {
        for (mark, times) in batch.marks {
            *marks.entry(mark).or_default() += times;
        }
        failed.extend(batch.failed);
        rounds += batch.rounds;
        hours += batch.virtual_time as f64 / 3.6e9;
    }
    failed.sort();
    println!("{count} seeds, {rounds} rounds, {hours:.1} virtual hours, {marks:?}");
    for (seed, text) in failed.iter().take(40) {
        println!(
            "seed {seed}: {text}\n  SIM_SEED={seed} SIM_TRACE=1 cargo test --release -p starling-protocol --test engine_sim one_seed -- --nocapture"
        );
    }
    assert!(failed.is_empty(), "{} of {count} seeds failed", failed.len());
    if count >= SEEDS {
        for mark in EXPECTED {
            assert!(marks.contains_key(mark), "no history came to: {mark}");
        }
    }
}

#[test]
fn one_seed() {
    let outcome = history::live(number("SIM_SEED").unwrap_or(7));
    println!("{} rounds, {:?}", outcome.rounds, outcome.marks);
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 1000..1000 + SEEDS / 40 {
        assert_eq!(history::live(seed).trace, history::live(seed).trace, "seed {seed}");
    }
}
