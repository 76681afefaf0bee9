//! Sweep files: a scenario, and lists of values that replace its settings in all combinations.

use anyhow::{Context, bail};
use serde::Deserialize;
use starling_bootstrap::config_file::{self, nearest};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Most cells of a sweep, not counting those left out.
pub const CELLS_MAX: usize = 256;
/// Most values of one axis.
const VALUES_MAX: usize = 64;

/// A setting that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Nodes,
    Mbit,
    DelayMs,
    Steps,
    Codec,
    Engine,
}

impl Axis {
    /// All axes, in the order of tables; the first varies slowest.
    pub const ALL: [Self; 6] = [Self::Nodes, Self::Mbit, Self::DelayMs, Self::Steps, Self::Codec, Self::Engine];

    /// The name in files.
    pub fn key(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Mbit => "mbit",
            Self::DelayMs => "delay_ms",
            Self::Steps => "steps",
            Self::Codec => "codec",
            Self::Engine => "engine",
        }
    }

    /// Why the value is not one of this axis, if it is not.
    fn fault(self, value: &Value) -> Option<String> {
        let key = self.key();
        let number = value.as_integer().map(|n| n as f64).or(value.as_float());
        let within = |low: f64, high: f64| match number {
            Some(n) if (low..=high).contains(&n) => None,
            _ => Some(format!("{key} holds {value}, allowed are numbers from {low} to {high}")),
        };
        let whole = |low: i64, high: i64| match value.as_integer() {
            Some(n) if (low..=high).contains(&n) => None,
            _ => Some(format!("{key} holds {value}, allowed are whole numbers from {low} to {high}")),
        };
        let word = |known: &[&'static str]| {
            let said = value.as_str().unwrap_or_default();
            if known.contains(&said) {
                return None;
            }
            let hint = nearest(said, known.iter().copied()).map_or(String::new(), |n| format!("; did you mean {n:?}?"));
            Some(format!("{key} holds {value}{hint} (known: {})", known.join(", ")))
        };
        match self {
            Self::Nodes => whole(2, crate::scenario::NODES_MAX as i64),
            Self::Mbit => within(0.01, 1e6),
            Self::DelayMs => within(0.0, 10_000.0),
            Self::Steps => whole(1, 1_000_000),
            Self::Codec => word(&["bf16", "int8", "int4", "top-k"]),
            Self::Engine => word(&["ring", "owners", "gossip"]),
        }
    }

    /// Writes the value into a scenario.
    fn put(self, scenario: &mut Table, value: &Value) -> anyhow::Result<()> {
        match self {
            Self::Nodes => {
                let groups = groups(scenario)?;
                let [group] = groups else { bail!("nodes cannot be varied with several [[nodes]] in the scenario") };
                group.as_table_mut().context("[[nodes]] are tables")?.insert("count".into(), value.clone());
            }
            Self::Mbit => {
                for group in groups(scenario)? {
                    let group = group.as_table_mut().context("[[nodes]] are tables")?;
                    group.insert("up_mbit".into(), value.clone());
                    group.insert("down_mbit".into(), value.clone());
                }
            }
            Self::DelayMs => {
                let links = scenario.entry("links").or_insert_with(|| Value::Array(Vec::new()));
                let all = Value::Array(vec!["all".into()]);
                let link = Table::from_iter([("between".to_owned(), all), (self.key().to_owned(), value.clone())]);
                links.as_array_mut().context("links must be [[links]]")?.push(Value::Table(link));
            }
            Self::Steps => drop(table(run(scenario)?, "inner")?.insert("steps".into(), value.clone())),
            Self::Codec | Self::Engine => {
                drop(table(run(scenario)?, "sync")?.insert(self.key().into(), value.clone()));
            }
        }
        Ok(())
    }
}

fn run(scenario: &mut Table) -> anyhow::Result<&mut Table> {
    table(scenario, "run")
}

fn table<'a>(within: &'a mut Table, key: &str) -> anyhow::Result<&'a mut Table> {
    let entry = within.entry(key).or_insert_with(|| Value::Table(Table::new()));
    entry.as_table_mut().with_context(|| format!("{key} must be a table where a sweep varies something in it"))
}

fn groups(scenario: &mut Table) -> anyhow::Result<&mut [Value]> {
    let groups = scenario.get_mut("nodes").and_then(Value::as_array_mut);
    groups.map(Vec::as_mut_slice).context("the scenario has no [[nodes]]")
}

/// The file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    about: String,
    /// The file of the scenario; a relative path starts at the folder of this file.
    base: Option<PathBuf>,
    /// The scenario itself, instead of a file.
    scenario: Option<Table>,
    nodes: Option<Vec<Value>>,
    mbit: Option<Vec<Value>>,
    delay_ms: Option<Vec<Value>>,
    steps: Option<Vec<Value>>,
    codec: Option<Vec<Value>>,
    engine: Option<Vec<Value>>,
}

/// One combination.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The name of its scenario.
    pub name: String,
    /// One value of each axis.
    pub values: Vec<Value>,
    pub scenario: Table,
}

/// A checked sweep.
#[derive(Clone, Debug)]
pub struct Grid {
    pub name: String,
    pub about: String,
    /// The axes that the file gives, with one value or several.
    pub axes: Vec<(Axis, Vec<Value>)>,
    pub cells: Vec<Cell>,
    /// Impossible combinations, and why.
    pub left_out: Vec<(String, String)>,
}

impl Grid {
    /// Reads a sweep and its scenario, and makes the cells.
    ///
    /// # Errors
    /// If a file cannot be read or parsed, or its settings are impossible.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = config_file::read(path)?;
        let base = |named: &Path| -> anyhow::Result<Table> {
            let file = path.parent().unwrap_or(Path::new(".")).join(named);
            Ok(config_file::parse(&config_file::read(&file)?, &file)?)
        };
        Self::parse(&text, path, base)
    }

    /// Like [`Self::load`], of the file's text; `base` reads the scenario that it names.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub fn parse(text: &str, path: &Path, base: impl Fn(&Path) -> anyhow::Result<Table>) -> anyhow::Result<Self> {
        let file: File = config_file::parse(text, path)?;
        let shown = path.display();
        let name = path.file_stem().and_then(|s| s.to_str()).context("a sweep file has a name")?.to_owned();
        let scenario = match (&file.base, file.scenario) {
            (Some(named), None) => base(named)?,
            (None, Some(scenario)) => scenario,
            _ => bail!("{shown}: say what is played: base = \"SCENARIO.toml\", or a table [scenario], and not both"),
        };
        for never in ["faults", "must_fail"] {
            let there = scenario.contains_key(never);
            anyhow::ensure!(!there, "{shown}: the scenario of a sweep has no `{never}`: nothing goes wrong in it");
        }
        let mut axes = Vec::new();
        let given = [file.nodes, file.mbit, file.delay_ms, file.steps, file.codec, file.engine];
        for (axis, values) in Axis::ALL.into_iter().zip(given) {
            let Some(values) = values else { continue };
            check(axis, &values).map_err(|why| anyhow::anyhow!("{shown}: {why}"))?;
            axes.push((axis, values));
        }
        let mut grid = Self { name, about: file.about, axes, cells: Vec::new(), left_out: Vec::new() };
        grid.fill(&scenario).with_context(|| format!("{shown}"))?;
        Ok(grid)
    }

    /// Makes the cells; the first axis varies slowest.
    fn fill(&mut self, scenario: &Table) -> anyhow::Result<()> {
        let combinations = self.axes.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
        let combinations = combinations.context("too many combinations")?;
        // Codecs and engines exclude each other in fewer than three quarters of the combinations.
        anyhow::ensure!(combinations <= 4 * CELLS_MAX, "{combinations} combinations, at most {CELLS_MAX} are played");
        for number in 0..combinations {
            let (mut rest, mut values) = (number, Vec::new());
            for (_, of_axis) in self.axes.iter().rev() {
                values.push(of_axis[rest % of_axis.len()].clone());
                rest /= of_axis.len();
            }
            values.reverse();
            let mut cell = scenario.clone();
            for ((axis, _), value) in self.axes.iter().zip(&values) {
                axis.put(&mut cell, value)?;
            }
            let name = self.name_of(&values);
            match impossible(&cell) {
                Some(why) => self.left_out.push((name, why)),
                None => self.cells.push(Cell { name, values, scenario: cell }),
            }
        }
        let count = self.cells.len();
        anyhow::ensure!(count > 0, "no combination of these can be");
        anyhow::ensure!(count <= CELLS_MAX, "{count} cells, at most {CELLS_MAX} are allowed");
        Ok(())
    }

    /// A name from the varied axes alone: `mbit-20-delay_ms-40-int8-ring`.
    fn name_of(&self, values: &[Value]) -> String {
        let varied = self.axes.iter().zip(values).filter(|((_, all), _)| all.len() > 1);
        let word = |axis: Axis, value: &Value| match axis {
            Axis::Codec | Axis::Engine => plain(value),
            _ => format!("{}-{}", axis.key(), plain(value)),
        };
        let words: Vec<String> = varied.map(|((axis, _), value)| word(*axis, value)).collect();
        if words.is_empty() { "only".into() } else { words.join("-") }
    }

    /// Places in [`Self::axes`] of the axes with several values.
    pub fn varied(&self) -> Vec<usize> {
        (0..self.axes.len()).filter(|n| self.axes[*n].1.len() > 1).collect()
    }
}

/// A value as users write it.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(number) => number.to_string(),
        other => other.to_string(),
    }
}

fn check(axis: Axis, values: &[Value]) -> Result<(), String> {
    let key = axis.key();
    if values.is_empty() || values.len() > VALUES_MAX {
        return Err(format!("{key} has {} values, allowed are 1 to {VALUES_MAX}", values.len()));
    }
    for (n, value) in values.iter().enumerate() {
        if let Some(fault) = axis.fault(value) {
            return Err(fault);
        }
        if values[..n].iter().any(|before| plain(before) == plain(value)) {
            return Err(format!("{key} holds {value} twice"));
        }
    }
    Ok(())
}

/// Why nodes would refuse such a run, if values that are each valid do not go together.
fn impossible(scenario: &Table) -> Option<String> {
    let sync = scenario.get("run")?.get("sync")?;
    let word = |key: &str| sync.get(key).and_then(Value::as_str);
    let every_step = sync.as_str().or(word("mode")) == Some("every-step");
    match (word("codec"), word("engine")) {
        (Some(codec @ ("int4" | "top-k")), Some("ring")) => {
            Some(format!("{codec} needs owners: a ring would round sums"))
        }
        (_, Some("gossip")) if every_step => {
            Some("pairs meet between the steps of a round: not with every-step".into())
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "grid_test.rs"]
mod tests;
