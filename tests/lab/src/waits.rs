//! How long rounds waited for newcomers.

use crate::history::History;
use crate::verdict::{Check, verdict};
use serde_json::Value;

/// Seconds in which the round of any node waited for newcomers. A node tells of a wait when it is over: one that is
/// under way at the end is not in it.
pub fn seconds(history: &History) -> f64 {
    let span = |event: &Value| {
        let (seen, seconds) = (event["seen"].as_f64()?, event["seconds"].as_f64()?);
        Some((seen - seconds, seen))
    };
    let told = history.nodes.iter().flat_map(|node| node.named("waited_for_newcomers"));
    let mut spans: Vec<(f64, f64)> = told.filter_map(span).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Voters wait at the same time, which counts once.
    let (mut sum, mut reached) = (0.0, f64::NEG_INFINITY);
    for (from, to) in &spans {
        sum += (to - from.max(reached)).max(0.0);
        reached = to.max(reached);
    }
    sum
}

/// Checks the time in which rounds waited for newcomers.
pub fn waited(history: &History, most: f64) -> Check {
    let sum = seconds(history);
    let wrong = (sum > most).then(|| format!("rounds waited {sum:.1} s for newcomers, at most {most} s are allowed"));
    verdict("waited", wrong, format!("rounds waited {sum:.1} s for newcomers, {most} s are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;
    use serde_json::json;

    #[test]
    fn waits_at_the_same_time_count_once() {
        let wait = |seen: f64, seconds: f64| json!({"event": "waited_for_newcomers", "seen": seen, "seconds": seconds});
        let node = |name: &str, events: Vec<Value>| NodeHistory { name: name.into(), ids: Vec::new(), events };
        let first = node("a", vec![wait(12.0, 10.0), wait(30.0, 2.0)]);
        let second = node("b", vec![wait(12.5, 10.0), wait(10.0, 1.0), json!({"event": "step", "seen": 40.0})]);
        let history = History { nodes: vec![first, second], aside: Vec::new(), diary: Vec::new() };
        // From 2 to 12.5, and from 28 to 30.
        assert!(waited(&history, 12.5).ok, "{}", waited(&history, 12.5).detail);
        let red = waited(&history, 12.0);
        assert!(!red.ok && red.detail.contains("waited 12.5 s"), "{}", red.detail);
        assert!(waited(&History::default(), 0.0).ok);
    }
}
