//! Inputs a second that the engine handles on one core, in a flock of 64 members with 31 voters.
//!
//! The bench records the inputs of some rounds once, with every peer's heartbeats, READYs, votes and their repetitions,
//! and then feeds them to a new engine again and again. Signatures are not checked: a check takes some 30 us (ed25519).

#[path = "../../protocol/tests/engine_edges/bench.rs"]
#[allow(dead_code)]
mod bench;
#[path = "../../protocol/tests/engine_edges/fixture.rs"]
#[allow(dead_code)]
mod fixture;
#[path = "../../protocol/tests/engine_edges/watch.rs"]
#[allow(dead_code)]
mod watch;

use bench::{Bench, ME, id};
use criterion::{Criterion, Throughput};
use fixture::{BOOT, Key, genesis, spec, vote_state};
use starling_protocol::ancestry::Ancestry;
use starling_protocol::engine::io::{Input, Time};
use starling_protocol::engine::{Engine, EngineConfig, Stored, Timing};
use starling_protocol::limits::VOTERS_MAX;
use starling_protocol::message::{Estimate, Message, Phase, Vote};
use starling_protocol::record::Role;
use starling_protocol::{NodeId, Signature, Verifier};
use std::hint::black_box;
use std::time::Duration;

const MEMBERS: u8 = 64;
const ROUNDS: usize = 4;
/// Heartbeats of every peer in one round.
const BEATS: u64 = 20;

struct Trusting;

impl Verifier for Trusting {
    fn verify(&self, _: &NodeId, _: &[u8], _: &Signature) -> bool {
        true
    }
}

fn members() -> Vec<(u8, Role)> {
    (1..=MEMBERS).map(|n| (n, if usize::from(n) <= VOTERS_MAX { Role::Voter } else { Role::Learner })).collect()
}

fn engine() -> Engine {
    let head = genesis(&spec(), &members());
    let stored = Stored {
        ancestry: Ancestry::of([&head]),
        vote_state: Some(vote_state(&head)),
        head,
        certificate: None,
        past: Vec::new(),
        candidates: Vec::new(),
        evidence: Vec::new(),
    };
    Engine::new(EngineConfig {
        signer: Box::new(Key(id(ME))),
        verifier: Box::new(Trusting),
        run: spec().digest(),
        spec: spec(),
        boot: BOOT,
        found: None,
        stored: Some(stored),
        copied: false,
        ticket: Vec::new(),
        guides: Vec::new(),
        adopt: None,
        force_fork: false,
        timing: Timing::default(),
    })
}

/// Every peer reports progress in its Heads, and so does the node's own trainer or reduction.
fn beats(bench: &mut Bench, phase: Phase) {
    for beat in 0..BEATS / 2 {
        for peer in 2..=MEMBERS {
            let head = bench.chain_head(phase, beat);
            bench.say(peer, &Message::Head(head));
        }
        let round = bench.record().round + 1;
        bench.feed(Input::TrainProgress { round, step: beat as u32 });
        bench.feed(Input::Rtt { peer: id(2 + beat as u8), micros: 20_000 });
        bench.feed(Input::Tick);
    }
}

fn vote_for(said: &Estimate) -> Message {
    let Estimate { question, incarnation, ballot, value } = said.clone();
    Message::Vote(Vote { question, incarnation, ballot, value, voted: true })
}

/// All inputs of a member in some rounds.
fn rounds() -> Vec<(u64, Input)> {
    let mut bench = Bench::recorded(spec(), &members());
    for _ in 0..ROUNDS {
        beats(&mut bench, Phase::Training);
        let key = bench.all_ready();
        beats(&mut bench, Phase::Reducing);
        let said = bench.rebuild(key);
        for _ in 0..3 {
            // Each message comes once and is repeated twice. The voters of this loop are one short of a quorum.
            for peer in 2..=MEMBERS {
                let ready = bench.ready(peer);
                bench.say(peer, &Message::Ready(ready));
            }
            for peer in 18..=VOTERS_MAX as u8 {
                bench.say(peer, &Message::Estimate(said.clone()));
                bench.say(peer, &vote_for(&said));
            }
        }
        for peer in 2..18 {
            bench.say(peer, &Message::Estimate(said.clone()));
            bench.say(peer, &vote_for(&said));
        }
        for peer in 2..=MEMBERS {
            let head = bench.chain_head(Phase::Training, 0);
            bench.say(peer, &Message::Head(head));
        }
    }
    assert_eq!(bench.record().round, ROUNDS as u64, "every round commits");
    bench.script.take().unwrap_or_default()
}

fn main() {
    let script = rounds();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(script.len() as u64));
    group.bench_function("rounds/64 members", |b| {
        b.iter_batched(
            || (engine(), script.clone()),
            |(mut engine, script)| {
                for (now, input) in script {
                    black_box(engine.handle(input, Time(now)));
                }
                assert_eq!(engine.view().round, ROUNDS as u64, "the same inputs, the same records");
                engine
            },
            criterion::BatchSize::LargeInput,
        );
    });
    group.finish();
    criterion.final_summary();
}
