//! The common figures of such systems: scalability, efficiency, resources, accuracy, cost.

use super::timeline::{Doing, stretches};
use crate::history::{History, NodeHistory};
use crate::scenario::Scenario;
use crate::stage::What;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All figures; a figure is null if there is no data for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// Tokens a second that went into the committed state, from the first commit of all nodes on.
    pub tokens_per_s: Option<f64>,
    /// Tokens a second of one node while it trains: the median of the node's reports, mean over nodes.
    pub node_tokens_per_s: Option<f64>,
    /// The flock's speed over that of one node that never waits; and that over the mean number of live nodes.
    pub speed_up: Option<f64>,
    pub efficiency: Option<f64>,
    /// The share of the nodes' lifetime in which they trained.
    pub utilisation: Option<f64>,
    /// Standard deviation over mean of the contributors' tokens in a round, mean over rounds.
    pub load_variation: Option<f64>,
    /// Bytes that all nodes sent, for each million tokens.
    pub bytes_per_million_tokens: Option<f64>,
    /// The loss of the last validation, and of the first.
    pub nats_per_byte: Option<f64>,
    pub nats_per_byte_at_first: Option<f64>,
    /// The cost by the prices of the scenario's nodes.
    pub cost: Option<f64>,
    pub cost_per_million_tokens: Option<f64>,
}

impl Figures {
    pub fn new(scenario: &Scenario, history: &History) -> Self {
        let (from, to) = (history.when(What::AllIn), history.when(What::Closing));
        let (rate, tokens) = from.zip(to).map_or((None, None), |(from, to)| rate(history, from, to));
        let speeds: Vec<f64> = history.nodes.iter().filter_map(median_speed).collect();
        let node_rate = mean(&speeds);
        let speed_up = rate.zip(node_rate).map(|(rate, node)| rate / node);
        let alive = from.zip(to).map(|(from, to)| node_seconds(history, from, to) / (to - from));
        let bytes: u64 = history.nodes.iter().map(NodeHistory::bytes_sent).sum();
        let all_tokens = history.commits().iter().filter_map(|c| c.event["tokens"].as_f64()).fold(0.0, f64::max);
        let millions = (all_tokens > 0.0).then_some(all_tokens / 1e6);
        let cost = cost(scenario, history);
        let validated = history.nodes.iter().max_by_key(|n| n.named("validated").count());
        let value = |e: &serde_json::Value| e["nats_per_byte"].as_f64();
        Self {
            tokens_per_s: rate.filter(|_| tokens.is_some()),
            node_tokens_per_s: node_rate,
            speed_up,
            efficiency: speed_up.zip(alive).map(|(s, n)| s / n),
            utilisation: utilisation(history),
            load_variation: load_variation(history),
            bytes_per_million_tokens: millions.map(|m| bytes as f64 / m),
            nats_per_byte: validated.and_then(|n| n.named("validated").last()).and_then(value),
            nats_per_byte_at_first: validated.and_then(|n| n.named("validated").next()).and_then(value),
            cost,
            cost_per_million_tokens: cost.zip(millions).map(|(c, m)| c / m),
        }
    }

    /// The known figures as text.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let number = |v: Option<f64>, digits: usize, unit: &str| v.map(|v| format!("{v:.digits$}{unit}"));
        let percent = |v: Option<f64>| v.map(|v| format!("{:.0} %", v * 100.0));
        let rows = [
            ("scalability: tokens a second of the flock", number(self.tokens_per_s, 0, "")),
            (
                "tokens a second of one node while it trains (all on this machine)",
                number(self.node_tokens_per_s, 0, ""),
            ),
            ("speed-up against one node that never waits", number(self.speed_up, 2, "")),
            ("efficiency: speed-up by nodes alive", percent(self.efficiency)),
            ("utilisation: share of the nodes' time spent training", percent(self.utilisation)),
            ("load balance: deviation of the contributors' tokens in a round", percent(self.load_variation)),
            (
                "resources: MB sent by all for a million tokens",
                number(self.bytes_per_million_tokens.map(|b| b / 1e6), 1, ""),
            ),
            ("accuracy: nats per byte on held-out text, at first", number(self.nats_per_byte_at_first, 3, "")),
            ("accuracy: nats per byte on held-out text, at last", number(self.nats_per_byte, 3, "")),
            ("cost of the run", number(self.cost, 4, "")),
            ("cost of a million tokens", number(self.cost_per_million_tokens, 4, "")),
        ];
        rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Tokens a second, and tokens, that were committed between the two times.
fn rate(history: &History, from: f64, to: f64) -> (Option<f64>, Option<f64>) {
    let commits = history.first_commits();
    let within: Vec<(f64, f64)> = commits
        .iter()
        .filter(|c| (from..=to).contains(&c.seen))
        .filter_map(|c| Some((c.seen, c.event["tokens"].as_f64()?)))
        .collect();
    let (Some(first), Some(last)) = (within.first(), within.last()) else { return (None, None) };
    let tokens = last.1 - first.1;
    let fine = last.0 > first.0 && tokens > 0.0;
    (fine.then(|| tokens / (last.0 - first.0)), fine.then_some(tokens))
}

fn median_speed(node: &crate::history::NodeHistory) -> Option<f64> {
    let mut speeds: Vec<f64> = node.named("step").filter_map(|e| e["tokens_per_second"].as_f64()).collect();
    speeds.sort_by(f64::total_cmp);
    speeds.get(speeds.len() / 2).copied()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Seconds that nodes lived between the two times, summed over nodes.
fn node_seconds(history: &History, from: f64, to: f64) -> f64 {
    let lives = history.nodes.iter().filter(|n| !n.name.ends_with("-double")).flat_map(|n| history.lives(&n.name));
    lives.map(|(born, died)| (died.unwrap_or(to).min(to) - born.max(from)).max(0.0)).sum()
}

fn utilisation(history: &History) -> Option<f64> {
    let all: Vec<_> = history.nodes.iter().flat_map(|n| stretches(history, n)).collect();
    let sum =
        |wanted: &dyn Fn(Doing) -> bool| -> f64 { all.iter().filter(|s| wanted(s.doing)).map(|s| s.to - s.from).sum() };
    let alive = sum(&|d| d != Doing::Down);
    (alive > 0.0).then(|| sum(&|d| d == Doing::Training) / alive)
}

fn load_variation(history: &History) -> Option<f64> {
    let mut rounds: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for event in history.nodes.iter().flat_map(|n| n.named("trained")) {
        if let (Some(round), Some(tokens)) = (event["round"].as_u64(), event["tokens"].as_f64()) {
            rounds.entry(round).or_default().push(tokens);
        }
    }
    let variation = |tokens: &Vec<f64>| {
        let mean = mean(tokens).filter(|m| *m > 0.0 && tokens.len() > 1)?;
        let square = tokens.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / tokens.len() as f64;
        Some(square.sqrt() / mean)
    };
    mean(&rounds.values().filter_map(variation).collect::<Vec<_>>())
}

fn cost(scenario: &Scenario, history: &History) -> Option<f64> {
    let end = history.diary.last()?.seen;
    let priced: Vec<_> = scenario.topology.seats.iter().filter_map(|s| Some((&s.name, s.price_per_hour?))).collect();
    let hours =
        |name: &str| -> f64 { history.lives(name).iter().map(|(a, b)| b.unwrap_or(end) - a).sum::<f64>() / 3600.0 };
    (!priced.is_empty()).then(|| priced.iter().map(|(name, price)| hours(name) * price).sum())
}
