//! The run file of a scenario: the scenario's own keys, and others that make a round take about a second.

use crate::scenario::{End, Scenario};
use anyhow::{Context, bail};
use std::path::Path;
use std::process::{Command, Stdio};
use toml::{Table, Value};

/// Text to train on that the lab always has: documents about Starling, and some of its source.
const TEXT: [&str; 12] = [
    include_str!("../../../../docs/protocol/1-wire.md"),
    include_str!("../../../../docs/protocol/2-records.md"),
    include_str!("../../../../docs/protocol/3-reduction.md"),
    include_str!("../../../../docs/protocol/4-agreement.md"),
    include_str!("../../../../docs/protocol/reasons.md"),
    include_str!("../../../../docs/architecture.md"),
    include_str!("../../../../docs/network.md"),
    include_str!("../../../../docs/store.md"),
    include_str!("../../../../docs/performance.md"),
    include_str!("../../../../docs/events.md"),
    include_str!("../../../../configs/run.toml"),
    include_str!("../../../../docs/data.md"),
];

/// Lines that are taken from a text at a time.
const LINES: usize = 12;

/// Writes the text into the folder, unless the scenario names another, and returns the run file.
pub(super) fn text(scenario: &Scenario, folder: &Path) -> anyhow::Result<String> {
    let mut run = scenario.run.clone();
    super::keys::put_ids(scenario, &mut run);
    let name: String = scenario.name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    fill(&mut run, "name", Value::String(format!("lab-{}", name.to_ascii_lowercase())));
    fill(&mut run, "seed", Value::Integer(scenario.seed as i64));
    let model = table(&mut run, "model")?;
    fill(model, "preset", Value::String("0.1m".into()));
    fill(model, "seq_len", Value::Integer(64));
    let data = table(&mut run, "data")?;
    if !data.contains_key("sources") {
        let path = folder.join("text.txt");
        std::fs::write(&path, mixed()).with_context(|| format!("cannot write {}", path.display()))?;
        fill(data, "sources", Value::Array(vec![Value::String("text.txt".into())]));
        fill(data, "holdout", Value::Float(0.05));
    }
    let inner = table(&mut run, "inner")?;
    fill(inner, "steps", Value::Integer(60));
    fill(inner, "batch", Value::Integer(4));
    fill(inner, "lr", Value::Float(4e-3));
    // Nodes vote at once, without probation, unless the scenario is about probation.
    let admission = table(&mut run, "admission")?;
    fill(admission, "probation", Value::Integer(0));
    if let End::Round(round) = scenario.end {
        fill(table(&mut run, "budget")?, "rounds", Value::Integer(round as i64));
    }
    toml::to_string(&run).context("a run file is text")
}

/// Checks that the program accepts the run file, before the scenario is played.
///
/// # Errors
/// If it does not: its message, with the line of the scenario if there is one.
pub fn check(scenario: &Scenario, program: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (file, home) = (folder.path().join("run.toml"), folder.path().join("home"));
    let run = text(scenario, folder.path())?;
    std::fs::write(&file, &run).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = Command::new(program);
    command.args(["train", "--print-config", "--run"]).arg(&file).arg("--home").arg(&home).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("starling: ").trim_start_matches(&format!("{}: ", file.display()));
    let source = std::fs::read_to_string(&scenario.path).unwrap_or_default();
    bail!("{}: nodes would refuse [run]: {}", scenario.path.display(), placed(said, &run, &source))
}

/// The program's message about a line of the run file, with the line of the scenario that the key comes from.
fn placed(said: &str, run: &str, source: &str) -> String {
    let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse::<usize>().ok());
    let Some(line) = said.split_once("line ").and_then(|(_, rest)| number(rest)) else { return said.to_owned() };
    let key_of = |text: &str| text.split_once('=').map(|(key, _)| key.trim().to_owned());
    let key = run.lines().nth(line.saturating_sub(1)).and_then(key_of);
    let mut below = source.lines().enumerate().skip_while(|(_, text)| !text.starts_with("[run"));
    let at = key.and_then(|key| below.find(|(_, text)| key_of(text).as_ref() == Some(&key)));
    match at {
        Some((n, _)) => said.replacen(&format!("line {line}"), &format!("line {}", n + 1), 1),
        None => format!("{said} (a line of the run file that follows from it)"),
    }
}

/// Some lines of each text in turn, so that the held-out end is of the same kind as the rest.
pub fn mixed() -> String {
    let mut texts: Vec<_> = TEXT.iter().map(|text| text.lines().peekable()).collect();
    let mut mixed = String::new();
    while texts.iter_mut().any(|lines| lines.peek().is_some()) {
        for lines in &mut texts {
            for line in lines.take(LINES) {
                mixed.push_str(line);
                mixed.push('\n');
            }
        }
    }
    mixed
}

fn fill(table: &mut Table, key: &str, value: Value) {
    table.entry(key).or_insert(value);
}

fn table<'a>(run: &'a mut Table, key: &str) -> anyhow::Result<&'a mut Table> {
    let entry = run.entry(key).or_insert_with(|| Value::Table(Table::new()));
    entry.as_table_mut().with_context(|| format!("[run] {key} must be a table"))
}

#[cfg(test)]
#[path = "run_file_test.rs"]
mod tests;
