//! A little flock for tests: three voters, records that follow one another, votes that hold.

pub use super::chain::Link;
use starling_protocol::engine::succession;
use starling_protocol::identity::Ed25519Signer;
use starling_protocol::message::{Certificate, Message, Question, Value, ValueKind, Vote};
use starling_protocol::record::{Contributor, Measured, Member, NextRound, Record, RecordKind, Role, Span};
use starling_protocol::run::{
    AdmissionMode, AdmissionSpec, Budget, Codec, DataSpec, EngineKind, InnerSpec, Minority, ModelSpec,
};
use starling_protocol::run::{OuterSpec, PartitionSpec, RunSpec, SyncMode, SyncSpec};
use starling_protocol::{Digest, NodeId, Signer, certificate, wire};

/// Positions of one lease.
const LEASE: u64 = 240;

pub fn spec() -> RunSpec {
    RunSpec {
        name: "node-test".to_owned(),
        seed: 1,
        creator: None,
        model: ModelSpec {
            vocab: 256,
            d_model: 8,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            ffn: 8,
            seq_len: 8,
            tied: true,
            rope_theta: 10_000.0,
            norm_eps: 1e-5,
        },
        data: DataSpec { manifest: Digest([1; 32]), tokenizer: Digest([2; 32]) },
        inner: InnerSpec {
            steps: 30,
            batch: 8,
            accumulate: 1,
            lr: 1e-3,
            lr_final: 0.1,
            warmup_steps: 10,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        },
        outer: OuterSpec { lr: vec![(1, 0.7)], momentum: 0.9 },
        sync: SyncSpec::whole(SyncMode::Rounds, Codec::Int8, EngineKind::Ring),
        partition: PartitionSpec { minority: Minority::Fork, grace_ms: 60_000 },
        admission: AdmissionSpec { mode: AdmissionMode::Open, allow: Vec::new(), probation: 0 },
        budget: Budget { rounds: 0, tokens: 0 },
    }
}

pub fn signers() -> Vec<Ed25519Signer> {
    let mut signers: Vec<_> = [1u8, 2, 3].iter().map(|fill| Ed25519Signer::from_secret(&[*fill; 32])).collect();
    signers.sort_by_key(Signer::id);
    signers
}

/// A record that all three voters decide upon.
pub fn genesis() -> Link {
    let signers = signers();
    let spec = spec();
    let founder = signers[0].id();
    let mut record = succession::genesis(spec.digest(), &spec, (founder, 1), 7, Digest([5; 32])).expect("it fits");
    let member = |(n, signer): (usize, &Ed25519Signer)| Member {
        id: signer.id(),
        incarnation: 1,
        role: Role::Voter,
        absent: 0,
        expected: true,
        lease: Span { start: LEASE * n as u64, count: LEASE },
        upload_kbps: 0,
        since: 0,
        served: 0,
    };
    record.next.members = signers.iter().enumerate().map(member).collect();
    record.cursor = LEASE * 3;
    record.validate_shape().expect("a genesis of three");
    Link { digest: record.digest(), record, certificate: None }
}

/// A skip after `parent`, decided by the first `voters` of the three.
pub fn skip(parent: &Link, voters: usize) -> Link {
    let record = succession::skip(&parent.record, parent.digest).expect("it fits");
    let digest = record.digest();
    let certificate = vote_for(&record, digest, &signers()[..voters]);
    Link { record, digest, certificate: Some(certificate) }
}

/// The votes of these for a record.
pub fn vote_for(record: &Record, digest: Digest, signers: &[Ed25519Signer]) -> Certificate {
    let question = Question { seq: record.seq, parent: record.parent, instance: Question::RECORD };
    let value = match record.kind {
        RecordKind::Commit => {
            let set = Digest([6; 32]);
            Value { kind: ValueKind::Commit, contributors: 1, tokens: 4, set, ..Value::skip(digest) }
        }
        _ => Value::skip(digest),
    };
    let vote = Vote { question, incarnation: 1, ballot: 0, value, voted: true };
    let seal = |signer: &Ed25519Signer| {
        (signer.id(), wire::seal(signer, &record.run, &Message::Vote(vote.clone())).expect("it seals"))
    };
    let sealed: Vec<(NodeId, Vec<u8>)> = signers.iter().map(seal).collect();
    certificate::of_votes(record.lineage, &vote, sealed.iter().map(|(id, bytes)| (id, bytes)))
}

/// `n` links after `parent`, each decided by two of the three.
pub fn chain(parent: &Link, n: usize) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for _ in 0..n {
        links.push(skip(links.last().unwrap_or(parent), 2));
    }
    links
}

/// A commit after `parent` with this update, as far as its shape goes.
pub fn commit(parent: &Link, update: Digest) -> Record {
    let member = signers()[0].id();
    let contributor = Contributor {
        member,
        ready: Digest([8; 32]),
        start: 0,
        samples: LEASE,
        tokens: 100,
        steps: 30,
        loss_q16: 1,
        measured: Measured::default(),
    };
    let mut record = Record {
        seq: parent.record.seq + 1,
        parent: parent.digest,
        kind: RecordKind::Commit,
        base: Digest::default(),
        round: parent.record.round + 1,
        contributors: vec![contributor],
        update,
        tokens: parent.record.tokens + 100,
        next: NextRound { merge_tokens: 100, ..parent.record.next.clone() },
        ..parent.record.clone()
    };
    count(&mut record, &parent.record);
    record
}

/// What members of the next round have contributed, counted on from the record before.
pub fn count(record: &mut Record, before: &Record) {
    let contributors = &record.contributors;
    for seat in &mut record.next.members {
        let counted = u16::from(contributors.iter().any(|contributor| contributor.member == seat.id));
        let tenure = before.member(&seat.id).map(|before| (before.since, before.served + counted));
        (seat.since, seat.served) = tenure.unwrap_or((record.round, 0));
    }
}
