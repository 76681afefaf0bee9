//! One example of each wire type, for tests.

use crate::admission::{Revocation, SubjectKind, Ticket};
use crate::amendment::{Amendment, Changes, Settings};
use crate::engine::io::AttemptKey;
use crate::engine::{Candidate, VoteState};
use crate::gossip::GossipSpec;
use crate::grid::Cell;
use crate::identity::{Ed25519Signer, Signer};
use crate::limits::PROTOCOL_VERSION;
use crate::message::{
    Alive, Awaited, Awaits, Certificate, Estimate, Evidence, Fork, Head, Hello, Join, Leave, Message, PeerRtt, Phase,
    Pulse, Question, Ready, Stamp, Start, Statement, StatementKind, Value, ValueKind, Vote, Want, Witness,
};
use crate::record::{Contributor, GrantUse, Measured, Member, NextRound, Record, RecordKind, Role, Span};
use crate::run::{
    Codec, DataSpec, EngineKind, ExternalSpec, ModelSpec, RunSpec, TaskSchema, TaskTensor, TensorKind, TensorType,
};
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

/// The same run with gossip, which needs owners, and with probation.
pub fn spec_with_pairs() -> RunSpec {
    let mut spec = spec();
    (spec.sync.engine, spec.sync.gossip) = (EngineKind::Owners, Some(GossipSpec::every(10)));
    spec.admission.probation = 8;
    spec
}

/// The same run, whose flock chooses steps and codec.
pub fn spec_with_a_choice() -> RunSpec {
    let mut spec = spec();
    (spec.outer.momentum, spec.sync.gap_max, spec.sync.coarsest) = (0.0, 512, Some(Codec::Int4));
    spec
}

/// The same run from weights.
pub fn spec_from_weights() -> RunSpec {
    RunSpec { beginning: Some(digest(0xb1)), ..spec() }
}

/// The tensors of the run with an external task.
pub fn task_schema() -> TaskSchema {
    let tensor = |name: &str, kind, shape: &[u32]| TaskTensor {
        name: name.to_owned(),
        kind,
        dtype: TensorType::F32,
        shape: shape.to_vec(),
    };
    TaskSchema {
        tensors: vec![
            tensor("layer.weight", TensorKind::Learned, &[3, 2]),
            tensor("norm.weight", TensorKind::Learned, &[3]),
            tensor("norm.running_mean", TensorKind::Mean, &[3]),
        ],
    }
}

pub fn task_spec() -> ExternalSpec {
    let schema = task_schema();
    let (parameters, learned) = (schema.elements(), schema.learned());
    ExternalSpec { schema: schema.digest(), frozen: digest(0xf0), parameters, learned, samples: 50_000, weight: 4 }
}

/// The same run with an external task.
pub fn spec_with_task() -> RunSpec {
    let (model, data) = (ModelSpec::of_external(), DataSpec::of_external());
    RunSpec { model, data, task: Some(task_spec()), ..spec_from_weights() }
}

pub fn spec() -> RunSpec {
    RunSpec { creator: Some(signer().id()), ..crate::sample::spec() }
}

pub fn measured() -> Measured {
    Measured {
        step_us: 85_000,
        upload_kbps: 20_000,
        reduce_us: 1_500_000,
        overhead_us: 420_000,
        norm_bits: 1.5f32.to_bits(),
    }
}

pub fn member(fill: u8, start: u64) -> Member {
    let lease = Span { start, count: 240 };
    Member {
        id: node(fill),
        incarnation: 7,
        role: Role::Voter,
        absent: 0,
        expected: true,
        lease,
        upload_kbps: 16_000,
        since: 0,
        served: 0,
        cell: Cell::default(),
    }
}

pub fn record() -> Record {
    let contributor = |fill: u8, start| Contributor {
        member: node(fill),
        ready: digest(fill + 0x80),
        start,
        samples: 240,
        tokens: 30_720,
        steps: 30,
        loss_q16: 200_000,
        measured: measured(),
    };
    Record {
        run: digest(1),
        lineage: digest(2),
        seq: 3,
        parent: digest(4),
        kind: RecordKind::Commit,
        base: Digest::default(),
        round: 3,
        contributors: vec![contributor(0x10, 960), contributor(0x20, 1_200)],
        update: digest(5),
        state_root: digest(6),
        tokens: 184_320,
        steps: 90,
        cursor: 1_920,
        free: vec![Span { start: 480, count: 16 }],
        merged: vec![digest(0x51)],
        grants: vec![GrantUse { grant: digest(0x61), uses: 2 }],
        revoked: vec![digest(0x71)],
        next: NextRound {
            inner_steps: 30,
            codec: Codec::Int8,
            overheads: [400_000, 0, 380_000],
            merge_tokens: 61_440,
            merge_norm_bits: 1.5f32.to_bits(),
            members: vec![
                member(0x10, 1_440),
                Member { role: Role::Learner, absent: 1, expected: false, since: 1, served: 2, ..member(0x20, 1_680) },
            ],
            ring: vec![1, 0],
            settings: Settings::default(),
        },
        amended: None,
    }
}

pub fn question() -> Question {
    Question { seq: 4, parent: digest(4), instance: Question::RECORD }
}

pub fn value() -> Value {
    Value {
        kind: ValueKind::Commit,
        digest: digest(9),
        tokens: 61_440,
        contributors: 2,
        attempt: 1,
        set: digest(8),
        members: Vec::new(),
    }
}

pub fn set_value() -> Value {
    Value { kind: ValueKind::Set, digest: digest(8), members: vec![0b101], ..value() }
}

pub fn vote() -> Vote {
    Vote { question: question(), incarnation: 7, ballot: 1, value: value(), voted: true }
}

pub fn ready() -> Ready {
    Ready {
        lineage: digest(2),
        round: 4,
        base: digest(4),
        state_root: digest(6),
        boot: 0x0102_0304,
        start: 1_440,
        samples: 240,
        tokens: 30_720,
        steps: 30,
        loss_q16: 190_000,
        payload: digest(0xaa),
        measured: measured(),
        statements: vec![
            Statement { kind: StatementKind::Joins, id: node(0x30), incarnation: 9, grant: digest(0x61) },
            Statement { kind: StatementKind::Suspect, id: node(0x20), incarnation: 0, grant: Digest::default() },
        ],
        leave: false,
        merges: Some(digest(0x52)),
        merged_tokens: 15_360,
        rtts: vec![PeerRtt { peer: 1, rtt: 800 }],
        amends: None,
    }
}

pub fn certificate() -> Certificate {
    let vote = super::seal(&signer(), &digest(1), &Message::Vote(vote())).unwrap_or_default();
    Certificate { lineage: digest(2), seq: 4, record: digest(9), votes: vec![vote] }
}

/// The fork of both members of the record; one of them speaks from another vote state by now.
pub fn fork() -> Record {
    let parent = record();
    let going = [(node(0x10), 7), (node(0x20), 9)];
    let fork = crate::engine::succession::fork(&parent, parent.digest(), &spec(), &going);
    fork.unwrap_or_else(record)
}

/// The vote state in phase 2: its node has named a value and voted for it.
pub fn vote_state() -> VoteState {
    let stamp = Stamp { seq: 4, instance: Question::RECORD, ballot: 1, phase: 2 };
    let (estimate, vote) = (Some((1, value())), Some((1, value(), true)));
    VoteState { incarnation: 7, lineage: digest(2), parent: digest(4), stamp, estimate, vote }
}

pub fn candidate() -> Candidate {
    let key = AttemptKey { lineage: digest(2), seq: 3, attempt: 1, set: digest(8) };
    let ready = super::seal(&signer(), &digest(1), &Message::Ready(ready())).unwrap_or_default();
    Candidate { key, record: record(), readys: vec![ready.clone(), ready] }
}

/// Two votes in one ballot.
pub fn evidence() -> Evidence {
    let seal = |vote| super::seal(&signer(), &digest(1), &Message::Vote(vote)).unwrap_or_default();
    Evidence { first: seal(vote()), second: seal(Vote { voted: false, ..vote() }) }
}

pub fn ticket() -> Ticket {
    Ticket::sign(&signer(), &digest(1), 5, Some(node(0x30)), 9, 2)
}

pub fn revocation() -> Revocation {
    Revocation::sign(&signer(), &digest(1), SubjectKind::Identity, Digest(node(0x30).0))
}

pub fn amendment() -> Amendment {
    let changes = Changes { rounds: Some(4_000), lr: Some(1e-3), ..Changes::default() };
    Amendment::next(&Settings::default(), 6, changes).sign(&signer(), &digest(1))
}

/// The record with an amendment.
pub fn amended() -> Record {
    let record = Record { amended: Some(amendment()), ..record() };
    let settings = Settings::default().after(&amendment(), &record.run);
    Record { next: NextRound { settings, ..record.next.clone() }, ..record }
}

/// A question for the READYs of two members.
pub fn want() -> Want {
    Want { lineage: digest(2), round: 4, base: digest(4), members: vec![0b101] }
}

/// One of each kind, in order of tag.
pub fn messages() -> Vec<Message> {
    let spec = super::encode_spec(&spec());
    vec![
        Message::Hello(Hello { version: PROTOCOL_VERSION, spec, boot: 0x0102_0304, incarnation: 7 }),
        Message::Head(Head {
            lineage: digest(2),
            seq: 3,
            record: digest(4),
            tokens: 184_320,
            phase: Phase::Reducing,
            progress: 77,
            awaits: Some(Awaits { what: Awaited::Sum, from: node(0x21) }),
            pulse: Pulse { boot: 0x0102_0304, incarnation: 7, beat: 9_000_000, down: vec![0b10] },
        }),
        Message::Join(Join {
            lineage: digest(2),
            seq: 3,
            record: digest(4),
            state_root: digest(6),
            incarnation: 9,
            ticket: vec![1, 2, 3],
        }),
        Message::Ready(ready()),
        Message::Leave(Leave { lineage: digest(2), seq: 3 }),
        Message::Estimate(Estimate { question: question(), incarnation: 7, ballot: 1, value: value() }),
        Message::Vote(vote()),
        Message::Certificate(certificate()),
        Message::Witness(Witness {
            incarnation: 7,
            stamp: Stamp { seq: 4, instance: Question::RECORD, ballot: 1, phase: 2 },
        }),
        Message::Fork(Fork {
            lineage: digest(2),
            seq: 4,
            parent: digest(4),
            incarnation: 7,
            record: digest(9),
            members: vec![0b11],
        }),
        Message::Start(Start { question: Question { instance: 1, ..question() }, value: set_value() }),
        Message::Evidence(evidence()),
        Message::Alive(Alive { boot: 0x0102_0304, newer: 0x0102_0305 }),
        Message::Amend(amendment()),
        Message::Want(want()),
    ]
}
