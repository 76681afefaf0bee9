//! The pieces of an encoded update, each of which can be checked by itself.
//!
//! An update's digest is the root of BLAKE3's tree over the update's length (8 bytes) and its bytes. A subtree stands
//! over each 256 KiB of that input, and the values of these subtrees lead to the root. A node that has the values and
//! the length can therefore check each piece as it comes, although the record names nothing but the root.

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, hash_derive_key_context, merge_subtrees_non_root, merge_subtrees_root,
};
use starling_protocol::Digest;
use std::io::{self, Read};
use std::ops::Range;

/// Bytes of the hashed input under one piece's subtree: a power of two, and whole chunks of BLAKE3.
pub const UPDATE_PIECE_BYTES: usize = 256 << 10;
const _: () = assert!(UPDATE_PIECE_BYTES.is_power_of_two() && UPDATE_PIECE_BYTES >= blake3::CHUNK_LEN);
/// Bytes of the length in front of the update.
const PREFIX_BYTES: u64 = 8;
/// Bytes of one subtree's value.
const VALUE_BYTES: usize = 32;
/// The domain of an update's digest (`docs/protocol/1-wire.md` §1.1). A test compares the two.
const DOMAIN: &str = "starling update v1";

/// The values of all pieces of an update, which lead to its digest. There are at least two pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    length: u64,
    values: Vec<ChainingValue>,
}

impl Pieces {
    /// The number of pieces of an update of so many bytes.
    pub fn count_of(length: u64) -> usize {
        let count = length.saturating_add(PREFIX_BYTES).div_ceil(UPDATE_PIECE_BYTES as u64);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Reads the pieces of an update of so many bytes, a piece at a time. `None` for an update of one piece, which is
    /// its own root.
    ///
    /// # Errors
    /// When it cannot be read, or ends before.
    pub fn read(update: &mut impl Read, length: u64) -> io::Result<Option<Self>> {
        let count = Self::count_of(length);
        if count < 2 {
            return Ok(None);
        }
        let (mut values, mut bytes) = (Vec::new(), Vec::new());
        for piece in 0..count {
            let range = range_of(length, piece);
            bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0).min(UPDATE_PIECE_BYTES), 0);
            update.read_exact(&mut bytes)?;
            values.push(value(length, piece, &bytes));
        }
        Ok(Some(Self { length, values }))
    }

    /// The pieces of the update with this digest and so many bytes, if these are their values.
    pub fn decode(digest: &Digest, length: u64, values: &[u8]) -> Option<Self> {
        let (values, rest) = values.as_chunks::<VALUE_BYTES>();
        let fits = rest.is_empty() && values.len() == Self::count_of(length);
        let pieces = fits.then(|| Self { length, values: values.to_vec() })?;
        (pieces.root().as_ref() == Some(digest)).then_some(pieces)
    }

    /// The values, in order and with nothing between them.
    pub fn encode(&self) -> Vec<u8> {
        self.values.concat()
    }

    /// Bytes of [`Pieces::encode`] for an update of so many bytes.
    pub fn encoded_len(length: u64) -> u64 {
        (Self::count_of(length) as u64).saturating_mul(VALUE_BYTES as u64)
    }

    /// The digest of the update.
    pub fn root(&self) -> Option<Digest> {
        let key = hash_derive_key_context(DOMAIN);
        let mode = Mode::DeriveKeyMaterial(&key);
        let mut values = self.values.clone();
        while values.len() > 2 {
            let merged = values.chunks(2).filter_map(|pair| match pair {
                [left, right] => Some(merge_subtrees_non_root(left, right, mode)),
                // An odd one moves up by a level.
                other => other.first().copied(),
            });
            values = merged.collect();
        }
        match values.as_slice() {
            [left, right] => Some(Digest(*merge_subtrees_root(left, right, mode).as_bytes())),
            _ => None,
        }
    }

    /// The number of pieces.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Bytes of the update.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The place of a piece in the update; empty beyond the last.
    pub fn range(&self, piece: usize) -> Range<u64> {
        range_of(self.length, piece)
    }

    /// Whether these are the bytes of a piece.
    pub fn checks(&self, piece: usize, bytes: &[u8]) -> bool {
        let range = self.range(piece);
        let fits = !bytes.is_empty() && range.end - range.start == bytes.len() as u64;
        fits && self.values.get(piece).is_some_and(|expected| *expected == value(self.length, piece, bytes))
    }
}

fn range_of(length: u64, piece: usize) -> Range<u64> {
    // The length is hashed before the first piece, so all others begin that much earlier.
    let at = |piece: u64| piece.saturating_mul(UPDATE_PIECE_BYTES as u64).saturating_sub(PREFIX_BYTES).min(length);
    at(piece as u64)..at((piece as u64).saturating_add(1))
}

/// The value of the subtree over a piece: at least one byte, and at most [`UPDATE_PIECE_BYTES`] with the length.
fn value(length: u64, piece: usize, bytes: &[u8]) -> ChainingValue {
    let mut hasher = Hasher::new_derive_key(DOMAIN);
    if piece == 0 {
        hasher.update(&length.to_le_bytes());
    } else {
        hasher.set_input_offset((piece as u64).saturating_mul(UPDATE_PIECE_BYTES as u64));
    }
    hasher.update(bytes);
    hasher.finalize_non_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::update;

    fn sample(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 31 + i / 1009) as u8).collect()
    }

    fn pieces(update: &[u8]) -> Pieces {
        Pieces::read(&mut &*update, update.len() as u64).expect("it is in memory").expect("of two pieces or more")
    }

    fn slice<'a>(pieces: &Pieces, update: &'a [u8], piece: usize) -> &'a [u8] {
        let range = pieces.range(piece);
        &update[range.start as usize..range.end as usize]
    }

    #[test]
    fn the_values_of_the_pieces_lead_to_the_digest_that_a_record_names() {
        const PIECE: usize = UPDATE_PIECE_BYTES;
        let even = [(2 * PIECE - 8, 2), (4 * PIECE - 8, 4)];
        let odd = [(PIECE - 7, 2), (2 * PIECE - 7, 3), (2 * PIECE, 3), (4 * PIECE + 1, 5), (6 * PIECE + 700, 7)];
        for (length, count) in even.into_iter().chain(odd) {
            let update = sample(length);
            let pieces = pieces(&update);
            assert_eq!((pieces.count(), pieces.length()), (count, length as u64));
            let digest = update::digest(&update);
            assert_eq!(pieces.root(), Some(digest), "{length} bytes");
            assert_eq!(pieces.encode().len() as u64, Pieces::encoded_len(length as u64));
            assert_eq!(Pieces::decode(&digest, length as u64, &pieces.encode()), Some(pieces.clone()));
            let all: Vec<u8> = (0..count).flat_map(|piece| slice(&pieces, &update, piece).to_vec()).collect();
            assert!(all == update, "the pieces are the whole");
            assert!((0..count).all(|piece| pieces.checks(piece, slice(&pieces, &update, piece))));
        }
        for length in [0, 1, PIECE - 8] {
            let update = sample(length);
            assert_eq!(Pieces::read(&mut &*update, length as u64).expect("it is in memory"), None, "{length} bytes");
        }
    }

    #[test]
    fn other_values_and_other_bytes_are_refused() {
        let update = sample(3 * UPDATE_PIECE_BYTES + 5);
        let (pieces, length, digest) = (pieces(&update), update.len() as u64, update::digest(&update));
        let mut values = pieces.encode();
        assert_eq!(Pieces::decode(&digest, length, &values[1..]), None);
        assert_eq!(Pieces::decode(&digest, length, &values[32..]), None);
        assert_eq!(Pieces::decode(&digest, 2 * length, &values), None);
        assert_eq!(Pieces::decode(&Digest([1; 32]), length, &values), None);
        values[40] ^= 1;
        assert_eq!(Pieces::decode(&digest, length, &values), None);
        let first = slice(&pieces, &update, 0);
        assert!(!pieces.checks(1, first) && !pieces.checks(0, &first[1..]) && !pieces.checks(0, &[]));
        assert!(!pieces.checks(4, &[]) && !pieces.checks(9, first));
        let mut flipped = first.to_vec();
        flipped[77] ^= 1;
        assert!(!pieces.checks(0, &flipped));
        let cut = Pieces::read(&mut &update[1..], length);
        assert!(cut.is_err(), "the file ends too early");
    }
}
