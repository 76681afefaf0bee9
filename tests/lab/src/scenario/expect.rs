//! What must hold, beside what must always hold.

use super::Topology;
use super::place::Place;
use serde::Deserialize;

/// All checks' names, but for events that must come: `WHO says EVENT`.
pub(super) const NAMES: [&str; 15] = [
    "together",
    "faults",
    "parity",
    "one flock",
    "durability",
    "samples",
    "liveness",
    "rounds",
    "exits",
    "no panic",
    "absent",
    "departures",
    "attempts",
    "validation",
    "formed",
];

/// `[expect]`; what is left out is not asked for, but for what no scenario may break.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Longest time without a commit anywhere, from the moment that everybody is in.
    pub max_gap_s: f64,
    /// After the last fault is undone, all live nodes contribute to one commit within this time.
    pub settle_s: f64,
    /// Rounds that are committed at least.
    pub rounds: u64,
    /// Largest share of samples that may be given up: a record lists so many leftovers of leases, and no more.
    pub given_up: f64,
    /// Lineages may part (and must have met again at the end).
    pub forks: bool,
    /// Nodes that may end by themselves, by name: another exit status than 0 is no failure there.
    pub may_exit: Vec<String>,
    /// Nodes that must end by themselves, with which status and what words.
    pub exits: Vec<NeededExit>,
    /// Nodes that are not asked to be among the contributors at the end.
    pub may_lag: Vec<String>,
    /// Nodes that no way joins, so that they cannot be in one commit together: each is in some, and all others are together.
    pub apart: Vec<String>,
    /// At most so many departures that somebody else decided on.
    pub departures_max: Option<u64>,
    /// Largest share of attempts that fail.
    pub failed_attempts: Option<f64>,
    /// Events that must come, and some that must not.
    pub events: Vec<Needed>,
    pub absent: Vec<String>,
    /// The same of some nodes only, or of events that hold some text.
    pub never: Vec<Never>,
    /// At most so much memory in use by any node, in MiB, and so many descriptors, as seen once a second.
    pub rss_max_mib: Option<u64>,
    pub files_max: Option<u64>,
    /// What a fault may cost each node above its own.
    pub costs: Vec<Cost>,
    /// Counters that must have come to something at the end.
    pub counted: Vec<Counted>,
    /// Events that may come here, though they are forbidden elsewhere (`own_fault`, `split_brain`).
    pub may: Vec<String>,
    /// The last validation is below this, in nats a byte.
    pub nats_per_byte: Option<f64>,
    /// All nodes of the beginning contribute to one commit within so many seconds after the first of them starts.
    pub formed_s: Option<f64>,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            max_gap_s: 60.0,
            settle_s: 60.0,
            rounds: 1,
            given_up: 0.0,
            forks: false,
            may_exit: Vec::new(),
            exits: Vec::new(),
            may_lag: Vec::new(),
            apart: Vec::new(),
            departures_max: None,
            failed_attempts: None,
            events: Vec::new(),
            absent: Vec::new(),
            never: Vec::new(),
            rss_max_mib: None,
            files_max: None,
            costs: Vec::new(),
            counted: Vec::new(),
            may: Vec::new(),
            nats_per_byte: None,
            formed_s: None,
        }
    }
}

/// An event that must come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needed {
    pub event: String,
    /// A node, group or site; left out: anybody.
    pub node: Option<String>,
    /// The node that its `peer` is.
    pub peer: Option<String>,
    /// Text that the event's line holds.
    pub with: Option<String>,
    /// Within so many seconds after the fault of this number (from 1) begins; left out: at any time.
    pub after_fault: Option<usize>,
    pub within_s: Option<f64>,
}

/// An event that must not come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Never {
    pub event: String,
    /// A node, group or site; left out: anybody.
    pub node: Option<String>,
    /// Text that the event's line holds; left out: any.
    pub with: Option<String>,
    /// From when the fault of this number (from 1) begins; left out: at any time.
    pub after_fault: Option<usize>,
}

/// An end that must come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeededExit {
    pub node: String,
    pub code: i32,
    /// Text that it says on the terminal.
    pub with: Option<String>,
    /// Within so many seconds after the fault of this number (from 1) begins; left out: at any time.
    pub after_fault: Option<usize>,
    pub within_s: Option<f64>,
}

/// What a fault may cost each node above what its own rounds took before, until the next fault begins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The number of the fault, from 1.
    pub of_fault: usize,
    /// In hundredths of one core, and in MiB.
    pub cpu_percent: f64,
    pub mib: f64,
}

/// What a node's metrics must say at the end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    pub metric: String,
    /// Text of its labels; left out: all of them are added up.
    pub with: Option<String>,
    /// A node, group or site, each of which; left out: each node.
    pub node: Option<String>,
    pub least: f64,
}

impl Expect {
    pub(super) fn check(&self, place: Place<'_>, topology: &Topology) -> anyhow::Result<()> {
        place.seconds("expect.max_gap_s", self.max_gap_s)?;
        place.seconds("expect.settle_s", self.settle_s)?;
        if !(0.0..=1.0).contains(&self.given_up) {
            return place.refuse(&format!("expect.given_up is {}, allowed is 0 to 1", self.given_up));
        }
        let named = self.may_exit.iter().chain(&self.may_lag).chain(&self.apart);
        let named = named.chain(self.counted.iter().filter_map(|c| c.node.as_ref()));
        let named = named.chain(self.events.iter().filter_map(|e| e.peer.as_ref()));
        let named = named.chain(self.never.iter().filter_map(|e| e.node.as_ref()));
        for name in named.chain(self.events.iter().filter_map(|e| e.node.as_ref())) {
            topology.named(place, name)?;
        }
        for counted in self.counted.iter().filter_map(|c| c.node.as_ref()) {
            if topology.named(place, counted)?.iter().any(|n| topology.seats[*n].bootstrap) {
                return place.refuse("expect.counted: bootstrap peers are not asked what they have counted");
            }
        }
        for exit in &self.exits {
            // The second process of a cloned node is named after it.
            let name = exit.node.strip_suffix("-double").unwrap_or(&exit.node);
            let found = topology.named(place, name)?;
            if found.len() > 1 || topology.seats[found[0]].name != name {
                return place.refuse(&format!("expect.exits: {name:?} is no single node"));
            }
        }
        Ok(())
    }

    /// Whether the machine's process of that name may end by itself: a cloned node has a second one, `NAME-double`.
    pub fn may_end(&self, topology: &Topology, machine: usize, process: &str) -> bool {
        Self::lists(&self.may_exit, topology, machine) || self.exits.iter().any(|e| e.node == process)
    }

    /// Whether the list (of names of nodes, groups or sites) holds the machine.
    pub fn lists(list: &[String], topology: &Topology, machine: usize) -> bool {
        list.iter().any(|name| topology.seats[machine].is_called(name))
    }
}
