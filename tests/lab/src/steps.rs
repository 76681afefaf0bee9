//! The inner steps and the codec that a flock chooses for its rounds.

use crate::history::History;
use crate::scenario::Chosen;
use crate::stage::What;
use crate::verdict::{Check, verdict};
use std::collections::BTreeMap;

/// Checks that the inner steps come into their bounds within so many rounds, and the codec to the one that is named, and
/// that they stay there until the next fault begins or ends, or to the end.
pub fn chosen(history: &History, needed: &Chosen) -> Check {
    let Chosen { after_fault, rounds, least, most, codec } = needed;
    let (after_fault, rounds, least, most) = (*after_fault, *rounds, *least, *most);
    let name = match after_fault {
        Some(fault) => format!("steps after fault {fault}"),
        None => "steps".to_owned(),
    };
    let turns = |what: &What| matches!(what, What::AllIn | What::FaultBegan | What::FaultEnded);
    let begins = match after_fault {
        Some(_) => history.diary.iter().find(|e| e.what == What::FaultBegan && e.fault == after_fault).map(|e| e.seen),
        None => history.when(What::AllIn),
    };
    let Some(begins) = begins else {
        return verdict(&name, Some("the moment from which on they count never came".into()), String::new());
    };
    let ends = history.diary.iter().filter(|e| turns(&e.what) && e.seen > begins).map(|e| e.seen).next();
    let ends = ends.unwrap_or(f64::INFINITY);
    let mut steps = BTreeMap::new();
    for commit in history.commits().iter().filter(|commit| (begins..ends).contains(&commit.seen)) {
        let sent = commit.event["codec"].as_str().unwrap_or_default();
        steps.entry(commit.seq).or_insert((commit.event["inner_steps"].as_u64().unwrap_or_default(), sent));
    }
    let course: Vec<(u64, &str)> = steps.into_values().collect();
    let settled = course.get(rounds..).filter(|settled| !settled.is_empty());
    let within = |(steps, sent): &(u64, &str)| {
        (u64::from(least)..=u64::from(most)).contains(steps) && codec.as_deref().is_none_or(|codec| codec == *sent)
    };
    let shown = || {
        let records: Vec<String> = course.iter().map(|(steps, sent)| format!("{steps} {sent}")).collect();
        let asked = codec.as_ref().map(|codec| format!(" and {codec}")).unwrap_or_default();
        format!("{}; {least} to {most}{asked} are asked for from number {} on", records.join(", "), rounds + 1)
    };
    let wrong = match settled {
        None => Some(format!("only {} records came", course.len())),
        Some(settled) => (!settled.iter().all(within)).then(shown),
    };
    verdict(&name, wrong, shown())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::NodeHistory;
    use crate::stage::Entry;
    use serde_json::json;

    fn history(courses: &[(f64, u64, &str)], turns: &[(f64, What, Option<usize>)]) -> History {
        let event = |(seq, (seen, steps, codec)): (usize, &(f64, u64, &str))| {
            json!({"event": "committed", "seen": seen, "seq": seq, "round": seq, "record": format!("{seq}"), "lineage": "l",
                   "state_root": "r", "contributors": [], "inner_steps": steps, "codec": codec})
        };
        let events = courses.iter().enumerate().map(event).collect();
        let entry = |(seen, what, fault): &(f64, What, Option<usize>)| Entry {
            seen: *seen,
            what: *what,
            node: None,
            text: String::new(),
            code: None,
            fault: *fault,
        };
        let node = NodeHistory { name: "a".into(), ids: Vec::new(), events };
        History { nodes: vec![node], aside: Vec::new(), diary: turns.iter().map(entry).collect() }
    }

    #[test]
    fn they_settle_within_their_bounds_until_the_next_fault() {
        let course = [(1.0, 30), (2.0, 30), (3.0, 60), (4.0, 120), (5.0, 120), (6.0, 60), (7.0, 30), (8.0, 30)];
        let course = course.map(|(seen, steps)| (seen, steps, if seen < 4.0 { "int8" } else { "int4" }));
        let turns = [(0.5, What::AllIn, None), (5.5, What::FaultBegan, Some(1))];
        let history = history(&course, &turns);
        let is_ok = |after_fault, rounds, least, most| {
            chosen(&history, &Chosen { after_fault, rounds, least, most, codec: None }).ok
        };
        let sends = |rounds, codec: &str| {
            let codec = Some(codec.to_owned());
            chosen(&history, &Chosen { after_fault: None, rounds, least: 1, most: 1000, codec }).ok
        };
        assert!(sends(3, "int4") && !sends(2, "int4") && !sends(3, "int8"), "the codec changes with the fourth");
        assert!(is_ok(None, 3, 120, 120), "up to the fault");
        assert!(!is_ok(None, 2, 120, 120), "too late");
        assert!(!is_ok(None, 3, 30, 60), "too many steps");
        assert!(is_ok(Some(1), 1, 30, 30));
        assert!(!is_ok(Some(1), 0, 30, 30) && !is_ok(Some(1), 3, 30, 30), "too few records came");
        assert!(!is_ok(Some(2), 0, 1, 1000), "it never began");
    }
}
