//! What agreement costs: bytes by kind of message, and one-way delays.

use super::options::Options;
use super::world::World;
use super::{MS, SECOND, specification};
use crate::Digest;
use std::collections::BTreeMap;
use std::fmt;

/// Kinds of messages that voting takes.
pub const VOTING: &[&str] = &["estimate", "vote", "certificate", "start", "witness", "fork"];
/// Bytes between two voters in one round, both ways, that agreement may cost at 16 voters.
const PAIR_MAX: u64 = 1024;
/// One-way delay of every message while it is measured.
const DELAY: u64 = 200 * MS;
/// Rounds that are measured, after some in which the flock gathers.
const ROUNDS: usize = 10;
const GATHERING: u64 = 240 * SECOND;

/// What went between nodes since it was last reset.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Bytes and number by kind of message.
    pub kinds: BTreeMap<&'static str, (u64, u64)>,
    pub voting_pairs: BTreeMap<(usize, usize), u64>,
    pub largest_ready: usize,
    /// When the vote on a record began: the first estimate since the one before was committed.
    began: Option<u64>,
    commits: BTreeMap<Digest, u64>,
    /// Microseconds from the first estimate to the first commit.
    pub agreements: Vec<u64>,
}

impl Traffic {
    pub fn sent(&mut self, (from, to): (usize, usize), kind: &'static str, bytes: usize, now: u64) {
        let (sum, count) = self.kinds.entry(kind).or_default();
        (*sum, *count) = (*sum + bytes as u64, *count + 1);
        if VOTING.contains(&kind) {
            *self.voting_pairs.entry((from.min(to), from.max(to))).or_default() += bytes as u64;
        }
        match kind {
            "ready" => self.largest_ready = self.largest_ready.max(bytes),
            "estimate" => drop(self.began.get_or_insert(now)),
            _ => {}
        }
    }

    pub fn committed(&mut self, record: Digest, now: u64) {
        if self.commits.contains_key(&record) {
            return;
        }
        self.commits.insert(record, now);
        self.agreements.extend(self.began.take().map(|began| now.saturating_sub(began)));
    }

    fn rounds(&self) -> u64 {
        self.commits.len().max(1) as u64
    }

    fn voting(&self) -> u64 {
        VOTING.iter().filter_map(|kind| self.kinds.get(kind)).map(|(bytes, _)| bytes).sum()
    }
}

/// What was measured in flocks of some sizes.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    nodes: usize,
    voters: usize,
    rounds: u64,
    /// One-way delays, in tenths: median and most.
    delays: (u64, u64),
    pair: u64,
    per_node: u64,
    ready: usize,
}

impl Report {
    /// Whether all is within its bounds.
    pub fn good(&self) -> bool {
        let sixteen = self.rows.iter().filter(|row| row.voters <= 16);
        !self.rows.is_empty()
            && self.rows.iter().all(|row| row.delays.0 <= 21)
            && sixteen.clone().all(|r| r.pair <= PAIR_MAX)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "nodes voters rounds  delays(median, most)  bytes/voter pair/round  voting bytes/node/round  READY"
        )?;
        for row in &self.rows {
            let tenths = |x: u64| format!("{}.{}", x / 10, x % 10);
            let Row { nodes, voters, rounds, delays, pair, per_node, ready } = row;
            let (median, most) = (tenths(delays.0), tenths(delays.1));
            writeln!(
                f,
                "{nodes:>5} {voters:>6} {rounds:>6} {median:>10} {most:>9} {pair:>23} {per_node:>24} {ready:>6}"
            )?;
        }
        Ok(())
    }
}

/// Measures calm flocks of these sizes.
pub fn report(sizes: &[usize]) -> Report {
    Report { rows: sizes.iter().filter_map(|nodes| measure(*nodes)).collect() }
}

fn measure(nodes: usize) -> Option<Row> {
    let options = Options { steady: true, delay: DELAY, ..Options::calm(nodes) };
    let spec = specification(&options);
    let mut world = World::new(1, options, spec, Vec::new());
    // Whether the rules hold is looked at elsewhere.
    world.invariants.clear();
    world.populate();
    let gathered = |world: &World| world.nodes[0].head().is_some_and(|head| head.record.contributors.len() == nodes);
    if !world.run_until(GATHERING, gathered) {
        return None;
    }
    let settled = world.now + 10 * SECOND;
    world.run_until(settled, |_| false);
    world.traffic = Traffic::default();
    let end = world.now + GATHERING;
    world.run_until(end, |world| world.traffic.commits.len() >= ROUNDS);
    let voters = world.nodes[0].head().map_or(0, |head| head.record.voters().count());
    let traffic = &world.traffic;
    let rounds = traffic.rounds();
    let mut agreements: Vec<u64> = traffic.agreements.iter().map(|micros| micros * 10 / DELAY).collect();
    agreements.sort_unstable();
    let median = agreements.get(agreements.len() / 2).copied().unwrap_or(0);
    let delays = (median, agreements.last().copied().unwrap_or(0));
    let pair = traffic.voting_pairs.values().max().map_or(0, |bytes| bytes / rounds);
    let per_node = traffic.voting() / rounds / nodes as u64;
    Some(Row { nodes, voters, rounds, delays, pair, per_node, ready: traffic.largest_ready })
}
