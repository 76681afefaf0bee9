//! Signatures that cost nothing: a simulation checks who said what, not the curve.

use starling_protocol::{NodeId, Signature, Signer, Verifier};

pub fn id(node: usize) -> NodeId {
    // Ids are spread out, so that their order is not the order of the nodes.
    let mut bytes = [0u8; 32];
    let mixed = (node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes[..8].copy_from_slice(&mixed.to_be_bytes());
    bytes[8..16].copy_from_slice(&(node as u64).to_be_bytes());
    NodeId(bytes)
}

pub fn node(id: &NodeId) -> usize {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&id.0[8..16]);
    u64::from_be_bytes(bytes) as usize
}

fn sum(id: &NodeId, bytes: &[u8]) -> Signature {
    let mut state = 0xcbf2_9ce4_8422_2325u64;
    for chunk in id.0.chunks(8).chain(bytes.chunks(8)) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
    let mut signature = [0u8; 64];
    signature[..8].copy_from_slice(&state.to_le_bytes());
    Signature(signature)
}

pub struct PlainSigner(pub NodeId);

impl Signer for PlainSigner {
    fn id(&self) -> NodeId {
        self.0
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        sum(&self.0, bytes)
    }
}

pub struct PlainVerifier;

impl Verifier for PlainVerifier {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        sum(id, bytes) == *signature
    }
}
