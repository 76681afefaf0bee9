//! Blocks: pieces of the text. Their bounds depend on the text alone.
//!
//! The held-out split chooses blocks, and a tokenizer is given whole blocks. A block ends with a document where
//! documents are short, and at a line's end inside a long one. So it does not depend on how the file was read, on its
//! packing or on the tokenizer.

use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use std::collections::VecDeque;

/// Ends a document in byte-level tokens, and in the text whose entropy is measured.
pub(crate) const END_BYTE: u8 = 0;

/// A run of text with the offsets at which documents end in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    pub text: Vec<u8>,
    /// Offsets into `text`, rising, each above 0: a document ends before the byte there.
    pub ends: Vec<u32>,
}

impl Block {
    /// The block as one byte stream, each document closed by [`END_BYTE`].
    pub fn stream(&self) -> Vec<u8> {
        let mut stream = Vec::with_capacity(self.text.len() + self.ends.len());
        for (text, ended) in self.segments() {
            stream.extend_from_slice(text);
            if ended {
                stream.push(END_BYTE);
            }
        }
        stream
    }

    /// Pieces of documents, each with whether the document ends there.
    pub fn segments(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut start = 0;
        let ended = self.ends.iter().map(move |&end| {
            let piece = &self.text[start..end as usize];
            start = end as usize;
            (piece, true)
        });
        let last = &self.text[self.ends.last().map_or(0, |&end| end as usize)..];
        ended.chain((!last.is_empty()).then_some((last, false)))
    }

    /// Appends `other` to this block.
    pub fn append(&mut self, other: &Self) {
        let offset = self.text.len() as u32;
        self.text.extend_from_slice(&other.text);
        self.ends.extend(other.ends.iter().map(|end| end + offset));
    }

    /// Cuts the block in two at `at`, or a little before if a cut there would tear a line or a character.
    pub fn split_near(mut self, at: usize) -> (Self, Self) {
        let at = cut_before(&self.text, at - (at / 8).min(4096), at);
        let tail = self.text.split_off(at);
        let kept = self.ends.partition_point(|&end| end as usize <= at);
        let ends = self.ends.split_off(kept).into_iter().map(|end| end - at as u32).collect();
        (self, Self { text: tail, ends })
    }
}

/// Divides the stream of documents into blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    open: Block,
    ready: VecDeque<Block>,
    /// Whether text of a document was pushed that has not ended.
    in_document: bool,
}

impl BlockBuilder {
    /// Adds text of the current document.
    pub fn push(&mut self, mut text: &[u8]) {
        self.in_document |= !text.is_empty();
        while !text.is_empty() {
            let room = BLOCK_BYTES_MAX - self.open.text.len();
            let (now, later) = text.split_at(room.min(text.len()));
            self.open.text.extend_from_slice(now);
            text = later;
            if self.open.text.len() == BLOCK_BYTES_MAX {
                let at = cut_before(&self.open.text, BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
                let rest = self.open.text.split_off(at);
                // No document ends after the cut: the block would have ended with it.
                self.ready.push_back(std::mem::take(&mut self.open));
                self.open.text = rest;
            }
        }
    }

    /// Ends the current document. Returns whether there was one, since an empty document leaves no trace. `cut`: drop
    /// an incomplete character at the end.
    pub fn end_document(&mut self, cut: bool) -> bool {
        if !std::mem::take(&mut self.in_document) {
            return false;
        }
        if cut {
            let start = self.open.ends.last().map_or(0, |&end| end as usize);
            let whole = whole_characters(&self.open.text[start..]);
            self.open.text.truncate(start + whole);
        }
        let end = self.open.text.len() as u32;
        // A document that ends exactly at a block's end has an end of 0 in the next block; the mark belongs to the
        // block before.
        if end == 0 {
            if let Some(last) = self.ready.back_mut() {
                let end = last.text.len() as u32;
                if last.ends.last() != Some(&end) {
                    last.ends.push(end);
                }
            }
        } else if self.open.ends.last() != Some(&end) {
            self.open.ends.push(end);
        }
        if self.open.text.len() >= BLOCK_BYTES_MIN {
            self.ready.push_back(std::mem::take(&mut self.open));
        }
        true
    }

    /// Returns the next complete block. The last complete one is kept while its document's end may still belong to it.
    pub fn pop(&mut self) -> Option<Block> {
        let pending = self.in_document && self.open.text.is_empty();
        (self.ready.len() > usize::from(pending)).then(|| self.ready.pop_front()).flatten()
    }

    /// Returns the remaining blocks when all documents have ended.
    pub fn finish(mut self) -> Vec<Block> {
        if !self.open.text.is_empty() {
            self.ready.push_back(self.open);
        }
        self.ready.into()
    }
}

/// Returns an offset of at most `high` that tears no line, if there is one above `low`, and otherwise one that tears no
/// character.
fn cut_before(text: &[u8], low: usize, high: usize) -> usize {
    if let Some(newline) = text[low..high].iter().rposition(|&byte| byte == b'\n') {
        return low + newline + 1;
    }
    whole_characters(&text[..high])
}

/// Length of `text` without an incomplete UTF-8 character at its end.
fn whole_characters(text: &[u8]) -> usize {
    let tail = text.len().saturating_sub(3);
    let Some(lead) = text[tail..].iter().rposition(|byte| byte & 0xc0 != 0x80).map(|at| tail + at) else {
        return text.len();
    };
    let wants = match text[lead] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if text.len() - lead < wants { lead } else { text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks of `documents`, pushed in pieces of `step` bytes.
    fn blocks(documents: &[Vec<u8>], step: usize) -> Vec<Block> {
        let mut builder = BlockBuilder::default();
        let mut blocks = Vec::new();
        for document in documents {
            for piece in document.chunks(step) {
                builder.push(piece);
                blocks.extend(std::iter::from_fn(|| builder.pop()));
            }
            builder.end_document(false);
            blocks.extend(std::iter::from_fn(|| builder.pop()));
        }
        blocks.extend(builder.finish());
        blocks
    }

    fn stream(documents: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for document in documents.iter().filter(|document| !document.is_empty()) {
            stream.extend_from_slice(document);
            stream.push(END_BYTE);
        }
        stream
    }

    fn document() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![4 => 1usize..200, 1 => 1usize..150_000];
        (0usize..8, line, any::<bool>()).prop_map(|(size, line, wide)| {
            let letter = if wide { "é" } else { "e" };
            let mut text = String::new();
            while text.len() < size * 40_000 {
                text.push_str(&letter.repeat(line));
                text.push('\n');
            }
            // Some documents have no newline at the end.
            text.truncate(text.floor_char_boundary(size * 40_000));
            text.into_bytes()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn blocks_hold_the_stream_whatever_the_pieces(
            documents in prop::collection::vec(document(), 0..8), step in 1usize..300_000,
        ) {
            let cut = blocks(&documents, usize::MAX);
            prop_assert!(cut == blocks(&documents, step.max(1000)));
            prop_assert!(cut.iter().flat_map(Block::stream).collect::<Vec<_>>() == stream(&documents));
            for (at, block) in cut.iter().enumerate() {
                prop_assert!(block.text.len() <= BLOCK_BYTES_MAX);
                prop_assert!(at + 1 == cut.len() || block.text.len() >= BLOCK_BYTES_MIN - 3);
                prop_assert!(std::str::from_utf8(&block.text).is_ok());
                prop_assert!(block.ends.is_sorted() && block.ends.iter().all(|&end| end > 0));
            }
        }
    }

    #[test]
    fn a_long_document_is_cut_at_a_line_or_else_at_a_character() {
        let lines = "0123456789abcde\n".repeat(20_000).into_bytes();
        assert!(blocks(&[lines], 4096)[0].text.ends_with(b"\n"));
        let wide = "€".repeat(100_000).into_bytes();
        assert!(blocks(&[wide], 4096).iter().all(|block| std::str::from_utf8(&block.text).is_ok()));
        // Bytes that are not UTF-8 are cut too.
        assert_eq!(blocks(&[vec![0x80; 300_000]], 4096)[0].text.len(), BLOCK_BYTES_MAX);
    }

    #[test]
    fn a_document_that_ends_at_the_cut_is_ended_in_its_block() {
        let document = vec![b'\n'; BLOCK_BYTES_MAX];
        let cut = blocks(&[document.clone(), document], 1000);
        assert_eq!(
            cut.iter().map(|block| (block.text.len(), block.ends.len())).collect::<Vec<_>>(),
            [(BLOCK_BYTES_MAX, 1), (BLOCK_BYTES_MAX, 1)]
        );
    }

    #[test]
    fn a_cut_document_ends_with_a_whole_character() {
        let mut builder = BlockBuilder::default();
        builder.push("a€".as_bytes());
        builder.end_document(false);
        builder.push(&"b€".as_bytes()[..3]);
        builder.end_document(true);
        let block = builder.finish().remove(0);
        assert_eq!((block.text, block.ends), ("a€b".as_bytes().to_vec(), vec![4, 5]));
    }

    #[test]
    fn splitting_near_a_place_keeps_text_and_ends() {
        let lines = |count: usize| b"0123456\n".repeat(count);
        let block = Block { text: lines(100), ends: vec![8, 640, 800] };
        // A nearby line's end is preferred; the first part keeps the document's end there.
        let (left, right) = block.clone().split_near(645);
        assert_eq!((left.text, left.ends), (lines(80), vec![8, 640]));
        assert_eq!((right.text, right.ends), (lines(20), vec![160]));
        let (left, right) = block.split_near(7);
        assert_eq!((left.text, left.ends), (b"0123456".to_vec(), vec![]));
        assert_eq!(right.ends, [1, 633, 793]);
    }
}
