//! The pictures of one scenario.

use super::fetches;
use super::picture::{Lines, Mark, Picture, picture};
use super::timeline::{Timeline, stretches};
use crate::history::{Commit, History};
use crate::stage::{Entry, What};
use serde_json::Value;
use std::collections::BTreeMap;

type Series = Vec<(f64, f64)>;
/// Series with their labels.
type Labelled = Vec<(String, Series)>;

/// All pictures, in the order of the page.
///
/// # Errors
/// If one cannot be drawn.
pub fn all(history: &History) -> anyhow::Result<Vec<Picture>> {
    let marks = marks(history);
    let lines = |x, y, series, marks: &[Mark], from_zero| Lines { x, y, series, marks: marks.to_vec(), from_zero };
    let (by_time, by_tokens) = losses(history);
    let (sent, received) = link_use(history);
    let end = history.diary.last().map_or(0.0, |e| e.seen) - history.start();
    let there = history.nodes.iter().chain(&history.aside).filter(|n| !n.events.is_empty());
    let rows = there.map(|n| (n.name.clone(), stretches(history, n))).collect();
    let mut all = vec![
        picture("timeline", "What each node did", &Timeline { rows, marks: marks.clone(), end })?,
        picture("loss-time", "Loss over time", &lines("seconds", "nats per token", by_time, &marks, false))?,
        picture(
            "loss-tokens",
            "Loss over tokens",
            &lines("million tokens of the flock", "nats per token", by_tokens, &[], false),
        )?,
        picture(
            "contributors",
            "Nodes in each commit",
            &lines("seconds", "contributors", contributors(history), &marks, true),
        )?,
        picture(
            "rounds",
            "Where the time of a round goes",
            &lines("seconds", "seconds of the round", round_times(history), &marks, true),
        )?,
        picture("sent", "Link use, sending", &lines("seconds", "Mbit/s", sent, &marks, true))?,
        picture("received", "Link use, receiving", &lines("seconds", "Mbit/s", received, &marks, true))?,
        picture(
            "steps",
            "Inner steps between two exchanges (H)",
            &lines("seconds", "inner steps", steps(history), &marks, true),
        )?,
        picture(
            "codec",
            &format!("How updates are written ({})", codecs(history).join(", ")),
            &lines("seconds", "bits a value", bits(history), &marks, true),
        )?,
    ];
    if let Some(matrix) = fetches::matrix(history) {
        all.push(picture("fetches", "Who fetched what from whom to catch up", &matrix)?);
    }
    Ok(all)
}

/// The times in which faults held.
pub fn marks(history: &History) -> Vec<Mark> {
    let began = history.diary.iter().filter(|e| e.what == What::FaultBegan);
    let mark = |fault: &Entry| {
        let ended = history.diary.iter().find(|e| e.what == What::FaultEnded && e.fault == fault.fault);
        let from = fault.seen - history.start();
        Mark { from, to: ended.map_or(from, |e| e.seen - history.start()), what: fault.text.clone() }
    };
    began.map(mark).collect()
}

fn losses(history: &History) -> (Labelled, Labelled) {
    let start = history.start();
    let (mut time, mut tokens) = (Series::new(), Series::new());
    let mut counted = BTreeMap::new();
    for commit in history.first_commits() {
        let Some(loss) = commit.event["loss"].as_f64() else { continue };
        time.push((commit.seen - start, loss));
        if let Some(n) = commit.event["tokens"].as_f64() {
            tokens.push((n / 1e6, loss));
            counted.insert(commit.round, n / 1e6);
        }
    }
    let (mut held_time, mut held_tokens) = (Series::new(), Series::new());
    if let Some(node) = history.nodes.iter().max_by_key(|n| n.named("validated").count()) {
        for event in node.named("validated") {
            let (Some(loss), Some(seen)) = (event["loss"].as_f64(), event["seen"].as_f64()) else { continue };
            held_time.push((seen - start, loss));
            if let Some(tokens) = event["round"].as_u64().and_then(|r| counted.get(&r)) {
                held_tokens.push((*tokens, loss));
            }
        }
    }
    let pair = |training, held| vec![("training".to_owned(), training), ("held-out text".to_owned(), held)];
    (pair(time, held_time), pair(tokens, held_tokens))
}

fn contributors(history: &History) -> Labelled {
    let counts = stays(history, |commit| Some(commit.contributors.len() as f64));
    vec![("contributors".into(), counts)]
}

fn round_times(history: &History) -> Labelled {
    let commits = history.first_commits();
    let of = |key: &str| -> Series {
        let point = |c: &Commit<'_>| Some((c.seen - history.start(), c.event[key].as_f64()?));
        commits.iter().filter_map(point).collect()
    };
    [
        ("whole round", "seconds"),
        ("from the last inner step to the commit", "settle_seconds"),
        ("averaging", "reduce_seconds"),
    ]
    .map(|(label, key)| (label.to_owned(), of(key)))
    .into()
}

/// Mbit/s of each machine's device, out and in.
fn link_use(history: &History) -> (Labelled, Labelled) {
    let mut series: [BTreeMap<String, (Series, f64, f64)>; 2] = Default::default();
    for sample in history.diary.iter().filter(|e| e.what == What::Sample) {
        let at = sample.seen - history.start();
        let Ok(rows) = serde_json::from_str::<Vec<Value>>(&sample.text) else { continue };
        for row in rows {
            let name = row["node"].as_str().unwrap_or_default();
            for (kind, key) in ["sent", "received"].iter().enumerate() {
                let bytes = row[*key].as_f64().unwrap_or_default();
                let (points, last_at, last) = series[kind].entry(name.to_owned()).or_insert((Series::new(), 0.0, 0.0));
                if at > *last_at {
                    points.push((at, (bytes - *last) * 8e-6 / (at - *last_at)));
                }
                (*last_at, *last) = (at, bytes);
            }
        }
    }
    series.map(|s| s.into_iter().map(|(name, (points, ..))| (name, points)).collect()).into()
}

/// Inner steps that the records ask of members at full speed, and the most that any node did in a round.
fn steps(history: &History) -> Labelled {
    let mut most: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for event in history.nodes.iter().flat_map(|n| n.named("step")) {
        let (Some(round), Some(steps), Some(seen)) =
            (event["round"].as_u64(), event["steps"].as_f64(), event["seen"].as_f64())
        else {
            continue;
        };
        let known = most.entry(round).or_insert((seen, steps));
        known.1 = known.1.max(steps);
    }
    let done = most.into_values().map(|(seen, steps)| (seen - history.start(), steps)).collect();
    vec![
        ("asked of a member at full speed".into(), settings(history, "inner_steps")),
        ("most done by anybody".into(), done),
    ]
}

/// The codecs of the records, in the order of their first use.
fn codecs(history: &History) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in history.first_commits().iter().filter_map(|c| c.event["codec"].as_str()) {
        if !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn bits(history: &History) -> Labelled {
    vec![("bits a value".into(), settings(history, "bits_per_value"))]
}

fn settings(history: &History, key: &str) -> Series {
    stays(history, |commit| commit.event[key].as_f64())
}

/// The values of commits; each holds until the next commit.
fn stays(history: &History, value: impl Fn(&Commit<'_>) -> Option<f64>) -> Series {
    let mut points = Series::new();
    for commit in history.first_commits() {
        let Some(value) = value(&commit) else { continue };
        let at = commit.seen - history.start();
        points.extend(points.last().map(|(_, before)| (at, *before)));
        points.push((at, value));
    }
    points
}
