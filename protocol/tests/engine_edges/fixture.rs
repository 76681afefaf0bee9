//! Keys, a run and records for the bench.

use starling_protocol::engine::VoteState;
use starling_protocol::message::Stamp;
use starling_protocol::record::{Member, Record, Role};
use starling_protocol::run::{Codec, EngineKind, Minority, ModelSpec, PartitionSpec, RunSpec, SyncMode, SyncSpec};
use starling_protocol::{Digest, NodeId, Signature, Signer, Verifier, sample};
use std::cell::Cell;

/// Signs with a keyed hash: the tests are about senders, not about the curve.
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
/// The incarnation under which every member is admitted; the engine's process and those of the peers start later.
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
    let small = sample::small();
    RunSpec {
        creator: Some(id(99)),
        model: ModelSpec { layers: 2, ..small.model },
        sync: SyncSpec::whole(SyncMode::Rounds, Codec::Bf16, EngineKind::Ring),
        partition: PartitionSpec { minority: Minority::Wait, ..small.partition },
        ..small
    }
}

/// A first record that names these members, in ascending order.
pub fn genesis(spec: &RunSpec, members: &[(u8, Role)]) -> Record {
    let seats = sample::voters(members.iter().map(|(n, _)| id(*n)), INCARNATION, 0, LEASE);
    let seats = seats.into_iter().zip(members).map(|(seat, (_, role))| Member { role: *role, ..seat }).collect();
    let record = sample::genesis(spec, digest(0x11), digest(5), seats);
    record.validate_shape().expect("the bench's records are well-formed");
    record
}

pub fn voters(count: u8) -> Vec<(u8, Role)> {
    (1..=count).map(|n| (n, Role::Voter)).collect()
}

pub fn vote_state(head: &Record) -> VoteState {
    let (lineage, parent, stamp) = (head.lineage, head.digest(), Stamp::default());
    VoteState { incarnation: INCARNATION, lineage, parent, stamp, estimate: None, vote: None }
}
