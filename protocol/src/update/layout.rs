//! The chunks of a vector, and the place of a chunk's payload in D.
//!
//! With a codec of fixed length, D is the payloads in order, with nothing between them, and every place is known
//! beforehand. Payloads of top-k vary in length, so a table stands before them: each payload's bytes as u32.

use crate::codec::{CodecError, encoded_max as payload_max};
use crate::limits::CHUNK_ELEMENTS;
use crate::run::Codec;
use std::ops::Range;

/// Bytes of one length in the table.
const LENGTH_BYTES: usize = 4;

/// Chunks of a vector of `elements`.
pub const fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK_ELEMENTS)
}

/// The elements of chunk `chunk`; empty beyond the last.
pub fn chunk_elements(elements: usize, chunk: usize) -> Range<usize> {
    let at = |chunk: usize| chunk.saturating_mul(CHUNK_ELEMENTS).min(elements);
    at(chunk)..at(chunk.saturating_add(1))
}

/// Bytes of the sum of a row over a chunk of so many elements: one f32 an element, whatever the run's codec is.
pub const fn row_sum_bytes(elements: usize) -> usize {
    elements * size_of::<f32>()
}

/// Bytes of D; the most bytes, for a codec whose payloads have no fixed length.
pub const fn encoded_max(codec: Codec, elements: usize) -> usize {
    // Chunks are whole blocks but for the end, so cutting into chunks adds nothing but the table.
    payload_max(codec, elements) + table_len(codec, elements)
}

const fn table_len(codec: Codec, elements: usize) -> usize {
    if codec.is_fixed() { 0 } else { LENGTH_BYTES * chunks(elements) }
}

/// The place of the payload of `chunk` in D, for a codec of fixed length; empty beyond the last.
pub fn chunk_range(codec: Codec, elements: usize, chunk: usize) -> Range<usize> {
    chunks_range(codec, elements, chunk..chunk.saturating_add(1))
}

/// The place of the payloads of consecutive chunks, such as a ring's segment, in D, for a codec of fixed length.
pub fn chunks_range(codec: Codec, elements: usize, chunks: Range<usize>) -> Range<usize> {
    let at = |chunk: usize| payload_max(codec, chunk_elements(elements, chunk).start);
    at(chunks.start)..at(chunks.end.max(chunks.start))
}

/// Joins the chunks' payloads, all of them and in order, to D.
pub fn assemble<'a>(codec: Codec, payloads: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let (mut bytes, mut count) = (0, 0);
    for payload in payloads.clone() {
        (bytes, count) = (bytes + payload.len(), count + 1);
    }
    let table = if codec.is_fixed() { 0 } else { LENGTH_BYTES * count };
    let mut update = Vec::with_capacity(table + bytes);
    if table > 0 {
        update.extend(payloads.clone().flat_map(|payload| (payload.len() as u32).to_le_bytes()));
    }
    for payload in payloads {
        update.extend_from_slice(payload);
    }
    update
}

/// The chunks of one D. Their places are checked, their payloads are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    codec: Codec,
    elements: usize,
    /// The end of each payload; empty if the ends are known beforehand.
    ends: Vec<usize>,
}

impl Layout {
    /// Reads the table of `update`, an update of `elements`.
    ///
    /// # Errors
    /// [`CodecError::Length`] when `update` has not the bytes that codec, elements and table require,
    /// [`CodecError::ChunkLength`] when a payload is longer than any payload of its chunk can be.
    pub fn of(codec: Codec, elements: usize, update: &[u8]) -> Result<Self, CodecError> {
        let wrong = |expected| CodecError::Length { elements, expected, actual: update.len() };
        let table = table_len(codec, elements);
        let Some((lengths, _)) = update.split_at_checked(table) else { return Err(wrong(table)) };
        let (mut ends, mut end) = (Vec::with_capacity(table / LENGTH_BYTES), table);
        for (chunk, length) in lengths.as_chunks::<LENGTH_BYTES>().0.iter().enumerate() {
            let bytes = u32::from_le_bytes(*length) as usize;
            let most = payload_max(codec, chunk_elements(elements, chunk).len());
            if bytes > most {
                return Err(CodecError::ChunkLength { chunk, bytes, most });
            }
            end += bytes;
            ends.push(end);
        }
        let expected = if codec.is_fixed() { encoded_max(codec, elements) } else { end };
        if update.len() == expected { Ok(Self { codec, elements, ends }) } else { Err(wrong(expected)) }
    }

    /// The place of the payload of `chunk`; empty beyond the last.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        if self.codec.is_fixed() {
            return chunk_range(self.codec, self.elements, chunk);
        }
        let Some(end) = self.ends.get(chunk) else { return 0..0 };
        let start = match chunk.checked_sub(1) {
            Some(before) => self.ends[before],
            None => LENGTH_BYTES * self.ends.len(),
        };
        start..*end
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;
    use crate::codec;
    use proptest::prelude::*;

    const CODECS: [Codec; 4] = [Codec::Bf16, Codec::Int8, Codec::Int4, Codec::TopK { k: 64 }];

    fn ramp(elements: usize) -> Vec<f32> {
        (0..elements).map(|i| ((i * 7919) % 1000) as f32 * 1e-5 - 3e-3).collect()
    }

    #[test]
    fn chunks_tile_the_vector_and_the_update() {
        for elements in [0, 1, 255, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, 5 * CHUNK_ELEMENTS + 7] {
            for codec in CODECS {
                let update = encode(codec, &ramp(elements)).unwrap();
                let layout = Layout::of(codec, elements, &update).unwrap();
                let (mut element, mut byte) = (0, table_len(codec, elements));
                for chunk in 0..chunks(elements) {
                    let (e, b) = (chunk_elements(elements, chunk), layout.range(chunk));
                    assert_eq!((e.start, b.start), (element, byte));
                    assert!(!e.is_empty() && b.len() <= payload_max(codec, e.len()));
                    codec::check(codec, &update[b.clone()], e.len()).unwrap();
                    (element, byte) = (e.end, b.end);
                }
                assert_eq!((element, byte), (elements, update.len()));
                assert!(update.len() <= encoded_max(codec, elements));
                assert!(layout.range(chunks(elements)).is_empty() && layout.range(usize::MAX).is_empty());
            }
        }
    }

    #[test]
    fn golden_table() {
        // Three entries of 1.0 in two chunks: at 0 and at 5 of the first one's first block, and at 1 of the second
        // one's block.
        let mut vector = vec![0.0; CHUNK_ELEMENTS + 3];
        (vector[0], vector[5], vector[CHUNK_ELEMENTS + 1]) = (1.0, 1.0, 1.0);
        let update = encode(Codec::TopK { k: 64 }, &vector).unwrap();
        let first = "0200803f803f00000100";
        let expect = format!("{}{}{first}{}{}", "18000000", "07000000", "0000".repeat(7), "0100803f803f01");
        assert_eq!(data_encoding::HEXLOWER.encode(&update), expect);
    }

    proptest! {
        #[test]
        fn only_what_assembles_to_the_same_bytes_is_read(
            elements in 1usize..3 * CHUNK_ELEMENTS,
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let codec = Codec::TopK { k: 16 };
            let mut update = encode(codec, &ramp(elements)).unwrap();
            let at = at.index(update.len());
            update[at] ^= flip;
            let mut values = vec![0.0; elements];
            if decode(codec, &update, &mut values).is_ok() {
                let layout = Layout::of(codec, elements, &update).unwrap();
                let payloads = (0..chunks(elements)).map(|chunk| &update[layout.range(chunk)]);
                prop_assert!(assemble(codec, payloads) == update);
                prop_assert!(at >= table_len(codec, elements), "a length that is not the payload's");
            }
        }
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let (codec, elements) = (Codec::TopK { k: 64 }, CHUNK_ELEMENTS + 100);
        let good = encode(codec, &ramp(elements)).unwrap();
        let reason = |update: &[u8]| Layout::of(codec, elements, update).unwrap_err().reason();
        for bytes in [0, 7, good.len() - 1] {
            assert_eq!(reason(&good[..bytes]), "length");
        }
        assert_eq!(reason(&[&good[..], &[0]].concat()), "length");
        for length in [u32::MAX, payload_max(codec, CHUNK_ELEMENTS) as u32 + 1] {
            let mut bad = good.clone();
            bad[..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(reason(&bad), "chunk_length");
        }
    }
}
