//! Keys, a run and records for the bench.

use starling_protocol::engine::Register;
use starling_protocol::message::Stamp;
use starling_protocol::record::{Member, NextRound, Record, RecordKind, Role, Span};
use starling_protocol::run::{
    AdmissionMode, AdmissionSpec, Budget, Codec, DataSpec, EngineKind, InnerSpec, Minority, ModelSpec, OuterSpec,
    PartitionSpec, RunSpec, SyncMode, SyncSpec,
};
use starling_protocol::{Digest, NodeId, Signature, Signer, Verifier};
use std::cell::Cell;

/// Signs with a keyed hash: who said what is tested, not the curve.
pub struct Key(pub NodeId);
pub struct Keys;

thread_local! {
    static VERIFIED: Cell<u64> = const { Cell::new(0) };
}

/// Signatures that were verified in this thread so far.
pub fn verified() -> u64 {
    VERIFIED.get()
}

pub fn mac(id: &NodeId, bytes: &[u8]) -> Signature {
    let digest = Digest::of("starling edges key v1", &[&id.0, bytes]);
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&digest.0);
    Signature(signature)
}

impl Signer for Key {
    fn id(&self) -> NodeId {
        self.0
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        mac(&self.0, bytes)
    }
}

impl Verifier for Keys {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        VERIFIED.set(VERIFIED.get() + 1);
        mac(id, bytes) == *signature
    }
}

/// The engine's node is 1, its peers are the numbers after that.
pub const ME: u8 = 1;
/// Under which every member is admitted; the engine's process and those of the peers start later.
pub const INCARNATION: u64 = 7;
pub const BOOT: u64 = 1_000;
const LEASE: u64 = 4;

pub fn id(n: u8) -> NodeId {
    NodeId([n; 32])
}

pub fn digest(fill: u8) -> Digest {
    Digest([fill; 32])
}

pub fn spec() -> RunSpec {
    RunSpec {
        name: "edges".to_owned(),
        seed: 1,
        creator: Some(id(99)),
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
        data: DataSpec { manifest: digest(1), tokenizer: digest(2) },
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
        sync: SyncSpec::whole(SyncMode::Rounds, Codec::Bf16, EngineKind::Ring),
        partition: PartitionSpec { minority: Minority::Wait, grace_ms: 60_000 },
        admission: AdmissionSpec { mode: AdmissionMode::Open, allow: Vec::new(), probation: 0 },
        budget: Budget { rounds: 0, tokens: 0 },
    }
}

/// A first record that names these members, in ascending order.
pub fn genesis(spec: &RunSpec, members: &[(u8, Role)]) -> Record {
    let member = |(place, (n, role)): (usize, &(u8, Role))| {
        let lease = Span { start: place as u64 * LEASE, count: LEASE };
        Member {
            id: id(*n),
            incarnation: INCARNATION,
            role: *role,
            absent: 0,
            expected: true,
            lease,
            upload_kbps: 0,
            since: 0,
            served: 0,
        }
    };
    let members: Vec<Member> = members.iter().enumerate().map(member).collect();
    let cursor = members.len() as u64 * LEASE;
    let next = NextRound {
        inner_steps: 2,
        codec: spec.sync.codec,
        rung: 0,
        dwell: 0,
        verdicts: 0,
        merge_tokens: 0,
        merge_norm_bits: 0,
        members,
        ring: Vec::new(),
    };
    let record = Record {
        run: spec.digest(),
        lineage: digest(0x11),
        seq: 0,
        parent: Digest::default(),
        kind: RecordKind::Genesis,
        base: Digest::default(),
        round: 0,
        contributors: Vec::new(),
        update: Digest::default(),
        state_root: digest(5),
        tokens: 0,
        cursor,
        free: Vec::new(),
        merged: Vec::new(),
        grants: Vec::new(),
        revoked: Vec::new(),
        next,
    };
    record.validate_shape().expect("the bench's records are well-formed");
    record
}

pub fn voters(count: u8) -> Vec<(u8, Role)> {
    (1..=count).map(|n| (n, Role::Voter)).collect()
}

pub fn register(head: &Record) -> Register {
    let (lineage, parent, stamp) = (head.lineage, head.digest(), Stamp::default());
    Register { incarnation: INCARNATION, lineage, parent, stamp, estimate: None, vote: None }
}
