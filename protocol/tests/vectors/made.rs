//! Inputs of the vectors: ids, digests, runs and READYs that are easy to tell apart by eye.

use starling_protocol::engine::succession::SignedReady;
use starling_protocol::message::{Ready, Statement, StatementKind};
use starling_protocol::record::{Measured, Record};
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, NodeId, wire};

/// An example of each wire type.
const WIRE: &str = include_str!("../../vectors/wire.txt");

/// The bytes of an example.
pub fn example(name: &str) -> Vec<u8> {
    let line = WIRE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("named in wire.txt");
    data_encoding::HEXLOWER.decode(line.as_bytes()).expect("hex")
}

/// The run of `wire.txt`: 30 steps of 8 positions, int8, a ring, no probation.
pub fn spec() -> RunSpec {
    wire::decode_spec(&example("spec")).expect("the example decodes")
}

/// The run with an external task of `wire.txt`.
pub fn spec_with_task() -> RunSpec {
    wire::decode_spec(&example("spec-with-task")).expect("the example decodes")
}

/// The record of `wire.txt`, as a pattern.
pub fn record() -> Record {
    wire::decode_record(&example("record")).expect("the example decodes")
}

pub fn id(fill: u8) -> NodeId {
    NodeId([fill; 32])
}

pub fn digest(fill: u8) -> Digest {
    Digest([fill; 32])
}

/// The READY of a member that did so many steps of its lease; its envelope's digest is made up.
pub fn ready(parent: &Record, spec: &RunSpec, member: u8, steps: u32) -> SignedReady {
    let lease = parent.lease_of(&id(member)).expect("a member");
    let samples = spec.inner.samples(steps);
    let norm_bits = (1.0 + f32::from(member) / 64.0).to_bits();
    let ready = Ready {
        lineage: parent.lineage,
        round: parent.round + 1,
        base: parent.base_or(parent.digest()),
        state_root: parent.state_root,
        boot: 1_000,
        start: lease.start,
        samples,
        tokens: samples * u64::from(spec.model.seq_len),
        steps,
        loss_q16: 200_000 + u32::from(member),
        payload: digest(member),
        measured: Measured { step_us: 0, upload_kbps: 0, reduce_us: 0, overhead_us: 0, norm_bits },
        statements: Vec::new(),
        leave: false,
        merges: None,
        merged_tokens: 0,
        rtts: Vec::new(),
        amends: None,
    };
    let envelope = Digest::of("a made-up envelope", &[&parent.digest().0, &[member]]);
    SignedReady { member: id(member), ready, digest: envelope, bytes: Vec::new() }
}

pub fn joins(id_of: u8, incarnation: u64) -> Statement {
    Statement { kind: StatementKind::Joins, id: id(id_of), incarnation, grant: Digest::default() }
}

pub fn suspect(of: u8) -> Statement {
    Statement { kind: StatementKind::Suspect, ..joins(of, 0) }
}

pub fn revoked(of: u8) -> Statement {
    Statement { kind: StatementKind::Revoked, ..joins(of, 0) }
}
