//! The requirements of a scenario, beside those of all scenarios.

use super::Topology;
use super::place::Place;
use serde::Deserialize;

/// The names of all checks, except those of events that must come: `WHO says EVENT`.
pub(super) const NAMES: [&str; 16] = [
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
    "waited",
];

/// `[expect]`. A missing key requires nothing, except for the rules of all scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Longest time without a commit of any node, from the moment that all nodes are in.
    pub max_gap_s: f64,
    /// The time after the end of the last fault within which all live nodes contribute to one commit.
    pub settle_s: f64,
    /// Least number of committed rounds.
    pub rounds: u64,
    /// Largest share of samples that may be given up: a record can list only so many leftovers of leases.
    pub given_up: f64,
    /// Whether lineages may part (they must have met again at the end).
    pub forks: bool,
    /// Nodes that may end by themselves, by name: an exit status other than 0 is no failure of these.
    pub may_exit: Vec<String>,
    /// Nodes that must end by themselves, with the status and the words of their end.
    pub exits: Vec<NeededExit>,
    /// Nodes that need not be among the contributors at the end.
    pub may_lag: Vec<String>,
    /// Nodes without a path to each other, which cannot be in one commit together: each is in some, and all others are
    /// together.
    pub apart: Vec<String>,
    /// Largest number of departures that other members decided on.
    pub departures_max: Option<u64>,
    /// Largest share of attempts that fail.
    pub failed_attempts: Option<f64>,
    /// Events that must come, and events that must not.
    pub events: Vec<Needed>,
    pub absent: Vec<String>,
    /// Events that must not come, of some nodes only or with some text.
    pub never: Vec<Never>,
    /// Largest memory in use by any node, in MiB, and most descriptors, sampled once a second.
    pub rss_max_mib: Option<u64>,
    pub files_max: Option<u64>,
    /// The allowed cost of a fault to each node, above that of its rounds.
    pub costs: Vec<Cost>,
    /// Counters that must have reached a value at the end.
    pub counted: Vec<Counted>,
    /// Events that this scenario allows, though others forbid them (`own_fault`, `split_brain`).
    pub may: Vec<String>,
    /// The last validation must be below this, in nats per byte.
    pub nats_per_byte: Option<f64>,
    /// All nodes of the beginning contribute to one commit within so many seconds after the first of them starts.
    pub formed_s: Option<f64>,
    /// Most seconds for which rounds wait for newcomers, in all.
    pub waited_s_max: Option<f64>,
    /// The inner steps that the flock has to choose.
    pub steps: Vec<Chosen>,
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
            waited_s_max: None,
            steps: Vec::new(),
        }
    }
}

/// An event that must come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needed {
    pub event: String,
    /// A node, group or site; any node if it is missing.
    pub node: Option<String>,
    /// The name of the node in the event's `peer`.
    pub peer: Option<String>,
    /// Text that the event's line holds.
    pub with: Option<String>,
    /// The number (from 1) of the fault after whose beginning it must come, within `within_s`; at any time if it is
    /// missing.
    pub after_fault: Option<usize>,
    pub within_s: Option<f64>,
}

/// An event that must not come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Never {
    pub event: String,
    /// A node, group or site; any node if it is missing.
    pub node: Option<String>,
    /// Text that the event's line holds; any if it is missing.
    pub with: Option<String>,
    /// The number (from 1) of the fault from whose beginning on it must not come; at any time if it is missing.
    pub after_fault: Option<usize>,
}

/// An end that must come.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeededExit {
    pub node: String,
    pub code: i32,
    /// Text that the program prints on the terminal.
    pub with: Option<String>,
    /// The number (from 1) of the fault after whose beginning it must come, within `within_s`; at any time if it is
    /// missing.
    pub after_fault: Option<usize>,
    pub within_s: Option<f64>,
}

/// The allowed cost of a fault to each node above that of its rounds before, until the next fault begins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The number of the fault, from 1.
    pub of_fault: usize,
    /// Hundredths of one core, and MiB.
    pub cpu_percent: f64,
    pub mib: f64,
}

/// Bounds of the inner steps from some record on, and the codec, until the next fault begins or ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// The number of the fault, from 1; from when all nodes are in if it is missing.
    pub after_fault: Option<usize>,
    /// Records until then.
    pub rounds: usize,
    pub least: u32,
    pub most: u32,
    /// The codec from then on; any if it is missing.
    pub codec: Option<String>,
}

/// A counter of a node's metrics that must have reached a value at the end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    pub metric: String,
    /// Text of its labels; if it is missing, all labels are added up.
    pub with: Option<String>,
    /// A node, group or site, each node of which must have counted; each node if it is missing.
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
            // The second process of a cloned node has the node's name with a suffix.
            let name = exit.node.strip_suffix("-double").unwrap_or(&exit.node);
            let found = topology.named(place, name)?;
            if found.len() > 1 || topology.seats[found[0]].name != name {
                return place.refuse(&format!("expect.exits: {name:?} is no single node"));
            }
        }
        Ok(())
    }

    /// Whether the machine's process of that name may end by itself; a cloned node has a second process, `NAME-double`.
    pub fn may_end(&self, topology: &Topology, machine: usize, process: &str) -> bool {
        Self::lists(&self.may_exit, topology, machine) || self.exits.iter().any(|e| e.node == process)
    }

    /// Whether the list (of names of nodes, groups or sites) holds the machine.
    pub fn lists(list: &[String], topology: &Topology, machine: usize) -> bool {
        list.iter().any(|name| topology.seats[machine].is_called(name))
    }
}
