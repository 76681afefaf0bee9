//! Scenario files: the machines, their links, the faults and their times, and the requirements.

mod expect;
mod fault;
mod limits;
mod place;
mod plan;
mod presets;
mod topology;

pub use expect::{Chosen, Cost, Counted, Expect, Needed, NeededExit, Never};
pub use fault::{COMMITTING, Fault, FaultEntry, When};
pub use limits::Limits;
pub use plan::{Plan, Refusal};
pub use topology::{BootstrapEntry, Group, LinkEntry, NODES_MAX, NetworkPreset, STRANGER, Seat, Topology};

use anyhow::Context;
use expect::NAMES;
use place::Place;
use serde::Deserialize;
use starling_bootstrap::config_file;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Most faults of a scenario.
const FAULTS_MAX: usize = 256;

/// The file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    #[serde(default)]
    covers: Vec<String>,
    #[serde(default = "one")]
    seed: u64,
    /// Seconds after all nodes are in.
    end_s: Option<f64>,
    end_round: Option<u64>,
    #[serde(default = "limit")]
    limit_s: f64,
    #[serde(default)]
    must_fail: Vec<String>,
    #[serde(default)]
    null_trainer_ms: Option<u64>,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    run: toml::Table,
    #[serde(default)]
    network: NetworkPreset,
    #[serde(default)]
    bootstrap: BootstrapEntry,
    nodes: Vec<Spanned<Group>>,
    #[serde(default)]
    links: Vec<Spanned<LinkEntry>>,
    #[serde(default)]
    faults: Vec<Spanned<FaultEntry>>,
    #[serde(default)]
    expect: Expect,
}

fn one() -> u64 {
    1
}

fn limit() -> f64 {
    300.0
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its extension.
    pub name: String,
    pub path: PathBuf,
    pub about: String,
    /// Rows of the lists of faults and threats that the scenario covers.
    pub covers: Vec<String>,
    pub seed: u64,
    pub end: End,
    /// The scenario fails if it takes longer than this in all.
    pub limit: Duration,
    /// Checks of which one must find the injected bug; empty without one.
    pub must_fail: Vec<String>,
    pub null_trainer_ms: Option<u64>,
    /// Flags of every node.
    pub arguments: Vec<String>,
    /// The run file's tables; the lab fills in the missing keys.
    pub run: toml::Table,
    pub topology: Topology,
    pub faults: Vec<Fault>,
    pub expect: Expect,
}

/// The end of a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// This long after all nodes are in.
    After(Duration),
    /// With this round.
    Round(u64),
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or its settings are impossible; the message names the line.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = config_file::read(path)?;
        Self::parse(&text, path)
    }

    /// Like [`Self::load`], of the file's text.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn parse(text: &str, path: &Path) -> anyhow::Result<Self> {
        let file: File = config_file::parse(text, path)?;
        let at =
            |offset: usize| Place { path, line: text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count() + 1 };
        let name = path.file_stem().and_then(|s| s.to_str()).context("a scenario file has a name")?.to_owned();
        let whole = at(0);
        let end = match (file.end_s, file.end_round) {
            (Some(s), None) => End::After(whole.seconds("end_s", s)?),
            (None, Some(round)) if round > 0 => End::Round(round),
            (None, None) => {
                return whole.refuse("say when it ends: end_s = SECONDS (after everybody is in) or end_round = N");
            }
            _ => return whole.refuse("say either end_s or end_round (1 or more), not both"),
        };
        let groups = file.nodes.iter().map(|g| (at(g.span().start), g.get_ref())).collect();
        let links = file.links.iter().map(|l| (at(l.span().start), l.get_ref())).collect();
        let topology = Topology::new(whole, &file.network, &file.bootstrap, groups, links)?;
        if file.faults.len() > FAULTS_MAX {
            return whole.refuse(&format!("{} faults, at most {FAULTS_MAX} are allowed", file.faults.len()));
        }
        let fault = |entry: &Spanned<FaultEntry>| entry.get_ref().check(at(entry.span().start), &topology);
        let faults: Vec<Fault> = file.faults.iter().map(fault).collect::<anyhow::Result<_>>()?;
        for (n, later) in faults.iter().enumerate() {
            if let Some((before, what)) = (0..n).find_map(|b| Some((b, faults[b].clash(later)?))) {
                let place = at(file.faults[n].span().start);
                let before = at(file.faults[before].span().start).line;
                return place
                    .refuse(&format!("it sets {what} while the fault of line {before} does, and would undo it"));
            }
        }
        file.expect.check(whole, &topology)?;
        let known = |name: &String| NAMES.contains(&name.as_str()) || name.contains(" says ");
        if let Some(name) = file.must_fail.iter().find(|name| !known(name)) {
            return whole.refuse(&format!(
                "must_fail: there is no check called {name:?}; there are {}, and WHO says EVENT",
                NAMES.join(", ")
            ));
        }
        Ok(Self {
            name,
            path: path.to_path_buf(),
            about: file.about,
            covers: file.covers,
            seed: file.seed,
            end,
            limit: whole.seconds("limit_s", file.limit_s)?,
            must_fail: file.must_fail,
            null_trainer_ms: file.null_trainer_ms,
            arguments: file.arguments,
            run: file.run,
            topology,
            faults,
            expect: file.expect,
        })
    }
}

impl Scenario {
    /// Whether nodes must run with the lab's library for faults of disks and clocks.
    pub fn needs_shim(&self) -> bool {
        self.faults.iter().any(|fault| fault.plan.needs_shim())
    }

    /// Whether the node of that name runs another program than `starling`.
    pub fn runs_another_program(&self, name: &str) -> bool {
        self.topology.seats.iter().any(|s| s.name == name && s.program.is_some())
    }

    /// Whether the run ends the nodes by its own budget, so that the lab need not ask them to end.
    pub fn ends_by_itself(&self) -> bool {
        matches!(self.end, End::Round(_)) || self.run.contains_key("budget")
    }
}

/// All scenario files of a path: the file itself, or the files of the folder, in order of their names.
///
/// # Errors
/// If there is no such file or folder, or the folder holds no scenario.
pub fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = std::fs::read_dir(path)
        .with_context(|| format!("{} is neither a scenario nor a folder of scenarios", path.display()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    found.sort();
    anyhow::ensure!(!found.is_empty(), "there is no scenario (NAME.toml) in {}", path.display());
    Ok(found)
}

#[cfg(test)]
#[path = "scenario_test.rs"]
mod tests;
