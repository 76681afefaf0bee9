//! Domain-separated BLAKE3 digests.

use blake3::hazmat::{self, ChainingValue, ContextKey, HasherExt, Mode};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Range;

/// Bytes that BLAKE3's widest implementations take at once. They do so only at offsets that are multiples of it: fed as
/// it comes, data behind a prefix of eight bytes is hashed up to four times slower.
const STRIDE: usize = 16 * 1024;

/// Bytes before a part that tell its length.
const LENGTH: usize = 8;
/// Bytes of a piece of [`Pieces`]: a whole subtree of BLAKE3's, which are of powers of two.
const PIECE: usize = 1 << 20;

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
        Self::with(blake3::Hasher::new_derive_key(domain))
    }

    fn with(hasher: blake3::Hasher) -> Self {
        Self { hasher, held: [0; STRIDE], filled: 0 }
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

/// [`Digest::of`] one part whose pieces are hashed apart, side by side if the caller has threads: BLAKE3 is a tree (its
/// paper, section 2.1). Vectors of f32 are cut as well: [`Digest::of_floats`].
pub struct Pieces {
    key: ContextKey,
    bytes: usize,
}

/// The digest of a piece.
#[derive(Clone, Copy, Debug)]
pub struct PieceDigest(ChainingValue);

impl Pieces {
    /// Pieces of a part of so many bytes.
    pub fn of_bytes(domain: &str, bytes: usize) -> Self {
        Self { key: hazmat::hash_derive_key_context(domain), bytes }
    }

    /// Pieces of a vector of `elements`.
    pub fn of_floats(domain: &str, elements: usize) -> Self {
        Self::of_bytes(domain, 4 * elements)
    }

    /// The bytes of each piece, in their order. The first one has eight less than the others, for the length before them.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        let start = |piece: usize| (piece * PIECE).saturating_sub(LENGTH).min(self.bytes);
        (0..(LENGTH + self.bytes).div_ceil(PIECE)).map(move |piece| start(piece)..start(piece + 1))
    }

    /// The elements of each piece of a vector.
    pub fn float_ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.ranges().map(|range| range.start / 4..range.end / 4)
    }

    /// The digest of the piece of this number.
    pub fn hash(&self, number: usize, bytes: &[u8]) -> PieceDigest {
        let mut strides = self.begin(number);
        strides.put(bytes);
        self.end(number, strides)
    }

    /// The digest of the piece of this number of a vector.
    pub fn hash_floats(&self, number: usize, floats: &[f32]) -> PieceDigest {
        let mut piece = FloatHasher(self.begin(number));
        piece.put(floats);
        self.end(number, piece.0)
    }

    fn begin(&self, number: usize) -> Strides {
        let mut hasher = blake3::Hasher::new_from_context_key(&self.key);
        hasher.set_input_offset((number * PIECE) as u64);
        let mut strides = Strides::with(hasher);
        if number == 0 {
            strides.put(&(self.bytes as u64).to_le_bytes());
        }
        strides
    }

    fn end(&self, number: usize, strides: Strides) -> PieceDigest {
        let Strides { mut hasher, held, filled } = strides;
        hasher.update(&held[..filled]);
        // A piece that is the whole part has no parent.
        let whole = number == 0 && self.ranges().len() == 1;
        PieceDigest(if whole { *hasher.finalize().as_bytes() } else { hasher.finalize_non_root() })
    }

    /// The whole's digest, of those of all its pieces in their order.
    pub fn finish(&self, pieces: &[PieceDigest]) -> Digest {
        let [first, rest @ ..] = pieces else { return Digest::default() };
        if rest.is_empty() {
            return Digest(first.0);
        }
        let (left, right) = self.halves(pieces);
        Digest(*hazmat::merge_subtrees_root(&left, &right, Mode::DeriveKeyMaterial(&self.key)).as_bytes())
    }

    /// Left subtrees are whole, and as large as they can be.
    fn halves(&self, pieces: &[PieceDigest]) -> (ChainingValue, ChainingValue) {
        let (left, right) = pieces.split_at(pieces.len().next_power_of_two() / 2);
        (self.subtree(left), self.subtree(right))
    }

    fn subtree(&self, pieces: &[PieceDigest]) -> ChainingValue {
        if let [piece] = pieces {
            return piece.0;
        }
        let (left, right) = self.halves(pieces);
        hazmat::merge_subtrees_non_root(&left, &right, Mode::DeriveKeyMaterial(&self.key))
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
    fn pieces_hashed_apart_give_the_digest_of_the_vector() {
        let whole = PIECE / 4;
        let all: Vec<f32> = (0..7 * whole).map(|i| i as f32 * 0.25 - 100.0).collect();
        for elements in [0, 1, whole - 3, whole - 2, whole - 1, 2 * whole - 2, 2 * whole, 3 * whole + 5, 4 * whole - 2]
            .into_iter()
            .chain([5 * whole, 7 * whole - 1])
        {
            let floats = &all[..elements];
            let pieces = Pieces::of_floats("starling test a", elements);
            let ranges: Vec<_> = pieces.float_ranges().collect();
            assert_eq!(ranges.last().map_or(0, |last| last.end), elements);
            let hash = |(number, range): (usize, &Range<usize>)| pieces.hash_floats(number, &floats[range.clone()]);
            let hashed: Vec<_> = ranges.iter().enumerate().map(hash).collect();
            assert_eq!(pieces.finish(&hashed), Digest::of_floats("starling test a", floats), "{elements} elements");
        }
    }

    #[test]
    fn pieces_of_bytes_give_the_digest_of_the_part() {
        let all: Vec<u8> = (0..2 * PIECE + STRIDE).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in [0, 1, PIECE - LENGTH, PIECE - LENGTH + 1, PIECE, 2 * PIECE - LENGTH, 2 * PIECE + STRIDE] {
            let part = &all[..bytes];
            let pieces = Pieces::of_bytes("starling test a", bytes);
            let hashed: Vec<_> = pieces.ranges().enumerate().map(|(n, range)| pieces.hash(n, &part[range])).collect();
            assert_eq!(pieces.finish(&hashed), Digest::of("starling test a", &[part]), "{bytes} bytes");
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
