//! Domain-separated BLAKE3 digests.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes that BLAKE3's widest implementations take at once. They do so only at offsets that are multiples of it: fed as
/// it comes, data behind a prefix of eight bytes is hashed up to four times slower.
const STRIDE: usize = 16 * 1024;

/// A 32-byte BLAKE3 digest. Ordered by bytes, printed as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of `parts` under `domain`.
    ///
    /// The domain is a BLAKE3 key-derivation context, so equal bytes under two domains never share a
    /// digest; each part is preceded by its length, so that parts cannot run into one another.
    pub fn of(domain: &str, parts: &[&[u8]]) -> Self {
        let length = |part: &[u8]| (part.len() as u64).to_le_bytes();
        if parts.iter().all(|part| part.len() < STRIDE / 4) {
            let mut hasher = blake3::Hasher::new_derive_key(domain);
            for part in parts {
                hasher.update(&length(part));
                hasher.update(part);
            }
            return Self(*hasher.finalize().as_bytes());
        }
        let mut strides = Strides::new(domain);
        for part in parts {
            strides.put(&length(part));
            strides.put(part);
        }
        strides.finish()
    }

    /// Digest of a vector's little-endian bytes under `domain`: `Digest::of(domain, &[bytes])` without the copy.
    pub fn of_floats(domain: &str, floats: &[f32]) -> Self {
        let mut hasher = FloatHasher::new(domain, floats.len());
        hasher.put(floats);
        hasher.finish()
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

/// Feeds BLAKE3 in whole strides.
struct Strides {
    hasher: blake3::Hasher,
    held: [u8; STRIDE],
    filled: usize,
}

impl Strides {
    fn new(domain: &str) -> Self {
        Self { hasher: blake3::Hasher::new_derive_key(domain), held: [0; STRIDE], filled: 0 }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == 0 && bytes.len() >= STRIDE {
                let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % STRIDE);
                self.hasher.update(whole);
                bytes = rest;
            } else {
                let (next, rest) = bytes.split_at(bytes.len().min(STRIDE - self.filled));
                self.held[self.filled..self.filled + next.len()].copy_from_slice(next);
                self.hold(next.len());
                bytes = rest;
            }
        }
    }

    /// Notes that `more` bytes were added to those held.
    fn hold(&mut self, more: usize) {
        self.filled += more;
        if self.filled == STRIDE {
            self.hasher.update(&self.held);
            self.filled = 0;
        }
    }

    fn finish(mut self) -> Digest {
        self.hasher.update(&self.held[..self.filled]);
        Digest(*self.hasher.finalize().as_bytes())
    }
}

/// [`Digest::of_floats`] of a vector that arrives piece by piece.
pub struct FloatHasher(Strides);

impl FloatHasher {
    /// A hasher for a vector of `elements` in all.
    pub fn new(domain: &str, elements: usize) -> Self {
        let mut strides = Strides::new(domain);
        strides.put(&(4 * elements as u64).to_le_bytes());
        Self(strides)
    }

    /// Takes the next elements.
    pub fn put(&mut self, mut floats: &[f32]) {
        while !floats.is_empty() {
            // Prefix and floats are multiples of four bytes, so there is room for at least one.
            let room = &mut self.0.held[self.0.filled..];
            let (next, rest) = floats.split_at(floats.len().min(room.len() / 4));
            for (bytes, float) in room.as_chunks_mut::<4>().0.iter_mut().zip(next) {
                *bytes = float.to_le_bytes();
            }
            self.0.hold(4 * next.len());
            floats = rest;
        }
    }

    pub fn finish(self) -> Digest {
        self.0.finish()
    }
}

/// [`Digest::of`] one part that arrives piece by piece.
pub struct ByteHasher(Strides);

impl ByteHasher {
    /// A hasher for a part of so many bytes in all.
    pub fn new(domain: &str, bytes: u64) -> Self {
        let mut strides = Strides::new(domain);
        strides.put(&bytes.to_le_bytes());
        Self(strides)
    }

    /// Takes the next bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }

    pub fn finish(self) -> Digest {
        self.0.finish()
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
    fn strides_change_nothing() {
        let bytes: Vec<u8> = (0..5 * STRIDE).map(|i| (i * i / 7) as u8).collect();
        let lengths = [0, 1, STRIDE / 4, STRIDE - 9, STRIDE - 8, STRIDE - 7, STRIDE, 2 * STRIDE - 8, 5 * STRIDE];
        for first in lengths {
            for second in lengths {
                let parts = [&bytes[..first], &bytes[5 * STRIDE - second..]];
                let mut plain = blake3::Hasher::new_derive_key("starling test a");
                for part in parts {
                    plain.update(&(part.len() as u64).to_le_bytes());
                    plain.update(part);
                }
                assert_eq!(Digest::of("starling test a", &parts).0, *plain.finalize().as_bytes(), "{first}, {second}");
            }
        }
    }

    #[test]
    fn floats_are_hashed_as_their_bytes_whatever_the_pieces() {
        let floats: Vec<f32> = (0..3 * STRIDE / 4 + 5).map(|i| i as f32 * 0.25 - 100.0).collect();
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        let whole = Digest::of("starling test a", &[&bytes]);
        for piece in [1, 7, STRIDE / 4 - 2, STRIDE / 4, STRIDE, 4 * STRIDE] {
            let mut hasher = FloatHasher::new("starling test a", floats.len());
            floats.chunks(piece).for_each(|floats| hasher.put(floats));
            assert_eq!(hasher.finish(), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn hex_round_trips_and_refuses_other_lengths() {
        let a = Digest::of("starling test a", &[]);
        assert_eq!(Digest::from_hex(&a.to_string()), Some(a));
        assert_eq!(Digest::from_hex("00"), None);
        assert_eq!(Digest::from_hex(&"g".repeat(64)), None);
    }
}
