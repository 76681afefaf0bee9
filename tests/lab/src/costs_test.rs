use super::*;
use crate::stage::Entry;
use serde_json::json;
use std::path::Path;

fn entry(seen: f64, what: What, text: String) -> Entry {
    Entry { seen, what, node: None, fault: None, text, code: None }
}

/// A node that takes 50 ms of processor time a round and does a round a second; from second 40 on it takes `beside_ms`
/// a second and `mib` more.
fn history(beside_ms: u64, mib: u64) -> History {
    let mut diary = vec![entry(5.0, What::AllIn, String::new()), entry(40.0, What::FaultBegan, String::new())];
    for second in 0..80u64 {
        let flooded = second.saturating_sub(40);
        let kib = 1024 * (100 + if flooded > 0 { mib } else { 0 });
        let row = json!([{"node": "a", "cpu_ms": 50 * second + beside_ms * flooded, "rss_kib": kib}]);
        diary.push(entry(second as f64, What::Sizes, row.to_string()));
    }
    diary.push(entry(80.0, What::FaultBegan, String::new()));
    let commit = |second: u64| json!({"event": "committed", "seen": second as f64 + 0.5});
    let node = NodeHistory { name: "a".into(), ids: Vec::new(), events: (0..80).map(commit).collect() };
    History { nodes: vec![node], aside: Vec::new(), diary }
}

#[test]
fn a_round_has_its_share_of_the_processor_time() {
    let history = history(0, 0);
    let share = |within| of_a_round(&history, &history.nodes[0], within);
    assert!(share(0.0..40.0).is_some_and(|s| (s - 0.05).abs() < 1e-9), "{:?}", share(0.0..40.0));
    assert_eq!(share(0.0..5.0), None, "five seconds prove nothing");
}

#[test]
fn the_cost_of_a_fault_is_told_from_the_cost_of_the_rounds() {
    let scenario =
        Scenario::parse("end_s = 1\n[[nodes]]\nname = \"a\"\n", Path::new("injected.toml")).expect("a scenario");
    let most = Cost { of_fault: 1, cpu_percent: 2.0, mib: 8.0 };
    let check = |ms, mib| cost(&scenario, &history(ms, mib), &most);
    assert!(check(15, 7).ok, "{}", check(15, 7).detail);
    assert!(check(15, 7).detail.contains("a 1.5 % of a core and 7.0 MiB"), "{}", check(15, 7).detail);
    assert!(!check(25, 7).ok && !check(15, 9).ok);
    assert!(!cost(&scenario, &history(0, 0), &Cost { of_fault: 3, ..most.clone() }).ok, "no such fault");
    assert!(!cost(&scenario, &History::default(), &most).ok, "nothing seen proves nothing");
}
