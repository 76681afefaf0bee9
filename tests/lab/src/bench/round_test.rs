use super::*;
use crate::scenario::Scenario;
use crate::stage::Entry;
use std::path::Path;

fn setting() -> RoundSetting {
    let (codec, engine) = ("int4".into(), "owners".into());
    RoundSetting { preset: "30m".into(), nodes: 2, mbit: 1000, steps: 20, seconds: 60, codec, engine }
}

fn entry(seen: f64, what: What) -> Entry {
    Entry { seen, what, node: None, fault: None, text: String::new(), code: None }
}

/// Rounds of 2 s: 1 s of steps, 0.6 s of reduction, 25 MB sent. One node alone contributed to round 4.
fn node(name: &str) -> NodeHistory {
    let mut events = Vec::new();
    for round in 1..=8u64 {
        let contributors = if round == 4 { vec!["id-a"] } else { vec!["id-a", "id-b"] };
        let seconds = if round == 4 { 30.0 } else { 2.0 };
        events.push(json!({"event": "trained", "seen": 2.0 * round as f64 - 1.0, "round": round, "seconds": 1.0}));
        events.push(json!({
            "event": "committed", "seen": 2.0 * round as f64, "round": round, "contributors": contributors,
            "seconds": seconds, "reduce_seconds": 0.6, "overhead_seconds": 0.9, "bytes_sent": 25_000_000 * round,
        }));
    }
    NodeHistory { name: name.into(), ids: vec![format!("id-{name}")], events }
}

fn history() -> History {
    let diary = vec![entry(3.0, What::AllIn), entry(15.0, What::Closing)];
    History { nodes: vec![node("a"), node("b")], aside: Vec::new(), diary }
}

#[test]
fn a_round_is_taken_apart() {
    let cost = RoundCost::of(&history(), 2, 1000.0).expect("figures");
    // Commits 2 to 7 are within the time; of the five rounds that end with one of them all but the fourth are whole.
    assert_eq!((cost.rounds, cost.round_seconds, cost.train_seconds, cost.reduce_seconds), (4, 2.0, 1.0, 0.6));
    assert!((cost.rest_seconds - 0.4).abs() < 1e-9, "{cost:?}");
    assert_eq!((cost.sent_bytes, cost.wire_seconds, cost.beyond_seconds), (25e6, 0.2, 0.8));
    assert_eq!(cost.cpu_seconds, None, "no sample was taken");
    let text = setting().text(&cost, 2);
    assert!(text.contains("0.200 s (25.0 MB at 1000 Mbit/s)") && text.contains("not known"), "{text}");
    let row = setting().row(&cost, 2, true);
    assert_eq!((&row["bench"], &row["wire_seconds"], &row["ok"]), (&json!("round"), &json!(0.2), &json!(true)));
}

#[test]
fn rounds_without_everybody_give_no_figures() {
    let why = RoundCost::of(&history(), 3, 1000.0).expect_err("never three");
    assert!(why.to_string().contains("no two commits in a row"), "{why}");
    assert!(RoundCost::of(&History::default(), 2, 1000.0).is_err());
}

#[test]
fn codec_and_engine_reach_the_run_file() {
    let scenario = Scenario::parse(&setting().scenario(), Path::new("bench-round.toml")).expect("a scenario");
    let sync = scenario.run["sync"].as_table().expect("a table");
    assert_eq!((sync["codec"].as_str(), sync["engine"].as_str()), (Some("int4"), Some("owners")));
    assert_eq!(scenario.topology.nodes, 2);
}
