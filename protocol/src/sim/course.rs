//! The event loop: time, nodes, network; one thing happens after another.

use super::crowd::Strangers;
use super::gate::Gate;
use super::invariant;
use super::keys::Keys;
use super::mark::Marks;
use super::network::{Network, kind};
use super::options::Options;
use super::process::{Liar, Node};
use super::random::Random;
use super::reduction::Reductions;
use super::schedule::Planned;
use super::traffic::Traffic;
use super::world::{Due, Event, Observed, Violation, World};
use super::{MS, SECOND};
use crate::engine::io::{Input, Output, Time};
use crate::run::RunSpec;
use crate::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

impl World {
    pub fn new(seed: u64, options: Options, mut spec: RunSpec, schedule: Vec<Planned>) -> Self {
        let mut random = Random::new(seed, "world");
        let keys = Keys::new(seed, options.nodes, options.ed25519);
        let gate = Gate::draw(seed, &options, &keys, &mut spec);
        let strangers = Strangers::of(&options, &keys);
        let network = Network::new(&options, &mut random);
        let nodes = (0..options.nodes).map(|index| Node::new(keys.id(index), &mut random)).collect();
        Self {
            now: 0,
            queue: BTreeMap::new(),
            serial: 0,
            random,
            run: spec.digest(),
            spec,
            verifier: keys.verifier(),
            keys,
            gate,
            nodes,
            strangers,
            network,
            reductions: Reductions::new(Random::new(seed, "sums")),
            schedule,
            invariants: invariant::all(),
            violation: None,
            marks: Marks::default(),
            tainted: BTreeSet::new(),
            calm: false,
            beyond_repair: false,
            recovered: None,
            quiet_until: 0,
            events: 0,
            trace: None,
            story: None,
            decided: BTreeMap::new(),
            traffic: Traffic::default(),
            options,
        }
    }

    /// Schedules the first events: nodes that start, connections, faults.
    pub fn populate(&mut self) {
        if self.options.awake {
            self.wake_all();
        }
        self.let_strangers_come();
        for index in 0..self.nodes.len() {
            let early = index < self.options.first;
            let end = if early { 2 * SECOND } else { self.options.duration.max(SECOND) };
            let at = self.random.between(0, end);
            self.schedule(at, index, 0, Event::Start);
            for other in index + 1..self.nodes.len() {
                let at = self.random.between(0, 500 * MS);
                self.schedule(at, index, 0, Event::Dial { other });
            }
        }
        for index in 0..self.schedule.len() {
            let at = self.schedule.get(index).map_or(0, |planned| planned.at);
            self.schedule(at, 0, 0, Event::Fault { index });
        }
        let first_liar = self.nodes.len() - self.options.liars.min(self.nodes.len());
        for node in first_liar..self.nodes.len() {
            self.nodes[node].liar = Some(Liar::default());
            self.schedule(SECOND, node, 0, Event::Lie);
        }
    }

    /// Schedules an event `after` microseconds from now.
    pub fn schedule(&mut self, after: u64, node: usize, start: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + after, self.serial), Due { node, start, event });
    }

    /// Schedules an event for the program that runs on the node now.
    pub fn schedule_own(&mut self, after: u64, node: usize, event: Event) {
        self.schedule(after, node, self.nodes[node].starts, event);
    }

    /// Runs until `end`, or until `done` says so after an event. Returns whether it did.
    pub fn run_until(&mut self, end: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        while let Some((&(at, serial), _)) = self.queue.first_key_value() {
            if at > end || self.violation.is_some() || self.beyond_repair {
                break;
            }
            let Some(due) = self.queue.remove(&(at, serial)) else { break };
            self.now = at;
            let thaw = self.nodes[due.node].paused_until;
            if thaw > at && !matches!(due.event, Event::Dial { .. } | Event::Fault { .. } | Event::Start) {
                // Events that come while the process is stopped wait in order.
                self.queue.insert((thaw, serial), due);
                continue;
            }
            self.events += 1;
            self.happen(due);
            if self.violation.is_none() && done(self) {
                return true;
            }
        }
        self.now = self.now.max(end);
        false
    }

    fn happen(&mut self, due: Due) {
        let Due { node, start, event } = due;
        match event {
            Event::Start => return self.start(node),
            Event::Dial { other } => return self.dial(node, other),
            Event::Fault { index } => return self.strike(index),
            Event::Sever { other, conn } => return self.sever(node, other, conn),
            Event::Lie => return self.lie(node),
            Event::Strange { which } => return self.strange(which),
            _ => {}
        }
        let of_another = start != 0 && start != self.nodes[node].starts;
        if of_another || !self.nodes[node].alive() {
            return;
        }
        match event {
            Event::Tick => self.tick(node),
            Event::Probe => self.probe(node),
            Event::Deliver { from, conn, bytes } => {
                // A node is told of a connection before it is given what came by it.
                self.up(node, from, conn);
                if self.network.is(from, node, conn) && self.nodes[node].alive() {
                    self.heed_report(node, from, &bytes);
                    self.traffic.arrived((from, node), kind(&bytes), &bytes);
                    let from = self.keys.id(from);
                    self.feed(node, Input::Message { from, bytes: bytes.to_vec() });
                }
            }
            Event::Junk { from, bytes } => self.feed_junk(node, from, &bytes),
            Event::Up { other, conn } => self.up(node, other, conn),
            Event::Down { other, conn } => {
                if self.network.learn_down(node, other, conn) {
                    let peer = self.keys.id(other);
                    self.feed(node, Input::PeerDown { peer });
                    // The machine of a killed process answers a dial, unless it is gone or a router swallows the dial.
                    if !self.nodes[other].alive() && self.random.chance(50) {
                        self.marks.hit("a killed process told by its machine");
                        self.feed(node, Input::PeerGone { peer });
                    }
                }
            }
            Event::Step { job } => self.train_step(node, job),
            Event::AheadStep { job } => self.ahead_step(node, job),
            Event::Retaken { round, base } => self.retaken(node, round, base),
            Event::Moved { key, bytes } => self.feed(node, Input::ReduceProgress { key, bytes, awaits: None }),
            Event::Reduced { key } => self.reduced(node, key),
            Event::Failed { key, suspect } => self.reduce_failed(node, key, suspect),
            Event::Verified => self.verified(node),
            Event::Applied { key, update } => self.applied(node, (key, update)),
            Event::Mixed { round, base, tokens, merge } => self.mixed(node, (round, base), tokens, merge),
            Event::Written { token } => self.written(node, token),
            Event::CaughtUp { job, source, target, afresh } => self.caught_up(node, (job, source), target, afresh),
            Event::Piece { job, each } => self.piece(node, job, each),
            Event::Proved { job, source, seq, record, foreign } => {
                self.proved(node, (job, source), (seq, record), foreign);
            }
            Event::Fetched { job, key, record, source } => self.fetched(node, (job, source), key, record),
            Event::Sprung { sprung } => self.sprung(node, sprung),
            Event::Struck { sprung } => self.struck(node, sprung),
            Event::Exit => {
                self.crash(node, false);
                if self.calm {
                    // The process was told to die before all was well.
                    self.schedule(SECOND, node, 0, Event::Start);
                }
            }
            Event::StrangerGone { which } => self.stranger_gone(node, which),
            Event::NothingCame => self.nothing_came(node),
            Event::Start | Event::Dial { .. } | Event::Fault { .. } | Event::Sever { .. } => {}
            Event::Lie | Event::Strange { .. } => {}
        }
    }

    /// Gives an input to a node's engine and carries out its outputs.
    pub fn feed(&mut self, node: usize, input: Input) {
        let Some(outputs) = self.handle(node, input) else { return };
        for output in outputs {
            self.execute(node, output);
        }
        self.observe(&Observed::Step { node });
    }

    pub(super) fn handle(&mut self, node: usize, input: Input) -> Option<Vec<Output>> {
        let now = Time(self.now + self.nodes[node].offset);
        self.note(|| match &input {
            Input::Tick => None,
            Input::Message { from, bytes } => Some(format!("n{node} <- {} of {from:?}", kind(bytes))),
            other => Some(format!("n{node} <- {other:?}")),
        });
        self.observe(&Observed::Input { node, input: &input });
        self.trace_input(node, &input);
        let process = self.nodes[node].process.as_mut()?;
        let outputs = self.traffic.timed(node, || process.engine.handle(input, now));
        self.arm(node);
        self.trace_outputs(node, &outputs);
        self.observe(&Observed::Outputs { node, outputs: &outputs });
        Some(outputs)
    }

    /// Feeds bytes that are a lie: the node may refuse them, and go on as if they had not come.
    fn feed_junk(&mut self, node: usize, from: usize, bytes: &Rc<Vec<u8>>) {
        if !self.network.believes(node, from) {
            return;
        }
        self.feed(node, Input::Tick);
        let id = self.keys.id(from);
        let Some(outputs) = self.handle(node, Input::Message { from: id, bytes: bytes.to_vec() }) else { return };
        self.observe(&Observed::Junk { node, from, outputs: &outputs });
        for output in outputs {
            self.execute(node, output);
        }
        self.observe(&Observed::Step { node });
    }

    /// Shows an event to all invariants; the first objection ends the history.
    pub fn observe(&mut self, event: &Observed<'_>) {
        let mut invariants = std::mem::take(&mut self.invariants);
        for invariant in &mut invariants {
            if let Err(why) = invariant.observe(event, self) {
                self.violate(invariant.name(), why);
            }
        }
        self.invariants = invariants;
    }

    pub fn violate(&mut self, invariant: &'static str, detail: String) {
        self.note(|| Some(format!("VIOLATION of {invariant}: {detail}")));
        let at = self.now;
        self.violation.get_or_insert(Violation { invariant, detail, at });
    }

    pub fn note(&self, text: impl FnOnce() -> Option<String>) {
        if let Some(story) = self.story
            && let Some(text) = text()
        {
            story(&format!("{:>12} {text}", self.now));
        }
    }

    fn trace_input(&mut self, node: usize, input: &Input) {
        let now = self.now;
        let Some(trace) = &mut self.trace else { return };
        trace.update(&now.to_le_bytes()).update(&node.to_le_bytes());
        let mut text = String::new();
        match input {
            Input::Message { from, bytes } => drop(trace.update(&from.0).update(bytes)),
            other => {
                // Writing to a string cannot fail.
                let _ = write!(text, "{other:?}");
                trace.update(text.as_bytes());
            }
        }
    }

    fn trace_outputs(&mut self, node: usize, outputs: &[Output]) {
        let Some(trace) = &mut self.trace else { return };
        trace.update(&node.to_le_bytes());
        let mut text = String::new();
        for output in outputs {
            match output {
                Output::Send { to, bytes, after } => {
                    let after = after.map_or(0, |token| token.0);
                    trace.update(&to.0).update(&after.to_le_bytes()).update(bytes);
                }
                other => {
                    text.clear();
                    let _ = write!(text, "{other:?}");
                    trace.update(text.as_bytes());
                }
            }
        }
    }

    /// The content of a message, for checks: opened as any node could open it.
    pub fn open(&self, bytes: &[u8]) -> Option<wire::Opened> {
        wire::open(self.verifier.as_ref(), &self.run, bytes).ok()
    }
}
