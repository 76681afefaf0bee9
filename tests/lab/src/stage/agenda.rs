//! The times at which faults begin, move on and end, and the nodes that the seed draws for them.

use super::cast::Cast;
use super::folder::copy_folder;
use super::slowness::Slowness;
use crate::scenario::{Fault, Plan, Scenario, When};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The next action of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Begin(usize),
    /// The next move of a fault that has several.
    Step(usize),
    End(usize),
}

/// The faults, and their state.
pub struct Agenda {
    pub faults: Vec<Fault>,
    begun: Vec<bool>,
    /// The time at which the phase came that a fault waits for.
    entered: BTreeMap<usize, Duration>,
    /// The times of the fault's next move, and of its end.
    pub steps: BTreeMap<usize, Duration>,
    pub ends: BTreeMap<usize, Duration>,
    /// The nodes that the seed has drawn.
    pub chosen: BTreeMap<usize, Vec<usize>>,
    /// Number of moves that a fault has made.
    pub moves: BTreeMap<usize, usize>,
    pub order: BTreeMap<usize, Vec<(usize, usize)>>,
    pub slow: BTreeMap<usize, Vec<Slowness>>,
    pub random: StdRng,
    copies: Vec<usize>,
    /// Nodes that start again when their process, which was asked to end, has ended.
    pub waiting: BTreeSet<usize>,
}

impl Agenda {
    pub fn new(scenario: &Scenario) -> Self {
        let copies = scenario.faults.iter().filter(|f| f.plan == Plan::Rewind).flat_map(|f| f.nodes.clone()).collect();
        Self {
            faults: scenario.faults.clone(),
            begun: vec![false; scenario.faults.len()],
            entered: BTreeMap::new(),
            steps: BTreeMap::new(),
            ends: BTreeMap::new(),
            chosen: BTreeMap::new(),
            moves: BTreeMap::new(),
            order: BTreeMap::new(),
            slow: BTreeMap::new(),
            random: StdRng::seed_from_u64(scenario.seed ^ 0x5eed),
            copies,
            waiting: BTreeSet::new(),
        }
    }

    /// Notes that a node has reported that it enters a phase.
    pub fn entered(&mut self, node: usize, phase: &str, since: Duration) {
        for (n, fault) in self.faults.iter().enumerate() {
            let When::Phase { phase: wanted, earliest, .. } = fault.when else { continue };
            let about = fault.nodes.is_empty() || fault.nodes.contains(&node);
            if about && phase == wanted && since >= earliest {
                self.entered.entry(n).or_insert(since);
            }
        }
    }

    fn is_due(&self, n: usize, since: Duration, round: u64) -> bool {
        match self.faults[n].when {
            When::After(time) => since >= time,
            When::Round(wanted) => round >= wanted,
            When::Phase { into, .. } => self.entered.get(&n).is_some_and(|at| since >= *at + into),
        }
    }

    /// The first due action, if there is one.
    pub fn next_due(&mut self, since: Duration, round: u64) -> Option<Turn> {
        if let Some(n) = self.ends.iter().find(|(_, at)| since >= **at).map(|(n, _)| *n) {
            self.ends.remove(&n);
            self.steps.remove(&n);
            return Some(Turn::End(n));
        }
        if let Some(n) = self.steps.iter().find(|(_, at)| since >= **at).map(|(n, _)| *n) {
            self.steps.remove(&n);
            return Some(Turn::Step(n));
        }
        let n = (0..self.faults.len()).find(|n| !self.begun[*n] && self.is_due(*n, since, round))?;
        self.begun[n] = true;
        if let Some(lasting) = self.faults[n].lasting {
            self.ends.insert(n, since + lasting);
        }
        Some(Turn::Begin(n))
    }

    /// Adds a fault, which begins at once.
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
        self.begun.push(false);
    }

    /// Whether all faults have begun, and all that end have ended.
    pub fn is_over(&self) -> bool {
        let quiet = self.ends.is_empty() && self.steps.is_empty() && self.waiting.is_empty();
        quiet && self.begun.iter().all(|b| *b)
    }

    pub fn stop_slowness(&mut self) {
        self.slow.clear();
    }

    /// Copies the folders that faults will bring back, while their nodes are stopped.
    pub fn remember(&self, cast: &Cast) {
        for node in &self.copies {
            let copy = cast.disk(cast.name(*node)).join("before");
            cast.signal(*node, Signal::STOP);
            // If the copy fails, the fault fails when it brings the folder back.
            let _ = copy_folder(&cast.home(*node), &copy);
            cast.signal(*node, Signal::CONT);
        }
    }

    pub fn choose(&mut self, n: usize) -> Vec<usize> {
        let fault = &self.faults[n];
        let mut nodes = fault.nodes.clone();
        if fault.pick > 0 {
            // A node that another fault holds in the same way comes last: the end of one fault would undo the other.
            let alike = |m: &usize| *m != n && self.faults[*m].plan.undoes(&fault.plan);
            let held = self.ends.keys().filter(|m| alike(m)).filter_map(|m| self.chosen.get(m));
            let held: BTreeSet<usize> = held.flatten().copied().collect();
            nodes.shuffle(&mut self.random);
            nodes.sort_by_key(|node| held.contains(node));
            nodes.truncate(fault.pick);
            nodes.sort_unstable();
        }
        self.chosen.insert(n, nodes.clone());
        nodes
    }
}

#[cfg(test)]
#[path = "agenda_test.rs"]
mod tests;
