//! The run file of a scenario: what it says itself, and what is filled in so that a round takes about a second.

use crate::scenario::{End, Scenario};
use anyhow::Context;
use std::path::Path;
use toml::{Table, Value};

/// Text to train on that is there wherever the lab is: what is written about Starling, and some of what it is written in.
const TEXT: [&str; 8] = [
    include_str!("../../../../docs/protocol.md"),
    include_str!("../../../../docs/architecture.md"),
    include_str!("../../../../docs/network.md"),
    include_str!("../../../../docs/store.md"),
    include_str!("../../../../docs/performance.md"),
    include_str!("../../../../docs/events.md"),
    include_str!("../../../../configs/run.toml"),
    include_str!("../../../../docs/data.md"),
];

/// Lines that are taken of a text at a time.
const LINES: usize = 12;

/// Writes the text into the folder, where nothing else is named, and returns the run file.
pub(super) fn text(scenario: &Scenario, folder: &Path) -> anyhow::Result<String> {
    let mut run = scenario.run.clone();
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
    if let End::Round(round) = scenario.end {
        fill(table(&mut run, "budget")?, "rounds", Value::Integer(round as i64));
    }
    toml::to_string(&run).context("a run file is text")
}

/// Some lines of each text in turn, so that what is held out at the end is of the same kind as the rest.
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
