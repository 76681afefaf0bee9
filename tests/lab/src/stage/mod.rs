//! Plays a scenario: starts all processes, begins faults when they are due, and ends the processes.

mod agenda;
mod cast;
pub mod control;
mod diary;
mod disks;
mod folder;
mod havoc;
mod keys;
mod limits;
mod metrics;
mod run_file;
mod settlers;
pub mod shim;
mod sizes;
mod slowness;
mod wiring;

pub use diary::{Diary, Entry, What};
pub use run_file::{check as check_run_file, mixed as mixed_text};

use crate::network::Network;
use crate::scenario::{COMMITTING, End, Expect, Fault, STRANGER, Scenario};
use agenda::Agenda;
use anyhow::{Context, bail};
use cast::{Cast, Unasked};
use control::Control;
use disks::Disks;
use serde_json::Value;
use settlers::Settlers;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wiring::Wiring;

/// Interval at which the lab reads events and faults.
const TICK: Duration = Duration::from_millis(20);
/// Interval at which it notes the counters of the machines' devices.
const SAMPLE: Duration = Duration::from_secs(1);
/// Interval at which it prints the round.
const TOLD: Duration = Duration::from_secs(5);
/// The time in which nodes must end when they are asked to.
const CLOSE: Duration = Duration::from_secs(30);

/// The options of playing a scenario.
pub struct Options {
    pub bin_dir: PathBuf,
    /// The folder for everything of this scenario.
    pub folder: PathBuf,
    /// Whether to use loopback and no emulated network.
    pub plain: bool,
    pub quiet: bool,
}

/// The result, beside the files in the folder.
pub struct Played {
    pub diary: Vec<Entry>,
    /// The results of `starling audit` on each node: its name, whether all is in order, and the text.
    pub audits: Vec<(String, bool, String)>,
    pub disks: Disks,
}

/// The state of a scenario that is played.
struct Stage<'a> {
    scenario: &'a Scenario,
    network: Option<Network>,
    wiring: Wiring,
    cast: Cast,
    diary: Diary,
    agenda: Agenda,
    settlers: Settlers,
    control: Option<Control>,
    started: Instant,
    sampled: Instant,
    told: Instant,
    all_in: Option<Instant>,
    /// Newest round that any node has committed.
    round: u64,
    /// Whether a process ended unexpectedly.
    broken: bool,
    ids: Vec<Option<String>>,
}

/// Plays a scenario to its end. Failures of nodes are in the diary; an error is one of the lab itself.
///
/// # Errors
/// If the network, the folder or a process cannot be made.
pub fn play(scenario: &Scenario, options: &Options) -> anyhow::Result<Played> {
    std::fs::create_dir_all(options.folder.join("logs"))
        .with_context(|| format!("cannot make {}", options.folder.display()))?;
    let folder = options.folder.canonicalize()?;
    let mut diary = Diary::new(&folder.join("lab.jsonl"), options.quiet)?;
    diary.note(What::Began, None, None, &scenario.name);
    let network = if options.plain { None } else { Some(start_network(scenario)?) };
    let disks = Disks::make(scenario, network.is_some(), &folder)?;
    let cast = Cast::new(scenario, network.as_ref(), &options.bin_dir, &folder)?;
    let count = scenario.topology.seats.len();
    let mut stage = Stage {
        scenario,
        network,
        wiring: Wiring::new(&scenario.topology),
        cast,
        diary,
        agenda: Agenda::new(scenario),
        settlers: Settlers::new(count),
        control: Control::listen(&folder.join("control")),
        started: Instant::now(),
        sampled: Instant::now(),
        told: Instant::now(),
        all_in: None,
        round: 0,
        broken: false,
        ids: vec![None; count],
    };
    if let Err(why) = stage.story() {
        stage.diary.note(What::Trouble, None, None, &starling_words::of_chain(why.chain()));
    }
    stage.close();
    let audits = stage.audits();
    Ok(Played { diary: stage.diary.entries, audits, disks })
}

fn start_network(scenario: &Scenario) -> anyhow::Result<Network> {
    let ports: Vec<_> = scenario.topology.seats.iter().map(|s| s.port.clone()).collect();
    Network::start(&ports, scenario.topology.links.clone(), scenario.seed)
}

impl Stage<'_> {
    fn story(&mut self) -> anyhow::Result<()> {
        self.cast.start_bootstraps(&mut self.diary)?;
        self.start_everybody()?;
        loop {
            self.look()?;
            if self.broken {
                bail!("a process ended unexpectedly");
            }
            if self.started.elapsed() > self.scenario.limit {
                let limit = self.scenario.limit.as_secs();
                match self.all_in {
                    Some(_) => bail!("it is not over after {limit} s (limit_s)"),
                    None => bail!("after {limit} s (limit_s) no round had all nodes in it: {}", self.newest_phases()),
                }
            }
            if let Some(control) = &self.control {
                control.asked(&self.scenario.topology).into_iter().for_each(|fault| self.agenda.add(fault));
            }
            if let Some(since) = self.all_in {
                self.havoc_due(since.elapsed())?;
                if self.is_over(since.elapsed()) {
                    break;
                }
            }
            std::thread::park_timeout(TICK);
        }
        self.settle()
    }

    fn start_everybody(&mut self) -> anyhow::Result<()> {
        let there: Vec<usize> =
            (0..self.scenario.topology.nodes).filter(|n| !self.scenario.topology.seats[*n].later).collect();
        let first = there[0];
        self.cast.start_node(first, true, &mut self.diary)?;
        let founder = self.cast.actors[first].process.as_mut().context("it was started")?;
        founder.wait(self.scenario.limit, "founded", |_| true)?;
        for node in &there[1..] {
            self.cast.start_node(*node, false, &mut self.diary)?;
        }
        Ok(())
    }

    /// Reads the nodes' new events, and notes the processes that have ended.
    fn look(&mut self) -> anyhow::Result<()> {
        let topology = &self.scenario.topology;
        let there = topology.seats.iter().filter(|s| !s.later && !s.bootstrap).count();
        let apart = &self.scenario.expect.apart;
        let apart =
            (0..topology.nodes).filter(|n| !topology.seats[*n].later && Expect::lists(apart, topology, *n)).count();
        let at_first = there - apart.saturating_sub(1);
        for machine in 0..self.cast.machines() {
            let actor = &mut self.cast.actors[machine];
            let Some(process) = &actor.process else {
                self.settlers.gone(machine);
                continue;
            };
            let fresh = process.events_since(actor.read);
            actor.read += fresh.len();
            for event in &fresh {
                self.heard(machine, event, at_first);
            }
            for (process, unasked) in self.cast.bury(machine, &mut self.diary) {
                let may = self.scenario.expect.may_end(topology, machine, &process)
                    || self.scenario.runs_another_program(&process);
                self.broken |= !(may || unasked == Unasked::Finished && self.scenario.ends_by_itself());
            }
        }
        if let Some(since) = self.all_in.map(|all_in| all_in.elapsed()) {
            let late = self.settlers.committing();
            late.for_each(|machine| self.agenda.entered(machine, COMMITTING, since));
        }
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            self.sample();
        }
        Ok(())
    }

    fn heard(&mut self, machine: usize, event: &Value, at_first: usize) {
        self.settlers.heard(machine, event);
        if event["event"] == "started" {
            self.ids[machine] = event["node"].as_str().map(String::from);
        }
        let phase = event["phase"].as_str().filter(|_| event["event"] == "phase");
        if let (Some(phase), Some(since)) = (phase, self.all_in) {
            self.agenda.entered(machine, phase, since.elapsed());
        }
        if event["event"] != "committed" {
            return;
        }
        let contributors = event["contributors"].as_array().map_or(0, Vec::len);
        let round = event["round"].as_u64().unwrap_or_default();
        if self.all_in.is_none() && contributors >= at_first {
            self.all_in = Some(Instant::now());
            self.agenda.remember(&self.cast);
            self.diary.note(What::AllIn, None, None, &format!("{contributors} nodes, round {round}"));
        }
        if round > self.round {
            self.round = round;
            if self.told.elapsed() >= TOLD {
                self.told = Instant::now();
                let loss = event["loss"].as_f64().unwrap_or(f64::NAN);
                self.diary.say(&format!("round {round}: {contributors} contribute, loss {loss:.3}"));
            }
        }
    }

    /// Notes the bytes through each device in the diary.
    fn sample(&mut self) {
        let sizes = sizes::of(&self.cast);
        if !sizes.is_empty() {
            self.diary.note(What::Sizes, None, None, &Value::Array(sizes).to_string());
        }
        let Some(network) = &self.network else { return };
        let load = |n: &std::sync::atomic::AtomicU64| n.load(std::sync::atomic::Ordering::Relaxed);
        let counts = network.counts.iter().zip(&self.scenario.topology.seats);
        let rows: Vec<Value> = counts
            .map(|(c, seat)| {
                serde_json::json!({
                    "node": seat.name, "sent": load(&c.sent_bytes), "received": load(&c.received_bytes),
                    "lost": load(&c.lost), "overflowed": load(&c.overflowed), "cut": load(&c.cut),
                    "oversize": load(&c.oversize), "filtered": load(&c.filtered), "nowhere": load(&c.nowhere),
                })
            })
            .collect();
        self.diary.note(What::Sample, None, None, &Value::Array(rows).to_string());
    }

    fn havoc_due(&mut self, since: Duration) -> anyhow::Result<()> {
        self.start_those_who_wait()?;
        while let Some(turn) = self.agenda.next_due(since, self.round) {
            self.take_turn(turn, since)?;
        }
        Ok(())
    }

    fn is_over(&mut self, since: Duration) -> bool {
        let faults_over = self.agenda.is_over();
        match self.scenario.end {
            End::After(time) => since >= time && faults_over,
            // The run's own budget ends the scenario; nodes that are down then stay down.
            End::Round(round) => self.round >= round,
        }
    }

    /// Waits until all live nodes contribute to one commit.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.diary.note(What::Healed, None, None, "");
        if matches!(self.scenario.end, End::Round(_)) {
            return Ok(());
        }
        let marks: Vec<usize> = self.cast.actors.iter().map(|a| a.process.as_ref().map_or(0, |p| p.mark())).collect();
        let deadline = Instant::now() + Duration::from_secs_f64(self.scenario.expect.settle_s);
        loop {
            self.look()?;
            if self.broken {
                bail!("a process ended unexpectedly");
            }
            let wanted = self.wanted();
            if self.agreed(&wanted, &marks) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("{}", self.lagging(&wanted, &marks));
            }
            std::thread::park_timeout(TICK);
        }
    }

    /// The nodes that run and must take part at the end.
    fn wanted(&mut self) -> Vec<usize> {
        let nodes = 0..self.scenario.topology.nodes;
        let expect = &self.scenario.expect;
        let lag = |n: &usize| {
            [&expect.may_lag, &expect.apart].iter().any(|list| Expect::lists(list, &self.scenario.topology, *n))
        };
        let topology = &self.scenario.topology;
        let other = |n: &usize| self.scenario.runs_another_program(&topology.seats[*n].name);
        let asked: Vec<usize> = nodes.filter(|n| !lag(n) && !other(n)).collect();
        asked.into_iter().filter(|n| self.cast.runs(*n)).collect()
    }

    /// Whether there is a record since the marks to which all of them contributed and which all of them hold.
    fn agreed(&self, wanted: &[usize], marks: &[usize]) -> bool {
        let ids: Option<Vec<&String>> = wanted.iter().map(|n| self.ids[*n].as_ref()).collect();
        let Some(ids) = ids else { return false };
        let mut common: Option<BTreeSet<String>> = None;
        for n in wanted {
            let Some(process) = &self.cast.actors[*n].process else { return false };
            let whole = |e: &&Value| {
                let has =
                    |id: &&String| e["contributors"].as_array().is_some_and(|c| c.iter().any(|c| c == id.as_str()));
                e["event"] == "committed" && ids.iter().all(has)
            };
            let since = process.events_since(marks[*n].min(process.mark()));
            let records: BTreeSet<String> =
                since.iter().filter(whole).filter_map(|e| e["record"].as_str().map(String::from)).collect();
            common = Some(match common {
                Some(common) => common.intersection(&records).cloned().collect(),
                None => records,
            });
        }
        common.is_some_and(|c| !c.is_empty())
    }

    fn lagging(&self, wanted: &[usize], marks: &[usize]) -> String {
        let mut text = format!("after {} s (settle_s) the live nodes are not together:", self.scenario.expect.settle_s);
        for n in wanted {
            let Some(process) = &self.cast.actors[*n].process else { continue };
            let since = process.events_since(marks[*n].min(process.mark()));
            let last = since.iter().rev().find(|e| e["event"] == "committed");
            let told = last.map_or("no commit".into(), |e| {
                format!("round {} with {} contributors", e["round"], e["contributors"].as_array().map_or(0, Vec::len))
            });
            text += &format!(" {}: {told};", self.cast.name(*n));
        }
        text
    }

    /// The phase that each node reported last.
    fn newest_phases(&self) -> String {
        let told = self.cast.actors.iter().take(self.scenario.topology.nodes).filter_map(|a| a.process.as_ref());
        let phase = |p: &starling_tests::process::Process| {
            let events = p.events_since(0);
            let last = events.iter().rev().find(|e| e["event"] == "phase" || e["event"] == "committed")?;
            let doing = last["phase"].as_str().unwrap_or("committing");
            Some(format!("{} {doing} (round {})", p.name, last["round"]))
        };
        told.filter_map(phase).collect::<Vec<_>>().join(", ")
    }

    /// Undoes the faults that still hold, and asks all processes to end.
    fn close(&mut self) {
        self.sample();
        self.agenda.stop_slowness();
        if !self.scenario.expect.counted.is_empty() {
            self.cast.keep_metrics();
        }
        self.diary.note(What::Closing, None, None, "");
        let by_budget = matches!(self.scenario.end, End::Round(_)) && !self.broken;
        let deadline = Instant::now() + CLOSE;
        let mut asked = false;
        loop {
            let nodes: Vec<usize> = (0..self.scenario.topology.nodes).filter(|n| self.cast.runs(*n)).collect();
            for machine in 0..self.cast.machines() {
                self.cast.bury(machine, &mut self.diary);
            }
            if nodes.is_empty() {
                break;
            }
            if !asked && (!by_budget || Instant::now() + CLOSE / 2 >= deadline) {
                asked = true;
                for node in &nodes {
                    if by_budget {
                        let told = format!("{} went on when its run was at its end", self.cast.name(*node));
                        self.diary.note(What::Trouble, None, None, &told);
                    }
                    self.cast.signal(*node, rustix::process::Signal::CONT);
                    self.cast.terminate(*node);
                }
            }
            if Instant::now() >= deadline {
                for node in nodes {
                    let name = self.cast.name(node).to_owned();
                    self.diary.note(What::Trouble, Some(&name), None, &format!("{name} does not end when asked to"));
                    self.cast.kill(node, &mut self.diary);
                }
                break;
            }
            std::thread::park_timeout(TICK);
        }
        for machine in self.scenario.topology.nodes..self.cast.machines() {
            self.cast.kill(machine, &mut self.diary);
        }
    }

    fn audits(&mut self) -> Vec<(String, bool, String)> {
        let mut audits = Vec::new();
        for node in 0..self.scenario.topology.nodes {
            if self.cast.actors[node].starts == 0 || !self.cast.home(node).join("run.spec").exists() {
                continue;
            }
            let (ok, text) = self.cast.audit(node).unwrap_or_else(|why| (false, starling_words::of_chain(why.chain())));
            audits.push((self.cast.name(node).to_owned(), ok, text));
        }
        audits
    }

    /// Checks that the fault is possible here.
    ///
    /// # Errors
    /// If it is not; the error is the thing that it needs.
    fn can(&self, fault: &Fault) -> Result<(), &'static str> {
        let plan = &fault.plan;
        // Without an emulated network, a stranger would look for nodes on the real one.
        let seats = &self.scenario.topology.seats;
        let stranger = fault.nodes.iter().any(|n| seats[*n].program.as_deref() == Some(STRANGER));
        if (plan.is_of_the_network() || stranger) && self.network.is_none() {
            return Err("the emulated network");
        }
        if plan.needs_shim() && self.cast.shim.is_none() {
            return Err("a scenario whose file has a fault of disks or clocks");
        }
        Ok(())
    }
}

/// The folder of a scenario below the folder for all.
pub fn folder_of(out: &Path, scenario: &Scenario) -> PathBuf {
    out.join(&scenario.name)
}
