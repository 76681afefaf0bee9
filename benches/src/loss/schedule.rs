//! The rounds of a lab's run, from the `committed` events in a node's log.
//!
//! A lab's run is bound to its network and its faults, and takes its time. Its rounds, without the time, can be trained
//! again here with other settings: so loss and time are told apart.

use super::rounds::{Round, STEPS_MAX};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read; events are far shorter.
const LINE_MAX: u64 = 1 << 20;
const ROUNDS_MAX: usize = 1 << 20;
/// Most members: all train in this process.
pub const MEMBERS_MAX: usize = 64;

/// The rounds of a lab's run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub rounds: Vec<Round>,
    pub members: usize,
    /// Names the rounds in the keys of rows.
    pub digest: String,
}

/// The fields of an event that matter here; other events have fewer of them.
#[derive(Deserialize)]
struct Event {
    event: String,
    time: f64,
    #[serde(default)]
    round: u64,
    #[serde(default)]
    contributors: Vec<String>,
    #[serde(default)]
    inner_steps: usize,
    #[serde(default)]
    seconds: f64,
}

impl Schedule {
    /// # Errors
    /// If the file holds no rounds, or some that cannot follow each other.
    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).with_context(|| format!("reading --schedule {}", path.display()))?;
        Self::of(&mut BufReader::new(file)).with_context(|| format!("--schedule {}", path.display()))
    }

    fn of(lines: &mut impl BufRead) -> Result<Self> {
        let (mut rounds, mut names) = (Vec::new(), Vec::<String>::new());
        // The number of the round before, the steps that it set for the next one, and the time of the start.
        let mut before: Option<(u64, usize, f64)> = None;
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            if lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            number += 1;
            // The last line of a node that was killed may be torn.
            let Ok(event) = serde_json::from_slice::<Event>(&line) else { continue };
            if event.event != "committed" {
                continue;
            }
            let (last, steps, start) = before.unwrap_or((0, event.inner_steps, event.time - event.seconds));
            ensure!(event.round > last, "line {number}: round {} comes after {last}: give one node's log", event.round);
            ensure!((1..=STEPS_MAX).contains(&steps), "line {number}: rounds of {steps} steps: from 1 to {STEPS_MAX}");
            ensure!(!event.contributors.is_empty(), "line {number}: round {} has no contributors", event.round);
            ensure!(rounds.len() < ROUNDS_MAX, "line {number}: more than {ROUNDS_MAX} rounds");
            let mut who = Vec::new();
            for name in event.contributors {
                let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                ensure!(place < MEMBERS_MAX, "line {number}: more than {MEMBERS_MAX} members");
                who.push(place);
            }
            who.sort_unstable();
            who.dedup();
            rounds.push(Round { steps, who, seconds: Some(event.time - start) });
            before = Some((event.round, event.inner_steps, start));
        }
        ensure!(!rounds.is_empty(), "no line is a `committed` event: give a node's log, such as logs/NODE.jsonl");
        let digest = starling_protocol::Digest::of("bench", &[format!("{rounds:?}").as_bytes()]).to_string();
        Ok(Self { rounds, members: names.len(), digest: digest[..12].to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(time: f64, round: u64, contributors: &str, inner_steps: usize) -> String {
        format!(
            "{{\"time\":{time},\"node\":\"aa\",\"event\":\"committed\",\"seq\":{round},\"round\":{round},\
             \"contributors\":{contributors},\"inner_steps\":{inner_steps},\"tokens\":9,\"seconds\":2.0}}\n"
        )
    }

    fn read(text: &str) -> Result<Schedule> {
        Schedule::of(&mut text.as_bytes())
    }

    #[test]
    fn rounds_have_the_steps_that_the_commit_before_set() {
        let text = [
            "{\"time\":100.0,\"node\":\"aa\",\"event\":\"started\",\"version\":\"1\"}\n".to_owned(),
            committed(102.0, 1, "[\"aa\"]", 10),
            "not an event\n".to_owned(),
            committed(104.5, 2, "[\"bb\",\"aa\"]", 20),
            committed(110.0, 4, "[\"bb\"]", 20),
            "{\"time\":111.0,\"event\":\"commi".to_owned(),
        ]
        .concat();
        let schedule = read(&text).unwrap();
        let round = |steps, who: &[usize], seconds| Round { steps, who: who.to_vec(), seconds: Some(seconds) };
        assert_eq!(schedule.rounds, [round(10, &[0], 2.0), round(10, &[0, 1], 4.5), round(20, &[1], 10.0)]);
        assert_eq!((schedule.members, schedule.digest.len()), (2, 12));
        assert_ne!(read(&committed(102.0, 1, "[\"aa\"]", 10)).unwrap().digest, schedule.digest);
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        let refused = |text: &str| format!("{:#}", read(text).unwrap_err());
        assert!(refused("").contains("no line is a `committed` event"));
        assert!(refused(&committed(1.0, 1, "[]", 10)).contains("line 1: round 1 has no contributors"));
        assert!(refused(&committed(1.0, 1, "[\"aa\"]", 0)).contains("rounds of 0 steps"));
        let twice = committed(1.0, 5, "[\"aa\"]", 10) + &committed(2.0, 5, "[\"aa\"]", 10);
        assert!(refused(&twice).contains("line 2: round 5 comes after 5"));
        let many: Vec<String> = (0..65).map(|n| format!("\"{n}\"")).collect();
        assert!(refused(&committed(1.0, 1, &format!("[{}]", many.join(",")), 10)).contains("more than 64 members"));
    }

    #[test]
    fn a_line_without_an_end_takes_no_memory() {
        let long = "x".repeat(3 << 20) + "\n" + &committed(1.0, 1, "[\"aa\"]", 10);
        assert_eq!(read(&long).unwrap().rounds.len(), 1);
    }
}
