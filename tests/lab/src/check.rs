//! The rules for a history, each checked by itself. A rule that finds nothing wrong tells what it looked at.

use crate::history::{Commit, History};
use crate::scenario::{Expect, Needed, NeededExit, Never, Scenario};
use crate::stage::{Entry, What};
use crate::verdict::{Check, verdict};
use crate::{bounds, costs, steps, waits};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Events that no scenario may have unless its file allows them.
const NEVER: [&str; 2] = ["split_brain", "own_fault"];
/// Exit statuses of a broken program: a panic, an abort, a bad access.
const BROKEN: [i32; 4] = [101, 134, 135, 139];

/// Lines shown of the log of a process that ended unexpectedly, and characters of each.
const WORDS: usize = 5;
const WIDTH: usize = 200;

/// All verdicts. `audits` are the results of `starling audit` on each node.
pub fn all(scenario: &Scenario, history: &History, audits: &[(String, bool, String)], logs: &Path) -> Vec<Check> {
    let expect = &scenario.expect;
    let mut checks = vec![
        trouble(scenario, history),
        faults(scenario, history),
        parity(history),
        lineages(history, expect.forks),
        durability(history),
        samples(audits, expect.given_up),
        liveness(history, expect.max_gap_s),
        rounds(history, expect.rounds),
        exits(scenario, history, logs),
        panics(logs),
        absent(history, expect),
    ];
    checks.extend(expect.never.iter().map(|barred| never(scenario, history, barred)));
    checks.extend(expect.events.iter().map(|needed| event(scenario, history, needed)));
    let sizes =
        [("rss_kib", ("memory in MiB", 1024), expect.rss_max_mib), ("files", ("descriptors", 1), expect.files_max)];
    checks.extend(
        sizes.into_iter().filter_map(|(key, unit, most)| Some(bounds::size(scenario, history, key, unit, most?))),
    );
    checks.extend(expect.costs.iter().map(|most| costs::cost(scenario, history, most)));
    checks.extend(expect.counted.iter().map(|needed| bounds::counted(scenario, logs, needed)));
    checks.extend(expect.exits.iter().map(|needed| exit(history, logs, needed)));
    checks.extend(expect.steps.iter().map(|needed| steps::chosen(history, needed)));
    if !expect.apart.is_empty() {
        checks.push(turns(scenario, history));
    }
    if let Some(most) = expect.departures_max {
        checks.push(departures(history, most));
    }
    if let Some(most) = expect.failed_attempts {
        checks.push(attempts(history, most));
    }
    if let Some(most) = expect.nats_per_byte {
        checks.push(validation(history, most));
    }
    if let Some(most) = expect.formed_s {
        checks.push(formed(history, most));
    }
    if let Some(most) = expect.waited_s_max {
        checks.push(waits::waited(history, most));
    }
    checks
}

/// Checks that the lab came to the scenario's end, with all live nodes in one commit.
fn trouble(scenario: &Scenario, history: &History) -> Check {
    let wrong = history.diary.iter().find(|e| e.what == What::Trouble).map(|e| e.text.clone());
    let all_in = history.when(What::AllIn);
    let wrong = wrong.or_else(|| all_in.is_none().then(|| "the nodes never were all in one round".into()));
    if !scenario.ends_by_itself() {
        return verdict("together", wrong, "all live nodes contributed to one commit at the end, and hold it".into());
    }
    // If the run's own budget ends the run, all nodes that came to that end must have come to the same record.
    let finished = |name: &str| {
        let of = |e: &&Entry| e.what == What::Ended && e.node.as_deref() == Some(name);
        history.diary.iter().rfind(of).is_some_and(|e| e.code == Some(0) && e.text == "by itself")
    };
    let nodes = history.nodes.iter().filter(|n| finished(&n.name));
    let ends: Vec<(&str, Option<&Value>)> = nodes.map(|n| (n.name.as_str(), n.named("committed").last())).collect();
    let record = |(_, last): &(&str, Option<&Value>)| last.map(|e| e["record"].to_string());
    let other = ends.iter().find(|end| record(end) != record(&ends[0]));
    let wrong =
        wrong.or_else(|| other.map(|(name, _)| format!("{} and {name} ended with different records", ends[0].0)));
    let wrong = wrong.or_else(|| ends.is_empty().then(|| "no node came to the end of the run".into()));
    verdict("together", wrong, format!("{} nodes came to the end of the run, with one record", ends.len()))
}

/// Checks that every fault of the scenario began.
fn faults(scenario: &Scenario, history: &History) -> Check {
    let missing = (1..=scenario.faults.len()).find(|n| began(history, *n).is_none() && !left_out(history, *n));
    let wrong = missing.map(|n| format!("fault {n} ({}) never began", scenario.faults[n - 1].what));
    verdict("faults", wrong, format!("{} faults, each of which began", scenario.faults.len()))
}

/// Checks that nodes hold one state of a record, and one record at a place in a lineage.
pub fn parity(history: &History) -> Check {
    let commits = history.commits();
    let broken = parity_breaks(history, &commits);
    let records: BTreeSet<&str> = commits.iter().map(|c| c.record).collect();
    let wrong = broken.first().cloned().or_else(|| commits.is_empty().then(|| "nothing was committed".into()));
    verdict("parity", wrong, format!("{} records, {} times held with the same state", records.len(), commits.len()))
}

/// Every disagreement, as text.
pub fn parity_breaks(history: &History, commits: &[Commit<'_>]) -> Vec<String> {
    let name = |c: &Commit<'_>| history.nodes[c.node].name.clone();
    let (mut roots, mut places, mut broken) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for commit in commits {
        let known = roots.entry(commit.record).or_insert(commit);
        if known.root != commit.root {
            broken.push(format!(
                "round {}: {} and {} hold different states of one record",
                commit.round,
                name(known),
                name(commit)
            ));
        }
    }
    // A place that one node has committed must not be a given-up round of another.
    for place in history.places() {
        let known = places.entry((place.lineage, place.seq)).or_insert(place);
        if known.record != place.record {
            let name = |node: usize| &history.nodes[node].name;
            let (one, other) = (name(known.node), name(place.node));
            broken.push(format!("seq {}: {one} and {other} have committed different records", place.seq));
        }
    }
    broken
}

/// Checks that no node forked, or, with `forks`, that all nodes are in one lineage again at the end.
fn lineages(history: &History, forks: bool) -> Check {
    let forked = history.nodes.iter().find(|n| n.named("forked").next().is_some());
    let wrong = forked.filter(|_| !forks).map(|n| format!("{} went on in a lineage of its own", n.name));
    let last: BTreeSet<&str> = last_commits(history).into_values().map(|c| c.lineage).collect();
    let wrong = wrong.or_else(|| (last.len() > 1).then(|| format!("{} lineages live on at the end", last.len())));
    verdict("one flock", wrong, "one lineage at the end".into())
}

/// The last commit of each node that still ran when the nodes were asked to end.
fn last_commits(history: &History) -> BTreeMap<usize, Commit<'_>> {
    let closing = history.when(What::Closing).unwrap_or(f64::INFINITY);
    let mut last = BTreeMap::new();
    for commit in history.commits() {
        if history.lived(&history.nodes[commit.node].name, closing) || closing.is_infinite() {
            last.insert(commit.node, commit);
        }
    }
    last
}

/// Checks that no node had a commit, in the lineage that lives on, beyond the head at the end.
fn durability(history: &History) -> Check {
    let commits = history.commits();
    let Some(head) = last_commits(history).into_values().max_by_key(|c| c.seq).or(commits.last().cloned()) else {
        return verdict("durability", Some("nothing was committed".into()), String::new());
    };
    let ahead = commits.iter().filter(|c| c.lineage == head.lineage && c.seq > head.seq).max_by_key(|c| c.seq);
    let wrong = ahead.map(|c| {
        let who = &history.nodes[c.node].name;
        format!("{who} has committed seq {}, and the last that anybody holds at the end is {}", c.seq, head.seq)
    });
    verdict("durability", wrong, format!("head at the end: seq {}, round {}", head.seq, head.round))
}

/// Checks, by each node's own records, that every sample counted once and that at most the share `most` was given up.
fn samples(audits: &[(String, bool, String)], most: f64) -> Check {
    let share = |text: &str| {
        let (used, given_up) = (audited(text, " used"), audited(text, " given up"));
        if given_up == 0 { 0.0 } else { given_up as f64 / (used + given_up) as f64 }
    };
    let wrong = audits.iter().find(|(_, ok, text)| !ok || share(text) > most);
    let wrong = wrong.map(|(name, _, text)| format!("{name}: {}", text.trim()));
    let wrong = wrong.or_else(|| audits.is_empty().then(|| "no node has left records".into()));
    let lost = audits.iter().map(|(_, _, text)| audited(text, " given up")).max().unwrap_or_default();
    let told = if lost == 0 { "none".into() } else { format!("at most {lost}") };
    verdict(
        "samples",
        wrong,
        format!("{} nodes' records audited: every sample counted once, {told} given up", audits.len()),
    )
}

/// The sum of all numbers before that word in an audit: of each epoch, and of the older epochs, whose common line ends
/// in it.
fn audited(text: &str, word: &str) -> u64 {
    let parts = text.split([',', '\n']).filter_map(|part| part.trim().strip_suffix(word));
    parts.filter_map(|part| part.rsplit(' ').next()?.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// The longest time without a commit after all nodes are in, in seconds; and its beginning.
pub fn longest_gap(history: &History) -> Option<(f64, f64)> {
    let (from, to) = (history.when(What::AllIn)?, history.when(What::Closing)?);
    let times = history.first_commits().into_iter().map(|c| c.seen).filter(|t| (from..=to).contains(t));
    // The last gap still runs when the nodes are asked to end.
    let times: Vec<f64> = std::iter::once(from).chain(times).chain([to]).collect();
    times.windows(2).map(|w| (w[1] - w[0], w[0])).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn liveness(history: &History, most: f64) -> Check {
    let Some((gap, since)) = longest_gap(history) else {
        return verdict("liveness", Some("no two commits after everybody was in".into()), String::new());
    };
    let at = since - history.start();
    let wrong =
        (gap > most).then(|| format!("{gap:.1} s without a commit, from {at:.1} s on; at most {most} s are allowed"));
    verdict("liveness", wrong, format!("longest time without a commit: {gap:.1} s of at most {most} s"))
}

fn rounds(history: &History, least: u64) -> Check {
    let last = history.commits().iter().map(|c| c.round).max().unwrap_or_default();
    let wrong = (last < least).then(|| format!("{last} rounds, {least} were to be"));
    verdict("rounds", wrong, format!("{last} rounds, {least} were to be at least"))
}

/// Checks that processes ended only as asked, by the run's own end, or with the scenario's permission.
fn exits(scenario: &Scenario, history: &History, logs: &Path) -> Check {
    let allowed = |name: &str| {
        let machine =
            scenario.topology.seats.iter().position(|s| name == s.name || name == format!("{}-double", s.name));
        scenario.runs_another_program(name)
            || machine.is_some_and(|m| scenario.expect.may_end(&scenario.topology, m, name))
    };
    let wrong = history.diary.iter().filter(|e| e.what == What::Ended).find_map(|e| {
        let (name, code) = (e.node.as_deref()?, e.code.unwrap_or(-1));
        let killed = e.text == "as asked" && (code == 137 || code == 0);
        let finished = code == 0 && scenario.ends_by_itself();
        let fine = (finished || killed || allowed(name)) && !BROKEN.contains(&code);
        (!fine).then(|| format!("{name} ended with status {code}, {}{}", e.text, last_words(logs, name)))
    });
    let count = history.diary.iter().filter(|e| e.what == What::Ended).count();
    verdict("exits", wrong, format!("{count} processes ended, each as it was to"))
}

/// The last lines of a process's log; the last events if the process wrote no log.
fn last_words(logs: &Path, name: &str) -> String {
    let read = |file: String| std::fs::read(logs.join(file)).unwrap_or_default();
    let (log, events) = (read(format!("{name}.log")), read(format!("{name}.jsonl")));
    let text = String::from_utf8_lossy(if log.is_empty() { &events } else { &log });
    let lines = Vec::from_iter(text.lines());
    let last = &lines[lines.len().saturating_sub(WORDS)..];
    if last.is_empty() { String::new() } else { format!("; its last words:{}", below(last.iter().copied())) }
}

/// The lines, each on a line of its own, cut to the terminal's width.
fn below<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| format!("\n          | {}", line.chars().take(WIDTH).collect::<String>())).collect()
}

/// Checks that no log tells of a panic.
fn panics(logs: &Path) -> Check {
    let files: Vec<_> =
        std::fs::read_dir(logs).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    let mut read = 0;
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "log")) {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        read += 1;
        if let Some(at) = text.lines().position(|l| l.contains("panicked at")) {
            let lines = text.lines().skip(at).take(WORDS);
            return verdict("no panic", Some(format!("{}:{}", path.display(), below(lines))), String::new());
        }
    }
    let none = (read == 0).then(|| format!("there are no logs in {}", logs.display()));
    verdict("no panic", none, format!("none in {read} logs"))
}

fn absent(history: &History, expect: &Expect) -> Check {
    let names: Vec<&str> = NEVER
        .into_iter()
        .filter(|n| !expect.may.iter().any(|m| m == n))
        .chain(expect.absent.iter().map(String::as_str))
        .collect();
    let said = history.nodes.iter().find_map(|node| {
        let event = node.events.iter().find(|e| e["event"].as_str().is_some_and(|name| names.contains(&name)))?;
        Some(format!("{} said {}: {}", node.name, event["event"], shortened(event)))
    });
    verdict("absent", said, format!("nobody said {}", names.join(", ")))
}

/// Checks that an event did not come.
fn never(scenario: &Scenario, history: &History, barred: &Never) -> Check {
    let about = |name: &str| {
        let called = |group: &String| scenario.topology.seats.iter().any(|s| s.name == name && s.is_called(group));
        barred.node.as_ref().is_none_or(called)
    };
    let from = barred.after_fault.map_or(Some(0.0), |n| began(history, n)).unwrap_or(f64::INFINITY);
    let fits = |e: &&Value| {
        let late = e["seen"].as_f64().unwrap_or_default() >= from;
        late && e["event"] == barred.event.as_str() && barred.with.as_ref().is_none_or(|w| e.to_string().contains(w))
    };
    let nodes = history.nodes.iter().filter(|node| about(&node.name));
    let said = nodes.clone().find_map(|node| Some((&node.name, node.events.iter().find(fits)?)));
    let wrong = said.map(|(name, event)| format!("{name} said so: {}", shortened(event)));
    let wrong = wrong.or_else(|| nodes.clone().next().is_none().then(|| "nobody was heard".into()));
    let name = format!("{} never says {}", barred.node.as_deref().unwrap_or("anybody"), barred.event);
    verdict(&name, wrong, format!("{} nodes did not", nodes.count()))
}

/// Checks that each node that cannot be in one commit with another is in some commits.
fn turns(scenario: &Scenario, history: &History) -> Check {
    let (expect, topology) = (&scenario.expect, &scenario.topology);
    let apart = (0..topology.nodes).filter(|n| Expect::lists(&expect.apart, topology, *n));
    let (names, commits) = (history.names(), history.first_commits());
    let counts: Vec<(&str, usize)> = apart
        .map(|n| {
            let name = topology.seats[n].name.as_str();
            let is = |id: &&str| names.get(id).is_some_and(|at| history.nodes[*at].name == name);
            (name, commits.iter().filter(|c| c.contributors.iter().any(is)).count())
        })
        .collect();
    let wrong = counts.iter().find(|(_, count)| *count == 0).map(|(name, _)| format!("{name} is in no commit"));
    let fine = counts.iter().map(|(name, count)| format!("{name} in {count}")).collect::<Vec<_>>().join(", ");
    verdict("turns", wrong, format!("of {} commits {fine}", commits.len()))
}

/// Checks that an event came.
fn event(scenario: &Scenario, history: &History, needed: &Needed) -> Check {
    let stands = |name: &str| match &needed.node {
        None => true,
        Some(wanted) => scenario.topology.seats.iter().any(|s| s.name == name && s.is_called(wanted)),
    };
    let from = needed.after_fault.map_or(Some(0.0), |n| began(history, n));
    let whom = needed.node.as_deref().unwrap_or("somebody");
    let name = format!("{whom} says {}", needed.event);
    if needed.after_fault.is_some_and(|n| left_out(history, n)) {
        return verdict(&name, None, "left out with its fault".into());
    }
    let Some(from) = from else {
        return verdict(&name, Some("the fault that it follows never began".into()), String::new());
    };
    let to = needed.within_s.map_or(f64::INFINITY, |s| from + s);
    let fits = |e: &&Value| {
        let seen = e["seen"].as_f64().unwrap_or_default();
        e["event"] == needed.event.as_str()
            && (from..=to).contains(&seen)
            && needed.with.as_ref().is_none_or(|w| e.to_string().contains(w))
            && needed.peer.as_ref().is_none_or(|peer| is_about(history, e, peer))
    };
    let found = history.nodes.iter().filter(|n| stands(&n.name)).find_map(|n| n.events.iter().find(fits));
    let at =
        found.and_then(|e| e["seen"].as_f64()).unwrap_or_default() - if from > 0.0 { from } else { history.start() };
    let wrong =
        found.is_none().then(|| format!("{whom} never said it{}", if to.is_finite() { " in time" } else { "" }));
    verdict(&name, wrong, format!("after {at:.1} s"))
}

/// The time at which the fault of that number began.
fn began(history: &History, number: usize) -> Option<f64> {
    history.diary.iter().find(|e| e.what == What::FaultBegan && e.fault == Some(number)).map(|e| e.seen)
}

fn left_out(history: &History, number: usize) -> bool {
    history.diary.iter().any(|e| e.what == What::LeftOut && e.fault == Some(number))
}

/// Checks that a process ended as it must.
fn exit(history: &History, logs: &Path, needed: &NeededExit) -> Check {
    let node = &needed.node;
    let name = format!("{node} ends with status {}", needed.code);
    if needed.after_fault.is_some_and(|n| left_out(history, n)) {
        return verdict(&name, None, "left out with its fault".into());
    }
    let Some(from) = needed.after_fault.map_or(Some(0.0), |n| began(history, n)) else {
        return verdict(&name, Some("the fault that it follows never began".into()), String::new());
    };
    let to = needed.within_s.map_or(f64::INFINITY, |s| from + s);
    let ends = || history.diary.iter().filter(|e| e.what == What::Ended && e.node.as_ref() == Some(node));
    let found = ends().find(|e| e.code == Some(needed.code) && e.text == "by itself" && (from..=to).contains(&e.seen));
    let Some(found) = found else {
        let others: Vec<String> = ends().map(|e| format!("{} {}", e.code.unwrap_or(-1), e.text)).collect();
        return verdict(&name, Some(format!("it did not in time; its ends: [{}]", others.join(", "))), String::new());
    };
    let log = std::fs::read_to_string(logs.join(format!("{node}.log"))).unwrap_or_default();
    let unsaid = needed.with.as_ref().filter(|text| !log.contains(text.as_str()));
    let after = found.seen - if from > 0.0 { from } else { history.start() };
    verdict(&name, unsaid.map(|text| format!("it did, and never said {text:?}")), format!("after {after:.1} s"))
}

/// Whether the event's peer is the node of that name.
fn is_about(history: &History, event: &Value, name: &str) -> bool {
    let mut ids = history.nodes.iter().filter(|n| n.name == name).flat_map(|n| &n.ids);
    ids.any(|id| event["peer"] == id.as_str())
}

fn departures(history: &History, most: u64) -> Check {
    let mut gone = BTreeSet::new();
    for event in history.nodes.iter().flat_map(|n| n.named("member_left")) {
        gone.insert((event["member"].to_string(), event["round"].to_string()));
    }
    let wrong = (gone.len() as u64 > most).then(|| format!("{} departures, at most {most} are allowed", gone.len()));
    verdict("departures", wrong, format!("{} of at most {most}", gone.len()))
}

fn attempts(history: &History, most: f64) -> Check {
    let key = |e: &Value| (e["round"].as_u64(), e["attempt"].as_u64());
    let of = |name: &str| -> BTreeSet<_> {
        history.nodes.iter().flat_map(|n| n.events.iter().filter(|e| e["event"] == name).map(key)).collect()
    };
    let (started, failed) = (of("attempt_started").len(), of("attempt_failed").len());
    let share = failed as f64 / started.max(1) as f64;
    let wrong =
        (share > most).then(|| format!("{failed} of {started} attempts failed, at most {:.0} % may", most * 100.0));
    verdict("attempts", wrong, format!("{failed} of {started} attempts failed"))
}

/// The flock came together in time.
fn formed(history: &History, most: f64) -> Check {
    let (started, all_in) = (history.when(What::Started), history.when(What::AllIn));
    let Some(took) = started.zip(all_in).map(|(started, all_in)| all_in - started) else {
        return verdict("formed", Some("the nodes never were all in one round".into()), String::new());
    };
    let wrong =
        (took > most).then(|| format!("all nodes were in one commit after {took:.1} s, at most {most} may pass"));
    verdict("formed", wrong, format!("all nodes were in one commit after {took:.1} s"))
}

fn validation(history: &History, most: f64) -> Check {
    let told = history.nodes.iter().flat_map(|n| n.named("validated"));
    let value = |e: &Value| Some((e["seen"].as_f64()?, e["nats_per_byte"].as_f64().unwrap_or(f64::NAN)));
    let last = told.filter_map(value).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, value)| value);
    let wrong = match last {
        None => Some("nobody has validated".into()),
        Some(value) if value.is_nan() || value > most => {
            Some(format!("{value:.3} nats per byte, {most} was to be reached"))
        }
        Some(_) => None,
    };
    verdict("validation", wrong, format!("{:.3} nats per byte, at most {most}", last.unwrap_or(f64::NAN)))
}

fn shortened(event: &Value) -> String {
    event.to_string().chars().take(200).collect()
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
