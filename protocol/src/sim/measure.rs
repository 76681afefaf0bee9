//! The cost of agreement: bytes by kind of message and by sender, and one-way delays, in flocks of some sizes.
//!
//! A flock gathers as on a real network: one node founds, the others come one after another, catch up and ask to be let
//! in. With hundreds of nodes that takes dozens of records, for which a simulator needs an hour. There, all nodes find
//! on their disks a first record that names them, as after a power cut, and go on with ordinary rounds.

use super::options::Options;
use super::traffic::{Traffic, VOTING};
use super::world::{Event, World};
use super::{MS, SECOND, specification};
use crate::limits::RTTS_MAX;
use crate::wire;
use std::collections::BTreeSet;
use std::fmt;

/// Bytes between two voters in one round, both ways, that agreement may cost.
const PAIR_MAX: u64 = 1024;
/// Bytes of a READY without its measured peers.
const READY_MAX: u64 = 512;
/// One-way delay of every message while it is measured.
const DELAY: u64 = 200 * MS;
/// Rounds that are measured, after some in which the flock gathers; in a large flock each is expensive.
const ROUNDS: usize = 10;
const ROUNDS_LARGE: usize = 3;
/// The number of nodes above which they do not gather one by one.
pub(super) const LARGE: usize = 200;
/// The most nodes that have come and are not let in yet.
const STRANGERS: usize = 64;
/// The time that a flock may take to gather, and to end ten rounds.
const PATIENCE: u64 = 3_600 * SECOND;

impl Traffic {
    /// Bytes of these kinds that these nodes sent.
    fn bytes(&self, kinds: &[&'static str], of: &BTreeSet<usize>) -> u64 {
        let sent = kinds.iter().filter_map(|kind| self.sent.get(kind)).flatten();
        sent.filter(|(node, _)| of.contains(node)).map(|(_, count)| count.bytes).sum()
    }

    /// Tenths of one-way delays from the moment when so many voters had entered to the first commit, rising.
    fn delays(&self, entered: usize) -> Vec<u64> {
        let since = |(times, end): &(Vec<u64>, u64)| Some(end.saturating_sub(*times.get(entered.max(1) - 1)?));
        let mut delays: Vec<u64> = self.agreements.iter().filter_map(since).map(|us| us * 10 / DELAY).collect();
        delays.sort_unstable();
        delays
    }
}

/// Measurements of flocks of some sizes.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    nodes: usize,
    voters: usize,
    rounds: u64,
    /// Milliseconds of a round.
    round: u64,
    /// Tenths of one-way delays, median and most: since a quorum had its input, and since the first voter had its
    /// input.
    quorum: (u64, u64),
    first: (u64, u64),
    /// Bytes between the two voters that sent most to each other.
    pair: u64,
    /// Bytes of voting that one node sends in a round.
    voter: u64,
    learner: u64,
    /// Bytes of the largest READY, and of all READYs that a node sends in a round.
    ready: u64,
    readys: u64,
    /// Bytes of heartbeats that one node sends in a second.
    voter_heads: u64,
    learner_heads: u64,
    record: usize,
}

impl Row {
    fn good(&self) -> bool {
        let swift = self.voters < 2 || self.quorum.0 <= 20;
        let ready = READY_MAX + 4 * (self.nodes.saturating_sub(1)).min(RTTS_MAX) as u64;
        swift && self.pair <= PAIR_MAX && self.ready <= ready && self.record <= crate::limits::RECORD_BYTES_MAX
    }
}

impl Report {
    /// Whether all values are within their bounds. In particular, the cost of voting for a node in a large flock does
    /// not grow with the flock.
    pub fn good(&self) -> bool {
        let large = self.rows.iter().filter(|row| row.nodes > 4 * row.voters);
        let (least, most) = (large.clone().map(|row| row.voter).min(), large.map(|row| row.voter).max());
        let constant = least.zip(most).is_none_or(|(least, most)| 10 * most <= 11 * least);
        !self.rows.is_empty() && constant && self.rows.iter().all(Row::good)
    }
}

const HEADINGS: &str = "\
                        | one-way delays to the first commit |      bytes of voting       |       READY        |  heads a second  |
                        | from a quorum's  | from the first  |  a pair | a round, sent by |                    |                  |
nodes voters rounds   ms| inputs  (most)   | input  (most)   | (most)  |  voter   learner |  bytes  sent/round |   voter  learner | record";

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADINGS}")?;
        for row in &self.rows {
            let delays = |(median, most): (u64, u64)| {
                let tenths = |x: u64| format!("{}.{}", x / 10, x % 10);
                format!("{:>6} {:>7}", tenths(median), tenths(most))
            };
            let Row { nodes, voters, rounds, round, pair, voter, learner, ready, readys, .. } = row;
            let (quorum, first) = (delays(row.quorum), delays(row.first));
            let (voter_heads, learner_heads, record) = (row.voter_heads, row.learner_heads, row.record);
            write!(f, "{nodes:>5} {voters:>6} {rounds:>6} {round:>5}| {quorum}   | {first}  | {pair:>6}  | ")?;
            write!(f, "{voter:>6} {learner:>9} | {ready:>6} {readys:>11} | {voter_heads:>7} {learner_heads:>8} |")?;
            writeln!(f, " {record:>6}")?;
        }
        Ok(())
    }
}

/// Measures a calm flock of `nodes`, and adds it to the report. Returns whether it gathered and went on.
pub fn measure(nodes: usize, report: &mut Report) -> bool {
    let Some(mut world) = flock(Options { steady: true, delay: DELAY, ..Options::calm(nodes) }) else { return false };
    settle(&mut world, 1);
    let (done, micros) = play(&mut world);
    report.rows.extend(row(&world, nodes, micros));
    done
}

/// A flock in which all contribute, if it gathers.
pub(super) fn flock(options: Options) -> Option<World> {
    let (nodes, spec) = (options.nodes, specification(&options));
    let mut world = World::new(1, options, spec, Vec::new());
    // Other tests check whether the rules hold.
    world.invariants.clear();
    let gathered = if nodes > LARGE { wake(&mut world, nodes) } else { gather(&mut world, nodes) };
    gathered.then_some(world)
}

/// Plays so many commits: a measurement goes from one commit to another.
pub(super) fn settle(world: &mut World, commits: usize) {
    world.traffic.restart();
    let end = world.now + PATIENCE;
    world.run_until(end, |world| world.traffic.agreements.len() >= commits);
}

/// Plays the rounds of a measurement; returns whether they ended, and their time in microseconds.
pub(super) fn play(world: &mut World) -> (bool, u64) {
    world.traffic.restart();
    let (since, end) = (world.now, world.now + PATIENCE);
    let wanted = if world.nodes.len() > LARGE { ROUNDS_LARGE } else { ROUNDS };
    let done = world.run_until(end, |world| world.traffic.agreements.len() >= wanted);
    (done, world.now - since)
}

/// Starts nodes as the flock takes them in, until all are in.
fn gather(world: &mut World, nodes: usize) -> bool {
    let mut started = 0;
    while world.now < PATIENCE {
        let head = world.nodes.first().and_then(|node| node.head());
        let members = head.map_or(0, |head| head.record.members().len());
        let contributed = head.map_or(0, |head| head.record.contributors.len());
        if contributed == nodes {
            return true;
        }
        while started < nodes.min((members + STRANGERS).max(1)) && (members > 0 || started == 0) {
            world.schedule(0, started, 0, Event::Start);
            for other in 0..started {
                world.schedule(MS, other, 0, Event::Dial { other: started });
            }
            started += 1;
        }
        let later = world.now + SECOND;
        world.run_until(later, |_| false);
    }
    false
}

/// Starts nodes that have all been members of one flock, and waits until all contribute.
fn wake(world: &mut World, nodes: usize) -> bool {
    if !world.wake_all() {
        return false;
    }
    for node in 0..nodes {
        world.schedule(0, node, 0, Event::Start);
        for other in 0..node {
            world.schedule(MS, other, 0, Event::Dial { other: node });
        }
    }
    let all = |world: &World| world.nodes[0].head().is_some_and(|head| head.record.contributors.len() == nodes);
    world.run_until(PATIENCE, all)
}

/// The voters of the first node's head.
pub(super) fn voters(world: &World) -> BTreeSet<usize> {
    let head = world.nodes.first().and_then(|node| node.head());
    let seats = head.into_iter().flat_map(|head| head.record.voters());
    seats.filter_map(|voter| world.keys.index(&voter.id)).collect()
}

fn row(world: &World, nodes: usize, micros: u64) -> Option<Row> {
    let head = world.nodes.first()?.head()?;
    let voters = voters(world);
    let all: BTreeSet<usize> = (0..nodes).collect();
    let learners: BTreeSet<usize> = all.difference(&voters).copied().collect();
    let traffic = &world.traffic;
    let rounds = traffic.agreements.len().max(1) as u64;
    let each = |kinds: &[&'static str], of: &BTreeSet<usize>| traffic.bytes(kinds, of) / of.len().max(1) as u64;
    let ends =
        |delays: Vec<u64>| (delays.get(delays.len() / 2).copied().unwrap_or(0), delays.last().copied().unwrap_or(0));
    let of_voters = |(a, b): &(usize, usize)| voters.contains(a) && voters.contains(b);
    let pairs = traffic.pairs.iter().filter(|(pair, _)| of_voters(pair)).map(|(_, bytes)| *bytes);
    let second = |bytes: u64| bytes * SECOND / micros.max(1);
    Some(Row {
        nodes,
        voters: voters.len(),
        rounds,
        round: micros / rounds / MS,
        quorum: ends(traffic.delays(voters.len() / 2 + 1)),
        first: ends(traffic.delays(1)),
        pair: pairs.max().unwrap_or(0) / rounds,
        voter: each(VOTING, &voters) / rounds,
        learner: each(VOTING, &learners) / rounds,
        ready: traffic.largest_ready,
        readys: each(&["ready"], &all) / rounds,
        voter_heads: second(each(&["head"], &voters)),
        learner_heads: second(each(&["head"], &learners)),
        record: wire::encode_record(&head.record).len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_all_is_well_a_voter_says_each_word_once_and_agreement_takes_two_delays() {
        let mut report = Report::default();
        assert!(measure(8, &mut report));
        let row = report.rows.pop().unwrap();
        let (estimate, vote) = (249, 250);
        assert_eq!((row.voters, row.pair, row.voter), (8, 2 * (estimate + vote), 7 * (estimate + vote)));
        assert!(row.quorum.1 <= 20, "{row:?}");
    }
}
