//! The machines of a scenario, and the links between them.

use super::Limits;
use super::place::Place;
use super::presets::{QUEUE_MS, access, preset_of};
use crate::network::nat::NatKind;
use crate::network::{Link, LinkChange, Port};
use serde::Deserialize;
use starling_bootstrap::config_file::nearest;
use starling_protocol::mutation::Mutation;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Most nodes of a scenario; each is a process.
pub const NODES_MAX: usize = 64;
/// The program that is no node, and gets the nodes' addresses.
pub const STRANGER: &str = "starling-stranger";
/// Largest disk of a node, which is in memory.
const DISK_MIB_MAX: u64 = 4096;

/// `[network]`: a matrix of links by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPreset {
    /// One of `lan`, `three-clouds`, `homes`, `transatlantic`, `satellite`.
    pub preset: Option<String>,
}

/// `[bootstrap]`: the well-known peers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BootstrapEntry {
    pub count: usize,
    pub site: Option<String>,
}

impl Default for BootstrapEntry {
    fn default() -> Self {
        Self { count: 1, site: None }
    }
}

/// `[[nodes]]`: some nodes with the same settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The name of a single node; several nodes are called `NAME-1` and so on.
    pub name: String,
    #[serde(default = "one")]
    pub count: usize,
    /// The site; one of the group's own name if it is missing.
    pub site: Option<String>,
    /// Preset of the access line.
    pub line: Option<String>,
    pub up_mbit: Option<f64>,
    pub down_mbit: Option<f64>,
    pub queue_ms: Option<f64>,
    pub nat: Option<NatKind>,
    /// Whether the nodes are absent at the beginning, until a `start` starts them.
    #[serde(default)]
    pub later: bool,
    /// Program to run instead of `starling`.
    pub program: Option<String>,
    /// An injected bug that they run with; they are honest otherwise.
    pub mutation: Option<String>,
    /// Flags of these nodes alone.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Size of a separate disk of each.
    pub disk_mib: Option<u64>,
    #[serde(default)]
    pub limits: Limits,
    /// The price of one node, in any currency: the report adds it up.
    pub price_per_hour: Option<f64>,
}

fn one() -> usize {
    1
}

/// `[[links]]`: the link between two sites or nodes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEntry {
    /// Two names, for both directions; or one name, for the links within a site.
    pub between: Option<Vec<String>>,
    /// For one direction only.
    pub from: Option<String>,
    pub to: Option<String>,
    pub delay_ms: Option<f64>,
    pub jitter_ms: Option<f64>,
    pub loss: Option<f64>,
    pub reorder: Option<f64>,
    pub duplicate: Option<f64>,
    pub corrupt: Option<f64>,
    pub mbit: Option<f64>,
    pub queue_ms: Option<f64>,
    pub mtu: Option<usize>,
}

impl LinkEntry {
    pub fn change(&self) -> LinkChange {
        LinkChange {
            delay_ms: self.delay_ms,
            jitter_ms: self.jitter_ms,
            loss: self.loss,
            reorder: self.reorder,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            mbit: self.mbit,
            queue_ms: self.queue_ms,
            mtu: self.mtu,
            cut: None,
        }
    }
}

/// One machine: a node's or a bootstrap peer's.
#[derive(Clone, Debug)]
pub struct Seat {
    pub name: String,
    pub group: String,
    pub site: String,
    pub port: Port,
    pub later: bool,
    pub bootstrap: bool,
    pub program: Option<String>,
    pub mutation: Option<String>,
    pub arguments: Vec<String>,
    pub disk_mib: Option<u64>,
    pub limits: Limits,
    pub price_per_hour: Option<f64>,
}

impl Seat {
    /// Whether `name` stands for the machine: its own, its group's, its site's, `all` (nodes) or `bootstrap`.
    pub fn is_called(&self, name: &str) -> bool {
        match name {
            "all" => !self.bootstrap,
            _ => self.name == name || self.group == name || (self.site == name && !self.bootstrap),
        }
    }

    /// The program that it runs.
    pub fn program(&self) -> &str {
        self.program.as_deref().unwrap_or(if self.mutation.is_some() { "starling-byzantine" } else { "starling" })
    }
}

/// All machines, and the link of each directed pair.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Nodes first, then bootstrap peers.
    pub seats: Vec<Seat>,
    /// Links by sender, then receiver.
    pub links: Vec<Link>,
    /// Number of nodes.
    pub nodes: usize,
    names: BTreeSet<String>,
}

impl Topology {
    pub(super) fn new(
        whole: Place<'_>,
        network: &NetworkPreset,
        bootstrap: &BootstrapEntry,
        groups: Vec<(Place<'_>, &Group)>,
        links: Vec<(Place<'_>, &LinkEntry)>,
    ) -> anyhow::Result<Self> {
        let mut topology = Self { seats: Vec::new(), links: Vec::new(), nodes: 0, names: BTreeSet::new() };
        let mut sites = Vec::new();
        for (place, group) in groups {
            topology.add(place, group, &mut sites)?;
        }
        topology.nodes = topology.seats.len();
        if topology.nodes == 0 || topology.seats.iter().all(|s| s.later) {
            return whole.refuse("nobody is there at the beginning: add [[nodes]] that are not `later`");
        }
        if !(1..=4).contains(&bootstrap.count) {
            return whole.refuse(&format!("bootstrap.count is {}, allowed is 1 to 4", bootstrap.count));
        }
        topology.add_bootstrap(whole, bootstrap, &mut sites)?;
        let count = topology.seats.len();
        let preset = preset_of(whole, network.preset.as_deref())?;
        topology.links = (0..count * count)
            .map(|at| {
                let same = topology.seats[at / count].site == topology.seats[at % count].site;
                if same { preset.0 } else { preset.1 }
            })
            .collect();
        for (place, link) in links {
            topology.join(place, link)?;
        }
        Ok(topology)
    }

    fn add(&mut self, place: Place<'_>, group: &Group, sites: &mut Vec<String>) -> anyhow::Result<()> {
        let plain = |name: &str| {
            !name.is_empty() && name.len() <= 32 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !plain(&group.name) || ["all", "any"].contains(&group.name.as_str()) || group.name.starts_with("bootstrap") {
            return place.refuse(&format!(
                "{:?} is no name for nodes: letters, digits and dashes, neither all nor any, and not bootstrap...",
                group.name
            ));
        }
        if self.names.contains(&group.name) {
            return place.refuse(&format!("there are nodes called {:?} already", group.name));
        }
        if group.count == 0 || self.seats.len() + group.count > NODES_MAX {
            return place
                .refuse(&format!("count is {}; at least one, and at most {NODES_MAX} nodes in all", group.count));
        }
        injected(place, group)?;
        group.limits.check(place)?;
        if group.disk_mib.is_some_and(|mib| !(1..=DISK_MIB_MAX).contains(&mib)) {
            return place.refuse(&format!("disk_mib is in memory: 1 to {DISK_MIB_MAX}"));
        }
        if group.program.as_deref() == Some(STRANGER) && !group.later {
            return place.refuse("a stranger comes when the others are in: say later = true, and add a `start`");
        }
        let (up, down, queue) = access(place, group.line.as_deref(), [group.up_mbit, group.down_mbit, group.queue_ms])?;
        let site = group.site.clone().unwrap_or_else(|| group.name.clone());
        for n in 1..=group.count {
            let name = if group.count == 1 { group.name.clone() } else { format!("{}-{n}", group.name) };
            let seat = Seat {
                name: name.clone(),
                group: group.name.clone(),
                site: site.clone(),
                port: self.port(&site, sites, (up, down, queue), group.nat),
                later: group.later,
                bootstrap: false,
                program: group.program.clone().filter(|program| program != "starling"),
                mutation: group.mutation.clone(),
                arguments: group.arguments.clone(),
                disk_mib: group.disk_mib,
                limits: group.limits,
                price_per_hour: group.price_per_hour,
            };
            self.seats.push(seat);
            self.names.insert(name);
        }
        self.names.extend([group.name.clone(), site]);
        Ok(())
    }

    fn add_bootstrap(
        &mut self,
        whole: Place<'_>,
        entry: &BootstrapEntry,
        sites: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        let site = entry.site.clone().unwrap_or_else(|| self.seats[0].site.clone());
        if !sites.contains(&site) {
            return whole.refuse(&format!("bootstrap.site is {site:?}, where no node is{}", self.near(&site)));
        }
        for n in 1..=entry.count {
            let name = if entry.count == 1 { "bootstrap".to_owned() } else { format!("bootstrap-{n}") };
            let seat = Seat {
                name: name.clone(),
                group: "bootstrap".into(),
                site: site.clone(),
                port: self.port(&site, sites, (0, 0, Duration::from_secs_f64(QUEUE_MS / 1000.0)), None),
                later: false,
                bootstrap: true,
                program: None,
                mutation: None,
                arguments: Vec::new(),
                disk_mib: None,
                limits: Limits::default(),
                price_per_hour: None,
            };
            self.seats.push(seat);
            self.names.insert(name);
        }
        self.names.insert("bootstrap".into());
        Ok(())
    }

    /// Public addresses are 45.SITE.0.N, which never leave the namespaces.
    fn port(
        &self,
        site: &str,
        sites: &mut Vec<String>,
        (up, down, queue): (u64, u64, Duration),
        nat: Option<NatKind>,
    ) -> Port {
        let number = sites.iter().position(|s| s == site).unwrap_or_else(|| {
            sites.push(site.to_owned());
            sites.len() - 1
        });
        let n = self.seats.len() as u8 + 1;
        let inner = Ipv4Addr::new(192, 168, n, 2);
        let address = Ipv4Addr::new(45, number as u8 + 1, 0, n);
        Port { address, site: number, up, down, queue, nat: nat.map(|kind| (kind, inner)) }
    }

    fn join(&mut self, place: Place<'_>, entry: &LinkEntry) -> anyhow::Result<()> {
        let change = entry.change();
        if let Some(fault) = change.fault() {
            return place.refuse(&fault);
        }
        for (from, to) in self.pairs(place, entry.between.as_deref(), entry.from.as_deref(), entry.to.as_deref())? {
            let at = from * self.seats.len() + to;
            self.links[at] = change.on(self.links[at]);
        }
        Ok(())
    }

    /// The directed pairs that `between` (both ways) or `from` and `to` (one way) name.
    pub(super) fn pairs(
        &self,
        place: Place<'_>,
        between: Option<&[String]>,
        from: Option<&str>,
        to: Option<&str>,
    ) -> anyhow::Result<Vec<(usize, usize)>> {
        let (one, other, both) = match (between, from, to) {
            (Some([name]), None, None) => (self.named(place, name)?, self.named(place, name)?, true),
            (Some([one, other]), None, None) => (self.named(place, one)?, self.named(place, other)?, true),
            (None, Some(from), Some(to)) => (self.named(place, from)?, self.named(place, to)?, false),
            _ => {
                return place.refuse(
                    "say between = [A, B] (both ways), between = [A] (within), or from = A and to = B (one way)",
                );
            }
        };
        let mut pairs = BTreeSet::new();
        for a in &one {
            for b in other.iter().filter(|b| *b != a) {
                pairs.insert((*a, *b));
                if both {
                    pairs.insert((*b, *a));
                }
            }
        }
        if pairs.is_empty() {
            return place.refuse("that names no two machines");
        }
        Ok(pairs.into_iter().collect())
    }

    /// The machines of a name: a node's, group's or site's, `all` (nodes) or `bootstrap`.
    pub(super) fn named(&self, place: Place<'_>, name: &str) -> anyhow::Result<Vec<usize>> {
        let found: Vec<usize> = (0..self.seats.len()).filter(|n| self.seats[*n].is_called(name)).collect();
        if found.is_empty() {
            return place.refuse(&format!("there is no node, group or site called {name:?}{}", self.near(name)));
        }
        Ok(found)
    }

    fn near(&self, name: &str) -> String {
        match nearest(name, self.names.iter().map(String::as_str)) {
            Some(near) => format!("; did you mean {near:?}?"),
            None => format!("; there are {}", self.names.iter().cloned().collect::<Vec<_>>().join(", ")),
        }
    }
}

/// Checks that our own program has the group's mutation.
fn injected(place: Place<'_>, group: &Group) -> anyhow::Result<()> {
    let Some(bug) = &group.mutation else { return Ok(()) };
    if group.program.is_some() {
        return place.refuse("`mutation` is a bug in our own program: leave `program` out");
    }
    let names: Vec<String> = Mutation::ALL.iter().map(|known| known.name()).collect();
    if !names.contains(bug) {
        let hint =
            nearest(bug, names.iter().map(String::as_str)).map_or(String::new(), |n| format!("; did you mean {n:?}?"));
        return place.refuse(&format!("there is no injected bug called {bug:?}{hint} (known: {})", names.join(", ")));
    }
    Ok(())
}
