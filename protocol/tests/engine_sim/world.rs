//! The event loop: time, nodes, network; one thing happens after another.

use crate::check::Check;
use crate::disk::Write;
use crate::faults::Options;
use crate::keys::id;
use crate::net::Net;
use crate::process::Node;
use crate::random::Random;
use crate::reduction::Reductions;
use starling_protocol::Digest;
use starling_protocol::engine::io::{AttemptKey, Input, PersistToken, Time};
use starling_protocol::run::RunSpec;
use std::collections::BTreeMap;

pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000_000;
/// Inner steps of a round in every simulated run.
pub const STEPS: u32 = 4;
/// More outputs than this from one input would be a storm.
const OUTPUTS_MAX: usize = 200;

#[derive(Debug)]
pub enum Event {
    Start,
    Tick,
    Deliver { from: usize, conn: u64, bytes: Vec<u8> },
    Up { other: usize, conn: u64 },
    Down { other: usize, conn: u64 },
    Step { job: u64, round: u64, step: u32, of: u32, base: Digest },
    Candidate { key: AttemptKey, record: Digest, sources: Vec<usize> },
    Moved { key: AttemptKey, bytes: u64 },
    Reduced { key: AttemptKey },
    Failed { key: AttemptKey, suspect: Option<usize> },
    Applied { key: AttemptKey, update: Digest, root: Digest },
    Written { token: PersistToken },
    Fetched { job: u64, source: Option<usize>, target: Digest, afresh: bool },
    Dial { other: usize },
    Verified,
    Exit,
    Fault,
}

/// An event, and which start of the node's program it is for; 0 is for whatever runs.
#[derive(Debug)]
struct Due {
    node: usize,
    start: u64,
    event: Event,
}

pub struct World {
    pub now: u64,
    queue: BTreeMap<(u64, u64), Due>,
    serial: u64,
    pub random: Random,
    pub options: Options,
    pub spec: RunSpec,
    pub nodes: Vec<Node>,
    pub net: Net,
    pub reductions: Reductions,
    pub check: Check,
    pub trace: Digest,
    pub tracing: bool,
    pub faults_until: u64,
}

impl World {
    pub fn new(seed: u64, options: Options, spec: RunSpec) -> Self {
        let mut random = Random::new(seed);
        let mut node = || Node::new(random.between(20, 600) * MS, random.between(0, 1 << 40));
        let nodes = (0..options.nodes).map(|_| node()).collect();
        let mut world = Self {
            now: 0,
            queue: BTreeMap::new(),
            serial: 0,
            faults_until: options.duration,
            check: Check::default(),
            random,
            options,
            spec,
            nodes,
            net: Net::default(),
            reductions: Reductions::default(),
            trace: Digest::default(),
            tracing: std::env::var_os("SIM_TRACE").is_some(),
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for index in 0..self.nodes.len() {
            let at = if index < self.options.first {
                self.random.between(0, 2 * SECOND)
            } else {
                self.random.between(0, self.options.duration.max(SECOND))
            };
            self.schedule(at, index, 0, Event::Start);
            for other in index + 1..self.nodes.len() {
                let at = self.random.between(0, 500 * MS);
                self.schedule(at, index, 0, Event::Dial { other });
            }
        }
        self.schedule(self.options.every, 0, 0, Event::Fault);
    }

    /// Puts an event `after` microseconds from now.
    pub fn schedule(&mut self, after: u64, node: usize, start: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + after, self.serial), Due { node, start, event });
    }

    /// Puts an event for the program that runs on the node now.
    pub fn schedule_own(&mut self, after: u64, node: usize, event: Event) {
        self.schedule(after, node, self.nodes[node].starts, event);
    }

    /// Runs until `end`, or until `done` says so after an event; whether it did.
    pub fn run_until(&mut self, end: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        while let Some((&(at, serial), _)) = self.queue.first_key_value() {
            if at > end {
                break;
            }
            let Some(due) = self.queue.remove(&(at, serial)) else { break };
            self.now = at;
            let thaw = self.nodes[due.node].frozen_until;
            if thaw > at && !matches!(due.event, Event::Dial { .. } | Event::Fault | Event::Start) {
                // What comes in while the process is stopped waits in order.
                self.queue.insert((thaw, serial), due);
                continue;
            }
            self.happen(due);
            if done(self) {
                return true;
            }
        }
        self.now = end;
        false
    }

    fn happen(&mut self, due: Due) {
        let Due { node, start, event } = due;
        match event {
            Event::Start => return self.start(node),
            Event::Dial { other } => return self.dial(node, other),
            Event::Fault => return self.strike(),
            _ => {}
        }
        let other_start = start != 0 && start != self.nodes[node].starts;
        let Some(process) = self.nodes[node].process.as_mut().filter(|_| !other_start) else { return };
        match event {
            Event::Tick => {
                let (_, wake) = (process.finished, process.engine.wake_at());
                let clock = self.now + self.nodes[node].offset;
                assert!(wake.is_none_or(|at| at.0 <= clock + 2 * SECOND), "an engine sleeps for too long");
                self.feed(node, Input::Tick);
                self.schedule_own(100 * MS, node, Event::Tick);
            }
            Event::Deliver { from, conn, bytes } => {
                if self.net.is(from, node, conn) {
                    self.note(|| format!("node {node} hears {} of node {from}", kind(&bytes)));
                    self.feed(node, Input::Message { from: id(from), bytes });
                }
            }
            Event::Up { other, conn } => self.up(node, other, conn),
            Event::Down { other, conn } => {
                if self.net.learn_down(node, other, conn) {
                    self.feed(node, Input::PeerDown { peer: id(other) });
                }
            }
            Event::Step { job, round, step, of, base } => self.step(node, job, round, step, of, base),
            Event::Candidate { key, record, sources } => self.fetch_candidate(node, key, record, &sources),
            Event::Moved { key, bytes } => self.feed(node, Input::ReduceProgress { key, bytes }),
            Event::Reduced { key } => self.reduced(node, key),
            Event::Failed { key, suspect } => {
                let suspect = suspect.map(id);
                self.feed(node, Input::ReduceFailed { key, suspect, reason: "a stream ended".to_owned() });
            }
            Event::Applied { key, update, root } => {
                self.feed(node, Input::Applied { key, update, state_root: root });
            }
            Event::Written { token } => self.written(node, token),
            Event::Fetched { job, source, target, afresh } => self.fetched(node, job, source, target, afresh),
            Event::Verified => {
                let state_root = process.state;
                self.feed(node, Input::StateVerified { state_root });
            }
            Event::Exit => self.kill(node, false),
            Event::Start | Event::Dial { .. } | Event::Fault => {}
        }
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].alive() || self.nodes[node].gone {
            return;
        }
        // The first node founds, as long as there is nothing to join; further founders do not look.
        let nothing = if node == 0 { self.nodes.iter().all(|n| n.disk.chain.is_empty()) } else { true };
        let found = node < self.options.founders && nothing && self.nodes[node].disk.chain.is_empty();
        self.nodes[node].start(node, &self.spec, found);
        let phase = self.random.between(0, 100 * MS);
        self.schedule_own(phase, node, Event::Tick);
        self.note(|| format!("node {node} starts"));
        self.feed(node, Input::Tick);
    }

    fn dial(&mut self, a: usize, b: usize) {
        let again = self.random.between(200, 700) * MS;
        self.schedule(again, a, 0, Event::Dial { other: b });
        let able = |node: &Node| node.alive() && !node.gone;
        if !able(&self.nodes[a]) || !able(&self.nodes[b]) {
            return;
        }
        if let Some(conn) = self.net.connect(a, b, self.now) {
            for (at, other) in [(a, b), (b, a)] {
                let after = self.random.between(0, 50 * MS);
                self.schedule(after, at, 0, Event::Up { other, conn });
            }
        }
    }

    fn up(&mut self, node: usize, other: usize, conn: u64) {
        if self.net.is(node, other, conn) {
            if self.net.learn_up(node, other, conn) {
                self.feed(node, Input::PeerDown { peer: id(other) });
            }
            self.feed(node, Input::PeerUp { peer: id(other) });
        }
    }

    /// Gives an input to a node's engine and does what it says.
    pub fn feed(&mut self, node: usize, input: Input) {
        let now = Time(self.now + self.nodes[node].offset);
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        let told = self.tracing.then(|| format!("{input:?}"));
        let quiet = matches!(input, Input::Tick | Input::Message { .. });
        let outputs = process.engine.handle(input, now);
        assert!(outputs.len() <= OUTPUTS_MAX, "a storm of {} outputs", outputs.len());
        if let Some(told) = told.filter(|_| !quiet) {
            println!("{:>12} n{node} <- {told}", self.now);
        }
        for output in outputs {
            let bytes = format_digest(&self.trace, self.now, node, &output);
            self.trace = bytes;
            self.execute(node, output);
        }
    }

    /// The process is gone at once; what was on its way to the disk may or may not have arrived.
    pub fn kill(&mut self, node: usize, silent: bool) {
        let Some(process) = self.nodes[node].process.take() else { return };
        self.note(|| format!("node {node} dies, silently: {silent}"));
        for (_, write) in process.writes {
            if !self.random.chance(50) {
                break;
            }
            self.durable(node, write);
        }
        self.nodes[node].frozen_until = 0;
        self.net.forget(node);
        for other in self.net.neighbours(node) {
            if let Some(conn) = self.net.close(node, other) {
                let after = if silent { self.random.between(5, 30) * SECOND } else { self.random.between(0, 200 * MS) };
                self.schedule(after, other, 0, Event::Down { other: node, conn });
            }
        }
        let spare = self.random.chance(50);
        self.break_reductions(node, None, spare, silent);
    }

    /// The connection between two nodes breaks.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        let Some(conn) = self.net.close(a, b) else { return };
        for (at, other) in [(a, b), (b, a)] {
            let after = self.random.between(0, 200 * MS);
            self.schedule(after, at, 0, Event::Down { other, conn });
        }
        self.break_reductions(a, Some(b), true, false);
    }

    /// One member leaves one reduction.
    pub fn break_reduction(&mut self, node: usize, left: AttemptKey) {
        for member in self.reductions.leave(&left, node) {
            let after = self.random.between(10, 1_000) * MS;
            self.schedule_own(after, member, Event::Failed { key: left, suspect: None });
        }
    }

    pub fn break_reductions(&mut self, node: usize, other: Option<usize>, spare_done: bool, silent: bool) {
        for (key, hanging) in self.reductions.hit(node, other, spare_done) {
            for member in hanging {
                // A stream that ends is noticed; one that just stops is not.
                if !silent && self.random.chance(80) {
                    let suspect = self.random.chance(60).then_some(node);
                    let after = self.random.between(10, 1_000) * MS;
                    self.schedule_own(after, member, Event::Failed { key, suspect });
                }
            }
        }
    }

    /// Writes on their way reach the disk in order.
    fn written(&mut self, node: usize, token: PersistToken) {
        let Some(process) = self.nodes[node].process.as_mut() else { return };
        let Some(place) = process.writes.iter().position(|(waiting, _)| *waiting == token) else { return };
        let done: Vec<(PersistToken, Write)> = process.writes.drain(..=place).collect();
        let released: Vec<(usize, Vec<u8>)> =
            process.waiting.extract_if(.., |(after, _, _)| *after == token).map(|(_, to, bytes)| (to, bytes)).collect();
        for (_, write) in done {
            self.durable(node, write);
        }
        for (to, bytes) in released {
            self.post(node, to, bytes);
        }
        self.feed(node, Input::Durable { token });
    }

    /// A write has reached the disk; a commit counts from here on.
    fn durable(&mut self, node: usize, write: Write) {
        if let Write::Commit(link) = &write {
            self.check.commit(node, &link.record, self.now);
        }
        self.nodes[node].disk.apply(write);
    }

    pub fn post(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        let delay = self.random.between(MS / 2, self.options.delay.max(MS));
        if let Some((conn, at)) = self.net.post(from, to, self.now + delay) {
            self.schedule(at - self.now, to, 0, Event::Deliver { from, conn, bytes });
        }
    }

    /// No fault happens for a while.
    pub fn postpone_faults(&mut self, micros: u64) {
        let later: Vec<Due> =
            self.queue.extract_if(.., |_, due| matches!(due.event, Event::Fault)).map(|(_, d)| d).collect();
        for due in later {
            self.schedule(micros, due.node, due.start, due.event);
        }
    }

    pub fn note(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>12} -- {}", self.now, text());
        }
    }

    /// Nodes whose program runs and has not ended by itself.
    pub fn running(&self) -> Vec<usize> {
        let up = |n: &Node| n.process.as_ref().is_some_and(|process| !process.finished);
        (0..self.nodes.len()).filter(|node| up(&self.nodes[*node])).collect()
    }
}

fn format_digest(before: &Digest, now: u64, node: usize, output: &starling_protocol::engine::io::Output) -> Digest {
    use starling_protocol::engine::io::Output;
    let body = match output {
        Output::Send { bytes, .. } => bytes.clone(),
        other => format!("{other:?}").into_bytes(),
    };
    Digest::of("sim trace", &[&before.0, &now.to_le_bytes(), &[node as u8], &body])
}

/// The kind of a control message, for traces: its number follows the envelope's header.
fn kind(bytes: &[u8]) -> &'static str {
    let kinds = [
        "",
        "hello",
        "head",
        "join",
        "ready",
        "",
        "",
        "leave",
        "estimate",
        "vote",
        "certificate",
        "witness",
        "fork",
        "start",
    ];
    bytes.get(38).and_then(|tag| kinds.get(usize::from(*tag))).copied().unwrap_or("nothing known")
}
