//! Identities. Most histories sign with a keyed hash, which costs next to nothing; some with the real keys.

use crate::identity::{Ed25519Signer, Ed25519Verifier};
use crate::{Digest, NodeId, Signature, Signer, Verifier};
use std::collections::BTreeMap;

/// The nodes of a history and their keys.
#[derive(Clone, Debug)]
pub struct Keys {
    seed: u64,
    ed25519: bool,
    ids: Vec<NodeId>,
    places: BTreeMap<NodeId, usize>,
}

struct MacSigner(NodeId);
struct MacVerifier;

fn mac(id: &NodeId, bytes: &[u8]) -> Signature {
    let mut out = [0; 64];
    blake3::Hasher::new_keyed(&id.0).update(bytes).finalize_xof().fill(&mut out);
    Signature(out)
}

impl Signer for MacSigner {
    fn id(&self) -> NodeId {
        self.0
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        mac(&self.0, bytes)
    }
}

impl Verifier for MacVerifier {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        mac(id, bytes) == *signature
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
        if self.ed25519 { Box::new(Ed25519Signer::from_secret(&secret)) } else { Box::new(MacSigner(NodeId(secret))) }
    }

    pub fn verifier(&self) -> Box<dyn Verifier> {
        if self.ed25519 { Box::new(Ed25519Verifier) } else { Box::new(MacVerifier) }
    }
}
