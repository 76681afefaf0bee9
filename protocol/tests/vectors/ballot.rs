//! Courses of a vote among three voters (`docs/protocol/4-agreement.md` §4.5).

use crate::fields;
use crate::json::{Json, object};
use crate::made::{digest, id};
use starling_protocol::ballot::{Ballot, Said};
use starling_protocol::message::{Value, ValueKind};
use starling_protocol::quorum::Quorum;

/// Places of the voters.
const VOTERS: usize = 3;

/// The values that they vote on: two results, of which y is the better one, and the SKIP.
fn values() -> [(&'static str, Value); 3] {
    let commit = |fill: u8, tokens: u64, contributors: u32| Value {
        kind: ValueKind::Commit,
        digest: digest(fill),
        tokens,
        contributors,
        attempt: 1,
        set: digest(fill + 1),
        members: Vec::new(),
    };
    [("x", commit(0x21, 30_720, 2)), ("y", commit(0x31, 61_440, 2)), ("skip", Value::skip(digest(0x41)))]
}

fn value(name: &str) -> Value {
    values().into_iter().find(|(known, _)| *known == name).map(|(_, value)| value).expect("one of them")
}

fn name(value: &Value) -> &'static str {
    values().into_iter().find(|(_, known)| known == value).map(|(name, _)| name).expect("one of them")
}

fn said(said: &Said<Value>) -> Json {
    let phase = if said.voted.is_some() { "vote" } else { "estimate" };
    object! {"phase": phase, "ballot": said.ballot, "value": name(&said.value), "voted": said.voted}
}

/// Three voters, and their messages.
struct Course {
    quorum: Quorum,
    voters: [Ballot<Value>; VOTERS],
    /// Names of the results that each voter holds.
    holds: [Vec<&'static str>; VOTERS],
    /// All statements of each voter, oldest first.
    words: [Vec<Said<Value>>; VOTERS],
    steps: Vec<Json>,
}

impl Course {
    fn new(holds: [&[&'static str]; VOTERS]) -> Self {
        let ids = [0x10, 0x20, 0x30].map(id);
        Self {
            quorum: Quorum::new(ids.iter().map(|id| (*id, 7)).collect()),
            voters: ids.map(Ballot::new),
            holds: holds.map(<[_]>::to_vec),
            words: Default::default(),
            steps: Vec::new(),
        }
    }

    /// Lets a voter go on as far as it can, and lists its statements.
    fn step(&mut self, at: usize, patient: bool, what: Json) {
        let holds = self.holds[at].clone();
        let usable = |value: &Value| value.kind == ValueKind::Skip || holds.contains(&name(value));
        let (voter, fallback) = (&mut self.voters[at], value("skip"));
        let mut says = Vec::new();
        loop {
            voter.advance(&self.quorum, usable, &fallback, patient);
            // Only voters that hold a result say an estimate of it.
            let holds = |said: &Said<Value>| said.voted.is_some() || usable(&said.value);
            if voter.pending().is_none_or(|(next, _)| !holds(next)) {
                break;
            }
            let word = voter.say().expect("it was pending");
            says.push(said(&word));
            self.words[at].push(word);
        }
        let decided = voter.decided().map(|(ballot, value)| object! {"ballot": ballot, "value": name(value)});
        let given = object! {"voter": at}.and(what).and(object! {"patient": patient});
        self.steps.push(given.and(object! {"says": says, "decided": decided}));
    }

    fn enters(&mut self, at: usize, with: &'static str) {
        self.voters[at].propose(value(with));
        self.step(at, true, object! {"enters_with": with});
    }

    /// Lets a voter hear another's statement, by its number.
    fn hears(&mut self, at: usize, from: usize, number: usize, patient: bool) {
        let word = self.words[from][number].clone();
        let what = object! {"hears": object! {"from": from}.and(said(&word))};
        assert!(self.voters[at].hear(self.id(from), word), "it is news");
        self.step(at, patient, what);
    }

    fn waits_no_longer(&mut self, at: usize) {
        self.step(at, false, object! {});
    }

    fn fetches(&mut self, at: usize, result: &'static str) {
        self.holds[at].push(result);
        self.step(at, true, object! {"fetches": result});
    }

    fn id(&self, at: usize) -> starling_protocol::NodeId {
        self.quorum.voters()[at].0
    }

    fn done(self, name: &str, holds: [&[&'static str]; VOTERS]) -> Json {
        let holds: Vec<Vec<&str>> = holds.iter().map(|holds| holds.to_vec()).collect();
        object! {
            "case": name, "section": "docs/protocol/4-agreement.md §4.5", "hold": holds, "steps": self.steps,
        }
    }
}

fn one_ballot() -> Json {
    let holds: [&[_]; VOTERS] = [&["x"], &["x"], &["x"]];
    let mut course = Course::new(holds);
    (0..VOTERS).for_each(|voter| course.enters(voter, "x"));
    course.hears(0, 1, 0, true);
    course.hears(1, 0, 0, true);
    course.hears(0, 1, 1, true);
    course.hears(2, 0, 1, true);
    course.hears(1, 2, 1, true);
    course.done("all name one result: one ballot", holds)
}

/// Voter 2 is not heard until the others have left ballot 0.
fn second_ballot() -> Json {
    let holds: [&[_]; VOTERS] = [&["x", "y"], &["x", "y"], &["x"]];
    let mut course = Course::new(holds);
    for (voter, with) in [(0, "x"), (1, "y"), (2, "x")] {
        course.enters(voter, with);
    }
    course.hears(0, 1, 0, true);
    course.waits_no_longer(0);
    course.hears(1, 0, 0, false);
    course.hears(0, 1, 1, true);
    course.hears(1, 0, 1, true);
    course.hears(2, 0, 2, true);
    course.fetches(2, "y");
    course.hears(0, 1, 2, true);
    course.hears(1, 0, 2, true);
    course.hears(1, 0, 3, true);
    course.hears(2, 0, 3, true);
    course.hears(0, 2, 2, true);
    course.done("two results: the better one, in a second ballot, which a third voter copies", holds)
}

/// Voter 0 votes for x before the others have heard enough: x cannot be lost any more, though y is better.
fn forced() -> Json {
    let holds: [&[_]; VOTERS] = [&["x", "y"], &["x", "y"], &["x", "y"]];
    let mut course = Course::new(holds);
    for (voter, with) in [(0, "x"), (1, "x"), (2, "y")] {
        course.enters(voter, with);
    }
    course.hears(0, 1, 0, true);
    course.hears(1, 2, 0, false);
    course.hears(2, 1, 0, false);
    course.hears(1, 2, 1, true);
    course.hears(2, 0, 1, true);
    course.waits_no_longer(2);
    course.hears(0, 1, 1, true);
    course.waits_no_longer(0);
    course.hears(0, 2, 2, true);
    course.hears(2, 0, 2, true);
    course.hears(2, 0, 3, true);
    course.hears(1, 0, 3, true);
    course.hears(1, 2, 3, true);
    course.done("a vote that was seen forces its value", holds)
}

/// Two voters cannot use each other's result, and the third is gone: from ballot 4 on they take turns.
fn turns() -> Json {
    let holds: [&[_]; VOTERS] = [&["x"], &["y"], &[]];
    let mut course = Course::new(holds);
    course.enters(0, "x");
    course.enters(1, "y");
    for word in 0..32 {
        if (0..2).all(|voter| course.voters[voter].decided().is_some()) {
            break;
        }
        course.hears(0, 1, word, false);
        course.hears(1, 0, word, false);
    }
    assert!(course.voters[0].decided().is_some(), "turns end it");
    course.done("voters that can use different results only take turns from ballot 4 on", holds)
}

pub fn subject() -> Json {
    let about = "Voters are named by their place. `hold` lists the results whose bytes each holds at first: a commit is \
                 usable to those that hold it, and to them alone; SKIP is usable to all, and the fallback. A step tells what a voter \
                 enters with, hears or fetches, and all that it says then, until it has to wait. `patient`: whether its \
                 patience is still running. Without an event the patience has ended.";
    let values: Vec<Json> =
        values().iter().map(|(name, value)| object! {"name": *name}.and(fields::value(value))).collect();
    let ids: Vec<_> = [0x10, 0x20, 0x30].map(id).to_vec();
    object! {
        "about": about,
        "voters": ids, "values": values, "courses": vec![one_ballot(), second_ballot(), forced(), turns()],
    }
}
