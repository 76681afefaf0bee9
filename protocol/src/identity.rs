//! A node's identity: an ed25519 key. Signing is behind traits, so that simulations may use something cheaper.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A node's ed25519 public key. Ordered by bytes, printed as lower-case hex, which is also its form in text formats.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeId(pub [u8; 32]);

impl NodeId {
    /// The first bytes as a number that is ordered like them.
    fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

// Ordered by bytes. The engine looks members up in ordered maps all the time, and keys differ in their first bytes:
// comparing these as a number saves most calls of memcmp.
impl Ord for NodeId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.head().cmp(&other.head()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for NodeId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

// Serialized like a digest, without being one.
impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::Digest(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::Digest::deserialize(deserializer).map(|bytes| Self(bytes.0))
    }
}

impl NodeId {
    /// The first eight hex digits: for logs and tables, never for comparison.
    pub fn short(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0[..4])
    }

    /// Parses 64 hex digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        crate::Digest::from_hex(text).map(|d| Self(d.0))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

/// An ed25519 signature (64 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signature(pub [u8; 64]);

impl Signature {
    /// As wire types hold it: serde knows arrays up to 32.
    pub(crate) fn halves(&self) -> [[u8; 32]; 2] {
        let (mut first, mut second) = ([0; 32], [0; 32]);
        first.copy_from_slice(&self.0[..32]);
        second.copy_from_slice(&self.0[32..]);
        [first, second]
    }

    pub(crate) fn whole(halves: &[[u8; 32]; 2]) -> Self {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&halves[0]);
        bytes[32..].copy_from_slice(&halves[1]);
        Self(bytes)
    }
}

/// Signs as one node.
pub trait Signer: Send {
    /// The identity that [`Verifier::verify`] checks against.
    fn id(&self) -> NodeId;
    /// Signs raw bytes; the caller has put the domain into them.
    fn sign(&self, bytes: &[u8]) -> Signature;
}

/// Checks signatures of any node.
pub trait Verifier: Send {
    /// Whether `signature` over exactly `bytes` was made by `id`.
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool;
}

/// The real signer.
pub struct Ed25519Signer(ed25519_dalek::SigningKey);

impl Ed25519Signer {
    /// From the 32 secret bytes of an ed25519 key.
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(secret))
    }
}

impl Signer for Ed25519Signer {
    fn id(&self) -> NodeId {
        NodeId(self.0.verifying_key().to_bytes())
    }

    fn sign(&self, bytes: &[u8]) -> Signature {
        use ed25519_dalek::Signer as _;
        Signature(self.0.sign(bytes).to_bytes())
    }
}

/// The real verifier. Weak keys and malleable signatures are refused.
pub struct Ed25519Verifier;

impl Verifier for Ed25519Verifier {
    fn verify(&self, id: &NodeId, bytes: &[u8], signature: &Signature) -> bool {
        let Ok(key) = ed25519_dalek::VerifyingKey::from_bytes(&id.0) else { return false };
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        key.verify_strict(bytes, &signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_signer_and_bytes_only() {
        let (a, b) = (Ed25519Signer::from_secret(&[1; 32]), Ed25519Signer::from_secret(&[2; 32]));
        let signature = a.sign(b"round 7");
        assert!(Ed25519Verifier.verify(&a.id(), b"round 7", &signature));
        assert!(!Ed25519Verifier.verify(&b.id(), b"round 7", &signature));
        assert!(!Ed25519Verifier.verify(&a.id(), b"round 8", &signature));
        assert!(!Ed25519Verifier.verify(&NodeId([0; 32]), b"round 7", &signature));
    }
}
