//! The cost of a fault to nodes, above that of their rounds.

use crate::history::{History, NodeHistory};
use crate::scenario::{Cost, Scenario};
use crate::stage::What;
use crate::verdict::{Check, verdict};
use serde_json::Value;
use std::ops::Range;

/// Seconds after all nodes are in during which the samples do not count: a node still grows.
const WARM_UP_S: f64 = 10.0;
/// Samples that span less than this, before the fault or after it, prove nothing.
const SHORTEST_S: f64 = 10.0;

/// One sample of a node's process.
struct Sample {
    seen: f64,
    cpu_ms: f64,
    mib: f64,
}

fn samples(history: &History, name: &str) -> Vec<Sample> {
    let entries = history.diary.iter().filter(|e| e.what == What::Sizes);
    let rows = entries.flat_map(|e| {
        let rows = serde_json::from_str::<Vec<Value>>(&e.text).unwrap_or_default();
        rows.into_iter().map(|row| (e.seen, row))
    });
    let of_node = rows.filter(|(_, row)| row["node"] == name).filter_map(|(seen, row)| {
        Some(Sample { seen, cpu_ms: row["cpu_ms"].as_f64()?, mib: row["rss_kib"].as_f64()? / 1024.0 })
    });
    of_node.collect()
}

/// Rounds, seconds, milliseconds of processor time, and peak memory in MiB.
struct Span {
    rounds: f64,
    seconds: f64,
    cpu_ms: f64,
    mib: f64,
}

fn span(samples: &[Sample], node: &NodeHistory, within: Range<f64>) -> Option<Span> {
    let mut seen = samples.iter().filter(|sample| within.contains(&sample.seen));
    let first = seen.next()?;
    let last = seen.next_back()?;
    let between = |event: &&Value| event["seen"].as_f64().is_some_and(|at| (first.seen..last.seen).contains(&at));
    let rounds = node.events.iter().filter(|event| event["event"] == "committed").filter(between).count();
    let mib =
        samples.iter().filter(|sample| within.contains(&sample.seen)).map(|sample| sample.mib).fold(0.0, f64::max);
    let (seconds, cpu_ms) = (last.seen - first.seen, last.cpu_ms - first.cpu_ms);
    (seconds >= SHORTEST_S).then_some(Span { rounds: rounds as f64, seconds, cpu_ms, mib })
}

/// Seconds of processor time that the node took for each of its rounds in this time; none if too little was seen.
pub fn of_a_round(history: &History, node: &NodeHistory, within: Range<f64>) -> Option<f64> {
    let span = span(&samples(history, &node.name), node, within).filter(|span| span.rounds > 0.0)?;
    Some(span.cpu_ms / 1000.0 / span.rounds)
}

/// Checks the cost of the fault to each of our nodes, above the cost of its rounds before the fault.
pub fn cost(scenario: &Scenario, history: &History, most: &Cost) -> Check {
    let name = format!("cost of fault {}", most.of_fault);
    let began: Vec<f64> = history.diary.iter().filter(|e| e.what == What::FaultBegan).map(|e| e.seen).collect();
    let (all_in, fault) = (history.when(What::AllIn), most.of_fault.checked_sub(1).and_then(|n| began.get(n)));
    let (Some(all_in), Some(fault)) = (all_in, fault) else {
        return verdict(&name, Some("it never began".into()), String::new());
    };
    let end = began.iter().find(|other| *other > fault).copied().or_else(|| history.when(What::Closing));
    let ours = |node: &&NodeHistory| {
        let mut seats = scenario.topology.seats.iter();
        seats.any(|seat| seat.name == node.name && seat.program.is_none() && !seat.bootstrap)
    };
    let (mut wrong, mut fine) = (None, Vec::new());
    for node in history.nodes.iter().filter(ours) {
        let samples = samples(history, &node.name);
        let before = span(&samples, node, all_in + WARM_UP_S..*fault);
        let during = span(&samples, node, *fault..end.unwrap_or(f64::INFINITY));
        let (Some(before), Some(during)) = (before.filter(|before| before.rounds > 0.0), during) else {
            wrong.get_or_insert(format!("too little was seen of {}", node.name));
            continue;
        };
        let own_ms = before.cpu_ms / before.rounds * during.rounds;
        let percent = (during.cpu_ms - own_ms) / during.seconds / 10.0;
        let mib = during.mib - before.mib;
        let told = format!("{} {percent:.1} % of a core and {mib:.1} MiB", node.name);
        if percent > most.cpu_percent || mib > most.mib {
            wrong.get_or_insert(format!("{told}; {} % and {} MiB are allowed", most.cpu_percent, most.mib));
        }
        fine.push(told);
    }
    let wrong = wrong.or_else(|| fine.is_empty().then(|| "no node was seen".into()));
    verdict(&name, wrong, fine.join(", "))
}

#[cfg(test)]
#[path = "costs_test.rs"]
mod tests;
