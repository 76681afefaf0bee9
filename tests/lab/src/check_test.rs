use super::*;
use crate::history::NodeHistory;
use crate::stage::Entry;
use serde_json::json;
use std::path::PathBuf;

const SCENARIO: &str =
    "end_s = 10\n[[nodes]]\nname = \"a\"\n[[nodes]]\nname = \"b\"\n[expect]\nmax_gap_s = 5\nrounds = 3\n";

fn scenario(more: &str) -> Scenario {
    Scenario::parse(&format!("{SCENARIO}{more}"), &PathBuf::from("injected.toml")).expect("a scenario")
}

fn entry(seen: f64, what: What, node: Option<&str>, text: &str, code: Option<i32>) -> Entry {
    Entry { seen, what, node: node.map(String::from), fault: None, text: text.into(), code }
}

fn committed(seen: f64, node: &str, round: u64) -> Value {
    json!({
        "event": "committed", "seen": seen, "inner_steps": 30, "node": format!("id-{node}"), "seq": round,
        "round": round, "record": format!("r{round}"),
        "lineage": "l", "state_root": format!("s{round}"), "contributors": ["id-a", "id-b"], "tokens": round * 100,
    })
}

/// Two nodes, a commit a second.
fn history() -> History {
    let node = |name: &str| NodeHistory {
        name: name.into(),
        ids: vec![format!("id-{name}")],
        events: (1..=9).map(|n| committed(n as f64, name, n)).collect(),
    };
    let diary = vec![
        entry(0.0, What::Began, None, "", None),
        entry(0.1, What::Started, Some("a"), "", None),
        entry(0.1, What::Started, Some("b"), "", None),
        entry(0.5, What::AllIn, None, "", None),
        entry(9.5, What::Closing, None, "", None),
        entry(9.7, What::Ended, Some("a"), "as asked", Some(0)),
        entry(9.7, What::Ended, Some("b"), "as asked", Some(137)),
    ];
    History { nodes: vec![node("a"), node("b")], aside: Vec::new(), diary }
}

fn audits() -> Vec<(String, bool, String)> {
    vec![("a".into(), true, String::new())]
}

/// The names of the rules that are broken.
fn broken(scenario: &Scenario, history: &History) -> Vec<String> {
    let logs = tempfile::tempdir().expect("a folder");
    std::fs::write(logs.path().join("a.log"), "fine\n").expect("write");
    all(scenario, history, &audits(), logs.path()).into_iter().filter(|c| !c.ok).map(|c| c.name).collect()
}

#[test]
fn a_sound_history_passes_every_check() {
    assert_eq!(broken(&scenario(""), &history()), Vec::<String>::new());
}

/// Each injected failure breaks the rule for it, and no other rule.
#[test]
fn each_rule_finds_its_own() {
    type Mutation = fn(&mut History);
    let mutations: [(&str, Mutation); 14] = [
        ("parity", |h| h.nodes[1].events[4]["state_root"] = "other".into()),
        ("parity", |h| {
            h.nodes[1].events[4]["record"] = "other".into();
            h.nodes[1].events[4]["state_root"] = "other".into();
        }),
        ("one flock", |h| h.nodes[0].events.push(json!({"event": "forked", "seen": 3.0}))),
        ("one flock", |h| h.nodes[1].events[8]["lineage"] = "another".into()),
        ("durability", |h| {
            // Node b has ended before the closing, and its last commit is lost with it.
            let last = committed(9.2, "b", 10);
            h.nodes[1].events.push(last);
            h.diary.insert(4, entry(9.3, What::Ended, Some("b"), "as asked", Some(137)));
        }),
        ("liveness", |h| h.nodes.iter_mut().for_each(|n| drop(n.events.drain(2..8)))),
        ("rounds", |h| h.nodes.iter_mut().flat_map(|n| &mut n.events).for_each(|e| e["round"] = 2.into())),
        ("liveness", |h| h.nodes.iter_mut().for_each(|n| n.events.truncate(3))),
        ("parity", |h| {
            h.nodes[1].events[4] = json!({"event": "skipped", "seen": 5.0, "seq": 5, "lineage": "l", "record": "none"})
        }),
        ("exits", |h| (h.diary[5].text, h.diary[5].code) = ("by itself".into(), Some(0))),
        ("exits", |h| h.diary[6].code = Some(101)),
        ("exits", |h| h.diary[6].text = "by itself".into()),
        ("absent", |h| h.nodes[0].events.push(json!({"event": "split_brain", "seen": 3.0}))),
        ("together", |h| h.diary.push(entry(9.4, What::Trouble, None, "not together", None))),
    ];
    for (rule, mutation) in mutations {
        let mut history = history();
        mutation(&mut history);
        assert_eq!(broken(&scenario(""), &history), [rule]);
    }
}

#[test]
fn panics_and_audits_are_seen() {
    let logs = tempfile::tempdir().expect("a folder");
    std::fs::write(logs.path().join("a.log"), "thread 'x' panicked at src/a.rs:1\n").expect("write");
    let audits = vec![("a".to_owned(), false, "sample 7 counted twice".to_owned())];
    let found = all(&scenario(""), &history(), &audits, logs.path());
    let broken: Vec<&str> = found.iter().filter(|c| !c.ok).map(|c| c.name.as_str()).collect();
    assert_eq!(broken, ["samples", "no panic"]);
    let shown = &found.iter().find(|c| c.name == "no panic").expect("a check").detail;
    assert!(shown.contains("| thread 'x' panicked at src/a.rs:1"), "{shown}");
    let counted = |given_up: u64| format!("epoch 0: 2394 used, 0 leased, 0 waiting, {given_up} given up, 0 left\n");
    for (given_up, fine) in [(0, true), (7, false)] {
        assert_eq!(samples(&[("a".to_owned(), true, counted(given_up))], 0.0).ok, fine, "{given_up} given up");
    }
    let older = "older epochs: 9 used, 0 leased, 0 waiting, 7 given up\nepoch 9: 1 used, 0 leased, 0 waiting, 0 given up, 0 left\n";
    let audits = [("a".to_owned(), true, older.to_owned())];
    assert!(!samples(&audits, 0.4).ok, "older epochs count as well: 7 of 17");
    assert!(samples(&audits, 0.42).ok);
    let empty = tempfile::tempdir().expect("a folder");
    assert!(!panics(empty.path()).ok, "no logs prove nothing");
}

#[test]
fn a_node_that_ended_is_shown_with_its_last_words() {
    let logs = tempfile::tempdir().expect("a folder");
    let lines: String = (1..=9).map(|n| format!("line {n}\n")).collect();
    let mut crashed = history();
    crashed.diary[6].code = Some(134);
    let name = crashed.diary[6].node.clone().expect("a name");
    let shown = |history: &History| exits(&scenario(""), history, logs.path()).detail;
    assert!(shown(&crashed).starts_with(&format!("{name} ended with status 134")) && !shown(&crashed).contains('|'));
    std::fs::write(logs.path().join(format!("{name}.jsonl")), "{\"event\":\"step\"}\n").expect("write");
    assert!(shown(&crashed).ends_with("| {\"event\":\"step\"}"), "no log: the last event");
    std::fs::write(logs.path().join(format!("{name}.log")), lines).expect("write");
    assert!(
        shown(&crashed).ends_with("| line 9")
            && shown(&crashed).contains("line 5")
            && !shown(&crashed).contains("line 4")
    );
}

#[test]
fn every_expectation_of_a_scenario_is_checked() {
    let asked = scenario(
        "departures_max = 0\nfailed_attempts = 0.1\nnats_per_byte = 2.0\nformed_s = 1.0\nwaited_s_max = 2.0\n\
         absent = [\"skipped\"]\n\
         [[expect.steps]]\nrounds = 0\nleast = 30\nmost = 60\n\
         [[expect.events]]\nevent = \"caught_up\"\nnode = \"b\"\n",
    );
    let mut fine = history();
    fine.nodes[1].events.push(json!({"event": "caught_up", "seen": 2.0}));
    fine.nodes[0].events.push(json!({"event": "waited_for_newcomers", "seen": 4.0, "seconds": 1.5}));
    fine.nodes[0].events.push(json!({"event": "validated", "seen": 2.0, "nats_per_byte": 1.5}));
    fine.nodes[0].events.push(json!({"event": "attempt_started", "seen": 2.0, "round": 1, "attempt": 1}));
    assert_eq!(broken(&asked, &fine), Vec::<String>::new());
    type Mutation = fn(&mut History);
    let mutations: [(&str, Mutation); 8] = [
        ("b says caught_up", |h| h.nodes[1].events.retain(|e| e["event"] != "caught_up")),
        ("departures", |h| {
            h.nodes[0].events.push(json!({"event": "member_left", "seen": 1.0, "member": "x", "round": 1}))
        }),
        ("attempts", |h| {
            h.nodes[0].events.push(json!({"event": "attempt_failed", "seen": 1.0, "round": 1, "attempt": 1}))
        }),
        ("formed", |h| {
            let all_in = h.diary.iter_mut().find(|e| e.what == What::AllIn);
            all_in.expect("they were").seen += 1.0;
        }),
        ("waited", |h| h.nodes[1].events.push(json!({"event": "waited_for_newcomers", "seen": 5.0, "seconds": 2.5}))),
        ("validation", |h| h.nodes[0].events.push(json!({"event": "validated", "seen": 3.0, "nats_per_byte": 2.5}))),
        ("steps", |h| h.nodes[0].events[8]["inner_steps"] = json!(61)),
        ("absent", |h| h.nodes[0].events.push(json!({"event": "skipped", "seen": 3.0}))),
    ];
    for (rule, mutation) in mutations {
        let mut history = History { nodes: Vec::new(), aside: Vec::new(), diary: fine.diary.clone() };
        for node in &fine.nodes {
            let (name, ids, events) = (node.name.clone(), node.ids.clone(), node.events.clone());
            history.nodes.push(NodeHistory { name, ids, events });
        }
        mutation(&mut history);
        assert_eq!(broken(&asked, &history), [rule]);
    }
}

/// A required end has the status, is unasked, comes in time, and prints the words.
#[test]
fn an_end_that_must_come_is_looked_for() {
    let asked = scenario(
        "[[expect.exits]]\nnode = \"b\"\ncode = 5\nwith = \"fine\"\nafter_fault = 1\nwithin_s = 3\n\
         [[faults]]\nkind = \"freeze\"\nnodes = [\"b\"]\nat_s = 1\n",
    );
    let ended = |seen: f64, text: &str, code: i32, said: &str| {
        let mut history = history();
        history.diary.insert(4, Entry { fault: Some(1), ..entry(2.0, What::FaultBegan, None, "freeze b", None) });
        history.diary.insert(5, entry(seen, What::Ended, Some("b"), text, Some(code)));
        let logs = tempfile::tempdir().expect("a folder");
        std::fs::write(logs.path().join("b.log"), said).expect("write");
        let all = all(&asked, &history, &audits(), logs.path());
        all.into_iter().filter(|c| !c.ok).map(|c| c.name).collect::<Vec<_>>()
    };
    assert_eq!(ended(3.0, "by itself", 5, "fine\n"), Vec::<String>::new());
    let rule = ["b ends with status 5"];
    assert_eq!(ended(9.0, "by itself", 5, "fine\n"), rule, "too late");
    assert_eq!(ended(3.0, "by itself", 1, "fine\n"), rule, "another status");
    assert_eq!(ended(3.0, "as asked", 5, "fine\n"), rule, "it was asked to");
    assert_eq!(ended(3.0, "by itself", 5, "oh\n"), rule, "without a word");
    assert_eq!(ended(3.0, "by itself", 101, "fine\n"), ["exits", rule[0]], "a panic is never allowed");
}

/// Some faults need an emulated network. Without one their consequences are not required, and the check says so.
#[test]
fn consequences_of_a_fault_that_is_left_out_are_not_required() {
    let more = "[[expect.events]]\nevent = \"quorum_lost\"\nafter_fault = 1\n\
                [[faults]]\nkind = \"cut\"\nbetween = [\"a\", \"b\"]\nat_s = 1\n";
    let asked = scenario(more);
    assert_eq!(broken(&asked, &history()), ["faults", "somebody says quorum_lost"]);
    let mut without = history();
    without.diary.push(Entry { fault: Some(1), ..entry(1.0, What::LeftOut, None, "cut", None) });
    assert_eq!(broken(&asked, &without), Vec::<String>::new());
}

#[test]
fn a_node_that_is_apart_must_be_in_some_commits() {
    let asked = scenario("apart = [\"a\", \"b\"]\n");
    assert_eq!(broken(&asked, &history()), Vec::<String>::new());
    let mut always_b = history();
    for event in always_b.nodes.iter_mut().flat_map(|n| &mut n.events) {
        event["contributors"] = json!(["id-b"]);
    }
    assert_eq!(broken(&asked, &always_b), ["turns"]);
}

#[test]
fn an_event_can_be_barred_of_some_nodes_from_a_fault_on() {
    let asked = scenario(
        "[[expect.never]]\nevent = \"catching_up\"\nnode = \"a\"\nwith = '\"afresh\":true'\nafter_fault = 1\n\
         [[faults]]\nkind = \"freeze\"\nnodes = [\"b\"]\nat_s = 1\n",
    );
    let said = |node: usize, seen: f64, afresh: bool| {
        let mut history = history();
        history.diary.insert(4, Entry { fault: Some(1), ..entry(2.0, What::FaultBegan, None, "freeze b", None) });
        history.nodes[node].events.push(json!({"event": "catching_up", "seen": seen, "afresh": afresh}));
        broken(&asked, &history)
    };
    assert_eq!(said(0, 3.0, true), ["a never says catching_up"]);
    assert_eq!(said(0, 1.5, true), Vec::<String>::new(), "before it");
    assert_eq!(said(0, 3.0, false), Vec::<String>::new(), "without the words");
    assert_eq!(said(1, 3.0, true), Vec::<String>::new(), "somebody else");
}

#[test]
fn an_event_can_be_asked_for_about_one_peer() {
    let asked = scenario("[[expect.events]]\nevent = \"peer_up\"\nnode = \"a\"\npeer = \"b\"\n");
    let mut met = history();
    met.nodes[0].events.push(json!({"event": "peer_up", "seen": 1.0, "peer": "id-other"}));
    assert_eq!(broken(&asked, &met), ["a says peer_up"]);
    met.nodes[0].events.push(json!({"event": "peer_up", "seen": 1.0, "peer": "id-b"}));
    assert_eq!(broken(&asked, &met), Vec::<String>::new());
}
