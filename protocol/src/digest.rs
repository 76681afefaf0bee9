//! Domain-separated BLAKE3 digests.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A 32-byte BLAKE3 digest. Ordered by bytes, printed as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of `parts` under `domain`.
    ///
    /// The domain is a BLAKE3 key-derivation context, so equal bytes under two domains never share a
    /// digest; each part is preceded by its length, so that parts cannot run into one another.
    pub fn of(domain: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(domain);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// Digest of a vector's little-endian bytes under `domain`: `Digest::of(domain, &[bytes])` without the copy.
    pub fn of_floats(domain: &str, floats: &[f32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(domain);
        hasher.update(&(4 * floats.len() as u64).to_le_bytes());
        let mut buffer = [0; 16 * 1024];
        for floats in floats.chunks(buffer.len() / 4) {
            let bytes = &mut buffer[..4 * floats.len()];
            for (bytes, float) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(floats) {
                *bytes = float.to_le_bytes();
            }
            hasher.update(bytes);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The first eight hex digits: for logs and tables, never for comparison.
    pub fn short(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0[..4])
    }

    /// Parses 64 hex digits, upper or lower case.
    pub fn from_hex(text: &str) -> Option<Self> {
        let bytes = data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }
}

/// As 64 hex digits in text formats, as 32 bytes elsewhere.
impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 32]>::deserialize(deserializer).map(Self);
        }
        let text = crate::wire::bounded::text::<D, 64>(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| D::Error::custom("not 64 hex digits"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_part_boundaries_separate() {
        let a = Digest::of("starling test a", &[b"xy", b"z"]);
        assert_ne!(a, Digest::of("starling test b", &[b"xy", b"z"]));
        assert_ne!(a, Digest::of("starling test a", &[b"x", b"yz"]));
        assert_eq!(a, Digest::of("starling test a", &[b"xy", b"z"]));
    }

    #[test]
    fn hex_round_trips_and_refuses_other_lengths() {
        let a = Digest::of("starling test a", &[]);
        assert_eq!(Digest::from_hex(&a.to_string()), Some(a));
        assert_eq!(Digest::from_hex("00"), None);
        assert_eq!(Digest::from_hex(&"g".repeat(64)), None);
    }
}
