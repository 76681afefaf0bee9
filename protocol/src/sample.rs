//! Runs, first records and chains for tests of this crate and of all crates that use it. Each test changes the part
//! that it is about.
//!
//! They are part of the library: a feature for tests alone would change what the programs are built from.

use crate::amendment::Settings;
use crate::difference::Limits;
use crate::grid::{self, Cell, Sitter};
use crate::message::{Certificate, Message, Question, Value, ValueKind, Vote};
use crate::path::Link;
use crate::record::{Contributor, Measured, Member, NextRound, Record, RecordKind, Role, Span};
use crate::run::{
    AdmissionMode, AdmissionSpec, Budget, Codec, DataSpec, EngineKind, InnerSpec, JoinSpec, Minority, ModelSpec,
    Optimizer, OuterSpec, PartitionSpec, RunSpec, SyncMode, SyncSpec,
};
use crate::{Digest, NodeId, Signer, certificate, wire};

/// Voters of a [`flock`] that has at least that many records.
const SEATS: usize = 5;

/// A run of a hundred rounds of 30 steps of 8 sequences, by a ring in int8.
pub fn spec() -> RunSpec {
    RunSpec {
        name: "tiny-flock".to_owned(),
        seed: 42,
        creator: None,
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
        data: DataSpec { manifest: Digest([0xd1; 32]), tokenizer: Digest([0xd2; 32]) },
        inner: InnerSpec {
            optimizer: Optimizer::AdamW,
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
        sync: SyncSpec::whole(SyncMode::Rounds, Codec::Int8, EngineKind::Ring),
        partition: PartitionSpec { minority: Minority::Fork, grace_ms: 60_000 },
        admission: AdmissionSpec { mode: AdmissionMode::Open, allow: Vec::new(), probation: 0 },
        join: JoinSpec { patience_ms: 60_000, share: 25 },
        budget: Budget { rounds: 100, tokens: 0 },
        beginning: None,
        task: None,
    }
}

/// A run without an end and with a tiny model: rounds of two steps of two sequences of four tokens.
pub fn small() -> RunSpec {
    let spec = spec();
    RunSpec {
        seed: 1,
        model: ModelSpec { d_model: 8, layers: 1, heads: 2, kv_heads: 1, ffn: 8, seq_len: 4, ..spec.model },
        data: DataSpec { manifest: Digest([1; 32]), tokenizer: Digest([2; 32]) },
        inner: InnerSpec { steps: 2, batch: 2, warmup_steps: 0, ..spec.inner },
        outer: OuterSpec { lr: vec![(1, 0.9)], momentum: 0.9 },
        budget: Budget { rounds: 0, tokens: 0 },
        ..spec
    }
}

/// Voters, by ascending id, whose leases of `lease` positions lie side by side from `cursor` on.
pub fn voters(ids: impl IntoIterator<Item = NodeId>, incarnation: u64, cursor: u64, lease: u64) -> Vec<Member> {
    let mut ids: Vec<NodeId> = ids.into_iter().collect();
    ids.sort_unstable();
    let seat = |(place, id)| Member {
        id,
        incarnation,
        role: Role::Voter,
        absent: 0,
        expected: true,
        lease: Span { start: cursor + place as u64 * lease, count: lease },
        upload_kbps: 0,
        since: 0,
        served: 0,
        cell: Cell::default(),
    };
    ids.into_iter().enumerate().map(seat).collect()
}

/// Gives the members of a first record, by ascending id, their cells.
pub fn seat(members: &mut [Member]) {
    let sitter = |seat: &Member| Sitter { id: seat.id, votes: seat.role == Role::Voter, before: None };
    let sitters: Vec<Sitter> = members.iter().map(sitter).collect();
    let cells = grid::cells(1, &Digest::default(), &sitters);
    members.iter_mut().zip(cells).for_each(|(seat, cell)| seat.cell = cell);
}

/// The first record of a lineage that these members founded together.
pub fn genesis(spec: &RunSpec, lineage: Digest, state_root: Digest, mut members: Vec<Member>) -> Record {
    seat(&mut members);
    let cursor = members.iter().filter_map(|member| member.lease.end()).max().unwrap_or_default();
    let next = NextRound {
        inner_steps: spec.inner.steps,
        codec: spec.sync.codec,
        overheads: Default::default(),
        merge_tokens: 0,
        merge_norm_bits: 0,
        members,
        ring: Vec::new(),
        settings: Settings::default(),
    };
    Record {
        run: spec.digest(),
        lineage,
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        base: Digest::default(),
        round: 0,
        contributors: Vec::new(),
        update: Digest::default(),
        state_root,
        tokens: 0,
        steps: 0,
        cursor,
        free: Vec::new(),
        merged: Vec::new(),
        grants: Vec::new(),
        revoked: Vec::new(),
        next,
        amended: None,
    }
}

/// A COMMIT of well-formed shape after `parent`. Its first voter contributed `tokens` of its lease, and `members` are
/// the members after it. Nothing else in it follows from anything.
pub fn commit(parent: &Record, tokens: u64, members: Vec<Member>) -> Record {
    let contributor = |worker: &Member| Contributor {
        member: worker.id,
        ready: Digest([8; 32]),
        start: worker.lease.start,
        samples: 1,
        tokens,
        steps: 1,
        loss_q16: 1,
        measured: Measured::default(),
    };
    let contributors: Vec<Contributor> = parent.voters().take(1).map(contributor).collect();
    let Limits { tokens: merge_tokens, norm_bits: merge_norm_bits } = Limits::of(&contributors);
    let end = members.iter().filter_map(|member| member.lease.end()).max().unwrap_or_default();
    let mut record = Record {
        seq: parent.seq + 1,
        parent: parent.digest(),
        kind: RecordKind::Commit,
        base: Digest::default(),
        round: parent.round + 1,
        contributors,
        update: Digest([5; 32]),
        tokens: parent.tokens + tokens,
        steps: parent.steps + u64::from(parent.next.inner_steps),
        cursor: end.max(parent.cursor),
        next: NextRound { merge_tokens, merge_norm_bits, members, ..parent.next.clone() },
        ..parent.clone()
    };
    count(&mut record, parent);
    record
}

/// Sets how often members have contributed, counted on from the record before.
pub fn count(record: &mut Record, before: &Record) {
    for seat in &mut record.next.members {
        let counted = u16::from(record.contributors.iter().any(|contributor| contributor.member == seat.id));
        let tenure = before.member(&seat.id).map(|before| (before.since, before.served + counted));
        (seat.since, seat.served) = tenure.unwrap_or((record.round, 0));
    }
}

/// The votes of these signers for a record, by ascending id and all under one incarnation.
pub fn certificate(record: &Record, incarnation: u64, signers: &[impl Signer]) -> Certificate {
    let (digest, set) = (record.digest(), record.set());
    let question = Question { seq: record.seq, parent: record.parent, instance: Question::RECORD };
    let value = match record.kind {
        RecordKind::Commit => {
            let tokens = record.contributors.iter().map(|contributor| contributor.tokens).sum();
            let contributors = record.contributors.len() as u32;
            Value { kind: ValueKind::Commit, tokens, contributors, set, ..Value::skip(digest) }
        }
        _ => Value::skip(digest),
    };
    let vote = Vote { question, incarnation, ballot: 0, value, voted: true };
    let ballot = Message::Vote(vote.clone());
    let seal = |signer| wire::seal(signer, &record.run, &ballot).unwrap_or_default();
    let votes: Vec<(NodeId, Vec<u8>)> = signers.iter().map(|signer| (signer.id(), seal(signer))).collect();
    certificate::of_votes(record.lineage, &vote, votes.iter().map(|(id, vote)| (id, vote)))
}

/// Keys `from` and on, by ascending id.
pub fn keys<S: Signer>(key: impl Fn(u64) -> S, from: u64, count: usize) -> Vec<S> {
    let mut keys: Vec<S> = (from..).take(count).map(key).collect();
    keys.sort_by_key(Signer::id);
    keys
}

/// A COMMIT after `parent` with the votes of `signers`, after which `voters` vote, under the incarnation of the voters
/// before and with leases as long as theirs.
pub fn link_after(parent: &Link, signers: &[impl Signer], voters: &[impl Signer]) -> Link {
    let before = &parent.record;
    let (incarnation, lease) = before.voters().next().map_or((0, 0), |voter| (voter.incarnation, voter.lease.count));
    let seats = self::voters(voters.iter().map(Signer::id), incarnation, before.cursor, lease);
    let record = commit(before, 4, seats);
    let certificate = Some(certificate(&record, incarnation, signers));
    Link { digest: record.digest(), record, certificate }
}

/// A chain of `length` records after `first`, whose only voter has key 0. Then up to five keys vote; the lowest of them
/// goes every `every` records.
pub fn flock<S: Signer>(first: Record, key: impl Fn(u64) -> S, length: u64, every: u64) -> Vec<Link> {
    let mut parent = Link { digest: first.digest(), record: first, certificate: None };
    let mut signers = keys(&key, 0, 1);
    let mut links = Vec::new();
    for seq in 1..=length {
        let voters = keys(&key, seq / every, SEATS.min(seq as usize));
        let next = link_after(&parent, &signers, &voters);
        links.push(std::mem::replace(&mut parent, next));
        signers = voters;
    }
    links.push(parent);
    links
}
