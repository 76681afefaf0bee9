//! The randomised check of `docs/protocol/4-agreement.md` §4.5: any schedule of crashes, losses and reorderings, then a
//! quorum that is healed while all others stay dead.

use super::{Ballot, Choice, Said};
use crate::NodeId;
use crate::mutation::{self, Mutation};
use crate::quorum::Quorum;
use std::collections::BTreeSet;

/// A record of this quality, or the SKIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Value {
    Skip,
    Commit(u8),
}

impl Choice for Value {
    type Rank = Self;
    fn rank(&self) -> Self {
        *self
    }

    fn needs_bytes(&self) -> bool {
        *self != Self::Skip
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

struct Voter {
    alive: bool,
    ballot: Ballot<Value>,
    /// The statements on this voter's disk.
    vote_state: Option<(Said<Value>, Option<Said<Value>>)>,
    /// The commits whose bytes are on the disk, and the commits whose bytes no voter gave.
    holds: BTreeSet<Value>,
    out_of_reach: BTreeSet<Value>,
    /// Commits that this voter cannot rebuild: it does not name them unless it must.
    cannot: BTreeSet<Value>,
    patient: bool,
}

struct Schedule {
    random: Random,
    quorum: Quorum,
    voters: Vec<Voter>,
    wire: Vec<(usize, usize, Said<Value>)>,
    decided: BTreeSet<Value>,
    ballots: u32,
}

/// The statements that go to the disk before any of them is sent.
pub(super) fn vote_state(ballot: &Ballot<Value>) -> Option<(Said<Value>, Option<Said<Value>>)> {
    let mut own = ballot.own().cloned();
    own.next().map(|estimate| (estimate, own.next()))
}

fn id(index: usize) -> NodeId {
    NodeId([index as u8 + 1; 32])
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let n = 2 + random.below(5);
        let quorum = Quorum::new((0..n).map(|i| (id(i), 0)).collect());
        let holding = [0, 30, 50, 70, 100][random.below(5)];
        let mut voter = |index: usize| {
            let mut holds = BTreeSet::new();
            for commit in [Value::Commit(0), Value::Commit(1)] {
                if random.chance(holding) {
                    holds.insert(commit);
                }
            }
            let ballot = Ballot::new(id(index));
            let patient = random.chance(30);
            let mut cannot = BTreeSet::new();
            if random.chance(10) {
                cannot
                    .extend([Value::Commit(0), Value::Commit(1)].into_iter().filter(|commit| !holds.contains(commit)));
            }
            Voter { alive: true, ballot, vote_state: None, holds, out_of_reach: BTreeSet::new(), cannot, patient }
        };
        let voters = (0..n).map(&mut voter).collect();
        Self { random, quorum, voters, wire: Vec::new(), decided: BTreeSet::new(), ballots: 0 }
    }

    fn propose(&mut self, at: usize) {
        let voter = &mut self.voters[at];
        let best = voter.holds.iter().next_back().copied().unwrap_or(Value::Skip);
        voter.ballot.propose(best);
    }

    /// One voter thinks, and may say something; `give`: whether bytes that it needs reach it.
    fn think(&mut self, at: usize, give: bool) {
        let voter = &mut self.voters[at];
        let (holds, gone) = (voter.holds.clone(), &voter.out_of_reach | &voter.cannot);
        let usable = |value: &Value| *value == Value::Skip || holds.contains(value) || !gone.contains(value);
        voter.ballot.advance(&self.quorum, usable, &Value::Skip, voter.patient);
        if let Some((_, value)) = voter.ballot.decided() {
            self.decided.insert(*value);
            return;
        }
        let Some((said, forced)) = voter.ballot.pending().map(|(said, forced)| (said.clone(), forced)) else { return };
        let needs = said.voted.is_none() && said.value != Value::Skip && !voter.holds.contains(&said.value);
        if needs {
            let held = self.voters.iter().any(|other| other.alive && other.holds.contains(&said.value));
            let voter = &mut self.voters[at];
            if !held || !give || (!forced && voter.cannot.contains(&said.value)) {
                voter.out_of_reach.insert(said.value);
                if !forced {
                    voter.ballot.withdraw();
                }
                return;
            }
            voter.holds.insert(said.value);
            voter.out_of_reach.remove(&said.value);
        }
        self.ballots = self.ballots.max(said.ballot);
        let voter = &mut self.voters[at];
        voter.ballot.say();
        voter.vote_state = vote_state(&voter.ballot);
        self.spread(at, &said);
    }

    fn spread(&mut self, from: usize, said: &Said<Value>) {
        for to in (0..self.voters.len()).filter(|to| *to != from) {
            self.wire.push((from, to, said.clone()));
        }
    }

    fn restart(&mut self, at: usize) {
        let voter = &mut self.voters[at];
        voter.alive = true;
        voter.out_of_reach.clear();
        voter.ballot = match voter.vote_state.clone() {
            Some((estimate, vote)) => Ballot::resume(id(at), estimate, vote),
            None => Ballot::new(id(at)),
        };
    }

    fn deliver(&mut self) {
        if self.wire.is_empty() {
            return;
        }
        let at = self.random.below(self.wire.len());
        let copy = self.random.chance(10);
        let (from, to, said) = if copy { self.wire[at].clone() } else { self.wire.swap_remove(at) };
        if self.voters[to].alive && !self.random.chance(15) {
            self.voters[to].ballot.hear(id(from), said);
            self.think(to, true);
        }
    }

    /// Runs a schedule in which anything may happen.
    fn storm(&mut self, steps: usize) {
        for _ in 0..steps {
            let at = self.random.below(self.voters.len());
            let alive = self.voters[at].alive;
            match self.random.below(20) {
                0 if alive => self.voters[at].alive = false,
                0..=2 if !alive => self.restart(at),
                1 if alive => self.voters[at].patient = !self.voters[at].patient,
                2 if alive && self.voters[at].ballot.said().is_none() => self.propose(at),
                3 if alive => {
                    let give = self.random.chance(50);
                    self.think(at, give);
                }
                4 => {
                    if let Some((estimate, vote)) = self.voters[at].vote_state.clone().filter(|_| alive) {
                        self.spread(at, &vote.unwrap_or(estimate));
                    }
                }
                5 => self.voters[at].out_of_reach.clear(),
                _ => self.deliver(),
            }
        }
    }

    /// A random quorum stays, all others die for good; those that stay repeat what they said last until they decide.
    fn calm(&mut self) -> bool {
        loop {
            let alive: BTreeSet<NodeId> = (0..self.voters.len()).filter(|_| self.random.chance(60)).map(id).collect();
            if self.quorum.met(&alive) {
                for at in 0..self.voters.len() {
                    if !alive.contains(&id(at)) {
                        self.voters[at].alive = false;
                    } else if !self.voters[at].alive {
                        self.restart(at);
                    }
                }
                break;
            }
        }
        self.wire.clear();
        let here: Vec<usize> = (0..self.voters.len()).filter(|at| self.voters[*at].alive).collect();
        for round in 0..120 {
            for at in &here {
                self.voters[*at].patient = round % 4 < 2;
                if round % 4 == 0 {
                    self.voters[*at].out_of_reach.clear();
                }
                // A voter that cannot rebuild what others can has a damaged state, and fetches it anew.
                if round == 60 {
                    self.voters[*at].cannot.clear();
                }
                if self.voters[*at].ballot.said().is_none() {
                    self.propose(*at);
                }
                self.think(*at, true);
                for said in self.voters[*at].ballot.own().cloned().collect::<Vec<_>>() {
                    for to in here.iter().filter(|to| *to != at) {
                        self.voters[*to].ballot.hear(id(*at), said.clone());
                    }
                }
            }
            self.wire.clear();
            if here.iter().any(|at| self.voters[*at].ballot.decided().is_some()) {
                return true;
            }
        }
        false
    }
}

/// Lives through one schedule; the number of ballots that it took.
fn live(seed: u64) -> Result<u32, String> {
    let mut schedule = Schedule::new(seed);
    for at in 0..schedule.voters.len() {
        if schedule.random.chance(80) {
            schedule.propose(at);
            schedule.think(at, true);
        }
    }
    let steps = 20 + schedule.random.below(250);
    schedule.storm(steps);
    let before = schedule.ballots;
    if !schedule.calm() {
        return Err(format!("seed {seed}: a quorum that was healed does not decide"));
    }
    for voter in &schedule.voters {
        schedule.decided.extend(voter.ballot.decided().map(|(_, value)| *value));
    }
    if schedule.decided.len() != 1 {
        return Err(format!("seed {seed}: decided {:?}", schedule.decided));
    }
    for value in schedule.decided.iter().filter(|value| **value != Value::Skip) {
        let holds = |at: &NodeId| schedule.voters[usize::from(at.0[0]) - 1].holds.contains(value);
        if !schedule.quorum.met_by(holds) {
            return Err(format!("seed {seed}: {value:?} is decided, but held by no quorum"));
        }
    }
    Ok(schedule.ballots - before)
}

#[test]
fn any_schedule_decides_one_value_that_a_quorum_holds() {
    let ballots: Vec<u32> = (0..10_000).map(|seed| live(seed).unwrap_or_else(|why| panic!("{why}"))).collect();
    let most = ballots.iter().max();
    println!("at most {most:?} ballots more after healing");
    assert!(most.is_some_and(|most| *most <= 12), "{most:?}");
}

#[test]
fn broken_rules_are_caught_at_once() {
    for (mutation, within) in
        [(Mutation::IgnoreSeenVote, 200), (Mutation::HalfQuorum, 200), (Mutation::CountTwice, 200)]
    {
        let caught = mutation::with(Some(mutation), || (0..within).position(|seed| live(seed).is_err()));
        println!("{}: caught by schedule {caught:?}", mutation.name());
        assert!(caught.is_some(), "{mutation:?} is not caught in {within} schedules");
    }
}

/// A voter that was alone with a value goes away for good after it has carried it into the next ballot: the others
/// cannot get the bytes, and must not wait for them.
#[test]
fn a_copy_that_cannot_be_had_holds_nobody_up() {
    let quorum = Quorum::new((0..3).map(|i| (id(i), 0)).collect());
    let mut voters: Vec<Ballot<Value>> = (1..3).map(|at| Ballot::new(id(at))).collect();
    let carried = Said { ballot: 1, value: Value::Commit(1), voted: None };
    for voter in &mut voters {
        voter.propose(Value::Skip);
        voter.say();
        voter.hear(id(0), carried.clone());
        voter.advance(&quorum, |_| true, &Value::Skip, true);
        assert_eq!(voter.pending().map(|(said, forced)| (said.clone(), forced)), Some((carried.clone(), false)));
        voter.withdraw();
    }
    for _ in 0..8 {
        for at in 0..2 {
            let other = voters[1 - at].said().cloned().unwrap();
            let voter = &mut voters[at];
            voter.hear(id(2 - at), other);
            voter.advance(&quorum, |value| *value == Value::Skip, &Value::Skip, false);
            voter.say();
        }
    }
    assert!(voters.iter().any(|voter| voter.decided().is_some_and(|(_, value)| *value == Value::Skip)));
}

/// The estimate is lost with a connection, and only the vote after it is repeated.
#[test]
fn a_vote_stands_for_the_estimate_before_it() {
    let quorum = Quorum::new((0..2).map(|i| (id(i), 0)).collect());
    let mut one = Ballot::new(id(0));
    one.propose(Value::Skip);
    one.say();
    one.hear(id(1), Said { ballot: 0, value: Value::Skip, voted: Some(true) });
    one.advance(&quorum, |_| true, &Value::Skip, true);
    assert_eq!(one.say().map(|said| said.voted), Some(Some(true)));
    one.advance(&quorum, |_| true, &Value::Skip, true);
    assert!(one.decided().is_some());
}

/// Three voters. The first one proposes a value and has heard the second.
fn after(own: Value, other: Said<Value>, patient: bool) -> (Ballot<Value>, Quorum) {
    let quorum = Quorum::new((0..3).map(|i| (id(i), 0)).collect());
    let mut one = Ballot::new(id(0));
    one.propose(own);
    one.say();
    one.hear(id(1), Said { voted: None, ..other.clone() });
    one.advance(&quorum, |_| true, &Value::Skip, false);
    assert_eq!(one.say().map(|said| said.voted), Some(Some(false)), "two different values are no quorum");
    one.hear(id(1), other);
    one.advance(&quorum, |_| true, &Value::Skip, patient);
    (one, quorum)
}

#[test]
fn the_best_value_that_was_heard_is_named() {
    for (own, other) in [(0, 1), (1, 0)] {
        let heard = Said { ballot: 0, value: Value::Commit(other), voted: Some(false) };
        let (one, _) = after(Value::Commit(own), heard, false);
        let next = Said { ballot: 1, value: Value::Commit(1), voted: None };
        assert_eq!(one.pending(), Some((&next, false)));
    }
}

/// With all that are here the value may be decided in this very ballot.
#[test]
fn a_voter_that_has_seen_a_vote_waits_for_the_last_voter() {
    let heard = Said { ballot: 0, value: Value::Commit(1), voted: Some(true) };
    let (mut one, quorum) = after(Value::Commit(0), heard, true);
    assert_eq!(one.pending(), None);
    one.hear(id(2), Said { ballot: 0, value: Value::Commit(1), voted: Some(true) });
    one.advance(&quorum, |_| true, &Value::Skip, true);
    assert_eq!(one.decided().map(|(_, value)| *value), Some(Value::Commit(1)));
}

/// A quorum held its bytes, so at least one voter has them.
#[test]
fn a_value_that_was_voted_for_in_a_later_ballot_is_forced() {
    let quorum = Quorum::new((0..3).map(|i| (id(i), 0)).collect());
    let mut one = Ballot::new(id(0));
    one.propose(Value::Skip);
    one.say();
    one.hear(id(1), Said { ballot: 2, value: Value::Commit(1), voted: Some(true) });
    one.advance(&quorum, |_| false, &Value::Skip, false);
    let next = Said { ballot: 2, value: Value::Commit(1), voted: None };
    assert_eq!(one.pending(), Some((&next, true)));
}
