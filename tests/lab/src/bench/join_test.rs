use super::*;
use crate::history::NodeHistory;
use crate::scenario::{Plan, Scenario, When};
use crate::stage::Entry;
use std::path::Path;

fn setting() -> JoinSetting {
    JoinSetting { preset: "30m".into(), donors: 3, mbit: 100, newcomer_mbit: 1000, steps: 60, at_round: 8, disk_mib: 0 }
}

fn entry(seen: f64, what: What, node: Option<&str>) -> Entry {
    Entry { seen, what, node: node.map(String::from), fault: None, text: String::new(), code: None }
}

/// Rounds of 2 s; the newcomer starts at 10.5, its first two rounds take 3 s, and it contributes to the third.
fn history() -> History {
    let ends = [2.0, 4.0, 6.0, 8.0, 10.0, 13.0, 16.0, 18.0, 20.0];
    let commit = |(n, seen): (usize, &f64)| {
        let with = if *seen >= 18.0 { vec!["id-donor", "id-late"] } else { vec!["id-donor"] };
        json!({
            "event": "committed", "seen": seen, "seq": n + 1, "round": n + 1, "record": format!("r{n}"), "lineage": "l",
            "state_root": format!("s{n}"), "contributors": with,
        })
    };
    let donor = NodeHistory {
        name: "donor".into(),
        ids: vec!["id-donor".into()],
        events: ends.iter().enumerate().map(commit).collect(),
    };
    let late = NodeHistory {
        name: NEWCOMER.into(),
        ids: vec!["id-late".into()],
        events: vec![
            json!({"event": "started", "seen": 11.0, "parameters": 10_000_000}),
            json!({"event": "caught_up", "seen": 14.5, "bytes": 75_000_000, "seconds": 3.0}),
            json!({"event": "caught_up", "seen": 16.5, "bytes": 9, "seconds": 0.1}),
        ],
    };
    let diary = vec![
        entry(0.0, What::Started, Some("donor")),
        entry(2.5, What::AllIn, None),
        entry(10.5, What::Started, Some(NEWCOMER)),
    ];
    History { nodes: vec![donor, late], aside: Vec::new(), diary }
}

#[test]
fn a_join_is_measured_from_the_newcomers_start() {
    let join = Join::of(&history(), 300.0).expect("a join");
    assert_eq!((join.state_bytes, join.fetched_bytes), (80_000_000, 75_000_000));
    assert_eq!((join.state_seconds, join.fetch_seconds, join.contribution_seconds), (4.0, 3.0, 7.5));
    // 25 MB/s of 37.5.
    assert!((join.share_of_lines - 2.0 / 3.0).abs() < 1e-9, "{}", join.share_of_lines);
    assert_eq!((join.rounds_before, join.round_seconds_before), (3, 2.0));
    assert_eq!((join.rounds_meanwhile, join.round_seconds_meanwhile), (3, 3.0));
    assert_eq!(join.round_ratio(), 1.5);
    let text = setting().text(&join);
    assert!(text.contains("67 % of the donors' 300 Mbit/s") && text.contains("3.00 s, median of 3"), "{text}");
    let row = setting().row(&join, true);
    assert_eq!((&row["bench"], &row["contribution_seconds"]), (&json!("join"), &json!(7.5)));
}

#[test]
fn a_newcomer_that_never_takes_part_has_no_figures() {
    let mut idle = history();
    idle.nodes[0].events.retain(|event| event["seen"].as_f64() < Some(18.0));
    let why = Join::of(&idle, 300.0).expect_err("it contributed to nothing");
    assert!(why.to_string().contains("contributed to no commit"), "{why}");
    let mut stuck = history();
    stuck.nodes[1].events.truncate(1);
    let why = Join::of(&stuck, 300.0).expect_err("it has no state");
    assert!(why.to_string().contains("never had the state"), "{why}");
}

#[test]
fn the_newcomer_comes_while_the_others_fly() {
    let scenario = Scenario::parse(&setting().scenario(), Path::new("bench-join.toml")).expect("a scenario");
    let lines: Vec<(bool, u64)> = scenario.topology.seats.iter().map(|s| (s.later, s.port.down)).collect();
    let donor = (false, 100_000_000);
    assert_eq!(lines[..4], [donor, donor, donor, (true, 1_000_000_000)]);
    assert_eq!(scenario.faults[0].plan, Plan::Start { ticket: false });
    assert_eq!((scenario.faults[0].when, &scenario.faults[0].nodes[..]), (When::Round(8), &[3][..]));
}

#[test]
fn nodes_may_have_disks_of_their_own() {
    let setting = JoinSetting { disk_mib: 3000, ..setting() };
    let scenario = Scenario::parse(&setting.scenario(), Path::new("bench-join.toml")).expect("a scenario");
    assert!(scenario.topology.seats.iter().all(|seat| seat.bootstrap || seat.disk_mib == Some(3000)));
}
