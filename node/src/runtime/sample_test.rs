//! A small flock for tests: three voters, consecutive records, valid votes.

pub use super::chain::Link;
use starling_protocol::engine::succession;
use starling_protocol::identity::Ed25519Signer;
use starling_protocol::record::Record;
use starling_protocol::run::RunSpec;
use starling_protocol::{Digest, Signer, sample};

/// Positions of one lease.
const LEASE: u64 = 240;

/// Rounds of 30 steps of a tiny model.
pub fn spec() -> RunSpec {
    RunSpec { inner: sample::spec().inner, ..sample::small() }
}

pub fn signers() -> Vec<Ed25519Signer> {
    let mut signers: Vec<_> = [1u8, 2, 3].iter().map(|fill| Ed25519Signer::from_secret(&[*fill; 32])).collect();
    signers.sort_by_key(Signer::id);
    signers
}

/// A genesis whose children all three voters decide.
pub fn genesis() -> Link {
    let voters = sample::voters(signers().iter().map(Signer::id), 1, 0, LEASE);
    let record = sample::genesis(&spec(), Digest([2; 32]), Digest([5; 32]), voters);
    record.validate_shape().expect("a genesis of three");
    Link { digest: record.digest(), record, certificate: None }
}

/// A skip after `parent`, decided by the first `voters` of the three.
pub fn skip(parent: &Link, voters: usize) -> Link {
    let record = succession::skip(&parent.record, parent.digest).expect("it fits");
    let digest = record.digest();
    let certificate = sample::certificate(&record, 1, &signers()[..voters]);
    Link { record, digest, certificate: Some(certificate) }
}

/// `n` links after `parent`, each decided by two of the three.
pub fn chain(parent: &Link, n: usize) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for _ in 0..n {
        links.push(skip(links.last().unwrap_or(parent), 2));
    }
    links
}

/// A commit after `parent` with this update; only its shape is valid.
pub fn commit(parent: &Link, update: Digest) -> Record {
    let record = sample::commit(&parent.record, 100, parent.record.next.members.clone());
    Record { update, ..record }
}
