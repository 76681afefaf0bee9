//! The cost of a round for a node: control messages and their bytes by kind, connections, and the engine's time.
//!
//! The flock is calm and gathers as in [`super::measure`]. Signatures are real, since checking them is most of an
//! engine's work. Bytes are whole signed messages, without the transport's. Contributions, updates and states are no
//! control messages, so they are not counted.

use super::MS;
use super::measure::{LARGE, flock, play, settle, voters};
use super::options::Options;
use super::traffic::{Count, Counts, Traffic};
use super::world::World;
use crate::wire;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One-way delay of every message.
const DELAY: u64 = 50 * MS;
/// Rounds after the gathering that are not measured, so that nothing is left of the joins. A large flock has none.
const SETTLING: usize = 3;

/// The cost of a round in a flock of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    pub nodes: usize,
    /// The number of rounds that were measured.
    pub rounds: usize,
    /// Milliseconds of a round: Heads go by time, and all other messages by rounds.
    pub round_ms: u64,
    /// Bytes of a record.
    pub record_bytes: usize,
    pub voter: Share,
    /// None where all members vote.
    pub learner: Option<Share>,
}

/// The cost of a round for a node of one role, on average over these nodes and all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The number of these nodes.
    pub nodes: usize,
    /// The most other nodes with which one of them exchanged control messages.
    pub connections: usize,
    /// Milliseconds in `Engine::handle`, by the caller's clock.
    pub engine_ms: f64,
    pub kinds: BTreeMap<&'static str, Flow>,
}

/// Messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    pub messages_sent: f64,
    pub bytes_sent: f64,
    pub messages_received: f64,
    pub bytes_received: f64,
}

/// Measures a calm flock of so many nodes by a clock in nanoseconds; none if it does not gather, or does not go on.
pub fn cost(nodes: usize, clock: fn() -> u64) -> Option<Cost> {
    let mut world = flock(calm(nodes, true))?;
    settle(&mut world, if nodes > LARGE { 1 } else { SETTLING });
    Cost::of(&mut world, clock)
}

fn calm(nodes: usize, ed25519: bool) -> Options {
    Options { steady: true, delay: DELAY, ed25519, ..Options::calm(nodes) }
}

impl Cost {
    /// Plays the rounds, and sums up what they cost.
    fn of(world: &mut World, clock: fn() -> u64) -> Option<Self> {
        world.traffic.clock = Some(clock);
        let (done, micros) = play(world);
        let head = world.nodes.first().and_then(|node| node.head()).filter(|_| done)?;
        let rounds = world.traffic.agreements.len();
        let voters = voters(world);
        let learners: BTreeSet<usize> = (0..world.nodes.len()).filter(|node| !voters.contains(node)).collect();
        Some(Self {
            nodes: world.nodes.len(),
            rounds,
            round_ms: micros / MS / rounds.max(1) as u64,
            record_bytes: wire::encode_record(&head.record).len(),
            voter: Share::of(&world.traffic, &voters, rounds),
            learner: Some(learners).filter(|nodes| !nodes.is_empty()).map(|n| Share::of(&world.traffic, &n, rounds)),
        })
    }
}

impl Share {
    fn of(traffic: &Traffic, nodes: &BTreeSet<usize>, rounds: usize) -> Self {
        let each = (nodes.len() * rounds).max(1) as f64;
        let sum = |counts: &Counts, kind: &str| {
            let all = counts.get(kind).into_iter().flatten().filter(|(node, _)| nodes.contains(node));
            all.fold(Count::default(), |sum, (_, count)| Count {
                messages: sum.messages + count.messages,
                bytes: sum.bytes + count.bytes,
            })
        };
        let flow = |kind: &'static str| {
            let (sent, received) = (sum(&traffic.sent, kind), sum(&traffic.received, kind));
            let flow = Flow {
                messages_sent: sent.messages as f64 / each,
                bytes_sent: sent.bytes as f64 / each,
                messages_received: received.messages as f64 / each,
                bytes_received: received.bytes as f64 / each,
            };
            (kind, flow)
        };
        let kinds: BTreeSet<&'static str> = traffic.sent.keys().chain(traffic.received.keys()).copied().collect();
        let busy: u64 = nodes.iter().filter_map(|node| traffic.engines.get(node)).sum();
        Self {
            nodes: nodes.len(),
            connections: connections(traffic, nodes),
            engine_ms: busy as f64 / 1e6 / each,
            kinds: kinds.into_iter().map(flow).collect(),
        }
    }

    /// All kinds together.
    pub fn total(&self) -> Flow {
        self.kinds.values().fold(Flow::default(), |sum, flow| Flow {
            messages_sent: sum.messages_sent + flow.messages_sent,
            bytes_sent: sum.bytes_sent + flow.bytes_sent,
            messages_received: sum.messages_received + flow.messages_received,
            bytes_received: sum.bytes_received + flow.bytes_received,
        })
    }
}

/// The most other nodes that one of these has heard, or that have heard it.
fn connections(traffic: &Traffic, nodes: &BTreeSet<usize>) -> usize {
    let mut met: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (to, heard) in &traffic.heard {
        for from in heard {
            met.entry(*to).or_default().insert(*from);
            met.entry(*from).or_default().insert(*to);
        }
    }
    nodes.iter().filter_map(|node| met.get(node)).map(BTreeSet::len).max().unwrap_or(0)
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, rounds, round_ms, record_bytes, .. } = self;
        writeln!(f, "{nodes} nodes, {rounds} rounds of {round_ms} ms, a record of {record_bytes} bytes")?;
        let roles = [("voter", Some(&self.voter)), ("learner", self.learner.as_ref())];
        for (role, share) in roles.into_iter().filter_map(|(role, share)| Some((role, share?))) {
            let Share { nodes, connections, engine_ms, kinds } = share;
            writeln!(f, "  a {role} (of {nodes}): {connections} connections, {engine_ms:.2} ms of its engine a round")?;
            writeln!(f, "    {:12} {:>10} {:>12} {:>10} {:>12}", "", "sent", "bytes", "received", "bytes")?;
            let total = ("all", share.total());
            for (kind, flow) in kinds.iter().map(|(kind, flow)| (*kind, *flow)).chain([total]) {
                let Flow { messages_sent, bytes_sent, messages_received, bytes_received } = flow;
                write!(f, "    {kind:12} {messages_sent:>10.1} {bytes_sent:>12.0} ")?;
                writeln!(f, "{messages_received:>10.1} {bytes_received:>12.0}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::io::Input;
    use crate::sim::network::kind;
    use crate::sim::world::{Invariant, Observed};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// What nodes sent and engines were given, and the number of inputs.
    type Tally = Rc<RefCell<(Counts, Counts, u64)>>;

    /// Counts by itself, from what invariants are shown.
    struct Counter(Tally);

    impl Invariant for Counter {
        fn name(&self) -> &'static str {
            "no rule"
        }

        fn observe(&mut self, event: &Observed<'_>, _: &World) -> Result<(), String> {
            let (sent, received, inputs) = &mut *self.0.borrow_mut();
            let add = |counts: &mut Counts, node: usize, bytes: &[u8]| {
                let count = counts.entry(kind(bytes)).or_default().entry(node).or_default();
                *count = Count { messages: count.messages + 1, bytes: count.bytes + bytes.len() as u64 };
            };
            match event {
                Observed::Sent { node, bytes, .. } => add(sent, *node, bytes),
                Observed::Input { node, input } => {
                    *inputs += 1;
                    if let Input::Message { bytes, .. } = input {
                        add(received, *node, bytes);
                    }
                }
                _ => {}
            }
            Ok(())
        }
    }

    thread_local! {
        static CALLS: Cell<u64> = const { Cell::new(0) };
    }

    /// A clock by which each call of an engine takes a millisecond.
    fn strokes() -> u64 {
        CALLS.set(CALLS.get() + 1);
        CALLS.get() * 1_000_000
    }

    fn messages_of(counts: &Counts, kind: &str) -> u64 {
        counts.get(kind).into_iter().flatten().map(|(_, count)| count.messages).sum()
    }

    fn bytes_of(counts: &Counts, kind: &str) -> u64 {
        counts.get(kind).into_iter().flatten().map(|(_, count)| count.bytes).sum()
    }

    #[test]
    fn the_table_holds_all_that_was_sent_and_received() {
        let mut world = flock(calm(34, false)).expect("the flock gathers");
        settle(&mut world, SETTLING);
        let tally = Tally::default();
        world.invariants.push(Box::new(Counter(Rc::clone(&tally))));
        let cost = Cost::of(&mut world, strokes).expect("the flock goes on");
        let (sent, received, inputs) = &*tally.borrow();

        let shares = [Some(&cost.voter), cost.learner.as_ref()];
        let shares: Vec<&Share> = shares.into_iter().flatten().collect();
        let sizes: Vec<usize> = shares.iter().map(|share| share.nodes).collect();
        assert_eq!(sizes, [31, 3]);
        let sum = |of: &dyn Fn(&Share) -> f64| {
            let all = shares.iter().map(|share| of(share) * (share.nodes * cost.rounds) as f64);
            all.sum::<f64>().round() as u64
        };
        let kinds: BTreeSet<&str> = sent.keys().chain(received.keys()).copied().collect();
        assert!(kinds.is_superset(&BTreeSet::from(["ready", "head", "estimate", "vote", "certificate"])), "{kinds:?}");
        for kind in kinds {
            let flow = |share: &Share| share.kinds.get(kind).copied().unwrap_or_default();
            let table = [
                sum(&|share| flow(share).messages_sent),
                sum(&|share| flow(share).bytes_sent),
                sum(&|share| flow(share).messages_received),
                sum(&|share| flow(share).bytes_received),
            ];
            let counted =
                [messages_of(sent, kind), bytes_of(sent, kind), messages_of(received, kind), bytes_of(received, kind)];
            assert_eq!(table, counted, "{kind}");
        }
        let total = sum(&|share| share.total().bytes_sent);
        assert_eq!(total, sent.values().flatten().map(|(_, count)| count.bytes).sum::<u64>());
        assert_eq!(sum(&|share| share.engine_ms), *inputs, "a millisecond for each input");

        // All members say READY to all.
        for share in shares {
            assert_eq!(share.connections, 33);
            assert!(share.kinds["ready"].messages_sent >= 33.0, "{cost}");
        }
    }

    #[test]
    fn counting_changes_no_history() {
        let trace = |clock: Option<fn() -> u64>| {
            let mut world = flock(calm(5, false)).expect("the flock gathers");
            world.traffic.clock = clock;
            world.trace = Some(blake3::Hasher::new());
            settle(&mut world, SETTLING);
            world.trace.map(|trace| trace.finalize())
        };
        let plain = trace(None);
        assert!(plain.is_some());
        assert_eq!(plain, trace(Some(strokes)));
    }
}
