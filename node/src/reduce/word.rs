//! Words: lists of bits that the opener of a stream writes beside its frames, in any attempt but the first.
//!
//! ```text
//! magic u16 = 0x5358 | version u8 = 1 | kind u8 | bytes u32          little-endian, 8 bytes
//! the bits, the first in the lowest bit of the first byte; surplus bits of the last byte are zero
//! ```
//!
//! The length follows from the number of chunks, so a receiver knows it beforehand, and allocates nothing for a claim.

use super::error::PeerFault;
use super::held;
use tokio::io::{AsyncRead, AsyncReadExt};

pub(crate) const WORD_HEADER_BYTES: usize = 8;
const MAGIC: u16 = 0x5358;
const VERSION: u8 = 1;

/// The meaning of the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordKind {
    /// A ring's member keeps nothing; then for each chunk, it has the finished sum.
    Finished = 1,
    /// For each of an owner's chunks, its sum is there already, and does not come.
    There = 2,
}

fn header(kind: WordKind, bits: usize) -> [u8; WORD_HEADER_BYTES] {
    let mut header = [0; WORD_HEADER_BYTES];
    header[..2].copy_from_slice(&MAGIC.to_le_bytes());
    (header[2], header[3]) = (VERSION, kind as u8);
    header[4..].copy_from_slice(&(bits.div_ceil(8) as u32).to_le_bytes());
    header
}

pub(super) fn encode(kind: WordKind, bits: &[bool]) -> Vec<u8> {
    [&header(kind, bits.len())[..], &held::encode(bits)].concat()
}

/// Reads the word that is due, and no other.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    kind: WordKind,
    bits: usize,
) -> Result<Vec<bool>, PeerFault> {
    let mut got = [0; WORD_HEADER_BYTES];
    stream.read_exact(&mut got).await.map_err(PeerFault::Lost)?;
    if got != header(kind, bits) {
        return Err(PeerFault::Word);
    }
    held::read(stream, bits).await
}

/// Bytes that follow these first ones of a word; none if they begin a frame.
#[cfg(any(test, feature = "byzantine"))]
pub(crate) fn follow(first: &[u8; WORD_HEADER_BYTES]) -> Option<usize> {
    let [a, b, _, _, length @ ..] = *first;
    (u16::from_le_bytes([a, b]) == MAGIC).then_some(u32::from_le_bytes(length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::harness::runtime;

    #[test]
    fn golden_bytes() {
        let word = encode(WordKind::There, &[true, false, false, true, false, false, false, false, true]);
        assert_eq!(word, [0x58, 0x53, 1, 2, 2, 0, 0, 0, 0b1001, 1]);
        assert_eq!(encode(WordKind::Finished, &[]), [0x58, 0x53, 1, 1, 0, 0, 0, 0]);
        assert_eq!(word.first_chunk().and_then(follow), Some(2));
        assert_eq!(follow(&[0x57, 0x53, 1, 1, 2, 0, 80, 0]), None, "a frame");
    }

    #[test]
    fn only_the_word_that_is_due_is_read() {
        let bits = [true, false, true];
        let read = |bytes: Vec<u8>| runtime().block_on(async move { read(&mut &bytes[..], WordKind::There, 3).await });
        assert_eq!(read(encode(WordKind::There, &bits)).ok(), Some(bits.to_vec()));
        let changed = |at: usize, byte: u8| {
            let mut word = encode(WordKind::There, &bits);
            word[at] = byte;
            word
        };
        // Another magic, version, kind and length.
        for (at, byte) in [(0, 0x57), (2, 2), (3, 1), (4, 2), (7, 0x80)] {
            assert!(matches!(read(changed(at, byte)), Err(PeerFault::Word)), "byte {at}");
        }
        assert!(matches!(read(changed(8, 0b1000)), Err(PeerFault::Held)), "a surplus bit");
        assert!(matches!(read(encode(WordKind::There, &bits)[..8].to_vec()), Err(PeerFault::Lost(_))));
    }
}
