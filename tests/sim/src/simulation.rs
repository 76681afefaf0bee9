//! Many seeds of the simulator: on all cores, with a table at the end.

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use starling_protocol::Digest;
use starling_protocol::mutation::{self, Mutation};
use starling_protocol::sim::history::{self, Outcome, Settings, Violation};
use starling_protocol::sim::mark::Marks;
use starling_protocol::sim::minimise::minimise;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A seed whose history breaks with the canary's bug.
const CANARY: (u64, Mutation) = (5, Mutation::ApplyTwice);
/// Number of failures that are printed in full.
const TOLD: usize = 5;
/// Number of seeds that are listed for each broken invariant.
const SHOWN: usize = 12;
/// A batch of at least this many seeds must hit every mark.
const MARKS_FROM: u64 = 1_000;
/// A mark that about one of 1,000 histories hits, and the number of seeds from which on a batch must hit it.
const RARE: (&str, u64) = ("old disk known by certificates only", 10_000);

/// Seeds to run.
#[derive(Clone, Debug)]
pub struct Batch {
    pub seeds: u64,
    pub from: u64,
    /// Number of threads; 0: one for each core.
    pub jobs: usize,
    pub twice_every: u64,
    /// Most seeds for each injected bug.
    pub mutations: Option<u64>,
    /// The injected bugs to run; all if it is empty.
    pub only: Vec<Mutation>,
}

/// The results of a batch. The field names are the keys of `--json`.
#[derive(Debug, Default, Serialize)]
pub struct Table {
    pub seeds: u64,
    pub violations: u64,
    pub virtual_hours: f64,
    pub commits: u64,
    pub skips: u64,
    pub forks: u64,
    pub merges: u64,
    pub marks: BTreeMap<&'static str, u64>,
    pub injected: Vec<Injected>,
    #[serde(skip)]
    stuck: u64,
    #[serde(skip)]
    events: u64,
    #[serde(skip)]
    failed: Vec<(u64, Outcome)>,
    #[serde(skip)]
    hits: Marks,
    /// Seeds by the invariant that they broke.
    #[serde(skip)]
    broken: BTreeMap<&'static str, Vec<u64>>,
}

/// An injected bug, and the number of seeds until it was caught; none if it was not.
#[derive(Debug, Serialize)]
pub struct Injected {
    pub name: String,
    pub caught_in_seeds: Option<u64>,
    #[serde(skip)]
    pub by: String,
}

/// Silences panics: a panic of a history is a violation, and is reported with the others.
pub fn hush() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Runs a seed; a panic counts as a violation.
pub fn live(seed: u64, settings: &Settings) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| history::live(seed, settings))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let detail = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        let (options, schedule) = history::plan(seed, settings);
        Outcome {
            options,
            faults: schedule.len(),
            violation: Some(Violation { invariant: "S20 no panic", detail, at: 0 }),
            marks: Marks::default(),
            commits: 0,
            skips: 0,
            forks: 0,
            merges: 0,
            virtual_time: 0,
            events: 0,
            trace: Digest::default(),
            stuck: false,
            recovered: None,
        }
    })
}

/// Prints a line for each of these seeds, in their order: the seed, and the digest of all inputs and outputs of the
/// engines. Returns whether no history broke an invariant.
pub fn traces(from: u64, seeds: u64, jobs: usize) -> bool {
    let lines = Mutex::new(BTreeMap::new());
    let settings = Settings { trace: true, ..Settings::default() };
    on_all_cores(jobs, seeds, |index| {
        let outcome = live(from + index, &settings);
        let broken = outcome.violation.as_ref().map_or("", |violation| violation.invariant);
        if let Ok(mut lines) = lines.lock() {
            lines.insert(from + index, (outcome.trace, broken));
        }
    });
    let lines = lines.into_inner().unwrap_or_default();
    for (seed, (trace, broken)) in &lines {
        println!("{seed} {trace} {broken}");
    }
    lines.values().all(|(_, broken)| broken.is_empty())
}

/// Runs a seed twice. One more invariant is that both runs are the same.
fn live_twice(seed: u64, settings: &Settings) -> Outcome {
    let settings = Settings { trace: true, ..settings.clone() };
    let (mut first, second) = (live(seed, &settings), live(seed, &settings));
    if first.trace != second.trace && first.violation.is_none() {
        let detail = format!("two runs differ: {:?} and {:?}", first.trace, second.trace);
        first.violation = Some(Violation { invariant: "S21 determinism", detail, at: first.virtual_time });
    }
    first
}

impl Batch {
    /// Runs the batch and prints the results; returns whether no check failed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn run(&self, json: Option<&Path>) -> anyhow::Result<bool> {
        let mut table = self.histories();
        if let Some(most) = self.mutations.filter(|most| *most > 0) {
            table.injected = self.injected(most);
        }
        table.marks = table.hits.all().collect();
        table.print();
        table.tell_failures();
        if let Some(path) = json {
            let text = serde_json::to_string_pretty(&table)?;
            std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(table.good())
    }

    fn histories(&self) -> Table {
        let bar = ProgressBar::new(self.seeds);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}") {
            bar.set_style(style);
        }
        let table = Mutex::new(Table::default());
        on_all_cores(self.jobs, self.seeds, |index| {
            let settings = Settings::default();
            let seed = self.from + index;
            let twice = self.twice_every > 0 && index.is_multiple_of(self.twice_every);
            let outcome = if twice { live_twice(seed, &settings) } else { live(seed, &settings) };
            if let Ok(mut table) = table.lock() {
                table.add(seed, outcome);
                bar.set_message(format!("{} violations", table.violations));
            }
            bar.inc(1);
        });
        bar.finish_and_clear();
        table.into_inner().unwrap_or_default()
    }

    /// Runs every bug until a seed catches it.
    fn injected(&self, most: u64) -> Vec<Injected> {
        // Histories do not show a bug that a test catches, so such a bug runs only if the user names it.
        let ordinary = || Mutation::ALL.iter().copied().filter(|mutation| mutation.by_test().is_none()).collect();
        let all: Vec<Mutation> = if self.only.is_empty() { ordinary() } else { self.only.clone() };
        let bar = ProgressBar::new(all.len() as u64);
        let found = Mutex::new(BTreeMap::new());
        on_all_cores(self.jobs, all.len() as u64, |place| {
            let Some(mutation) = all.get(place as usize).copied() else { return };
            let caught = (0..most).find_map(|index| Some((index + 1, catches(self.from + index, mutation)?)));
            let line = format!("{:24} {caught:?}", mutation.name());
            // A hidden bar prints nothing.
            if bar.is_hidden() {
                eprintln!("{line}")
            } else {
                bar.println(line)
            }
            if let Ok(mut found) = found.lock() {
                found.insert(mutation, caught);
            }
            bar.inc(1);
        });
        bar.finish_and_clear();
        let found = found.into_inner().unwrap_or_default();
        let row = |(mutation, caught): (Mutation, Option<(u64, &'static str)>)| Injected {
            name: mutation.name(),
            caught_in_seeds: caught.map(|(seeds, _)| seeds),
            by: caught.map_or("nothing", |(_, by)| by).to_owned(),
        };
        found.into_iter().map(row).collect()
    }
}

/// Calls `each` for every number below `count`, on `jobs` threads; 0: one for each core.
pub fn on_all_cores(jobs: usize, count: u64, each: impl Fn(u64) + Sync) {
    let jobs = if jobs > 0 { jobs } else { thread::available_parallelism().map_or(1, usize::from) };
    let next = AtomicU64::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            each(index);
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
}

/// The invariant that catches a bug in a seed, if one does. A bug that only shows in repetition needs double runs.
fn catches(seed: u64, mutation: Mutation) -> Option<&'static str> {
    let twice = mutation == Mutation::Disturbed;
    let run = || if twice { live_twice(seed, &Settings::default()) } else { live(seed, &Settings::default()) };
    mutation::with(Some(mutation), run).violation.map(|violation| violation.invariant)
}

impl Table {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.virtual_hours += outcome.virtual_time as f64 / 3.6e9;
        self.commits += outcome.commits;
        self.skips += outcome.skips;
        self.forks += outcome.forks;
        self.merges += outcome.merges;
        self.stuck += u64::from(outcome.stuck);
        self.events += outcome.events;
        self.hits.add(&outcome.marks);
        if let Some(violation) = &outcome.violation {
            self.violations += 1;
            self.broken.entry(violation.invariant).or_default().push(seed);
            if self.failed.len() < TOLD {
                self.failed.push((seed, outcome));
            }
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let least = |mark| if mark == RARE.0 { RARE.1 } else { MARKS_FROM };
        let dead = self.hits.all().filter(|(mark, hits)| *hits == 0 && self.seeds >= least(*mark));
        dead.map(|(mark, _)| mark).collect()
    }

    fn good(&self) -> bool {
        let caught = self.injected.iter().filter(|injected| injected.caught_in_seeds.is_some()).count();
        self.violations == 0 && self.missing().is_empty() && 20 * caught >= 19 * self.injected.len()
    }

    fn print(&self) {
        println!("seeds           {:>12}", self.seeds);
        println!("violations      {:>12}", self.violations);
        println!("virtual hours   {:>12.1}", self.virtual_hours);
        println!("events          {:>12}", self.events);
        println!("commits         {:>12}", self.commits);
        println!("skips           {:>12}", self.skips);
        println!("forks           {:>12}", self.forks);
        println!("merges          {:>12}", self.merges);
        println!("left waiting    {:>12}   (too many disks lost, and the policy is to wait)", self.stuck);
        for (mark, hits) in &self.marks {
            println!("  {mark:<44} {hits:>10}");
        }
        for injected in &self.injected {
            let caught = injected.caught_in_seeds.map_or("NOT CAUGHT".to_owned(), |seeds| format!("{seeds} seeds"));
            println!("  bug {:<28} {caught:>12} {}", injected.name, injected.by);
        }
        for (invariant, seeds) in &self.broken {
            println!("VIOLATED {invariant}: {} seeds, {:?}", seeds.len(), &seeds[..seeds.len().min(SHOWN)]);
        }
        for mark in self.missing() {
            println!("never happened: {mark}");
        }
    }

    fn tell_failures(&self) {
        let settings = Settings::default();
        for (seed, outcome) in &self.failed {
            tell(*seed, outcome, "");
            let minimal = minimise(*seed, outcome, &settings, &|settings| live(*seed, settings));
            println!("smallest: {}", minimal.command(*seed));
            let schedule = history::plan(*seed, &settings).1;
            for index in &minimal.keep {
                if let Some(planned) = schedule.get(*index) {
                    println!("  {index:>3} {planned}");
                }
            }
        }
    }
}

/// Prints the outcome of a seed that was run with these flags beside the seed.
fn tell(seed: u64, outcome: &Outcome, flags: &str) {
    println!("seed {seed}: {}", outcome.options);
    match &outcome.violation {
        Some(Violation { invariant, detail, at }) => {
            println!("VIOLATION at {} ms of {invariant}: {detail}", at / 1_000);
            println!("reproduce: starling-sim --seed {seed}{flags} --verbose");
        }
        None => println!(
            "no violation: {} commits, {} skips, {} forks in {} virtual seconds, {} events, {} faults{}",
            outcome.commits,
            outcome.skips,
            outcome.forks,
            outcome.virtual_time / 1_000_000,
            outcome.events,
            outcome.faults,
            if outcome.stuck { ", left waiting for a quorum" } else { "" },
        ),
    }
}

/// Runs one seed, and prints its outcome.
pub fn one(seed: u64, settings: Settings, mutation: Option<Mutation>, verbose: bool) -> bool {
    let story: Option<fn(&str)> = verbose.then_some(|line: &str| println!("{line}"));
    let flags = flags(&settings, mutation);
    let outcome = mutation::with(mutation, || live(seed, &Settings { story, ..settings }));
    tell(seed, &outcome, &flags);
    outcome.violation.is_none()
}

/// The flags of one seed with these settings and this bug.
fn flags(settings: &Settings, mutation: Option<Mutation>) -> String {
    let kept = |keep: &BTreeSet<usize>| {
        let places: Vec<String> = keep.iter().map(usize::to_string).collect();
        if places.is_empty() { "none".to_owned() } else { places.join(",") }
    };
    let values = [
        ("large", settings.large.map(|nodes| nodes.to_string())),
        ("nodes", settings.nodes.map(|nodes| nodes.to_string())),
        ("faults", settings.keep.as_ref().map(kept)),
        ("class", settings.class.map(str::to_owned)),
        ("mutation", mutation.map(|mutation| mutation.name())),
    ];
    values.into_iter().filter_map(|(key, value)| Some(format!(" --{key} {}", value?))).collect()
}

/// Whether a history that is broken on purpose is reported as broken.
pub fn canary() -> bool {
    let (seed, mutation) = CANARY;
    let caught = catches(seed, mutation);
    match caught {
        Some(by) => println!("the canary (seed {seed}, bug {}) is red, by {by}", mutation.name()),
        None => println!("the canary (seed {seed}, bug {}) is GREEN: nothing would be noticed", mutation.name()),
    }
    caught.is_some()
}

/// Reads `3,7` or `none`.
///
/// # Errors
/// If it is neither.
pub fn parse_faults(text: &str) -> anyhow::Result<BTreeSet<usize>> {
    if text == "none" {
        return Ok(BTreeSet::new());
    }
    text.split(',').map(|part| part.parse().with_context(|| format!("{part:?} is no place in a schedule"))).collect()
}

/// Reads names of injected bugs, as `half-quorum,count-twice`.
///
/// # Errors
/// If a name is unknown.
pub fn parse_mutations(text: &str) -> anyhow::Result<Vec<Mutation>> {
    text.split(',').map(parse_mutation).collect()
}

fn parse_mutation(text: &str) -> anyhow::Result<Mutation> {
    let found = Mutation::ALL.iter().find(|mutation| mutation.name() == text).copied();
    let Some(mutation) = found else {
        let names: Vec<String> = Mutation::ALL.iter().map(|mutation| mutation.name()).collect();
        bail!("no bug is called {text:?}; there are {}", names.join(", "));
    };
    Ok(mutation)
}
