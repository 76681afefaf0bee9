//! One example of each thing that travels, for tests.

use crate::identity::{Ed25519Signer, Signer};
use crate::limits::PROTOCOL_VERSION;
use crate::message::{Form, Head, Hello, Join, Leave, Message, Phase, Ready, Report};
use crate::record::{Contributor, Lease, NextRound, Record, RecordKind};
use crate::run::{Budget, Codec, DataSpec, InnerSpec, ModelSpec, OuterSpec, RunSpec, SyncSpec};
use crate::{Digest, NodeId};

pub fn digest(fill: u8) -> Digest {
    Digest([fill; 32])
}

pub fn node(fill: u8) -> NodeId {
    NodeId([fill; 32])
}

pub fn signer() -> Ed25519Signer {
    Ed25519Signer::from_secret(&[7; 32])
}

pub fn spec() -> RunSpec {
    RunSpec {
        name: "tiny-flock".to_owned(),
        seed: 42,
        creator: Some(signer().id()),
        model: ModelSpec {
            vocab: 256,
            d_model: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            ffn: 192,
            seq_len: 128,
            tied: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        },
        data: DataSpec { manifest: digest(0xd1), tokenizer: digest(0xd2) },
        inner: InnerSpec {
            steps: 30,
            batch: 8,
            accumulate: 1,
            lr: 1e-3,
            lr_final: 0.1,
            warmup_steps: 100,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        },
        outer: OuterSpec { lr: vec![(1, 0.9), (4, 0.7)], momentum: 0.9 },
        sync: SyncSpec { codec: Codec::Int8 },
        budget: Budget { rounds: 100, tokens: 0 },
    }
}

pub fn record() -> Record {
    let contributor = |fill| Contributor {
        member: node(fill),
        ready: digest(fill + 0x80),
        tokens: 30_720,
        steps: 30,
        loss_q16: 200_000,
    };
    Record {
        run: digest(1),
        lineage: digest(2),
        seq: 3,
        parent: digest(4),
        kind: RecordKind::Commit,
        round: 3,
        contributors: vec![contributor(0x10), contributor(0x20)],
        update: digest(5),
        state_root: digest(6),
        tokens: 184_320,
        cursor: 1_920,
        next: NextRound {
            inner_steps: 30,
            codec: Codec::Int8,
            members: vec![
                Lease { member: node(0x10), start: 1_440, count: 240 },
                Lease { member: node(0x20), start: 1_680, count: 240 },
            ],
        },
    }
}

pub fn report() -> Report {
    Report { lineage: digest(2), seq: 4, attempt: 1, set: digest(8), record: digest(9) }
}

/// One of each kind, in order of tag.
pub fn messages() -> Vec<Message> {
    vec![
        Message::Hello(Hello { version: PROTOCOL_VERSION, spec: super::encode_spec(&spec()), boot: 0x0102_0304 }),
        Message::Head(Head {
            lineage: digest(2),
            seq: 3,
            record: digest(4),
            tokens: 184_320,
            phase: Phase::Reducing,
            progress: 77,
            report: Some(report()),
        }),
        Message::Join(Join { lineage: digest(2), seq: 3, record: digest(4), state_root: digest(6) }),
        Message::Ready(Ready {
            lineage: digest(2),
            seq: 4,
            round: 4,
            parent: digest(4),
            state_root: digest(6),
            lease_start: 1_440,
            samples: 240,
            tokens: 30_720,
            steps: 30,
            loss_q16: 190_000,
            payload: digest(0xaa),
            step_us: 85_000,
            joins: vec![node(0x30), node(0x40)],
            leave: false,
        }),
        Message::Form(Form {
            lineage: digest(2),
            seq: 4,
            parent: digest(4),
            attempt: 1,
            members: vec![node(0x10), node(0x20)],
            live: vec![node(0x10), node(0x20), node(0x30)],
        }),
        Message::Report(report()),
        Message::Leave(Leave { lineage: digest(2), seq: 3 }),
    ]
}
