//! Checks of the nodes' use of the machine, and of their counters.

use crate::history::History;
use crate::scenario::{Counted, Scenario};
use crate::stage::What;
use crate::verdict::{Check, verdict};
use serde_json::Value;
use std::path::Path;

/// Checks the largest figure of any node over all samples: `key` is one of `rss_kib` and `files`.
pub fn size(scenario: &Scenario, history: &History, key: &str, (name, unit): (&str, u64), most: u64) -> Check {
    let samples = history.diary.iter().filter(|e| e.what == What::Sizes);
    let rows = samples.flat_map(|e| serde_json::from_str::<Vec<Value>>(&e.text).unwrap_or_default());
    let seats = &scenario.topology.seats;
    let node =
        |row: &Value| seats.iter().any(|s| row["node"] == s.name.as_str() && s.program.is_none() && !s.bootstrap);
    let seen = rows.filter(node).filter_map(|row| {
        Some((row[key].as_u64()?.div_ceil(unit), row["node"].as_str().unwrap_or_default().to_owned()))
    });
    let Some((largest, who)) = seen.max() else {
        return verdict(name, Some("nothing was seen: there is no /proc here".into()), String::new());
    };
    let wrong = (largest > most).then(|| format!("{who} had {largest}, at most {most} are allowed"));
    verdict(name, wrong, format!("at most {largest} ({who}), {most} are allowed"))
}

/// Checks that a counter has reached its least value on each node that the scenario names.
pub fn counted(scenario: &Scenario, logs: &Path, needed: &Counted) -> Check {
    let what = match &needed.with {
        Some(with) => format!("{} with {with}", needed.metric),
        None => needed.metric.clone(),
    };
    let nodes = scenario.topology.seats.iter().filter(|seat| !seat.bootstrap);
    let asked = nodes.filter(|seat| match &needed.node {
        Some(name) => seat.is_called(name),
        None => seat.program.is_none(),
    });
    let (mut wrong, mut fine) = (None, Vec::new());
    for seat in asked {
        let text = std::fs::read_to_string(logs.join(format!("{}.metrics", seat.name))).unwrap_or_default();
        let sum = sum(&text, needed);
        if text.is_empty() {
            wrong.get_or_insert(format!("{} gave no metrics", seat.name));
        } else if sum < needed.least {
            wrong.get_or_insert(format!("{sum} on {}, {} at least were to be", seat.name, needed.least));
        }
        fine.push(format!("{} {sum}", seat.name));
    }
    let wrong = wrong.or_else(|| fine.is_empty().then(|| "nobody was asked".into()));
    verdict(&what, wrong, fine.join(", "))
}

/// The sum of the metric's lines, in the text that Prometheus reads.
fn sum(text: &str, needed: &Counted) -> f64 {
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        let labels = name.strip_prefix(needed.metric.as_str())?;
        let whole = labels.is_empty() || labels.starts_with('{');
        let fits = needed.with.as_ref().is_none_or(|with| labels.contains(with.as_str()));
        if whole && fits { value.parse::<f64>().ok() } else { None }
    };
    text.lines().filter_map(line).fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
#[path = "bounds_test.rs"]
mod tests;
