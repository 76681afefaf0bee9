//! Identities. Most histories sign with a keyed hash, which is nearly free; some use the real keys.

use crate::identity::{Ed25519Signer, Ed25519Verifier};
use crate::{Digest, NodeId, Signature, Signer, Verifier};
use std::cell::Cell;
use std::collections::BTreeMap;

/// The nodes of a history and their keys.
#[derive(Clone, Debug)]
pub struct Keys {
    seed: u64,
    ed25519: bool,
    ids: Vec<NodeId>,
    places: BTreeMap<NodeId, usize>,
}

/// Makes no two signatures alike, as may happen with real keys: only bodies can contradict each other.
struct MacSigner {
    id: NodeId,
    signed: Cell<u64>,
}
struct MacVerifier;

fn mac(id: &NodeId, number: [u8; 8], bytes: &[u8]) -> Signature {
    let mut out = [0; 64];
    out[..8].copy_from_slice(&number);
    blake3::Hasher::new_keyed(&id.0).update(&number).update(bytes).finalize_xof().fill(&mut out[8..]);
    Signature(out)
}

impl Signer for MacSigner {
    fn id(&self) -> NodeId {
        self.id
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        self.signed.set(self.signed.get() + 1);
        mac(&self.id, self.signed.get().to_le_bytes(), bytes)
    }
}

impl Verifier for MacVerifier {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        signature.0.first_chunk().is_some_and(|number| mac(id, *number, bytes) == *signature)
    }
}

impl Keys {
    pub fn new(seed: u64, nodes: usize, ed25519: bool) -> Self {
        let mut keys = Self { seed, ed25519, ids: Vec::new(), places: BTreeMap::new() };
        for index in 0..nodes {
            let id = keys.signer(index).id();
            keys.ids.push(id);
            keys.places.insert(id, index);
        }
        keys
    }

    fn secret(&self, index: usize) -> [u8; 32] {
        Digest::of("starling sim key v1", &[&self.seed.to_le_bytes(), &index.to_le_bytes()]).0
    }

    pub fn id(&self, index: usize) -> NodeId {
        self.ids.get(index).copied().unwrap_or(NodeId([0; 32]))
    }

    pub fn index(&self, id: &NodeId) -> Option<usize> {
        self.places.get(id).copied()
    }

    pub fn signer(&self, index: usize) -> Box<dyn Signer> {
        let secret = self.secret(index);
        if self.ed25519 {
            return Box::new(Ed25519Signer::from_secret(&secret));
        }
        Box::new(MacSigner { id: NodeId(secret), signed: Cell::new(0) })
    }

    pub fn verifier(&self) -> Box<dyn Verifier> {
        if self.ed25519 { Box::new(Ed25519Verifier) } else { Box::new(MacVerifier) }
    }
}
