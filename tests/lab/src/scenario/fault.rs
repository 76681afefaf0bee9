//! The faults of a scenario: their kinds, nodes and times.

use super::Topology;
use super::place::Place;
use super::plan::{KINDS, Plan, Refusal};
use crate::network::LinkChange;
use serde::Deserialize;
use starling_bootstrap::config_file::nearest;
use std::time::Duration;

/// `[[faults]]`, as written. Each kind reads some of the keys; a check refuses the others.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultEntry {
    pub kind: String,
    /// Seconds after all nodes are in.
    pub at_s: Option<f64>,
    /// Begins when any node has committed this round.
    pub at_round: Option<u64>,
    /// Begins when one of `nodes` (any node if the fault has none) next reports that it enters this phase; with `at_s`
    /// not before that.
    pub at_phase: Option<String>,
    /// With `at_phase`: seconds into the phase.
    pub into_s: Option<f64>,
    /// Seconds after which the fault is undone; it stays if this is missing.
    pub lasting_s: Option<f64>,
    /// Names of nodes, groups or sites; `all`; `bootstrap`.
    pub nodes: Option<Vec<String>>,
    /// Number of these nodes, drawn by the seed; all if it is missing.
    pub pick: Option<usize>,
    pub between: Option<Vec<String>>,
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
    pub up_mbit: Option<f64>,
    pub down_mbit: Option<f64>,
    /// `kill`: the network goes silent first, as after a loss of power.
    pub silent: Option<bool>,
    /// `slow`: the share of the time in which the process may run.
    pub share: Option<f64>,
    /// `flap`, `rolling-restart`, `churn`: seconds between two turns.
    pub every_s: Option<f64>,
    /// `start`: with a ticket only, without run file and text.
    pub ticket: Option<bool>,
    /// `fill`: KiB that are left free.
    pub free_kib: Option<u64>,
    /// `damage`: the path below the node's folder; `*` stands for any name.
    pub file: Option<String>,
    /// `slow-disk`: milliseconds that a write or a sync takes longer.
    pub millis: Option<f64>,
    /// `disk-error`: `sync` or `write`; both if it is missing.
    pub calls: Option<String>,
    /// `clock`: seconds by which the wall clock jumps, ahead or back.
    pub jump_s: Option<f64>,
    /// `churn`: least and largest number of live nodes.
    pub least: Option<usize>,
    pub most: Option<usize>,
}

/// The beginning of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    After(Duration),
    Round(u64),
    /// Begins `into` after one of the fault's nodes (any node if it has none) has reported that it enters this phase,
    /// for the first time from `earliest` on.
    Phase {
        phase: &'static str,
        earliest: Duration,
        into: Duration,
    },
}

/// The phase of a node that still settles a round which another node has committed. Nodes do not report it; the lab
/// follows it from what all of them report.
pub const COMMITTING: &str = "committing";
/// Phases of newcomers and of a round, by their names in nodes' events.
const PHASES: [&str; 7] = ["catchingup", "joining", "training", "ready", "reducing", "settling", COMMITTING];

/// A checked fault.
#[derive(Clone, Debug)]
pub struct Fault {
    pub when: When,
    pub lasting: Option<Duration>,
    pub plan: Plan,
    /// Machines of the fault.
    pub nodes: Vec<usize>,
    /// Number of these to draw; 0 = all.
    pub pick: usize,
    /// A description for logs and plots.
    pub what: String,
}

impl Fault {
    /// The property of a node that both faults set at one time, so that the end of one would undo the other; the pair
    /// is refused.
    pub(super) fn clash(&self, other: &Self) -> Option<&'static str> {
        let (When::After(mine), When::After(theirs)) = (self.when, other.when) else { return None };
        let (first, second) = if mine <= theirs { (self, theirs) } else { (other, mine) };
        let over = first.lasting.is_some_and(|lasting| mine.min(theirs) + lasting <= second);
        let undone = self.lasting.is_some() || other.lasting.is_some();
        let both = self.nodes.iter().any(|n| other.nodes.contains(n)) && self.pick == 0 && other.pick == 0;
        self.plan.sets().filter(|_| self.plan.sets() == other.plan.sets() && both && undone && !over)
    }
}

impl FaultEntry {
    /// Checks a fault that is requested while a scenario runs.
    ///
    /// # Errors
    /// Those of a fault in a file.
    pub fn asked(&self, topology: &Topology) -> anyhow::Result<Fault> {
        self.check(Place::of_request(), topology)
    }

    pub(super) fn check(&self, place: Place<'_>, topology: &Topology) -> anyhow::Result<Fault> {
        let Some((_, keys)) = KINDS.iter().find(|(kind, _)| *kind == self.kind) else {
            let hint = match nearest(&self.kind, KINDS.iter().map(|(kind, _)| *kind)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("known are {}", KINDS.iter().map(|(k, _)| *k).collect::<Vec<_>>().join(", ")),
            };
            return place.refuse(&format!("there is no fault of kind {:?}; {hint}", self.kind));
        };
        if let Some(key) = self.keys().into_iter().find(|key| !keys.contains(key)) {
            return place.refuse(&format!("`{key}` means nothing to {:?}, which reads {}", self.kind, keys.join(", ")));
        }
        let when = self.when(place)?;
        let lasting = self.lasting_s.map(|s| place.seconds("lasting_s", s)).transpose()?;
        let nodes = self.nodes(place, topology, keys.contains(&"nodes"))?;
        let plan = self.plan(place, topology, &nodes)?;
        if plan.needs_an_end() && lasting.is_none() {
            return place.refuse(&format!("{:?} goes on until it is undone: say lasting_s", self.kind));
        }
        if !plan.can_end() && lasting.is_some() {
            return place.refuse(&format!("{:?} cannot be undone: leave lasting_s out", self.kind));
        }
        Ok(Fault { when, lasting, plan, nodes, pick: self.pick.unwrap_or(0), what: self.words() })
    }

    fn when(&self, place: Place<'_>) -> anyhow::Result<When> {
        let seconds = |name, value: Option<f64>| value.map(|s| place.seconds(name, s)).transpose();
        let (at, into) = (seconds("at_s", self.at_s)?, seconds("into_s", self.into_s)?);
        if into.is_some() && self.at_phase.is_none() {
            return place.refuse("into_s is a time after a phase begins: say which, at_phase = ...");
        }
        match (at, self.at_round, self.at_phase.as_deref()) {
            (Some(at), None, None) => Ok(When::After(at)),
            (None, Some(round), None) => Ok(When::Round(round)),
            (at, None, Some(wanted)) => match PHASES.iter().find(|phase| **phase == wanted) {
                Some(phase) => {
                    Ok(When::Phase { phase, earliest: at.unwrap_or_default(), into: into.unwrap_or_default() })
                }
                None => place.refuse(&format!("at_phase is {wanted:?}: one of {}", PHASES.join(", "))),
            },
            _ => place.refuse(
                "say when it begins: at_s (after everybody is in), at_round, or at_phase (with at_s: not before that)",
            ),
        }
    }

    fn nodes(&self, place: Place<'_>, topology: &Topology, wanted: bool) -> anyhow::Result<Vec<usize>> {
        let Some(names) = &self.nodes else {
            return if wanted {
                place.refuse(&format!("{:?} to whom? say nodes = [...]", self.kind))
            } else {
                Ok(Vec::new())
            };
        };
        let mut nodes = Vec::new();
        for name in names {
            nodes.extend(topology.named(place, name)?);
        }
        nodes.sort_unstable();
        nodes.dedup();
        if self.pick.is_some_and(|pick| pick == 0 || pick > nodes.len()) {
            return place.refuse(&format!("pick must be 1 to {} here", nodes.len()));
        }
        let bootstrap = nodes.iter().any(|n| topology.seats[*n].bootstrap);
        if bootstrap && !["kill", "freeze", "stop"].contains(&self.kind.as_str()) {
            return place.refuse(&format!("{:?} is for nodes, not for bootstrap peers", self.kind));
        }
        Ok(nodes)
    }

    fn plan(&self, place: Place<'_>, topology: &Topology, nodes: &[usize]) -> anyhow::Result<Plan> {
        let every = |default: f64| {
            let value = self.every_s.unwrap_or(default);
            if value < 0.05 {
                place.refuse("every_s is too short: 0.05 at least")
            } else {
                place.seconds("every_s", value)
            }
        };
        let pairs = || topology.pairs(place, self.between.as_deref(), self.from.as_deref(), self.to.as_deref());
        let with_disks = |plan: Plan| match nodes.iter().find(|n| topology.seats[**n].disk_mib.is_none()) {
            Some(n) => {
                place.refuse(&format!("{} has no disk of its own to fill: give it disk_mib", topology.seats[*n].name))
            }
            None => Ok(plan),
        };
        let with_routers = |plan: Plan| match nodes.iter().find(|n| topology.seats[**n].port.nat.is_none()) {
            Some(n) => place.refuse(&format!("{} is behind no router: give it nat", topology.seats[*n].name)),
            None => Ok(plan),
        };
        Ok(match self.kind.as_str() {
            "kill" => Plan::Kill { silent: self.silent.unwrap_or(false) },
            "stop" => Plan::Stop,
            "start" => Plan::Start { ticket: self.ticket.unwrap_or(false) },
            "freeze" => Plan::Freeze,
            "slow" => Plan::Slow { share: self.share(place)? },
            "wipe" => Plan::Wipe,
            "rewind" => Plan::Rewind,
            "damage" => Plan::Damage { file: self.file(place)? },
            "clone" => Plan::Clone,
            "fill" => with_disks(Plan::Fill { free_kib: self.free_kib.unwrap_or(0) })?,
            "delete-folder" => Plan::DeleteFolder,
            "slow-disk" => Plan::SlowDisk { delay: self.delay(place)? },
            "disk-error" => Plan::Refuse(self.refusal(place)?),
            "read-only" => Plan::Refuse(Refusal::ReadOnly),
            "clock" => Plan::Clock { by_ns: self.jump(place)? },
            "cut" => Plan::Links { pairs: pairs()?, change: LinkChange { cut: Some(true), ..LinkChange::default() } },
            "link" => Plan::Links { pairs: pairs()?, change: self.change(place)? },
            "flap" => Plan::Flap { pairs: pairs()?, every: every(1.0)? },
            "swizzle" => Plan::Swizzle { pairs: pairs()?, every: every(1.0)? },
            "reset" => Plan::Reset { pairs: pairs()? },
            "access" => self.access(place)?,
            "rebind" => with_routers(Plan::Rebind)?,
            "churn" => self.churn(place, nodes.len(), every(1.0)?)?,
            _ => Plan::RollingRestart { every: every(5.0)? },
        })
    }

    fn share(&self, place: Place<'_>) -> anyhow::Result<f64> {
        match self.share {
            Some(share) if (0.01..=0.99).contains(&share) => Ok(share),
            _ => place.refuse("how slow? say share = 0.01 to 0.99, the share of the time that it may run"),
        }
    }

    fn file(&self, place: Place<'_>) -> anyhow::Result<String> {
        match &self.file {
            Some(file) if !file.starts_with('/') && !file.contains("..") => Ok(file.clone()),
            _ => place.refuse("which file? say file = \"PATH below the node's folder\", * for any one"),
        }
    }

    fn delay(&self, place: Place<'_>) -> anyhow::Result<Duration> {
        match self.millis {
            Some(millis) if (1.0..=60_000.0).contains(&millis) => Ok(Duration::from_secs_f64(millis / 1000.0)),
            _ => place.refuse("how slow? say millis = 1 to 60000, by which each write and each sync takes longer"),
        }
    }

    fn refusal(&self, place: Place<'_>) -> anyhow::Result<Refusal> {
        match self.calls.as_deref() {
            None => Ok(Refusal::Both),
            Some("sync") => Ok(Refusal::Syncs),
            Some("write") => Ok(Refusal::Writes),
            Some(other) => place.refuse(&format!("calls is {other:?}: \"sync\" or \"write\"; left out, both fail")),
        }
    }

    fn jump(&self, place: Place<'_>) -> anyhow::Result<i64> {
        match self.jump_s {
            // A hundred years in either direction fit into nanoseconds.
            Some(jump) if jump != 0.0 && jump.abs() <= 3.15e9 => Ok((jump * 1e9) as i64),
            _ => place.refuse("how far? say jump_s, ahead or (with a minus) back, at most 3150000000 seconds"),
        }
    }

    fn change(&self, place: Place<'_>) -> anyhow::Result<LinkChange> {
        let change = LinkChange {
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
        };
        if change == LinkChange::default() {
            return place.refuse("what of the link changes? say delay_ms, loss, mbit or another of its keys");
        }
        match change.fault() {
            Some(fault) => place.refuse(&fault),
            None => Ok(change),
        }
    }

    fn access(&self, place: Place<'_>) -> anyhow::Result<Plan> {
        let (up, down) = (self.up_mbit.or(self.down_mbit), self.down_mbit.or(self.up_mbit));
        match (up, down) {
            (Some(up), Some(down)) if (0.0..=1e6).contains(&up) && (0.0..=1e6).contains(&down) => {
                Ok(Plan::Access { up, down })
            }
            _ => place.refuse("say up_mbit, down_mbit or both, 0 to 1000000"),
        }
    }

    fn churn(&self, place: Place<'_>, nodes: usize, every: Duration) -> anyhow::Result<Plan> {
        let (least, most) = (self.least.unwrap_or(1), self.most.unwrap_or(nodes));
        if least == 0 || least > most || most > nodes {
            return place.refuse(&format!("least is {least} and most {most}: 1 <= least <= most <= {nodes} is needed"));
        }
        Ok(Plan::Churn { every, least, most })
    }

    /// The given keys, except those that every kind reads.
    fn keys(&self) -> Vec<&'static str> {
        let given: [(&str, bool); 26] = [
            ("nodes", self.nodes.is_some()),
            ("pick", self.pick.is_some()),
            ("between", self.between.is_some()),
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("jitter_ms", self.jitter_ms.is_some()),
            ("loss", self.loss.is_some()),
            ("reorder", self.reorder.is_some()),
            ("duplicate", self.duplicate.is_some()),
            ("corrupt", self.corrupt.is_some()),
            ("mbit", self.mbit.is_some()),
            ("queue_ms", self.queue_ms.is_some()),
            ("mtu", self.mtu.is_some()),
            ("up_mbit", self.up_mbit.is_some()),
            ("down_mbit", self.down_mbit.is_some()),
            ("silent", self.silent.is_some()),
            ("share", self.share.is_some()),
            ("every_s", self.every_s.is_some()),
            ("ticket", self.ticket.is_some()),
            ("free_kib", self.free_kib.is_some()),
            ("file", self.file.is_some()),
            ("millis", self.millis.is_some()),
            ("calls", self.calls.is_some()),
            ("jump_s", self.jump_s.is_some()),
            ("least", self.least.is_some() || self.most.is_some()),
        ];
        given.into_iter().filter(|(_, there)| *there).map(|(key, _)| key).collect()
    }

    fn words(&self) -> String {
        let whom = match (&self.nodes, &self.between, &self.from, &self.to) {
            (Some(nodes), ..) => nodes.join(", "),
            (_, Some(between), ..) => between.join(" - "),
            (_, _, Some(from), Some(to)) => format!("{from} -> {to}"),
            _ => String::new(),
        };
        let silent = if self.silent == Some(true) { "silent " } else { "" };
        let more = match (self.millis, self.calls.as_deref(), self.jump_s) {
            (Some(millis), ..) => format!(" (by {millis} ms)"),
            (_, Some(calls), _) => format!(" ({calls})"),
            (.., Some(jump)) => format!(" (by {jump} s)"),
            _ => String::new(),
        };
        format!("{silent}{} {whom}{more}", self.kind).trim().to_owned()
    }
}
