//! The summary of one scenario.

use super::Figures;
use crate::check;
use crate::history::{Commit, History};
use crate::scenario::Scenario;
use crate::stage::{Entry, What};
use crate::verdict::Check;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// `report.json`. Fields are only ever added.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub scenario: String,
    pub about: String,
    pub covers: Vec<String>,
    /// Whether every check holds; with `must_fail`, whether the nodes ran and one of these checks failed.
    pub ok: bool,
    /// Checks of which at least one must fail, to find the injected bug.
    pub must_fail: Vec<String>,
    pub checks: Vec<Check>,
    pub nodes: Vec<NodeRow>,
    /// Records committed by any node.
    pub commits: u64,
    pub rounds: u64,
    pub tokens: u64,
    /// Longest time without a commit after all nodes were in; null if they never were.
    pub max_gap_s: Option<f64>,
    /// Number of records with two states, and of places with two records.
    pub parity_breaks: u64,
    pub recoveries: Vec<Recovery>,
    pub figures: Figures,
    /// Seconds from the lab's first step to the last event.
    pub seconds: f64,
    #[serde(default)]
    pub start: Start,
    pub seed: u64,
    /// Whether it was played without an emulated network.
    pub plain: bool,
    /// The faults that were left out for want of an emulated network.
    pub left_out: Vec<String>,
}

/// The time until the nodes ran, in seconds since the lab's first step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Start {
    /// All machines are wired, and every node of the beginning has reported that it runs; null if one never did.
    pub running_s: Option<f64>,
    /// All of them contributed to one commit: each was found, let in and has trained a round. Null if none had all.
    pub all_in_s: Option<f64>,
}

/// One node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeRow {
    pub name: String,
    /// Rounds that it contributed to.
    pub rounds: u64,
    /// Tokens that it trained.
    pub tokens: u64,
    pub bytes_sent: u64,
    pub state_root: String,
    pub starts: u64,
    /// Whether it ran when the nodes were asked to end.
    pub alive: bool,
}

/// The duration of a fault's effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovery {
    pub fault: String,
    /// Seconds from the lab's first entry to the fault.
    pub at_s: f64,
    /// From the fault to the next commit by any node; null without one.
    pub seconds: Option<f64>,
    /// From its end (or, if it stays, from its beginning) to a commit of all nodes that lived then.
    pub whole_seconds: Option<f64>,
}

impl Report {
    pub fn new(
        scenario: &Scenario,
        history: &History,
        audits: &[(String, bool, String)],
        folder: &Path,
        plain: bool,
    ) -> Self {
        let checks = check::all(scenario, history, audits, &folder.join("logs"));
        let start = start(scenario, history);
        let commits = history.first_commits();
        let all = history.commits();
        let must = &scenario.must_fail;
        let ok = match must.is_empty() {
            true => checks.iter().all(|c| c.ok),
            false => {
                checks.iter().any(|c| !c.ok && must.contains(&c.name)) && was_played(must, &checks, &start, history)
            }
        };
        let last_seen = history.diary.last().map_or(0.0, |e| e.seen);
        let left_out = history.diary.iter().filter(|e| e.what == What::LeftOut).map(|e| e.text.clone()).collect();
        Self {
            scenario: scenario.name.clone(),
            about: scenario.about.clone(),
            covers: scenario.covers.clone(),
            ok,
            must_fail: must.clone(),
            checks,
            nodes: rows(history),
            commits: commits.len() as u64,
            rounds: all.iter().map(|c| c.round).max().unwrap_or_default(),
            tokens: all.iter().filter_map(|c| c.event["tokens"].as_u64()).max().unwrap_or_default(),
            max_gap_s: check::longest_gap(history).map(|(gap, _)| gap),
            parity_breaks: check::parity_breaks(history, &all).len() as u64,
            recoveries: recoveries(history, &commits),
            figures: Figures::new(scenario, history),
            seconds: last_seen - history.start(),
            start,
            seed: scenario.seed,
            plain,
            left_out,
        }
    }

    /// The checks as text for the terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "\n{}: {} commits, {} rounds, longest time without a commit {}, {:.0} s in all\n",
            self.scenario,
            self.commits,
            self.rounds,
            told(self.max_gap_s),
            self.seconds
        );
        let (running, all_in) = (told(self.start.running_s), told(self.start.all_in_s));
        text += &format!("        all nodes ran after {running}, and had a commit together after {all_in}\n");
        for check in &self.checks {
            let (mark, how) = match (check.ok, self.must_fail.contains(&check.name)) {
                (true, _) => ("ok  ", ""),
                (false, true) => ("ok  ", "fails, as it must: "),
                // The injected bug was found, and fails this check as well.
                (false, false) if self.ok => ("    ", "fails, too: "),
                (false, false) => ("FAIL", ""),
            };
            text += &format!("  {mark}  {:24} {how}{}\n", check.name, check.detail);
        }
        for recovery in &self.recoveries {
            let (next, whole) = (told(recovery.seconds), told(recovery.whole_seconds));
            text += &format!("        {:40} next commit {next}, all together {whole}\n", recovery.fault);
        }
        text
    }

    /// Why the scenario failed, a line for each reason; empty if it passed.
    pub fn wrong(&self) -> Vec<String> {
        if self.ok {
            return Vec::new();
        }
        let failed = self.checks.iter().filter(|c| !c.ok && !self.must_fail.contains(&c.name));
        let mut wrong: Vec<_> = failed
            .map(|c| format!("{}: {}: {}", self.scenario, c.name, c.detail.lines().next().unwrap_or_default()))
            .collect();
        if wrong.is_empty() {
            let must = self.must_fail.join(", ");
            wrong.push(format!("{}: no check found the injected bug, or not all nodes ran: {must}", self.scenario));
        }
        wrong
    }
}

/// Whether nodes ran, so that a failed check tells of the injected bug: nodes that do not start, or panic, fail it too.
fn was_played(must: &[String], checks: &[Check], start: &Start, history: &History) -> bool {
    let named = |name: &str| must.iter().any(|m| m == name);
    let fine = |name: &str| named(name) || checks.iter().all(|c| c.ok || c.name != name);
    let in_time = history.when(What::AllIn).is_some() || named("together");
    start.running_s.is_some() && in_time && fine("no panic") && fine("faults")
}

/// A time as text.
pub(super) fn told(seconds: Option<f64>) -> String {
    seconds.map_or("never".into(), |s| format!("{s:.1} s"))
}

fn start(scenario: &Scenario, history: &History) -> Start {
    let seats = &scenario.topology.seats;
    let first = |n: &crate::history::NodeHistory| n.named("started").next().and_then(|e| e["seen"].as_f64());
    let there = history.nodes.iter().filter(|n| seats.iter().any(|s| s.name == n.name && !s.later));
    let last = there.map(first).try_fold(0.0f64, |last, seen| seen.map(|seen| last.max(seen)));
    let since = |seen: f64| seen - history.start();
    Start { running_s: last.map(since), all_in_s: history.when(What::AllIn).map(since) }
}

fn rows(history: &History) -> Vec<NodeRow> {
    let closing = history.when(What::Closing).unwrap_or(f64::INFINITY);
    let row = |node: &crate::history::NodeHistory| {
        let last = node.named("committed").last();
        let mine = |c: &&serde_json::Value| {
            c["contributors"]
                .as_array()
                .is_some_and(|c| c.iter().any(|id| node.ids.iter().any(|own| id == own.as_str())))
        };
        NodeRow {
            name: node.name.clone(),
            rounds: node.named("committed").filter(mine).count() as u64,
            tokens: node.named("trained").filter_map(|e| e["tokens"].as_u64()).sum(),
            bytes_sent: node.bytes_sent(),
            state_root: last.and_then(|e| e["state_root"].as_str()).unwrap_or_default().to_owned(),
            starts: history.lives(&node.name).len() as u64,
            alive: history.lived(&node.name, closing),
        }
    };
    history.nodes.iter().chain(&history.aside).map(row).collect()
}

fn recoveries(history: &History, commits: &[Commit<'_>]) -> Vec<Recovery> {
    let began = history.diary.iter().filter(|e| e.what == What::FaultBegan);
    began.map(|fault| recovery(history, commits, fault)).collect()
}

fn recovery(history: &History, commits: &[Commit<'_>], fault: &Entry) -> Recovery {
    let ended = history.diary.iter().find(|e| e.what == What::FaultEnded && e.fault == fault.fault);
    let from = ended.map_or(fault.seen, |e| e.seen);
    let names = history.names();
    let whole = |c: &&Commit<'_>| {
        let there: Vec<usize> = c.contributors.iter().filter_map(|id| names.get(id).copied()).collect();
        // A double is not counted: it shares its id with the node that it doubles.
        let asked =
            |n: &usize| history.lived(&history.nodes[*n].name, c.seen) && !history.nodes[*n].name.ends_with("-double");
        c.seen > from && (0..history.nodes.len()).filter(asked).all(|n| there.contains(&n))
    };
    Recovery {
        fault: fault.text.clone(),
        at_s: fault.seen - history.start(),
        seconds: commits.iter().find(|c| c.seen > fault.seen).map(|c| c.seen - fault.seen),
        whole_seconds: commits.iter().find(whole).map(|c| c.seen - from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;
    use serde_json::json;

    /// The check in `must_fail` fails in each case; only in the first did the nodes run as they must.
    #[test]
    fn a_injected_bug_is_found_only_where_something_ran() {
        let check = |name: &str, ok| Check { name: name.into(), ok, detail: String::new() };
        let must = ["rounds".to_owned()];
        let played = |running: Option<f64>, all_in: bool, panicked: bool| {
            let start = Start { running_s: running, all_in_s: None };
            let entry = |what| Entry { seen: 1.0, what, node: None, fault: None, text: String::new(), code: None };
            let diary = if all_in { vec![entry(What::AllIn)] } else { Vec::new() };
            let checks = [check("rounds", false), check("no panic", !panicked), check("faults", true)];
            was_played(&must, &checks, &start, &History { diary, ..History::default() })
        };
        assert!(played(Some(1.0), true, false));
        assert!(!played(None, true, false), "a node never ran");
        assert!(!played(Some(1.0), false, false), "they never were together");
        assert!(!played(Some(1.0), true, true), "one panicked");
    }

    #[test]
    fn a_check_that_was_to_fail_is_no_failure_in_the_terminal() {
        let check = |name: &str, ok| Check { name: name.into(), ok, detail: "why".into() };
        let report = |ok, must: &[&str], checks: Vec<Check>| Report {
            scenario: "s".into(),
            ok,
            must_fail: must.iter().map(|&name| name.to_owned()).collect(),
            checks,
            ..Report::default()
        };
        let found =
            report(true, &["rounds"], vec![check("rounds", false), check("parity", true), check("liveness", false)]);
        let text = found.text();
        assert!(text.contains("fails, as it must: why") && text.contains("fails, too: why") && !text.contains("FAIL"));
        assert!(found.wrong().is_empty());
        let red = report(false, &[], vec![check("rounds", false), check("parity", true)]);
        assert!(red.text().contains("FAIL  rounds"));
        assert_eq!(red.wrong(), ["s: rounds: why"]);
        let missed = report(false, &["rounds"], vec![check("rounds", true)]);
        assert_eq!(missed.wrong(), ["s: no check found the injected bug, or not all nodes ran: rounds"]);
        let panicked = report(false, &["rounds"], vec![check("rounds", false), check("no panic", false)]);
        assert_eq!(panicked.wrong(), ["s: no panic: why"]);
    }

    #[test]
    fn each_process_counts_its_bytes_from_nought() {
        let sent = |bytes: u64| json!({"event": "committed", "bytes_sent": bytes});
        let started = || json!({"event": "started"});
        // The second process has sent more at its first commit than the first one in all.
        let events = vec![started(), sent(40), sent(100), started(), sent(150), sent(160), started()];
        let node = NodeHistory { name: "n".into(), ids: Vec::new(), events };
        assert_eq!(node.bytes_sent(), 260);
    }
}
