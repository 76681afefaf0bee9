//! One engine on a bench: a clock, a peer's voice, and what it answers.

use starling_protocol::engine::io::{Input, Output, Refusal, Time};
use starling_protocol::engine::{Engine, EngineConfig, Founding, Timing};
use starling_protocol::identity::{Ed25519Signer, Ed25519Verifier};
use starling_protocol::limits::PROTOCOL_VERSION;
use starling_protocol::message::{Hello, Message, Ready};
use starling_protocol::record::Record;
use starling_protocol::run::{Budget, Codec, DataSpec, InnerSpec, ModelSpec, OuterSpec, RunSpec, SyncSpec};
use starling_protocol::{Digest, NodeId, Signer, wire};

pub fn spec() -> RunSpec {
    RunSpec {
        name: "edges".to_owned(),
        seed: 1,
        creator: None,
        model: ModelSpec {
            vocab: 256,
            d_model: 8,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            ffn: 8,
            seq_len: 4,
            tied: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        },
        data: DataSpec { manifest: Digest([1; 32]), tokenizer: Digest([2; 32]) },
        inner: InnerSpec {
            steps: 2,
            batch: 2,
            accumulate: 1,
            lr: 1e-3,
            lr_final: 0.1,
            warmup_steps: 0,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        },
        outer: OuterSpec { lr: vec![(1, 0.9)], momentum: 0.9 },
        sync: SyncSpec { codec: Codec::Bf16 },
        budget: Budget { rounds: 0, tokens: 0 },
    }
}

pub fn key(n: u8) -> Ed25519Signer {
    Ed25519Signer::from_secret(&[n; 32])
}

/// An engine, its clock, and what it said last.
pub struct Bench {
    pub engine: Engine,
    pub now: u64,
}

impl Bench {
    pub fn new(found: bool) -> Self {
        let config = EngineConfig {
            signer: Box::new(key(1)),
            verifier: Box::new(Ed25519Verifier),
            spec: spec(),
            run: spec().digest(),
            boot: 1_000,
            found: found.then_some(Founding { nonce: 1, state_root: Digest([5; 32]) }),
            stored: None,
            timing: Timing::default(),
        };
        Self { engine: Engine::new(config), now: 77 }
    }

    /// One that has founded a lineage and trains alone in its first round.
    pub fn founder() -> (Self, Record) {
        let mut bench = Self::new(true);
        let outputs = bench.feed(Input::Tick);
        let [Output::Found { token, record }] = &outputs[..1] else { panic!("{outputs:?}") };
        let outputs = bench.feed(Input::Durable { token: *token });
        assert!(outputs.iter().any(|output| matches!(output, Output::Train { round: 1, .. })), "{outputs:?}");
        (bench, record.clone())
    }

    pub fn feed(&mut self, input: Input) -> Vec<Output> {
        self.now += 1_000;
        self.engine.handle(input, Time(self.now))
    }

    pub fn say(&mut self, from: u8, message: &Message) -> Vec<Output> {
        let bytes = wire::seal(&key(from), &spec().digest(), message).unwrap();
        self.feed(Input::Message { from: key(from).id(), bytes })
    }

    /// A peer connects and greets.
    pub fn meet(&mut self, peer: u8, boot: u64) -> Vec<Output> {
        let mut outputs = self.feed(Input::PeerUp { peer: key(peer).id() });
        outputs.extend(self.say(peer, &hello(&spec(), boot)));
        outputs
    }
}

pub fn hello(spec: &RunSpec, boot: u64) -> Message {
    Message::Hello(Hello { version: PROTOCOL_VERSION, spec: wire::encode_spec(spec), boot })
}

pub fn refusal(output: &Output) -> Option<&Refusal> {
    match output {
        Output::Refuse { refusal, .. } => Some(refusal),
        _ => None,
    }
}

pub fn refusals(outputs: &[Output]) -> Vec<&Refusal> {
    outputs.iter().filter_map(refusal).collect()
}

pub fn sent(outputs: &[Output], to: &NodeId) -> Vec<Message> {
    let message = |output: &Output| match output {
        Output::Send { to: target, bytes, .. } if target == to => {
            Some(wire::open(&Ed25519Verifier, &spec().digest(), bytes).unwrap().message)
        }
        _ => None,
    };
    outputs.iter().filter_map(message).collect()
}

pub fn ready(record: &Record, joins: Vec<NodeId>) -> Ready {
    let lease = &record.next.members[0];
    Ready {
        lineage: record.lineage,
        seq: record.seq + 1,
        round: record.round + 1,
        parent: record.digest(),
        state_root: record.state_root,
        lease_start: lease.start,
        samples: lease.count,
        tokens: lease.count * 4,
        steps: 2,
        loss_q16: 1,
        payload: Digest([8; 32]),
        step_us: 1,
        joins,
        leave: false,
    }
}
